"""The cells of the study, and variants of what the source does not give."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any, Final

from bentpipe.scenario.schema import Scenario
from bentpipe.scenario.traffic import DEFAULT_SIZES
from bentpipe.studies.base.inputs import read_yaml
from bentpipe.units import value_of

SMALL_KB, LARGE_KB = QUEUES_KB = (120, 1000)
# 16 Mbit/s x 500 ms: a limit in bdp counts Ethernet bytes.
_BDP_KB: Final = 1000

# Of entries of `traffic`.
BACKGROUND, TRANSFER, PING = "channels", "iperf3", "ping"

Data = dict[str, Any]


class LinkPath(StrEnum):
    """What the gateways do: the name of a curve."""

    PLAIN = "plain"
    PEP = "PEP"
    CODED_10 = "coded 10 %"
    CODED_20 = "coded 20 %"
    TITRATED_10 = "titrated 10 %"
    TITRATED_20 = "titrated 20 %"


# The source gives no settings of its code. Redundancy: fixed, because titration is compared at
# equal redundancy; 20 % is the most that a tunnel adds by default, and half of it shows the
# direction. Window: 512 full packets are 0.4 s of the link, less than its round trip, and with a
# redundancy of 10 % they cover a burst of 51 lost packets. What is not set has the default of the
# scenario.
_WINDOW: Final = 512
TUNNELS: Final[Mapping[LinkPath, Data]] = {
    path: {"redundancy": redundancy, "window": _WINDOW, "titration": titration}
    for path, redundancy, titration in (
        (LinkPath.CODED_10, "10 %", "immediate"),
        (LinkPath.CODED_20, "20 %", "immediate"),
        (LinkPath.TITRATED_10, "10 %", "titrated"),
        (LinkPath.TITRATED_20, "20 %", "titrated"),
    )
}
UNCODED: Final = (LinkPath.PLAIN, LinkPath.PEP)
IMMEDIATE: Final = (LinkPath.CODED_10, LinkPath.CODED_20)
TITRATED: Final = (LinkPath.TITRATED_10, LinkPath.TITRATED_20)
CODED: Final = (*IMMEDIATE, *TITRATED)
# The coded curves of variants.
ONE_CODED: Final = (LinkPath.CODED_10, LinkPath.TITRATED_10)


@dataclass(frozen=True)
class Cell:
    """One cell: how many channels, which queue, and what the gateways do."""

    channels: int
    queue_kb: int
    path: LinkPath

    @property
    def labels(self) -> dict[str, str | int]:
        """What tells the cell from the others."""
        return {"queue_kB": self.queue_kb, "path": self.path.value, "channels": self.channels}

    @property
    def title(self) -> str:
        """The cell in words."""
        return f"{self.queue_kb:,} kB, {self.path.value}, {self.channels} channels"


@dataclass(frozen=True, kw_only=True)
class Loads:
    """The numbers of channels: of the main cells, and of those that are run less."""

    every: tuple[int, ...] = (0, 2, 5, 10, 20, 40, 60, 80, 100, 200)
    coded: tuple[int, ...] = (0, 20, 60, 80, 200)
    """A coded run takes five times as long as a plain one, so its curves have fewer points."""
    variants: tuple[int, ...] = (0, 5, 100)
    """A variant shows a direction: few of the numbers, and `MAX_VARIANT_RUNS`."""
    sweep: tuple[int, ...] = (80, 200)
    """Those of variants of the code, whose claims are about load."""
    mixed: int = 80
    """That of the cells in which half of the channels are not coded."""


LOADS: Final = Loads()
MAX_VARIANT_RUNS: Final = 3


@dataclass(frozen=True)
class Variant:
    """Another value for something that the source does not give.

    ``settings`` are values of a cell's scenario by path, as in `set_values`; ``change`` changes
    it in place after that. ``paths`` are the curves that are run with it. ``of_code``: it changes
    the tunnel alone, so that the other curves are as described.
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    paths: tuple[LinkPath, ...] = UNCODED
    of_code: bool = False
    change: Callable[[Data], None] = lambda _data: None


def cells(channels: Sequence[int], paths: Sequence[LinkPath]) -> tuple[Cell, ...]:
    """Return the cells with these numbers of channels and paths, for both queues."""
    return tuple(
        Cell(number, queue_kb, path)
        for number in channels
        for queue_kb in QUEUES_KB
        for path in paths
    )


def main_cells(loads: Loads = LOADS) -> tuple[Cell, ...]:
    """Return the cells of the figures."""
    return tuple(
        cell
        for number in loads.every
        for cell in cells((number,), (*UNCODED, *(CODED if number in loads.coded else ())))
    )


def entry(data: Mapping[str, Any], name: str) -> Data:
    """Return the entry of ``traffic`` with this name."""
    found: Data = next(each for each in data["traffic"] if each["name"] == name)
    return found


def set_values(data: Any, path: str, value: Any) -> None:
    """Set a value by path, in which ``*`` matches all parts; parts that are not there have none.

    Elements of a list are found by their ``name``. Settings are added to those that are there.
    """
    head, _, rest = path.partition(".")
    if isinstance(data, list):
        data = {str(each.get("name")): each for each in data}
    if rest:
        for name, part in data.items():
            if head in {name, "*"}:
                set_values(part, rest, value)
    else:
        data[head] = {**data.get(head, {}), **value} if isinstance(value, Mapping) else value


def scenario_of(cell: Cell, base: Data, variant: Variant) -> Scenario:
    """Return the complete scenario of a cell; its runs differ in the seed only."""
    data = copy.deepcopy(base)
    data["name"] = f"Auckland: {cell.title}"
    for direction in ("forward", "return"):
        data["link"][direction]["queue"]["limit"] = f"{cell.queue_kb / _BDP_KB:g} bdp"
    if cell.path is LinkPath.PEP:
        data["gateways"] = {"hub": {"pep": {"early_accept": True}}}
    elif cell.path in TUNNELS:
        # The order of delivery is a setting of the receiving end: both ends have the same.
        ends = ("hub", "terminal")
        data["gateways"] = {end: {"tunnel": dict(TUNNELS[cell.path])} for end in ends}
    entry(data, BACKGROUND)["channels"] = max(cell.channels, 1)
    for path, value in variant.settings.items():
        set_values(data, path, value)
    variant.change(data)
    if cell.channels == 0:
        data["traffic"] = [each for each in data["traffic"] if each["name"] != BACKGROUND]
    return Scenario.from_dict(data)


BASE: Final = Variant("as described")
# Smaller sizes are those of the source's traces.
_TAIL_FROM: Final = 10_000


def _change_tail(shape: float, data: Data) -> None:
    """Give the sizes from 10 kB on a tail of another shape; half of the downloads stay in it."""
    sizes = [float(value_of(row.size)) for row in DEFAULT_SIZES]
    small = [row for row, size in zip(DEFAULT_SIZES, sizes, strict=True) if size < _TAIL_FROM]
    tail = [size for size in sizes if size >= _TAIL_FROM]
    weight = sum(row.weight for row in small)
    # P(X >= x) at each size; the last one takes what is left.
    above = [weight * (size / _TAIL_FROM) ** -shape for size in tail]
    background = entry(data, BACKGROUND)
    background["sizes"] = [{"size": str(row.size), "weight": row.weight} for row in small]
    for size, here, beyond in zip(tail, above, [*above[1:], 0.0], strict=True):
        background["sizes"].append({"size": f"{size:.0f} B", "weight": round(here - beyond)})


def _change_threshold(percent: int, data: Data) -> None:
    for end, direction in (("hub", "forward"), ("terminal", "return")):
        limit: str = data["link"][direction]["queue"]["limit"]
        limit_kb = float(limit.removesuffix(" bdp")) * _BDP_KB
        data["gateways"][end]["tunnel"]["threshold"] = f"{limit_kb * percent / 100:g} kB"


_PATHS: Final = {
    "uncoded": UNCODED,
    "all": (*UNCODED, *ONE_CODED),
    "coded": ONE_CODED,
    "titrated": (LinkPath.TITRATED_10,),
}


def _variant(data: Data) -> Variant:
    paths, tcp = data.get("paths", "uncoded"), data.get("tcp", {})
    places = [f"traffic.{name}.tcp" for name in (BACKGROUND, TRANSFER)]
    places += [f"gateways.*.pep.{leg}_tcp" for leg in ("lan", "link")]
    settings = data.get("settings", {}) | (dict.fromkeys(places, tcp) if tcp else {})
    settings |= {"gateways.*.tunnel": data["tunnel"]} if "tunnel" in data else {}
    change: dict[str, Any] = {}
    if "tail" in data:
        change["change"] = partial(_change_tail, data["tail"])
    elif "threshold_percent" in data:
        change["change"] = partial(_change_threshold, data["threshold_percent"])
    return Variant(
        data["name"], settings, _PATHS[paths], of_code=paths in {"coded", "titrated"}, **change
    )


VARIANTS: Final = tuple(map(_variant, read_yaml("auckland", "variants.yaml")))
