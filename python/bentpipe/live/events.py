"""Events that are played in a running lab: changes of its link at given times."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field, ValidationError

from bentpipe.errors import ScenarioError
from bentpipe.scenario.document import read_file
from bentpipe.scenario.record import Duration, PositiveDuration, Record, problems_of
from bentpipe.units import format_duration, value_of

_MAX_EVENTS: Final = 100_000


class Event(Record):
    """One change."""

    at: Duration
    """When it is made, from the start of the events."""
    set: Annotated[tuple[str, ...], Field(strict=False, min_length=1)]
    """What is set, as by ``lab set``: ``[link.forward.outage=500ms, link.forward.delay=30ms]``."""


class Events(Record):
    """A file of events."""

    events: Annotated[tuple[Event, ...], Field(strict=False, min_length=1, max_length=_MAX_EVENTS)]
    """The events, in order of time."""
    repeat: PositiveDuration | None = None
    """Play the events again after this time, until Ctrl-C; by default they are played once."""

    def times(self) -> Iterator[tuple[int, tuple[str, ...]]]:
        """Yield the time of each event in ns, from the start, and what it sets."""
        for round_ in count() if self.repeat is not None else range(1):
            start_ns = round_ * value_of(self.repeat) if self.repeat is not None else 0
            for event in self.events:
                yield start_ns + value_of(event.at), event.set


def read_events(path: Path) -> Events:
    """Read a file of events.

    Raises:
        ScenarioError: naming file, line, field, what was read and what is allowed.
    """
    document = read_file(path)
    try:
        found = Events.model_validate(document.data)
    except ValidationError as error:
        raise ScenarioError(*problems_of(error, document)) from None
    problem = _order_problem(found)
    if problem is not None:
        field, message = problem
        raise ScenarioError(document.problem(field, message))
    return found


def _order_problem(found: Events) -> tuple[tuple[str | int, ...], str] | None:
    """Return what is wrong with the order of events, if anything."""
    last_ns = 0
    for i, event in enumerate(found.events):
        at_ns = value_of(event.at)
        if at_ns < last_ns:
            message = f'read "{event.at}"; must not be before the event above, at'
            return ("events", i, "at"), f"{message} {format_duration(last_ns)}"
        last_ns = at_ns
    if found.repeat is not None and value_of(found.repeat) < last_ns:
        message = f'read "{found.repeat}"; must not be before the last event, at'
        return ("repeat",), f"{message} {format_duration(last_ns)}"
    return None
