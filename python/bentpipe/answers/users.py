"""``ask users``: how many users of web pages fit on a link."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from bentpipe.answers.answer import Answer, Chart, DataTable, Effect, Estimate, largest_first
from bentpipe.answers.cases import Experiment, Figures, estimate, link_scenario, peak_bps, variants
from bentpipe.answers.readers import (
    MAX_USERS,
    MEDIAN_PAGE_BYTES,
    THINK_S,
    Users,
    reader,
    users_of,
)
from bentpipe.answers.search import largest
from bentpipe.answers.wording import Link, runs_text, settings_text, time_text
from bentpipe.errors import UsageError
from bentpipe.plan.resolver import loaded
from bentpipe.results.metrics import exchange_times_ns
from bentpipe.results.result import Result
from bentpipe.scenario.document import Document
from bentpipe.units import NS_PER_S, format_duration, format_rate

_DURATION: Final = "180 s"
_SEEDS: Final = 3


def users(
    link: str = "geo",
    *,
    settings: Sequence[str] = (),
    page_time_ns: int = 10 * NS_PER_S,
    experiment: Experiment | None = None,
) -> Answer:
    """Answer how many users fit: the most for whom 95 % of pages load within ``page_time_ns``.

    Users are those of `ask complaint`: a page (log-normal, median 300 kB) over one TCP connection,
    15 s of thinking, and the next.

    Raises:
        ScenarioError: the link or a setting is wrong.
        UsageError: there is no such link, or it carries more than 2,000 users.
        RunsInterrupted: Ctrl-C.
    """
    experiment = experiment or Experiment(seeds=_SEEDS)
    document = link_scenario(link, [reader()], _DURATION)
    base = loaded(document, settings)
    rate_bps = peak_bps(base.plan["directions"][0]["rate_bps"])
    experiment.expect(base.plan, 8)
    readers = users_of(base.plan)
    bound = readers.at(1.0, rate_bps, page_time_ns)
    if bound > MAX_USERS:
        raise UsageError(
            f"ask users: {format_rate(rate_bps)} may carry {bound:,.0f} users, more than "
            f"{MAX_USERS:,}; ask with a lower rate, such as --set link.forward.rate=100Mbit/s"
        )
    found = _Found(experiment, document, settings, page_time_ns)
    fitting = found.largest(guess=max(int(0.7 * bound), 1), limit=math.ceil(bound))
    effects = []
    for name, instead, changes in _assumptions():
        if not variants(document, settings, {name: changes}):
            continue
        other = _Found(experiment, document, [*settings, *changes], page_time_ns)
        count = other.largest(guess=max(fitting, 1), limit=2 * math.ceil(bound))
        percent = 100 * (count / fitting - 1) if fitting else 0.0
        effects.append(Effect(name, instead, Estimate(percent, None, 1)))
    asked = Link(link, settings)
    return _answer(_Facts(asked, found, fitting, bound, rate_bps, readers, effects))


class _Found:
    """The counts of users that were run, with their figures."""

    def __init__(
        self,
        experiment: Experiment,
        document: Document,
        settings: Sequence[str],
        page_time_ns: int,
    ) -> None:
        self.page_time_ns = page_time_ns
        self.counts: dict[int, Figures] = {}
        self._experiment = experiment
        self._document = document
        self._settings = settings

    def largest(self, *, guess: int, limit: int) -> int:
        """Return the most users of whose pages 95 % load in time."""
        return largest(self._passes, guess=guess, limit=limit)

    def _passes(self, count: int) -> bool:
        case = loaded(self._document, [*self._settings, f"traffic.reader.count={count}"])
        self.counts[count] = self._experiment.run({count: case}, _figures)[count]
        return bool(np.mean(self.counts[count]["page_p95_ns"]) <= self.page_time_ns)


def _assumptions() -> list[tuple[str, str, list[str]]]:
    return [
        (
            "pages of half the size",
            f"a median of {MEDIAN_PAGE_BYTES // 1000} kB",
            [f"traffic.reader.response.lognormal.median={MEDIAN_PAGE_BYTES // 2}B"],
        ),
        (
            f"{2 * THINK_S} s of thinking",
            f"{THINK_S} s",
            [f"traffic.reader.think.exponential={2 * THINK_S}s"],
        ),
    ]


def _figures(result: Result) -> dict[str, float]:
    pages_ns = exchange_times_ns(result)
    median_ns, slow_ns = np.quantile(pages_ns, (0.5, 0.95)) if pages_ns.size else (np.inf, np.inf)
    return {
        "page_p50_ns": float(median_ns),
        "page_p95_ns": float(slow_ns),
        "utilization": float(result.directions["utilization"][0]),
    }


class _Facts(NamedTuple):
    link: Link
    found: _Found
    fitting: int
    bound: float
    rate_bps: float
    readers: Users
    effects: Sequence[Effect]


def _answer(facts: _Facts) -> Answer:
    link, found, fitting, bound, rate_bps, readers, effects = facts
    limit = format_duration(found.page_time_ns)
    figures = found.counts.get(fitting)
    lines = [
        f"{fitting:,} users on {format_rate(rate_bps)}: {1e6 * fitting / rate_bps:.2f} per Mbit/s",
        f"They are the most for whom 95 % of pages load within {limit}",
        f"On paper at most {bound:,.0f}: the link full, pages as slow as allowed",
    ]
    if figures is not None:
        lines[2:2] = [
            f"With them a page takes {time_text(estimate(figures['page_p50_ns']))} (median), "
            f"{time_text(estimate(figures['page_p95_ns']))} (95 %)",
            f"The link is used {100 * float(np.mean(figures['utilization'])):.0f} % on average",
        ]
    reason = (
        "users think between pages, so pages of several users rarely meet on a link with room; "
        f"a user takes {8 * readers.page_bytes / 1e6:.1f} Mbit a page on average."
    )
    if fitting == 0:
        reason = "one user alone waits longer: slow start takes a round trip for each doubling."
    counts = sorted(found.counts)
    runs = estimate(found.counts[counts[0]]["page_p95_ns"])
    shell = f"--link {link.shell}{settings_text(link.settings)}"
    return Answer(
        question=f"How many users of web pages fit on {link}?",
        lines=lines,
        reason=reason,
        uncertainty=f"{runs_text(runs)} of 3 minutes for each count; counts near the limit may "
        "pass or fail with other seeds. A page is one response over an open connection.",
        effects=largest_first(effects),
        commands=[f"bentpipe ask complaint {shell}", f"bentpipe ask buffer {shell}"],
        figures={
            "users": fitting,
            "users_per_mbps": fitting / (rate_bps / 1e6),
            "bound_users": bound,
            "page_time_ns": found.page_time_ns,
            "counts": [
                {
                    "users": count,
                    **{name: estimate(values) for name, values in found.counts[count].items()},
                }
                for count in counts
            ],
        },
        tables=[_table(found, counts)],
        charts=[_chart(found, counts, fitting)],
        parameters={"link": link.name, "set": list(link.settings)},
    )


def _table(found: _Found, counts: Sequence[int]) -> DataTable:
    rows = [
        [
            f"{count:,}",
            f"{estimate(found.counts[count]['page_p50_ns']).mean / NS_PER_S:.2f}",
            f"{estimate(found.counts[count]['page_p95_ns']).mean / NS_PER_S:.2f}",
            f"{100 * float(np.mean(found.counts[count]['utilization'])):.0f}",
        ]
        for count in counts
    ]
    columns = (("users", ""), ("page", "s, median"), ("page", "s, 95 %"), ("link used", "%"))
    return DataTable(title="The counts that were run", columns=columns, rows=rows)


def _chart(found: _Found, counts: Sequence[int], fitting: int) -> Chart:
    return Chart(
        title="Time of a page over users",
        x_label="Users",
        y_label="Page [s]",
        x=counts,
        series={
            label: [estimate(found.counts[count][name]).times(1 / NS_PER_S) for count in counts]
            for label, name in (("median", "page_p50_ns"), ("95 %", "page_p95_ns"))
        },
        marks=[(fitting, f"{fitting} users")],
    )
