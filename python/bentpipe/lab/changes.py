"""Changes of a running link: settings such as ``link.forward.rate=4Mbit/s``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, Literal, TypedDict, cast

from bentpipe import plan, scenario
from bentpipe.errors import ScenarioError, UnitError, UsageError
from bentpipe.lab.capacity import refuse_beyond_capacity
from bentpipe.units import parse_duration

_PATH: Final = re.compile(
    r"(?:hop\.(?P<hop>[1-9][0-9]{0,3})\.)?"
    r"link\.(?P<direction>forward|return)\.(?P<field>rate|delay|bit_error_rate|outage)",
    re.ASCII,
)
ALLOWED: Final = (
    "link.forward or link.return, with .rate, .delay, .bit_error_rate or .outage, "
    "such as link.forward.rate=4Mbit/s; hop.2.link... for the second of several links"
)
# The duration of an outage without an end, in ns.
_FOREVER_NS: Final = 1 << 62

# A setting is checked in a scenario in which everything else is valid. The queue of the running
# link does not change, so any queue will do.
_DIRECTION: Final = {"rate": "1 Mbit/s", "delay": "0 s", "queue": {"limit": "unlimited"}}
_SHOWN_CHARACTERS_MAX: Final = 80
_PLAN_FIELDS: Final = {"rate": "rate_bps", "delay": "delay_ns", "outage": "outage_ns"}


class LinkChange(TypedDict):
    """New values of one direction of a running link; None leaves a value as it is.

    ``hop`` counts the links in series from 0. ``outage_ns`` is how long nothing is sent, 0 to end
    an outage.
    """

    hop: int
    direction: Literal["forward", "return"]
    rate_bps: int | None
    delay_ns: int | None
    bit_error_rate: float | None
    outage_ns: int | None


def link_changes(settings: Sequence[str], hops: int) -> list[LinkChange]:
    """Return the changes that settings ask for, one for each direction.

    A path without a hop changes every hop, as with ``--set``.

    Raises:
        UsageError: naming what was read and what is allowed.
        MachineError: a rate is above the measured capacity of this machine.
    """
    changes: dict[tuple[int, str], dict[str, Any]] = {}
    for setting in settings:
        path, equals, text = setting.partition("=")
        found = _PATH.fullmatch(path.strip())
        if found is None or not equals:
            raise UsageError(f'read "{_shown(setting)}"; a running link can change {ALLOWED}')
        direction, field = found["direction"], found["field"]
        chosen = range(hops) if found["hop"] is None else [int(found["hop"]) - 1]
        if chosen[-1] >= hops:
            raise UsageError(f'read "{_shown(setting)}"; the lab has {hops} links')
        value = _outage_ns(text) if field == "outage" else _value(setting, direction, field)
        for hop in chosen:
            unchanged = dict.fromkeys(("rate_bps", "delay_ns", "bit_error_rate", "outage_ns"))
            change = {"hop": hop, "direction": direction, **unchanged}
            changes.setdefault((hop, direction), change)[_PLAN_FIELDS.get(field, field)] = value
    return [cast("LinkChange", change) for change in changes.values()]


def _shown(setting: str) -> str:
    if len(setting) <= _SHOWN_CHARACTERS_MAX:
        return setting
    return f"{setting[:_SHOWN_CHARACTERS_MAX]}..."


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


def _value(setting: str, direction: str, field: str) -> int | float:
    """Return the value of a setting in the units of the plan, checked by the scenario schema."""
    link = {"forward": dict(_DIRECTION), "return": dict(_DIRECTION)}
    document = plan.link_document({"link": link})
    path, _, text = setting.partition("=")
    plain = f"link.{direction}.{field}={text}"
    try:
        checked = plan.checked(scenario.with_settings(document, [plain]))
        resolved = plan.resolve(checked)
    except ScenarioError as error:
        problems = (replace(problem, source=path.strip(), field="") for problem in error.problems)
        raise ScenarioError(*problems) from None
    refuse_beyond_capacity([resolved])
    part = resolved["directions"][0 if direction == "forward" else 1]
    if field == "bit_error_rate":
        channel = part["channel"]
        return channel["bit_error_rate"] if channel["kind"] == "bit_errors" else 0.0
    series = part["rate_bps" if field == "rate" else "delay_ns"]
    if series["kind"] != "constant":
        raise UsageError(f"{path.strip()}: read a list of steps; a running link takes one value")
    return int(series["value"])
