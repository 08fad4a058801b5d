"""Output into closed pipes and onto full disks, and homes that cannot be written."""

from __future__ import annotations

import io
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, needs, needs_lab

from bentpipe.cli.options import note
from bentpipe.cli.streams import fit_command, report_error
from bentpipe.errors import InvalidRunError

pytestmark = pytest.mark.system

BENTPIPE = [sys.executable, "-m", "bentpipe"]
GEO = str(ROOT / "scenarios" / "geo-bulk.yaml")
SHORT = ["run", GEO, "--set", "traffic.0.size=100kB"]
# What prints data, by its mechanism (an option, text, a table, JSON), and the code of its failures.
PRINTING = [
    (["--version"], 2),
    (["show", "presets"], 2),
    ([*SHORT, "--json"], 2),
    (["exec", "--help"], 125),
]


def first_words(value: object) -> str:
    """Return the name of a case."""
    return " ".join(value[:1] + value[2:]) if isinstance(value, list) else str(value)


@pytest.mark.parametrize("arguments", [case for case, _ in PRINTING], ids=first_words)
def test_a_closed_pipe_ends_the_program_by_sigpipe(arguments: list[str]) -> None:
    """Given a reader that is gone, expect no message, and the end of a program in C."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [*BENTPIPE, *arguments], stdout=write_end, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(write_end)
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, "")


def test_a_shell_shows_141_for_a_reader_that_stops_early() -> None:
    program = f"{sys.executable} -m bentpipe show schema | head -c 10; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.endswith("141\n")
    assert done.stderr == ""


def test_a_closed_pipe_does_not_keep_a_result_from_being_written(tmp_path: Path) -> None:
    """Given `run --out` whose table nobody reads, expect a complete result."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [*BENTPIPE, *SHORT, "--out", str(tmp_path / "result")]
    done = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write_end)
    assert done.returncode == -signal.SIGPIPE
    assert done.stderr == f"bentpipe: wrote {tmp_path / 'result'} (report.html shows it)\n"
    assert (tmp_path / "result" / "report.html").is_file()


@pytest.mark.parametrize(("arguments", "code"), PRINTING, ids=first_words)
def test_a_full_disk_is_one_message(arguments: list[str], code: int) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = subprocess.run(
            [*BENTPIPE, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    message = "bentpipe: standard output: cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (code, message)


@pytest.mark.parametrize("arguments", [["--version"], SHORT], ids=first_words)
def test_a_closed_descriptor_is_one_message(arguments: list[str]) -> None:
    """Given stdout closed by the shell (>&-), expect no file of bentpipe in its place."""
    command = ["sh", "-c", 'exec "$@" >&-', "sh", *BENTPIPE, *arguments]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    message = "bentpipe: standard output: cannot be written: Bad file descriptor\n"
    assert (done.returncode, done.stderr) == (2, message)


@pytest.mark.thorough
@pytest.mark.parametrize("stderr", ["/dev/full", "closed"])
def test_messages_that_cannot_be_written_do_not_end_a_run(stderr: str, tmp_path: Path) -> None:
    to = "2>&-" if stderr == "closed" else f"2>{stderr}"
    command = ["sh", "-c", f'exec "$@" {to}', "sh", *BENTPIPE, *SHORT, "--out", str(tmp_path / "r")]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0
    assert "bulk-1" in done.stdout
    refused = ["sh", "-c", f'exec "$@" {to}', "sh", *BENTPIPE, "show", "presets", "moon"]
    assert subprocess.run(refused, check=False).returncode == 2


@pytest.mark.thorough
@pytest.mark.parametrize("home", ["/dev/null", "/none", "unset"])
def test_a_run_needs_no_home(home: str, tmp_path: Path) -> None:
    """Given a home that cannot be written, expect a report, no message, and no file left."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    gone = {"HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "MPLCONFIGDIR"}
    environment = {name: value for name, value in os.environ.items() if name not in gone}
    environment["TMPDIR"] = str(temporary)
    if home != "unset":
        environment["HOME"] = home
    command = [*BENTPIPE, *SHORT, "--out", str(tmp_path / "result")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    written = f"bentpipe: wrote {tmp_path / 'result'} (report.html shows it)\n"
    assert (done.returncode, done.stderr) == (0, written)
    assert list(temporary.iterdir()) == []
    assert not Path("/none").exists()


@pytest.mark.thorough
@needs_lab
@needs("unshare")
def test_a_home_that_may_not_be_written_is_no_message(tmp_path: Path) -> None:
    """Given the home of another user (or a read-only one), expect the same."""
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(0o555)
    as_user: list[str] = []
    if os.geteuid() == 0:
        # Root may write everywhere, except where the file system is read-only.
        mount = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'
        as_user = ["unshare", "--mount", "sh", "-c", mount, str(home)]
    gone = {"XDG_CACHE_HOME", "XDG_CONFIG_HOME", "MPLCONFIGDIR"}
    environment = {name: value for name, value in os.environ.items() if name not in gone}
    environment["HOME"] = str(home)
    command = [*as_user, *BENTPIPE, *SHORT, "--out", str(tmp_path / "result")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    written = f"bentpipe: wrote {tmp_path / 'result'} (report.html shows it)\n"
    assert (done.returncode, done.stderr) == (0, written)


class Terminal(io.StringIO):
    """A text stream that is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_command_is_broken_on_a_terminal_so_that_a_shell_accepts_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Given a line of 120 columns, expect lines of at most 80 with the same words for a shell."""
    monkeypatch.setenv("COLUMNS", "80")
    quoted = "'link.forward.queue={discipline: fq_codel, limit: 2000 packets}'"
    line = f"Next: bentpipe ask pep --link geo --load 50% --set {quoted} --seeds 25"
    assert fit_command(line, io.StringIO()) == line
    shown = fit_command(line, Terminal())
    assert len(shown.splitlines()) > 1
    assert max(map(len, shown.splitlines())) <= 80
    assert quoted in shown
    assert shlex.split(shown.replace("\\\n", "")) == shlex.split(line)


def test_an_invalid_run_is_said_in_lines_that_fit_a_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    error = InvalidRunError("INVALID: " + "packets were late " * 10)
    stderr = Terminal()
    monkeypatch.setattr("sys.stderr", stderr)
    assert report_error(error) == 4
    note("INVALID: " + "packets were late " * 10, fitted=True)
    first, *others = stderr.getvalue().splitlines()
    assert first.startswith("bentpipe: INVALID: packets")
    assert max(map(len, [first, *others])) <= 80
