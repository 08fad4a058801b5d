"""How many calls a limit in packets per second carries.

Packet processors of both gateways have the limit. A call is a flow of datagrams each way, every
20 ms. Calls pass if at most 0.1 % of their packets are lost and 99 % of them wait less than 50
ms. With aggregation, the gateways bundle small packets, holding each at most 5 ms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final, NamedTuple

from bentpipe.answers.answer import Answer, Effect, table
from bentpipe.answers.catalog import Option
from bentpipe.answers.question import MAX_COUNT, Link, LinkQuestion, initial, largest, peak_bps
from bentpipe.answers.runs import Estimate, Measurements
from bentpipe.answers.traffic import call
from bentpipe.results.result import Result
from bentpipe.scenario.framings import frame_bits
from bentpipe.scenario.tables import CODECS, PACKET_INTERVAL_MS, CodecName
from bentpipe.units import UDP_IP_BYTES

# What calls may lose and wait, on average over the calls; a count above the limit exceeds it soon.
MAX_LOSS_PERCENT: Final = 0.1
MAX_WAIT_NS: Final = 50_000_000
# A count this near to the bound on paper is at it; the last call may not fit as a whole.
NEAR: Final = 0.9
# Of one call more, those that the link has however few calls there are first.
_LOSSES: Final = ("channel_loss_percent", "loss_percent")
_PACKETS_PER_SECOND: Final = 1_000 // PACKET_INTERVAL_MS
# The largest numbers of calls that are searched, in the order of the runs.
_PLAIN, _BUNDLED, _LONGER, _OTHER = "none", "hold 5 ms", "hold 20 ms", "other codec"


class _Capacity(NamedTuple):
    """The largest number of calls that passes, with its figures and those of one call more.

    The latter are none if it was not run.
    """

    calls: int
    found: Measurements
    above: Measurements

    @property
    def exceeded(self) -> str | None:
        """What one call more exceeds: losses of the channel, all losses, or the delay."""
        if not self.above:
            return None
        losses = (name for name in _LOSSES if self.above.mean(name) > MAX_LOSS_PERCENT)
        return next(losses, "wait_p99_ns")

    def change(self, after: _Capacity) -> Estimate:
        """Return the change of the calls in percent."""
        return Estimate(100 * (after.calls / self.calls - 1) if self.calls else 0.0, None, 1)

    def row(self, name: str) -> dict[str, Any]:
        """Return the cells of a table."""
        packets = 2 * self.calls * _PACKETS_PER_SECOND
        cells = {"calls": self.calls, "packets_per_second": packets, **self.found.means()}
        return {"aggregation": name, **cells}


@dataclass(kw_only=True, eq=False)
class SmallPackets(LinkQuestion):
    """The calls that packet processors carry, with and without aggregation."""

    link: Link = "leo"
    packets_per_second: Annotated[
        int, Option("Packets per second of each gateway, both ways.", "N", flag="--pps", min=1)
    ] = 6_000
    codec: Annotated[CodecName, Option("The codec of the calls.")] = "g711"
    duration: str = field(default="5 s", init=False)

    examples = ("--link leo --pps 6000", "--link leo --pps 2000 --codec g729")
    seeds = 2
    searched = 4

    def _traffic(self) -> list[dict[str, Any]]:
        return [call("both", self.codec)]

    def _amend(self, data: dict[str, Any]) -> None:
        processor = {"processor": {"packets_per_second": self.packets_per_second}}
        data["gateways"] = {"hub": dict(processor), "terminal": dict(processor)}

    def _measure(self, result: Result) -> Mapping[str, float]:
        flows = result.flows
        names = ("expected_segments", "lost_packets", "lost_bit_error_packets")
        sent, lost, by_channel = (float(flows[name].sum()) for name in names)
        delays_ns = [initial(each["delay_ns"]) for each in result.plan["directions"][:2]]
        waits = [
            late_ns - delays_ns[0 if direction == "forward" else 1]
            for late_ns, direction in flows.select("one_way_delay_p99_ns", "direction").iter_rows()
            if late_ns is not None
        ]
        return {
            "loss_percent": 100 * lost / max(sent, 1),
            "channel_loss_percent": 100 * by_channel / max(sent, 1),
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

    @property
    def _other_codec(self) -> CodecName:
        return "g729" if self.codec != "g729" else "g711"

    def _find(self, _cases: object) -> dict[str, _Capacity]:
        """Search the largest number of calls, with packets that are held and without."""
        guess = int(min(self._bounds().values()))
        other = replace(self, codec=self._other_codec)
        found = {_PLAIN: self.capacity(guess), _BUNDLED: self.capacity(2 * guess, "5ms")}
        bundled = found[_BUNDLED].calls
        found[_LONGER] = self.capacity(2 * bundled, "20ms")
        found[_OTHER] = other.capacity(bundled, "5ms")
        return found

    def capacity(self, guess: int, hold: str | None = None) -> _Capacity:
        """Search the largest number of calls, with packets that are held for ``hold``."""
        found: dict[int, Measurements] = {}
        holding = [
            f"gateways.{end}.aggregator.hold_time={hold}" for end in ("hub", "terminal") if hold
        ]

        def passes(calls: int) -> bool:
            found[calls] = self.run_case(*holding, f"traffic.call.count={calls}")
            lost, waits_ns = (found[calls].mean(name) for name in ("loss_percent", "wait_p99_ns"))
            return lost <= MAX_LOSS_PERCENT and waits_ns <= MAX_WAIT_NS

        calls = largest(passes, guess=guess, limit=MAX_COUNT)
        return _Capacity(calls, *(found.get(each, Measurements()) for each in (calls, calls + 1)))

    def _judge(self, found: Mapping[str, _Capacity]) -> Answer:
        plain, bundled, other = found[_PLAIN], found[_BUNDLED], self._other_codec
        bounds = self._bounds()
        effects = {
            _LONGER: ("holding packets up to 20 ms", "5 ms"),
            _OTHER: (other, self.codec),
        }
        rows = [found[name].row(name) for name in (_PLAIN, _BUNDLED, _LONGER)]
        return Answer(
            facts={
                "limit": min(bounds, key=lambda name: bounds[name]),
                "plain": plain,
                "bundled": bundled,
                "other": other if found[_OTHER].calls > bundled.calls else None,
            },
            figures={
                "calls": plain.calls,
                "calls_aggregated": bundled.calls,
                "bounds_calls": bounds,
                "packets_per_second": self.packets_per_second,
                "one_more": {"exceeds": plain.exceeded, **plain.above.means()},
                "one_more_aggregated": {"exceeds": bundled.exceeded, **bundled.above.means()},
            },
            tables=[table(self.name, "The largest number of calls that passes", rows)],
            effects=[
                Effect(*texts, bundled.change(found[name])) for name, texts in effects.items()
            ],
        )
