"""Changes of a running link: settings such as ``link.forward.rate=4Mbit/s``, and files of events.

The clients of a lab resolve them; its daemon gets integers (`bentpipe.live.link_state`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias, cast

from pydantic import Field, ValidationError

from bentpipe import plan, scenario
from bentpipe.errors import MachineError, ScenarioError, UnitError, UsageError
from bentpipe.live.capacity import refuse_beyond_capacity
from bentpipe.live.link_state import LinkChange
from bentpipe.plan.presets import classes_of, series_values
from bentpipe.scenario.document import FieldPath, read_file
from bentpipe.scenario.record import Duration, PositiveDuration, Record, problems_of
from bentpipe.text import shown
from bentpipe.units import format_duration, parse_duration, value_of

_PATH: Final = re.compile(
    r"(?:hop\.(?P<hop>[1-9][0-9]{0,3})\.)?"
    r"link\.(?P<direction>forward|return)\."
    r"(?P<field>rate|delay|jitter|bit_error_rate|loss|outage|queue\.[a-z_]+)",
    re.ASCII,
)
ALLOWED: Final = (
    "link.forward or link.return, with .rate, .delay, .jitter, .bit_error_rate, .loss, .outage, "
    ".queue.limit or .queue.discipline, such as link.forward.rate=4Mbit/s; hop.2.link... for the "
    "second of several links"
)
# Each attempt fails because another client has succeeded.
_ATTEMPTS_MAX: Final = 100
# The duration of an outage without an end, in ns.
_FOREVER_NS: Final = 1 << 62

# A setting is checked in a scenario in which everything else is valid.
_DIRECTION: Final = {"rate": "1 Mbit/s", "delay": "0 s", "queue": {"limit": "unlimited"}}
_PLAN_FIELDS: Final = {
    "rate": "rate_bps",
    "delay": "delay_ns",
    "jitter": "jitter_ns",
    "loss": "loss_rate",
    "outage": "outage_ns",
}

Ask: TypeAlias = Callable[..., dict[str, Any]]


def change_link(ask: Ask, settings: Sequence[str]) -> dict[str, Any]:
    """Resolve settings and let a lab daemon apply them; return its reply, which has ``at_ns``.

    ``ask`` sends a request to the daemon, which gets integers only. If another client has changed
    the link meanwhile, they are resolved again, for the link as it is then.

    Raises:
        BentpipeError: see `link_changes`, and what the daemon refuses.
    """
    for _ in range(_ATTEMPTS_MAX):
        link = ask("link")
        changes = link_changes(settings, link["plans"], super_packets=link["super_packets"])
        reply = ask("set", settings=list(settings), changes=changes, revision=link["revision"])
        if "at_ns" in reply:
            return reply
    raise MachineError("other clients change the link all the time; to fix it: try again")


def link_changes(
    settings: Sequence[str], plans: Sequence[Mapping[str, Any]], *, super_packets: bool = False
) -> list[LinkChange]:
    """Return the changes that settings ask for, one for each direction.

    ``plans`` are those of the hops, with their present queues. A path without a hop changes every
    hop, as with ``--set``. Settings of a queue without ``discipline`` can change its limit only.
    With ``super_packets``, as in a lab whose kernels pass them, higher rates are possible.

    Raises:
        UsageError: naming what was read and what is allowed.
        MachineError: a rate is above the measured capacity of this machine.
    """
    changes: dict[tuple[int, str], dict[str, Any]] = {}
    queues: dict[tuple[int, str], list[str]] = {}
    hops = len(plans)
    for setting in settings:
        path, equals, text = setting.partition("=")
        match = _PATH.fullmatch(path.strip())
        if match is None or not equals:
            raise UsageError(f"read {shown(setting)}; a running link can change {ALLOWED}")
        direction, field = match["direction"], match["field"]
        chosen = range(hops) if match["hop"] is None else [int(match["hop"]) - 1]
        if chosen[-1] >= hops:
            raise UsageError(f"read {shown(setting)}; the lab has {hops} links")
        value: int | float | None = None
        if field == "outage":
            value = _outage_ns(text)
        elif not field.startswith("queue."):
            value = _value(setting, direction, field, super_packets=super_packets)
        for hop in chosen:
            unchanged = dict.fromkeys(LinkChange.__annotations__)
            change = {**unchanged, "hop": hop, "direction": direction}
            change = changes.setdefault((hop, direction), change)
            if value is None:
                plain = f"link.{direction}.{field}={text}"
                queues.setdefault((hop, direction), []).append(plain)
            else:
                change[_PLAN_FIELDS.get(field, field)] = value
    for (hop, direction), texts in queues.items():
        changes[hop, direction]["queue"] = _queue(texts, direction, plans[hop])
    return [cast("LinkChange", change) for change in changes.values()]


def _outage_ns(text: str) -> int:
    """Return the duration of an outage: a time, ``on`` or ``off``."""
    word = text.strip()
    if word == "off":
        return 0
    if word == "on":
        return _FOREVER_NS
    try:
        return min(parse_duration(word), _FOREVER_NS)
    except UnitError as error:
        raise UsageError(f"outage: {error}; or on, or off") from None


def _value(setting: str, direction: str, field: str, *, super_packets: bool) -> int | float:
    """Return the value of a setting in the units of the plan, checked by the scenario schema."""
    path, _, text = setting.partition("=")
    link = {"forward": dict(_DIRECTION), "return": dict(_DIRECTION)}
    resolved = _resolved(link, [f"link.{direction}.{field}={text}"], path.strip())
    refuse_beyond_capacity([resolved], super_packets=super_packets)
    part = resolved["directions"][0 if direction == "forward" else 1]
    if field == "jitter":
        return int(part["jitter_ns"])
    if field in {"bit_error_rate", "loss"}:
        channel = part["channel"]
        if channel["kind"] == "error_series":
            return float(channel["steps"][0]["loss_rate"])
        return float(channel["bit_error_rate"]) if channel["kind"] == "bit_errors" else 0.0
    series = part["rate_bps" if field == "rate" else "delay_ns"]
    if series["kind"] != "constant":
        raise UsageError(f"{path.strip()}: read a list of steps; a running link takes one value")
    return int(series["value"])


def _queue(settings: Sequence[str], direction: str, hop: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the plan of a queue: a new one, or the present one with another limit."""
    options = {setting.partition("=")[0].rpartition(".")[2] for setting in settings}
    ends = dict(zip(("forward", "return"), hop["directions"], strict=False))
    present = ends[direction]["queue"]
    discipline = present["discipline"]
    if "discipline" not in options and options != {"limit"}:
        first = min(options - {"limit"})
        raise UsageError(
            f"queue.{first}: a running link has a new queue or another limit: write "
            f"queue.discipline={discipline} and all its options"
        )
    # The limit may be a share of the bandwidth-delay product.
    link = {
        name: {
            "rate": f"{max(series_values(end['rate_bps']))} bit/s",
            "delay": f"{max(series_values(end['delay_ns']))} ns",
            "queue": _DIRECTION["queue"],
        }
        for name, end in ends.items()
    }
    if "discipline" not in options:
        kept = {"classes": present["classes"]} if discipline == "strict_priority" else {}
        # Of classes that share a rate only the number matters here: they stay as they are.
        kept = {"classes": [{}] * classes_of(present)} if discipline == "shared_rate" else kept
        link[direction]["queue"] = {"discipline": discipline, **kept}
    else:
        link[direction]["queue"] = {}
    resolved = _resolved(link, settings, f"link.{direction}.queue")
    queue = resolved["directions"][0 if direction == "forward" else 1]["queue"]
    if "classes" in queue and classes_of(queue) != classes_of(present):
        raise UsageError(
            f"queue: {queue['discipline']} is possible here only if the queue has had as many "
            "classes from the start of the lab: its packets have classes then; set the lab up "
            "with it"
        )
    return queue if "discipline" in options else {**present, "limit": queue["limit"]}


def _resolved(link: Mapping[str, Any], settings: Sequence[str], source: str) -> dict[str, Any]:
    """Return the plan of a link with settings; errors name ``source``."""
    document = plan.link_document({"link": link})
    try:
        return plan.Plan.resolve(scenario.Scenario.from_document(document, settings)).data
    except ScenarioError as error:
        problems = (replace(problem, source=source, field="") for problem in error.problems)
        raise ScenarioError(*problems) from None


# --- events --------------------------------------------------------------------------------------

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
        for start_ns in [0] if self.repeat is None else count(0, value_of(self.repeat)):
            for event in self.events:
                yield start_ns + value_of(event.at), event.set


def read_events(path: Path) -> Events:
    """Read a file of events.

    Raises:
        ScenarioError: naming file, line, field, what was read and what is allowed.
    """
    document = read_file(path)
    try:
        events = Events.model_validate(document.data)
    except ValidationError as error:
        raise ScenarioError(*problems_of(error, document)) from None
    moments: list[tuple[FieldPath, str, str]] = [
        (("events", i, "at"), event.at, "the event above") for i, event in enumerate(events.events)
    ]
    if events.repeat is not None:
        moments.append((("repeat",), events.repeat, "the last event"))
    for (_, before, _), (field, moment, name) in pairwise(moments):
        if value_of(moment) < value_of(before):
            limit = format_duration(value_of(before))
            message = f'read "{moment}"; must not be before {name}, at {limit}'
            raise ScenarioError(document.problem(field, message))
    return events
