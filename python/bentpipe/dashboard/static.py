"""The files that pages load: read once, by name, so that no request names a path of the disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bentpipe.report.html import environment

_FOLDER: Final = Path(__file__).parent / "static"
_TYPES: Final = {
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True)
class StaticFile:
    """The content of a file and its media type."""

    content: bytes
    media_type: str


def static_files() -> dict[str, StaticFile]:
    """Return all files by name; ``report.css`` is the style of reports, which pages extend."""
    css = str(environment().globals["css"])
    found = {"report.css": StaticFile(css.encode(), _TYPES[".css"])}
    for path in _FOLDER.rglob("*"):
        if path.suffix in _TYPES:
            name = path.relative_to(_FOLDER).as_posix()
            found[name] = StaticFile(path.read_bytes(), _TYPES[path.suffix])
    return found
