"""``ask small-packets``: how many calls a limit in packets per second carries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, Final, NamedTuple

import numpy as np

from bentpipe.answers.answer import Answer, Effect, Estimate, columns
from bentpipe.answers.question import (
    MAX_COUNT,
    Measurements,
    Option,
    Question,
    asking,
    initial,
    largest,
    peak_bps,
)
from bentpipe.answers.traffic import UDP_IP_BYTES, call
from bentpipe.results.result import Result
from bentpipe.results.views import View, from_mappings
from bentpipe.scenario.document import Document
from bentpipe.scenario.framings import frame_bits
from bentpipe.scenario.tables import CODECS, PACKET_INTERVAL_MS, CodecName

# What calls may lose and wait, on average over the calls; a count above the limit exceeds it soon.
MAX_LOSS_PERCENT: Final = 0.1
MAX_WAIT_NS: Final = 50_000_000
_PACKETS_PER_SECOND: Final = 1_000 // PACKET_INTERVAL_MS


class _Capacity(NamedTuple):
    """The largest number of calls of a case, with its figures."""

    calls: int
    found: Measurements | None
    loss_above: float

    def change(self, after: _Capacity) -> Estimate:
        """Return the change of the calls in percent."""
        percent = 100 * (after.calls / self.calls - 1) if self.calls else 0.0
        return Estimate(percent, None, 1)


@dataclass(kw_only=True, eq=False)
class SmallPackets(Question):
    """How many calls a limit in packets per second carries.

    Packet processors of both gateways have the limit. A call is a flow of datagrams each way, every
    20 ms. Calls pass if at most 0.1 % of their packets are lost and 99 % of them wait less than 50
    ms. With aggregation, the gateways bundle small packets, holding each at most 5 ms.

    See `Question` for the other parameters and the errors.
    """

    link: str = field(default="leo", kw_only=False)
    packets_per_second: Annotated[
        int, Option("Packets per second of each gateway, both ways.", "N", flag="--pps", min=1)
    ] = 6_000
    codec: Annotated[CodecName, Option("The codec of the calls.")] = "g711"
    duration: str = field(default="5 s", init=False)

    name = "small-packets"
    examples = ("--link leo --pps 6000", "--link leo --pps 2000 --codec g729")
    seeds = 2

    def _traffic(self) -> list[dict[str, Any]]:
        return [call("both", CODECS[self.codec])]

    @cached_property
    def document(self) -> Document:
        """The scenario with a packet processor at each gateway."""
        document = super().document
        processor = {"processor": {"packets_per_second": self.packets_per_second}}
        document.data["gateways"] = {"hub": dict(processor), "terminal": dict(processor)}
        return document

    def _measure(self, result: Result) -> Mapping[str, float]:
        flows = result.flows
        sent, lost = (float(flows[name].sum()) for name in ("expected_segments", "lost_packets"))
        delays_ns = [initial(each["delay_ns"]) for each in result.plan["directions"][:2]]
        waits = [
            late_ns - delays_ns[0 if direction == "forward" else 1]
            for late_ns, direction in flows.select("one_way_delay_p99_ns", "direction").iter_rows()
            if late_ns is not None
        ]
        return {
            "loss_percent": 100 * lost / sent if sent else 0.0,
            "wait_p99_ns": float(max(waits, default=0)),
        }

    def _bounds(self) -> dict[str, float]:
        """Return the most calls that each part carries, on paper."""
        bounds = {"packet processors": self.packets_per_second / (2 * _PACKETS_PER_SECOND)}
        for name, direction in zip(("forward", "return"), self.directions, strict=True):
            payload_bytes = CODECS[self.codec].payload_bytes
            bits = frame_bits(direction["framing"], payload_bytes + UDP_IP_BYTES)
            bounds[f"{name} link"] = peak_bps(direction["rate_bps"]) / (bits * _PACKETS_PER_SECOND)
        return bounds

    def capacity(self, guess: int, hold: str | None = None) -> _Capacity:
        """Search the largest number of calls, with packets that are held for ``hold``."""
        found: dict[int, Measurements] = {}
        holding = [
            f"gateways.{end}.aggregator.hold_time={hold}" for end in ("hub", "terminal") if hold
        ]

        def passes(calls: int) -> bool:
            found[calls] = self.run_case(*holding, f"traffic.call.count={calls}")
            return bool(
                np.mean(found[calls]["loss_percent"]) <= MAX_LOSS_PERCENT
                and np.mean(found[calls]["wait_p99_ns"]) <= MAX_WAIT_NS
            )

        calls = largest(passes, guess=guess, limit=MAX_COUNT)
        above = found.get(calls + 1)
        loss = float("nan") if above is None else float(np.mean(above["loss_percent"]))
        return _Capacity(calls, found.get(calls), loss)

    def _answer(self) -> Answer:
        bounds = self._bounds()
        limit, bound = min(bounds.items(), key=lambda item: item[1])
        guess = int(bound)
        self.choose_seeds(4)
        plain = self.capacity(guess)
        bundled = self.capacity(2 * guess, "5ms")
        longer = self.capacity(2 * bundled.calls, "20ms")
        other: CodecName = "g729" if self.codec != "g729" else "g711"
        smaller = replace(self, codec=other, experiment=self.runs).capacity(bundled.calls, "5ms")
        effects = [
            Effect("holding packets up to 20 ms", "5 ms", bundled.change(longer)),
            Effect(other, self.codec, bundled.change(smaller)),
        ]
        return Answer(
            question=f"How many calls ({self.codec}) does a limit of {self.packets_per_second:,} "
            f"packets per second carry, over {self.subject}?",
            lines=[
                f"Without aggregation: {plain.calls:,} calls",
                f"With aggregation at both gateways: {bundled.calls:,} calls"
                + (f", {bundled.calls / plain.calls:.1f} times as many" if plain.calls else ""),
                f"On paper, without aggregation: {bound:,.0f} calls, by the {limit}",
                f"One call more loses {plain.loss_above:.2f} % of the packets without, "
                f"{bundled.loss_above:.2f} % with aggregation",
            ],
            reason=_reason(limit),
            uncertainty=f"each count was simulated for {self.duration} with "
            f"{len(self.runs.seeds)} seeds; it passes with at most {MAX_LOSS_PERCENT} % lost and "
            f"99 % waiting less than {MAX_WAIT_NS // 10**6} ms. Counts above one that fails are "
            "not tried.",
            effects=sorted(effects, key=lambda effect: -abs(effect.percent.mean)),
            commands=[
                self.ask_command(self.name, f"--pps {self.packets_per_second}", f"--codec {other}"),
                "bentpipe search scenarios/snip-duplex.yaml --no-drop --sizes 18,172,1472",
            ],
            figures={
                "calls": plain.calls,
                "calls_aggregated": bundled.calls,
                "bounds_calls": bounds,
                "packets_per_second": self.packets_per_second,
                "loss_above_percent": plain.loss_above,
                "loss_above_aggregated_percent": bundled.loss_above,
            },
            tables=[_table({"none": plain, "hold 5 ms": bundled, "hold 20 ms": longer})],
        )


small_packets = asking(SmallPackets)


def _reason(limit: str) -> str:
    if limit != "packet processors":
        return f"the rate of the {limit} is reached before the limit in packets per second."
    return (
        f"a call is {2 * _PACKETS_PER_SECOND} packets per second at each gateway, both ways "
        "together, whatever their size. A frame of the aggregator is one packet for the processor "
        "of the gateway behind it, and for the link's framing."
    )


def _table(cases: Mapping[str, _Capacity]) -> View:
    rows = [
        {
            "aggregation": name,
            "calls": case.calls,
            "packets_per_second": 2 * case.calls * _PACKETS_PER_SECOND,
            **(case.found.means() if case.found else {}),
        }
        for name, case in cases.items()
    ]
    return from_mappings("The largest number of calls that passes", columns("small-packets"), rows)
