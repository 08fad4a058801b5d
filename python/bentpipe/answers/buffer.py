"""How large the queue should be.

It carries TCP transfers and a G.711 call. The answer is the knee: the smallest of the tried
drop-tail queues with 98 % of the best goodput, with the delay and the speech quality that it
costs. The delay of a queue is that which the packets of the call see: 99 % of them waited less.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

from bentpipe.answers.answer import Answer, charts, table
from bentpipe.answers.catalog import Option
from bentpipe.answers.question import Assumption, initial
from bentpipe.answers.runs import Change, Measurements
from bentpipe.answers.traffic import CODEC, UDP_IP_BYTES, Transfer, bit_errors, call, fq_codel
from bentpipe.plan.plan import Plan
from bentpipe.results.measures import aggregate_goodput_bps, jain
from bentpipe.results.result import Result
from bentpipe.scenario.framings import frame_bits
from bentpipe.text import counted
from bentpipe.units import NS_PER_S, format_duration, format_size

# The queues that are tried, in bandwidth-delay products of the round-trip propagation.
BUFFERS_BDP: Final = (0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)
# The knee: the smallest queue with this share of the best goodput.
KNEE_SHARE: Final = 0.98
# A queue holds a few packets at least, or every burst overflows it.
_MIN_LIMIT_BYTES: Final = 6_000
MANAGED: Final = "fq_codel"


Found = Mapping[str, Measurements]


@dataclass(kw_only=True, eq=False)
class Buffer(Transfer):
    """The queue limit at the knee of goodput."""

    flows: Annotated[int, Option("TCP transfers at the same time.", "N", min=1, max=500)] = 4

    examples = ("--link geo", "--link geo --flows 16 --report buffer.html")
    constants = ("rate_bps", "delay_ns")
    figure = "goodput_bps"

    def _traffic(self) -> list[dict[str, Any]]:
        return [self.transfer(count=self.flows, start_jitter="1 s"), call(self.direction)]

    @property
    def _bdp_bytes(self) -> float:
        return self.rate_bps * self.rtt_ns / NS_PER_S / 8

    def _measure(self, result: Result) -> Mapping[str, float]:
        bits = frame_bits(self.wire["framing"], CODEC.payload_bytes + UDP_IP_BYTES)
        on_link_ns = initial(self.wire["delay_ns"]) + bits * NS_PER_S / self.rate_bps
        kinds = result.flows["kind"].to_list()
        transfers = [i for i, kind in enumerate(kinds) if kind == "bulk"]
        speaker = result.flows.row(kinds.index("voice"), named=True)
        late_ns = speaker["one_way_delay_p99_ns"] or math.nan
        return {
            "goodput_bps": aggregate_goodput_bps(result, transfers),
            "fairness": jain(result.goodput_bps[transfers]),
            "queue_delay_p99_ns": max(late_ns - on_link_ns, 0.0),
            "call_loss_percent": speaker["loss_percent"] or 0.0,
            "call_r_factor": speaker["r_factor"],
            "call_mos": speaker["mos"],
        }

    @property
    def _sizes(self) -> dict[str, int]:
        """The limits of the drop-tail queues in bytes, by name."""
        limits = {f"{bdp:g} BDP": round(bdp * self._bdp_bytes) for bdp in BUFFERS_BDP}
        return {name: max(limit, _MIN_LIMIT_BYTES) for name, limit in limits.items()}

    def _setting(self, name: str) -> str:
        """Return the setting of a queue: drop-tail, or the managed one."""
        size = self._sizes.get(name)
        drop_tail = f"{{discipline: drop_tail, limit: {size} B}}"
        return f"link.{self.direction}.queue={fq_codel(self.rtt_ns) if size is None else drop_tail}"

    def _cases(self) -> Mapping[str, Plan]:
        """Return the queues, by name."""
        return self.fitting({name: [self._setting(name)] for name in (*self._sizes, MANAGED)})

    def _assumptions(self) -> list[Assumption]:
        """Return other transfers, and errors."""
        entry, now = "traffic.transfer", counted(self.flows, "transfer")
        counts = (max(self.flows // 4, 1), 4 * self.flows)
        tcp, control = f"{entry}.tcp.congestion_control", self.congestion_control
        return [
            *(Assumption(counted(n, "transfer"), now, (f"{entry}.count={n}",)) for n in counts),
            *(Assumption(each, control, (f"{tcp}={each}",)) for each in ("bbr", "newreno")),
            bit_errors(self.direction, 1e-7, "that of the link"),
        ]

    def _knees(self, found: Found) -> list[str]:
        """Return the knee of the mean goodputs, then those of single runs."""
        goodputs = {name: found[name]["goodput_bps"] for name in self._sizes if name in found}
        means = [float(each.mean()) for each in goodputs.values()]
        cases: list[Sequence[float]] = [means, *zip(*goodputs.values(), strict=True)]
        return [
            next(name for name, bps in zip(goodputs, case, strict=True) if bps >= least_bps)
            for case, least_bps in ((case, KNEE_SHARE * max(case)) for case in cases)
        ]

    def _basis(self, found: Found) -> tuple[Measurements, Sequence[str]]:
        knee = self._knees(found)[0]
        return found[knee], (self._setting(knee),)

    def _judge(self, found: Found) -> Answer:
        knee, *knees = self._knees(found)
        sized = {name: found[name] for name in self._sizes if name in found}
        names, sizes_kb = [*sized], [self._sizes[name] / 1e3 for name in sized]
        place, others = names.index(knee), len(found) - 1
        sizes = [self._size(name) for name in found]
        queues = [{**each, **found[each["queue"]].estimates()} for each in sizes]
        rows = [{**each, **found[each["queue"]].means()} for each in sizes]
        limit_bytes, limit_ns = sizes[place]["limit_bytes"], sizes[place]["limit_ns"]
        size = f"{format_size(limit_bytes)} = {knee} = {format_duration(limit_ns)}"
        return Answer(
            facts={
                "found": found,
                "base": found[knee],
                "others": others,
                "size": size,
                "knee_name": knee,
                "knees": sorted(knees, key=names.index),
                "smaller": names[place - 1] if place else None,
                "largest": names[-1] if knee != names[-1] else None,
                "managed": fq_codel(self.rtt_ns),
                "goodput": Change.of("goodput_bps", found[knee], found[MANAGED], others),
                "wait": Change.of("queue_delay_p99_ns", found[knee], found[MANAGED], others),
            },
            figures={
                "knee": {name: queues[place][name] for name in queues[place] if name != "queue"},
                "knees_of_runs": knees,
                "queues": queues,
            },
            tables=[
                table("buffer", "Each queue; the knee is emphasized", rows, strong={(place, 0)})
            ],
            charts=charts(
                "buffer",
                sized,
                x=sizes_kb,
                x_units=[
                    ("at the link rate [ms]", 8e6 / self.rate_bps),
                    ("in bandwidth-delay products", 1e3 / self._bdp_bytes),
                ],
                marks=[(sizes_kb[place], f"knee: {size}")],
            ),
        )

    def _size(self, name: str) -> dict[str, Any]:
        """Return the size of a queue in three units, without a limit of its own None."""
        size = self._sizes.get(name)
        if size is None:
            return {"queue": name, "limit_bytes": None, "limit_ns": None, "bdp": None}
        bdp, limit_ns = float(name.removesuffix(" BDP")), size * 8e9 / self.rate_bps
        return {"queue": name, "limit_bytes": size, "limit_ns": limit_ns, "bdp": bdp}
