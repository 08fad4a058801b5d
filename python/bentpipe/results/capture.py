"""Capture files: written under a temporary name, and renamed once they are complete."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from bentpipe.errors import UsageError


@contextmanager
def capture_file(path: Path | None) -> Iterator[Path | None]:
    """Yield the temporary name to write to; None if nothing is to be captured.

    If the block fails, the temporary file is removed, and an existing file stays as it was.

    Raises:
        UsageError: the file cannot be written.
    """
    if path is None:
        yield None
        return
    temporary = path.with_name(f"{path.name}.part")
    try:
        if path.is_dir():
            raise UsageError(f"{path}: is a folder; name the file of the capture")
        # A killed run may have left one. The new file is created, never opened, so that no symbolic
        # link leads elsewhere.
        temporary.unlink(missing_ok=True)
        yield temporary
        temporary.replace(path)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError):
            message = f"{path}: cannot be written: {error.strerror or error}"
            raise UsageError(message) from None
        raise


def incomplete_message(path: Path | None, measured: Mapping[str, Any]) -> str | None:
    """Return a message about the packets missing in a lab's capture; None if it is complete.

    ``measured`` is the report of the lab.
    """
    captured = measured["capture"]
    if captured is None:
        return None
    missing, packets = captured["missing_packets"], captured["packets"]
    if captured["error_number"] is not None:
        reason = os.strerror(captured["error_number"])
        return (
            f"{path} is incomplete: {reason}; it has the first {packets:,} packets at points; "
            "the link was not delayed"
        )
    if missing == 0:
        return None
    return (
        f"{path} lacks {missing:,} of {missing + packets:,} packets at points: it could not be "
        "written fast enough; the link was not delayed"
    )
