"""``ask buffer``: how large the queue should be, for transfers and for a call beside them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, NamedTuple

from bentpipe.answers.answer import Answer, Chart, Estimate, columns, percent_of, signed_percent
from bentpipe.answers.question import Assumption, Measurements, Option, asking, initial, peak_bps
from bentpipe.answers.tcp import Transfer
from bentpipe.answers.traffic import CODEC, NS_PER_MS, UDP_IP_BYTES, call, call_quality
from bentpipe.results.measures import aggregate_goodput_bps, jain
from bentpipe.results.result import Result
from bentpipe.results.views import from_mappings
from bentpipe.scenario.framings import frame_bits
from bentpipe.units import NS_PER_S, format_duration, format_size

# The queues that are tried, in bandwidth-delay products of the round-trip propagation.
BUFFERS_BDP: Final = (0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)
# The knee: the smallest queue with this share of the best goodput.
KNEE_SHARE: Final = 0.98
# A queue holds a few packets at least, or every burst overflows it.
_MIN_LIMIT_BYTES: Final = 6_000
_MANAGED: Final = "fq_codel"


class _Queue(NamedTuple):
    """A queue, and the figures of its runs.

    ``limit_bytes`` and ``bdp`` are None if it is not drop-tail.
    """

    label: str
    limit_bytes: int | None
    bdp: float | None
    setting: str
    found: Measurements = Measurements()


@dataclass(kw_only=True, eq=False)
class Buffer(Transfer):
    """How large the queue should be.

    It carries TCP transfers and a G.711 call. The answer is the knee: the smallest of the tried
    drop-tail queues with 98 % of the best goodput, with the delay and the speech quality that it
    costs. The delay of a queue is that which the packets of the call see: 99 % of them waited less.

    See `Question` for the other parameters and the errors; a UsageError is also that rate or delay
    vary with time.
    """

    flows: Annotated[int, Option("TCP transfers at the same time.", "N", min=1, max=500)] = 4

    name = "buffer"
    examples = ("--link geo", "--link geo --flows 16 --report buffer.html")

    def _traffic(self) -> list[dict[str, Any]]:
        return [self.transfer(count=self.flows, start_jitter="1 s"), call(self.direction)]

    @property
    def _rate_bps(self) -> int:
        return peak_bps(self.wire["rate_bps"])

    @property
    def _bdp_bytes(self) -> float:
        return self._rate_bps * self.rtt_ns / NS_PER_S / 8

    def _measure(self, result: Result) -> Mapping[str, float]:
        bits = frame_bits(self.wire["framing"], CODEC.payload_bytes + UDP_IP_BYTES)
        serialization_ns = bits * NS_PER_S / self._rate_bps
        kinds = result.flows["kind"].to_list()
        transfers = [i for i, kind in enumerate(kinds) if kind == "bulk"]
        speaker = result.flows.row(kinds.index("constant_rate"), named=True)
        late_ns = speaker["one_way_delay_p99_ns"] or math.nan
        r_factor, mos = call_quality(speaker)
        return {
            "goodput_bps": aggregate_goodput_bps(result, transfers),
            "fairness": jain(result.goodput_bps[transfers]),
            "queue_delay_p99_ns": max(
                late_ns - initial(self.wire["delay_ns"]) - serialization_ns, 0.0
            ),
            "call_loss_percent": speaker["loss_percent"] or 0.0,
            "call_r_factor": r_factor,
            "call_mos": mos,
        }

    def _queues(self) -> list[_Queue]:
        queues = []
        for factor in BUFFERS_BDP:
            size = max(round(factor * self._bdp_bytes), _MIN_LIMIT_BYTES)
            queues.append(_Queue(f"{factor:g} BDP", size, factor, self._drop_tail(size)))
        managed = f"link.{self.direction}.queue={{discipline: {_MANAGED}}}"
        return [*queues, _Queue(_MANAGED, None, None, managed)]

    def _drop_tail(self, size: int) -> str:
        return f"link.{self.direction}.queue={{discipline: drop_tail, limit: {size} B}}"

    def _assumptions(self) -> list[Assumption]:
        entry, now = "traffic.transfer", f"{self.flows} transfers"
        counts, control = (max(self.flows // 4, 1), 4 * self.flows), self.congestion_control
        errors = (f"link.{self.direction}.bit_error_rate=1e-7",)
        return [
            *(Assumption(f"{n} transfers", now, (f"{entry}.count={n}",)) for n in counts),
            *(
                Assumption(name, control, (f"{entry}.tcp.congestion_control={name}",))
                for name in ("bbr", "newreno")
            ),
            Assumption("bit error rate 1e-07", "that of the link", errors),
        ]

    def _answer(self) -> Answer:
        self.require_constant(self.wire, "rate_bps", "delay_ns")
        queues, assumptions = self._queues(), self._assumptions()
        cases = self.cases({queue.label: (queue.setting,) for queue in queues})
        self.choose_seeds(len(cases) + len(assumptions))
        found = self.run(cases)
        rows = [each._replace(found=found[each.label]) for each in queues if each.label in found]
        sized = [row for row in rows if row.limit_bytes is not None]
        best_bps = max(row.found.mean("goodput_bps") for row in sized)
        knee = next(row for row in sized if row.found.mean("goodput_bps") >= KNEE_SHARE * best_bps)
        of_knee, size = knee.found, knee.limit_bytes or 0
        goodput = of_knee.of("goodput_bps")
        lines = [
            f"Queue: {self._size_text(knee)} at the link rate, drop-tail",
            f"Goodput of {self.flows} transfers together: {of_knee.text('goodput_bps')}, "
            f"{percent_of(goodput.mean, self._rate_bps)} of the link rate",
            f"Packets of a call wait at most {of_knee.text('queue_delay_p99_ns')} in the queue "
            "(99 % of them)",
            f"The call: MOS {of_knee.mean('call_mos'):.2f}, "
            f"{of_knee.mean('call_loss_percent'):.2f} % lost (G.711, ITU-T G.107)",
        ]
        lines += [
            f"With {row.label} instead: {row.found.text('goodput_bps')}, wait "
            f"{row.found.text('queue_delay_p99_ns')}, MOS {row.found.mean('call_mos'):.2f}"
            for row in rows
            if row.limit_bytes is None
        ]
        return Answer(
            question=f"How large should the {self.direction} queue of {self.subject} be?",
            lines=lines,
            reason=_reason(sized, knee),
            uncertainty=f"{goodput.runs_text} of each of {len(rows)} queues; ± is the 95 % "
            "interval of a mean. Between two tried sizes the knee is not resolved.",
            effects=self.effects(assumptions, knee.found, "goodput_bps", self._drop_tail(size)),
            commands=[self.exec_command(f"link.{self.direction}.queue.limit={size}B")],
            figures={
                "knee": self._figures(knee),
                "queues": [{"queue": row.label, **self._figures(row)} for row in rows],
            },
            tables=[
                from_mappings(
                    "Each queue; the knee is emphasized",
                    columns("buffer"),
                    [
                        {"queue": row.label, "limit_bytes": row.limit_bytes, **row.found.means()}
                        for row in rows
                    ],
                    strong={(rows.index(knee), 0)},
                )
            ],
            charts=[self._chart(sized, knee)],
        )

    def _limit_ns(self, row: _Queue) -> float | None:
        return None if row.limit_bytes is None else row.limit_bytes * 8e9 / self._rate_bps

    def _size_text(self, knee: _Queue) -> str:
        send_time = format_duration(self._limit_ns(knee) or 0)
        return f"{format_size(knee.limit_bytes or 0)} = {knee.label} = {send_time}"

    def _figures(self, row: _Queue) -> dict[str, float | Estimate | None]:
        return {
            "limit_bytes": row.limit_bytes,
            "limit_ns": self._limit_ns(row),
            "bdp": row.bdp,
            **row.found.estimates(),
        }

    def _chart(self, sized: Sequence[_Queue], knee: _Queue) -> Chart:
        """Draw all figures over the queue limit, in bytes, time at the link rate, and BDP."""
        panels = (
            ("Goodput\n[Mbit/s]", "goodput_bps", 1e-6),
            ("Queue delay\np99 [ms]", "queue_delay_p99_ns", 1 / NS_PER_MS),
            ("Call loss\n[%]", "call_loss_percent", 1.0),
            ("Fairness\n[Jain's index]", "fairness", 1.0),
            ("Speech quality\n[MOS]", "call_mos", 1.0),
        )
        return Chart(
            title="Each figure over the queue limit, in three units; delay and loss are of the "
            "call's packets",
            x_label="Queue limit [kB]",
            x=[(row.limit_bytes or 0) / 1e3 for row in sized],
            x_units=[
                ("at the link rate [ms]", 8e6 / self._rate_bps),
                ("in bandwidth-delay products", 1e3 / self._bdp_bytes),
            ],
            series={
                label: [row.found.of(figure).times(factor) for row in sized]
                for label, figure, factor in panels
            },
            marks=[((knee.limit_bytes or 0) / 1e3, f"knee: {self._size_text(knee)}")],
            kind="panels",
            scale="log",
        )


buffer = asking(Buffer)


def _reason(sized: Sequence[_Queue], knee: _Queue) -> str:
    """Say what a smaller queue costs and a larger one adds, from the neighbours of the knee."""
    parts, place, largest = [], sized.index(knee), sized[-1]
    if place > 0:
        less = knee.found.change("goodput_bps", sized[place - 1].found)
        parts.append(f"with {sized[place - 1].label} goodput changes by {signed_percent(less)}")
    if largest is not knee:
        more = knee.found.change("goodput_bps", largest.found)
        wait = format_duration(largest.found.mean("queue_delay_p99_ns"))
        parts.append(f"with {largest.label} by {signed_percent(more)}, but packets wait {wait}")
    return (
        f"it is the smallest queue tried with {100 * KNEE_SHARE:.0f} % of the best goodput: "
        f"{' and '.join(parts)}."
    )
