"""The verbs ``exec`` and ``shell``: programs behind a link, in real time."""

from __future__ import annotations

import json
import os
import shlex
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import typer

from bentpipe.cli.exits import EXIT_FAILED
from bentpipe.cli.link_status import LinkStatus, summary_lines
from bentpipe.cli.options import (
    Capture,
    Gateways,
    Host,
    Internet,
    Links,
    LinkSeed,
    LinkSettings,
    note,
)
from bentpipe.cli.watch import EVERY_S, Watch
from bentpipe.errors import InvalidRunError, UsageError
from bentpipe.lab import uplink
from bentpipe.lab.capacity import refuse_beyond_capacity
from bentpipe.lab.local import LocalLab
from bentpipe.lab.privileges import gain_privileges
from bentpipe.lab.programs import FORWARDED_SIGNALS, exit_status, wait_for_program
from bentpipe.plan.presets import link_plan
from bentpipe.results.capture import capture_file, incomplete_message

# A program is ended within this time after its link has failed.
_POLL_S: Final = 0.5

World = Annotated[
    list[str] | None,
    typer.Option(
        "--world",
        metavar="COMMAND",
        help="Run a shell command in the world at the same time; repeatable.",
        show_default=False,
    ),
]
Report = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Write the statistics to this file, as JSON.", show_default=False
    ),
]
Watching = Annotated[
    bool,
    typer.Option(
        "--watch", help="Show queues, rates, losses and lateness below the output of programs."
    ),
]
SuperPackets = Annotated[
    bool,
    typer.Option(
        "--super-packets",
        help="Let kernels pass segments of up to 64 KiB, split before the link: for links above "
        "1 Gbit/s.",
    ),
]
Strict = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Exit with 125 if the run is invalid because packets were late, unless the program "
        "failed itself.",
    ),
]


def exec_(  # noqa: PLR0913, PLR0917 - a command line's options are its arguments
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="COMMAND", help="The program and its arguments.", show_default=False
        ),
    ],
    link: Links,
    settings: LinkSettings = None,
    host: Host = "island",
    seed: LinkSeed = 1,
    world: World = None,
    report: Report = None,
    capture: Capture = None,
    watch: Watching = False,
    super_packets: SuperPackets = False,
    strict: Strict = False,
    gateways: Gateways = False,
    internet: Internet = False,
) -> None:
    """Run a program behind a link in real time.

    The island reaches the host `world` over the link. The world has a web server that gives N
    bytes at http://world/bytes/N and, if it is installed, an iperf3 server. The machine's own
    network is not changed.

    It exits with the program's code, or with 128 + N if signal N ended it. If bentpipe itself
    fails, the code is 125; if the program cannot be executed 126; if it is not found 127.
    """
    job = _Job(
        plans=[link_plan(name, settings or []) for name in link],
        command=command,
        host=host,
        seed=seed,
        world=tuple(world or ()),
        capture=capture,
        watch=watch,
        super_packets=super_packets,
        gateways=gateways,
        internet=internet,
    )
    if report is not None:
        _require_folder(report)
    code, measured, failure = _run_with_capture(job)
    if report is not None:
        try:
            report.write_text(json.dumps(measured, indent=2) + "\n")
        except OSError as error:
            reason = error.strerror or error
            failure = failure or UsageError(f"{report}: cannot be written: {reason}")
    _print_summary(job, measured)
    if strict and code == 0 and measured["invalid"] is not None:
        raise InvalidRunError(
            f"--strict: the run is invalid, and the exit code {EXIT_FAILED}; the program's was 0"
        )
    _exit(code, failure)


def shell(  # noqa: PLR0913, PLR0917 - a command line's options are its arguments
    link: Links,
    settings: LinkSettings = None,
    host: Host = "island",
    seed: LinkSeed = 1,
    capture: Capture = None,
    watch: Watching = False,
    super_packets: SuperPackets = False,
    gateways: Gateways = False,
    internet: Internet = False,
) -> None:
    """Open a shell behind a link. Every program started in it is behind the link.

    It exits as `bentpipe exec` does.
    """
    job = _Job(
        plans=[link_plan(name, settings or []) for name in link],
        command=[os.environ.get("SHELL", "/bin/sh")],
        host=host,
        seed=seed,
        capture=capture,
        watch=watch,
        super_packets=super_packets,
        gateways=gateways,
        internet=internet,
    )
    code, measured, failure = _run_with_capture(job)
    _print_summary(job, measured)
    _exit(code, failure)


@dataclass(frozen=True, kw_only=True)
class _Job:
    """A program to run in a lab."""

    plans: Sequence[Mapping[str, Any]]
    command: Sequence[str]
    host: str
    seed: int
    world: Sequence[str] = ()
    capture: Path | None
    watch: bool
    super_packets: bool
    gateways: bool
    internet: bool


def _require_folder(report: Path) -> None:
    """Refuse a report that cannot be written, before the program runs."""
    if report.is_dir():
        raise UsageError(f"{report}: is a folder; name the file of the report")
    if not report.parent.is_dir():
        raise UsageError(f"{report}: cannot be written: there is no folder {report.parent}")


def _run_with_capture(job: _Job) -> tuple[int, dict[str, Any], UsageError | None]:
    """Run a job; return the exit code, the report, and why the capture could not be written."""
    measured: dict[str, Any] = {}
    code = 0
    try:
        with capture_file(job.capture) as file:
            code, measured = _run(job, file)
    except UsageError as error:
        # The report is valid without the capture.
        if not measured:
            raise
        return code, measured, error
    return code, measured, None


def _run(job: _Job, capture: Path | None) -> tuple[int, dict[str, Any]]:
    """Run the program in a lab; return its exit code and the report of the lab."""
    refuse_beyond_capacity(job.plans, super_packets=job.super_packets)
    if job.internet:
        uplink.find_program()
    gain_privileges()
    # Threads started from here on inherit the mask, so that `wait_for_program` receives the
    # signals. SIGTTOU would stop a background process that writes to the terminal.
    blocked = FORWARDED_SIGNALS | {signal.SIGCHLD, signal.SIGTTOU}
    signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    with LocalLab(
        plans=job.plans,
        seed=job.seed,
        capture=capture,
        super_packets=job.super_packets,
        gateways=job.gateways,
        internet=job.internet,
    ) as lab:
        lab.require_host(job.host)
        lab.start_servers()
        commands = {lab.spawn("world", ["/bin/sh", "-c", line]): line for line in job.world}
        code = _run_watched(lab, job) if job.watch else _run_program(lab, job, _nothing, _POLL_S)
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


def _run_watched(lab: LocalLab, job: _Job) -> int:
    status = LinkStatus()
    with Watch() as watch:

        def update() -> None:
            if watch.is_due():
                watch.show(status.lines(lab.last_report()))

        update()
        return _run_program(lab, job, update, EVERY_S)


def _run_program(lab: LocalLab, job: _Job, poll: Callable[[], None], every_s: float) -> int:
    """Run the program of a job, and kill it if the link fails; return its exit code."""
    process = lab.spawn(job.host, job.command)

    def check_link() -> None:
        if lab.failure is not None:
            os.kill(process, signal.SIGKILL)
        poll()

    return wait_for_program(process, check_link, every_s)


def _nothing() -> None:
    pass


def _print_summary(job: _Job, measured: dict[str, Any]) -> None:
    if job.capture is not None and job.capture.exists():
        note(f"wrote {job.capture}")
    for line in summary_lines(measured):
        note(line)
    missing = incomplete_message(job.capture, measured)
    if missing is not None and job.capture is not None and job.capture.exists():
        note(missing)


def _exit(code: int, failure: UsageError | None) -> NoReturn:
    """Exit with the program's code; raise the error of a file if the code is 0."""
    if failure is not None:
        if code == 0:
            raise failure
        note(str(failure))
    raise typer.Exit(exit_status(code))
