"""``ask buffer``: how large the queue should be, for transfers and for a call beside them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from bentpipe.answers.answer import (
    Answer,
    Chart,
    DataTable,
    Effect,
    Estimate,
    largest_first,
    signed_percent,
)
from bentpipe.answers.call import CODEC, NS_PER_MS, UDP_IP_BYTES, call, call_quality
from bentpipe.answers.cases import (
    Experiment,
    Figures,
    change_percent,
    estimate,
    initial,
    link_scenario,
    peak_bps,
    resolved,
    variants,
)
from bentpipe.answers.wording import (
    Link,
    percent_of,
    rate_text,
    runs_text,
    settings_text,
    time_text,
)
from bentpipe.errors import UsageError
from bentpipe.plan.plan import Plan
from bentpipe.results.measures import aggregate_goodput_bps, jain
from bentpipe.results.result import Result
from bentpipe.scenario.framings import frame_bits
from bentpipe.scenario.link import DirectionName
from bentpipe.units import NS_PER_S, format_duration, format_size

# The queues that are tried, in bandwidth-delay products of the round-trip propagation.
BUFFERS_BDP: Final = (0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)
# The knee: the smallest queue with this share of the best goodput.
KNEE_SHARE: Final = 0.98
# A queue holds a few packets at least, or every burst overflows it.
_MIN_LIMIT_BYTES: Final = 6_000


@dataclass(frozen=True)
class Row:
    """A queue and the figures of its runs, an array over seeds each.

    ``limit_bytes`` is None, and ``bdp`` is NaN, for a queue that is not drop-tail.
    """

    label: str
    limit_bytes: int | None
    bdp: float
    figures: Figures

    def of(self, figure: str) -> Estimate:
        """Return the mean of a figure with its interval."""
        return estimate(self.figures[figure])

    def mean(self, figure: str) -> float:
        """Return the mean of a figure."""
        return self.of(figure).mean


class _Facts(NamedTuple):
    link: Link
    direction: DirectionName
    flows: int
    wire: Mapping[str, Any]
    bdp_bytes: float
    rows: Sequence[Row]
    knee: Row
    effects: Sequence[Effect]

    @property
    def rate_bps(self) -> int:
        """The rate of the link."""
        return peak_bps(self.wire["rate_bps"])

    def send_time_ns(self, row: Row) -> float | None:
        """Return how long the link takes to send a full queue."""
        return None if row.limit_bytes is None else row.limit_bytes * 8e9 / self.rate_bps

    @property
    def sized(self) -> list[Row]:
        """The drop-tail queues, the smallest first."""
        return [row for row in self.rows if row.limit_bytes is not None]


def buffer(
    link: str = "geo",
    *,
    settings: Sequence[str] = (),
    direction: DirectionName = "forward",
    flows: int = 4,
    congestion_control: str = "cubic",
    duration: str = "60 s",
    experiment: Experiment | None = None,
) -> Answer:
    """Answer how large a drop-tail queue should be for TCP transfers with a G.711 call beside them.

    The knee is the smallest of the tried queues with 98 % of the best goodput. The delay of a queue
    is that which the packets of the call see: 99 % of them waited less.

    Raises:
        ScenarioError: the link or a setting is wrong.
        UsageError: there is no such link, or its rate or delay varies with time.
        RunsInterrupted: Ctrl-C.
    """
    experiment = experiment or Experiment()
    traffic = _traffic(direction, flows, congestion_control, duration)
    document = link_scenario(link, traffic, duration)
    base = resolved(document, settings)
    wire = _wire(base, direction)
    sizes: dict[str, int] = {}
    factors: dict[str, float] = {}
    changes: dict[str, tuple[str, ...]] = {}
    bdp_bytes = _bdp_bytes(base, wire)
    for factor in BUFFERS_BDP:
        size = max(round(factor * bdp_bytes), _MIN_LIMIT_BYTES)
        label = f"{factor:g} BDP"
        sizes[label], factors[label] = size, factor
        changes[label] = (_drop_tail(direction, size),)
    changes["fq_codel"] = (f"link.{direction}.queue={{discipline: fq_codel}}",)
    cases = variants(document, settings, changes)
    experiment.expect(base.data, len(cases) + len(_assumptions(direction, flows, None)))
    read = _reader(wire)
    found = [
        Row(label, sizes.get(label), factors.get(label, math.nan), figures)
        for label, figures in experiment.run(cases, read).items()
    ]
    knee = _knee(found)
    assumed = variants(document, settings, _assumptions(direction, flows, knee))
    effects = [
        Effect(
            name,
            _instead(name, flows, congestion_control),
            change_percent(knee.figures["goodput_bps"], figures["goodput_bps"]),
        )
        for name, figures in experiment.run(assumed, read).items()
    ]
    about = Link(link, settings)
    return _answer(_Facts(about, direction, flows, wire, bdp_bytes, found, knee, effects))


def _traffic(
    direction: DirectionName, flows: int, congestion_control: str, duration: str
) -> list[dict[str, Any]]:
    return [
        {
            "name": "transfer",
            "kind": "bulk",
            "direction": direction,
            "duration": duration,
            "count": flows,
            "start_jitter": "1 s",
            "tcp": {"congestion_control": congestion_control},
        },
        call(direction),
    ]


def _wire(base: Plan, direction: DirectionName) -> Mapping[str, Any]:
    wire: Mapping[str, Any] = base.data["directions"][0 if direction == "forward" else 1]
    if wire["rate_bps"]["kind"] != "constant" or wire["delay_ns"]["kind"] != "constant":
        raise UsageError(
            "ask buffer: rate or delay of this link vary with time, so it has no one "
            "bandwidth-delay product; set constants, such as --set link.forward.rate=16Mbit/s"
        )
    return wire


def _bdp_bytes(base: Plan, wire: Mapping[str, Any]) -> float:
    rtt_ns = sum(initial(each["delay_ns"]) for each in base.data["directions"][:2])
    return peak_bps(wire["rate_bps"]) * rtt_ns / NS_PER_S / 8


def _reader(wire: Mapping[str, Any]) -> Callable[[Result], dict[str, float]]:
    """Return the function that takes the figures of a run."""
    delay_ns = initial(wire["delay_ns"])
    serialization_ns = (
        frame_bits(wire["framing"], CODEC.payload_bytes + UDP_IP_BYTES)
        * NS_PER_S
        / peak_bps(wire["rate_bps"])
    )

    def read(result: Result) -> dict[str, float]:
        kinds = result.flows["kind"].to_list()
        transfers = [i for i, kind in enumerate(kinds) if kind == "bulk"]
        speaker = result.flows.row(kinds.index("constant_rate"), named=True)
        late_ns = speaker["one_way_delay_p99_ns"] or math.nan
        rated = call_quality(speaker)
        return {
            "goodput_bps": aggregate_goodput_bps(result, transfers),
            "fairness": jain(result.goodput_bps[transfers]),
            "queue_delay_p99_ns": max(late_ns - delay_ns - serialization_ns, 0.0),
            "call_loss_percent": speaker["loss_percent"] or 0.0,
            "call_r_factor": 0.0 if rated is None else rated.r_factor,
            "call_mos": 1.0 if rated is None else rated.mos,
        }

    return read


def _knee(rows: Sequence[Row]) -> Row:
    """Return the smallest drop-tail queue with `KNEE_SHARE` of the largest mean goodput."""
    sized = [row for row in rows if row.limit_bytes is not None]
    best = max(row.mean("goodput_bps") for row in sized)
    return next(row for row in sized if row.mean("goodput_bps") >= KNEE_SHARE * best)


def _assumptions(
    direction: DirectionName, flows: int, knee: Row | None
) -> dict[str, tuple[str, ...]]:
    """Return the settings of what may be otherwise; each keeps the queue of the knee in bytes."""
    queue = _drop_tail(direction, 0 if knee is None else knee.limit_bytes or 0)
    return {
        f"{max(flows // 4, 1)} transfers": (queue, f"traffic.transfer.count={max(flows // 4, 1)}"),
        f"{4 * flows} transfers": (queue, f"traffic.transfer.count={4 * flows}"),
        "bbr": (queue, "traffic.transfer.tcp.congestion_control=bbr"),
        "newreno": (queue, "traffic.transfer.tcp.congestion_control=newreno"),
        "bit error rate 1e-07": (queue, f"link.{direction}.bit_error_rate=1e-7"),
    }


def _instead(name: str, flows: int, congestion_control: str) -> str:
    if name.startswith("bit error rate"):
        return "that of the link"
    return f"{flows} transfers" if name.endswith("transfers") else congestion_control


def _drop_tail(direction: DirectionName, size: int) -> str:
    return f"link.{direction}.queue={{discipline: drop_tail, limit: {size} B}}"


def _answer(facts: _Facts) -> Answer:
    knee, rate_bps = facts.knee, facts.rate_bps
    goodput, wait_ns = knee.of("goodput_bps"), knee.of("queue_delay_p99_ns")
    size = knee.limit_bytes or 0
    lines = [
        f"Queue: {_size_text(facts)} at the link rate, drop-tail",
        f"Goodput of {facts.flows} transfers together: {rate_text(goodput)}, "
        f"{percent_of(goodput.mean, rate_bps)} of the link rate",
        f"Packets of a call wait at most {time_text(wait_ns)} in the queue (99 % of them)",
        f"The call: MOS {knee.mean('call_mos'):.2f}, "
        f"{knee.mean('call_loss_percent'):.2f} % lost (G.711, ITU-T G.107)",
    ]
    limit = f"link.{facts.direction}.queue.limit={size}B"
    managed = next((row for row in facts.rows if row.limit_bytes is None), None)
    if managed is not None:
        lines.append(
            f"With fq_codel instead: {rate_text(managed.of('goodput_bps'))}, wait "
            f"{time_text(managed.of('queue_delay_p99_ns'))}, MOS {managed.mean('call_mos'):.2f}"
        )
    return Answer(
        question=f"How large should the {facts.direction} queue of {facts.link} be?",
        lines=lines,
        reason=_reason(facts),
        uncertainty=f"{runs_text(goodput)} of each of {len(facts.rows)} queues; ± is the 95 % "
        "interval of a mean. Between two tried sizes the knee is not resolved.",
        effects=largest_first(facts.effects),
        commands=[
            f"bentpipe exec --link {facts.link.shell}"
            f"{settings_text([*facts.link.settings, limit])} -- curl -o page http://world/bytes/10000000"
        ],
        figures={
            "knee": _figures(facts, knee),
            "queues": [{"queue": row.label, **_figures(facts, row)} for row in facts.rows],
        },
        tables=[_table(facts)],
        charts=[_chart(facts)],
        parameters={
            "link": facts.link.name,
            "set": list(facts.link.settings),
            "direction": facts.direction,
            "flows": facts.flows,
        },
    )


def _size_text(facts: _Facts) -> str:
    knee = facts.knee
    send_time = format_duration(facts.send_time_ns(knee) or 0)
    return f"{format_size(knee.limit_bytes or 0)} = {knee.label} = {send_time}"


def _figures(facts: _Facts, row: Row) -> dict[str, float | Estimate | None]:
    """Return the limit of a queue in three units, and the means of its runs."""
    return {
        "limit_bytes": row.limit_bytes,
        "limit_ns": facts.send_time_ns(row),
        "bdp": None if row.limit_bytes is None else row.bdp,
        **{figure: row.of(figure) for figure in row.figures},
    }


def _reason(facts: _Facts) -> str:
    """Say what a smaller queue costs and a larger one adds, from the neighbours of the knee."""
    sized = facts.sized
    place = sized.index(facts.knee)
    parts = []
    if place > 0:
        less = change_percent(
            facts.knee.figures["goodput_bps"], sized[place - 1].figures["goodput_bps"]
        )
        parts.append(f"with {sized[place - 1].label} goodput changes by {signed_percent(less)}")
    largest = sized[-1]
    if largest is not facts.knee:
        more = change_percent(facts.knee.figures["goodput_bps"], largest.figures["goodput_bps"])
        wait = format_duration(largest.mean("queue_delay_p99_ns"))
        parts.append(f"with {largest.label} by {signed_percent(more)}, but packets wait {wait}")
    return (
        f"it is the smallest queue tried with {100 * KNEE_SHARE:.0f} % of the best goodput: "
        f"{' and '.join(parts)}."
    )


def _table(facts: _Facts) -> DataTable:
    columns = (
        ("queue", ""),
        ("limit", "kB"),
        ("goodput", "Mbit/s"),
        ("queue delay", "ms, p99 of a call's packets"),
        ("fairness", "Jain"),
        ("call loss", "%"),
        ("call MOS", "1 to 4.5"),
    )
    rows = [
        [
            ("*" if row is facts.knee else "") + row.label,
            "" if row.limit_bytes is None else f"{row.limit_bytes / 1e3:,.0f}",
            f"{row.mean('goodput_bps') / 1e6:.3f}",
            f"{row.mean('queue_delay_p99_ns') / NS_PER_MS:.1f}",
            f"{row.mean('fairness'):.3f}",
            f"{row.mean('call_loss_percent'):.2f}",
            f"{row.mean('call_mos'):.2f}",
        ]
        for row in facts.rows
    ]
    return DataTable(title="Each queue; the knee is emphasized", columns=columns, rows=rows)


def _chart(facts: _Facts) -> Chart:
    """Draw all figures over the queue limit, in bytes, time at the link rate, and BDP."""
    panels = (
        ("Goodput\n[Mbit/s]", "goodput_bps", 1e-6),
        ("Queue delay\np99 [ms]", "queue_delay_p99_ns", 1 / NS_PER_MS),
        ("Call loss\n[%]", "call_loss_percent", 1.0),
        ("Fairness\n[Jain's index]", "fairness", 1.0),
        ("Speech quality\n[MOS]", "call_mos", 1.0),
    )
    knee = facts.knee
    return Chart(
        title="Each figure over the queue limit, in three units; delay and loss are of the call's "
        "packets",
        x_label="Queue limit [kB]",
        x=[(row.limit_bytes or 0) / 1e3 for row in facts.sized],
        x_units=[
            ("at the link rate [ms]", 8e6 / facts.rate_bps),
            ("in bandwidth-delay products", 1e3 / facts.bdp_bytes),
        ],
        series={
            label: [row.of(figure).times(factor) for row in facts.sized]
            for label, figure, factor in panels
        },
        marks=[((knee.limit_bytes or 0) / 1e3, f"knee: {_size_text(facts)}")],
        kind="panels",
        scale="log",
    )
