"""What one file is written to: it is replaced as a whole, and streams are appended to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bentpipe.errors import UsageError
from bentpipe.results.files import capture_file, write_file


def test_an_open_file_keeps_what_it_has(tmp_path: Path) -> None:
    """Given ``>> log`` and /dev/stdout, which is a link to the log, expect both texts in it."""
    log = tmp_path / "log"
    with log.open("a") as stdout:
        stdout.write("before\n")
        stdout.flush()
        write_file(Path(f"/dev/fd/{stdout.fileno()}"), "after\n")
    assert log.read_text() == "before\nafter\n"
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


def test_a_pipe_is_written_to() -> None:
    output, given = os.pipe()
    write_file(Path(f"/dev/fd/{given}"), "text")
    os.close(given)
    with os.fdopen(output) as pipe:
        assert pipe.read() == "text"


def test_a_link_keeps_its_name_and_its_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a long text")
    (tmp_path / "link").symlink_to("file")
    write_file(tmp_path / "link", "short")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "short"


def test_a_capture_replaces_no_device(tmp_path: Path) -> None:
    """Given a named pipe, as Wireshark reads, expect a message, and the pipe as it was."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/null"), Path("/dev/stdout")):
        with pytest.raises(UsageError, match="is no file"), capture_file(path):
            pass
    assert (tmp_path / "pipe").is_fifo()
    with pytest.raises(UsageError, match="is a folder"), capture_file(tmp_path):
        pass


def test_what_is_printed_next_follows(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Given ``> page``, whose file is written from its offset, expect no text over another one."""
    with (tmp_path / "page").open("w") as stdout:
        write_file(Path(f"/dev/fd/{stdout.fileno()}"), "page\n")
        os.write(stdout.fileno(), b"path\n")
    assert (tmp_path / "page").read_text() == "page\npath\n"
    assert capfd.readouterr().out == ""


def test_writers_of_the_same_file_do_not_share_a_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a file that another writer replaces meanwhile, expect both whole, and no other file."""
    original, path = Path.write_bytes, tmp_path / "report.html"
    first = iter([True])

    def interleaved(temporary: Path, content: bytes) -> int:
        written = original(temporary, content)
        if next(first, False):
            write_file(path, "of the other process")
            assert path.read_text() == "of the other process"
        return written

    monkeypatch.setattr(Path, "write_bytes", interleaved)
    write_file(path, "of this process")
    assert path.read_text() == "of this process"
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]


def test_a_long_name_has_room_for_the_temporary_one(tmp_path: Path) -> None:
    path = tmp_path / ("ä" * 127)
    write_file(path, "text")
    assert path.read_text() == "text"


def test_a_name_need_not_be_text(tmp_path: Path) -> None:
    """Given a long name with a byte that is not UTF-8, expect the file, and nothing beside it."""
    path = tmp_path / os.fsdecode(b"r\xff" + b"x" * 240)
    write_file(path, "text")
    assert path.read_text() == "text"
    assert list(tmp_path.iterdir()) == [path]
