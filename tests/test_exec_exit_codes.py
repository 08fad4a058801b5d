"""The exit codes of verbs that run a program: its own, or those of env(1) if bentpipe fails."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Program, default_signals, needs, needs_lab
from test_lab import wait_until
from test_live import BENTPIPE, bentpipe as run

from bentpipe.cli.exec import ProgramRun

EXEC = ("exec", "--link", "leo", "--")
LATE = {
    "directions": {},
    "at_ns": 10**9,
    "lateness": {"p50_ns": 2_000, "p99_ns": 106_000, "max_ns": 827_000},
    "capture": None,
}


@pytest.fixture(scope="module")
def lab() -> Iterator[tuple[str, ...]]:
    """Keep a lab up; yield the words before a program in it."""
    name = f"codes-{os.getpid()}"
    made = run("lab", "up", name, "--link", "leo")
    assert made.returncode == 0, made.stderr
    yield ("lab", "exec", name, "--")
    run("lab", "down", name)


def programs(folder: Path) -> list[tuple[list[str], int, str]]:
    """Return programs with the code and the message that are due; the first five differ most."""
    script, text, orphan = folder / "script", folder / "text", folder / "orphan"
    script.write_text("#!/bin/sh\nexit 125\n")
    script.chmod(0o755)
    text.write_text("not a program\n")
    text.chmod(0o644)
    orphan.write_text("#!/no/such/interpreter\n")
    orphan.chmod(0o755)
    return [
        (["sh", "-c", "exit 4"], 4, ""),
        (["sh", "-c", "kill -PIPE $$"], 128 + signal.SIGPIPE, ""),
        # Its own code, without a message.
        ([str(script)], 125, ""),
        ([str(text)], 126, "text: cannot be executed: Permission denied; to fix it: name an"),
        (["no-such-program"], 127, "no-such-program: not found; to fix it: install it, or add"),
        (["sh", "-c", "exit 0"], 0, ""),
        (["sh", "-c", "exit 2"], 2, ""),
        (["sh", "-c", "kill -TERM $$"], 128 + signal.SIGTERM, ""),
        ([str(folder)], 126, "cannot be executed: Permission denied"),
        ([str(orphan)], 126, "orphan: cannot be executed: its interpreter does not exist"),
        ([str(folder / "none")], 127, "none: not found; to fix it: check the path"),
    ]


@needs_lab
def test_exec_exits_with_the_code_of_the_program_or_126_or_127(tmp_path: Path) -> None:
    for program, code, message in programs(tmp_path)[:5]:
        done = run(*EXEC, *program)
        assert done.returncode == code, (program, done.stderr)
        if message:
            assert message in done.stderr
            assert len(done.stderr.splitlines()) == 1
        else:
            control, forward, *_ = done.stderr.splitlines()
            assert control.startswith("bentpipe: TCP: ")
            assert forward.startswith("bentpipe: forward: 0 packets")


@needs_lab
def test_lab_exec_has_the_same_codes(tmp_path: Path, lab: tuple[str, ...]) -> None:
    for program, code, message in programs(tmp_path):
        done = run(*lab, *program)
        assert done.returncode == code, (program, done.stderr)
        assert message in done.stderr
        assert len(done.stderr.splitlines()) == bool(message)
    other_host = run(*lab[:-1], "--host", "moon", "--", "true")
    assert other_host.returncode == 125
    assert 'host: read "moon"; allowed: world, island' in other_host.stderr


@pytest.mark.system
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["exec", "true"], "missing option '--link'; see bentpipe exec --help"),
        (["exec", "--lnk", "geo", "true"], "no such option: --lnk (Possible options: --link)"),
        (
            ["exec", "--link", "geo", "curl", "-s", "http://world/"],
            "no such option: -s; if it is an option of the program, write -- before the program; "
            "see bentpipe exec --help",
        ),
        (["lab", "exec", "sat", "ls", "-l"], "-l; if it is an option of the program, write --"),
        (["exec", "--link", "geo", "--seed", "-3", "true"], "invalid value for '--seed'"),
        (
            ["exec", "--link", "gio", "true"],
            'read "gio"; allowed: geo, meo, leo, leo-handover, isdn-return',
        ),
        (["exec"], "missing option '--link'; see bentpipe exec --help"),
        (["lab", "exec"], "missing argument 'NAME'; see bentpipe lab exec --help"),
        (["lab", "exec", "no-such-lab", "true"], "lab"),
    ],
)
def test_a_wrong_call_is_125_and_one_message(
    arguments: list[str], message: str, bentpipe: Program
) -> None:
    called = bentpipe(*arguments)
    assert (called.code, called.out) == (125, "")
    assert message in called.err
    assert len(called.err.splitlines()) == 1


def test_an_internal_error_is_125(bentpipe: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("bentpipe.cli.exec.link_plan", fail)
    called = bentpipe(*EXEC, "true")
    assert called.code == 125
    assert "ZeroDivisionError: a bug" in called.err
    assert called.err.endswith("bentpipe: internal error; please report the lines above\n")


@pytest.mark.parametrize(
    ("options", "program_code", "code"),
    [(["--strict"], 0, 125), (["--strict"], 7, 7), (["--strict"], 125, 125), ([], 0, 0)],
)
def test_strict_is_125_unless_the_program_failed(
    options: list[str],
    program_code: int,
    code: int,
    bentpipe: Program,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured = LATE | {"invalid": "p99 is too much"}

    def execute(run: ProgramRun, *, watch: bool) -> None:
        del watch
        run.finish(measured, program_code, 10**9)

    monkeypatch.setattr("bentpipe.cli.exec.ProgramRun.execute", execute)
    called = bentpipe("exec", "--link", "leo", *options, "--", "true")
    assert called.code == code
    message = "bentpipe: --strict: the run is invalid, and the exit code 125; the program's was 0"
    assert (message in called.err) is (program_code == 0 and bool(options))


def test_the_verdict_is_the_last_line_of_a_program_that_sends_nothing(
    bentpipe: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Given an idle link and a capture with a gap, expect code 0 and the verdict at the end."""
    captured = {"missing_packets": 3, "packets": 5, "error_number": None}
    measured = LATE | {"invalid": "no packet has left the link", "capture": captured}

    def execute(run: ProgramRun, *, watch: bool) -> None:
        del watch
        assert run.lab.capture is not None
        run.lab.capture.write_bytes(b"")
        run.finish(measured, 0, 10**9)

    monkeypatch.setattr("bentpipe.cli.exec.ProgramRun.execute", execute)
    called = bentpipe(*EXEC[:-1], "--capture", tmp_path / "all.pcapng", "--", "true")
    assert called.code == 0
    first, missing, *_, last = called.err.splitlines()
    assert first.startswith("bentpipe: wrote ")
    assert "3" in missing
    assert last.startswith("bentpipe: INVALID: no packet has left the link")


@needs_lab
def test_ctrl_c_is_130(tmp_path: Path) -> None:
    """Given SIGINT of a terminal during `sleep`, expect the code of a program that it ended."""
    started = tmp_path / "started"
    command = [*BENTPIPE, *EXEC, "sh", "-c", f"touch {started}; exec sleep 60"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True) as running:
        wait_until(started.exists, "the program does not start")
        os.killpg(running.pid, signal.SIGINT)
        running.communicate(timeout=30)
    assert running.returncode == 130


@needs_lab
def test_a_report_that_cannot_be_written_is_125_or_the_code_of_the_program() -> None:
    """Given a full device, expect the summary, and exit code 125 or that of the program."""
    words = ("exec", "--link", "leo", "--statistics", "/dev/full", "--", "sh", "-c")
    for command, code in (("true", 125), ("exit 9", 9)):
        done = run(*words, command)
        assert done.returncode == code, done.stderr
        assert "bentpipe: forward: " in done.stderr
        assert done.stderr.endswith("/dev/full: cannot be written: No space left on device\n")


@needs_lab
@pytest.mark.parametrize("place", ["none/report.json", "."])
def test_a_report_without_a_folder_is_refused_before_the_program(
    place: str, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    done = run(
        "exec", "--link", "leo", "--statistics", str(tmp_path / place), "--", "touch", str(ran)
    )
    assert done.returncode == 125
    assert "folder" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not ran.exists()


@needs_lab
def test_a_failed_command_of_the_world_is_named() -> None:
    """Given commands that fail, succeed and run on, expect a message about the first only."""
    world = [word for line in ("exit 3", "true", "sleep 60") for word in ("--world", line)]
    done = run("exec", "--link", "leo", *world, "--", "sleep", "0.5")
    assert done.returncode == 0
    told = [line for line in done.stderr.splitlines() if "--world" in line]
    assert told == ["bentpipe: --world 'exit 3': failed with exit code 3"]


@needs_lab
@needs("setsid")
@pytest.mark.parametrize("verb", ["exec", "lab exec"])
def test_a_closed_terminal_ends_the_program(
    verb: str, tmp_path: Path, lab: tuple[str, ...]
) -> None:
    """Given bentpipe as the first process of a terminal that closes, expect 128 + SIGHUP."""
    started = tmp_path / "started"
    words = EXEC if verb == "exec" else lab
    program = ["sh", "-c", f"touch {started}; exec sleep 60"]
    terminal, other_end = pty.openpty()
    with subprocess.Popen(
        ["setsid", "--ctty", *BENTPIPE, *words, *program],
        stdin=other_end,
        stdout=other_end,
        stderr=other_end,
        # nohup(1) ignores SIGHUP, and bentpipe respects that.
        preexec_fn=default_signals,  # noqa: PLW1509 - no threads
    ) as running:
        os.close(other_end)
        wait_until(started.exists, "the program does not start")
        os.close(terminal)
        try:
            assert running.wait(20) == 128 + signal.SIGHUP
        finally:
            running.kill()
