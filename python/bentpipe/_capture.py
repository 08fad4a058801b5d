"""The file of a capture: it has its name once all is written, and then replaces what had it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

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
    if path.is_dir():
        raise UsageError(f"{path}: is a folder; name the file of the capture")
    meanwhile = path.with_name(f"{path.name}.part")
    try:
        yield meanwhile
        meanwhile.replace(path)
    except OSError as error:
        _remove(meanwhile)
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from None
    except BaseException:
        _remove(meanwhile)
        raise


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink()
