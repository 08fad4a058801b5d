"""The files of the checkout, and the message of a check that some of them fail."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PACKAGE = ROOT / "python" / "bentpipe"


@cache
def _listed() -> tuple[Path, ...]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    paths = (ROOT / line for line in listed.stdout.splitlines())
    return tuple(path for path in paths if path.is_file())


def tracked(*endings: str) -> list[Path]:
    """Return the files that git tracks or would track, by ending."""
    found = [path for path in _listed() if path.name.endswith(endings)]
    assert len(found) > 5, endings
    return found


def relative(path: Path) -> str:
    """Return a path as seen from the top of the checkout."""
    return str(path.relative_to(ROOT))


def no_offenders(offenders: Iterable[str]) -> None:
    """Fail with every offender in one message."""
    found = list(offenders)
    assert not found, "\n".join([f"{len(found)} in all", *found])
