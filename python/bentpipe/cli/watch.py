"""Lines at the lower edge of a terminal, below whatever a program prints on it.

Programs print on the terminal by themselves, so nothing of ours may be in their way. The lowest
rows are taken out of the region that scrolls (DECSTBM), and the terminal says that it has as many
rows fewer, so that programs which use all of it use the rest. Drawing is one write that saves the
cursor first and restores it at last (DECSC, DECRC).
"""

from __future__ import annotations

import os
import sys
import termios
import time
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

EVERY_S: Final = 0.5
# A log file wants to see that the work goes on, not each step of it.
_LINE_EVERY_S: Final = 10.0
# A program needs some rows too.
_MIN_ROWS: Final = 5
# Only one may have the lower edge: the outermost, whose programs find this set.
_TAKEN: Final = "BENTPIPE_WATCH"


class Watch:
    """Shows lines on stderr, anew about twice a second: at the lower edge of a terminal.

    Where that cannot be done (no terminal, one that knows no cursor, another watch on it), lines
    are printed every ten seconds.
    """

    def __init__(self, descriptor: int = 2) -> None:
        self._descriptor = descriptor
        self._on_edge = self._may_have_edge()
        self._next_s = time.monotonic() + (0 if self._on_edge else _LINE_EVERY_S)
        self._rows_left = 0
        self._rows_taken = 0

    def __enter__(self) -> Self:
        if self._on_edge:
            os.environ[_TAKEN] = "1"
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        """Give the rows back."""
        if not self._on_edge:
            return
        del os.environ[_TAKEN]
        if self._rows_taken:
            self._write(self._give_back())
            self._announce(self._rows_left + self._rows_taken)

    def is_due(self) -> bool:
        """Whether it is time for new lines."""
        return time.monotonic() >= self._next_s

    def show(self, lines: Sequence[str]) -> None:
        """Show lines in the place of those before."""
        self._next_s = time.monotonic() + (EVERY_S if self._on_edge else _LINE_EVERY_S)
        if not self._on_edge:
            for line in lines:
                print(f"bentpipe: {line}", file=sys.stderr, flush=True)
            return
        rows, columns = termios.tcgetwinsize(self._descriptor)
        if rows != self._rows_left:
            # The first time, or somebody has made the window larger or smaller.
            if rows < len(lines) + _MIN_ROWS:
                return
            self._take_rows(rows, len(lines))
        drawn = [
            f"\033[{row};1H{line[:columns]:{columns}}"
            for row, line in enumerate(lines[: self._rows_taken], self._rows_left + 1)
        ]
        # Programs may have set the region back, as editors do at their end.
        region = f"\033[1;{self._rows_left}r"
        self._write(f"\0337{region}\033[7m{''.join(drawn)}\0338")

    def _may_have_edge(self) -> bool:
        if not os.isatty(self._descriptor) or os.environ.get("TERM", "dumb") == "dumb":
            return False
        if _TAKEN in os.environ:
            return False
        try:
            # Who runs in the background has no say over the terminal.
            return os.tcgetpgrp(self._descriptor) == os.getpgrp()
        except OSError:
            return False

    def _take_rows(self, rows: int, count: int) -> None:
        # What is in the lowest rows goes up, and the cursor with it: down in its column (IND),
        # which scrolls at the end of the terminal, and up again.
        before = self._give_back() if self._rows_taken else ""
        self._write(before + "\033D" * count + f"\033[{count}A")
        self._rows_left, self._rows_taken = rows - count, count
        self._announce(self._rows_left)

    def _give_back(self) -> str:
        """Return what sets the region back and erases the lines, with the cursor as it was."""
        return f"\0337\033[r\033[{self._rows_left + 1};1H\033[J\0338"

    def _announce(self, rows: int) -> None:
        _, columns = termios.tcgetwinsize(self._descriptor)
        termios.tcsetwinsize(self._descriptor, (rows, columns))

    def _write(self, text: str) -> None:
        # A program may have told the terminal not to wait for it; the next lines come soon.
        with suppress(BlockingIOError):
            os.write(self._descriptor, text.encode())
