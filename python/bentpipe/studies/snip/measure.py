"""The searches and runs of the study, and their results.

Nothing in this module reads a published figure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from bentpipe.plan.plan import Plan
from bentpipe.results.measures import rate_bps
from bentpipe.scenario.framings import frame_bits
from bentpipe.scenario.schema import Scenario
from bentpipe.simulation.many import Outcome
from bentpipe.simulation.no_drop import NoDropSearch
from bentpipe.simulation.search import max_trials
from bentpipe.studies.base.work import Work, jobs_of
from bentpipe.studies.snip.aggregation import (
    LoadPoint,
    Size,
    delay_ms,
    load_scenarios,
    loads_of,
    size_of,
)
from bentpipe.studies.snip.scenarios import (
    DUPLEX_PAYLOAD_BYTES,
    MODES,
    UDP_IP_HEADER_BYTES,
    Settings,
    aggregated_scenario,
    duplex_scenario,
    iperf_scenario,
    narrow_scenario,
    shared_scenario,
    table_scenario,
    tcp_scenario,
)
from bentpipe.units import NS_PER_S

# Ten seconds and 50 packets of buffer hide up to 0.2 % (at 2,570 packets a second).
RESOLUTION: Final = 0.0025
SMALL_PAYLOAD_BYTES: Final = 58

# What a run is for, or its hold time, and its parameter.
Key = tuple[str | int, int]


@dataclass(frozen=True, kw_only=True)
class Crossover:
    """The smallest datagram for which a narrow modem is the limit, in bytes at each layer."""

    payload_bytes: int
    ip_bytes: int
    link_bytes: float


@dataclass(frozen=True, kw_only=True)
class Duplex:
    """What each direction delivered of what both were offered, in packets a second."""

    offered_pps: int
    forward_pps: float
    return_pps: float

    @property
    def forward_percent(self) -> float:
        """The forward direction's share of what was delivered."""
        return 100 * self.forward_pps / (self.forward_pps + self.return_pps)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Everything that was measured; what Ctrl-C left out is None or missing.

    ``limits_pps`` are packets a second of both directions together by mode, ``tcp_bps`` the goodput
    by window in bytes, ``sharing`` the search by number of terminals.
    """

    table: NoDropSearch | None
    round_figure: NoDropSearch | None
    limits_pps: Mapping[str, float]
    crossover: Crossover | None
    sharing: Mapping[int, NoDropSearch]
    duplex: tuple[Duplex, ...]
    tcp_bps: Mapping[int, float]
    efficiency_percent: float | None
    one_way_delay_ms: float | None
    aggregated_sizes: tuple[Size, ...]
    loads: tuple[LoadPoint, ...]
    interrupted: bool


def measure(base: Mapping[str, Any], settings: Settings, work: Work) -> Measured:
    """Perform all searches and runs in a fixed order; after Ctrl-C return those that finished."""
    searches = _searches(base, settings)
    jobs, loads = _jobs(base, settings), load_scenarios(base, settings)
    # The ten sizes of the fine search are not known yet. The smallest sizes need the most trials.
    fine_step = settings.coarse_sizes[1] - settings.coarse_sizes[0]
    planned = [*searches.values(), (narrow_scenario(base), tuple(range(1, fine_step + 1)))]
    trials = sum(max_trials(scenario, sizes, RESOLUTION) for scenario, sizes in planned)
    work.total = trials + len(jobs) + len(loads)

    def run_each(scenarios: Mapping[Key, Scenario]) -> dict[Key, Outcome]:
        found = work.run({key: jobs_of(each, work.seeds(1)) for key, each in scenarios.items()})
        return {key: of_key[0] for key, of_key in found.items() if of_key}

    found = {name: work.search(*each, resolution=RESOLUTION) for name, each in searches.items()}
    fine = _fine_sizes(_complete(found["coarse"]))
    finest = work.search(narrow_scenario(base), fine, resolution=RESOLUTION) if fine else None
    runs, by_load = run_each(jobs), run_each(loads)
    tcp_bps = {window: _goodput_bps(run) for (what, window), run in runs.items() if what == "tcp"}
    fastest, probe = runs.get(("efficiency", 0)), runs.get(("delay", 0))
    modes = {mode: _complete(found[mode]) for mode in ("route", *MODES)}
    sharing = {n: _complete(found[f"shared {n}"]) for n in settings.terminals}
    plan = Plan.resolve(aggregated_scenario(base, settings.aggregated_duration)).data
    aggregated = _complete(found["aggregated"])
    return Measured(
        table=found["table"],
        round_figure=found["round figure"],
        limits_pps={
            mode: each.rates[0].aggregate_packets_per_second or 0.0
            for mode, each in modes.items()
            if each is not None
        },
        crossover=_crossover(base, _complete(finest)),
        sharing={n: each for n, each in sharing.items() if each is not None},
        duplex=tuple(_duplex(n, run) for (what, n), run in runs.items() if what == "duplex"),
        tcp_bps=tcp_bps,
        efficiency_percent=None if fastest is None else _efficiency_percent(fastest),
        one_way_delay_ms=None if probe is None else delay_ms(probe),
        aggregated_sizes=tuple(
            size_of(plan, size, found["table"], aggregated) for size in settings.aggregated_sizes
        ),
        loads=loads_of(by_load),
        interrupted=work.interrupted,
    )


def _searches(
    base: Mapping[str, Any], settings: Settings
) -> dict[str, tuple[Scenario, tuple[int, ...]]]:
    small, medium = (SMALL_PAYLOAD_BYTES,), (DUPLEX_PAYLOAD_BYTES,)
    aggregated = aggregated_scenario(base, settings.aggregated_duration)
    return {
        "table": (table_scenario(base), settings.sizes),
        "round figure": (table_scenario(base, mode="route"), settings.sizes),
        "route": (duplex_scenario(base), small),
        **{mode: (duplex_scenario(base, mode), small) for mode in MODES},
        **{f"shared {n}": (shared_scenario(base, n), medium) for n in settings.terminals},
        "coarse": (narrow_scenario(base), settings.coarse_sizes),
        "aggregated": (aggregated, settings.aggregated_sizes),
    }


def _jobs(base: Mapping[str, Any], settings: Settings) -> dict[Key, Scenario]:
    """Return the other runs: iperf in both directions, TCP by window, and one for the delay."""
    largest, duration = settings.windows_bytes[-1], settings.tcp_duration
    scenarios: dict[Key, Scenario] = {}
    for pps in settings.offered_pps:
        rate = 8 * DUPLEX_PAYLOAD_BYTES * pps
        scenarios["duplex", pps] = iperf_scenario(duplex_scenario(base), DUPLEX_PAYLOAD_BYTES, rate)
    for window_bytes in settings.windows_bytes:
        scenarios["tcp", window_bytes] = tcp_scenario(base, window_bytes, duration)
    scenarios["efficiency", 0] = tcp_scenario(base, largest, duration, delay="0 ms")
    scenarios["delay", 0] = table_scenario(base)
    return scenarios


def _complete(found: NoDropSearch | None) -> NoDropSearch | None:
    return None if found is None or found.interrupted else found


def _fine_sizes(coarse: NoDropSearch | None) -> tuple[int, ...]:
    """Return the sizes from the last one limited by the packet rate to the first by the channel.

    The former is excluded; none if the coarse search did not find both.
    """
    for small, large in pairwise(() if coarse is None else coarse.rates):
        if large.first_loss is not None and large.first_loss.limit == "channel":
            return tuple(range(small.payload_bytes + 1, large.payload_bytes + 1))
    return ()


def _crossover(base: Mapping[str, Any], fine: NoDropSearch | None) -> Crossover | None:
    framing = Plan.resolve(narrow_scenario(base)).data["directions"][0]["framing"]
    for each in () if fine is None else fine.rates:
        if each.first_loss is not None and each.first_loss.limit == "channel":
            ip_bytes = each.payload_bytes + UDP_IP_HEADER_BYTES
            return Crossover(
                payload_bytes=each.payload_bytes,
                ip_bytes=ip_bytes,
                link_bytes=frame_bits(framing, ip_bytes) / 8,
            )
    return None


def _duplex(offered_pps: int, run: Outcome) -> Duplex:
    # The rate over the duration of sending, as iperf reports it.
    seconds = run.job.plan.data["flows"][0]["workload"]["duration_ns"] / NS_PER_S
    there, back = run.column("flows", "received_segments") / seconds
    return Duplex(offered_pps=offered_pps, forward_pps=float(there), return_pps=float(back))


def _goodput_bps(run: Outcome) -> float:
    delivered_bytes = run.column("flows", "delivered_bytes")[0]
    return float(rate_bps(delivered_bytes, run.job.plan.data["stop_ns"]))


def _efficiency_percent(run: Outcome) -> float:
    return 100 * _goodput_bps(run) / int(run.job.plan.data["directions"][0]["rate_bps"]["value"])
