"""The verbs that run programs behind a link: `exec` and `shell`."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import typer

from bentpipe.cli.figures import Figures, micros
from bentpipe.errors import UsageError
from bentpipe.lab.lab import Lab, gain_privileges, refuse_beyond_ceiling
from bentpipe.plan.presets import link_plan
from bentpipe.results.capture import capture_file, what_is_missing

EXIT_INVALID: Final = 4

# A program's end and signals are noticed at once, a link that has failed within this.
_LOOK_S: Final = 0.5
# Where there is nothing else to look at.
_LONG_S: Final = 60.0
# What a program is told that runs in the foreground of a terminal, or is ended by others.
PASSED_ON: Final = frozenset(
    {signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2}
)

Link = Annotated[
    list[str],
    typer.Option(
        "--link",
        metavar="PRESET|FILE",
        help="A preset or a scenario file; repeat for links in a row, the world's first.",
        show_default=False,
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Lay a value over each link, such as link.forward.rate=4Mbit/s; repeatable.",
        show_default=False,
    ),
]
Host = Annotated[
    str,
    typer.Option(
        "--host",
        metavar="NAME",
        help="Where the program runs: island, world, island-2 of several terminals, or a host or, "
        "with --gateways, a gateway of the scenario.",
    ),
]
Gateways = Annotated[
    bool,
    typer.Option(
        "--gateways",
        help="Make gateways hosts of their own between their hosts and the link, for programs such "
        "as a PEP.",
    ),
]
Seed = Annotated[int, typer.Option(min=0, help="The seed of the link's chance.")]
World = Annotated[
    list[str] | None,
    typer.Option(
        "--world",
        metavar="COMMAND",
        help="Run a command in the world meanwhile, by the shell; repeatable.",
        show_default=False,
    ),
]
Internet = Annotated[
    bool,
    typer.Option(
        "--internet", help="Give the lab a way to the outside, over the link (slirp4netns)."
    ),
]
Report = Annotated[
    Path | None,
    typer.Option(help="Write what was measured to this file, as JSON.", show_default=False),
]
Capture = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Capture every packet at every point into this file (pcapng, for Wireshark).",
        show_default=False,
    ),
]
Watching = Annotated[
    bool,
    typer.Option(
        "--watch", help="Show queues, rates, losses and lateness below what programs print."
    ),
]
SuperPackets = Annotated[
    bool,
    typer.Option(
        "--super-packets",
        help="Let kernels hand over up to 64 KiB at once, cut into packets here: for links beyond "
        "1 Gbit/s.",
    ),
]
Strict = Annotated[
    bool, typer.Option("--strict", help="Exit with 4 if the link was late beyond its limits.")
]


def exec_(  # noqa: PLR0913, PLR0917 - a command line's options are its arguments
    command: Annotated[list[str], typer.Argument(help="The program and its arguments.")],
    link: Link,
    settings: Settings = None,
    host: Host = "island",
    seed: Seed = 1,
    world: World = None,
    report: Report = None,
    capture: Capture = None,
    watch: Watching = False,
    super_packets: SuperPackets = False,
    strict: Strict = False,
    gateways: Gateways = False,
    internet: Internet = False,
) -> None:
    """Run a program behind a satellite link, in real time, and exit as it exits.

    The island reaches the host `world` over the link, where a web server gives N bytes at
    http://world/bytes/N and iperf3 listens, if it is installed. The machine's own network is not
    touched.
    """
    plans = [link_plan(name, settings or []) for name in link]
    job = _Job(
        plans=plans,
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
    code, measured, failure = _captured(job)
    if report is not None:
        try:
            report.write_text(json.dumps(measured, indent=2) + "\n")
        except OSError as error:
            reason = error.strerror or error
            failure = failure or UsageError(f"{report}: cannot be written: {reason}")
    _tell(job, measured)
    if strict and code == 0 and measured["invalid"] is not None:
        code = EXIT_INVALID
    _leave(code, failure)


def shell(  # noqa: PLR0913, PLR0917 - a command line's options are its arguments
    link: Link,
    settings: Settings = None,
    host: Host = "island",
    seed: Seed = 1,
    capture: Capture = None,
    watch: Watching = False,
    super_packets: SuperPackets = False,
    gateways: Gateways = False,
    internet: Internet = False,
) -> None:
    """Open a shell behind a satellite link: all that is started in it is behind the link."""
    plans = [link_plan(name, settings or []) for name in link]
    program = os.environ.get("SHELL", "/bin/sh")
    job = _Job(
        plans=plans,
        command=[program],
        host=host,
        seed=seed,
        capture=capture,
        watch=watch,
        super_packets=super_packets,
        gateways=gateways,
        internet=internet,
    )
    code, measured, failure = _captured(job)
    _tell(job, measured)
    _leave(code, failure)


@dataclass(frozen=True, kw_only=True)
class _Job:
    """What is to be done: a program in a lab, and who looks on."""

    plans: Sequence[dict[str, Any]]
    command: Sequence[str]
    host: str
    seed: int
    world: Sequence[str] = ()
    capture: Path | None
    watch: bool
    super_packets: bool
    gateways: bool
    internet: bool


def _captured(job: _Job) -> tuple[int, dict[str, Any], UsageError | None]:
    """Do a job; return its exit code, what the lab measured, and why there is no capture."""
    measured: dict[str, Any] = {}
    code = 0
    try:
        with capture_file(job.capture) as file:
            code, measured = _run(job, file)
    except UsageError as error:
        # What was measured counts nevertheless.
        if not measured:
            raise
        return code, measured, error
    return code, measured, None


def _run(job: _Job, capture: Path | None) -> tuple[int, dict[str, Any]]:
    """Run a program in a lab; return its exit code and what the lab measured."""
    refuse_beyond_ceiling(job.plans, super_packets=job.super_packets)
    refuse_without_nat(wanted=job.internet)
    gain_privileges()
    # Threads that are started from here on leave these signals to the wait below; and who writes on
    # a terminal that belongs to a shell's program is not stopped for it.
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON | {signal.SIGCHLD, signal.SIGTTOU})
    with Lab(
        plans=job.plans,
        seed=job.seed,
        capture=capture,
        super_packets=job.super_packets,
        gateways=job.gateways,
        internet=job.internet,
    ) as lab:
        lab.require_host(job.host)
        lab.serve_world()
        for line in job.world:
            lab.spawn("world", ["/bin/sh", "-c", line])
        code = _watched(lab, job) if job.watch else _awaited(lab, job, _nothing, _LOOK_S)
    # Whatever the program made of it: it did not have the link that was asked for.
    return EXIT_INVALID if lab.failure is not None else code, lab.last_report()


def _watched(lab: Lab, job: _Job) -> int:
    from bentpipe.cli.watch import EVERY_S, Watch

    figures = Figures()
    with Watch() as watch:

        def look() -> None:
            # The first report comes after a tenth of a second.
            if watch.is_due() and (report := lab.last_report())["directions"]:
                watch.show(figures.lines(report))

        look()
        return _awaited(lab, job, look, EVERY_S)


def _awaited(lab: Lab, job: _Job, look: Callable[[], None], every_s: float) -> int:
    """Run the program of a job, which is killed if the link fails; return its exit code."""
    process = lab.spawn(job.host, job.command)

    def look_at_all() -> None:
        if lab.failure is not None:
            os.kill(process, signal.SIGKILL)
        look()

    return wait(process, look_at_all, every_s)


def _nothing() -> None:
    pass


def wait(process: int, look: Callable[[], None] = _nothing, every_s: float = _LONG_S) -> int:
    """Wait for a program, passing on signals that somebody sent us, and looking now and then."""
    while True:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended == process:
            return os.waitstatus_to_exitcode(status)
        received = signal.sigtimedwait(PASSED_ON | {signal.SIGCHLD}, every_s)
        look()
        # The terminal tells every program in the foreground by itself; others tell only us.
        if received is None or received.si_signo == signal.SIGCHLD:
            continue
        if received.si_code <= 0:
            os.kill(process, received.si_signo)


def refuse_without_nat(*, wanted: bool) -> None:
    """Look for the program that ``--internet`` needs before anything is set up."""
    if wanted:
        from bentpipe.lab.uplink import program

        program()


def _tell(job: _Job, measured: dict[str, Any]) -> None:
    """Print what was measured."""
    lines = summary(measured)
    if job.capture is not None and job.capture.exists():
        lines.insert(0, f"wrote {job.capture}")
        lines += [line for line in [what_is_missing(job.capture, measured)] if line is not None]
    for line in lines:
        print(f"bentpipe: {line}", file=sys.stderr)


def _leave(code: int, failure: UsageError | None) -> NoReturn:
    """Exit as the program did; if it succeeded and a file could not be written, for that reason."""
    if failure is not None:
        if code == 0:
            raise failure
        print(f"bentpipe: {failure}", file=sys.stderr)
    raise typer.Exit(code)


def summary(measured: dict[str, Any]) -> list[str]:
    """Return lines for a person: what each direction carried, how late it was, and the verdict."""
    lines = []
    for name, direction in measured["directions"].items():
        dropped = direction["dropped_packets"]
        causes = ", ".join(f"{count:,} {cause}" for cause, count in dropped.items())
        lines.append(
            f"{name}: {direction['delivered_packets']:,} packets, "
            f"{direction['delivered_bytes'] / 1e6:,.3f} MB delivered"
            + (f"; lost: {causes}" if causes else "; none lost")
        )
    lateness = measured["lateness"]
    lines.append(
        f"{measured['at_ns'] / 1e9:.1f} s; packets were late by {micros(lateness['p50_ns'])} "
        f"(median), {micros(lateness['p99_ns'])} (p99), {micros(lateness['max_ns'])} (max)"
    )
    if measured["invalid"] is not None:
        lines.append(f"INVALID: {measured['invalid']}; the figures do not count")
    return lines
