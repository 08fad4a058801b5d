"""What the source does not give, changed one at a time in all cells alike."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from bentpipe.scenario.traffic import DEFAULT_SIZES
from bentpipe.studies.auckland.cells import (
    BACKGROUND,
    ONE_CODED,
    TRANSFER,
    UNCODED,
    Data,
    LinkPath,
    Variant,
    entry,
    queue_kb_of,
)
from bentpipe.units import value_of

BASE: Final = Variant("as described")
# The mean and the longest of the servers' round trips, one way.
_MEAN_DELAY, _LONGEST_DELAY = "103 ms", "195 ms"
# Smaller sizes are those of the source's traces.
_TAIL_FROM: Final = 10_000


@dataclass(frozen=True)
class _Tail:
    """Downloads whose tail from 10 kB on has another shape; half of them stay in it."""

    shape: float

    def __call__(self, data: Data) -> None:
        sizes = [float(value_of(row.size)) for row in DEFAULT_SIZES]
        small = [row for row, size in zip(DEFAULT_SIZES, sizes, strict=True) if size < _TAIL_FROM]
        tail = [size for size in sizes if size >= _TAIL_FROM]
        weight = sum(row.weight for row in small)
        # P(X >= x) at each size; the last one takes what is left.
        above = [weight * (size / _TAIL_FROM) ** -self.shape for size in tail]
        background = entry(data, BACKGROUND)
        background["sizes"] = [{"size": str(row.size), "weight": row.weight} for row in small]
        for size, here, beyond in zip(tail, above, [*above[1:], 0.0], strict=True):
            background["sizes"].append({"size": f"{size:.0f} B", "weight": round(here - beyond)})


@dataclass(frozen=True)
class _Threshold:
    """Repair while the queue holds less than this share of its limit."""

    percent: int

    def __call__(self, data: Data) -> None:
        for end, direction in (("hub", "forward"), ("terminal", "return")):
            limit_kb = queue_kb_of(data, direction)
            data["gateways"][end]["tunnel"]["threshold"] = f"{limit_kb * self.percent / 100:g} kB"


def _pep_at_both_ends(data: Data) -> None:
    if "gateways" in data:
        data["gateways"]["terminal"] = copy.deepcopy(data["gateways"]["hub"])


def _one_server(delay: str) -> Data:
    return {f"traffic.{BACKGROUND}.servers": [{"name": "the server", "delay": delay}]}


def _tcp(**tcp: Any) -> Data:
    """Return the settings of hosts and PEP with another TCP."""
    entries = {f"traffic.{name}.tcp": tcp for name in (BACKGROUND, TRANSFER)}
    return entries | {f"gateways.*.pep.{leg}_tcp": tcp for leg in ("lan", "link")}


def _of_code(
    name: str, settings: Mapping[str, Any], paths: tuple[LinkPath, ...] = ONE_CODED
) -> Variant:
    return Variant(name, {"gateways.*.tunnel": settings}, paths, of_code=True)


_TITRATED: Final = (LinkPath.TITRATED_10,)
# The defaults are a tenth of the queue, a round trip of 500 ms, and 100 ms for the order.
_QUEUE_SHARES: Final = (3, 50)
_HOLD_TIMES_MS: Final = (60, 125, 250)
_ORDER_HOLD_TIMES_MS: Final = (10, 600)
# Those that the claims about coding depend on most, for coded links as well.
_ALL: Final = (*UNCODED, *ONE_CODED)

VARIANTS: Final = (
    Variant("a lighter tail of sizes (shape 1.3)", paths=_ALL, change=_Tail(1.3)),
    Variant("a heavier tail of sizes (shape 0.9)", paths=_ALL, change=_Tail(0.9)),
    Variant("one server, 206 ms of round trip away", _one_server(_MEAN_DELAY)),
    Variant("one server, at the hub", _one_server("0 ms")),
    Variant("the transfer from the hub", {"hosts.world.*.delay": "0 ms"}),
    Variant("the transfer from 390 ms of round trip away", {"hosts.world.*.delay": _LONGEST_DELAY}),
    Variant("NewReno", _tcp(congestion_control="newreno")),
    Variant("BBR", _tcp(congestion_control="bbr"), _ALL),
    Variant("initial window of 3 segments", _tcp(initial_window=3)),
    Variant("PEPs at both ends", change=_pep_at_both_ends),
    Variant("a PEP that accepts when the server has", {"gateways.*.pep.early_accept": False}),
    *(_of_code(f"redundancy of {n} %", {"redundancy": f"{n} %"}) for n in (5, 40)),
    _of_code("adaptive redundancy", {"redundancy": "adaptive", "window_max": 1024}),
    *(_of_code(f"window of {n:,} symbols", {"window": n}) for n in (128, 1024)),
    *(
        Variant(
            f"repair below {n} % of the queue",
            paths=_TITRATED,
            of_code=True,
            change=_Threshold(n),
        )
        for n in _QUEUE_SHARES
    ),
    *(
        _of_code(f"repair held for {n} ms", {"hold_time": f"{n} ms"}, _TITRATED)
        for n in _HOLD_TIMES_MS
    ),
    _of_code("no order", {"order": False}),
    *(
        _of_code(f"order held for {n} ms", {"order_hold_time": f"{n} ms"})
        for n in _ORDER_HOLD_TIMES_MS
    ),
    _of_code("first 10 kB of flows uncoded", {"uncoded_first": "10 kB"}),
)
