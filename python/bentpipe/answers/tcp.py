"""``ask tcp``: what one TCP connection gets, and the one setting that helps most."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

import numpy as np

from bentpipe.answers.answer import Answer, Chart, columns, percent_of, signed_percent
from bentpipe.answers.question import (
    Assumption,
    Measurements,
    Option,
    Question,
    asking,
    initial,
    peak_bps,
)
from bentpipe.metrics import CAPACITY_PARTS
from bentpipe.results.result import Result
from bentpipe.results.views import from_mappings
from bentpipe.scenario.framings import frame_bits
from bentpipe.scenario.link import DirectionName
from bentpipe.scenario.tcp import CongestionControl
from bentpipe.units import format_duration, format_rate, format_size

_BASE: Final = "as asked"
# A gain under this is not worth a change of a setting, whatever its interval.
_WORTH_PERCENT: Final = 1.0
_IP_TCP_BYTES: Final = 40
# The timestamps option and its padding (RFC 7323, appendix A).
_TIMESTAMPS_BYTES: Final = 12
_CONGESTION_CONTROLS: Final = ("cubic", "bbr", "hybla", "newreno")
_LARGE_BUFFER: Final = "64 MiB"
_UNSCALED_WINDOW_BYTES: Final = 65_535
# What a goodput near its bound reaches; the handshake and slow start take the rest.
_NEAR: Final = 0.85
# What a transfer that fills the link reaches.
_FULL: Final = 0.98


@dataclass(kw_only=True, eq=False)
class Transfer(Question):
    """A question about TCP transfers in one direction."""

    direction: Annotated[DirectionName, Option("The direction of the data.")] = "forward"
    congestion_control: Annotated[
        CongestionControl, Option("The congestion control of the senders.")
    ] = "cubic"
    duration: str = "60 s"

    def transfer(self, **more: Any) -> dict[str, Any]:
        """Return the entry ``transfer`` of traffic."""
        return {
            "name": "transfer",
            "kind": "bulk",
            "direction": self.direction,
            "duration": self.duration,
            "tcp": {"congestion_control": self.congestion_control},
            **more,
        }

    @property
    def wire(self) -> Mapping[str, Any]:
        """The direction of the data, of the plan."""
        return self.directions[0 if self.direction == "forward" else 1]


@dataclass(kw_only=True, eq=False)
class Tcp(Transfer):
    """What one TCP connection gets, and what helps most.

    It carries one transfer of a duration, the entry ``transfer`` of traffic.

    See `Question` for the other parameters and the errors.
    """

    name = "tcp"
    examples = ("--link geo", "--link geo --set traffic.transfer.tcp.receive_buffer=64kB")
    can_emulate = True

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
    def _sender(self) -> Mapping[str, Any]:
        sender: Mapping[str, Any] = self.base.data["flows"][0]["workload"]["sender"]
        return sender

    def _options(self) -> dict[str, list[str]]:
        """Return the settings that may help: each changes one thing that the transfer lacks."""
        to = "traffic.transfer.tcp"
        options = {
            f"{to}.congestion_control={name}": [f"{to}.congestion_control={name}"]
            for name in _CONGESTION_CONTROLS
            if name != self._sender["congestion_control"]
        }
        if not self._sender["window_scaling"]:
            options["window scaling"] = [f"{to}.window_scaling=true"]
        if not self._sender["sack"]:
            options["selective acknowledgements"] = [f"{to}.sack=true"]
        options[f"TCP buffers of {_LARGE_BUFFER}"] = [
            f"{to}.{each}={_LARGE_BUFFER}" for each in ("send_buffer", "receive_buffer")
        ]
        options["initial window of 30 segments"] = [f"{to}.initial_window=30"]
        limit = self.wire["queue"]["limit"]
        if self.wire["queue"]["discipline"] == "drop_tail" and limit["unit"] != "unlimited":
            unit = {"packets": " packets", "time_ns": " ns"}.get(limit["unit"], " B")
            for factor, label in ((0.5, "half"), (2.0, "twice")):
                changed = f"{round(limit['value'] * factor)}{unit}"
                options[f"{label} the queue ({changed})"] = [
                    f"link.{self.direction}.queue.limit={changed}"
                ]
        return options

    def _assumptions(self) -> list[Assumption]:
        """Return what the answer takes for granted, and may be otherwise on the real link."""
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
        error_rates, now = (1e-8, 1e-7), "0"
        if channel["kind"] == "bit_errors":
            rate = channel["bit_error_rate"]
            error_rates, now = (rate / 10, rate * 10), f"{rate:.0e}"
        if channel["kind"] in {"clear", "bit_errors"}:
            path = f"link.{self.direction}.bit_error_rate"
            found += [
                Assumption(f"bit error rate {each:.0e}", now, (f"{path}={each:e}",))
                for each in error_rates
            ]
        short = ("traffic.transfer.duration=10s", "duration=10s")
        return [*found, Assumption("transfer of 10 s", self._length, short)]

    @property
    def _length(self) -> str:
        return format_duration(self.base.data["stop_ns"])

    def _bounds_bps(self) -> dict[str, float]:
        """Return bounds of the goodput, on paper: headers, and window over round trip."""
        sender = self._sender
        options = _TIMESTAMPS_BYTES if sender["timestamps"] else 0
        payload = sender["mss_bytes"] - options
        bits = frame_bits(self.wire["framing"], sender["mss_bytes"] + _IP_TCP_BYTES)
        window = min(sender["send_buffer_bytes"], sender["receive_buffer_bytes"])
        if not sender["window_scaling"]:
            window = min(window, _UNSCALED_WINDOW_BYTES)
        return {
            "headers": peak_bps(self.wire["rate_bps"]) * 8 * payload / bits,
            f"window {format_size(window)} / round trip": window * 8e9 / max(self.rtt_ns, 1),
        }

    def _answer(self) -> Answer:
        tried, assumptions = self.cases(self._options()), self._assumptions()
        self.choose_seeds(1 + len(tried) + len(assumptions))
        found = self.run({_BASE: self.base} | tried)
        base = found[_BASE]
        goodput, rtt_ns = base.of("goodput_bps"), base.of("rtt_mean_ns")
        rate_bps = peak_bps(self.wire["rate_bps"])
        gains = {name: base.change("goodput_bps", found[name]) for name in tried}
        best = max(gains, key=lambda name: gains[name].mean, default=None)
        if best is not None and (gains[best].low <= 0 or gains[best].mean < _WORTH_PERCENT):
            best = None
        rows = [
            {"setting": name, **each.means(), "change_percent": gains.get(name)}
            for name, each in found.items()
        ]
        bounds = self._bounds_bps()
        bound, bound_bps = min(bounds.items(), key=lambda item: item[1])
        return Answer(
            question=f"One TCP transfer ({self._sender['congestion_control']}), "
            f"{self._length}, {self.direction} over {self.subject}",
            lines=[
                f"Goodput {base.text('goodput_bps')}, {percent_of(goodput.mean, rate_bps)} of "
                "the link rate",
                f"Round trip {format_duration(self.rtt_ns)} of propagation; "
                f"measured mean {format_duration(rtt_ns.mean)}",
                f"Bound on paper: {format_rate(bound_bps)} ({bound})",
                f"The rest of the link: {_rest(base)}",
                f"No setting tried helps by more than {_WORTH_PERCENT:g} %"
                if best is None
                else f"Helps most: {best}: {signed_percent(gains[best])}",
            ],
            reason=_reason(base, bound, bound_bps),
            uncertainty=f"{goodput.runs_text} agree: nothing in this scenario is random."
            if goodput.half_width == 0
            else f"{goodput.runs_text}; ± is the 95 % interval of the mean. The model is within "
            "0.3 % (median) of Linux TCP: docs/model/validation.md.",
            effects=self.effects(assumptions, base, "goodput_bps"),
            commands=[self.exec_command(), self.ask_command("buffer")],
            figures={
                "goodput_bps": goodput,
                "link_rate_bps": rate_bps,
                "rtt_propagation_ns": self.rtt_ns,
                "rtt_mean_ns": rtt_ns,
                "retransmitted_percent": base.of("retransmitted_percent"),
                "bounds_bps": bounds,
                "capacity": {
                    f"{part}_percent": base.of(f"{part}_percent") for part in CAPACITY_PARTS
                },
                "gains_percent": gains,
                "helps_most": best,
            },
            tables=[from_mappings("One setting changed at a time", columns("tcp"), rows)],
            charts=[
                Chart.bars(
                    "Goodput with one setting changed",
                    "Goodput [Mbit/s]",
                    {name: each.of("goodput_bps").times(1e-6) for name, each in found.items()},
                )
            ],
            case=self.base.scenario.to_dict(),
        )


tcp = asking(Tcp)


def _rest(base: Measurements) -> str:
    """Say where the capacity went that is not goodput: parts of 1 % and more, largest first."""
    parts = {
        name.replace(", ", " and "): base.mean(f"{part}_percent")
        for part, name in CAPACITY_PARTS.items()
        if part != "goodput"
    }
    shown = sorted((name for name in parts if parts[name] >= 1), key=lambda name: -parts[name])
    return ", ".join(f"{name} {parts[name]:.1f} %" for name in shown) or "nothing of 1 % and more"


def _reason(base: Measurements, bound: str, bound_bps: float) -> str:
    goodput_bps = base.mean("goodput_bps")
    if bound.startswith("window") and goodput_bps > _NEAR * bound_bps:
        return (
            "a sender has at most one window in flight per round trip, and this window is smaller "
            "than the bandwidth-delay product of the link."
        )
    if goodput_bps > _FULL * bound_bps:
        return "the link is full: headers and framing take what goodput lacks."
    drops, losses = base.mean("queue_drops"), base.mean("losses")
    if losses > 2 * drops and losses >= 1:
        return (
            f"{losses:.0f} packets a run were lost on the channel, not in the queue; TCP reduces "
            "its rate for each, and takes many round trips to regain it."
        )
    if drops >= 1:
        return (
            f"{drops:.0f} packets a run overflowed the queue; after that the rate has to grow "
            "again, one round trip at a time."
        )
    return "nothing was lost: the time goes to the handshake and to slow start."
