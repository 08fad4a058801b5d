"""The verb ``exec``: a program, or a shell, behind a link in real time."""

from __future__ import annotations

import json
import os
import shlex
import signal
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from bentpipe.cli.link_status import LinkStatus, summary_lines
from bentpipe.cli.options import (
    Capture,
    Gateways,
    Host,
    Internet,
    Links,
    LinkSeed,
    LinkSettings,
    argument,
    flag,
    note,
    optional,
    require_folder,
)
from bentpipe.cli.streams import EXIT_FAILED
from bentpipe.cli.watch import EVERY_S, Watch
from bentpipe.errors import InvalidRunError, UsageError
from bentpipe.live.capacity import gain_privileges
from bentpipe.live.local_lab import LocalLab
from bentpipe.live.programs import (
    FORWARDED_SIGNALS,
    exit_status,
    refuse_program,
    wait_for_program,
)
from bentpipe.plan.presets import link_plan
from bentpipe.results.files import capture_file, incomplete_message

World = Annotated[
    list[str] | None,
    optional(
        "COMMAND", "Run a shell command in the world at the same time; repeatable.", "--world"
    ),
]
Statistics = Annotated[
    Path | None, optional("FILE", "Write the statistics to this file, as JSON.", "--statistics")
]
Watching = Annotated[
    bool, flag("--watch", "Show queues, rates, losses and lateness below the output of programs.")
]
SuperPackets = Annotated[
    bool,
    flag(
        "--super-packets",
        "Let kernels pass segments of up to 64 KiB, split before the link: for links above "
        "1 Gbit/s.",
    ),
]
Strict = Annotated[
    bool,
    flag(
        "--strict",
        "Exit with 125 if the run is invalid because packets were late, unless the program failed "
        "itself.",
    ),
]


def exec_(  # noqa: PLR0913, PLR0917 - a command line's options are its arguments
    link: Links,
    command: Annotated[
        list[str] | None,
        argument("COMMAND", "The program and its arguments; by default a shell ($SHELL)."),
    ] = None,
    settings: LinkSettings = None,
    host: Host = "island",
    seed: LinkSeed = 1,
    world: World = None,
    statistics: Statistics = None,
    capture: Capture = None,
    watch: Watching = False,
    super_packets: SuperPackets = False,
    strict: Strict = False,
    gateways: Gateways = False,
    internet: Internet = False,
) -> None:
    """Run a program, or a shell, behind a link in real time.

    Every program that is started in the shell is behind the link, too. The island reaches the host
    `world` over the link. The world has a web server that gives N bytes at http://world/bytes/N
    and, if it is installed, an iperf3 server. The machine's own network is not changed.

    It exits with the program's code, or with 128 + N if signal N ended it. If bentpipe itself
    fails, the code is 125; if the program cannot be executed 126; if it is not found 127.
    """
    for words in (command or [], *(line.split() for line in world or ())):
        refuse_program(words)
    lab = LocalLab(
        plans=[link_plan(name, settings or []) for name in link],
        seed=seed,
        super_packets=super_packets,
        gateways=gateways,
        internet=internet,
    )
    require_folder(statistics)
    measured: dict[str, Any] = {}
    code, failure = 0, None
    try:
        with capture_file(capture) as lab.capture:
            program = command or [os.environ.get("SHELL", "/bin/sh")]
            code, measured = _run(lab, program, host, world or (), watch=watch)
    except UsageError as error:
        # The statistics are valid without the capture.
        if not measured:
            raise
        failure = error
    if statistics is not None:
        try:
            statistics.write_text(json.dumps(measured, indent=2) + "\n")
        except OSError as error:
            reason = error.strerror or error
            failure = failure or UsageError(f"{statistics}: cannot be written: {reason}")
    _print_summary(measured, capture)
    if strict and code == 0 and measured["invalid"] is not None:
        raise InvalidRunError(
            f"--strict: the run is invalid, and the exit code {EXIT_FAILED}; the program's was 0"
        )
    if failure is not None:
        if code == 0:
            raise failure
        note(str(failure))
    raise typer.Exit(exit_status(code))


def _run(
    lab: LocalLab, command: Sequence[str], host: str, world: Sequence[str], *, watch: bool
) -> tuple[int, dict[str, Any]]:
    """Run a program in a lab, and kill it if the link fails; return its exit code and the report.

    ``world`` are shell commands of the world.
    """
    lab.check()
    gain_privileges()
    # Threads started from here on inherit the mask, so that `wait_for_program` receives the
    # signals. SIGTTOU would stop a background process that writes to the terminal.
    blocked = FORWARDED_SIGNALS | {signal.SIGCHLD, signal.SIGTTOU}
    signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    status = LinkStatus()
    with lab:
        lab.require_host(host)
        lab.start_servers()
        commands = {lab.spawn("world", ["/bin/sh", "-c", line]): line for line in world}
        with Watch() if watch else nullcontext() as shown:
            process: int | None = None

            def poll() -> None:
                if lab.failure is not None and process is not None:
                    os.kill(process, signal.SIGKILL)
                if shown is not None and shown.is_due():
                    shown.show(status.lines(lab.last_report()))

            poll()
            process = lab.spawn(host, command)
            code = wait_for_program(process, poll, EVERY_S)
        _note_failures(commands)
    # The program did not run over the requested link if that link has failed.
    return EXIT_FAILED if lab.failure is not None else code, lab.last_report()


def _note_failures(commands: Mapping[int, str]) -> None:
    """Print which commands of the world have failed; ``commands`` has them by process id."""
    for process, command in commands.items():
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended and status:
            code = exit_status(os.waitstatus_to_exitcode(status))
            note(f"--world {shlex.quote(command)}: failed with exit code {code}")


def _print_summary(measured: dict[str, Any], capture: Path | None) -> None:
    is_captured = capture is not None and capture.exists()
    if is_captured:
        note(f"wrote {capture}")
    for line in summary_lines(measured):
        note(line)
    if is_captured and (missing := incomplete_message(capture, measured)) is not None:
        note(missing)
