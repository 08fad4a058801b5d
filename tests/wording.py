"""The wording of messages, in one file: ``wording.txt``, which ``make wording`` writes again.

Tests assert the place, the field and the exit code of a message; how it is worded is compared with
this file, so that a better sentence changes no test.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

FILE: Final = Path(__file__).parent / "wording.txt"
_HEADING: Final = "## "


def _read() -> dict[str, str]:
    parts = FILE.read_text(encoding="utf-8").split(f"\n{_HEADING}")
    named = (part.removeprefix(_HEADING).partition("\n") for part in parts)
    return {name: text.rstrip("\n") for name, _, text in named if name}


class Wording:
    """Compares messages with the file, or writes them into it."""

    def __init__(self, *, update: bool) -> None:
        self._update = update

    def __call__(self, name: str, messages: Mapping[str, str]) -> None:
        """Fail where the messages of a group, by their cases, are not those of the file."""
        text = "\n".join(f"{case}: {message}" for case, message in messages.items())
        stored = _read()
        if self._update:
            groups = sorted((stored | {name: text}).items())
            written = "\n\n".join(f"{_HEADING}{group}\n{lines}" for group, lines in groups)
            FILE.write_text(f"{written}\n", encoding="utf-8")
        else:
            assert text.splitlines() == stored.get(name, "").splitlines(), (
                "if intended: make wording"
            )
