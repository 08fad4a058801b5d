"""The verbs of labs that stay: `lab up`, `down`, `list`, `status`, `exec` and `set`."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from bentpipe import _core
from bentpipe.cli.exec import (
    PASSED_ON,
    Gateways,
    Host,
    Internet,
    Link,
    Seed,
    Settings,
    refuse_without_nat,
    summary,
    wait,
)
from bentpipe.cli.figures import windows
from bentpipe.errors import InvalidRunError, MachineError, UsageError
from bentpipe.lab import sockets as _labs

# A keeper that was asked to end and has not by then is killed.
_END_SECONDS: Final = 5.0
# A killed process takes that long at most to be gone.
_DEATH_SECONDS: Final = 0.5

lab_app = typer.Typer(
    help="Keep a link with programs behind it, and change it while they run.",
    epilog="Example: bentpipe lab up sat --link geo && bentpipe lab exec sat -- ping -c 3 world",
    no_args_is_help=True,
    rich_markup_mode=None,
    callback=lambda: None,
)

Name = Annotated[str, typer.Argument(help="The name of the lab.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]


@lab_app.command(epilog="Example: bentpipe lab up sat --link geo --set link.forward.rate=4Mbit/s")
def up(
    name: Name,
    link: Link,
    settings: Settings = None,
    seed: Seed = 1,
    gateways: Gateways = False,
    internet: Internet = False,
) -> None:
    """Set up a lab that stays until `lab down`, in a process of its own."""
    from bentpipe.lab.daemon import Wanted, keep_in_background
    from bentpipe.lab.lab import refuse_beyond_ceiling
    from bentpipe.plan.presets import link_plan

    folder = _labs.folder()
    _labs.refuse_taken(_labs.checked_name(name), folder)
    plans = [link_plan(each, settings or []) for each in link]
    refuse_beyond_ceiling(plans)
    refuse_without_nat(wanted=internet)
    shown = [*link, *(f"--set {setting}" for setting in settings or [])]
    shown += ["--gateways"] * gateways + ["--internet"] * internet
    wanted = Wanted(
        name=name,
        folder=folder,
        plans=plans,
        links=shown,
        seed=seed,
        gateways=gateways,
        internet=internet,
    )
    process, hosts = keep_in_background(wanted)
    named = f"{', '.join(hosts[:-1])} and {hosts[-1]}"
    _note(f"the lab {name} is up, kept by process {process}; its hosts are {named}")


@lab_app.command(epilog="Example: bentpipe lab down sat")
def down(name: Name) -> None:
    """End a lab and all programs in it; say what its link carried."""
    with _labs.connect(name) as connection:
        keeper = _watched(connection)
        try:
            status, _ = _labs.ask(connection, {"do": "down"})
        except _labs.LabEndedError:
            # Somebody else ended it meanwhile.
            _end(keeper)
            return
        except MachineError as error:
            if keeper is None:
                raise
            _kill(keeper)
            # Removes its socket, unless another lab has the name by now.
            _labs.names()
            raise MachineError(f"{error}; it was ended by force") from None
        _end(keeper)
    for line in summary(status["report"]):
        _note(line)


@lab_app.command("list", epilog="Example: bentpipe lab list --json")
def list_(as_json: AsJson = False) -> None:
    """List the labs that are up."""
    found = []
    for name in _labs.names():
        try:
            found.append(_status(name))
        except (UsageError, _labs.LabEndedError):
            # It ended since.
            continue
    if as_json:
        rows = [{key: value for key, value in each.items() if key != "report"} for each in found]
        print(json.dumps(rows, indent=2))
        return
    for each in found:
        minutes = max(time.time() - each["since"], 0) / 60
        state = each["failure"] or f"up for {minutes:.0f} min"
        print(f"{each['name']}\t{' '.join(each['links'])}\t{state}")


@lab_app.command(epilog="Example: bentpipe lab status sat --json")
def status(name: Name, as_json: AsJson = False) -> None:
    """Tell what a lab's link has carried, what was changed, and how late it was."""
    found = _status(name)
    if as_json:
        print(json.dumps(found, indent=2))
        return
    print(f"{name}: {' '.join(found['links'])}")
    for order in found["orders"]:
        print(f"{order['at_ns'] / 1e9:.1f} s: {' '.join(order['settings'])}")
    for direction, counted in found["report"]["directions"].items():
        print(f"{direction}: {counted['queue_packets']:,} packets wait")
    print("\n".join([*summary(found["report"]), *windows(found["report"])]))


@lab_app.command("set", epilog="Example: bentpipe lab set sat link.forward.rate=4Mbit/s")
def set_(
    name: Name,
    settings: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH=VALUE...",
            help="link.forward or link.return with .rate, .delay, .bit_error_rate or .outage "
            "(a time, on or off).",
            show_default=False,
        ),
    ],
) -> None:
    """Change a lab's link while it runs: all that is given at one moment, or nothing.

    What waits is sent at the new rate from that moment on, the rest of the packet being sent
    included. A delay is that of packets whose last bit leaves later; none overtakes another.
    Errors meet packets whose sending begins later. During an outage nothing is sent.
    """
    with _labs.connect(name) as connection:
        done, _ = _labs.ask(connection, {"do": "set", "settings": settings})
    _note(f"{' '.join(settings)} since {done['at_ns'] / 1e9:.6f} s")


@lab_app.command(
    "exec", epilog="Example: bentpipe lab exec sat -- curl -o page http://world/bytes/1000"
)
def exec_(
    name: Name,
    command: Annotated[
        list[str],
        typer.Argument(metavar="COMMAND...", help="The program and its arguments."),
    ],
    host: Host = "island",
) -> None:
    """Run a program in a lab, with this terminal, and exit as it exits.

    What the program leaves running stays in the lab until `lab down`.
    """
    # To enter the lab is to become another user, who would have another folder.
    place = _labs.folder()
    with _labs.connect(name, place) as connection:
        keeper = _watched(connection)
        _, descriptors = _labs.ask(connection, {"do": "enter", "host": host})
    process = _start(descriptors, command, host)
    code = wait(process)
    if code == -signal.SIGKILL:
        if _has_ended(keeper):
            _note(f"the lab {name} has ended, and the program with it")
        elif (failure := _failure(name, place)) is not None:
            raise InvalidRunError(f"{failure}; end the lab by bentpipe lab down {name}")
    raise typer.Exit(code if code >= 0 else 128 - code)


def _start(descriptors: list[int], command: list[str], host: str) -> int:
    """Start a program by the descriptors that a keeper gave; return its process."""
    try:
        *namespace_fds, user = descriptors
        own = Path("/proc/self/ns/user").stat()
        if not os.path.samestat(own, os.fstat(user)):
            _core.join_user_namespace(user)
        signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON | {signal.SIGCHLD})
        return _core.spawn_in(namespace_fds, command, [("BENTPIPE_HOST", host)])
    except _core.ProgramError as error:
        raise UsageError(str(error)) from None
    except _core.MachineError as error:
        raise MachineError(str(error)) from None
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _status(name: str, place: Path | None = None) -> dict[str, Any]:
    with _labs.connect(name, place) as connection:
        process = _labs.peer(connection)[0]
        found, _ = _labs.ask(connection, {"do": "status"})
    return {**found, "process": process}


def _failure(name: str, place: Path) -> str | None:
    """Return why the link of a lab has failed, if it has; None too if nobody answers."""
    try:
        failure: str | None = _status(name, place)["failure"]
    except (UsageError, MachineError):
        return None
    return failure


def _watched(connection: Any) -> int | None:
    """Return a descriptor of the keeper's process, if it can be seen from here."""
    try:
        return os.pidfd_open(_labs.peer(connection)[0])
    except OSError:
        return None


def _has_ended(keeper: int | None) -> bool:
    """Tell whether the keeper has ended or is about to: its programs end a moment before."""
    return keeper is not None and bool(select.select([keeper], [], [], _DEATH_SECONDS)[0])


def _end(keeper: int | None) -> None:
    """Wait until the keeper has ended, and see to it that it does."""
    if keeper is None:
        return
    if select.select([keeper], [], [], _END_SECONDS)[0]:
        os.close(keeper)
    else:
        _kill(keeper)


def _kill(keeper: int | None) -> None:
    if keeper is None:
        return
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(keeper, signal.SIGKILL)
    select.select([keeper], [], [], _END_SECONDS)
    os.close(keeper)


def _note(text: str) -> None:
    print(f"bentpipe: {text}", file=sys.stderr)
