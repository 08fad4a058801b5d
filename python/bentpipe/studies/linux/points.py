"""The points: links, congestion controls and traffic for both engines, and the figures of a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from bentpipe.live import processor_share
from bentpipe.quantities import quantity
from bentpipe.results import Result, aggregate_goodput_bps, finished_times_ns
from bentpipe.scenario import Scenario
from bentpipe.studies.base.inputs import read_rows, read_scenario
from bentpipe.studies.base.real_time import RealCell
from bentpipe.units import BITS_PER_BYTE, NS_PER_S

MIN_QUEUE_BYTES: Final = 15_000
PACKET_BYTES: Final = 1_500
# Of a packet: 20 bytes are the IP header, 32 the TCP header with timestamps.
PAYLOAD_BYTES: Final = 1_448
# The durations of the other kinds, in seconds. BBR enters ProbeRTT 10 s after the start: steps and
# outages come well after that, so that a few milliseconds do not change their order.
STEP_AT_S: Final = 12.0
STEP_WINDOW_S: Final = 8.0
OUTAGE_AT_S: Final = 12.0
OUTAGE_S: Final = 2.0
OUTAGE_WINDOW_S: Final = 6.0
# Recovery after an outage is complete once as much is delivered as in this time before it.
RECOVERY_BASE_S: Final = 2.0
# Samples are 100 ms apart, so the last sample is after the end of the last window. A run of files
# ends with the last one, or at this time.
_LARGEST_S: Final[Mapping[str, float]] = {
    "completion": 180.0,
    "two-way": 20.0,
    "rate-step": STEP_AT_S + STEP_WINDOW_S + 0.5,
    "outage": OUTAGE_AT_S + OUTAGE_S + OUTAGE_WINDOW_S + 0.5,
    "pep-goodput": 20.0,
    "pep-completion": 120.0,
}
# Short transfers are repeated more often, so that runs take about the same time.
FILES: Final = {10_000: 6, 100_000: 3, 1_000_000: 2}
_PEP_FILES: Final = 2
# With PEPs, the server's way to the hub. Its access line spreads what it sends at once: thousands
# of packets at one instant would take a lab longer than the link does.
_SERVER_MS: Final = 40.0
_SERVER: Final = {"name": "server", "delay": f"{_SERVER_MS:g} ms", "rate": "100 Mbit/s"}


@dataclass(frozen=True, kw_only=True)
class Point(RealCell):
    """One point of a grid, as in points.csv.

    The queue holds at least `MIN_QUEUE_BYTES`. ``size_bytes`` is the size of each file of a point
    of completion times, ``place`` that of PEPs, empty without. The data are for the island, or from
    it if the direction is return. ``seconds`` is the duration of a goodput point.
    """

    grid: str = "small"
    number: int
    kind: str = "goodput"
    control: str
    rate_mbps: float
    rtt_ms: float
    queue_bdp: float
    loss: float
    flows: int
    size_bytes: int | None = None
    place: str = ""
    link_control: str = ""
    direction: str = "forward"
    seconds: float = 30.0
    # Without bit errors, BBR still draws.
    is_stochastic = True

    @property
    def key(self) -> str:
        """The name on the command line."""
        return f"{self.grid}:{self.number}"

    @property
    def label(self) -> str:
        """The congestion control; with PEPs also that over the link, their place, the direction."""
        if not self.place:
            return self.control
        controls = dict.fromkeys((self.control, self.link_control))
        return f"{'/'.join(controls)}, {self.place}, {self.direction}"

    @property
    def queue_bytes(self) -> int:
        """The limit of the queue, in bytes at the IP layer."""
        product_bytes = self.rate_mbps * 1e3 * self.rtt_ms / BITS_PER_BYTE
        return max(MIN_QUEUE_BYTES, round(self.queue_bdp * product_bytes))

    @property
    def files(self) -> int:
        """The number of files of a point of completion times."""
        return _PEP_FILES if self.place else FILES[self.size_bytes or 0]

    @property
    def possible_bps(self) -> float:
        """The largest possible goodput at the link's rate, in application bit/s."""
        return self.rate_mbps * 1e6 * PAYLOAD_BYTES / PACKET_BYTES

    @property
    def load(self) -> float:
        """The approximate share of a processor that a run takes: with PEPs the legs are two."""
        both_ways = 1.3 if self.kind == "two-way" else 1.0
        share = min(1.0, both_ways * processor_share(self.rate_mbps * 1e6))
        return min(1.0, 2 * share) if self.place else share

    @property
    def largest_s(self) -> float:
        """The longest duration of a run."""
        largest_s = _LARGEST_S.get(self.kind, self.seconds)
        return min(self.seconds, largest_s) if self.kind == "pep-goodput" else largest_s

    @property
    def expected_s(self) -> float:
        """The approximate duration of a run."""
        if self.size_bytes is None:
            return self.largest_s
        # The handshake, the request and slow start, then transmission at the rate.
        round_trips = 2 + max(0.0, math.log2(self.size_bytes / MIN_QUEUE_BYTES))
        sending_s = self.size_bytes * BITS_PER_BYTE / (self.rate_mbps * 1e6)
        rtt_ms = self.rtt_ms + (2 * _SERVER_MS if self.place else 0.0)
        return self.files * (round_trips * rtt_ms / 1e3 + sending_s)

    def scenario(self) -> Scenario:
        """Return the complete scenario."""
        data = read_scenario("linux")
        data |= {"name": f"{self.key}, {self.kind}", "duration": f"{self.largest_s * 1e3:g} ms"}
        link, (bulk,) = data["link"], data["traffic"]
        for way in link.values():
            way |= {"delay": f"{self.rtt_ms / 2:g} ms", "rate": f"{self.rate_mbps:g} Mbit/s"}
        limit = {"limit": f"{self.queue_bytes} B"}
        bits = PACKET_BYTES * BITS_PER_BYTE
        errors = -math.expm1(math.log1p(-self.loss) / bits) if self.loss else 0.0
        link["forward"] |= {"queue": limit, "bit_error_rate": errors, **self._rate()}
        bulk |= {"duration": data["duration"], "count": self.flows, "direction": self.direction}
        bulk["tcp"]["congestion_control"] = self.control
        if self.place:
            # Buffers are those of the profile.
            bulk |= {"tcp": {"congestion_control": self.control}, "world_host": _SERVER["name"]}
            data |= {"hosts": {"world": [_SERVER]}, "gateways": self._gateways()}
        if self.direction == "return":
            link["forward"], link["return"] = link["return"], link["forward"]
        if self.size_bytes is not None:
            kept = {name: bulk[name] for name in ("direction", "tcp", "world_host") if name in bulk}
            size = {"size": f"{self.size_bytes} B", "files": self.files}
            data["traffic"] = [{"kind": "fetch", **size, **kept}]
        elif self.kind == "two-way":
            link["return"]["queue"] = limit
            data["traffic"] = [bulk, bulk | {"direction": "return", "start": bulk["start_spacing"]}]
        return Scenario.from_dict(data)

    def _rate(self) -> dict[str, Any]:
        rate, half = f"{self.rate_mbps:g} Mbit/s", f"{self.rate_mbps / 2:g} Mbit/s"
        changes = {
            "rate-step": {0.0: rate, STEP_AT_S: half},
            "outage": {0.0: rate, OUTAGE_AT_S: "0 bit/s", OUTAGE_AT_S + OUTAGE_S: rate},
        }.get(self.kind, {})
        steps = [{"at": f"{at_s:g} s", "value": value} for at_s, value in changes.items()]
        return {"rate": steps} if steps else {}

    def _gateways(self) -> dict[str, Any]:
        controls = {"lan_tcp": self.control, "link_tcp": self.link_control}
        pep = {leg: {"congestion_control": control} for leg, control in controls.items()}
        ends = ("hub", "terminal") if self.place == "both" else (self.place,)
        return {end: {"pep": pep} for end in ends}

    def measure(self, result: Result) -> dict[str, float | None]:
        """Return the figures of a run, in either engine.

        - ``goodput``: ``goodput_bps`` of all flows together, from the first SYN to the end of the
          run, slow start included; ``queue_ms``, the mean queueing time of the forward direction;
          ``retransmitted_segments``.
        - ``completion``: ``completion_s``, the mean over the files, from the client's SYN to the
          last byte at the client; None if one is not complete: without the unfinished files, which
          take longest, it would be too small.
        - ``two-way``: ``forward_bps`` and ``return_bps``, the goodput of each direction.
        - ``rate-step``: ``before_bps`` and ``after_bps``, the goodput on either side of the step.
        - ``outage``: ``after_bps``, the goodput in the 6 s after it; ``recovery_s``, from its end
          until as much is delivered as in the 2 s before it.
        """
        kind, flows = self.kind.removeprefix("pep-"), range(self.flows)
        if kind == "goodput":
            return {"goodput_bps": aggregate_goodput_bps(result, flows), **self._queue(result)}
        if kind == "completion":
            times_ns = finished_times_ns(result, "exchanges")
            is_complete = len(times_ns) == result.plan["flows"][0]["workload"]["exchanges"]
            return {"completion_s": float(np.mean(times_ns)) / NS_PER_S if is_complete else None}
        if kind == "two-way":
            back = range(self.flows, 2 * self.flows)
            ways = {"forward_bps": flows, "return_bps": back}
            return {name: aggregate_goodput_bps(result, of) for name, of in ways.items()}
        delivered = DeliveredBytes(result)
        if kind == "rate-step":
            return {
                "before_bps": delivered.goodput_bps(0.0, STEP_AT_S),
                "after_bps": delivered.goodput_bps(STEP_AT_S, STEP_AT_S + STEP_WINDOW_S),
            }
        end_s = OUTAGE_AT_S + OUTAGE_S
        wanted = delivered.bytes(OUTAGE_AT_S) - delivered.bytes(OUTAGE_AT_S - RECOVERY_BASE_S)
        return {
            "after_bps": delivered.goodput_bps(end_s, end_s + OUTAGE_WINDOW_S),
            "recovery_s": delivered.seconds_until(delivered.bytes(end_s) + wanted, after_s=end_s),
        }

    def _queue(self, result: Result) -> dict[str, float | None]:
        samples = result.tables["direction_samples"]
        waiting = samples.filter(samples["direction"] == 0)["queue_bytes"].to_numpy()
        mean_bytes = float(np.mean(waiting)) if len(waiting) else 0.0
        segments = result.tables["flows"]["retransmitted_segments"].fill_null(0).sum()
        return {
            "queue_ms": mean_bytes * BITS_PER_BYTE / (self.rate_mbps * 1e3),
            "retransmitted_segments": float(segments),
        }

    def __str__(self) -> str:
        """Return the configuration as text."""
        text = (
            f"{self.label}{';' if self.place else ','} "
            f"{f'{self.control}, ' if self.place else ''}{self.rate_mbps:g} Mbit/s, RTT "
            f"{self.rtt_ms:g} ms, queue {self.queue_bdp:g} BDP ({self.queue_bytes:,} B), loss "
            f"{self.loss:.2%}, flows {self.flows}"
        )
        size_bytes = self.size_bytes
        return text if size_bytes is None else f"{text}, {quantity('size_bytes').text(size_bytes)}"


def points() -> tuple[Point, ...]:
    """Return the points of all grids."""
    numbers = dict.fromkeys(("rate_mbps", "rtt_ms", "queue_bdp", "loss"), float)
    read: Mapping[str, Callable[[str], Any]] = {
        **numbers,
        **dict.fromkeys(("number", "flows"), int),
        "size_bytes": lambda text: int(text) if text else None,
    }
    rows = read_rows("linux", "points.csv")
    return tuple(
        Point(**{name: read.get(name, str)(text) for name, text in row.items()}) for row in rows
    )


class DeliveredBytes:
    """The bytes that all flows have delivered over time, from the samples of a run."""

    def __init__(self, result: Result) -> None:
        samples = result.tables["flow_samples"].drop_nulls("delivered_bytes").sort("time_ns")
        self._flows = [
            (
                np.append(0.0, flow_samples["time_ns"].to_numpy() / NS_PER_S),
                np.append(0.0, flow_samples["delivered_bytes"].to_numpy()).astype(np.float64),
            )
            for flow_samples in samples.partition_by("flow", maintain_order=True)
        ]

    def bytes(self, at_s: float) -> float:
        """Return the bytes delivered by a time, interpolated between samples."""
        return float(sum(np.interp(at_s, times_s, sizes) for times_s, sizes in self._flows))

    def goodput_bps(self, from_s: float, until_s: float) -> float:
        """Return the goodput in bit/s between two times."""
        return (self.bytes(until_s) - self.bytes(from_s)) * BITS_PER_BYTE / (until_s - from_s)

    def seconds_until(self, wanted_bytes: float, *, after_s: float) -> float:
        """Return the time in s until so many bytes are delivered, or until the last sample."""
        times_s = np.unique(np.concatenate([[after_s], *(times for times, _ in self._flows)]))
        times_s = times_s[times_s >= after_s]
        reached = np.array([self.bytes(at_s) for at_s in times_s])
        behind = int(np.searchsorted(reached, wanted_bytes))
        if behind == 0 or behind == len(times_s):
            return float(times_s[min(behind, len(times_s) - 1)] - after_s)
        low, high = reached[behind - 1], reached[behind]
        share = (wanted_bytes - low) / (high - low)
        at_s = times_s[behind - 1] + share * (times_s[behind] - times_s[behind - 1])
        return float(at_s - after_s)
