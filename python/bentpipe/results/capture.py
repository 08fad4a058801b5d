"""The file of a capture: it has its name once all is written, and then replaces what had it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from bentpipe.errors import UsageError


@contextmanager
def capture_file(path: Path | None) -> Iterator[Path | None]:
    """Yield the name to write under meanwhile; None if nothing is to be captured.

    If the work fails, what was written is removed, and a file that was there before stays.

    Raises:
        UsageError: the file cannot be written.
    """
    if path is None:
        yield None
        return
    meanwhile = path.with_name(f"{path.name}.part")
    try:
        if path.is_dir():
            raise UsageError(f"{path}: is a folder; name the file of the capture")
        # What a killed run left. The new file is made, never opened: no link leads to another one.
        meanwhile.unlink(missing_ok=True)
        yield meanwhile
        meanwhile.replace(path)
    except OSError as error:
        _remove(meanwhile)
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from None
    except BaseException:
        _remove(meanwhile)
        raise


def what_is_missing(path: Path | None, measured: Mapping[str, Any]) -> str | None:
    """Return for a person what a lab's capture lacks, or None if it is complete."""
    captured = measured["capture"]
    if captured is None:
        return None
    missing, packets = captured["missing_packets"], captured["packets"]
    if captured["error_number"] is not None:
        reason = os.strerror(captured["error_number"])
        return (
            f"{path} is incomplete: {reason}; it has the first {packets:,} packets at points; "
            "the link itself was not held up"
        )
    if missing == 0:
        return None
    return (
        f"{path} lacks {missing:,} of {missing + packets:,} packets at points: it could not be "
        "written fast enough; the link itself was not held up"
    )


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink()
