"""Commands that are created when they are needed and parse their options without pydantic.

typer creates all commands of a program at its start and imports pydantic to parse the first option.
Together they take longer than the set-up of a lab.
"""

from __future__ import annotations

from typing import Any, Final

import typer
from typer.core import TyperGroup

# A value of one of these types needs no conversion.
_PLAIN_TYPES: Final = (str, int, float, bool)


class LazyGroup(TyperGroup):
    """A group in which `list_commands` names sub-commands and `get_command` creates them."""

    # The type of the context is private to typer.
    def resolve_command(self, context: Any, arguments: list[str]) -> Any:
        """Find a sub-command; the base class suggests spellings from ``commands`` only."""
        if arguments[0] not in self.list_commands(context):
            for name in self.list_commands(context):
                made = self.get_command(context, name)
                if made is not None:
                    self.commands[name] = made
        return super().resolve_command(context, arguments)


def command(name: str, function: Any, example: str) -> Any:
    """Return the command that calls a function."""
    app = typer.Typer(
        add_completion=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.command(name, epilog=example)(function)
    return parse_without_pydantic(typer.main.get_command(app))


def group(app: typer.Typer) -> Any:
    """Return a group of commands."""
    made = typer.main.get_group(app)
    for each in made.commands.values():
        parse_without_pydantic(each)
    return parse_without_pydantic(made)


def parse_without_pydantic(made: Any) -> Any:
    """Return a command that imports pydantic only for values to convert or to check."""
    get_typer_params = made.get_params

    def get_params(context: Any) -> list[Any]:
        parameters: list[Any] = get_typer_params(context)
        for each in parameters:
            # Private to typer: a version without it parses options with pydantic.
            if hasattr(each, "get_runtime_param"):
                vars(each).setdefault("get_runtime_param", _PlainParameter(each).itself)
        return parameters

    made.get_params = get_params
    return made


class _PlainParameter:
    """Converts the values of a parameter in place of typer's own object."""

    def __init__(self, parameter: Any) -> None:
        self._get_typer_parameter = parameter.get_runtime_param

    def itself(self) -> _PlainParameter:
        return self

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        several = param.multiple or param.nargs == -1
        if value is None:
            return () if several else None
        kind = param.type_descriptor.annotation
        if kind in _PLAIN_TYPES and type(value) is kind:
            return value
        if kind == list[str] and several and not isinstance(value, str):
            return list(value)
        return self._get_typer_parameter().coerce(value, param=param, ctx=ctx)
