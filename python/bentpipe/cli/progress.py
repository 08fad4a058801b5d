"""Progress on stderr, and Ctrl-C while results are written.

Progress has an estimate of the remaining time. It is not shown in the first two seconds.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

import typer

from bentpipe import cli
from bentpipe.cli.options import note, note_written, print_json
from bentpipe.cli.streams import EXIT_INTERRUPTED
from bentpipe.errors import RunsInterrupted

if TYPE_CHECKING:
    from bentpipe.cli.screen import ProgressBar
    from bentpipe.results.output import OutputFolder

_QUIET_S: Final = 2.0
# Where stderr is not a terminal.
_LINE_EVERY_S: Final = 10.0
_BAR_EVERY_S: Final = 0.1


@contextmanager
def delaying_interrupts() -> Iterator[None]:
    """Ignore the first Ctrl-C while results are written and shown; the second one interrupts.

    A user who presses Ctrl-C twice during a run must not lose the results that the first one kept.
    """
    before = signal.getsignal(signal.SIGINT) or signal.default_int_handler
    is_main = threading.current_thread() is threading.main_thread()
    # It is ignored in a background job of a shell without job control.
    if not is_main or before is signal.SIG_IGN:
        yield
        return

    def ignore_once(_number: int, _frame: object) -> None:
        signal.signal(signal.SIGINT, before)
        note("writing results; press Ctrl-C again to discard")

    signal.signal(signal.SIGINT, ignore_once)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def finish(
    outcome: Any,
    output: OutputFolder | None,
    write: Callable[[Any, OutputFolder], object],
    tables: Callable[[Any], Iterable[Any]],
    *,
    as_json: bool,
) -> None:
    """Write a result to its folder, if it has one, and print it as JSON or as tables."""
    with delaying_interrupts():
        try:
            if output is not None:
                write(outcome, output)
                note_written(output)
        finally:
            # Also if the folder cannot be written: the runs may have taken hours.
            if as_json:
                print_json(outcome.to_json())
            else:
                cli.print_views(*tables(outcome))


def exit_interrupted(text: str) -> NoReturn:
    """Exit with 130 after Ctrl-C; ``text`` says what there is."""
    note(f"interrupted; {text}")
    raise typer.Exit(EXIT_INTERRUPTED)


@contextmanager
def telling_interrupts(what: str) -> Iterator[None]:
    """Exit with 130 after Ctrl-C in runs of which nothing can be shown; ``what`` says why."""
    try:
        yield
    except RunsInterrupted as ended:
        exit_interrupted(f"{ended}; {what}")


class Progress:
    """A bar on a terminal, a line every ten seconds elsewhere, nothing for short work.

    ``before`` runs were done before the work began: the remaining time does not count on them.
    """

    def __init__(self, title: str, *, before: int = 0) -> None:
        self._title = title
        self._before = before
        # The fraction that was done before.
        self._begun = 0.0
        self._started_s = time.monotonic()
        self._is_terminal = sys.stderr.isatty()
        self._next_s = self._started_s + (_QUIET_S if self._is_terminal else _LINE_EVERY_S)
        self._bar: ProgressBar | None = None
        self._text: Callable[[], str] = str

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def fraction(self, done: float) -> None:
        """Show that a fraction (0 to 1) of the work is done."""
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        if self._is_terminal:
            self._next_s = now_s + _BAR_EVERY_S
            if self._bar is None:
                self._bar = cli.ProgressBar(self._title, self._begun)
                self._bar.start()
            self._bar.show(done, self._text())
        else:
            self._next_s = now_s + _LINE_EVERY_S
            elapsed_s, progress = now_s - self._started_s, done - self._begun
            left = f", about {elapsed_s * (1 - done) / progress:.0f} s left" if progress > 0 else ""
            text = f"; {self._text()}" if self._text() else ""
            print(f"bentpipe: {self._title}: {done:.0%}{left}{text}", file=sys.stderr, flush=True)

    def describe(self, text: Callable[[], str]) -> None:
        """Show what ``text`` returns with the progress from now on."""
        self._text = text

    def count(self, done: int, total: int) -> None:
        """Show that ``done`` of ``total`` runs are done."""
        self._begun = self._before / total
        self.fraction(done / total)
