"""What one TCP connection gets, and what helps most.

It carries one transfer of a duration, the entry ``transfer`` of traffic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from bentpipe.answers.answer import Answer, charts, table
from bentpipe.answers.question import Assumption, initial
from bentpipe.answers.runs import Measurements
from bentpipe.answers.traffic import TIMESTAMPS_BYTES, Transfer, bit_errors
from bentpipe.answers.trial import Trial
from bentpipe.metrics import CAPACITY_PARTS
from bentpipe.plan.plan import Plan
from bentpipe.results.result import Result
from bentpipe.scenario.framings import frame_bits
from bentpipe.units import format_duration, format_size

_BASE: Final = "as asked"
# A gain under this is not worth a change of a setting, whatever its interval.
WORTH_PERCENT: Final = 1.0
_IP_TCP_BYTES: Final = 40
_CONGESTION_CONTROLS: Final = ("cubic", "bbr", "hybla", "newreno")
_LARGE_BUFFER: Final = "64 MiB"
_UNSCALED_WINDOW_BYTES: Final = 65_535
# What a goodput near its bound reaches; the handshake and slow start take the rest.
_NEAR: Final = 0.85
# What a transfer that fills the link reaches.
_FULL: Final = 0.98
_TCP: Final = "traffic.transfer.tcp"


@dataclass(kw_only=True, eq=False)
class Tcp(Transfer):
    """The goodput of a transfer, with one setting changed at a time."""

    examples = ("--link geo", "--link geo --set traffic.transfer.tcp.receive_buffer=64kB")
    can_emulate = True
    figure = "goodput_bps"

    def _traffic(self) -> list[dict[str, Any]]:
        return [self.transfer()]

    def _measure(self, result: Result) -> Mapping[str, float]:
        flow = result.flows.row(0, named=True)
        attribution = result.attribution.row(0, named=True)
        return {
            **{f"{part}_percent": attribution[f"{part}_percent"] for part in CAPACITY_PARTS},
            "goodput_bps": float(result.goodput_bps[0]),
            "rtt_mean_ns": flow["rtt_mean_ns"] if flow["rtt_mean_ns"] is not None else np.nan,
            "retransmitted_percent": flow["retransmitted_percent"] or 0.0,
            "queue_drops": float(flow["lost_queue_full_packets"]),
            "losses": float(flow["lost_packets"] or 0),
        }

    @property
    def sender(self) -> Mapping[str, Any]:
        """The TCP settings of the transfer in the plan, those of both ends."""
        sender: Mapping[str, Any] = self.base.data["flows"][0]["workload"]["sender"]
        return sender

    def _cases(self) -> Mapping[str, Plan]:
        """Return settings that may help: each case changes one."""
        sender, queue = self.sender, self.wire["queue"]
        options: dict[str, list[str]] = {
            f"{_TCP}.congestion_control={name}": [f"{_TCP}.congestion_control={name}"]
            for name in _CONGESTION_CONTROLS
            if name != sender["congestion_control"]
        }
        if not sender["window_scaling"]:
            options["window scaling"] = [f"{_TCP}.window_scaling=true"]
        if not sender["sack"]:
            options["selective acknowledgements"] = [f"{_TCP}.sack=true"]
        options[f"TCP buffers of {_LARGE_BUFFER}"] = [
            f"{_TCP}.{each}={_LARGE_BUFFER}" for each in ("send_buffer", "receive_buffer")
        ]
        options["initial window of 30 segments"] = [f"{_TCP}.initial_window=30"]
        limit = queue["limit"]
        if queue["discipline"] == "drop_tail" and limit["unit"] != "unlimited":
            unit = {"packets": " packets", "time_ns": " ns"}.get(limit["unit"], " B")
            for factor, label in ((0.5, "half"), (2.0, "twice")):
                changed = f"{round(limit['value'] * factor)}{unit}"
                setting = f"link.{self.direction}.queue.limit={changed}"
                options[f"{label} the queue ({changed})"] = [setting]
        return {_BASE: self.base, **self.fitting(options)}

    def _assumptions(self) -> list[Assumption]:
        """Return what may be otherwise on the real link."""
        if self.duration == "10 s":
            return []
        found = []
        for factor in (0.8, 1.2):
            changes = tuple(
                f"link.{name}.delay={round(initial(each['delay_ns']) * factor)}ns"
                for name, each in zip(("forward", "return"), self.directions, strict=True)
                if each["delay_ns"]["kind"] == "constant"
            )
            if changes:
                rtt, changed = (format_duration(self.rtt_ns * each) for each in (1, factor))
                found.append(Assumption(f"round-trip propagation {changed}", rtt, changes))
        channel = self.wire["channel"]
        rates, now = (1e-8, 1e-7), "0"
        if channel["kind"] == "bit_errors":
            rate = channel["bit_error_rate"]
            rates, now = (rate / 10, rate * 10), f"{rate:.0e}"
        if channel["kind"] in {"clear", "bit_errors"}:
            found += [bit_errors(self.direction, each, now) for each in rates]
        short = ("traffic.transfer.duration=10s", "duration=10s")
        return [*found, Assumption("transfer of 10 s", self.length, short)]

    @property
    def length(self) -> str:
        """The length of the transfer."""
        return format_duration(self.base.data["stop_ns"])

    def _bounds_bps(self) -> dict[str, float]:
        """Return bounds of the goodput, on paper: headers, and window over round trip."""
        sender = self.sender
        options = TIMESTAMPS_BYTES if sender["timestamps"] else 0
        payload = sender["mss_bytes"] - options
        bits = frame_bits(self.wire["framing"], sender["mss_bytes"] + _IP_TCP_BYTES)
        window = min(sender["send_buffer_bytes"], sender["receive_buffer_bytes"])
        if not sender["window_scaling"]:
            window = min(window, _UNSCALED_WINDOW_BYTES)
        return {
            "headers": self.rate_bps * 8 * payload / bits,
            f"window {format_size(window)} / round trip": window * 8e9 / max(self.rtt_ns, 1),
        }

    def _judge(self, found: Mapping[str, Measurements]) -> Answer:
        base, bounds = found[_BASE], self._bounds_bps()
        gains = {name: base.change("goodput_bps", found[name]) for name in found if name != _BASE}
        best = max(gains, key=lambda name: gains[name].mean, default=None)
        if best is not None and (gains[best].low <= 0 or gains[best].mean < WORTH_PERCENT):
            best = None
        rows = [
            {"setting": name, **each.means(), "change_percent": gains.get(name)}
            for name, each in found.items()
        ]
        bound = min(bounds, key=lambda name: bounds[name])
        cases, tried = self._cases(), (_BASE, *([best] if best else []))
        rest = {name: base.mean(f"{part}_percent") for part, name in CAPACITY_PARTS.items()}
        del rest[CAPACITY_PARTS["goodput"]]
        return Answer(
            facts={
                "base": base,
                "bound": bound,
                "reason": _reason(base, bound, bounds[bound]),
                "rest": sorted(rest.items(), key=lambda item: -item[1]),
            },
            figures={
                "goodput_bps": base.of("goodput_bps"),
                "link_rate_bps": self.rate_bps,
                "rtt_propagation_ns": self.rtt_ns,
                **base.estimates("rtt_mean_ns", "retransmitted_percent"),
                "bounds_bps": bounds,
                "capacity": base.estimates(*(f"{part}_percent" for part in CAPACITY_PARTS)),
                "gains_percent": gains,
                "helps_most": best,
            },
            tables=[table("tcp", "One setting changed at a time", rows)],
            charts=charts("tcp", found),
            trial=Trial.of(
                self.figure, self._measure, {name: cases[name] for name in tried}, found
            ),
        )


def _reason(base: Measurements, bound: str, bound_bps: float) -> str:
    """Return what holds the goodput down."""
    goodput_bps = base.mean("goodput_bps")
    if bound.startswith("window") and goodput_bps > _NEAR * bound_bps:
        return "window"
    if goodput_bps > _FULL * bound_bps:
        return "full"
    drops, losses = base.mean("queue_drops"), base.mean("losses")
    if losses > 2 * drops and losses >= 1:
        return "channel"
    return "queue" if drops >= 1 else "start"
