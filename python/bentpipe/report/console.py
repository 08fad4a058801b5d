"""Texts and tables on stdout."""

from __future__ import annotations

import os
import sys
from typing import Final

from rich.console import Console

from bentpipe.results.views import View, text_lines

_STYLES: Final = {"title": "italic", "heading": "bold"}
# A pipe has no width, unless COLUMNS is set.
_PIPE_WIDTH: Final = 160


def show(*parts: View | str) -> None:
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
