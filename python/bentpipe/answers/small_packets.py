"""How many calls a limit in packets per second carries.

Packet processors of both gateways have the limit. A call is a flow of datagrams each way, every
20 ms. Calls pass if at most 0.1 % of their packets are lost and 99 % of them wait less than 50
ms. With aggregation, the gateways bundle small packets, holding each at most 5 ms.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final

from bentpipe.answers.answer import Answer, Effect, table
from bentpipe.answers.catalog import Option
from bentpipe.answers.counts import Fitting, search
from bentpipe.answers.question import MAX_COUNT, Link, LinkQuestion, peak_bps
from bentpipe.answers.remedies import Goal
from bentpipe.answers.runs import Estimate, Measurements
from bentpipe.answers.traffic import call, frame_bits_of
from bentpipe.errors import RunsInterrupted
from bentpipe.results.measures import longest_wait_ns
from bentpipe.results.result import Result
from bentpipe.scenario.tables import PACKET_INTERVAL_MS, CodecName

# What calls may lose and wait, on average over the calls; a count above the limit exceeds it soon.
MAX_LOSS_PERCENT: Final = 0.1
MAX_WAIT_NS: Final = 50_000_000
# How long calls last, in seconds.
CALLS_S: Final = 5
# A count this near to the bound on paper is at it; the last call may not fit as a whole.
NEAR: Final = 0.9
# Of one call more, those that the link has however few calls there are first.
_LOSSES: Final = ("channel_loss_percent", "loss_percent")
_PACKETS_PER_SECOND: Final = 1_000 // PACKET_INTERVAL_MS
# The largest numbers of calls that are searched, in the order of the runs.
_PLAIN, _BUNDLED, _LONGER, _OTHER = "none", "hold 5 ms", "hold 20 ms", "other codec"
# The counts of each that were run; those that Ctrl-C left out have none.
Found = Mapping[str, Mapping[int, Measurements]]


@dataclass(kw_only=True, eq=False)
class SmallPackets(LinkQuestion):
    """The calls that packet processors carry, with and without aggregation."""

    link: Link = "leo"
    packets_per_second: Annotated[
        int, Option("Packets per second of each gateway, both ways.", "N", flag="--pps", min=1)
    ] = 6_000
    codec: Annotated[CodecName, Option("The codec of the calls.")] = "g711"
    # Longer than the calls, so that their last packets arrive, whatever the delay.
    duration: str = field(default=f"{CALLS_S + 3} s", init=False)

    examples = ("--link leo --pps 6000", "--link leo --pps 2000 --codec g729")
    constants = ("delay_ns",)
    seeds = 3
    searched = 4
    goals = (Goal("loss_percent", MAX_LOSS_PERCENT), Goal("wait_p99_ns", MAX_WAIT_NS))

    def _traffic(self) -> list[dict[str, Any]]:
        return [{**call("both", self.codec), "duration": f"{CALLS_S} s"}]

    def _amend(self, data: dict[str, Any]) -> None:
        processor = {"processor": {"packets_per_second": self.packets_per_second}}
        data["gateways"] = {"hub": dict(processor), "terminal": dict(processor)}

    def _measure(self, result: Result) -> Mapping[str, float]:
        flows = result.flows
        names = ("expected_segments", "lost_packets", "lost_bit_error_packets")
        sent, lost, by_channel = (float(flows[name].sum()) for name in names)
        return {
            "loss_percent": 100 * lost / max(sent, 1),
            "channel_loss_percent": 100 * by_channel / max(sent, 1),
            "wait_p99_ns": longest_wait_ns(result),
        }

    def _bounds(self) -> dict[str, float]:
        """Return the most calls that each part carries, on paper."""
        bounds = {"packet processors": self.packets_per_second / (2 * _PACKETS_PER_SECOND)}
        for name, direction in zip(("forward", "return"), self.directions, strict=True):
            call_bps = frame_bits_of(self.codec, direction["framing"]) * _PACKETS_PER_SECOND
            bounds[f"{name} link"] = peak_bps(direction["rate_bps"]) / call_bps
        return bounds

    @property
    def _other_codec(self) -> CodecName:
        return "g729" if self.codec != "g729" else "g711"

    def _find(self, _cases: object) -> Found:
        """Search the largest number of calls, with packets that are held and without."""
        guess = int(min(self._bounds().values()))
        searches = {_PLAIN: self.search(guess), _BUNDLED: {}, _LONGER: {}, _OTHER: {}}
        with suppress(RunsInterrupted):
            searches[_BUNDLED] = self.search(2 * guess, "5ms")
            bundled = Fitting.of(searches[_BUNDLED], self.goals).count
            searches[_LONGER] = self.search(2 * bundled, "20ms")
            other = replace(self, codec=self._other_codec)
            searches[_OTHER] = other.search(bundled, "5ms")
        return searches

    def search(self, guess: int, hold: str | None = None) -> dict[int, Measurements]:
        """Search the largest number of calls, with packets that are held for ``hold``."""
        holding = [
            f"gateways.{end}.aggregator.hold_time={hold}" for end in ("hub", "terminal") if hold
        ]
        return search(
            lambda calls: self.run_case(*holding, f"traffic.call.count={calls}"),
            self.goals,
            guess=guess,
            limit=MAX_COUNT,
        )

    def _judge(self, searches: Found) -> Answer:
        partial = self.experiment.interrupted
        of = {
            name: Fitting.of(counts, self.goals, limit=MAX_COUNT)
            for name, counts in searches.items()
        }
        plain, bundled, other = of[_PLAIN], of[_BUNDLED], self._other_codec
        bounds = self._bounds()
        effects = {_LONGER: ("holding packets up to 20 ms", "5 ms"), _OTHER: (other, self.codec)}
        rows = [_row(name, of[name]) for name in (_PLAIN, _BUNDLED, _LONGER) if searches[name]]
        return Answer(
            facts={
                "limit": min(bounds, key=lambda name: bounds[name]),
                "plain": plain,
                "bundled": bundled,
                "other": other if of[_OTHER].count > bundled.count else None,
                "partial": partial,
            },
            figures={
                "calls": None if partial else plain.count,
                "calls_range": plain.range,
                "calls_aggregated": None if partial else bundled.count,
                "calls_aggregated_range": bundled.range,
                "bounds_calls": bounds,
                "packets_per_second": self.packets_per_second,
                "one_more": _one_more(plain),
                "one_more_aggregated": _one_more(bundled),
            },
            tables=[table(self.name, "The largest number of calls that passes", rows)],
            effects=[
                Effect(*texts, _change(bundled, of[name]))
                for name, texts in effects.items()
                if not partial
            ],
        )


def _one_more(calls: Fitting) -> dict[str, Any]:
    """Return figures of one call more, and what it exceeds: some losses, or else the delay."""
    losses = (name for name in _LOSSES if calls.above and calls.above.mean(name) > MAX_LOSS_PERCENT)
    exceeded = next(losses, "wait_p99_ns") if calls.above else None
    return {"exceeds": exceeded, **calls.above.means()}


def _change(before: Fitting, after: Fitting) -> Estimate:
    percent = 100 * (after.count / before.count - 1) if before.count else 0.0
    return Estimate(percent, None, 1)


def _row(name: str, calls: Fitting) -> dict[str, Any]:
    packets = 2 * calls.count * _PACKETS_PER_SECOND
    return dict(aggregation=name, calls=calls.count, packets_per_second=packets, **calls.at.means())
