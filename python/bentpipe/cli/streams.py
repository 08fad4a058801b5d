"""The standard streams and the exit codes of the program.

Output into a closed pipe ends the program as it ends a program in C: by SIGPIPE (signal(7)), which
a shell shows as 141. Python ignores SIGPIPE, and its documentation ("Note on SIGPIPE" of the module
`signal`) advises against the default action: it would end the program on a closed socket, too. So
the error of the write ends the command, temporary files are removed, and the program then ends
itself by the signal. Any other error of stdout is one message. Messages that cannot be written to
stderr are lost: they must not end a run.

The codes are 0 pass, 1 internal error, 2 usage or bad input, 3 the machine lacks something, 4 the
run is invalid or reached its memory limit, 99 a threshold failed, 130 interrupted. A verb that runs
a program exits with the program's code, or with 99 if that is 0 and a threshold failed. Where
bentpipe itself fails, its code is one that programs avoid: 125, 126 or 127, as of env(1),
docker-run(1) and POSIX shells (XCU 2.8.2).
"""

from __future__ import annotations

import atexit
import errno
import io
import os
import re
import shutil
import signal
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any, Final, NoReturn

import typer
from typer.core import TyperCommand

from bentpipe.errors import (
    BentpipeError,
    InternalError,
    InvalidRunError,
    ProgramStartError,
    ThresholdError,
    UsageError,
)

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_STDOUT: Final = 1
_STDERR: Final = 2


class OutputError(UsageError):
    """Standard output cannot be written."""


class ClosedPipeError(OutputError):
    """The reader of standard output has closed the pipe."""


class _Stdout(io.FileIO):
    """Standard output whose errors differ from those of other files.

    The first error ends the command; what is still buffered then is discarded.
    """

    _failed = False

    def write(self, data: ReadableBuffer, /) -> int:
        if self._failed:
            return memoryview(data).nbytes
        try:
            return super().write(data)
        except BrokenPipeError:
            self._failed = True
            raise ClosedPipeError("standard output: the pipe is closed") from None
        except OSError as error:
            self._failed = True
            raise OutputError(f"standard output: cannot be written: {error.strerror}") from None


class _Stderr(io.FileIO):
    """Standard error whose errors are ignored."""

    def write(self, data: ReadableBuffer, /) -> int:
        # Also what does not fit where a program has set O_NONBLOCK.
        with suppress(OSError):
            super().write(data)
        return memoryview(data).nbytes


def open_streams() -> None:
    """Replace `sys.stdout` and `sys.stderr`; a descriptor that is closed is occupied."""
    for descriptor in (0, _STDOUT, _STDERR):
        try:
            os.fstat(descriptor)
        except OSError as error:
            if error.errno != errno.EBADF:
                raise
            # Otherwise the next file that is opened would be taken for the stream. Output fails
            # with EBADF, as it does on a closed descriptor (stdopen.c of gnulib).
            os.open(os.devnull, os.O_WRONLY if descriptor == 0 else os.O_RDONLY)
    sys.stdout = _text(_Stdout(_STDOUT, "w", closefd=False), sys.stdout)
    sys.stderr = _text(_Stderr(_STDERR, "w", closefd=False), sys.stderr)


def _text(raw: io.FileIO, before: Any) -> io.TextIOWrapper:
    """Return a text stream with the settings of the one before."""
    is_stderr = raw.fileno() == _STDERR
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding="utf-8" if before is None else before.encoding,
        errors="backslashreplace" if is_stderr or before is None else before.errors,
        line_buffering=before is not None and (before.line_buffering or before.write_through),
    )


def exit_process(run: Callable[[], int]) -> NoReturn:
    """Run the program, write what is buffered, and end the process with its exit code.

    The interpreter is not finalized: it takes some 40 ms to finalize the loaded modules, which
    would delay the end of each ``exec``.
    """
    code, closed = 0, False
    try:
        code = run()
        sys.stdout.flush()
    except ClosedPipeError:
        closed = True
    except OutputError as error:
        print(f"bentpipe: {error}", file=sys.stderr)
        code = code or error.exit_code
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    sys.stderr.flush()
    atexit._run_exitfuncs()  # noqa: SLF001 - removes temporary folders
    if closed:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPIPE})
        os.kill(os.getpid(), signal.SIGPIPE)
    os._exit(code)


def fit(text: str, stream: IO[str]) -> str:
    """Return a line, broken between words if ``stream`` is a terminal too narrow for it."""
    return textwrap.fill(
        text,
        _columns(stream),
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def fit_command(text: str, stream: IO[str]) -> str:
    """Return a line that ends in a shell command, as `fit` does.

    The lines end in backslashes, so that a shell accepts them when they are copied. Quoted text is
    not broken.
    """
    columns, lines = _columns(stream), [""]
    for word in re.findall(r"(?:'[^']*'|\"[^\"]*\"|\S)+", text):
        # Room for " \\" behind it.
        if lines[-1].strip() and len(lines[-1]) + len(word) + 3 > columns:
            lines[-1] += " \\"
            lines.append(f"  {word}")
        else:
            lines[-1] += f" {word}" if lines[-1] else word
    return "\n".join(lines)


def _columns(stream: IO[str]) -> int:
    if not stream.isatty():
        return sys.maxsize
    # A test's stream has no number.
    with suppress(OSError):
        if "COLUMNS" not in os.environ:
            return os.get_terminal_size(stream.fileno()).columns or 80
    return shutil.get_terminal_size().columns


EXIT_INTERRUPTED: Final = 130
# Of the verbs that run a program.
EXIT_FAILED: Final = 125
EXIT_NOT_EXECUTABLE: Final = 126
EXIT_NOT_FOUND: Final = 127


def report_error(error: Exception) -> int:
    """Print an error on stderr; return the exit code."""
    if isinstance(error, BentpipeError):
        for line in str(error).splitlines():
            message = f"bentpipe: {line}"
            if isinstance(error, InvalidRunError):
                message = fit(message, sys.stderr)
            print(message, file=sys.stderr)
        return error.exit_code
    # typer's errors of the command line; their class is private to typer.
    if hasattr(error, "format_message"):
        context = getattr(error, "ctx", None)
        text = " ".join(error.format_message().split()).rstrip(".")
        text = text[:1].lower() + text[1:]
        if context is not None:
            text += f"{_separator_hint(error, context)}; see {context.command_path} --help"
        print(f"bentpipe: {text}", file=sys.stderr)
        return UsageError.exit_code
    traceback.print_exception(error)
    print("bentpipe: internal error; please report the lines above", file=sys.stderr)
    return InternalError.exit_code


def _separator_hint(error: Exception, context: Any) -> str:
    """Return what to do if a wrong option may be one of the program to run."""
    takes_program = any(parameter.name == "command" for parameter in context.command.params)
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
        code = error.exit_code if isinstance(error, ThresholdError) else EXIT_FAILED
        if isinstance(error, ProgramStartError):
            code = EXIT_NOT_EXECUTABLE if error.found else EXIT_NOT_FOUND
        raise typer.Exit(code) from error
