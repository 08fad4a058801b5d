"""What the study measures: every scenario, derived from one file, and what its runs give.

Nothing here knows a published figure.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from bentpipe.plan.resolver import from_dict, load, resolve
from bentpipe.results.metrics import rate_bps
from bentpipe.scenario.framings import frame_bits
from bentpipe.scenario.schema import Scenario
from bentpipe.simulation.many import Job, Outcome, run_many
from bentpipe.simulation.no_drop import NoDropSearch
from bentpipe.simulation.search import max_trials, no_drop_rate
from bentpipe.studies.snip._aggregation import (
    AGGREGATED_SIZES,
    Aggregation,
    aggregated_scenario,
    aggregation,
    load_jobs,
)
from bentpipe.units import parse_duration

# The payloads of the table.
SIZES: Final = (58, 68, 82, 100, 138, 178, 200, 218, 300, 400, 500, 700, 800, 1000, 1400)
# Ten seconds and 50 packets of buffer hide up to 0.2 % (at 2,570 packets a second).
RESOLUTION: Final = 0.0025

# The modes' own rates (`scenario.gateways.PROCESSOR_RATES`) take the place of the calibrated one.
MODES: Final = ("bridge", "pass-thru")
SMALL_PAYLOAD: Final = 58
# Packets a second that each direction is offered with iperf -d, 200 bytes each.
OFFERED: Final = (1000, 2000, 3000, 4000, 5000, 6000, 7000)
OVERLOAD: Final = 5000
_DUPLEX_PAYLOAD: Final = 200

# Receive windows between 8 and 64 KB, as hosts had them without being tuned: six and twelve full
# segments, multiples of 8 KiB, and 65,535 bytes, the most without the window scale option.
WINDOWS: Final = (8_760, 16_384, 17_520, 24_576, 32_768, 49_152, 57_344, 65_535)
LARGEST_WINDOW: Final = WINDOWS[-1]
# Long against the start, which takes up to ten round trips of half a second.
TCP_DURATION: Final = "60 s"

NARROW_RATE: Final = "4 Mbit/s"
_COARSE_STEP: Final = 10
_COARSE_SIZES: Final = tuple(range(20, 101, _COARSE_STEP))
_UDP_IP_HEADER_BYTES: Final = 28

TERMINALS: Final = (1, 2, 4, 8)

_NS_PER_MS: Final = 1e6
_HERE: Final = Path(__file__).parent


@dataclass(frozen=True, kw_only=True)
class Crossover:
    """The smallest datagram for which a narrow modem is the limit, in bytes at each layer."""

    payload_bytes: int
    ip_bytes: int
    link_bytes: float


@dataclass(frozen=True, kw_only=True)
class Duplex:
    """What each direction delivered of what both were offered, in packets a second."""

    offered: int
    forward: float
    backward: float

    @property
    def split_percent(self) -> float:
        """The forward direction's share of what was delivered."""
        return 100 * self.forward / (self.forward + self.backward)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Everything that was measured; what Ctrl-C left out is None or missing.

    ``limits`` are joint packets a second of both directions by mode, ``tcp_bps`` the goodput by
    window, ``sharing`` the search by number of terminals.
    """

    table: NoDropSearch | None
    round_figure: NoDropSearch | None
    limits: Mapping[str, float]
    crossover: Crossover | None
    sharing: Mapping[int, NoDropSearch]
    duplex: tuple[Duplex, ...]
    tcp_bps: Mapping[int, float]
    efficiency_percent: float | None
    one_way_delay_ms: float | None
    aggregation: Aggregation
    interrupted: bool


def base_scenario() -> dict[str, Any]:
    """Return the scenario of the table as plain data."""
    return load(_HERE / "scenario.yaml").to_dict()


def table_scenario(base: Mapping[str, Any], *, calibrated: bool = True) -> Scenario:
    """Return the scenario of the table, or the same with the round packet rate of the mode."""
    return _changed(base, lambda data: None if calibrated else _set_mode(data, "route"))


def duplex_scenario(base: Mapping[str, Any], mode: str | None = None) -> Scenario:
    """Return the scenario with iperf both ways, with the processor of the table or of a mode."""

    def change(data: dict[str, Any]) -> None:
        data["traffic"][0]["direction"] = "both"
        if mode is not None:
            _set_mode(data, mode)

    return _changed(base, change)


def narrow_scenario(base: Mapping[str, Any]) -> Scenario:
    """Return the scenario with a modem of 4 Mbit/s."""

    def change(data: dict[str, Any]) -> None:
        for direction in ("forward", "return"):
            data["link"][direction]["rate"] = NARROW_RATE

    return _changed(base, change)


def shared_scenario(base: Mapping[str, Any], terminals: int) -> Scenario:
    """Return the scenario with one flow to each of so many terminals, all through one hub."""

    def change(data: dict[str, Any]) -> None:
        data["link"]["terminals"] = terminals
        data["traffic"][0]["terminal"] = "all"

    return _changed(base, change)


def tcp_scenario(base: Mapping[str, Any], window_bytes: int, delay: str | None = None) -> Scenario:
    """Return the scenario with one TCP transfer of a bsd-1997 host, over the hop or a delay."""

    def change(data: dict[str, Any]) -> None:
        if delay is not None:
            for direction in ("forward", "return"):
                data["link"][direction]["delay"] = delay
        data["duration"] = TCP_DURATION
        data["traffic"] = [
            {
                "kind": "bulk",
                "direction": "forward",
                "duration": TCP_DURATION,
                "profile": "bsd-1997",
                "tcp": {"receive_buffer": f"{window_bytes} B", "window_scaling": False},
            }
        ]

    return _changed(base, change)


def measure(
    base: Mapping[str, Any],
    *,
    seed: int,
    threads: int | None,
    progress: Callable[[int, int], None] | None,
) -> Measured:
    """Make every search and run, in a fixed order; after Ctrl-C return what was finished."""
    searches = {
        "table": (table_scenario(base), SIZES),
        "round figure": (table_scenario(base, calibrated=False), SIZES),
        "route": (duplex_scenario(base), (SMALL_PAYLOAD,)),
        **{mode: (duplex_scenario(base, mode), (SMALL_PAYLOAD,)) for mode in MODES},
        **{f"shared {n}": (shared_scenario(base, n), (_DUPLEX_PAYLOAD,)) for n in TERMINALS},
        "coarse": (narrow_scenario(base), _COARSE_SIZES),
        "aggregated": (aggregated_scenario(base), AGGREGATED_SIZES),
    }
    jobs, loads = _jobs(base, seed), load_jobs(base, seed)
    # Which ten sizes are searched finely is not known yet; the smallest take the most trials.
    planned = [*searches.values(), (narrow_scenario(base), range(1, _COARSE_STEP + 1))]
    trials = sum(max_trials(scenario, sizes, RESOLUTION) for scenario, sizes in planned)
    work = _Work(seed, threads, progress, total=trials + len(jobs) + len(loads))
    found = {name: work.search(*searched) for name, searched in searches.items()}
    fine = _fine_sizes(found["coarse"])
    crossover = _crossover(base, work.search(narrow_scenario(base), fine) if fine else None)
    outcomes = dict(zip(jobs, work.run(list(jobs.values())), strict=True))
    by_load = dict(zip(loads, work.run(list(loads.values())), strict=True))
    shared = aggregation(base, found["aggregated"], by_load)
    return _measured(found, crossover, outcomes, shared, interrupted=work.interrupted)


# --- the work -----------------------------------------------------------------------------------

# What a run is for, and its parameter.
_Key = tuple[str, int]


class _Work:
    """Makes searches and runs one after the other, and counts them for one progress bar."""

    def __init__(
        self,
        seed: int,
        threads: int | None,
        progress: Callable[[int, int], None] | None,
        total: int,
    ) -> None:
        self.interrupted = False
        self._seed = seed
        self._threads = threads
        self._progress = progress
        self._total = total
        self._done = 0

    def search(self, scenario: Scenario, sizes: Sequence[int]) -> NoDropSearch | None:
        if self.interrupted:
            return None
        steps = max_trials(scenario, sizes, RESOLUTION)
        found = no_drop_rate(
            scenario,
            sizes,
            resolution=RESOLUTION,
            seed=self._seed,
            threads=self._threads,
            progress=self._count,
        )
        self._done += steps
        self.interrupted = found.interrupted
        return found

    def run(self, jobs: Sequence[Job]) -> list[Outcome | None]:
        done: list[Outcome | None] = [None] * len(jobs)
        if self.interrupted:
            return done
        for outcome in run_many(jobs, threads=self._threads, progress=self._count):
            if not outcome.interrupted:
                done[outcome.index] = outcome
        self._done += len(jobs)
        self.interrupted = None in done
        return done

    def _count(self, done: int, _total: int) -> None:
        if self._progress is not None:
            self._progress(self._done + done, self._total)


def _jobs(base: Mapping[str, Any], seed: int) -> dict[_Key, Job]:
    """Return the runs that are no search: iperf both ways, TCP by window, and one for the delay."""
    scenarios: dict[_Key, Scenario] = {}
    for offered in OFFERED:
        data = duplex_scenario(base).to_dict()
        rate = f"{offered * _DUPLEX_PAYLOAD * 8} bit/s"
        data["traffic"][0] |= {"payload": f"{_DUPLEX_PAYLOAD} B", "rate": rate}
        scenarios["duplex", offered] = from_dict(data)
    for window_bytes in WINDOWS:
        scenarios["tcp", window_bytes] = tcp_scenario(base, window_bytes)
    scenarios["efficiency", LARGEST_WINDOW] = tcp_scenario(base, LARGEST_WINDOW, delay="0 ms")
    scenarios["delay", 0] = table_scenario(base)
    return {key: Job(plan=resolve(each), seed=seed) for key, each in scenarios.items()}


def _fine_sizes(coarse: NoDropSearch | None) -> range:
    """Return the sizes from above the last one that the packets limit to the first beyond."""
    if coarse is None or coarse.interrupted:
        return range(0)
    for small, large in pairwise(coarse.rates):
        if _channel_limited(coarse, large.payload_bytes):
            return range(small.payload_bytes + 1, large.payload_bytes + 1)
    return range(0)


def _channel_limited(found: NoDropSearch, size: int) -> bool:
    loss = found.rate(size).first_loss
    return loss is not None and loss.limit == "channel"


# --- what it gives ------------------------------------------------------------------------------


def _measured(
    found: Mapping[str, NoDropSearch | None],
    crossover: Crossover | None,
    outcomes: Mapping[_Key, Outcome | None],
    shared: Aggregation,
    *,
    interrupted: bool,
) -> Measured:
    limits, sharing = {}, {}
    for mode in ("route", *MODES):
        joint = _joint_rate(found[mode])
        if joint is not None:
            limits[mode] = joint
    for terminals in TERMINALS:
        search = found[f"shared {terminals}"]
        if search is not None and not search.interrupted:
            sharing[terminals] = search
    runs = {key: outcome for key, outcome in outcomes.items() if outcome is not None}
    tcp_bps = {window: _goodput_bps(run) for (what, window), run in runs.items() if what == "tcp"}
    fastest, probe = runs.get(("efficiency", LARGEST_WINDOW)), runs.get(("delay", 0))
    return Measured(
        table=found["table"],
        round_figure=found["round figure"],
        limits=limits,
        crossover=crossover,
        sharing=sharing,
        duplex=tuple(_duplex(n, run) for (what, n), run in runs.items() if what == "duplex"),
        tcp_bps=tcp_bps,
        efficiency_percent=None if fastest is None else _efficiency_percent(fastest),
        one_way_delay_ms=None if probe is None else _delay_ms(probe),
        aggregation=shared,
        interrupted=interrupted,
    )


def _joint_rate(found: NoDropSearch | None) -> float | None:
    if found is None or found.interrupted:
        return None
    return found.rates[0].aggregate_packets_per_second


def _crossover(base: Mapping[str, Any], fine: NoDropSearch | None) -> Crossover | None:
    if fine is None or fine.interrupted:
        return None
    framing = resolve(narrow_scenario(base))["directions"][0]["framing"]
    for each in fine.rates:
        if _channel_limited(fine, each.payload_bytes):
            ip_bytes = each.payload_bytes + _UDP_IP_HEADER_BYTES
            return Crossover(
                payload_bytes=each.payload_bytes,
                ip_bytes=ip_bytes,
                link_bytes=frame_bits(framing, ip_bytes) / 8,
            )
    return None


def _duplex(offered: int, run: Outcome) -> Duplex:
    # A rate over the time that was sent, as iperf reports it.
    seconds = run.job.plan["flows"][0]["workload"]["duration_ns"] / 1e9
    forward, backward = run.column("flows", "received_segments") / seconds
    return Duplex(offered=offered, forward=float(forward), backward=float(backward))


def _goodput_bps(run: Outcome) -> float:
    delivered_bytes = run.column("flows", "delivered_bytes")[0]
    return float(rate_bps(delivered_bytes, parse_duration(TCP_DURATION)))


def _efficiency_percent(run: Outcome) -> float:
    return 100 * _goodput_bps(run) / int(run.job.plan["directions"][0]["rate_bps"]["value"])


def _delay_ms(run: Outcome) -> float:
    return float(run.column("flows", "one_way_delay_ns_mean")[0]) / _NS_PER_MS


def _set_mode(data: dict[str, Any], mode: str) -> None:
    for gateway in data["gateways"].values():
        del gateway["processor"]["packets_per_second"]
        gateway["processor"]["mode"] = mode


def _changed(base: Mapping[str, Any], change: Callable[[dict[str, Any]], None]) -> Scenario:
    data = copy.deepcopy(dict(base))
    change(data)
    return from_dict(data)
