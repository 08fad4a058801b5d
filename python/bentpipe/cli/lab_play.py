"""The verb ``lab play``: events in a running lab."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bentpipe import lab
from bentpipe.cli.exits import EXIT_INTERRUPTED
from bentpipe.cli.options import note
from bentpipe.lab import sockets
from bentpipe.units import NS_PER_S

if TYPE_CHECKING:
    from bentpipe.lab.events import Events

EventFile = Annotated[
    Path,
    typer.Argument(
        metavar="EVENTS.yaml",
        help="events: a list of {at: TIME, set: [PATH=VALUE, ...]}; repeat: TIME plays it again.",
        show_default=False,
    ),
]


def play_events(name: str, file: Path) -> None:
    """Play the events of a file in a lab, after a check of all of them.

    Raises:
        ScenarioError: the file is wrong.
        UsageError: there is no such lab, or an event cannot be applied to it.
    """
    events = lab.read_events(file)
    for event in events.events:
        sockets.request(name, "check", settings=list(event.set))
    try:
        _play(name, events)
    except KeyboardInterrupt:
        note("interrupted; the link stays as it is")
        raise typer.Exit(EXIT_INTERRUPTED) from None


def _play(name: str, events: Events) -> None:
    started_s = time.monotonic()
    for at_ns, settings in events.times():
        time.sleep(max(0.0, started_s + at_ns / NS_PER_S - time.monotonic()))
        change = sockets.request(name, "set", settings=list(settings))
        note(f"{' '.join(settings)} since {change['at_ns'] / NS_PER_S:.6f} s")
