"""Commands that are created when they are needed and parse their options without pydantic.

typer creates all commands of a program at its start and imports pydantic to parse the first option.
Together they take longer than the set-up of a lab.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final

import typer
from typer.core import TyperCommand, TyperGroup

from bentpipe.errors import UsageError
from bentpipe.text import NO_VALUE, choice

# A value of one of these types needs no conversion.
_PLAIN_TYPES: Final = (str, int, float, bool)
# A summary ends with its first sentence; a longer one is a paragraph.
_SUMMARY_MAX: Final = 200


class LazyGroup(TyperGroup):
    """A group in which `list_commands` names sub-commands and `get_command` creates them.

    ``renamed`` has names of earlier versions, each with the command to write instead.
    """

    renamed: ClassVar[Mapping[str, str]] = {}

    # The type of the context is private to typer.
    def parse_args(self, context: Any, arguments: list[str]) -> Any:
        """Print the help if there is no sub-command."""
        if not arguments and not context.resilient_parsing:
            print(context.get_help(), file=sys.stderr)
            raise typer.Exit(UsageError.exit_code)
        return super().parse_args(context, arguments)

    def resolve_command(self, context: Any, arguments: list[str]) -> Any:
        """Find a sub-command, or suggest its spelling."""
        names = tuple(self.list_commands(context))
        if arguments[0] == "help":
            raise UsageError(f'command: read "help"; for help: {context.command_path} --help')
        if arguments[0] in self.renamed:
            now = self.renamed[arguments[0]]
            raise UsageError(f'command: read "{arguments[0]}"; write: {now}')
        if arguments[0] not in names:
            raise UsageError(f"command: {choice(arguments[0], names)}")
        return super().resolve_command(context, arguments)

    def format_commands(self, context: Any, formatter: Any) -> None:
        """Write the sub-commands with their summaries."""
        names = self.list_commands(context)
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.summary(context, name)) for name in names])

    def summary(self, context: Any, name: str) -> str:
        """Return the summary of a sub-command, which the base class would shorten."""
        command: Any = self.get_command(context, name)
        return str(command.get_short_help_str(_SUMMARY_MAX))


def command(
    name: str, function: Any, *examples: str, cls: type[TyperCommand] = TyperCommand
) -> Any:
    """Return the command that calls a function."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(name, cls=cls, epilog=examples_text(*examples))(function)
    return parse_without_pydantic(typer.main.get_command(app))


def examples_text(*examples: str) -> str:
    """Return the end of a help text; a line each, which is not wrapped."""
    heading = "Examples:" if len(examples) > 1 else "Example:"
    # click does not wrap a paragraph that begins with a backspace.
    return "\n".join(["\b", heading, *(f"  {example}" for example in examples)])


def group(app: typer.Typer, summary: str, *examples: str) -> Any:
    """Return a group of commands."""
    made = typer.main.get_group(app)
    made.help, made.epilog = summary, examples_text(*examples)
    for command in made.commands.values():
        parse_without_pydantic(command)
    return parse_without_pydantic(made)


def parse_without_pydantic(made: Any) -> Any:
    """Return a command that imports pydantic only for values to convert or to check."""
    get_typer_params = made.get_params

    def get_params(context: Any) -> list[Any]:
        parameters: list[Any] = get_typer_params(context)
        for parameter in parameters:
            # The help has the name of an argument; its Python type tells a user nothing.
            if parameter.param_type_name == "argument" and parameter.metavar is not None:
                vars(parameter).setdefault("display_type_rich", lambda ctx: None)  # noqa: ARG005
            # Private to typer: a version without it parses options with pydantic.
            if hasattr(parameter, "get_runtime_param"):
                vars(parameter).setdefault(
                    "get_runtime_param", partial(_PlainParameter, parameter.get_runtime_param)
                )
        return parameters

    made.get_params = get_params
    return made


@dataclass
class _PlainParameter:
    """Converts the values of a parameter in place of typer's own object."""

    get_typer_parameter: Callable[[], Any]

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        several = param.multiple or param.nargs == -1
        if value is None:
            return () if several else None
        # The arguments of a program may be empty.
        is_program = several and param.param_type_name == "argument"
        if not is_program and "" in (value if isinstance(value, list | tuple) else (value,)):
            name = param.opts[0] if param.param_type_name == "option" else param.metavar
            raise UsageError(f"{name}: {NO_VALUE}")
        kind = param.type_descriptor.annotation
        choices = param.type_descriptor.choices
        if choices is not None and isinstance(value, str):
            if value not in choices:
                raise UsageError(f"{param.opts[0]}: {choice(value, choices)}")
            return value
        if kind in _PLAIN_TYPES and type(value) is kind:
            return value
        if kind == list[str] and several and not isinstance(value, str):
            return list(value)
        return self.get_typer_parameter().coerce(value, param=param, ctx=ctx)
