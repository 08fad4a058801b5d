"""``ask busy-link``: why users feel that a link is full although its average is not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from bentpipe.answers.answer import Answer, Chart, Estimate, percent_text
from bentpipe.answers.question import Assumption, Option, Question, asking, initial, peak_bps
from bentpipe.answers.traffic import MEDIAN_PAGE_BYTES, median_and_p95, reader, users_of
from bentpipe.errors import UsageError
from bentpipe.results.measures import finished_times_ns
from bentpipe.results.result import Result
from bentpipe.units import NS_PER_S, format_duration, format_rate

WINDOW_NS: Final = 100_000_000
# A window with this share of the link's capacity is full, with the rest of it empty.
FULL_SHARE: Final = 0.95
EMPTY_SHARE: Final = 0.05
_MIN_AVERAGE: Final = 0.01
# The users are adjusted until the average is this near to the one asked for.
_TOLERANCE: Final = 0.01
_SHOWN_WINDOWS: Final = 600


class Windows(NamedTuple):
    """The load of a direction in windows of equal length."""

    average: float
    """Of the link rate, over the whole time."""
    full: float
    """The share of windows that are full."""
    empty: float
    """The share of windows that are empty."""
    longest_full_ns: int
    """The longest time without a window that is not full."""


def windows(sent_bytes: npt.ArrayLike, rate_bps: float) -> Windows:
    """Return the load of windows from the link bytes sent in each.

    A window is full with 95 % of the link's capacity and empty with less than 5 %.
    """
    load = np.asarray(sent_bytes, dtype=np.float64) * 8 * NS_PER_S / (rate_bps * WINDOW_NS)
    full = load >= FULL_SHARE
    # The ends of runs of full windows: a boundary before the first and after the last.
    edges = np.flatnonzero(np.diff(np.concatenate(([False], full, [False])).astype(np.int8)))
    longest = int(np.max(edges[1::2] - edges[::2], initial=0))
    return Windows(
        average=float(np.mean(load)),
        full=float(np.mean(full)),
        empty=float(np.mean(load < EMPTY_SHARE)),
        longest_full_ns=longest * WINDOW_NS,
    )


@dataclass(kw_only=True, eq=False)
class BusyLink(Question):
    """Why a link at 60 % average is felt as full.

    Users read pages: each takes a page over TCP (log-normal size, median 300 kB, mean 924 kB),
    thinks for 15 s on average, and takes the next. Their number is adjusted until the average of
    the forward direction over 5 minutes is as asked for; windows of 100 ms show what they feel.

    ``average`` is 0.01 to 0.95. See `Question` for the other parameters and the errors; a
    UsageError is also that the rate varies with time, or that the average is out of range, or takes
    too many users.
    """

    average: Annotated[float, Option("The average of 5 minutes, of the rate.", "PERCENT")] = 0.6
    duration: str = field(default="300 s", init=False)

    name = "busy-link"
    examples = ("--link geo", "--average 30% --report busy-link.html")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not _MIN_AVERAGE <= self.average <= FULL_SHARE:
            raise UsageError(
                f"average: read {self.average:.0%}; expected {_MIN_AVERAGE:.0%} to {FULL_SHARE:.0%}"
            )

    def _traffic(self) -> list[dict[str, Any]]:
        size = {"median": f"{MEDIAN_PAGE_BYTES} B", "sigma": 1.5, "max": "50 MB"}
        return [
            reader(kind="request_response", request="500 B", response={"lognormal": size}),
            # Small packets at equal intervals meet the queue as it is on average.
            {
                "name": "probe",
                "kind": "constant_rate",
                "direction": "forward",
                "rate": "8 kbit/s",
                "payload": "50 B",
            },
        ]

    def _measure(self, result: Result) -> Mapping[str, float]:
        wire = result.plan["directions"][0]
        load = windows(_load(result), peak_bps(wire["rate_bps"]))
        probe = result.flows.row(-1, named=True)
        pages_ns = finished_times_ns(result, "exchanges")
        median_ns, slow_ns = median_and_p95(pages_ns)
        return {
            **load._asdict(),
            "wait_p50_ns": probe["one_way_delay_p50_ns"] - initial(wire["delay_ns"]),
            "wait_p99_ns": probe["one_way_delay_p99_ns"] - initial(wire["delay_ns"]),
            "page_p50_ns": median_ns,
            "page_p95_ns": slow_ns,
            "pages": float(pages_ns.size),
        }

    def _assumptions(self, rate_bps: int) -> list[Assumption]:
        size = f"traffic.reader.response.lognormal.median={MEDIAN_PAGE_BYTES // 2}B"
        rate, same = f"link.forward.rate={2 * rate_bps}bps", "with the same users"
        return [
            Assumption(f"twice the link rate, {same}", "the rate", (rate,)),
            Assumption(f"pages of half the size, {same}", "a median of 300 kB", (size,)),
        ]

    def _answer(self) -> Answer:
        sampled = f"sample_interval={WINDOW_NS}ns"
        forward = self.directions[0]
        self.require_constant(forward, "rate_bps")
        rate_bps = peak_bps(forward["rate_bps"])
        self.choose_seeds(4)
        idle_page_ns = self.run_case(sampled).mean("page_p50_ns")
        users, found = self.adjusted_count(
            "users",
            lambda count: self.run_case(sampled, f"traffic.reader.count={count}"),
            first=round(users_of(self.base.data).at(self.average, rate_bps, idle_page_ns)),
            figure="average",
            wanted=self.average,
            tolerance=_TOLERANCE,
        )
        with_users = (sampled, f"traffic.reader.count={users}")
        effects = self.effects(self._assumptions(rate_bps), found, "full", *with_users)
        average, full = found.of("average"), found.of("full")
        wait, half, longest, page, slow_page = (
            found.text(f"{name}_ns")
            for name in ("wait_p50", "wait_p99", "longest_full", "page_p50", "page_p95")
        )
        return Answer(
            question=f"Why is {self.subject} felt as full at {100 * average.mean:.0f} % average?",
            lines=[
                f"Average over 5 minutes: {percent_text(average)} of {format_rate(rate_bps)} "
                f"({users} users)",
                f"In windows of 100 ms: full in {percent_text(full)} of them, empty in "
                f"{percent_text(found.of('empty'))}",
                f"Longest time full without a break: {longest}",
                f"A packet waits {wait} (median), {half} (99 % wait less)",
                f"A page takes {page} (median), {slow_page} (95 %); "
                f"{format_duration(idle_page_ns)} (median) with one user",
            ],
            reason="TCP sends each page as fast as the link allows, so the link is full while "
            "pages load and idle while users read. An average of 5 minutes hides both; users feel "
            "the full times, since they wait in them.",
            uncertainty=f"{full.runs_text} of 5 minutes; ± is the 95 % interval of a mean. The "
            "users are a model: measure windows of 100 ms on your link.",
            effects=effects,
            commands=[
                self.ask_command("buffer"),
                self.ask_command(self.name, settings=["link.forward.queue={discipline: fq_codel}"]),
            ],
            figures={"users": users, "idle_page_p50_ns": idle_page_ns, **found.estimates()},
            charts=[_chart(_load(self.runs.result(self.case(*with_users))))],
        )


busy_link = asking(BusyLink)


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
