"""The cells of the study, and variants of what the source does not give."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any, Final

from bentpipe.results import Result
from bentpipe.scenario import Scenario
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

SMALL_KB, LARGE_KB = QUEUES_KB = (120, 1000)
# 16 Mbit/s x 500 ms: a limit in bdp counts Ethernet bytes.
_BDP_KB: Final = 1000

Data = dict[str, Any]


class LinkPath(StrEnum):
    """What the gateways do: the name of a curve."""

    PLAIN = "plain"
    PEP = "PEP"
    AT_ONCE = "coded at once"
    CODED = "coded"
    TITRATED_10 = "titrated 10 %"
    TITRATED_20 = "titrated 20 %"
    ON_OVERFLOW = "on overflow"


# The source gives no settings of its code, but how it developed: at first repair was sent at once,
# then it was delayed and small flows went uncoded, then it was titrated. The redundancy is fixed,
# because titration is compared at equal redundancy; 20 % is the most that a tunnel adds by default.
# Window: 512 full packets are 0.4 s of the link, less than its round trip. What is not set has the
# default of the scenario. "On overflow" is no curve of the source: it is what
# docs/model/tunnel-policies.md recommends where the hub sees all traffic of the queue.
_WINDOW: Final = 512
_FIRST: Final = "15 kB"


def _both_ends(redundancy: str, **settings: str) -> tuple[Data, Data]:
    """Return the same tunnel for hub and terminal: the receiving end has the order of delivery."""
    tunnel = {"redundancy": redundancy, "window": _WINDOW, **settings}
    return tunnel, dict(tunnel)


# The settings at the hub and at the terminal.
TUNNELS: Final[Mapping[LinkPath, tuple[Data, Data]]] = {
    LinkPath.AT_ONCE: _both_ends("20 %", titration="immediate"),
    LinkPath.CODED: _both_ends("20 %", titration="delayed", delay="100 ms", uncoded_first=_FIRST),
    LinkPath.TITRATED_10: _both_ends("10 %", titration="titrated", uncoded_first=_FIRST),
    LinkPath.TITRATED_20: _both_ends("20 %", titration="titrated", uncoded_first=_FIRST),
    LinkPath.ON_OVERFLOW: (
        {"redundancy": "1 %", "overflow_repairs": 1, "uncoded_first": _FIRST},
        {
            "redundancy": "5 %",
            "titration": "immediate",
            "order_hold_time": "250 ms",
            # 1.25 times the rate of the link.
            "order_pace": "20 Mbit/s",
        },
    ),
}
UNCODED: Final = (LinkPath.PLAIN, LinkPath.PEP)


@dataclass(frozen=True, kw_only=True)
class Loads:
    """The numbers of channels, as in loads.yaml."""

    every: Sequence[int]
    variants: Sequence[int]
    mixed: int


LOADS: Final = Loads(**read_yaml("auckland", "loads.yaml"))
MAX_VARIANT_RUNS: Final = 3
MAX_MIXED_RUNS: Final = 3
# An uncoded run beside few channels takes a tenth of a second, and its transfer varies most.
_FEW_CHANNELS: Final = 20
MORE_RUNS: Final = 5


@dataclass(frozen=True)
class Variant:
    """Another value for something that the source does not give.

    ``settings`` are values of a cell's scenario by path, as in `set_values`; ``change`` changes
    it in place after that. ``paths`` are the curves that are run with it; the others are as
    described. With other sizes as many channels are another load: there are ``channels_times`` as
    many as the cell says.
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    paths: tuple[LinkPath, ...] = UNCODED
    channels_times: int = 1
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


def _default_sizes(data: Data) -> None:
    """Give channels the sizes that they have in scenarios without others."""
    del entry(data, BACKGROUND)["sizes"]


def _change_threshold(percent: int, data: Data) -> None:
    for end, direction in (("hub", "forward"), ("terminal", "return")):
        limit: str = data["link"][direction]["queue"]["limit"]
        limit_kb = float(limit.removesuffix(" bdp")) * _BDP_KB
        data["gateways"][end]["tunnel"]["threshold"] = f"{limit_kb * percent / 100:g} kB"


# Groups of curves, as variants.yaml names them.
_PATHS: Final[Mapping[str, tuple[LinkPath, ...]]] = {
    "uncoded": UNCODED,
    "all": tuple(LinkPath),
    "PEP": (LinkPath.PEP,),
    "coded": (LinkPath.CODED, LinkPath.TITRATED_20),
    "delayed": (LinkPath.CODED,),
    "titrated": (LinkPath.TITRATED_20,),
}


def _variant(data: Data) -> Variant:
    tcp = data.get("tcp", {})
    places = [f"traffic.{name}.tcp" for name in (BACKGROUND, TRANSFER)]
    places += [f"gateways.*.pep.{leg}_tcp" for leg in ("lan", "link")]
    settings = data.get("settings", {}) | (dict.fromkeys(places, tcp) if tcp else {})
    settings |= {"gateways.*.tunnel": data["tunnel"]} if "tunnel" in data else {}
    change: dict[str, Any] = {}
    if data.get("default_sizes"):
        change["change"] = _default_sizes
    elif "threshold_percent" in data:
        change["change"] = partial(_change_threshold, data["threshold_percent"])
    return Variant(
        data["name"],
        settings,
        _PATHS[data.get("paths", "uncoded")],
        channels_times=data.get("channels_times", 1),
        **change,
    )


VARIANTS: Final = tuple(map(_variant, read_yaml("auckland", "variants.yaml")))
MIXED_PATHS: Final = (LinkPath.PLAIN, *TUNNELS)
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
# packets arrive.
_OVERHEAD_S: Final = 4.0
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
    # Servers, sizes and starts are drawn.
    is_stochastic = True

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
    def expected_s(self) -> float:
        """The time of a run in real time."""
        return self.seconds + _OVERHEAD_S

    def scenario(self) -> Scenario:
        """Return the complete scenario; its runs differ in the seed only."""
        data, variant = configuration(self.seconds), _BY_NAME[self.variant]
        data["name"] = f"Auckland: {self.title}"
        for direction in ("forward", "return"):
            data["link"][direction]["queue"]["limit"] = f"{self.queue_kb / _BDP_KB:g} bdp"
        if self.path is LinkPath.PEP:
            data["gateways"] = {"hub": {"pep": {"early_accept": True}}}
        elif self.path in TUNNELS:
            ends = zip(("hub", "terminal"), TUNNELS[self.path], strict=True)
            data["gateways"] = {end: {"tunnel": dict(tunnel)} for end, tunnel in ends}
        entry(data, BACKGROUND)["channels"] = max(self.channels, 1) * variant.channels_times
        for path, value in variant.settings.items():
            set_values(data, path, value)
        variant.change(data)
        if self.channels == 0:
            data["traffic"].remove(entry(data, BACKGROUND))
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


def cells(channels: Sequence[int], paths: Iterable[LinkPath] = LinkPath) -> tuple[Cell, ...]:
    """Return the cells with these numbers of channels and paths, for both queues."""
    return tuple(
        Cell(number, queue_kb, path)
        for number in channels
        for queue_kb in QUEUES_KB
        for path in paths
    )


def runs_of(cell: Cell, runs: int) -> int:
    """Return how many runs a cell has where most have ``runs``."""
    is_cheap = cell.path in UNCODED and cell.channels <= _FEW_CHANNELS
    return runs * MORE_RUNS if is_cheap else runs
