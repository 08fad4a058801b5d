"""``ask users``: how many users of web pages fit on a link, with a call and a video beside them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from bentpipe.answers.answer import Answer, Chart, DataTable, Effect, Estimate, largest_first
from bentpipe.answers.cases import (
    Experiment,
    Figures,
    change_percent,
    estimate,
    link_scenario,
    peak_bps,
    resolved,
    variants,
)
from bentpipe.answers.readers import MAX_USERS, THINK_S, Users, page_reader, users_of
from bentpipe.answers.search import largest
from bentpipe.answers.wording import Link, runs_text, settings_text, time_text
from bentpipe.errors import UsageError
from bentpipe.results.result import Result
from bentpipe.scenario.document import Document
from bentpipe.units import NS_PER_S, format_duration, format_rate

_SEEDS: Final = 3
# Runs are as long as the link carries this number of full packets of 1,500 bytes, within bounds:
# at least four pages a user, and many pages of few users.
_RUN_PACKETS: Final = 500_000
_PACKET_BITS: Final = 12_000
_RUN_S: Final = (60, 300)
_SLOW_SHARE: Final = 0.05
# Counts closer than this are not told apart: the percentiles of three runs differ by more.
_TOLERANCE: Final = 0.05
_OBJECTS: Final = 70
# Expected counts of users that are run.
_COUNTS: Final = 6
# By default a page may take this long, or this many times as long as for a user alone.
_PAGE_TIME_NS: Final = 10 * NS_PER_S
_TIMES_ALONE: Final = 2
# The media rate of the video: one of standard definition, and a small part of a slow link.
_VIDEO_BPS: Final = 1_000_000
_VIDEO_SHARE: Final = 0.1

# What is assumed, with what instead, and the settings.
_ASSUMPTIONS: Final = {
    f"the time of a page with {_OBJECTS // 2} objects": (
        str(_OBJECTS),
        (f"traffic.reader.objects={_OBJECTS // 2}",),
    ),
    f"the time of a page with {2 * THINK_S} s of thinking": (
        f"{THINK_S} s",
        (f"traffic.reader.think.exponential={2 * THINK_S}s",),
    ),
    "the time of a page by HTTP/1.1 over 6 connections": (
        "HTTP/2",
        ("traffic.reader.http=1.1",),
    ),
}


class _Measure(NamedTuple):
    """A figure of a run, as a column of the table of counts."""

    figure: str
    column: tuple[str, str]
    text: Callable[[float], str]


_MEASURES: Final = (
    _Measure("page_p50_ns", ("page", "s, median"), lambda ns: f"{ns / NS_PER_S:.2f}"),
    _Measure("page_p95_ns", ("page", "s, 95 %"), lambda ns: f"{ns / NS_PER_S:.2f}"),
    _Measure("slow_share", ("slower than allowed", "% of pages"), lambda x: f"{100 * x:.1f}"),
    _Measure("mos_p5", ("MOS p5", "of a call"), lambda mos: f"{mos:.2f}"),
    _Measure("stall_ratio_percent", ("video stalls", "% of its time"), lambda x: f"{x:.1f}"),
    _Measure("utilization", ("link used", "%"), lambda share: f"{100 * share:.0f}"),
)


def users(
    link: str = "geo",
    *,
    settings: Sequence[str] = (),
    page_time_ns: int | None = None,
    experiment: Experiment | None = None,
) -> Answer:
    """Answer how many users fit: the most for whom 95 % of pages load within ``page_time_ns``.

    Users load web pages of 70 objects by HTTP/2 with TLS 1.3 and a DNS lookup each, and think for
    15 s on average before the next one (see `bentpipe.WebPage`). A voice call and a video share the
    link. ``page_time_ns`` is by default 10 s, or twice what 95 % of the pages of a user alone take
    if that is longer.

    Raises:
        ScenarioError: the link or a setting is wrong.
        UsageError: there is no such link, or it carries more than 2,000 users.
        RunsInterrupted: Ctrl-C.
    """
    experiment = experiment or Experiment(seeds=_SEEDS)
    # The rate of the link, with settings, gives that of the video.
    traffic = [page_reader(), *_beside(math.inf)]
    base = resolved(link_scenario(link, traffic, f"{_RUN_S[0]} s"), settings)
    rate_bps = peak_bps(base.data["directions"][0]["rate_bps"])
    run_s = round(np.clip(_RUN_PACKETS * _PACKET_BITS / rate_bps, *_RUN_S))
    document = link_scenario(link, [page_reader(), *_beside(rate_bps)], f"{run_s} s")
    base = resolved(document, settings)
    experiment.expect(base.data, _COUNTS + len(_ASSUMPTIONS) + 1)
    if page_time_ns is None:
        page_time_ns = _default_page_time(experiment, document, settings)
    readers = users_of(base.data)
    bound = readers.at(1.0, rate_bps, page_time_ns)
    if bound > MAX_USERS:
        raise UsageError(
            f"ask users: {format_rate(rate_bps)} may carry {bound:,.0f} users, more than "
            f"{MAX_USERS:,}; ask with a lower rate, such as --set link.forward.rate=100Mbit/s"
        )
    found = _Found(experiment, document, settings, page_time_ns)
    fitting = found.largest(guess=int(0.5 * bound), limit=max(math.ceil(bound), 1))
    effects = found.effects(max(fitting, 1))
    asked, stop_ns = Link(link, settings), base.data["stop_ns"]
    return _answer(_Facts(asked, found, fitting, bound, rate_bps, readers, effects, stop_ns))


def _beside(rate_bps: float) -> list[dict[str, Any]]:
    """Return traffic whose quality is shown beside the pages; it does not grow with the users."""
    video_bps = round(min(_VIDEO_BPS, _VIDEO_SHARE * rate_bps))
    return [
        {"name": "call", "kind": "voice", "direction": "both", "codec": "g711"},
        {"name": "video", "kind": "video", "direction": "forward", "rate": f"{video_bps} bit/s"},
    ]


def _default_page_time(experiment: Experiment, document: Document, settings: Sequence[str]) -> int:
    """Return a time that only other users can make too short, in whole seconds."""
    alone = ["traffic.reader.count=1", "traffic.reader.think=100ms"]
    found = _Found(experiment, document, [*settings, *alone], _PAGE_TIME_NS)
    time_ns = found.alone_ns()
    if not math.isfinite(time_ns):
        return _PAGE_TIME_NS
    return max(_PAGE_TIME_NS, math.ceil(_TIMES_ALONE * time_ns / NS_PER_S) * NS_PER_S)


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
        return largest(self._passes, guess=guess, limit=limit, tolerance=_TOLERANCE)

    def alone_ns(self) -> float:
        """Return the time within which 95 % of the pages of one user load."""
        case = resolved(self._document, self._settings)
        return float(np.mean(self._experiment.run({1: case}, self._figures)[1]["page_p95_ns"]))

    def effects(self, count: int) -> list[Effect]:
        """Return what each assumption does to the time of a page, with this count."""
        before = self.counts[count]["page_p95_ns"]
        changed = {
            name: [f"traffic.reader.count={count}", *changes]
            for name, (_, changes) in _ASSUMPTIONS.items()
        }
        cases = variants(self._document, self._settings, changed)
        found = self._experiment.run(cases, self._figures)
        changes = {
            name: change_percent(before, each["page_p95_ns"]) for name, each in found.items()
        }
        return [
            Effect(name, _ASSUMPTIONS[name][0], percent)
            for name, percent in changes.items()
            if math.isfinite(percent.mean)
        ]

    def of(self, count: int, figure: str) -> Estimate:
        """Return a figure of the runs with this count."""
        return estimate(self.counts[count][figure])

    def _passes(self, count: int) -> bool:
        case = resolved(self._document, [*self._settings, f"traffic.reader.count={count}"])
        self.counts[count] = self._experiment.run({count: case}, self._figures)[count]
        return bool(np.mean(self.counts[count]["slow_share"]) <= _SLOW_SHARE)

    def _figures(self, result: Result) -> dict[str, float]:
        pages_ns = page_times_ns(result, self.page_time_ns)
        median_ns, high_ns = np.quantile(pages_ns, (0.5, 0.95)) if pages_ns.size else (np.inf,) * 2
        slow = float(np.mean(pages_ns > self.page_time_ns)) if pages_ns.size else 1.0
        calls = result.flows["mos"].drop_nulls().to_numpy()
        stalls = result.flows["stall_ratio_percent"].drop_nulls().to_numpy()
        return {
            "page_p50_ns": float(median_ns),
            "page_p95_ns": float(high_ns),
            "slow_share": slow,
            "mos_p5": float(np.quantile(calls, 0.05)) if calls.size else math.nan,
            "stall_ratio_percent": float(stalls.mean()) if stalls.size else math.nan,
            "utilization": float(result.directions["utilization"][0]),
        }


def page_times_ns(result: Result, limit_ns: int) -> npt.NDArray[np.int64]:
    """Return the load times of pages in ns.

    A page that the end of the run cut off counts with its age if that is above ``limit_ns``;
    otherwise it is not known whether it is slow, and it is left out.
    """
    table = result.tables["pages"]
    end_ns = np.full(table.height, result.manifest["end_ns"], dtype=np.int64)
    is_finished = table["finished_ns"].is_not_null().to_numpy()
    finished_ns = table["finished_ns"].fill_null(0).to_numpy().astype(np.int64)
    starts_ns = table["start_ns"].to_numpy().astype(np.int64)
    times_ns: npt.NDArray[np.int64] = np.where(is_finished, finished_ns, end_ns) - starts_ns
    return times_ns[is_finished | (times_ns > limit_ns)]


class _Facts(NamedTuple):
    link: Link
    found: _Found
    fitting: int
    bound: float
    rate_bps: float
    readers: Users
    effects: Sequence[Effect]
    stop_ns: int


def _answer(facts: _Facts) -> Answer:
    link, found, fitting, bound, rate_bps, readers, effects, stop_ns = facts
    reason = (
        f"a user takes {8 * readers.page_bytes / 1e6:.1f} Mbit a page on average and then thinks "
        f"for {readers.think_s:.0f} s; pages that are loaded at the same time share the link."
    )
    if fitting == 0:
        reason = "one user alone waits longer: handshakes and slow start take round trips."
    counts = sorted(found.counts)
    runs = found.of(counts[0], "page_p95_ns")
    shell = f"--link {link.shell}{settings_text(link.settings)}"
    return Answer(
        question=f"How many users of web pages fit on {link}?",
        lines=_lines(facts),
        reason=reason,
        uncertainty=f"{runs_text(runs)} of {format_duration(stop_ns)} for each count; counts "
        "near the limit may pass or fail with other seeds. Users load pages like the median of "
        "2024 (Web Almanac).",
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
        charts=[
            _page_chart(found, counts, fitting),
            _beside_chart(found, counts, fitting, ("call", "mos_p5", "MOS, 5th percentile")),
            _beside_chart(found, counts, fitting, ("video", "stall_ratio_percent", "Stalls [%]")),
        ],
        parameters={"link": link.name, "set": list(link.settings)},
    )


def _lines(facts: _Facts) -> list[str]:
    found, fitting, rate_bps = facts.found, facts.fitting, facts.rate_bps
    limit = format_duration(found.page_time_ns)
    lines = [
        f"{fitting:,} user{'' if fitting == 1 else 's'} on {format_rate(rate_bps)}: "
        f"{1e6 * fitting / rate_bps:.2f} per Mbit/s",
        f"They are the most for whom 95 % of pages load within {limit}",
    ]
    # With one user too many, the figures of one tell how far off the limit is.
    shown = fitting or 1
    if shown in found.counts:
        who = "With them" if fitting else "With one user"
        lines += [
            f"{who} a page takes {time_text(found.of(shown, 'page_p50_ns'))} (median), "
            f"{time_text(found.of(shown, 'page_p95_ns'))} (95 %); "
            f"{100 * found.of(shown, 'slow_share').mean:.1f} % take longer than {limit}",
            f"Beside {'them' if fitting else 'it'} a voice call has a MOS of "
            f"{found.of(shown, 'mos_p5').mean:.1f} (5th percentile); a video stalls for "
            f"{found.of(shown, 'stall_ratio_percent').mean:.1f} % of its time",
            f"The link is used {100 * found.of(shown, 'utilization').mean:.0f} % on average",
        ]
    return [
        *lines,
        f"On paper at most {facts.bound:,.0f}: the link full, pages as slow as allowed",
    ]


def _table(found: _Found, counts: Sequence[int]) -> DataTable:
    rows = [
        [f"{count:,}", *(each.text(found.of(count, each.figure).mean) for each in _MEASURES)]
        for count in counts
    ]
    columns = (("users", ""), *(each.column for each in _MEASURES))
    return DataTable(title="The counts that were run", columns=columns, rows=rows)


def _page_chart(found: _Found, counts: Sequence[int], fitting: int) -> Chart:
    return Chart(
        title="Time of a page over users",
        x_label="Users",
        y_label="Page [s]",
        x=counts,
        series={
            label: [found.of(count, name).times(1 / NS_PER_S) for count in counts]
            for label, name in (("median", "page_p50_ns"), ("95 %", "page_p95_ns"))
        },
        marks=[(fitting, f"{fitting} users")],
    )


def _beside_chart(
    found: _Found, counts: Sequence[int], fitting: int, shown: tuple[str, str, str]
) -> Chart:
    name, figure, label = shown
    return Chart(
        title=f"Quality of a {name} over users",
        x_label="Users",
        y_label=label,
        x=counts,
        series={name: [found.of(count, figure) for count in counts]},
        marks=[(fitting, f"{fitting} users")],
    )
