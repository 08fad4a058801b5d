"""Why a link at 60 % average is felt as full.

Users read pages: each takes a page over TCP (log-normal size, median 300 kB, mean 924 kB),
thinks for 15 s on average, and takes the next. Their number is adjusted until the average of
the forward direction over 5 minutes is as asked for; windows of 100 ms show what they feel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final

import numpy as np
import numpy.typing as npt

from bentpipe.answers.answer import Answer, Chart
from bentpipe.answers.catalog import Option
from bentpipe.answers.question import Assumption, LinkQuestion
from bentpipe.answers.queues import with_fq_codel
from bentpipe.answers.remedies import Goal
from bentpipe.answers.runs import Estimate, Figures, Measurements
from bentpipe.answers.traffic import (
    MEDIAN_PAGE_BYTES,
    page_reader,
    page_times,
    users_of,
)
from bentpipe.errors import RunsInterrupted, UsageError
from bentpipe.plan.plan import Plan
from bentpipe.results.measures import FULL_SHARE, WINDOW_NS, sampled_bytes, window_loads
from bentpipe.results.result import Result
from bentpipe.units import NS_PER_S

# The users are adjusted until the average is this near to the one asked for.
_TOLERANCE: Final = 0.01
_SHOWN_WINDOWS: Final = 600
_SAMPLED: Final = f"sample_interval={WINDOW_NS}ns"


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
    figure_text = "the time that the link is full"
    goals = (Goal("wait_p99_ns"), Goal("page_p50_ns"), Goal("page_p95_ns"))

    def _traffic(self) -> list[dict[str, Any]]:
        return [page_reader()]

    def _measure(self, result: Result) -> Figures:
        forward = result.directions.row(0, named=True)
        return {
            **window_loads(sampled_bytes(result), self.rate_bps),
            # Without the delay of the link and its jitter, which may vary with time.
            "wait_p50_ns": forward["queue_delay_p50_ns"],
            "wait_p99_ns": forward["queue_delay_p99_ns"],
            **page_times(result),
        }

    def _cases(self) -> Mapping[int, Plan]:
        """Return a user alone."""
        return {1: self.plan(_SAMPLED)}

    def _assumptions(self) -> list[Assumption]:
        size = f"traffic.reader.response.lognormal.median={MEDIAN_PAGE_BYTES // 2}B"
        rate, same = f"link.forward.rate={2 * self.rate_bps}bps", "with the same users"
        return [
            with_fq_codel(self.rtt_ns, self.directions[0]),
            Assumption(f"twice the link rate, {same}", "the rate", (rate,)),
            Assumption(f"pages of half the size, {same}", "a median of 300 kB", (size,)),
        ]

    def _find(self, cases: Mapping[int, Plan]) -> Mapping[int, Measurements]:
        """Return a user alone, and as many as make the average."""
        measurements = self.run(cases)
        readers, page_ns = users_of(self.base.data), measurements[1].mean("page_p50_ns")
        if math.isnan(page_ns):
            raise UsageError(
                f"ask busy-link: one user takes no page in the middle of runs of {self.length}; "
                "ask with longer ones, such as --set duration=300s"
            )
        users, of_users = self.adjusted_count(
            "users",
            lambda count: self.run_case(*_with(count)),
            first=round(readers.at(self.average, self.rate_bps, page_ns)),
            figure="average",
            wanted=self.average,
            tolerance=_TOLERANCE,
        )
        return {**measurements, users: of_users}

    def _basis(
        self, measurements: Mapping[int, Measurements]
    ) -> tuple[Measurements, Sequence[str]]:
        return measurements[max(measurements)], _with(max(measurements))

    def _judge(self, measurements: Mapping[int, Measurements]) -> Answer:
        shown, idle_page_ns = measurements[max(measurements)], measurements[1].mean("page_p50_ns")
        figures = {
            "users": max(measurements),
            "idle_page_p50_ns": idle_page_ns,
            **shown.estimates(),
        }
        return Answer(facts={"base": shown}, figures=figures)

    def answer(self) -> Answer:
        """Run the cases, and judge; draw a minute of a run."""
        answer = super().answer()
        if answer.interrupted:
            return answer
        try:
            with self.experiment.interruptible():
                result = self.experiment.result(self.plan(*_with(answer.figures["users"])))
        except RunsInterrupted:
            return replace(answer, interrupted=True)
        return replace(answer, charts=[_chart(sampled_bytes(result), self.length)])


def _with(users: int) -> tuple[str, str]:
    return _SAMPLED, f"traffic.reader.count={users}"


def _chart(load: npt.NDArray[np.float64], length: str) -> Chart:
    rates = load[:_SHOWN_WINDOWS] * 8 * NS_PER_S / WINDOW_NS / 1e6
    average = float(np.mean(load)) * 8 * NS_PER_S / WINDOW_NS / 1e6
    times_s = (np.arange(rates.size) + 0.5) * WINDOW_NS / NS_PER_S
    return Chart(
        title=f"The first minute of one run, and its average over {length}",
        x_label="Time [s]",
        y_label="Forward [Mbit/s]",
        x=times_s.tolist(),
        series={
            "windows of 100 ms": [Estimate(float(rate), None, 1) for rate in rates],
            f"average over {length}": [Estimate(average, None, 1)] * rates.size,
        },
        markers=False,
    )
