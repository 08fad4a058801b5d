"""What rich draws: tables, a status that is updated until a lab ends, progress bars.

The status is on stdout and has a screen of its own (the alternate screen), as top(1), so that a
window of any size may be resized and the terminal is as before afterwards. Programs write directly
to their terminal, which rich knows nothing of: `watch` shows the status below them.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from bentpipe.errors import BentpipeError
from bentpipe.results.views import View, text_lines

_EVERY_S: Final = 0.5
# Where stdout is not a terminal.
_LINE_EVERY_S: Final = 10.0
_STYLES: Final = {"title": "italic", "heading": "bold"}
# A pipe has no width, unless COLUMNS is set.
_PIPE_WIDTH: Final = 160


def print_views(*parts: View | str) -> None:
    """Print texts and tables to stdout, without styles when it is not a terminal."""
    has_width = sys.stdout.isatty() or "COLUMNS" in os.environ
    console = Console(width=None if has_width else _PIPE_WIDTH, highlight=False, markup=False)
    for part in parts:
        if isinstance(part, str):
            console.print(part)
            continue
        if part.title:
            console.print()
        for style, line in text_lines(part, console.width):
            console.print(line, style=_STYLES.get(style), soft_wrap=True)


def watch_lines(update: Callable[[], list[str]], ends: tuple[type[BentpipeError], ...]) -> None:
    """Show lines twice a second on a terminal, and every ten seconds elsewhere.

    It returns when ``update`` raises an error of ``ends``; the first one is that of the command.
    The last lines stay on the terminal.
    """
    shown = update()
    console = Console(highlight=False)
    if not sys.stdout.isatty() or console.is_dumb_terminal:
        with suppress(*ends):
            while True:
                print("\n".join(shown), flush=True)
                time.sleep(_LINE_EVERY_S)
                shown = update()
        return
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live, suppress(*ends):
            while True:
                live.update(Text("\n".join(shown), overflow="fold"), refresh=True)
                time.sleep(_EVERY_S)
                shown = update()
    finally:
        print("\n".join(shown))


# --- progress bars --------------------------------------------------------------------------------


class ProgressBar(Progress):
    """One task of length 1 on stderr, of which ``begun`` was done; it is erased at its end."""

    def __init__(self, title: str, begun: float = 0.0) -> None:
        self._below = ""
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self.add_task(title, total=1.0)
        self.update(self._task, completed=begun)

    def get_renderables(self) -> Iterable[RenderableType]:
        """Return the bar and the text below it."""
        yield from super().get_renderables()
        if self._below:
            yield Text(self._below)

    def show(self, fraction: float, text: str) -> None:
        """Show a fraction of the work and a text."""
        self._below = text
        self.update(self._task, completed=fraction)
