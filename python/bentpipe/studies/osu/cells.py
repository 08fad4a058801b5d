"""The cells of the study, the variants of its sensitivity analysis, and their figures."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Final

import numpy as np

from bentpipe.results import jain
from bentpipe.scenario import Scenario
from bentpipe.simulation import Outcome
from bentpipe.studies.base import work
from bentpipe.studies.base.comparison import Array, Measurement, Samples
from bentpipe.studies.base.inputs import Provenance, read_scenario, read_yaml
from bentpipe.units import NS_PER_MS, NS_PER_S, parse_rate

KS: Final = (-1, 0, 1, 2, 3, 4, 5, 6)
SELECTIVE, DROP_TAIL = DISCIPLINES = ("selective_drop", "drop_tail")

# On each side of the satellite, one way.
_ACCESS_MS: Final = 5
_CELL_BITS: Final = 8 * 53
# Slow start from one segment and what it loses are over by then, in all but the smallest buffers.
WARM_UP_S: Final = 20


@dataclass(frozen=True)
class Route:
    """One scenario of the source: the satellite's delay, the segments, the numbers of sources."""

    one_way_ms: int
    mss_bytes: int
    sources: tuple[int, ...]

    @property
    def rtt_ms(self) -> int:
        """The round trip without queues: satellite and access links, there and back."""
        return 2 * (self.one_way_ms + 2 * _ACCESS_MS)


LEO_SINGLE, GEO = "LEO single hop", "GEO single hop"
# The source lists 50 ms for the multiple hop and draws 100 ms: both are here.
ROUTES: Final[Mapping[str, Route]] = {
    LEO_SINGLE: Route(5, 1024, (15, 50, 100)),
    "LEO multiple hop, 50 ms": Route(50, 9180, (5, 15, 50)),
    "LEO multiple hop, 100 ms": Route(100, 9180, (5, 15, 50)),
    GEO: Route(275, 9180, (5, 15, 50)),
}


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A change to the configuration, in all cells alike."""

    name: str
    tcp: Mapping[str, Any] = field(default_factory=dict)
    queue: Mapping[str, Any] = field(default_factory=dict)
    start_within_ms: int = 1000
    duration_s: int = 100


# A variant shows a direction: three runs of the cells with 1/2 and 1/8 round trip are enough.
MAX_VARIANT_RUNS: Final = 3
VARIANT_KS: Final = (1, 3)

BASE: Final = Variant(name="as described")
VARIANTS: Final = tuple(Variant(**settings) for settings in read_yaml("osu", "variants.yaml"))
_BY_NAME: Final = {variant.name: variant for variant in (BASE, *VARIANTS)}


@dataclass(frozen=True)
class Cell(work.Cell):
    """One cell: a route, its sources, and a buffer of 2^-k round trips under a discipline."""

    route_name: str
    sources: int
    k: int
    discipline: str = SELECTIVE
    variant_name: str = BASE.name

    @property
    def labels(self) -> dict[str, str | int]:
        """What tells the cell from the others of its variant."""
        return {
            "scenario": self.route_name,
            "sources": self.sources,
            "k": self.k,
            "discipline": self.discipline,
        }

    @property
    def route(self) -> Route:
        """The delay and the segments of the cell."""
        return ROUTES[self.route_name]

    @property
    def variant(self) -> Variant:
        """The change to the configuration."""
        return _BY_NAME[self.variant_name]

    @property
    def stagger(self) -> tuple[str, int]:
        """Sources start at times drawn from the seed, evenly over the first second."""
        return "source", self.variant.start_within_ms * NS_PER_MS

    @property
    def buffer_rtt(self) -> float:
        """The buffer in round trips at the link's rate."""
        return 2.0**-self.k

    @property
    def title(self) -> str:
        """The cell in words."""
        other = "" if self.discipline == SELECTIVE else ", drop-tail"
        return f"{self.route_name}, {self.sources} sources, k = {self.k}{other}"

    @property
    def provenance(self) -> Provenance:
        """What the agreement of the cell is worth.

        The claims on the curves called predicted hold with another value of each calibrated input,
        too: efficiency over the whole run instead of after the warm-up, and windows that grow by
        bytes instead of for each ACK. On the other curves one of them changes an outcome.
        """
        many = max(ROUTES[GEO].sources)
        is_robust = self.route_name == LEO_SINGLE or (
            self.route_name != GEO and self.sources == many
        )
        return Provenance.PREDICTED if is_robust else Provenance.CALIBRATED

    @property
    def buffer_cells(self) -> int:
        """Round trip x rate x 2^-k in cells, rounded to the nearest."""
        rate_bps = parse_rate(read_scenario("osu")["link"]["forward"]["rate"])
        return round(rate_bps * self.route.rtt_ms / 1000 * self.buffer_rtt / _CELL_BITS)

    def scenario(self) -> Scenario:
        """Return the complete scenario; a run has other starts."""
        data, variant = read_scenario("osu"), self.variant
        data |= {"name": f"OSU: {self.title}", "duration": f"{variant.duration_s} s"}
        for direction in data["link"].values():
            direction["delay"] = f"{self.route.rtt_ms // 2} ms"
        forward = data["link"]["forward"]
        if self.discipline == DROP_TAIL:
            forward["queue"] = {"discipline": DROP_TAIL}
        forward["queue"] |= {"limit": f"{self.buffer_cells} cells", **variant.queue}
        (source,) = data["traffic"]
        source["tcp"] |= {"mss": f"{self.route.mss_bytes} B", **variant.tcp}
        source["duration"] = data["duration"]
        data["traffic"] = [
            {**copy.deepcopy(source), "name": f"source-{i}"} for i in range(1, self.sources + 1)
        ]
        return Scenario.from_dict(data)

    def figures(self, outcome: Outcome) -> dict[str, float]:
        """Return the figures of a run: efficiencies in percent, fairness as Jain's index."""
        plan = outcome.job.plan.data
        warm_up_ns = WARM_UP_S * NS_PER_S
        stop_ns = plan["stop_ns"]
        largest_bps = work.largest_goodput_bps(plan, plan["flows"][0])
        delivered_bytes = outcome.column("flows", "delivered_bytes").astype(np.float64)
        is_warm = outcome.column("flow_samples", "time_ns") == warm_up_ns
        warm = outcome.column("flow_samples", "flow")[is_warm]
        late_bytes = delivered_bytes.copy()
        late_bytes[warm] -= outcome.column("flow_samples", "delivered_bytes")[is_warm]

        def efficiency(size_bytes: Array, elapsed_ns: int) -> float:
            goodput_bps = float(size_bytes.sum()) * 8 * NS_PER_S / elapsed_ns
            return 100 * goodput_bps / largest_bps

        return {
            "efficiency": efficiency(late_bytes, stop_ns - warm_up_ns),
            "efficiency_whole_run": efficiency(delivered_bytes, stop_ns),
            "fairness": jain(delivered_bytes),
            "fairness_after_warm_up": jain(late_bytes),
            "recoveries_per_source": float(outcome.column("flows", "fast_recoveries").mean()),
            "timeouts_per_source": float(outcome.column("flows", "timeouts").mean()),
        }


def cells() -> tuple[Cell, ...]:
    """Return all cells, in the order of the source."""
    return tuple(
        Cell(name, sources, k, discipline)
        for name, route in ROUTES.items()
        for sources in route.sources
        for k in KS
        for discipline in DISCIPLINES
    )


def mean_over(cells: Sequence[Measurement], figure: str) -> Samples:
    """Return the mean of a figure over cells, for each seed that all that ran have."""
    runs = [values for measurement in cells if (values := measurement.by_seed(figure))]
    seeds = [seed for seed in runs[0] if all(seed in by_seed for by_seed in runs)] if runs else []
    return Samples.of(fmean(by_seed[seed] for by_seed in runs) for seed in seeds)


def lowest(cells: Sequence[Measurement], figure: str) -> float | None:
    """Return the lowest mean of a figure over cells."""
    means = (measurement[figure].mean for measurement in cells)
    return min((mean for mean in means if mean is not None), default=None)
