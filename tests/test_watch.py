"""Status lines on a terminal below the output of a program."""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
import termios
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
from conftest import Program, needs, needs_lab

from bentpipe.cli import lab
from bentpipe.cli.link_status import LinkStatus, window_lines
from bentpipe.cli.progress import Progress
from bentpipe.cli.watch import Watch
from bentpipe.live.sockets import LabEndedError

ROWS, COLUMNS = 12, 60


class Screen:
    """The subset of a VT100 that the program and these tests use."""

    def __init__(self) -> None:
        self.rows = [" " * COLUMNS for _ in range(ROWS)]
        self.row = self.column = 0
        self.top, self.bottom = 0, ROWS - 1
        self.saved = (0, 0)

    def feed(self, text: str) -> None:
        for match in re.finditer(r"\x1b\[([0-9;]*)([A-Za-z])|\x1b([78D])|(\r)|(\n)|(.)", text):
            arguments, final, escape, carriage_return, line_feed, character = match.groups()
            if final is not None:
                self._control(final, [int(word) for word in arguments.split(";") if word])
            elif escape == "7":
                self.saved = (self.row, self.column)
            elif escape == "8":
                self.row, self.column = self.saved
            elif carriage_return:
                self.column = 0
            elif line_feed or escape == "D":
                self._down()
            else:
                line = self.rows[self.row]
                self.rows[self.row] = line[: self.column] + character + line[self.column + 1 :]
                self.column = min(self.column + 1, COLUMNS - 1)

    def _down(self) -> None:
        if self.row == self.bottom:
            del self.rows[self.top]
            self.rows.insert(self.bottom, " " * COLUMNS)
        else:
            self.row = min(self.row + 1, ROWS - 1)

    def _control(self, final: str, arguments: Sequence[int]) -> None:
        if final == "A":
            self.row -= arguments[0]
            assert self.row >= 0
        elif final == "H":
            self.row, self.column = (number - 1 for number in arguments)
        elif final == "J":
            for row in range(self.row, ROWS):
                self.rows[row] = " " * COLUMNS
        elif final == "r":
            first, last = arguments or (1, ROWS)
            self.top, self.bottom = first - 1, last - 1
            self.row = self.column = 0
        else:
            assert final == "m", f"an unexpected control sequence: {final}"


def on_terminal(command: Sequence[str]) -> tuple[list[Screen], str, tuple[int, int]]:
    """Run a command on a terminal: its screen at each bell, all text, its size at the end."""
    master, slave = os.openpty()
    termios.tcsetwinsize(master, (ROWS, COLUMNS))
    environment = os.environ | {"TERM": "xterm"}
    with subprocess.Popen(
        ["setsid", "--ctty", "--wait", *command],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=environment,
    ) as running:
        text = b""
        while running.poll() is None or _has_more(master):
            if _has_more(master):
                text += os.read(master, 65_536)
            else:
                time.sleep(0.01)
        size = termios.tcgetwinsize(master)
    os.close(slave)
    os.close(master)
    whole = text.decode()
    screens = []
    for end in [*(mark.start() for mark in re.finditer("\a", whole)), len(whole)]:
        screen = Screen()
        screen.feed(whole[:end].replace("\a", ""))
        screens.append(screen)
    return screens, whole, size


def _has_more(master: int) -> bool:

    return bool(select.select([master], [], [], 0)[0])


# Prints 30 lines above the status lines, and the size of the terminal meanwhile.
PROGRAM = """
import os, sys, termios
from bentpipe.cli.watch import Watch
for number in range(8):
    print("before", number)
print("prompt> ", end="", flush=True)
with Watch() as watch:
    for number in range(30):
        watch.show([f"queue {number}", f"late {number}"])
        print("line", number, flush=True)
    print("has", *termios.tcgetwinsize(2), flush=True)
    os.write(2, b"\\x1b[r\\x1b[10;1H")
    watch.show(["of an editor", "that set all back"])
    os.write(2, b"\\a")
print("after", flush=True)
"""


@pytest.mark.system
@needs("setsid")
def test_status_lines_stay_below_the_output_of_a_program() -> None:
    """Given 12 rows and 2 status lines, expect 10 rows that scroll, and all 12 at the end."""
    screens, text, size = on_terminal([sys.executable, "-c", PROGRAM])
    during, end = screens
    rows = [row.rstrip() for row in during.rows]
    assert rows[:9] == [*(f"line {number}" for number in range(22, 30)), "has 10 60"]
    assert rows[10:] == ["of an editor", "that set all back"]
    assert end.rows[9].rstrip() == "after"
    assert [row.rstrip() for row in end.rows[10:]] == ["", ""]
    assert size == (ROWS, COLUMNS)
    # Nothing that the program printed is missing.
    assert "prompt> line 0\r\n" in re.sub(r"\x1b7.*?\x1b8|\x1bD|\x1b\[2A", "", text)


@pytest.mark.system
@needs("setsid")
def test_lines_wider_than_the_terminal_are_wrapped() -> None:
    """Given 60 columns and a line of 81, expect two rows for it, and more rows for more lines."""
    words, word = "forward: " + 24 * "ab ", 81 * "x"
    program = (
        "from bentpipe.cli.watch import Watch\nwith Watch() as watch:\n"
        f"    watch.show([{words!r}, 'late'])\n    print('\\a', end='', flush=True)\n"
        f"    watch.show([{word!r}, 'late'])\n    print('\\a', end='', flush=True)\n"
        "    watch.show([*'abcdef'])\n    print('\\a', end='', flush=True)\n"
    )
    (wrapped, broken, more, _), _, size = on_terminal([sys.executable, "-c", program])
    assert [row.rstrip() for row in wrapped.rows[-3:]] == [words[:59], words[60:].strip(), "late"]
    assert [row.rstrip() for row in broken.rows[-3:]] == [word[:60], word[60:], "late"]
    assert [row.rstrip() for row in more.rows[-6:]] == [*"abcdef"]
    assert size == (ROWS, COLUMNS)


@pytest.mark.system
@needs("setsid")
def test_a_watch_inside_another_uses_no_rows() -> None:
    inner = "from bentpipe.cli.watch import Watch\nwith Watch() as watch: watch.show(['inner'])"
    outer = (
        "import subprocess, sys\nfrom bentpipe.cli.watch import Watch\n"
        "with Watch() as watch:\n    watch.show(['outer'])\n"
        f"    subprocess.run([sys.executable, '-c', {inner!r}], check=True)\n"
        "    print('\\a', end='', flush=True)\n"
    )
    (during, _), _, size = on_terminal([sys.executable, "-c", outer])
    assert during.rows[-1].rstrip() == "outer"
    assert any(row.startswith("bentpipe: inner") for row in during.rows)
    assert size == (ROWS, COLUMNS)


def test_without_a_terminal_lines_come_every_ten_seconds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr("bentpipe.cli.watch.time.monotonic", lambda: clock[0])
    read_end, write_end = os.pipe()
    with Watch(write_end) as watch:
        for second in range(25):
            clock[0] = second
            if watch.is_due():
                watch.show([f"queue {second}"])
    os.close(read_end)
    os.close(write_end)
    assert capsys.readouterr().err == "bentpipe: queue 10\nbentpipe: queue 20\n"


@needs("setsid")
@needs_lab
def test_exec_shows_the_status_below_its_program() -> None:
    program = "for i in 1 2 3 4 5; do echo line $i; sleep 0.4; done; printf '\\a'"
    watched = [sys.executable, "-m", "bentpipe", "exec", "--link", "leo", "--watch", "--"]
    screens, _, size = on_terminal([*watched, "sh", "-c", program])
    during, end = screens
    rows = [row.rstrip() for row in during.rows]
    assert [row for row in rows if row.startswith("line")] == [f"line {i}" for i in range(1, 6)]
    # Wrapped: a row has 60 columns.
    below = " ".join(row for row in rows if row and not row.startswith("line"))
    assert below.startswith("forward: 0.00 Mbit/s of IP delivered; queue 0 packets, 0.0 kB;")
    assert "return: 0.00 Mbit/s of IP delivered; queue 0 packets, 0.0 kB; none lost" in below
    assert "late by" in below
    shown = "\n".join(row.rstrip() for row in end.rows)
    assert "bentpipe: forward: 0 packets, 0 B delivered; none lost" in shown
    assert size == (ROWS, COLUMNS)


# --- status -------------------------------------------------------------------------------------


def report(at_s: float, delivered_bytes: int, **changes: Any) -> dict[str, Any]:
    """What a lab with one direction reports."""
    direction = {
        "delivered_bytes": delivered_bytes,
        "queue_packets": 12,
        "queue_bytes": 18_000,
        "dropped_packets": {},
    }
    late = {"p50_ns": 2_000, "p99_ns": 106_000, "max_ns": 827_000}
    whole = {"at_ns": round(at_s * 1e9), "lateness": late, "invalid": None}
    whole |= {"invalid_windows": 0, "window_count": 1}
    return whole | {"directions": {"forward": direction | changes}}


def test_rates_are_those_since_the_previous_report() -> None:
    """Given 1 MB between 1 and 2 s, expect 8 Mbit/s, whatever was delivered before."""
    status = LinkStatus()
    status.lines(report(1.0, 5_000_000))
    lost = {"queue_full": 3, "bit_error": 1_200}
    after = report(2.0, 6_000_000, dropped_packets=lost)
    direction, late = status.lines(after)
    assert direction == (
        "forward: 8.00 Mbit/s of IP delivered; queue 12 packets, 18.0 kB; "
        "lost: 3 queue_full, 1,200 on the channel"
    )
    assert late == "2 s; late by 2 µs (median), 106 µs (p99), 827 µs (max)"
    # The same report again changes nothing.
    assert status.lines(after)[0] == direction
    assert status.brief(after) == (
        "forward 8.00 Mbit/s, queue 18.0 kB, 1,203 lost; late 106 µs (p99)"
    )
    idle = report(3.0, 6_000_000) | {"invalid": "lateness p99 is too much"}
    assert status.lines(idle)[0].startswith("forward: 0.00 Mbit/s of IP delivered; queue")
    assert status.lines(idle)[1].endswith("827 µs (max); INVALID")
    assert status.brief(idle).endswith("late 106 µs (p99), INVALID")
    fresh = idle | {"fault": "idle", "window_count": 3}
    assert status.lines(fresh)[1].endswith("827 µs (max); no packets yet")
    long = idle | {"invalid_windows": 2, "window_count": 3_000}
    assert status.lines(long)[1].endswith("827 µs (max); INVALID (2 of 3,000 windows)")


def test_the_last_windows_of_a_lab_are_listed() -> None:
    """Given 8,640 windows in a day of which one is invalid, expect the last six, and the count."""
    late = {"p50_ns": 2_000, "p99_ns": 106_000, "max_ns": 827_000, "packets": 5_000}
    kept: list[dict[str, Any]] = [
        {**late, "start_ns": start * 10**10, "end_ns": (start + 1) * 10**10, "invalid": None}
        for start in range(8_580, 8_640)
    ]
    kept[-1]["invalid"] = "lateness maximum is too much"
    day = {"windows": kept, "window_count": 8_640, "invalid_windows": 1}
    head, *lines = window_lines(day)
    assert head == "1 of 8,640 windows of time are invalid; the last ones:"
    assert len(lines) == 6
    assert lines[0] == (
        "86,340 to 86,350 s: 5,000 packets, late by 2 µs (median), 106 µs (p99), 827 µs (max)"
    )
    assert lines[-1].endswith("; INVALID: lateness maximum is too much")


def test_progress_shows_the_status_of_the_link(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr("bentpipe.cli.progress.time.monotonic", lambda: clock[0])
    for is_terminal in (False, True):
        monkeypatch.setattr("sys.stderr.isatty", lambda is_terminal=is_terminal: is_terminal)
        clock[0] = 0.0
        with Progress("emulating") as progress:
            progress.describe(lambda: "forward 8.00 Mbit/s")
            clock[0] = 10.0
            progress.fraction(0.5)
        shown = capsys.readouterr().err
        if is_terminal:
            lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown).splitlines()
            (bar,) = (number for number, line in enumerate(lines) if "50%" in line)
            assert lines[bar + 1].strip() == "forward 8.00 Mbit/s"
        else:
            expected = "bentpipe: emulating: 50%, about 10 s left; forward 8.00 Mbit/s\n"
            assert shown == expected


# --- lab status --watch -------------------------------------------------------------------------


@needs("setsid")
@needs_lab
def test_the_status_of_a_lab_is_updated_on_a_screen_of_its_own() -> None:
    """Given Ctrl-C after two updates, expect the terminal as before, and the last status on it."""
    name = f"watched-{os.getpid()}"
    program = [sys.executable, "-m", "bentpipe"]
    subprocess.run([*program, "lab", "up", name, "--link", "leo"], check=True)
    master, slave = os.openpty()
    termios.tcsetwinsize(master, (ROWS, 40))
    # rich prefers these to the size of the terminal.
    environment = {name: os.environ[name] for name in os.environ.keys() - {"COLUMNS", "LINES"}}
    environment["TERM"] = "xterm"
    try:
        with subprocess.Popen(
            ["setsid", "--ctty", "--wait", *program, "lab", "status", name, "--watch"],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment,
        ) as running:
            os.close(slave)
            text = b""
            while text.count(b"\x1b[H") < 3:
                text += os.read(master, 65_536)
            os.write(master, b"\x03")
            with suppress(OSError):
                # EIO at the end: pty(7).
                while more := os.read(master, 65_536):
                    text += more
        assert running.returncode == 130
    finally:
        os.close(master)
        subprocess.run([*program, "lab", "down", name], check=True)
    before, _, after = text.decode().rpartition("\x1b[?1049l")
    assert before.startswith("\x1b[?1049h")
    assert before.rstrip().endswith("\x1b[?25h"), "the cursor is visible"
    assert after.splitlines()[0] == f"{name}: leo"
    assert "forward: 0.00 Mbit/s of IP delivered; queue 0 packets, 0.0 kB; none lost" in after
    # Each row of the screen has at most 40 columns.
    rows = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "\n", before.replace("^C", "")).splitlines()
    assert max(map(len, rows)) <= 40
    assert "bentpipe: lab" not in after


@pytest.mark.system
def test_without_a_terminal_the_status_comes_every_ten_seconds_until_the_lab_ends(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr("bentpipe.cli.screen.time.sleep", slept.append)
    replies = [
        {"name": "sat", "links": ["geo"], "changes": [], "report": report(second, 10**6 * second)}
        | {"failure": None}
        for second in (1, 2)
    ]
    for reply in replies:
        reply["report"] |= {"windows": []}  # type: ignore[operator]

    def request(_name: str, _what: str) -> dict[str, Any]:
        if not replies:
            raise LabEndedError
        return replies.pop(0)

    monkeypatch.setattr("bentpipe.live.sockets.request", request)
    lab.status("sat", watch=True)
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert lines[1].startswith("forward: 8.00 Mbit/s of IP delivered; queue 12 packets, 18.0 kB")
    assert lines[0] == lines[4] == "sat: geo"
    assert printed.err == "bentpipe: lab sat has ended\n"
    assert slept == [10.0, 10.0]


def test_watch_and_json_exclude_each_other(bentpipe: Program) -> None:
    called = bentpipe("lab", "status", "sat", "--watch", "--json")
    assert (called.code, called.out) == (2, "")
    assert called.err.startswith("bentpipe: --json: not with --watch")
