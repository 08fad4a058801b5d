"""Status lines at the bottom of a terminal, below the output of a program.

The bottom rows are excluded from the scrolling region (DECSTBM), and the size of the terminal is
reduced by as many rows, so that full-screen programs use the rest. Each update is one write that
saves the cursor first and restores it at the end (DECSC, DECRC).
"""

from __future__ import annotations

import os
import sys
import termios
import textwrap
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Self

EVERY_S: Final = 0.5
# Where the lines are printed.
_LINE_EVERY_S: Final = 10.0
# Rows that are left to the program.
_MIN_ROWS: Final = 5
# Set for programs of the outermost watch: only one watch may use the bottom rows.
_VARIABLE: Final = "BENTPIPE_WATCH"


class Watch:
    """Shows lines at the bottom of the terminal on stderr, updated twice a second.

    Without a terminal, on one without cursor movement, or inside another watch, the lines are
    printed every ten seconds.
    """

    def __init__(self, descriptor: int = 2) -> None:
        self._descriptor = descriptor
        self._at_bottom = self._can_use_bottom()
        self._next_s = time.monotonic() + (0 if self._at_bottom else _LINE_EVERY_S)
        self._rows_left = 0
        self._rows_taken = 0

    def __enter__(self) -> Self:
        if self._at_bottom:
            os.environ[_VARIABLE] = "1"
        return self

    def __exit__(self, *_: object) -> None:
        """Release the rows."""
        if not self._at_bottom:
            return
        del os.environ[_VARIABLE]
        if self._rows_taken:
            self._write(self._release_sequence())
            self._set_rows(self._rows_left + self._rows_taken)

    def is_due(self) -> bool:
        """Return whether an update is due."""
        return time.monotonic() >= self._next_s

    def show(self, lines: Sequence[str]) -> None:
        """Replace the lines."""
        self._next_s = time.monotonic() + (EVERY_S if self._at_bottom else _LINE_EVERY_S)
        if not self._at_bottom:
            for line in lines:
                print(f"bentpipe: {line}", file=sys.stderr, flush=True)
            return
        rows, columns = termios.tcgetwinsize(self._descriptor)
        is_resized = rows != self._rows_left
        if not is_resized:
            rows += self._rows_taken
        # Lines that are too long are broken between words.
        shown = [row for line in lines for row in textwrap.wrap(line, max(columns, 1)) or [""]]
        count = min(len(shown), rows - _MIN_ROWS)
        if is_resized and count < 1:
            return
        if is_resized or count > self._rows_taken:
            self._take_rows(rows, count)
        if len(shown) > self._rows_taken:
            # The ends of long lines are cut instead.
            shown = list(lines)
        shown += [""] * (self._rows_taken - len(shown))
        drawn = [
            f"\033[{row};1H{line[:columns]:{columns}}"
            for row, line in enumerate(shown[: self._rows_taken], self._rows_left + 1)
        ]
        # Editors reset the scrolling region when they end.
        region = f"\033[1;{self._rows_left}r"
        self._write(f"\0337{region}\033[7m{''.join(drawn)}\0338")

    def _can_use_bottom(self) -> bool:
        is_dumb = os.environ.get("TERM", "dumb") == "dumb"
        if is_dumb or _VARIABLE in os.environ or not os.isatty(self._descriptor):
            return False
        try:
            # A background process must not change the terminal.
            return os.tcgetpgrp(self._descriptor) == os.getpgrp()
        except OSError:
            return False

    def _take_rows(self, rows: int, count: int) -> None:
        # Scroll up what is in the bottom rows: move the cursor down (IND), which scrolls at the
        # last row, and up again.
        before = self._release_sequence() if self._rows_taken else ""
        self._write(before + "\033D" * count + f"\033[{count}A")
        self._rows_left, self._rows_taken = rows - count, count
        self._set_rows(self._rows_left)

    def _release_sequence(self) -> str:
        """Return the sequence that resets the region and erases the lines; the cursor stays."""
        return f"\0337\033[r\033[{self._rows_left + 1};1H\033[J\0338"

    def _set_rows(self, rows: int) -> None:
        _, columns = termios.tcgetwinsize(self._descriptor)
        termios.tcsetwinsize(self._descriptor, (rows, columns))

    def _write(self, text: str) -> None:
        # A program may have set O_NONBLOCK on the terminal; the next update follows soon.
        with suppress(BlockingIOError):
            os.write(self._descriptor, text.encode())
