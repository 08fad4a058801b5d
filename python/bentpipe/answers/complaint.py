"""``ask complaint``: why users feel that a link is full although its average is not."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from bentpipe.answers.answer import Answer, Chart, Effect, Estimate, largest_first
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
from bentpipe.answers.readers import MAX_USERS, MEDIAN_PAGE_BYTES, reader, users_of
from bentpipe.answers.wording import Link, percent_text, runs_text, settings_text, time_text
from bentpipe.errors import UsageError
from bentpipe.results.measures import exchange_times_ns
from bentpipe.results.result import Result
from bentpipe.units import NS_PER_S, format_duration, format_rate

WINDOW_NS: Final = 100_000_000
# A window with this share of the link's capacity is full, with the rest of it empty.
FULL_SHARE: Final = 0.95
EMPTY_SHARE: Final = 0.05
_MIN_AVERAGE: Final = 0.01
_DURATION: Final = "300 s"
# The users are adjusted until the average is this near to the one asked for.
_TOLERANCE: Final = 0.01
_ADJUSTMENTS: Final = 4
_SHOWN_WINDOWS: Final = 600
_FASTER: Final = "twice the link rate, with the same users"
_SMALLER: Final = "pages of half the size, with the same users"
_INSTEAD: Final = {_FASTER: "the rate", _SMALLER: "a median of 300 kB"}


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


def windows(sent_bytes: npt.ArrayLike, rate_bps: float, window_ns: int = WINDOW_NS) -> Windows:
    """Return the load of windows from the link bytes sent in each.

    A window is full with 95 % of the link's capacity and empty with less than 5 %.
    """
    load = np.asarray(sent_bytes, dtype=np.float64) * 8 * NS_PER_S / (rate_bps * window_ns)
    full = load >= FULL_SHARE
    # The ends of runs of full windows: a boundary before the first and after the last.
    edges = np.flatnonzero(np.diff(np.concatenate(([False], full, [False])).astype(np.int8)))
    longest = int(np.max(edges[1::2] - edges[::2], initial=0))
    return Windows(
        average=float(np.mean(load)),
        full=float(np.mean(full)),
        empty=float(np.mean(load < EMPTY_SHARE)),
        longest_full_ns=longest * window_ns,
    )


class _Facts(NamedTuple):
    link: Link
    users: int
    wire: Mapping[str, Any]
    figures: Figures
    idle_page_ns: float
    load: npt.NDArray[np.float64]
    effects: Sequence[Effect]

    def of(self, figure: str) -> Estimate:
        return estimate(self.figures[figure])


def complaint(
    link: str = "geo",
    *,
    settings: Sequence[str] = (),
    average: float = 0.6,
    experiment: Experiment | None = None,
) -> Answer:
    """Answer why a link whose five-minute average is ``average`` (0 to 1) is felt as full.

    Users read pages: each takes a page over TCP (log-normal size, median 300 kB, mean 924 kB),
    thinks for 15 s on average, and takes the next. Their number is adjusted until the average of
    the forward direction is as asked for.

    Raises:
        ScenarioError: the link or a setting is wrong.
        UsageError: there is no such link, its rate varies with time, or the average is not between
            1 and 95 %, or takes too many users.
        RunsInterrupted: Ctrl-C.
    """
    if not _MIN_AVERAGE <= average <= FULL_SHARE:
        raise UsageError(
            f"average: read {average:.0%}; expected {_MIN_AVERAGE:.0%} to {FULL_SHARE:.0%}"
        )
    experiment = experiment or Experiment()
    changed = (*settings, f"sample_interval={WINDOW_NS}ns")
    document = link_scenario(link, _traffic(), _DURATION)
    base = resolved(document, changed)
    wire = base.data["directions"][0]
    if wire["rate_bps"]["kind"] != "constant":
        raise UsageError("ask complaint: the rate of this link varies with time; set a constant")
    experiment.expect(base.data, 4)
    idle_page_ns = float(np.mean(experiment.run({0: base}, _figures)[0]["page_p50_ns"]))
    users = _allowed(
        round(users_of(base.data).at(average, peak_bps(wire["rate_bps"]), idle_page_ns))
    )
    for _ in range(_ADJUSTMENTS):
        case = resolved(document, [*changed, f"traffic.reader.count={users}"])
        figures = experiment.run({users: case}, _figures)[users]
        measured = float(np.mean(figures["average"]))
        better = _allowed(round(users * average / measured))
        if abs(measured - average) <= _TOLERANCE or better == users:
            break
        users = better
    assumed = variants(document, [*changed, f"traffic.reader.count={users}"], _assumptions(wire))
    effects = [
        Effect(name, _INSTEAD[name], change_percent(figures["full"], each["full"]))
        for name, each in experiment.run(assumed, _figures).items()
    ]
    load = _load(experiment.result(case))
    return _answer(_Facts(Link(link, settings), users, wire, figures, idle_page_ns, load, effects))


def _traffic() -> list[dict[str, Any]]:
    return [
        reader(),
        # Small packets at equal intervals meet the queue as it is on average.
        {
            "name": "probe",
            "kind": "constant_rate",
            "direction": "forward",
            "rate": "8 kbit/s",
            "payload": "50 B",
        },
    ]


def _assumptions(wire: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    rate_bps = peak_bps(wire["rate_bps"])
    return {
        _FASTER: (f"link.forward.rate={2 * rate_bps}bps",),
        _SMALLER: (f"traffic.reader.response.lognormal.median={MEDIAN_PAGE_BYTES // 2}B",),
    }


def _allowed(users: int) -> int:
    if users > MAX_USERS:
        raise UsageError(
            f"ask complaint: this load takes {users:,} users, more than {MAX_USERS:,}; ask with a "
            "lower rate, such as --set link.forward.rate=100Mbit/s"
        )
    return max(users, 1)


def _load(result: Result) -> npt.NDArray[np.float64]:
    """Return the link bytes that the forward direction sent in each window."""
    samples = result.tables["direction_samples"].filter(pl.col("direction") == 0)
    return np.diff(samples["sent_bytes"].to_numpy().astype(np.float64))


def _figures(result: Result) -> dict[str, float]:
    wire = result.plan["directions"][0]
    load = windows(_load(result), peak_bps(wire["rate_bps"]))
    probe = result.flows.row(-1, named=True)
    pages_ns = exchange_times_ns(result)
    median_ns, slow_ns = np.quantile(pages_ns, (0.5, 0.95)) if pages_ns.size else (math.nan,) * 2
    return {
        "average": load.average,
        "full": load.full,
        "empty": load.empty,
        "longest_full_ns": float(load.longest_full_ns),
        "wait_p50_ns": probe["one_way_delay_p50_ns"] - initial(wire["delay_ns"]),
        "wait_p99_ns": probe["one_way_delay_p99_ns"] - initial(wire["delay_ns"]),
        "page_p50_ns": float(median_ns),
        "page_p95_ns": float(slow_ns),
        "pages": float(pages_ns.size),
    }


def _answer(facts: _Facts) -> Answer:
    average, full = facts.of("average"), facts.of("full")
    half = facts.of("wait_p99_ns")
    lines = [
        f"Average over 5 minutes: {percent_text(average)} of {format_rate(_rate_bps(facts))} "
        f"({facts.users} users)",
        f"In windows of 100 ms: full in {percent_text(full)} of them, empty in "
        f"{percent_text(facts.of('empty'))}",
        f"Longest time full without a break: {time_text(facts.of('longest_full_ns'))}",
        f"A packet waits {time_text(facts.of('wait_p50_ns'))} (median), "
        f"{time_text(half)} (99 % wait less)",
        f"A page takes {time_text(facts.of('page_p50_ns'))} (median), "
        f"{time_text(facts.of('page_p95_ns'))} (95 %); "
        f"{format_duration(facts.idle_page_ns)} (median) with one user",
    ]
    return Answer(
        question=f"Why is {facts.link} felt as full at {100 * average.mean:.0f} % average?",
        lines=lines,
        reason="TCP sends each page as fast as the link allows, so the link is full while pages "
        "load and idle while users read. An average of 5 minutes hides both; users feel the full "
        "times, since they wait in them.",
        uncertainty=f"{runs_text(full)} of 5 minutes; ± is the 95 % interval of a mean. The users "
        "are a model: measure windows of 100 ms on your link.",
        effects=largest_first(facts.effects),
        commands=[
            f"bentpipe ask buffer --link {facts.link.shell}{settings_text(facts.link.settings)}",
            f"bentpipe ask complaint --link {facts.link.shell}"
            f"{settings_text([*facts.link.settings, 'link.forward.queue={discipline: fq_codel}'])}",
        ],
        figures={
            "users": facts.users,
            "idle_page_p50_ns": facts.idle_page_ns,
            **{name: facts.of(name) for name in facts.figures},
        },
        charts=[_chart(facts)],
        parameters={"link": facts.link.name, "set": list(facts.link.settings)},
    )


def _rate_bps(facts: _Facts) -> float:
    return peak_bps(facts.wire["rate_bps"])


def _chart(facts: _Facts) -> Chart:
    """Return the load of the first minute in windows of 100 ms, with the average of all."""
    rates = facts.load[:_SHOWN_WINDOWS] * 8 * NS_PER_S / WINDOW_NS / 1e6
    average = float(np.mean(facts.load)) * 8 * NS_PER_S / WINDOW_NS / 1e6
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
