"""The status of a lab or a gateway on stdout, updated until it ends.

It has a screen of its own (the alternate screen), as top(1), so that a window of any size may be
resized and the terminal is as before afterwards. Programs write directly to their terminal, which
rich knows nothing of: `watch` shows the status below them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from rich.console import Console
from rich.live import Live
from rich.text import Text

from bentpipe.cli.link_status import LinkStatus, window_lines
from bentpipe.cli.options import note
from bentpipe.errors import UsageError
from bentpipe.lab.sockets import LabEndedError

_EVERY_S: Final = 0.5
# Where stdout is not a terminal.
_LINE_EVERY_S: Final = 10.0
_CHANGES_SHOWN: Final = 3

Status = Mapping[str, Any]


def watch_lab(name: str, ask: Callable[[], Status]) -> None:
    """Show what ``ask`` returns, twice a second on a terminal and every ten seconds elsewhere.

    It returns when the lab has ended. The last status stays on the terminal.
    """
    link = LinkStatus()
    # An error of the first status is one of the command.
    first = _lines(ask(), link)

    def lines() -> list[str] | None:
        try:
            return _lines(ask(), link)
        except (LabEndedError, UsageError):
            return None

    watch_lines(first, lines)
    note(f"lab {name} has ended")


def watch_lines(first: list[str], update: Callable[[], list[str] | None]) -> None:
    """Show lines twice a second on a terminal, and every ten seconds elsewhere, until None.

    The last lines stay on the terminal.
    """
    console = Console(highlight=False)
    lines: list[str] | None = first
    if not sys.stdout.isatty() or console.is_dumb_terminal:
        while lines is not None:
            print("\n".join(lines), flush=True)
            time.sleep(_LINE_EVERY_S)
            lines = update()
        return
    shown = first
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while lines is not None:
                shown = lines
                live.update(Text("\n".join(lines), overflow="fold"), refresh=True)
                time.sleep(_EVERY_S)
                lines = update()
    finally:
        print("\n".join(shown))


def _lines(found: Status, link: LinkStatus) -> list[str]:
    report = found["report"]
    lines = [f"{found['name']}: {' '.join(found['links'])}"]
    lines += [
        f"{change['at_ns'] / 1e9:.1f} s: {' '.join(change['settings'])}"
        for change in found["changes"][-_CHANGES_SHOWN:]
    ]
    return [*lines, *link.lines(report), *window_lines(report)]
