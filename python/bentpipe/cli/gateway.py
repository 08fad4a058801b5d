"""``bentpipe gateway``: the program ``bentpipe-gate``, with the arguments as they are."""

from __future__ import annotations

import os
from typing import Any, NoReturn

import typer.core
from typer.core import TyperCommand

from bentpipe import gateway as program


def become(executable: str, arguments: list[str]) -> NoReturn:
    """Replace this process by a program; the first argument is its name."""
    os.execv(executable, arguments)


class CommandClass(TyperCommand):
    """A command whose arguments, help and completions are those of the program."""

    # The type of the context is private to typer.
    def parse_args(self, context: Any, arguments: list[str]) -> list[str]:
        """Keep the arguments: the program parses them."""
        context.params = {"arguments": list(arguments)}
        context.args = []
        return []

    def get_params(self, _context: Any) -> list[Any]:
        """Return no parameter: the program has them."""
        return []

    def invoke(self, context: Any) -> NoReturn:
        """Become the program."""
        become(*program.command(context.params["arguments"]))

    def shell_complete(self, context: Any, incomplete: str) -> list[Any]:
        """Return what the program completes."""
        item = vars(typer.core)["CompletionItem"]
        words = context.params["arguments"]
        return [item(word) for word in program.completions(words, incomplete)]


def gateway() -> None:
    """Run the functions of a gateway on a real router."""
