"""What one TCP connection gets, and what helps most.

It carries one transfer of a duration, the entry ``transfer`` of traffic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from bentpipe.answers.answer import Answer, charts, read_rows, table
from bentpipe.answers.question import Assumption
from bentpipe.answers.runs import Measurements, changes_from
from bentpipe.answers.traffic import Transfer, other_bit_errors, other_round_trips
from bentpipe.answers.trial import Trial
from bentpipe.metrics import CAPACITY_PARTS, COLUMNS
from bentpipe.plan.plan import Plan
from bentpipe.results.result import Result
from bentpipe.units import NS_PER_S

_BASE: Final = "as asked"
# What a goodput near its bound reaches; the handshake and slow start take the rest.
NEAR: Final = 0.85
# What a transfer that fills the link reaches.
FULL: Final = 0.98
# The largest rate in the comparison with Linux TCP, docs/model/validation.md.
COMPARED_BPS_MAX: Final = 50_000_000
_TCP: Final = "traffic.transfer.tcp"
_SHORT_NS: Final = 10 * NS_PER_S
# What makes a sender reduce its rate: losses by cause, and ECN marks of the queue.
_MARKS: Final = "marked_packets"
_SIGNALS: Final = (*(name for name in COLUMNS["flows"] if name.startswith("lost_")), _MARKS)


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
        link = result.directions.row(0 if self.direction == "forward" else 1, named=True)
        return {
            **{f"{part}_percent": attribution[f"{part}_percent"] for part in CAPACITY_PARTS},
            "goodput_bps": _goodput_bps(result),
            "rtt_mean_ns": flow["rtt_mean_ns"] if flow["rtt_mean_ns"] is not None else np.nan,
            "retransmitted_percent": flow["retransmitted_percent"] or 0.0,
            **{name: float((link if name == _MARKS else flow)[name] or 0) for name in _SIGNALS},
        }

    def _cases(self) -> Mapping[str, Plan]:
        """Return settings that may help: each case changes one, and raises it if it is a number."""
        options: dict[str, list[str]] = {}
        for row in read_rows("tried.csv", "tcp"):
            now, value = self.sender[row["field"]], row["value"]
            setting = f"{_TCP}.{row['setting']}"
            if now != value if isinstance(now, str) else now < int(value):
                options.setdefault(row["label"] or setting, []).append(setting)
        queue = self.wire["queue"]
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
        assumptions = other_round_trips(self.directions)
        assumptions += other_bit_errors(self.direction, self.wire["channel"])
        if self.base.data["stop_ns"] != _SHORT_NS:
            short = ("traffic.transfer.duration=10s", "duration=10s")
            assumptions.append(Assumption("transfer of 10 s", self.length, short))
        return assumptions

    @property
    def is_like_compared(self) -> bool:
        """Whether the link is like those that were compared with Linux TCP."""
        return self.rate_bps <= COMPARED_BPS_MAX and all(
            direction["rate_bps"]["kind"] == direction["delay_ns"]["kind"] == "constant"
            and not direction["jitter_ns"]
            for direction in self.directions
        )

    def _judge(self, measurements: Mapping[str, Measurements]) -> Answer:
        base, bounds, path = measurements[_BASE], self.bounds_bps(), self.path_over_time
        changes = changes_from(_BASE, measurements, self.figure)
        helpers = {name: measurements[name] for name in changes if changes[name].outcome == "gains"}
        best = next(iter(helpers), None)
        also = {} if best is None else changes_from(best, helpers, self.figure)
        gains = {name: change.percent for name, change in changes.items()}
        rows = [
            {"setting": name, **measured.means(), "change_percent": gains.get(name)}
            for name, measured in measurements.items()
        ]
        bound = min(bounds, key=lambda name: bounds[name])
        rest = {part: base.mean(f"{part}_percent") for part in CAPACITY_PARTS if part != "goodput"}
        signals = {name: base[name] for name in _SIGNALS if base[name].any()}
        cases, tried = self.cases, (_BASE, *([best] if best else []))
        return Answer(
            facts={
                "base": base,
                "bound": bound,
                "rest": dict(sorted(rest.items(), key=lambda part: -part[1])),
                "signals": dict(sorted(signals.items(), key=lambda signal: -signal[1].mean())),
                "changes": changes,
                "as_good": [name for name, change in also.items() if change.outcome != "loses"],
            },
            figures={
                "goodput_bps": base.of("goodput_bps"),
                "link_rate_bps": round(sum(share * rate for share, rate, _ in path)),
                "rtt_propagation_ns": round(sum(share * rtt for share, _, rtt in path)),
                **base.estimates("rtt_mean_ns", "retransmitted_percent", *signals),
                "bounds_bps": bounds,
                "capacity": base.estimates(*(f"{part}_percent" for part in CAPACITY_PARTS)),
                "gains_percent": gains,
                "helps_most": best,
            },
            tables=[table("tcp", "One setting changed at a time", rows)],
            charts=charts("tcp", measurements),
            trial=Trial.of(
                self.figure, _goodput_bps, {name: cases[name] for name in tried}, measurements
            ),
        )

    def facts(self, answer: Answer) -> dict[str, Any]:
        """Return what the words are made of: also whether the change above is the largest."""
        effect = abs(answer.effects[0].percent.mean) if answer.effects else 0.0
        best = answer.figures["helps_most"]
        more = best is not None and answer.figures["gains_percent"][best].mean > effect
        return {**super().facts(answer), "matters": answer.matters_most, "above_is_more": more}


def _goodput_bps(result: Result) -> float:
    return float(result.goodput_bps[0])
