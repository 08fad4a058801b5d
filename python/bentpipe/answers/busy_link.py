"""Why a link at 60 % average is felt as full.

Users read pages: each takes a page over TCP (log-normal size, median 300 kB, mean 924 kB),
thinks for 15 s on average, and takes the next. Their number is adjusted until the average of
the forward direction over 5 minutes is as asked for; windows of 100 ms show what they feel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from bentpipe.answers.answer import Answer, Chart
from bentpipe.answers.catalog import Option
from bentpipe.answers.question import Assumption, LinkQuestion, initial, peak_bps
from bentpipe.answers.remedies import Goal
from bentpipe.answers.runs import Estimate, Measurements
from bentpipe.answers.traffic import (
    MEDIAN_PAGE_BYTES,
    fq_codel,
    page_reader,
    page_times,
    users_of,
)
from bentpipe.plan.plan import Plan
from bentpipe.results.result import Result
from bentpipe.units import NS_PER_S

WINDOW_NS: Final = 100_000_000
# A window with this share of the link's capacity is full, with the rest of it empty.
FULL_SHARE: Final = 0.95
EMPTY_SHARE: Final = 0.05
# The users are adjusted until the average is this near to the one asked for.
_TOLERANCE: Final = 0.01
_SHOWN_WINDOWS: Final = 600
_SAMPLED: Final = f"sample_interval={WINDOW_NS}ns"


def windows(sent_bytes: npt.ArrayLike, rate_bps: float) -> dict[str, float]:
    """Return the load of windows of equal length from the link bytes sent in each.

    A window is full with 95 % of the link's capacity and empty with less than 5 %. The figures are
    the average, of the link rate, the shares of windows that are full and empty, and the longest
    time without a window that is not full.
    """
    load = np.asarray(sent_bytes, dtype=np.float64) * 8 * NS_PER_S / (rate_bps * WINDOW_NS)
    full = load >= FULL_SHARE
    # The ends of runs of full windows: a boundary before the first and after the last.
    edges = np.flatnonzero(np.diff(np.concatenate(([False], full, [False])).astype(np.int8)))
    return {
        "average": float(np.mean(load)),
        "full": float(np.mean(full)),
        "empty": float(np.mean(load < EMPTY_SHARE)),
        "longest_full_ns": int(np.max(edges[1::2] - edges[::2], initial=0)) * WINDOW_NS,
    }


@dataclass(kw_only=True, eq=False)
class BusyLink(LinkQuestion):
    """What users of a link with this average feel."""

    average: Annotated[
        float,
        Option("The average of 5 minutes, of the rate.", "PERCENT", min=0.01, max=FULL_SHARE),
    ] = 0.6
    duration: str = field(default="300 s", init=False)

    examples = ("--link geo", "--average 30% --report busy-link.html")
    constants = ("rate_bps",)
    # Counts of users that are run.
    searched = 1
    figure = "full"
    goals = (Goal("wait_p99_ns"), Goal("page_p50_ns"), Goal("page_p95_ns"))

    def _traffic(self) -> list[dict[str, Any]]:
        # Small packets at equal intervals meet the queue as it is on average.
        probe = {"kind": "constant_rate", "rate": "8 kbit/s", "payload": "50 B"}
        return [page_reader(), {"name": "probe", "direction": "forward", **probe}]

    def _measure(self, result: Result) -> Mapping[str, float]:
        wire, probe = result.plan["directions"][0], result.flows.row(-1, named=True)
        return {
            **windows(_load(result), peak_bps(wire["rate_bps"])),
            "wait_p50_ns": probe["one_way_delay_p50_ns"] - initial(wire["delay_ns"]),
            "wait_p99_ns": probe["one_way_delay_p99_ns"] - initial(wire["delay_ns"]),
            **page_times(result),
        }

    def _cases(self) -> Mapping[int, Plan]:
        """Return a user alone."""
        return {1: self.plan(_SAMPLED)}

    def _assumptions(self) -> list[Assumption]:
        size = f"traffic.reader.response.lognormal.median={MEDIAN_PAGE_BYTES // 2}B"
        rate, same = f"link.forward.rate={2 * self.rate_bps}bps", "with the same users"
        queue = (f"link.forward.queue={fq_codel(self.rtt_ns)}",)
        return [
            Assumption("with fq_codel on the forward link", "its queue", queue, is_remedy=True),
            Assumption(f"twice the link rate, {same}", "the rate", (rate,)),
            Assumption(f"pages of half the size, {same}", "a median of 300 kB", (size,)),
        ]

    def _find(self, cases: Mapping[int, Plan]) -> list[tuple[int, Measurements]]:
        """Return a user alone, and as many as make the average."""
        alone = self.run(cases)[1]
        readers, page_ns = users_of(self.base.data), alone.mean("page_p50_ns")
        found = self.adjusted_count(
            "users",
            lambda count: self.run_case(*_with(count)),
            first=round(readers.at(self.average, self.rate_bps, page_ns)),
            figure="average",
            wanted=self.average,
            tolerance=_TOLERANCE,
        )
        return [(1, alone), found]

    def _basis(self, found: Any) -> tuple[Measurements, Sequence[str]]:
        users, of_users = found[-1]
        return of_users, _with(users)

    def _judge(self, found: list[tuple[int, Measurements]]) -> Answer:
        (_, alone), (users, shown) = found
        idle_page_ns = alone.mean("page_p50_ns")
        return Answer(
            facts={"base": shown},
            figures={"users": users, "idle_page_p50_ns": idle_page_ns, **shown.estimates()},
            charts=[_chart(_load(self.experiment.result(self.plan(*_with(users)))))],
        )


def _with(users: int) -> tuple[str, str]:
    return _SAMPLED, f"traffic.reader.count={users}"


def _load(result: Result) -> npt.NDArray[np.float64]:
    samples = result.tables["direction_samples"].filter(pl.col("direction") == 0)
    return np.diff(samples["sent_bytes"].to_numpy().astype(np.float64))


def _chart(load: npt.NDArray[np.float64]) -> Chart:
    rates = load[:_SHOWN_WINDOWS] * 8 * NS_PER_S / WINDOW_NS / 1e6
    average = float(np.mean(load)) * 8 * NS_PER_S / WINDOW_NS / 1e6
    times_s = (np.arange(rates.size) + 0.5) * WINDOW_NS / NS_PER_S
    return Chart(
        title="The first minute of one run, and its average over 5 minutes",
        x_label="Time [s]",
        y_label="Forward [Mbit/s]",
        x=times_s.tolist(),
        series={
            "windows of 100 ms": [Estimate(float(rate), None, 1) for rate in rates],
            "average over 5 minutes": [Estimate(average, None, 1)] * rates.size,
        },
        markers=False,
    )
