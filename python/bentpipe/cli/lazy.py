"""Commands that are made when they are asked for, and whose options are read without pydantic.

By itself typer makes all commands of a program at its start, and loads pydantic for the first
option that it reads. The two take longer than to set a lab up.
"""

from __future__ import annotations

from typing import Any, Final

import typer
from typer.core import TyperGroup

# A value of such a type needs no conversion: text of the command line, or a default.
_PLAIN: Final = (str, int, float, bool)


class LazyGroup(TyperGroup):
    """Sub-commands that `list_commands` names and `get_command` makes."""

    # typer keeps the type of its contexts private.
    def resolve_command(self, context: Any, arguments: list[str]) -> Any:
        """Find a sub-command; the parent suggests only from what ``commands`` holds."""
        if arguments[0] not in self.list_commands(context):
            for name in self.list_commands(context):
                made = self.get_command(context, name)
                if made is not None:
                    self.commands[name] = made
        return super().resolve_command(context, arguments)


def command(name: str, function: Any, example: str) -> Any:
    """Make the command that calls a function."""
    app = typer.Typer(
        add_completion=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.command(name, epilog=example)(function)
    return read_plainly(typer.main.get_command(app))


def group(app: typer.Typer) -> Any:
    """Make a group of commands."""
    made = typer.main.get_group(app)
    for each in made.commands.values():
        read_plainly(each)
    return read_plainly(made)


def read_plainly(made: Any) -> Any:
    """Return a command that loads pydantic only for values which are to be converted or checked."""
    typers = made.get_params

    def get_params(context: Any) -> list[Any]:
        parameters: list[Any] = typers(context)
        for each in parameters:
            # Its name is typer's own business: without it options are read as typer reads them.
            if hasattr(each, "get_runtime_param"):
                vars(each).setdefault("get_runtime_param", _Plain(each).itself)
        return parameters

    made.get_params = get_params
    return made


class _Plain:
    """What a parameter makes of a value, in place of typer's own."""

    def __init__(self, parameter: Any) -> None:
        self._typers = parameter.get_runtime_param

    def itself(self) -> _Plain:
        return self

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        several = param.multiple or param.nargs == -1
        if value is None:
            return () if several else None
        kind = param.type_descriptor.annotation
        if kind in _PLAIN and type(value) is kind:
            return value
        if kind == list[str] and several and not isinstance(value, str):
            return list(value)
        return self._typers().coerce(value, param=param, ctx=ctx)
