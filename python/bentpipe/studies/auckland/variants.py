"""What the source does not give, changed one at a time in all cells alike."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from bentpipe.scenario.channels import DEFAULT_SIZES
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
        background = _background(data)
        background["sizes"] = [{"size": str(row.size), "weight": row.weight} for row in small]
        for size, here, beyond in zip(tail, above, [*above[1:], 0.0], strict=True):
            background["sizes"].append({"size": f"{size:.0f} B", "weight": round(here - beyond)})


@dataclass(frozen=True)
class _OneServer:
    """All downloads come from one server with this one-way delay."""

    delay: str

    def __call__(self, data: Data) -> None:
        _background(data)["servers"] = [{"name": "the server", "delay": self.delay}]


def _background(data: Data) -> Data:
    found = entry(data, BACKGROUND)
    assert found is not None
    return found


@dataclass(frozen=True)
class _TransferFrom:
    """The transfer comes from a server with this one-way delay."""

    delay: str

    def __call__(self, data: Data) -> None:
        (server,) = data["hosts"]["world"]
        server["delay"] = self.delay


@dataclass(frozen=True)
class _Tcp:
    """Hosts and PEP with another TCP."""

    tcp: Mapping[str, Any]

    def __call__(self, data: Data) -> None:
        for name in (BACKGROUND, TRANSFER):
            found = entry(data, name)
            assert found is not None
            found["tcp"] = {**found.get("tcp", {}), **self.tcp}
        for functions in data.get("gateways", {}).values():
            if "pep" in functions:
                functions["pep"] |= {"lan_tcp": self.tcp, "link_tcp": self.tcp}


@dataclass(frozen=True)
class _Threshold:
    """Repair while the queue holds less than this share of its limit."""

    percent: int

    def __call__(self, data: Data) -> None:
        for end, direction in (("hub", "forward"), ("terminal", "return")):
            limit_kb = queue_kb_of(data, direction)
            data["gateways"][end]["tunnel"]["threshold"] = f"{limit_kb * self.percent / 100:g} kB"


@dataclass(frozen=True)
class _Tunnel:
    """Both ends of the tunnel with other settings."""

    settings: Mapping[str, Any]

    def __call__(self, data: Data) -> None:
        for functions in data["gateways"].values():
            functions["tunnel"] |= self.settings


def _pep_at_both_ends(data: Data) -> None:
    if "gateways" in data:
        data["gateways"]["terminal"] = copy.deepcopy(data["gateways"]["hub"])


def _late_accept(data: Data) -> None:
    if "gateways" in data:
        data["gateways"]["hub"]["pep"]["early_accept"] = False


def _of_code(
    name: str, settings: Mapping[str, Any], paths: tuple[LinkPath, ...] = ONE_CODED
) -> Variant:
    return Variant(name, _Tunnel(settings), paths, of_code=True)


_TITRATED: Final = (LinkPath.TITRATED_10,)
# The defaults are a tenth of the queue, a round trip of 500 ms, and 100 ms for the order.
_QUEUE_SHARES: Final = (3, 50)
_HOLD_TIMES_MS: Final = (60, 125, 250)
_ORDER_HOLD_TIMES_MS: Final = (10, 600)
# Those that the claims about coding depend on most, for coded links as well.
_ALL: Final = (*UNCODED, *ONE_CODED)

VARIANTS: Final = (
    Variant("a lighter tail of sizes (shape 1.3)", _Tail(1.3), _ALL),
    Variant("a heavier tail of sizes (shape 0.9)", _Tail(0.9), _ALL),
    Variant("one server, 206 ms of round trip away", _OneServer(_MEAN_DELAY)),
    Variant("one server, at the hub", _OneServer("0 ms")),
    Variant("the transfer from the hub", _TransferFrom("0 ms")),
    Variant("the transfer from 390 ms of round trip away", _TransferFrom(_LONGEST_DELAY)),
    Variant("NewReno", _Tcp({"congestion_control": "newreno"})),
    Variant("BBR", _Tcp({"congestion_control": "bbr"}), _ALL),
    Variant("initial window of 3 segments", _Tcp({"initial_window": 3})),
    Variant("PEPs at both ends", _pep_at_both_ends),
    Variant("a PEP that accepts when the server has", _late_accept),
    *(_of_code(f"redundancy of {n} %", {"redundancy": f"{n} %"}) for n in (5, 40)),
    _of_code("adaptive redundancy", {"redundancy": "adaptive", "window_max": 1024}),
    *(_of_code(f"window of {n:,} symbols", {"window": n}) for n in (128, 1024)),
    *(
        Variant(f"repair below {n} % of the queue", _Threshold(n), _TITRATED, of_code=True)
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
