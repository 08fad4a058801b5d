"""The status of a lab or a gateway on stdout, updated until it ends.

It has a screen of its own (the alternate screen), as top(1), so that a window of any size may be
resized and the terminal is as before afterwards. Programs write directly to their terminal, which
rich knows nothing of: `watch` shows the status below them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from rich.console import Console
from rich.live import Live
from rich.text import Text

from bentpipe.errors import BentpipeError

_EVERY_S: Final = 0.5
# Where stdout is not a terminal.
_LINE_EVERY_S: Final = 10.0


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
