"""``ask users``: how many users of web pages fit on a link, with a call and a video beside them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final

import numpy as np

from bentpipe.answers.answer import Answer, Chart, columns
from bentpipe.answers.question import (
    MAX_COUNT,
    PACKET_BITS,
    Assumption,
    Measurements,
    Option,
    Question,
    asking,
    largest,
    peak_bps,
)
from bentpipe.answers.traffic import THINK_S, median_and_p95, reader, times_ns, users_of
from bentpipe.errors import UsageError
from bentpipe.results.result import Result
from bentpipe.results.views import View, from_mappings
from bentpipe.text import counted
from bentpipe.units import NS_PER_S, format_duration, format_rate

# Runs are as long as the link carries this number of full packets of 1,500 bytes, within bounds:
# at least four pages a user, and many pages of few users.
_RUN_PACKETS: Final = 500_000
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

_ASSUMPTIONS: Final = tuple(
    Assumption(f"the time of a page {text}", instead, (f"traffic.reader.{setting}",))
    for text, instead, setting in (
        (f"with {_OBJECTS // 2} objects", f"{_OBJECTS}", f"objects={_OBJECTS // 2}"),
        (f"with {2 * THINK_S} s of thinking", f"{THINK_S} s", f"think.exponential={2 * THINK_S}s"),
        ("by HTTP/1.1 over 6 connections", "HTTP/2", "http=1.1"),
    )
)


@dataclass(kw_only=True, eq=False)
class Users(Question):
    """How many users of web pages fit.

    They are the most for whom 95 % of pages load in time, in all and per Mbit/s. Users load web
    pages of 70 objects by HTTP/2 with TLS 1.3 and a DNS lookup each, and think for 15 s on average
    before the next one. A voice call and a video share the link.

    ``page_time_ns`` is by default 10 s, or twice what 95 % of the pages of a user alone take if
    that is longer. See `bentpipe.WebPage` for the pages and `Question` for the other parameters and
    the errors; a UsageError is also that the link carries more than 2,000 users.
    """

    page_time_ns: Annotated[
        int | None,
        Option(
            "What 95 % of pages may take. [default: 10s, or twice as long as for one user]",
            "TIME",
            flag="--page-time",
        ),
    ] = None

    name = "users"
    examples = ("--link geo", "--link geo --page-time 5s")
    seeds = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        # The rate of the link, with settings, gives that of the video.
        self._rate_bps = self.link_rate_bps()
        packets_s = _RUN_PACKETS * PACKET_BITS / self._rate_bps
        self.duration = f"{round(np.clip(packets_s, *_RUN_S))} s"
        # The counts that were run.
        self.counts: dict[int, Measurements] = {}

    def _traffic(self) -> list[dict[str, Any]]:
        video_bps = round(min(_VIDEO_BPS, _VIDEO_SHARE * self._rate_bps))
        video = {"kind": "video", "direction": "forward", "rate": f"{video_bps} bit/s"}
        return [
            reader(kind="web_page", pages=None),
            {"name": "call", "kind": "voice", "direction": "both", "codec": "g711"},
            {"name": "video", **video},
        ]

    def _measure(self, result: Result) -> Mapping[str, float]:
        limit_ns = self._limit_ns
        pages_ns = times_ns(result.tables["pages"], result.manifest["end_ns"], limit_ns)
        median_ns, high_ns = median_and_p95(pages_ns, missing=math.inf)
        slow = float(np.mean(pages_ns > limit_ns)) if pages_ns.size else 1.0
        calls = result.flows["mos"].drop_nulls().to_numpy()
        stalls = result.flows["stall_ratio_percent"].drop_nulls().to_numpy()
        return {
            "page_p50_ns": median_ns,
            "page_p95_ns": high_ns,
            "slow_share": slow,
            "mos_p5": float(np.quantile(calls, 0.05)) if calls.size else math.nan,
            "stall_ratio_percent": float(stalls.mean()) if stalls.size else math.nan,
            "utilization": float(result.directions["utilization"][0]),
        }

    @property
    def _limit_ns(self) -> int:
        return self.page_time_ns or _PAGE_TIME_NS

    def _default_page_time(self) -> int:
        """Return a time that only other users can make too short, in whole seconds."""
        alone = self.run_case("traffic.reader.count=1", "traffic.reader.think=100ms")
        time_ns = float(np.mean(alone["page_p95_ns"]))
        if not math.isfinite(time_ns):
            return _PAGE_TIME_NS
        return max(_PAGE_TIME_NS, math.ceil(_TIMES_ALONE * time_ns / NS_PER_S) * NS_PER_S)

    def _passes(self, count: int) -> bool:
        self.counts[count] = self.run_case(f"traffic.reader.count={count}")
        return bool(np.mean(self.counts[count]["slow_share"]) <= _SLOW_SHARE)

    def _answer(self) -> Answer:
        self.choose_seeds(_COUNTS + len(_ASSUMPTIONS) + 1)
        if self.page_time_ns is None:
            self.page_time_ns = self._default_page_time()
        readers, rate_bps = users_of(self.base.data), peak_bps(self.directions[0]["rate_bps"])
        bound = readers.at(1.0, rate_bps, self.page_time_ns)
        if bound > MAX_COUNT:
            raise UsageError(
                f"ask users: {format_rate(rate_bps)} may carry {bound:,.0f} users, more than "
                f"{MAX_COUNT:,}; ask with a lower rate, such as --set link.forward.rate=100Mbit/s"
            )
        fitting = largest(
            self._passes,
            guess=int(0.5 * bound),
            limit=max(math.ceil(bound), 1),
            tolerance=_TOLERANCE,
        )
        shown = max(fitting, 1)
        effects = self.effects(
            _ASSUMPTIONS, self.counts[shown], "page_p95_ns", f"traffic.reader.count={shown}"
        )
        counts = sorted(self.counts)
        reason = (
            f"a user takes {8 * readers.page_bytes / 1e6:.1f} Mbit a page on average and then "
            f"thinks for {readers.think_s:.0f} s; pages that are loaded at the same time share the "
            "link."
        )
        if fitting == 0:
            reason = "one user alone waits longer: handshakes and slow start take round trips."
        return Answer(
            question=f"How many users of web pages fit on {self.subject}?",
            lines=[
                f"{counted(fitting, 'user')} on {format_rate(rate_bps)}: "
                f"{1e6 * fitting / rate_bps:.2f} per Mbit/s",
                "They are the most for whom 95 % of pages load within "
                f"{format_duration(self.page_time_ns)}",
                *self._lines_of(fitting),
                f"On paper at most {bound:,.0f}: the link full, pages as slow as allowed",
            ],
            reason=reason,
            uncertainty=f"{self.counts[counts[0]].of('page_p95_ns').runs_text} of "
            f"{format_duration(self.base.data['stop_ns'])} for each count; counts near the limit "
            "may pass or fail with other seeds. Users load pages like the median of 2024 (Web "
            "Almanac).",
            effects=effects,
            commands=[self.ask_command("busy-link"), self.ask_command("buffer")],
            figures={
                "users": fitting,
                "users_per_mbps": fitting / (rate_bps / 1e6),
                "bound_users": bound,
                "page_time_ns": self.page_time_ns,
                "counts": [{"users": count, **self.counts[count].estimates()} for count in counts],
            },
            tables=[self._table(counts)],
            charts=self._charts(counts, fitting),
        )

    def _lines_of(self, fitting: int) -> list[str]:
        """Say what the users that fit get; with one user too many, how far off the limit is."""
        if (fitting or 1) not in self.counts:
            return []
        found, limit = self.counts[fitting or 1], format_duration(self._limit_ns)
        return [
            f"{'With them' if fitting else 'With one user'} a page takes "
            f"{found.text('page_p50_ns')} (median), "
            f"{found.text('page_p95_ns')} (95 %); "
            f"{100 * found.mean('slow_share'):.1f} % take longer than {limit}",
            f"Beside {'them' if fitting else 'it'} a voice call has a MOS of "
            f"{found.mean('mos_p5'):.1f} (5th percentile); a video stalls for "
            f"{found.mean('stall_ratio_percent'):.1f} % of its time",
            f"The link is used {100 * found.mean('utilization'):.0f} % on average",
        ]

    def _table(self, counts: Sequence[int]) -> View:
        rows = ({"users": count, **self.counts[count].means()} for count in counts)
        return from_mappings("The counts that were run", columns("users"), rows)

    def _charts(self, counts: Sequence[int], fitting: int) -> list[Chart]:
        def series(figure: str, factor: float = 1.0) -> list[Any]:
            return [self.counts[count].of(figure).times(factor) for count in counts]

        pages = Chart(
            title="Time of a page over users",
            x_label="Users",
            y_label="Page [s]",
            x=counts,
            series={
                "median": series("page_p50_ns", 1 / NS_PER_S),
                "95 %": series("page_p95_ns", 1 / NS_PER_S),
            },
            marks=[(fitting, counted(fitting, "user"))],
        )
        return [
            pages,
            *(
                replace(
                    pages,
                    title=f"Quality of a {name} over users",
                    y_label=label,
                    series={name: series(figure)},
                )
                for name, figure, label in (
                    ("call", "mos_p5", "MOS, 5th percentile"),
                    ("video", "stall_ratio_percent", "Stalls [%]"),
                )
            ),
        ]


users = asking(Users)
