"""The paths from the hub to each terminal, as branches of the forward direction."""

from __future__ import annotations

from bentpipe.plan.errors import PlanningError
from bentpipe.plan.series import bit_errors
from bentpipe.plan.types import BranchPlan, ChannelPlan, WirePlan
from bentpipe.scenario.link import Link, TerminalPath
from bentpipe.units import value_of


def branch(gateway: int, delay_ns: int = 0, channel: ChannelPlan | None = None) -> BranchPlan:
    """Return the path to a gateway; by default it adds neither delay nor errors."""
    return {"gateway": gateway, "delay_ns": delay_ns, "channel": channel or {"kind": "clear"}}


def branches(link: Link, forward: WirePlan) -> list[BranchPlan]:
    """Return the path to each terminal; properties that differ move from the direction to them.

    Raises:
        PlanningError: a terminal is unknown or written twice, or the delay of the link varies.
    """
    terminals = range(1, 1 + link.terminals)
    special: dict[int, TerminalPath] = {}
    for i, path in enumerate(link.terminal_paths):
        where = ("link", "terminal_paths", i, "terminal")
        if path.terminal not in terminals:
            message = f"read {path.terminal}; link.terminals is {link.terminals}"
            raise PlanningError(where, message)
        if path.terminal in special:
            raise PlanningError(where, f"read {path.terminal} twice")
        special[path.terminal] = path
    delays = _own_delays(link, forward, special)
    rates = {n: path.bit_error_rate for n, path in special.items()}
    channels: dict[int, ChannelPlan] = {}
    if any(rate is not None for rate in rates.values()):
        common, forward["channel"] = forward["channel"], {"kind": "clear"}
        for number in terminals:
            rate = rates.get(number)
            channels[number] = common if rate is None else bit_errors(rate)
    return [branch(n, delays.get(n, 0), channels.get(n)) for n in terminals]


def _own_delays(link: Link, forward: WirePlan, special: dict[int, TerminalPath]) -> dict[int, int]:
    """Return the additional delay of each terminal over the smallest, which the direction gets."""
    written = {n: value_of(p.delay) for n, p in special.items() if p.delay is not None}
    if not written:
        return {}
    series = forward["delay_ns"]
    if series["kind"] != "constant":
        (first, *_) = (i for i, path in enumerate(link.terminal_paths) if path.delay is not None)
        message = "needs a link.forward.delay that does not vary"
        raise PlanningError(("link", "terminal_paths", first, "delay"), message)
    delays = {n: written.get(n, series["value"]) for n in range(1, 1 + link.terminals)}
    nearest_ns = min(delays.values())
    forward["delay_ns"] = {"kind": "constant", "value": nearest_ns}
    return {n: delay_ns - nearest_ns for n, delay_ns in delays.items()}
