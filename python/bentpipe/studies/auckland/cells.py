"""The cells of the study, and variants of what the source does not give."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any, Final

from bentpipe.results import Result
from bentpipe.scenario import DEFAULT_SIZES, Scenario
from bentpipe.simulation import Outcome
from bentpipe.studies.auckland.runs import (
    BACKGROUND,
    OTHERS,
    TRANSFER,
    figures,
    halves,
    real_figures,
)
from bentpipe.studies.base.inputs import read_scenario, read_yaml
from bentpipe.studies.base.real_time import RealCell
from bentpipe.units import value_of

SMALL_KB, LARGE_KB = QUEUES_KB = (120, 1000)
# 16 Mbit/s x 500 ms: a limit in bdp counts Ethernet bytes.
_BDP_KB: Final = 1000

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


@dataclass(frozen=True, kw_only=True)
class Loads:
    """The numbers of channels, as in loads.yaml."""

    every: Sequence[int]
    coded: Sequence[int]
    variants: Sequence[int]
    sweep: Sequence[int]
    mixed: int


LOADS: Final = Loads(**read_yaml("auckland", "loads.yaml"))
MAX_VARIANT_RUNS: Final = 3
MAX_MIXED_RUNS: Final = 5


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


def entry(data: Mapping[str, Any], name: str) -> Data:
    """Return the entry of ``traffic`` with this name."""
    named: Data = next(traffic for traffic in data["traffic"] if traffic["name"] == name)
    return named


def set_values(data: Any, path: str, value: Any) -> None:
    """Set a value by path, in which ``*`` matches all parts.

    Nothing is set if a part before the last one is missing. Elements of a list are found
    by their ``name``. Settings are added to those that are there.
    """
    head, _, rest = path.partition(".")
    if isinstance(data, list):
        data = {str(element.get("name")): element for element in data}
    if rest:
        for name, part in data.items():
            if head in {name, "*"}:
                set_values(part, rest, value)
    else:
        data[head] = {**data.get(head, {}), **value} if isinstance(value, Mapping) else value


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
MIXED_PATHS: Final = (LinkPath.PLAIN, *CODED)
# Classes of the halves; a drop-tail queue ignores them.
_CODED_CLASS, _UNCODED_CLASS = 0, 1


def _halve(data: Data) -> None:
    background = entry(data, BACKGROUND)
    channels = background["channels"]
    background["channels"] = channels - channels // 2
    others = {"name": OTHERS, "channels": channels // 2, "priority": _UNCODED_CLASS}
    data["traffic"].append({**background, **others})
    for functions in data.get("gateways", {}).values():
        functions["tunnel"]["classes"] = [_CODED_CLASS]


HALVED: Final = Variant("half of the channels uncoded", paths=MIXED_PATHS, change=_halve)
SAMPLED: Final = Variant(
    "sampled each second", change=lambda data: data.update(sample_interval="1 s")
)
_BY_NAME: Final = {variant.name: variant for variant in (BASE, HALVED, SAMPLED, *VARIANTS)}

# In real time: besides its duration the lab, its gateways and the programs start, and the last
# packets arrive. A lab with a hundred channels takes a quarter of a processor, but in bursts that
# make labs beside it late: two run at a time by default.
_OVERHEAD_S: Final = 4.0
_LOAD: Final = 2.0
_SERVER_RATE: Final = "100 Mbit/s"


@dataclass(frozen=True)
class Cell(RealCell):
    """One cell: how many channels, which queue, and what the gateways do.

    ``seconds`` is the duration of a run in real time, 0 for that of the study.
    """

    channels: int
    queue_kb: int
    path: LinkPath
    variant: str = BASE.name
    seconds: float = 0.0

    @property
    def labels(self) -> dict[str, str | int]:
        """What tells the cell from the others."""
        return {"queue_kB": self.queue_kb, "path": self.path.value, "channels": self.channels}

    @property
    def title(self) -> str:
        """The cell in words."""
        return f"{self.queue_kb:,} kB, {self.path.value}, {self.channels} channels"

    @property
    def key(self) -> str:
        """The name on the command line."""
        return f"{self.channels}:{self.queue_kb}:{self.path.value}"

    @property
    def is_stochastic(self) -> bool:
        """Return True: servers, sizes and starts are drawn."""
        return True

    @property
    def expected_s(self) -> float:
        """The time of a run in real time."""
        return self.seconds + _OVERHEAD_S

    @property
    def load(self) -> float:
        """The share of a processor of a run in real time."""
        return _LOAD

    def scenario(self) -> Scenario:
        """Return the complete scenario; its runs differ in the seed only."""
        data, variant = configuration(self.seconds), _BY_NAME[self.variant]
        data["name"] = f"Auckland: {self.title}"
        for direction in ("forward", "return"):
            data["link"][direction]["queue"]["limit"] = f"{self.queue_kb / _BDP_KB:g} bdp"
        if self.path is LinkPath.PEP:
            data["gateways"] = {"hub": {"pep": {"early_accept": True}}}
        elif self.path in TUNNELS:
            # The order of delivery is a setting of the receiving end: both ends have the same.
            ends = ("hub", "terminal")
            data["gateways"] = {end: {"tunnel": dict(TUNNELS[self.path])} for end in ends}
        entry(data, BACKGROUND)["channels"] = max(self.channels, 1)
        for path, value in variant.settings.items():
            set_values(data, path, value)
        variant.change(data)
        if self.channels == 0:
            data["traffic"] = [
                traffic for traffic in data["traffic"] if traffic["name"] != BACKGROUND
            ]
        return Scenario.from_dict(data)

    def figures(self, outcome: Outcome) -> Mapping[str, float | None]:
        """Return the figures of a simulated run."""
        if self.seconds:
            return super().figures(outcome)
        return halves(outcome) if self.variant == HALVED.name else figures(outcome)

    def measure(self, result: Result) -> Mapping[str, float | None]:
        """Return the figures that both engines have."""
        return real_figures(result)


def configuration(seconds: float = 0.0) -> Data:
    """Return the configuration of all cells, for real time with this duration.

    The transfer is then in the middle half. Its server has a line with a rate: without one it sends
    whole windows to a PEP at one instant, which no machine relays in time.
    """
    data = read_scenario("auckland")
    if seconds:
        set_values(data, "hosts.world.*.rate", _SERVER_RATE)
        transfer = {"start": f"{seconds / 4:g} s", "duration": f"{seconds / 2:g} s"}
        entry(data, TRANSFER).update(transfer)
        # The goodput of the transfer is read from samples.
        data |= {"duration": f"{seconds:g} s", "sample_interval": "1 s"}
    return data


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


def variant_cells(variant: Variant, loads: Loads) -> list[Cell]:
    """Return the cells of a variant; one that changes the tunnel alone has no uncoded cells."""
    coded = tuple(path for path in variant.paths if path in CODED)
    of_variant = list(cells(loads.sweep, coded))
    if not variant.of_code:
        of_variant += cells(sorted({*loads.variants, *(loads.sweep if coded else ())}), UNCODED)
    return of_variant
