"""How many users of web pages fit.

They are the most for whom 95 % of pages load in time, in all and per Mbit/s. Users load web
pages of 70 objects by HTTP/2 with TLS 1.3 and a DNS lookup each, and think for 15 s on average
before the next one. A voice call and a video share the link. The time allowed is that of the link
as it is without --set, so that settings of the link can be compared. With --monthly-data the
answer is also how many subscribers fit in the busy hour.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, Final

import numpy as np

from bentpipe.answers.answer import Answer, charts, table
from bentpipe.answers.catalog import Option
from bentpipe.answers.question import MAX_COUNT, Assumption, LinkQuestion, largest
from bentpipe.answers.runs import Experiment, Measurements
from bentpipe.answers.subscribers import Demand
from bentpipe.answers.traffic import THINK_S, median_and_p95, reader, run_length, times_ns, users_of
from bentpipe.errors import UsageError
from bentpipe.results.result import Result
from bentpipe.text import counted
from bentpipe.units import NS_PER_MS, NS_PER_S, format_rate

_SLOW_SHARE: Final = 0.05
# Counts closer than this are not told apart: the percentiles of three runs differ by more.
TOLERANCE: Final = 0.05
_OBJECTS: Final = 70
# About the limit for keeping a user's attention on a task: J. Nielsen, "Response Times: The Three
# Important Limits", after R. B. Miller, "Response Time in Man-Computer Conversational
# Transactions", AFIPS Fall Joint Computer Conference, 1968.
ATTENTION_NS: Final = 10 * NS_PER_S
# By default a page may take that long, or this many times as long as for a user alone.
_TIMES_ALONE: Final = 2
# The media rate of the video: one of standard definition, and a small part of a slow link.
_VIDEO_BPS: Final = 1_000_000
_VIDEO_SHARE: Final = 0.1
_COUNT: Final = "traffic.reader.count"


@dataclass(kw_only=True, eq=False)
class Users(LinkQuestion):
    """The largest number of users; ``page_time_ns`` is what 95 % of their pages may take."""

    page_time_ns: Annotated[
        int | None,
        Option(
            "What 95 % of pages may take. [default: 10s, or twice as long as for one user on the "
            "link without --set]",
            "TIME",
            flag="--page-time",
            min=NS_PER_MS,
        ),
    ] = None
    monthly_bytes: Annotated[
        int | None,
        Option(
            "The data of a subscriber in a month: then also how many subscribers fit.",
            "DATA",
            flag="--monthly-data",
            min=1,
        ),
    ] = None
    subscribers: Annotated[
        int | None,
        Option("Whether so many fit in the busy hour, with --monthly-data.", "N", min=1),
    ] = None

    examples = (
        "--link geo",
        "--link geo --page-time 10s",
        "--link geo --subscribers 300 --monthly-data 100GB",
    )
    seeds = 3
    # Expected counts of users.
    searched = 6
    figure = "page_p95_ns"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.subscribers is not None and self.monthly_bytes is None:
            raise UsageError(
                f"--subscribers {self.subscribers}: how active they are is missing; add the data "
                "of a subscriber in a month, such as --monthly-data 100GB"
            )
        self.duration = run_length(self.link_rate_bps)

    def _traffic(self) -> list[dict[str, Any]]:
        # The rate of the link, with settings, gives that of the video.
        video_bps = round(min(_VIDEO_BPS, _VIDEO_SHARE * self.link_rate_bps))
        video = {"kind": "video", "direction": "forward", "rate": f"{video_bps} bit/s"}
        return [
            reader(kind="web_page", pages=None),
            {"name": "call", "kind": "voice", "direction": "both", "codec": "g711"},
            {"name": "video", **video},
        ]

    def _measure(self, result: Result) -> Mapping[str, float]:
        limit_ns = self.limit_ns
        pages_ns = times_ns(result.tables["pages"], result.manifest["end_ns"], limit_ns)
        median_ns, high_ns = median_and_p95(pages_ns, missing=math.inf)
        calls = result.flows["mos"].drop_nulls().to_numpy()
        stalls = result.flows["stall_ratio_percent"].drop_nulls().to_numpy()
        return {
            "page_mean_ns": float(pages_ns.mean()) if pages_ns.size else math.inf,
            "page_p50_ns": median_ns,
            "page_p95_ns": high_ns,
            "slow_share": float(np.mean(pages_ns > limit_ns)) if pages_ns.size else 1.0,
            "mos_p5": float(np.quantile(calls, 0.05)) if calls.size else math.nan,
            "stall_ratio_percent": float(stalls.mean()) if stalls.size else math.nan,
            "utilization": float(result.directions["utilization"][0]),
        }

    def _assumptions(self) -> list[Assumption]:
        others = (
            (f"with {_OBJECTS // 2} objects", f"{_OBJECTS}", f"objects={_OBJECTS // 2}"),
            (
                f"with {2 * THINK_S} s of thinking",
                f"{THINK_S} s",
                f"think.exponential={2 * THINK_S}s",
            ),
            ("by HTTP/1.1 over 6 connections", "HTTP/2", "http=1.1"),
        )
        return [
            Assumption(f"the time of a page {text}", now, (f"traffic.reader.{setting}",))
            for text, now, setting in others
        ]

    @cached_property
    def alone_ns(self) -> float:
        """What 95 % of the pages of a user alone take on the link without settings of it.

        It has seeds of its own: neither a worse link nor more seeds change what is allowed.
        """
        experiment = Experiment(seeds=self.seeds, threads=self.experiment.threads)
        plain = replace(
            self,
            settings=self.other_settings,
            page_time_ns=ATTENTION_NS,
            experiment=experiment,
        )
        return plain.run_case(f"{_COUNT}=1", "traffic.reader.think=100ms").mean("page_p95_ns")

    @cached_property
    def limit_ns(self) -> int:
        """What 95 % of pages may take."""
        if self.page_time_ns is not None:
            return self.page_time_ns
        if not math.isfinite(self.alone_ns):
            return ATTENTION_NS
        twice_ns = math.ceil(_TIMES_ALONE * self.alone_ns / NS_PER_S) * NS_PER_S
        return max(ATTENTION_NS, twice_ns)

    def _bound(self) -> float:
        """Return how many users fit on paper."""
        return users_of(self.base.data).at(1.0, self.rate_bps, self.limit_ns)

    def _find(self, _cases: object) -> Mapping[int, Measurements]:
        """Search the largest number of users; return the counts that were run, in order."""
        bound = self._bound()
        if bound > MAX_COUNT:
            raise UsageError(
                f"ask users: {format_rate(self.rate_bps)} may carry {bound:,.0f} users, more than "
                f"{MAX_COUNT:,}; ask with a lower rate, such as --set link.forward.rate=100Mbit/s"
            )
        found: dict[int, Measurements] = {}

        def passes(count: int) -> bool:
            found[count] = self.run_case(f"{_COUNT}={count}")
            return found[count].mean("slow_share") <= _SLOW_SHARE

        limit = max(math.ceil(bound), 1)
        self._fitting = largest(passes, guess=int(0.5 * bound), limit=limit, tolerance=TOLERANCE)
        return dict(sorted(found.items()))

    def _basis(self, found: Mapping[int, Measurements]) -> tuple[Measurements, Sequence[str]]:
        shown = max(self._fitting, 1)
        return found[shown], [f"{_COUNT}={shown}"]

    def _judge(self, found: Mapping[int, Measurements]) -> Answer:
        fitting, (shown, _) = self._fitting, self._basis(found)
        rows = [{"users": count, **each.means()} for count, each in found.items()]
        readers = users_of(self.base.data)
        demand = {}
        if self.monthly_bytes is not None:
            # A user takes least with as many as fit. If none does, any rate leaves no subscriber.
            page_ns = shown.mean("page_mean_ns") if fitting else self.limit_ns
            user_bps = readers.rate_bps(page_ns)
            demand = Demand(self.monthly_bytes, user_bps).figures(fitting, self.subscribers)
        return Answer(
            facts={"base": shown, "readers": readers},
            figures={
                "users": fitting,
                "users_per_mbps": fitting / (self.rate_bps / 1e6),
                "bound_users": self._bound(),
                "page_time_ns": self.limit_ns,
                "alone_page_p95_ns": None if self.page_time_ns else self.alone_ns,
                "demand": demand,
                "counts": [{"users": count, **each.estimates()} for count, each in found.items()],
            },
            tables=[table("users", "The counts that were run", rows)],
            charts=charts("users", found, marks=[(fitting, counted(fitting, "user"))]),
        )
