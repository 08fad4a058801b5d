"""``ask small-packets``: how many calls a limit in packets per second carries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np

from bentpipe.answers.answer import Answer, DataTable, Effect, Estimate, largest_first
from bentpipe.answers.call import UDP_IP_BYTES, call
from bentpipe.answers.cases import Experiment, Figures, initial, link_scenario, peak_bps, resolved
from bentpipe.answers.search import largest
from bentpipe.answers.wording import Link, settings_text
from bentpipe.plan.plan import Plan
from bentpipe.results.result import Result
from bentpipe.scenario.codecs import CODECS, PACKET_INTERVAL_MS, Codec, CodecName
from bentpipe.scenario.document import Document
from bentpipe.scenario.framings import frame_bits
from bentpipe.units import NS_PER_S

# What calls may lose and wait, on average over the calls; a count above the limit exceeds it soon.
MAX_LOSS_PERCENT: Final = 0.1
MAX_WAIT_NS: Final = 50_000_000
MAX_CALLS: Final = 2_000
_DURATION: Final = "5 s"
_PACKETS_PER_SECOND: Final = 1_000 // PACKET_INTERVAL_MS
_AGGREGATORS: Final = tuple(f"gateways.{end}.aggregator.hold_time" for end in ("hub", "terminal"))
_SEEDS: Final = 2


class _Capacity(NamedTuple):
    """The largest number of calls of a case, with its figures."""

    calls: int
    figures: Figures | None
    loss_above: float


def small_packets(
    link: str = "geo",
    *,
    settings: Sequence[str] = (),
    packets_per_second: int = 6_000,
    codec: CodecName = "g711",
    experiment: Experiment | None = None,
) -> Answer:
    """Answer how many calls the packet processors of both gateways carry, with and without bundles.

    A call is a flow of datagrams each way, every 20 ms. Calls pass if at most 0.1 % of their
    packets are lost and 99 % of them wait less than 50 ms. With bundles, the gateways aggregate
    small packets, holding each at most 5 ms.

    Raises:
        ScenarioError: the link or a setting is wrong.
        UsageError: there is no such link.
        RunsInterrupted: Ctrl-C.
    """
    experiment = experiment or Experiment(seeds=_SEEDS)
    speech = CODECS[codec]
    document = _document(link, speech, packets_per_second)
    base = resolved(document, settings)
    bounds = _bounds(base.data, speech, packets_per_second)
    guess = int(min(bounds.values()))
    experiment.expect(base.data, 4)
    plain = _capacity(experiment, document, settings, guess)
    bundled = _capacity(experiment, document, [*settings, *_holding("5ms")], 2 * guess)
    longer = _capacity(experiment, document, [*settings, *_holding("20ms")], 2 * bundled.calls)
    other: CodecName = "g729" if codec != "g729" else "g711"
    smaller = _capacity(
        experiment,
        _document(link, CODECS[other], packets_per_second),
        [*settings, *_holding("5ms")],
        bundled.calls,
    )
    effects = [
        Effect("holding packets up to 20 ms", "5 ms", _change(bundled, longer)),
        Effect(other, codec, _change(bundled, smaller)),
    ]
    answer = _answer(Link(link, settings), (codec, packets_per_second), bounds, plain, bundled)
    return replace(
        answer,
        uncertainty=f"each count was simulated for {_DURATION} with {len(experiment.seeds)} seeds; "
        f"it passes with at most {MAX_LOSS_PERCENT} % lost and 99 % waiting less than "
        f"{MAX_WAIT_NS // 10**6} ms. Counts above one that fails are not tried.",
        effects=largest_first(effects),
        commands=[
            f"bentpipe ask small-packets --link {Link(link, settings).shell} --pps "
            f"{packets_per_second} --codec {other}{settings_text(settings)}",
            "bentpipe search no-drop scenarios/snip-duplex.yaml --sizes 18,172,1472",
        ],
        tables=[_table({"none": plain, "hold 5 ms": bundled, "hold 20 ms": longer})],
    )


def _answer(
    link: Link,
    asked: tuple[CodecName, int],
    bounds: dict[str, float],
    plain: _Capacity,
    bundled: _Capacity,
) -> Answer:
    codec, packets_per_second = asked
    name, bound = min(bounds.items(), key=lambda item: item[1])
    return Answer(
        question=f"How many calls ({codec}) does a limit of {packets_per_second:,} packets per "
        f"second carry, over {link}?",
        lines=[
            f"Without aggregation: {plain.calls:,} calls",
            f"With aggregation at both gateways: {bundled.calls:,} calls"
            + (f", {bundled.calls / plain.calls:.1f} times as many" if plain.calls else ""),
            f"On paper, without aggregation: {bound:,.0f} calls, by the {name}",
            f"One call more loses {plain.loss_above:.2f} % of the packets without, "
            f"{bundled.loss_above:.2f} % with aggregation",
        ],
        reason=_reason(name),
        uncertainty="",
        commands=[],
        figures={
            "calls": plain.calls,
            "calls_aggregated": bundled.calls,
            "bounds_calls": bounds,
            "packets_per_second": packets_per_second,
            "loss_above_percent": plain.loss_above,
            "loss_above_aggregated_percent": bundled.loss_above,
        },
        parameters={"link": link.name, "set": list(link.settings), "codec": codec},
    )


def _reason(limit: str) -> str:
    if limit != "packet processors":
        return f"the rate of the {limit} is reached before the limit in packets per second."
    return (
        f"a call is {2 * _PACKETS_PER_SECOND} packets per second at each gateway, both ways "
        "together, whatever their size. A frame of the aggregator is one packet for the processor "
        "of the gateway behind it, and for the link's framing."
    )


def _document(link: str, codec: Codec, packets_per_second: int) -> Document:
    document = link_scenario(link, [call("both", codec)], _DURATION)
    processor = {"processor": {"packets_per_second": packets_per_second}}
    document.data["gateways"] = {"hub": dict(processor), "terminal": dict(processor)}
    return document


def _holding(time: str) -> list[str]:
    return [f"{field}={time}" for field in _AGGREGATORS]


def _bounds(plan: Mapping[str, Any], codec: Codec, packets_per_second: int) -> dict[str, float]:
    """Return the most calls that each part carries, on paper."""
    bounds = {"packet processors": packets_per_second / (2 * _PACKETS_PER_SECOND)}
    for direction in plan["directions"][:2]:
        bits = frame_bits(direction["framing"], codec.payload_bytes + UDP_IP_BYTES)
        name = "forward" if direction is plan["directions"][0] else "return"
        bounds[f"{name} link"] = peak_bps(direction["rate_bps"]) / (bits * _PACKETS_PER_SECOND)
    return bounds


def _capacity(
    experiment: Experiment, document: Document, settings: Sequence[str], guess: int
) -> _Capacity:
    found: dict[int, Figures] = {}

    def passes(calls: int) -> bool:
        case: Plan = resolved(document, [*settings, f"traffic.call.count={calls}"])
        found[calls] = experiment.run({calls: case}, _figures)[calls]
        return bool(
            np.mean(found[calls]["loss_percent"]) <= MAX_LOSS_PERCENT
            and np.mean(found[calls]["wait_p99_ns"]) <= MAX_WAIT_NS
        )

    calls = largest(passes, guess=guess, limit=MAX_CALLS)
    above = found.get(calls + 1)
    loss = float("nan") if above is None else float(np.mean(above["loss_percent"]))
    return _Capacity(calls, found.get(calls), loss)


def _figures(result: Result) -> dict[str, float]:
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


def _change(before: _Capacity, after: _Capacity) -> Estimate:
    percent = 100 * (after.calls / before.calls - 1) if before.calls else 0.0
    return Estimate(percent, None, 1)


def _table(cases: dict[str, _Capacity]) -> DataTable:
    rows: list[list[str]] = []
    for name, case in cases.items():
        figures: Any = case.figures or {}
        rows.append(
            [
                name,
                f"{case.calls:,}",
                f"{2 * case.calls * _PACKETS_PER_SECOND:,}",
                f"{np.mean(figures['loss_percent']):.3f}" if figures else "-",
                f"{np.mean(figures['wait_p99_ns']) / NS_PER_S * 1e3:.1f}" if figures else "-",
            ]
        )
    columns = (
        ("aggregation", ""),
        ("calls", ""),
        ("packets", "per second, both ways"),
        ("lost", "%"),
        ("waiting", "ms, p99 of the slowest call"),
    )
    return DataTable(title="The largest number of calls that passes", columns=columns, rows=rows)
