"""What can be changed of a link that runs, as a person writes it, and as the link takes it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from bentpipe.errors import ScenarioError, UnitError, UsageError
from bentpipe.lab.lab import refuse_beyond_ceiling
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
# The longest outage that can be ordered, in ns: until somebody ends it.
_FOREVER_NS: Final = 1 << 62

# A link on which nothing but what is ordered can be wrong: what waits is not changed, so its queue
# holds anything.
_DIRECTION: Final = {"rate": "1 Mbit/s", "delay": "0 s", "queue": {"limit": "unlimited"}}
_LONGEST_SHOWN: Final = 80
_AROUND: Final = {
    "traffic": [{"kind": "bulk", "direction": "forward", "size": "1 B"}],
    "duration": "1 s",
}


def orders_of(settings: Sequence[str], hops: int) -> list[dict[str, Any]]:
    """Return the orders that settings such as ``link.forward.rate=4Mbit/s`` are, one a direction.

    A path without a hop is of every hop, as with ``--set``.

    Raises:
        UsageError: what was read and what is allowed.
        MachineError: the machine was measured not to carry a rate.
    """
    orders: dict[tuple[int, str], dict[str, Any]] = {}
    for setting in settings:
        path, equals, text = setting.partition("=")
        found = _PATH.fullmatch(path.strip())
        if found is None or not equals:
            raise UsageError(f'read "{_shown(setting)}"; a link that runs can change {ALLOWED}')
        direction, field = found["direction"], found["field"]
        chosen = range(hops) if found["hop"] is None else [int(found["hop"]) - 1]
        if chosen[-1] >= hops:
            raise UsageError(f'read "{_shown(setting)}"; there are {hops} links here')
        value = _outage_ns(text) if field == "outage" else _value(setting, direction, field)
        name = {"rate": "rate_bps", "delay": "delay_ns", "outage": "outage_ns"}.get(field, field)
        for hop in chosen:
            nothing = dict.fromkeys(("rate_bps", "delay_ns", "bit_error_rate", "outage_ns"))
            empty = {"hop": hop, "direction": direction, **nothing}
            orders.setdefault((hop, direction), empty)[name] = value
    return list(orders.values())


def _shown(setting: str) -> str:
    return setting if len(setting) <= _LONGEST_SHOWN else f"{setting[:_LONGEST_SHOWN]}..."


def _outage_ns(text: str) -> int:
    """Return for how long nothing is sent: a time, or ``on`` and ``off``."""
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
    """Return the value of a setting as the plan has it, checked as a scenario is."""
    from bentpipe.plan.resolver import checked, resolve
    from bentpipe.scenario.document import Document, with_settings

    link = {"forward": dict(_DIRECTION), "return": dict(_DIRECTION)}
    document = Document(data={"link": link, **_AROUND}, source="lab set")
    path, _, text = setting.partition("=")
    plain = f"link.{direction}.{field}={text}"
    try:
        plan = resolve(checked(with_settings(document, [plain])))
    except ScenarioError as error:
        problems = (replace(problem, source=path.strip(), field="") for problem in error.problems)
        raise ScenarioError(*problems) from None
    refuse_beyond_ceiling([plan])
    part = plan["directions"][0 if direction == "forward" else 1]
    if field == "bit_error_rate":
        return float(part["channel"].get("bit_error_rate", 0.0))
    series = part["rate_bps" if field == "rate" else "delay_ns"]
    if series["kind"] != "constant":
        raise UsageError(f"{path.strip()}: read a list of steps; a link that runs takes one value")
    return int(series["value"])
