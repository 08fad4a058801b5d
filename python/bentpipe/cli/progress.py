"""What a person who waits sees on stderr, and what Ctrl-C does when the waiting is over.

Progress comes with an estimate of the time left, for work that takes over two seconds.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    import rich.progress

QUIET_S: Final = 2.0
# A log file wants to see that the work goes on, not each step of it.
_LINE_EVERY_S: Final = 10.0


@contextmanager
def keeping_results() -> Iterator[None]:
    """Let a Ctrl-C pass while results are written and shown; the next one stops that too.

    Whoever is impatient presses it twice, and the second one must not cost what the first has kept.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT) or signal.default_int_handler

    def pass_once(_number: int, _frame: object) -> None:
        signal.signal(signal.SIGINT, before)
        print("bentpipe: writing results; Ctrl-C again gives them up", file=sys.stderr, flush=True)

    signal.signal(signal.SIGINT, pass_once)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class Progress:
    """Shows a bar on a terminal and a line now and then elsewhere; shows nothing in short work."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._started = time.monotonic()
        self._next_line = self._started + _LINE_EVERY_S
        self._bar: rich.progress.Progress | None = None
        self._text = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def fraction(self, done: float) -> None:
        """Report that a fraction, 0 to 1, of the work is done."""
        now = time.monotonic()
        if now - self._started < QUIET_S:
            return
        if sys.stderr.isatty():
            self._show_bar(done)
        elif now >= self._next_line:
            self._next_line = now + _LINE_EVERY_S
            elapsed_s = now - self._started
            left = f", about {elapsed_s * (1 - done) / done:.0f} s left" if done > 0 else ""
            text = f"; {self._text}" if self._text else ""
            print(f"bentpipe: {self._title}: {done:.0%}{left}{text}", file=sys.stderr, flush=True)

    def tell(self, text: str) -> None:
        """Show a text with what is shown from here on."""
        self._text = text

    def count(self, done: int, total: int) -> None:
        """Report that so many of all runs are done."""
        self.fraction(done / total)

    def _show_bar(self, done: float) -> None:
        from rich.console import Console, RenderableType
        from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar
        from rich.text import Text

        def below() -> list[Text]:
            return [Text(self._text)] if self._text else []

        class BarWithText(Bar):
            def get_renderables(self) -> Iterable[RenderableType]:
                yield from super().get_renderables()
                yield from below()

        if self._bar is None:
            self._bar = BarWithText(
                TextColumn("{task.description}"),
                BarColumn(),
                TaskProgressColumn(),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._bar.add_task(self._title, total=1.0)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], completed=done)
