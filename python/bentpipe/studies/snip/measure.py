"""The scenarios of the study, all made from one file, and what its searches and runs measure.

Nothing in this module depends on a published figure. The figures "on paper" follow from the
equations of docs/model/aggregation.md.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

from bentpipe.plan import Plan
from bentpipe.results import Result, rate_bps
from bentpipe.scenario import Scenario, frame_bits
from bentpipe.simulation import Limit, Outcome, Search, max_trials
from bentpipe.studies.base.inputs import read_scenario, read_yaml
from bentpipe.studies.base.real_time import RealCell
from bentpipe.studies.base.work import KERNEL_RENO, Measured, Work
from bentpipe.units import NS_PER_MS, NS_PER_S, UDP_IP_BYTES

# With the modes' own rates (PROCESSOR_PPS) instead of the calibrated one.
MODES: Final = ("bridge", "pass-thru")
DUPLEX_PAYLOAD_BYTES: Final = 200
LOAD_PAYLOAD_BYTES: Final = 100


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The parameters of the runs, as in settings.yaml."""

    sizes: Sequence[int]
    offered_pps: Sequence[int]
    windows_bytes: Sequence[int]
    tcp_duration: str
    terminals: Sequence[int]
    coarse_sizes: Sequence[int]
    aggregated_sizes: Sequence[int]
    aggregated_duration: str
    loads_pps: Sequence[int]
    hold_times_ms: Sequence[int]


DEFAULTS: Final = Settings(**read_yaml("snip", "settings.yaml"))
_NOTHING: Final[Mapping[str, Any]] = {}
_BOTH_WAYS: Final = {"direction": "both"}
KERNEL_TCP: Final[dict[str, Any]] = {**KERNEL_RENO, "window_scaling": False}


def _iperf(payload_bytes: int, rate_bps: int) -> dict[str, str]:
    """Return the settings with which iperf sends payloads of this size at this rate."""
    return {"payload": f"{payload_bytes} B", "rate": f"{rate_bps} bit/s"}


def shared_scenario(base: Mapping[str, Any], terminals: int) -> Scenario:
    """Return the scenario with one flow to each of a number of terminals, all through one hub."""
    return scenario_of(base, link={"terminals": terminals}, traffic={"terminal": "all"})


def tcp_scenario(
    base: Mapping[str, Any], window_bytes: int, duration: str, *, kernel: bool = False
) -> Scenario:
    """Return the scenario with one TCP transfer of a bsd-1997 host, over the hop.

    ``kernel``: with settings that the kernel has.
    """
    buffer = f"{window_bytes} B"
    tcp: dict[str, Any] = {"receive_buffer": buffer, "window_scaling": False}
    if kernel:
        tcp |= {**KERNEL_TCP, "receive_buffer_initial": buffer}
    profile = "linux" if kernel else "bsd-1997"
    bulk = {"kind": "bulk", "direction": "forward", "duration": duration}
    traffic = [{**bulk, "profile": profile, "tcp": tcp}]
    return scenario_of({**base, "duration": duration, "traffic": traffic})


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
    return _link_pps(plan, payload_bytes + UDP_IP_BYTES) < by_processor


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
# The last packet of a run may be alone in its frame.
_PAYS_BELOW: Final = 0.99

# One result by name, as plain data.
Record = dict[str, Any]


@dataclass(frozen=True)
class Run(RealCell):
    """A run: what it is for, with a number: packets/s, or the bytes of a window or of a payload.

    ``hold_ms`` is the hold time of aggregators, 0 without; ``kernel`` as in `tcp_scenario`;
    ``rate_bps`` that of a payload.
    """

    what: str
    number: int = 0
    duration: str = ""
    hold_ms: int = 0
    kernel: bool = False
    rate_bps: int = 0

    @property
    def key(self) -> str:
        """What it is for, and its parameter."""
        return f"{self.what} {self.number}"

    def scenario(self) -> Scenario:
        """Return the complete scenario."""
        base = read_scenario("snip")
        if self.what == "duplex":
            sent = _iperf(DUPLEX_PAYLOAD_BYTES, 8 * DUPLEX_PAYLOAD_BYTES * self.number)
            return scenario_of(base, traffic=_BOTH_WAYS | sent)
        if self.what == "load":
            aggregated = aggregated_scenario(base, self.duration, self.hold_ms)
            sent = _iperf(LOAD_PAYLOAD_BYTES, 8 * LOAD_PAYLOAD_BYTES * self.number)
            return scenario_of(aggregated.to_dict(), traffic=sent)
        if self.what in {"tcp", "efficiency"}:
            transfer = tcp_scenario(base, self.number, self.duration, kernel=self.kernel)
            delay = {} if self.what == "tcp" else {"delay": "0 ms"}
            return scenario_of(transfer.to_dict(), directions=delay)
        if self.what == "rate":
            return scenario_of(base, traffic=_iperf(self.number, self.rate_bps))
        return scenario_of(base)

    def figures(self, outcome: Outcome) -> dict[str, float]:
        """Return goodput and delay of the first flow, the rates of both, and the frames sent."""
        plan = outcome.job.plan.data
        goodput_bps = float(
            rate_bps(outcome.column("flows", "delivered_bytes")[0], plan["stop_ns"])
        )
        # The rate over the duration of sending, as iperf reports it.
        sending_ns = plan["flows"][0]["workload"].get("duration_ns", plan["stop_ns"])
        rates_pps = outcome.column("flows", "received_segments") / (sending_ns / NS_PER_S)
        return {
            "goodput_bps": goodput_bps,
            "goodput_kbps": goodput_bps / 1e3,
            "efficiency_percent": 100 * goodput_bps / plan["directions"][0]["rate_bps"]["value"],
            "delay_ms": float(outcome.column("flows", "one_way_delay_mean_ns")[0]) / NS_PER_MS,
            "forward_pps": float(rates_pps[0]),
            "return_pps": float(rates_pps[-1]),
            "frames": float(outcome.column("directions", "received_packets")[0]),
        }

    def measure(self, result: Result) -> dict[str, float]:
        """Return the goodput of the first flow, and whether it lost packets, in real time."""
        flow = result.tables["flows"].row(0, named=True)
        goodput_bps = float(rate_bps(flow["delivered_bytes"], result.plan["stop_ns"]))
        lost = flow["received_segments"] < flow["sent_segments"]
        return {"goodput_kbps": goodput_bps / 1e3, "lost": float(lost)}


def loads(settings: Settings) -> list[Run]:
    """Return all loads, without aggregation and with each hold time."""
    return [
        Run("load", pps, settings.aggregated_duration, hold_ms)
        for hold_ms in (0, *settings.hold_times_ms)
        for pps in settings.loads_pps
    ]


def loads_of(measured: Measured[Run]) -> tuple[Record, ...]:
    """Return the results of the loads, each compared with the same load without aggregation."""
    records = []
    for run in measured:
        pair = [measured[load] for load in (run, replace(run, hold_ms=0))]
        if run.what != "load" or not all(measurement.runs for measurement in pair):
            continue
        (frames,), (packets,) = (measurement["frames"].values for measurement in pair)
        (delay_ms,), (alone_ms,) = (measurement["delay_ms"].values for measurement in pair)
        frames_per_second = run.number * frames / packets
        records.append(
            Record(
                hold_ms=run.hold_ms,
                offered_pps=run.number,
                frames_per_second=frames_per_second,
                packets_per_frame=run.number / frames_per_second,
                added_delay_ms=delay_ms - alone_ms,
            )
        )
    return tuple(records)


def begins_at(loads: tuple[Record, ...], hold_ms: int) -> int | None:
    """Return the smallest load of those tried at which fewer frames than packets are sent."""
    held = [record for record in loads if record["hold_ms"] == hold_ms]
    offered = {record["offered_pps"]: record["frames_per_second"] for record in held}
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
    """Return packets a frame and a second with full frames, and what limits them, as text."""
    functions = {function["kind"]: function for function in plan["gateways"][0]["functions"]}
    packet = payload_bytes + UDP_IP_BYTES
    first = packet + 2 + (packet > _SHORT_FIRST_PACKET_BYTES) + (packet > _LONG_PACKET_BYTES)
    later = packet + 1 + (packet > _SHORT_PACKET_BYTES)
    room = functions["aggregator"]["frame_size_bytes"] - _FRAME_HEADER_BYTES - first
    more = room // later
    frame = _FRAME_HEADER_BYTES + first + more * later
    by_processor = functions["processor"]["packets_per_second"]
    by_link = _link_pps(plan, frame)
    limit = "packet rate" if by_processor < by_link else "channel"
    return 1 + more, (1 + more) * min(by_processor, by_link), limit


def converged(search: Search | None, payload_bytes: int) -> Limit | None:
    """Return the rate of one payload; None if its search did not converge."""
    limits = () if search is None else search.limits
    return next((r for r in limits if r.payload_bytes == payload_bytes and r.converged), None)


# Ten seconds and 50 packets of buffer hide up to 0.2 % (at 2,570 packets a second).
RESOLUTION: Final = 0.0025
SMALL_PAYLOAD_BYTES: Final = 58


@dataclass(frozen=True, kw_only=True)
class Measurements:
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


def measure(settings: Settings, work: Work) -> Measurements:
    """Perform all searches and runs in a fixed order; after Ctrl-C return those that finished."""
    searches, runs = _searches(settings), _runs(settings)
    # The ten sizes of the fine search are not known yet. The smallest sizes need the most trials.
    fine_step = settings.coarse_sizes[1] - settings.coarse_sizes[0]
    narrow, _ = searches["coarse"]
    planned = [*searches.values(), (narrow, tuple(range(1, fine_step + 1)))]
    work.total = len(runs) + sum(max_trials(*search, RESOLUTION) for search in planned)
    searched = {
        name: work.search(*scenario_and_sizes, resolution=RESOLUTION)
        for name, scenario_and_sizes in searches.items()
    }
    fine = _fine_sizes(_complete(searched["coarse"]))
    finest = work.search(narrow, fine, resolution=RESOLUTION) if fine else None
    measured = work.measure(runs)
    sharing = {n: _complete(searched[f"shared {n}"]) for n in settings.terminals}
    plan = Plan.resolve(searches["aggregated"][0]).data
    aggregated = _complete(searched["aggregated"])
    return Measurements(
        table=searched["table"],
        round_figure=searched["round figure"],
        limits_pps={
            mode: search.limits[0].aggregate_packets_per_second or 0.0
            for mode in ("route", *MODES)
            if (search := _complete(searched[mode])) is not None
        },
        crossover=_crossover(narrow, _complete(finest)),
        sharing={n: search for n, search in sharing.items() if search is not None},
        duplex=tuple(_duplex(measured)),
        tcp_bps={
            run.number: bps
            for run in runs
            if run.what == "tcp" and (bps := measured[run]["goodput_bps"].mean) is not None
        },
        efficiency_percent=measured[_efficiency(settings)]["efficiency_percent"].mean,
        one_way_delay_ms=measured[_DELAY]["delay_ms"].mean,
        aggregated_sizes=tuple(
            size_of(plan, size, searched["table"], aggregated) for size in settings.aggregated_sizes
        ),
        loads=loads_of(measured),
    )


def _searches(settings: Settings) -> dict[str, tuple[Scenario, Sequence[int]]]:
    base = read_scenario("snip")
    small, medium = (SMALL_PAYLOAD_BYTES,), (DUPLEX_PAYLOAD_BYTES,)
    aggregated = aggregated_scenario(base, settings.aggregated_duration)
    return {
        "table": (scenario_of(base), settings.sizes),
        "round figure": (scenario_of(base, mode="route"), settings.sizes),
        "route": (scenario_of(base, traffic=_BOTH_WAYS), small),
        **{mode: (scenario_of(base, traffic=_BOTH_WAYS, mode=mode), small) for mode in MODES},
        **{f"shared {n}": (shared_scenario(base, n), medium) for n in settings.terminals},
        "coarse": (scenario_of(base, directions={"rate": "4 Mbit/s"}), settings.coarse_sizes),
        "aggregated": (aggregated, settings.aggregated_sizes),
    }


_DELAY: Final = Run("delay")


def _efficiency(settings: Settings) -> Run:
    return Run("efficiency", settings.windows_bytes[-1], settings.tcp_duration)


def _runs(settings: Settings) -> list[Run]:
    """Return the runs: iperf in both directions, TCP by window, one for the delay, and loads."""
    return [
        *(Run("duplex", pps) for pps in settings.offered_pps),
        *(Run("tcp", window, settings.tcp_duration) for window in settings.windows_bytes),
        _efficiency(settings),
        _DELAY,
        *loads(settings),
    ]


def _complete(search: Search | None) -> Search | None:
    return None if search is None or search.interrupted else search


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
    for limit in () if fine is None else fine.limits:
        if limit.first_loss is not None and limit.first_loss.limit == "channel":
            ip_bytes = limit.payload_bytes + UDP_IP_BYTES
            link_bytes = frame_bits(plan["directions"][0]["framing"], ip_bytes) / 8
            sizes = {"payload_bytes": limit.payload_bytes, "ip_bytes": ip_bytes}
            return {**sizes, "link_bytes": link_bytes}
    return None


def _duplex(measured: Measured[Run]) -> Iterator[Record]:
    for run, measurement in measured.items():
        there, back = measurement["forward_pps"].mean, measurement["return_pps"].mean
        if run.what == "duplex" and there is not None and back is not None:
            pps = {"offered_pps": run.number, "forward_pps": there, "return_pps": back}
            yield {**pps, "forward_percent": 100 * there / (there + back)}
