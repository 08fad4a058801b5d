"""The exit codes of the command line, and how errors are printed.

0 pass, 1 internal error, 2 usage or bad input, 3 the machine lacks something, 4 the run is invalid
or reached its memory limit, 99 a threshold failed, 130 interrupted.

A verb that runs a program exits with the program's code. Where bentpipe itself fails, its code is
one that programs avoid: 125, 126 or 127, as of env(1), docker-run(1) and POSIX shells (XCU 2.8.2).
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import typer
from typer.core import TyperCommand

from bentpipe.cli.streams import ClosedPipeError
from bentpipe.errors import BentpipeError, InternalError, ProgramStartError, UsageError

EXIT_INTERRUPTED: Final = 130
# Of the verbs that run a program.
EXIT_FAILED: Final = 125
EXIT_NOT_EXECUTABLE: Final = 126
EXIT_NOT_FOUND: Final = 127


def report_error(error: Exception) -> int:
    """Print an error on stderr; return the exit code."""
    if isinstance(error, BentpipeError):
        for line in str(error).splitlines():
            print(f"bentpipe: {line}", file=sys.stderr)
        return error.exit_code
    # typer's errors of the command line; their class is private to typer.
    if hasattr(error, "format_message"):
        context = getattr(error, "ctx", None)
        text = " ".join(error.format_message().split()).rstrip(".")
        text = text[:1].lower() + text[1:]
        if context is not None:
            text += _separator_hint(error, context)
        hint = f"; see {context.command_path} --help" if context is not None else ""
        print(f"bentpipe: {text}{hint}", file=sys.stderr)
        return UsageError.exit_code
    traceback.print_exception(error)
    print("bentpipe: internal error; please report the lines above", file=sys.stderr)
    return InternalError.exit_code


def _separator_hint(error: Exception, context: Any) -> str:
    """Return what to do if a wrong option may be one of the program to run."""
    takes_program = any(each.name == "command" for each in context.command.params)
    # An error with similar options is a spelling mistake.
    if not takes_program or getattr(error, "possibilities", True):
        return ""
    return "; if it is an option of the program, write -- before the program"


class ProgramCommand(TyperCommand):
    """A command that exits with the code of a program; its own failures have codes of their own."""

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        """Parse the command line."""
        with _failing_as_env():
            return super().make_context(*arguments, **options)

    def invoke(self, context: Any) -> Any:
        """Run the command."""
        with _failing_as_env():
            return super().invoke(context)


@contextmanager
def _failing_as_env() -> Iterator[None]:
    try:
        yield
    except (typer.Exit, ClosedPipeError):
        raise
    except Exception as error:
        report_error(error)
        code = EXIT_FAILED
        if isinstance(error, ProgramStartError):
            code = EXIT_NOT_EXECUTABLE if error.found else EXIT_NOT_FOUND
        raise typer.Exit(code) from error
