"""The verbs that run programs behind a link: `exec` and `shell`."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from bentpipe.errors import UsageError
from bentpipe.live import Lab, Side, gain_privileges, link_plan, refuse_beyond_ceiling

EXIT_INVALID: Final = 4

# What a program is told that runs in the foreground of a terminal, or is ended by others.
_PASSED_ON: Final = frozenset(
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
Sides = Annotated[str, typer.Option("--side", help="Where the program runs: island or world.")]
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
Report = Annotated[
    Path | None,
    typer.Option(help="Write what was measured to this file, as JSON.", show_default=False),
]
Strict = Annotated[
    bool, typer.Option("--strict", help="Exit with 4 if the link was late beyond its limits.")
]


def exec_(  # noqa: PLR0913, PLR0917 - a command line's options are its arguments
    command: Annotated[list[str], typer.Argument(help="The program and its arguments.")],
    link: Link,
    settings: Settings = None,
    side: Sides = "island",
    seed: Seed = 1,
    world: World = None,
    report: Report = None,
    strict: Strict = False,
) -> None:
    """Run a program behind a satellite link, in real time, and exit as it exits.

    The island reaches the host `world` over the link, where a web server gives N bytes at
    http://world/bytes/N and iperf3 listens, if it is installed. The machine's own network is not
    touched.
    """
    plans = [link_plan(name, settings or []) for name in link]
    code, measured = _run(plans, command, side=_side(side), seed=seed, world=world or [])
    if report is not None:
        try:
            report.write_text(json.dumps(measured, indent=2) + "\n")
        except OSError as error:
            raise UsageError(f"{report}: cannot be written: {error.strerror or error}") from None
    _tell(measured)
    if strict and code == 0 and measured["invalid"] is not None:
        code = EXIT_INVALID
    raise typer.Exit(code)


def shell(link: Link, settings: Settings = None, side: Sides = "island", seed: Seed = 1) -> None:
    """Open a shell behind a satellite link: all that is started in it is behind the link."""
    plans = [link_plan(name, settings or []) for name in link]
    program = os.environ.get("SHELL", "/bin/sh")
    code, measured = _run(plans, [program], side=_side(side), seed=seed, world=[])
    _tell(measured)
    raise typer.Exit(code)


def _side(name: str) -> Side:
    if name == "world":
        return "world"
    if name == "island":
        return "island"
    raise UsageError(f'side: read "{name}"; allowed are "island" and "world"')


def _run(
    plans: Sequence[dict[str, Any]],
    command: Sequence[str],
    *,
    side: Side,
    seed: int,
    world: Sequence[str],
) -> tuple[int, dict[str, Any]]:
    """Run a program in a lab; return its exit code and what the lab measured."""
    refuse_beyond_ceiling(plans)
    gain_privileges()
    # Threads that are started from here on leave these signals to the wait below.
    signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON | {signal.SIGCHLD})
    with Lab(plans=plans, seed=seed) as lab:
        lab.serve_world()
        for line in world:
            lab.spawn("world", ["/bin/sh", "-c", line])
        code = _wait(lab.spawn(side, command))
    return code, lab.report()


def _wait(process: int) -> int:
    """Wait for a program, passing on signals that somebody sent us."""
    while True:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended == process:
            return os.waitstatus_to_exitcode(status)
        received = signal.sigwaitinfo(_PASSED_ON | {signal.SIGCHLD})
        # The terminal tells every program in the foreground by itself; others tell only us.
        if received.si_signo != signal.SIGCHLD and received.si_code <= 0:
            os.kill(process, received.si_signo)


def _tell(measured: dict[str, Any]) -> None:
    for line in summary(measured):
        print(f"bentpipe: {line}", file=sys.stderr)


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
        f"{measured['at_ns'] / 1e9:.1f} s; packets were late by {_micros(lateness['p50_ns'])} "
        f"(median), {_micros(lateness['p99_ns'])} (p99), {_micros(lateness['max_ns'])} (most)"
    )
    if measured["invalid"] is not None:
        lines.append(f"INVALID: {measured['invalid']}; the figures do not count")
    return lines


def _micros(nanos: int) -> str:
    return f"{nanos / 1e3:,.0f} µs"
