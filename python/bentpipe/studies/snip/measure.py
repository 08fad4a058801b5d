"""The scenarios of the study, all made from one file, and what its searches and runs measure.

Nothing in this module depends on a published figure. The figures "on paper" follow from the
equations of docs/model/aggregation.md.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from bentpipe.plan.plan import Plan
from bentpipe.results.measures import rate_bps
from bentpipe.scenario.framings import frame_bits
from bentpipe.scenario.schema import Scenario
from bentpipe.simulation.run import Outcome
from bentpipe.simulation.search import Limit, Search, max_trials
from bentpipe.studies.base.work import Work, jobs_of
from bentpipe.units import NS_PER_S

# With the modes' own rates (PROCESSOR_PPS) instead of the calibrated one.
MODES: Final = ("bridge", "pass-thru")
NARROW_RATE: Final = "4 Mbit/s"
UDP_IP_HEADER_BYTES: Final = 28
DUPLEX_PAYLOAD_BYTES: Final = 200
LOAD_PAYLOAD_BYTES: Final = 100


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The parameters of the runs: payloads in bytes, loads, windows, durations."""

    # The payloads of the table.
    sizes: tuple[int, ...] = (
        *(58, 68, 82, 100, 138, 178, 200, 218, 300, 400, 500),
        *(700, 800, 1000, 1400),
    )
    # Packets a second that each direction is offered with iperf -d, 200 bytes each.
    offered_pps: tuple[int, ...] = (1000, 2000, 3000, 4000, 5000, 6000, 7000)
    # Receive windows between 8 and 64 KB, as on hosts without tuning: six and twelve full segments,
    # multiples of 8 KiB, and 65,535 bytes, the maximum without window scaling.
    windows_bytes: tuple[int, ...] = (
        *(8_760, 16_384, 17_520, 24_576, 32_768, 49_152, 57_344),
        65_535,
    )
    # Long compared with slow start, which takes up to ten round trips of half a second.
    tcp_duration: str = "60 s"
    terminals: tuple[int, ...] = (1, 2, 4, 8)
    coarse_sizes: tuple[int, ...] = tuple(range(20, 101, 10))
    # Some payloads of the table that share frames.
    aggregated_sizes: tuple[int, ...] = (58, 100, 200, 300, 500)
    # At 100 bytes 110,000 packets; 50 frames of buffer hide up to 0.5 % (at 2,514 frames a second).
    aggregated_duration: str = "4 s"
    # Packets a second. None is a multiple of 1 / hold time: a packet would arrive at the very time
    # at which a frame is sent.
    loads_pps: tuple[int, ...] = (10, 20, 30, 45, 90, 180, 220, 450, 900, 1800, 4500)
    # The loads are also run without aggregation.
    hold_times_ms: tuple[int, ...] = (5, 25)


DEFAULTS: Final = Settings()
_NOTHING: Final[Mapping[str, Any]] = {}
_NARROW: Final = {"rate": NARROW_RATE}
_BOTH_WAYS: Final = {"direction": "both"}


def iperf_scenario(scenario: Scenario, payload_bytes: int, rate_bps: int) -> Scenario:
    """Return the scenario in which iperf sends payloads of this size at this rate."""
    sent = {"payload": f"{payload_bytes} B", "rate": f"{rate_bps} bit/s"}
    return scenario_of(scenario.to_dict(), traffic=sent)


def shared_scenario(base: Mapping[str, Any], terminals: int) -> Scenario:
    """Return the scenario with one flow to each of a number of terminals, all through one hub."""
    return scenario_of(base, link={"terminals": terminals}, traffic={"terminal": "all"})


def tcp_scenario(
    base: Mapping[str, Any], window_bytes: int, duration: str, delay: str | None = None
) -> Scenario:
    """Return the scenario with one TCP transfer of a bsd-1997 host, over the hop or a delay."""
    transfer = {
        "kind": "bulk",
        "direction": "forward",
        "duration": duration,
        "profile": "bsd-1997",
        "tcp": {"receive_buffer": f"{window_bytes} B", "window_scaling": False},
    }
    changed = {**base, "duration": duration, "traffic": [transfer]}
    return scenario_of(changed, directions={} if delay is None else {"delay": delay})


def aggregated_scenario(
    base: Mapping[str, Any], duration: str, hold_ms: int | None = None
) -> Scenario:
    """Return the scenario with an aggregator at both ends; 0 ms: without, None: the default."""
    aggregator = {} if hold_ms is None else {"hold_time": f"{hold_ms} ms"}
    functions = {} if hold_ms == 0 else {"aggregator": aggregator}
    return scenario_of(base, traffic={"duration": duration}, functions=functions)


def is_channel_limited(plan: Mapping[str, Any], payload_bytes: int) -> bool:
    """Return whether the channel, not the processor, limits the rate of packets of this size."""
    (processor,) = plan["gateways"][0]["functions"]
    by_processor: float = processor["packets_per_second"]
    return _link_pps(plan, payload_bytes + UDP_IP_HEADER_BYTES) < by_processor


def _link_pps(plan: Mapping[str, Any], packet_bytes: int) -> float:
    direction = plan["directions"][0]
    return float(direction["rate_bps"]["value"] / frame_bits(direction["framing"], packet_bytes))


def scenario_of(
    base: Mapping[str, Any],
    *,
    mode: str | None = None,
    link: Mapping[str, Any] = _NOTHING,
    directions: Mapping[str, Any] = _NOTHING,
    traffic: Mapping[str, Any] = _NOTHING,
    functions: Mapping[str, Any] = _NOTHING,
) -> Scenario:
    """Return a scenario with other values; a ``mode`` has its own packet rate of the processor."""
    data = copy.deepcopy(dict(base))
    data["link"] |= link
    for direction in ("forward", "return"):
        data["link"][direction] |= directions
    data["traffic"][0] |= traffic
    for gateway in data["gateways"].values():
        gateway.update(copy.deepcopy(dict(functions)))
        if mode is not None:
            del gateway["processor"]["packets_per_second"]
            gateway["processor"]["mode"] = mode
    return Scenario.from_dict(data)


# "above about 40 times the packet size": bytes a second, so as many packets a second.
PUBLISHED_LOAD_PPS: Final = 40

_SHORT_PACKET_BYTES: Final = 127
_SHORT_FIRST_PACKET_BYTES: Final = 63
_LONG_PACKET_BYTES: Final = 8191
_FRAME_HEADER_BYTES: Final = 28
_NS_PER_MS: Final = 1e6
# The last packet of a run may be alone in its frame.
_PAYS_BELOW: Final = 0.99

# What a run is for, or its hold time in ms (0: no aggregation), and its parameter.
Key = tuple[str | int, int]


# One result by name, as plain data.
Record = dict[str, Any]


def load_scenarios(base: Mapping[str, Any], settings: Settings) -> dict[Key, Scenario]:
    """Return all loads, without aggregation and with each hold time."""
    scenarios: dict[Key, Scenario] = {}
    for hold_ms in (0, *settings.hold_times_ms):
        scenario = aggregated_scenario(base, settings.aggregated_duration, hold_ms)
        for pps in settings.loads_pps:
            rate_bps = 8 * LOAD_PAYLOAD_BYTES * pps
            scenarios[hold_ms, pps] = iperf_scenario(scenario, LOAD_PAYLOAD_BYTES, rate_bps)
    return scenarios


def loads_of(outcomes: Mapping[Key, Outcome]) -> tuple[Record, ...]:
    """Return the results of the loads, each compared with the same load without aggregation."""
    found = []
    for (hold_ms, offered_pps), run in outcomes.items():
        alone = outcomes.get((0, offered_pps))
        if alone is None:
            continue
        packets = float(alone.column("directions", "received_packets")[0])
        frames = offered_pps * float(run.column("directions", "received_packets")[0]) / packets
        found.append(
            Record(
                hold_ms=int(hold_ms),
                offered_pps=offered_pps,
                frames_per_second=frames,
                packets_per_frame=offered_pps / frames,
                added_delay_ms=delay_ms(run) - delay_ms(alone),
            )
        )
    return tuple(found)


def begins_at(loads: tuple[Record, ...], hold_ms: int) -> int | None:
    """Return the smallest load of those tried at which fewer frames than packets are sent."""
    own = [each for each in loads if each["hold_ms"] == hold_ms]
    offered = {each["offered_pps"]: each["frames_per_second"] for each in own}
    return min((pps for pps, frames in offered.items() if frames < _PAYS_BELOW * pps), default=None)


def size_of(
    plan: Mapping[str, Any],
    payload_bytes: int,
    without: Search | None,
    aggregated: Search | None,
) -> Record:
    """Return one payload with and without aggregation, and the result of the equations."""
    packets, paper_pps, limit = on_paper(plan, payload_bytes)
    alone, shared = (
        None if (best := converged(search, payload_bytes)) is None else best.packets_per_second
        for search in (without, aggregated)
    )
    return Record(
        payload_bytes=payload_bytes,
        without_pps=alone,
        with_pps=shared,
        gain=None if alone is None or shared is None else shared / alone,
        packets_per_frame=packets,
        paper_pps=paper_pps,
        paper_limit=limit,
        error_percent=None if shared is None else 100 * (shared / paper_pps - 1),
    )


def on_paper(plan: Mapping[str, Any], payload_bytes: int) -> tuple[int, float, str]:
    """Return packets a frame and a second, in full frames, and whether processor or link limits."""
    functions = {each["kind"]: each for each in plan["gateways"][0]["functions"]}
    packet = payload_bytes + UDP_IP_HEADER_BYTES
    first = packet + 2 + (packet > _SHORT_FIRST_PACKET_BYTES) + (packet > _LONG_PACKET_BYTES)
    later = packet + 1 + (packet > _SHORT_PACKET_BYTES)
    room = functions["aggregator"]["frame_size_bytes"] - _FRAME_HEADER_BYTES - first
    more = room // later
    frame = _FRAME_HEADER_BYTES + first + more * later
    by_processor = functions["processor"]["packets_per_second"]
    by_link = _link_pps(plan, frame)
    limit = "packet rate" if by_processor < by_link else "channel"
    return 1 + more, (1 + more) * min(by_processor, by_link), limit


def converged(found: Search | None, payload_bytes: int) -> Limit | None:
    """Return the rate of one payload; None if its search did not converge."""
    limits = () if found is None else found.limits
    return next((r for r in limits if r.payload_bytes == payload_bytes and r.converged), None)


def delay_ms(run: Outcome) -> float:
    """Return the mean delay of the first flow."""
    return float(run.column("flows", "one_way_delay_mean_ns")[0]) / _NS_PER_MS


# Ten seconds and 50 packets of buffer hide up to 0.2 % (at 2,570 packets a second).
RESOLUTION: Final = 0.0025
SMALL_PAYLOAD_BYTES: Final = 58


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Everything that was measured; what Ctrl-C left out is None or missing.

    ``limits_pps`` are packets a second of both directions together by mode, ``tcp_bps`` the goodput
    by window in bytes, ``sharing`` the search by number of terminals. ``crossover`` is the smallest
    datagram for which a narrow modem is the limit, in bytes at each layer.
    """

    table: Search | None
    round_figure: Search | None
    limits_pps: Mapping[str, float]
    crossover: Mapping[str, float] | None
    sharing: Mapping[int, Search]
    duplex: tuple[Record, ...]
    tcp_bps: Mapping[int, float]
    efficiency_percent: float | None
    one_way_delay_ms: float | None
    aggregated_sizes: tuple[Record, ...]
    loads: tuple[Record, ...]
    interrupted: bool


def measure(base: Mapping[str, Any], settings: Settings, work: Work) -> Measured:
    """Perform all searches and runs in a fixed order; after Ctrl-C return those that finished."""
    searches = _searches(base, settings)
    jobs, loads = _jobs(base, settings), load_scenarios(base, settings)
    # The ten sizes of the fine search are not known yet. The smallest sizes need the most trials.
    fine_step = settings.coarse_sizes[1] - settings.coarse_sizes[0]
    narrow = scenario_of(base, directions=_NARROW)
    planned = [*searches.values(), (narrow, tuple(range(1, fine_step + 1)))]
    trials = sum(max_trials(scenario, sizes, RESOLUTION) for scenario, sizes in planned)
    work.total = trials + len(jobs) + len(loads)

    def run_each(scenarios: Mapping[Key, Scenario]) -> dict[Key, Outcome]:
        found = work.run({key: jobs_of(each, work.seeds(1)) for key, each in scenarios.items()})
        return {key: of_key[0] for key, of_key in found.items() if of_key}

    found = {name: work.search(*each, resolution=RESOLUTION) for name, each in searches.items()}
    fine = _fine_sizes(_complete(found["coarse"]))
    finest = work.search(narrow, fine, resolution=RESOLUTION) if fine else None
    runs, by_load = run_each(jobs), run_each(loads)
    tcp_bps = {window: goodput_bps(run) for (what, window), run in runs.items() if what == "tcp"}
    fastest, probe = runs.get(("efficiency", 0)), runs.get(("delay", 0))
    modes = {mode: _complete(found[mode]) for mode in ("route", *MODES)}
    sharing = {n: _complete(found[f"shared {n}"]) for n in settings.terminals}
    plan = Plan.resolve(aggregated_scenario(base, settings.aggregated_duration)).data
    aggregated = _complete(found["aggregated"])
    return Measured(
        table=found["table"],
        round_figure=found["round figure"],
        limits_pps={
            mode: each.limits[0].aggregate_packets_per_second or 0.0
            for mode, each in modes.items()
            if each is not None
        },
        crossover=_crossover(narrow, _complete(finest)),
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
        "table": (scenario_of(base), settings.sizes),
        "round figure": (scenario_of(base, mode="route"), settings.sizes),
        "route": (scenario_of(base, traffic=_BOTH_WAYS), small),
        **{mode: (scenario_of(base, traffic=_BOTH_WAYS, mode=mode), small) for mode in MODES},
        **{f"shared {n}": (shared_scenario(base, n), medium) for n in settings.terminals},
        "coarse": (scenario_of(base, directions=_NARROW), settings.coarse_sizes),
        "aggregated": (aggregated, settings.aggregated_sizes),
    }


def _jobs(base: Mapping[str, Any], settings: Settings) -> dict[Key, Scenario]:
    """Return the other runs: iperf in both directions, TCP by window, and one for the delay."""
    largest, duration = settings.windows_bytes[-1], settings.tcp_duration
    scenarios: dict[Key, Scenario] = {}
    both_ways = scenario_of(base, traffic=_BOTH_WAYS)
    for pps in settings.offered_pps:
        rate = 8 * DUPLEX_PAYLOAD_BYTES * pps
        scenarios["duplex", pps] = iperf_scenario(both_ways, DUPLEX_PAYLOAD_BYTES, rate)
    for window_bytes in settings.windows_bytes:
        scenarios["tcp", window_bytes] = tcp_scenario(base, window_bytes, duration)
    scenarios["efficiency", 0] = tcp_scenario(base, largest, duration, delay="0 ms")
    scenarios["delay", 0] = scenario_of(base)
    return scenarios


def _complete(found: Search | None) -> Search | None:
    return None if found is None or found.interrupted else found


def _fine_sizes(coarse: Search | None) -> tuple[int, ...]:
    """Return the sizes from the last one limited by the packet rate to the first by the channel.

    The former is excluded; none if the coarse search did not find both.
    """
    for small, large in pairwise(() if coarse is None else coarse.limits):
        if large.first_loss is not None and large.first_loss.limit == "channel":
            return tuple(range(small.payload_bytes + 1, large.payload_bytes + 1))
    return ()


def _crossover(narrow: Scenario, fine: Search | None) -> dict[str, float] | None:
    plan: Mapping[str, Any] = Plan.resolve(narrow).data
    for each in () if fine is None else fine.limits:
        if each.first_loss is not None and each.first_loss.limit == "channel":
            ip_bytes = each.payload_bytes + UDP_IP_HEADER_BYTES
            link_bytes = frame_bits(plan["directions"][0]["framing"], ip_bytes) / 8
            sizes = {"payload_bytes": each.payload_bytes, "ip_bytes": ip_bytes}
            return {**sizes, "link_bytes": link_bytes}
    return None


def _duplex(offered_pps: int, run: Outcome) -> Record:
    # The rate over the duration of sending, as iperf reports it.
    seconds = run.job.plan.data["flows"][0]["workload"]["duration_ns"] / NS_PER_S
    there, back = (float(pps) for pps in run.column("flows", "received_segments") / seconds)
    share = 100 * there / (there + back)
    pps = {"offered_pps": offered_pps, "forward_pps": there, "return_pps": back}
    return {**pps, "forward_percent": share}


def goodput_bps(run: Outcome) -> float:
    """Return the goodput of the first flow over the whole run."""
    delivered_bytes = run.column("flows", "delivered_bytes")[0]
    return float(rate_bps(delivered_bytes, run.job.plan.data["stop_ns"]))


def _efficiency_percent(run: Outcome) -> float:
    return 100 * goodput_bps(run) / int(run.job.plan.data["directions"][0]["rate_bps"]["value"])
