"""Verbs of persistent labs: ``lab up``, ``down``, ``status``, ``exec``, ``set``, ``play``, ..."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from bentpipe import cli, live, plan
from bentpipe.cli import options
from bentpipe.cli.lazy import LazyGroup, examples_text
from bentpipe.cli.link_status import LinkStatus, status_lines, summary_lines
from bentpipe.cli.options import argument, flag, note, print_json
from bentpipe.cli.progress import exit_interrupted
from bentpipe.cli.streams import ProgramCommand
from bentpipe.errors import InvalidRunError, MachineError, UsageError
from bentpipe.live import sockets
from bentpipe.live.programs import exit_status, refuse_program, start_in_lab, wait_for_program
from bentpipe.units import NS_PER_S

if TYPE_CHECKING:
    import socket

# A lab daemon that has not ended by then is killed.
_END_TIMEOUT_S: Final = 5.0
# The programs of a daemon end up to this time before the daemon does.
_EXIT_S: Final = 0.5
_MINUTES_FROM_S: Final = 120

lab_app = typer.Typer(cls=LazyGroup, rich_markup_mode=None)

Name = Annotated[str, argument("NAME", "The name of the lab.", sockets.names)]


@lab_app.command(
    epilog=examples_text(
        "bentpipe lab up sat --link geo",
        "bentpipe lab up sat --link geo --set link.forward.rate=4Mbit/s",
    )
)
def up(
    name: Annotated[str, argument("NAME", "The name of the lab.")],
    link: options.Links,
    settings: options.LinkSettings = None,
    seed: options.LinkSeed = 1,
    gateways: options.Gateways = False,
    internet: options.Internet = False,
) -> None:
    """Set up a lab that runs until `lab down`. A process of its own keeps it."""
    if sockets.checked_name(name) in sockets.names():
        raise sockets.TakenError(name)
    plans = [plan.link_plan(hop, settings or []) for hop in link]
    shown = [*link, *(f"--set {setting}" for setting in settings or [])]
    shown += ["--gateways"] * gateways + ["--internet"] * internet
    kept = live.LocalLab(plans=plans, seed=seed, gateways=gateways, internet=internet)
    child, hosts = live.LabDaemon(name=name, folder=sockets.folder(), links=shown, lab=kept).start()
    listed = f"{', '.join(hosts[:-1])} and {hosts[-1]}"
    note(f"lab {name} is up, kept by process {child.process.pid}; its hosts are {listed}")


@lab_app.command(epilog=examples_text("bentpipe lab down sat", "bentpipe lab down sat rain"))
def down(
    names: Annotated[list[str], argument("NAME...", "The names of the labs.", sockets.names)],
) -> None:
    """End labs and all programs in them. Prints what their links carried."""
    # None is ended if one does not exist.
    for name in names:
        with sockets.connect(name):
            pass
    labs = list(dict.fromkeys(names))
    for name in labs:
        with sockets.connect(name) as connection:
            report = _end(connection)
        for line in [] if report is None else summary_lines(report):
            note(f"{name}: {line}" if labs[1:] else line, fitted=True)


def _end(connection: socket.socket) -> Mapping[str, Any] | None:
    """End a lab; return its last report, None if another client ended it."""
    daemon = _pidfd_of(connection)
    report: Mapping[str, Any] | None = None
    try:
        report = sockets.ask(connection, {"do": "down"})[0]["report"]
    except sockets.LabEndedError:
        # Another client ended it meanwhile.
        pass
    except MachineError as error:
        if daemon is None:
            raise
        _wait_for_end(daemon, timeout_s=0)
        # Removes its socket, unless another lab has taken the name.
        sockets.names()
        raise MachineError(f"{error}; it was killed") from None
    if daemon is not None:
        _wait_for_end(daemon, _END_TIMEOUT_S)
    return report


@lab_app.command("list", epilog=examples_text("bentpipe lab list", "bentpipe lab list --json"))
def list_(as_json: options.AsJson = False) -> None:
    """List the labs that are up."""
    labs = []
    for name in sockets.names():
        # A lab may end meanwhile.
        with suppress(UsageError, sockets.LabEndedError):
            labs.append(sockets.request(name, "status"))
    if as_json:
        print_json([{key: lab[key] for key in lab if key != "report"} for lab in labs])
        return
    if not labs:
        note("no lab is up; bentpipe lab up creates one")
    for lab in labs:
        up_s = max(time.time() - lab["started_unix_s"], 0)
        up = f"{up_s:.0f} s" if up_s < _MINUTES_FROM_S else f"{up_s / 60:.0f} min"
        state = lab["failure"] or f"up for {up}"
        print(f"{lab['name']}\t{' '.join(lab['links'])}\t{state}")


@lab_app.command(epilog=examples_text("bentpipe lab status sat", "bentpipe lab status sat --watch"))
def status(
    name: Name,
    as_json: options.AsJson = False,
    watch: Annotated[bool, flag("--watch", "Update the status until the lab ends, or Ctrl-C.")] = (
        False
    ),
) -> None:
    """Print the status of a lab: rate and delay, changes, traffic and lateness."""
    if watch:
        if as_json:
            raise UsageError("--json: not with --watch; call lab status --json repeatedly")
        lines = LinkStatus().status_lines
        cli.watch_lines(
            lambda: lines(sockets.request(name, "status")), (sockets.LabEndedError, UsageError)
        )
        note(f"lab {name} has ended")
    elif as_json:
        print_json(sockets.request(name, "status"))
    else:
        print("\n".join(status_lines(sockets.request(name, "status"))))


@lab_app.command(
    "set",
    epilog=examples_text(
        "bentpipe lab set sat link.forward.rate=4Mbit/s",
        "bentpipe lab set sat link.forward.outage=2s link.return.outage=2s",
    ),
)
def set_(
    name: Name,
    settings: Annotated[
        list[str],
        argument(
            "PATH=VALUE",
            "link.forward or link.return with .rate, .delay, .jitter, .bit_error_rate, .loss, "
            ".outage (a time, on or off), .queue.limit or .queue.discipline and its options.",
        ),
    ],
) -> None:
    """Change the link of a lab while it runs.

    All settings apply at one moment, or none. A new rate applies immediately, also to the rest of
    the packet that is being sent. A new delay applies to packets with a later end of transmission;
    packets are not reordered. A new error rate applies to packets with a later start of
    transmission; it replaces all errors before. During an outage nothing is sent. Packets that wait
    when the queue changes enter the new one in the order of their arrival; those that do not fit
    are dropped.
    """
    _set(name, settings)


@lab_app.command(
    epilog=examples_text("bentpipe lab play sat docs/how-to/handover-events.yaml"),
)
def play(
    name: Name,
    events: Annotated[
        Path,
        argument(
            "EVENTS.yaml",
            "events: a list of {at: TIME, set: [PATH=VALUE, ...]}; repeat: TIME plays it again.",
        ),
    ],
) -> None:
    """Play events in a lab: change its link at given times, until the last event or Ctrl-C.

    All events are checked before the first one is played. An event is applied within some
    milliseconds of its time; a scenario has the same events at exact times.
    """
    played = live.read_events(events)
    link = sockets.request(name, "link")
    plans = link["plans"]
    for event in played.events:
        changes = live.link_changes(event.set, plans, super_packets=link["super_packets"])
        plans = live.with_changes(plans, changes)
    started_s = time.monotonic()
    try:
        for at_ns, settings in played.times():
            time.sleep(max(0.0, started_s + at_ns / NS_PER_S - time.monotonic()))
            _set(name, settings)
    except KeyboardInterrupt:
        exit_interrupted("the link stays as it is")


@lab_app.command(
    "exec",
    cls=ProgramCommand,
    epilog=examples_text(
        "bentpipe lab exec sat -- curl -o page http://world/bytes/1000",
        "bentpipe lab exec sat --host world -- ping -c 3 island",
    ),
)
def exec_(
    name: Name,
    command: Annotated[list[str], argument("COMMAND", "The program and its arguments.")],
    host: options.Host = "island",
) -> None:
    """Run a program in a lab, on this terminal.

    It exits with the program's code, or with 128 + N if signal N ended it. If bentpipe itself
    fails, the code is 125; if the program cannot be executed 126; if it is not found 127.

    Processes that the program leaves behind stay in the lab until `lab down`.
    """
    refuse_program(command)
    with sockets.connect(name) as connection:
        daemon = _pidfd_of(connection)
        _, descriptors = sockets.ask(connection, {"do": "enter", "host": host})
    code = wait_for_program(start_in_lab(descriptors, command, host))
    if code == -signal.SIGKILL:
        if daemon is not None and select.select([daemon], [], [], _EXIT_S)[0]:
            note(f"lab {name} has ended, and the program with it")
        else:
            # A lab that does not reply has not failed.
            with suppress(UsageError, MachineError):
                if (failure := sockets.request(name, "status")["failure"]) is not None:
                    text = f"{failure}; end the lab with bentpipe lab down {name}"
                    raise InvalidRunError(text)
    raise typer.Exit(exit_status(code))


def _set(name: str, settings: Sequence[str]) -> None:
    change = live.change_link(partial(sockets.request, name), settings)
    note(f"{' '.join(settings)} since {change['at_ns'] / NS_PER_S:.6f} s")


def _pidfd_of(connection: socket.socket) -> int | None:
    """Return a descriptor of the daemon's process, if this process can see it."""
    try:
        return os.pidfd_open(sockets.peer(connection)[0])
    except OSError:
        return None


def _wait_for_end(daemon: int, timeout_s: float) -> None:
    """Wait until the daemon has ended; kill it after a timeout."""
    if not select.select([daemon], [], [], timeout_s)[0]:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(daemon, signal.SIGKILL)
        select.select([daemon], [], [], _END_TIMEOUT_S)
    os.close(daemon)
