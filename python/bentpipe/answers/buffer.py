"""How large the queue should be.

It carries TCP transfers and a G.711 call. The answer is the knee: the smallest of the tried
drop-tail queues with 98 % of the best goodput, with the delay and the speech quality that it
costs, compared with the queue that the link has; or FQ-CoDel, where that keeps the goodput and
packets wait less. The delay of a queue is that which the packets of the call see: 99 % of them
waited less.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

from bentpipe.answers.answer import Answer, charts, table
from bentpipe.answers.catalog import Option
from bentpipe.answers.question import Assumption
from bentpipe.answers.queues import MIN_LIMIT_BYTES, Knee, Queues
from bentpipe.answers.runs import Change, Measurements
from bentpipe.answers.traffic import Transfer, bit_errors, call, call_beside
from bentpipe.answers.trial import Trial
from bentpipe.plan.plan import Plan
from bentpipe.results.measures import aggregate_goodput_bps, jain
from bentpipe.results.result import Result
from bentpipe.text import counted
from bentpipe.units import format_duration, format_size

# The queues that are tried, in bandwidth-delay products of the round-trip propagation.
BUFFERS_BDP: Final = (0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)
# The knee: the smallest queue with this share of the best goodput.
KNEE_SHARE: Final = 0.98
MANAGED: Final = "fq_codel"
# The queue of the link as it is.
NOW: Final = "now"
GOODPUT, WAIT = "goodput_bps", "queue_delay_p99_ns"

Runs = Mapping[str, Measurements]


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

    def _measure(self, result: Result) -> Mapping[str, float]:
        transfers = [i for i, kind in enumerate(result.flows["kind"]) if kind == "bulk"]
        return {
            GOODPUT: aggregate_goodput_bps(result, transfers),
            "fairness": jain(result.goodput_bps[transfers]),
            **call_beside(result, self.wire),
        }

    @property
    def queues(self) -> Queues:
        """The queues of the direction of the data."""
        return Queues(self.direction, self.wire, self.rtt_ns)

    @property
    def _settings(self) -> dict[str, list[str]]:
        """The settings of the queues that are tried, by name."""
        limits = self.queues.limits(BUFFERS_BDP, MIN_LIMIT_BYTES)
        sized = {name: [self.queues.drop_tail(limit)] for name, limit in limits.items()}
        return {**sized, MANAGED: [self.queues.fq_codel()]}

    def _cases(self) -> Mapping[str, Plan]:
        """Return the queues, by name."""
        return {NOW: self.base, **self.fitting(self._settings)}

    def _assumptions(self) -> list[Assumption]:
        """Return other transfers, and errors."""
        entry, now = "traffic.transfer", counted(self.flows, "transfer")
        counts = (max(self.flows // 4, 1), 4 * self.flows)
        tcp, control = f"{entry}.tcp.congestion_control", self.congestion_control
        return [
            *(Assumption(counted(n, "transfer"), now, (f"{entry}.count={n}",)) for n in counts),
            *(Assumption(other, control, (f"{tcp}={other}",)) for other in ("bbr", "newreno")),
            bit_errors(self.direction, 1e-7, "that of the link"),
        ]

    def _basis(self, runs: Runs) -> tuple[Measurements, Sequence[str]]:
        knee = _knee(runs).name
        return runs[knee], self._settings[knee]

    def _judge(self, runs: Runs) -> Answer:
        """Compare the knee with the queue of the link, and with the managed one.

        Goodput counts first, because the knee is chosen by it. The wait differs between any two
        queues: it counts where it is shorter and goodput is equal.
        """
        knee, others = _knee(runs), len(runs) - 1
        base, sized = runs[knee.name], {name: runs[name] for name in _sized(runs)}
        limits = {name: self.queues.limit_of(self.cases[name]) for name in runs}
        kilobytes = [limits[name]["limit_bytes"] / 1e3 for name in sized]
        changes = {name: Change.of(name, runs[NOW], base, others) for name in (GOODPUT, WAIT)}
        is_shorter = [changes[name].outcome for name in (GOODPUT, WAIT)] == ["equal", "gains"]
        better = GOODPUT if changes[GOODPUT].outcome == "gains" else WAIT if is_shorter else None
        limit, figure = limits[knee.name], better or GOODPUT
        texts = [format_size(limit["limit_bytes"]), knee.name, format_duration(limit["limit_ns"])]
        tried = {name: self.cases[name] for name in (NOW, *([knee.name] if better else []))}
        queues = [{"queue": name, **limits[name], **runs[name].estimates()} for name in runs]
        strong = {([*runs].index(knee.name), 0)}
        return Answer(
            facts={
                "runs": runs,
                "base": base,
                "at": knee,
                "others": others,
                "size": " = ".join(texts),
                "changes": changes,
                "goodput": Change.of(GOODPUT, base, runs[MANAGED], others),
                "wait": Change.of(WAIT, base, runs[MANAGED], others),
            },
            figures={
                "knee": {**limit, **base.estimates()},
                "knees_of_runs": knee.of_runs,
                "better_by": better,
                "queues": queues,
            },
            tables=[table("buffer", "Each queue; the knee is emphasized", queues, strong=strong)],
            charts=charts(
                "buffer",
                sized,
                x=kilobytes,
                x_units=self.queues.scales(1e3),
                marks=[(kilobytes[[*sized].index(knee.name)], f"knee: {' = '.join(texts)}")],
            ),
            trial=Trial.of(figure, lambda result: self._measure(result)[figure], tried, runs),
        )


def _knee(runs: Runs) -> Knee:
    return Knee.of({name: runs[name][GOODPUT] for name in _sized(runs)}, KNEE_SHARE)


def _sized(runs: Runs) -> list[str]:
    """Return the names of the drop-tail queues that were tried, the smallest first."""
    return [name for name in runs if name not in {NOW, MANAGED}]
