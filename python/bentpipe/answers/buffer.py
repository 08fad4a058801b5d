"""How large the queue should be.

It carries TCP transfers and a G.711 call. The answer is the knee: the smallest of the tried
drop-tail queues with 98 % of the best goodput, with the delay and the speech quality that it
costs, compared with the queue that the link has. The delay of a queue is that which the packets of
the call see: 99 % of them waited less.
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
from bentpipe.answers.traffic import CODEC, Transfer, bit_errors, call, fq_codel
from bentpipe.answers.trial import Trial
from bentpipe.plan.plan import Plan
from bentpipe.results.measures import aggregate_goodput_bps, jain
from bentpipe.results.result import Result
from bentpipe.scenario.framings import frame_bits
from bentpipe.text import counted
from bentpipe.units import NS_PER_S, UDP_IP_BYTES, format_duration, format_size

# The queues that are tried, in bandwidth-delay products of the round-trip propagation.
BUFFERS_BDP: Final = (0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)
# The knee: the smallest queue with this share of the best goodput.
KNEE_SHARE: Final = 0.98
# A queue holds a few packets at least, or every burst overflows it.
_MIN_LIMIT_BYTES: Final = 6_000
MANAGED: Final = "fq_codel"
# The queue of the link as it is.
NOW: Final = "now"
GOODPUT, WAIT = "goodput_bps", "queue_delay_p99_ns"

Found = Mapping[str, Measurements]


@dataclass(kw_only=True, eq=False)
class Buffer(Transfer):
    """The queue limit at the knee of goodput."""

    flows: Annotated[int, Option("TCP transfers at the same time.", "N", min=1, max=500)] = 4

    examples = ("--link geo", "--link geo --flows 16 --report buffer.html")
    constants = ("rate_bps", "delay_ns")
    can_emulate = True
    figure = GOODPUT

    def _traffic(self) -> list[dict[str, Any]]:
        return [self.transfer(count=self.flows, start_jitter="1 s"), call(self.direction)]

    @property
    def _bdp_bytes(self) -> float:
        return self.rate_bps * self.rtt_ns / NS_PER_S / 8

    def _measure(self, result: Result) -> Mapping[str, float]:
        speaker = _speaker(result)
        return {
            GOODPUT: _goodput_bps(result),
            "fairness": jain(result.goodput_bps[_transfers(result)]),
            WAIT: self._wait_ns(result),
            "call_unplayed_percent": speaker["unplayed_percent"],
            "call_r_factor": speaker["r_factor"],
            "call_mos": speaker["mos"],
        }

    def _wait_ns(self, result: Result) -> float:
        """Return what 99 % of the packets of the call waited at most."""
        bits = frame_bits(self.wire["framing"], CODEC.payload_bytes + UDP_IP_BYTES)
        on_link_ns = initial(self.wire["delay_ns"]) + bits * NS_PER_S / self.rate_bps
        late_ns = _speaker(result)["one_way_delay_p99_ns"] or math.nan
        return max(late_ns - on_link_ns, 0.0)

    @property
    def _sizes(self) -> dict[str, int]:
        """The limits of the drop-tail queues in bytes, by name."""
        limits = {max(round(bdp * self._bdp_bytes), _MIN_LIMIT_BYTES) for bdp in BUFFERS_BDP}
        return {f"{limit / self._bdp_bytes:.2g} BDP": limit for limit in sorted(limits)}

    def _setting(self, name: str) -> str:
        """Return the setting of a queue: drop-tail, or the managed one."""
        size = self._sizes.get(name)
        if size is None:
            return f"link.{self.direction}.queue={fq_codel(self.rtt_ns, self.wire)}"
        return f"link.{self.direction}.queue={{discipline: drop_tail, limit: {size} B}}"

    def _cases(self) -> Mapping[str, Plan]:
        """Return the queues, by name."""
        tried = {name: [self._setting(name)] for name in (*self._sizes, MANAGED)}
        return {NOW: self.base, **self.fitting(tried)}

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
        changes = {
            figure: Change.of(figure, found[NOW], found[knee], len(found) - 1)
            for figure in (GOODPUT, WAIT)
        }
        better = _better(changes[GOODPUT], changes[WAIT])
        sized = {name: found[name] for name in self._sizes if name in found}
        names, sizes_kb = [*sized], [self._sizes[name] / 1e3 for name in sized]
        place, others = names.index(knee), len(found) - 1
        sizes = {name: self._size(name) for name in found}
        queues = {name: {**sizes[name], **found[name].estimates()} for name in found}
        rows = [{**sizes[name], **found[name].means()} for name in found]
        limit = sizes[knee]
        size = " = ".join(
            [format_size(limit["limit_bytes"]), knee, format_duration(limit["limit_ns"])]
        )
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
                "managed": fq_codel(self.rtt_ns, self.wire),
                "changes": changes,
                "goodput": Change.of(GOODPUT, found[knee], found[MANAGED], others),
                "wait": Change.of(WAIT, found[knee], found[MANAGED], others),
            },
            figures={
                "knee": {name: each for name, each in queues[knee].items() if name != "queue"},
                "knees_of_runs": knees,
                "better_by": better,
                "queues": [*queues.values()],
            },
            tables=[
                table(
                    "buffer",
                    "Each queue; the knee is emphasized",
                    rows,
                    strong={([*found].index(knee), 0)},
                )
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
            trial=self._trial(knee, better, found),
        )

    def _trial(self, knee: str, better: str | None, found: Found) -> Trial:
        """Return the link's own queue, and the knee if it is better than that."""
        cases, measures = self._cases(), {GOODPUT: _goodput_bps, WAIT: self._wait_ns}
        tried = {name: cases[name] for name in (NOW, *([knee] if better else []))}
        return Trial.of(better or GOODPUT, measures[better or GOODPUT], tried, found)

    @property
    def _limit_bytes(self) -> int | None:
        """The limit of the link's own queue, if it is drop-tail and has a size or a time."""
        queue = self.wire["queue"]
        limit = queue["limit"]
        if queue["discipline"] != "drop_tail":
            return None
        if limit["unit"] == "time_ns":
            return round(int(limit["value"]) * self.rate_bps / (8 * NS_PER_S))
        return int(limit["value"]) if limit["unit"] in {"bytes", "link_bytes"} else None

    @property
    def own_queue(self) -> str:
        """The link's own queue, for a sentence: its size, if it has one, or its discipline."""
        size = self._limit_bytes
        return str(self.wire["queue"]["discipline"]) if size is None else format_size(size)

    def _size(self, name: str) -> dict[str, Any]:
        """Return the size of a queue in three units, without a limit of its own None."""
        size = self._limit_bytes if name == NOW else self._sizes.get(name)
        if size is None:
            return {"queue": name, "limit_bytes": None, "limit_ns": None, "bdp": None}
        bdp = size / self._bdp_bytes if name == NOW else float(name.removesuffix(" BDP"))
        limit_ns = size * 8 * NS_PER_S / self.rate_bps
        return {"queue": name, "limit_bytes": size, "limit_ns": limit_ns, "bdp": bdp}


def _transfers(result: Result) -> list[int]:
    return [i for i, kind in enumerate(result.flows["kind"]) if kind == "bulk"]


def _speaker(result: Result) -> dict[str, Any]:
    return result.flows.row(result.flows["kind"].to_list().index("voice"), named=True)


def _goodput_bps(result: Result) -> float:
    return aggregate_goodput_bps(result, _transfers(result))


def _better(goodput: Change, wait: Change) -> str | None:
    """Return the figure by which a queue is shown to be better than another one, or None.

    Goodput counts first, because the knee is chosen by it. The wait differs between any two queues:
    it counts where it is shorter and goodput is equal.
    """
    if goodput.outcome == "gains":
        return GOODPUT
    return WAIT if goodput.outcome == "equal" and wait.outcome == "gains" else None
