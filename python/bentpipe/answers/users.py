"""How many users of web pages fit.

They are the most for whom 95 % of pages load in time, in all and per Mbit/s. Users load web
pages of 70 objects by HTTP/2 with TLS 1.3 and a DNS lookup each, and think for 15 s on average
before the next one. A voice call and a video share the link. The time allowed is that of the link
as it is without --set, so that settings of the link can be compared. BBR at the hosts, FQ-CoDel
and a PEP are tried with as many users as fit. With --monthly-data the answer is also how many
subscribers fit in the busy hour.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, Final, Self

from bentpipe.answers.answer import Answer, charts, table
from bentpipe.answers.catalog import Option
from bentpipe.answers.counts import Fitting, search
from bentpipe.answers.question import Assumption
from bentpipe.answers.queues import with_fq_codel
from bentpipe.answers.remedies import Goal, all_met
from bentpipe.answers.runs import MIN_SEEDS, Experiment, Figures, Measurements
from bentpipe.answers.subscribers import Subscribed
from bentpipe.answers.traffic import (
    run_length,
    users_of,
    warm_up_ns,
    web_quality,
    web_reader,
)
from bentpipe.answers.variants import BBR_AT_HOSTS
from bentpipe.errors import RunsInterrupted, UsageError
from bentpipe.results.result import Result
from bentpipe.text import counted
from bentpipe.units import NS_PER_MS, NS_PER_S, format_rate

# Counts closer than this are not told apart: the shares of slow pages of some runs differ by more.
TOLERANCE: Final = 0.05
# About the limit for keeping a user's attention on a task: J. Nielsen, "Response Times: The Three
# Important Limits", after R. B. Miller, "Response Time in Man-Computer Conversational
# Transactions", AFIPS Fall Joint Computer Conference, 1968.
ATTENTION_NS: Final = 10 * NS_PER_S
# By default a page may take that long, or this many times as long as for a user alone.
_TIMES_ALONE: Final = 2
# A user alone whose pages take this near to the limit is at it: it says nothing of the link's rate.
NEAR: Final = 0.1
# The mean of a document and 70 objects, as in the median page of 2024.
PAGE_BYTES: Final = 2_700_000
# Below this mean use of the link pages wait for something else than for each other.
SHARED: Final = 0.5
_COUNT: Final = "traffic.reader.count"
# The congestion control over the link of the PEP that is tried; losses slow it down least.
_PEP: Final = "bbr"
# A number of users fits if this is met.
_FITS: Final = (Goal("slow_share", 0.05),)


@dataclass(kw_only=True, eq=False)
class Users(Subscribed):
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

    examples = (
        "--link geo",
        "--link geo --page-time 10s",
        "--link geo --subscribers 300 --monthly-data 100GB",
    )
    seeds = MIN_SEEDS
    # Expected counts of users, and one alone.
    searched = 7
    figure = "page_p95_ns"
    figure_text = "the time of a page"
    goals = (*_FITS, Goal("page_p95_ns"), Goal("mos_p5", more_is_better=True))

    def __post_init__(self) -> None:
        super().__post_init__()
        for setting in self.settings:
            if setting.partition("=")[0] in {_COUNT, "traffic.0.count", "traffic.*.count"}:
                raise UsageError(
                    f"--set {setting}: the number of users is what the answer finds; leave it out, "
                    "or run a scenario with it"
                )
        self.duration = run_length(self.link_rate_bps, PAGE_BYTES, self.page_time_ns or 0)

    def _traffic(self) -> list[dict[str, Any]]:
        return web_reader(self.link_rate_bps, warm_up_ns(self.stop_ns))

    def _measure(self, result: Result) -> Figures:
        return web_quality(result, self.limit_ns)

    def _assumptions(self) -> list[Assumption]:
        # BBR fills a queue that is not managed, where calls wait.
        managed, bbr = with_fq_codel(self.rtt_ns, self.directions[0]), BBR_AT_HOSTS
        both = (*bbr.settings, *managed.settings)
        remedies = [managed, Assumption(f"{bbr.name} {managed.text}", "neither", both, True)]
        if not any(gateway["functions"] for gateway in self.base.data["gateways"]):
            setting = f"gateways.hub.pep.link_tcp.congestion_control={_PEP}"
            remedies += [Assumption(f"a PEP with {_PEP}", "none", (setting,), True)]
        return [*super()._assumptions(), *remedies]

    @cached_property
    def alone_ns(self) -> float:
        """What 95 % of the pages of a user alone take on the link without settings of it.

        It has seeds of its own: neither a worse link nor more seeds change what is allowed.
        """
        plain = replace(
            self,
            settings=self.other_settings,
            page_time_ns=ATTENTION_NS,
            experiment=Experiment(seeds=self.seeds, threads=self.experiment.threads),
        )
        measured = plain.run_case(f"{_COUNT}=1", "traffic.reader.think=100ms")
        # Ctrl-C in these runs ends those of the counts, too.
        self.experiment.interrupted |= plain.experiment.interrupted
        return measured.mean("page_p95_ns")

    @cached_property
    def limit_ns(self) -> int:
        """What 95 % of pages may take."""
        if self.page_time_ns is not None:
            return self.page_time_ns
        if not math.isfinite(self.alone_ns):
            return ATTENTION_NS
        twice_ns = math.ceil(_TIMES_ALONE * self.alone_ns / NS_PER_S) * NS_PER_S
        return max(ATTENTION_NS, twice_ns)

    def _comparable(self) -> Self:
        return replace(self, page_time_ns=self.limit_ns)

    @cached_property
    def bound(self) -> float:
        """How many users fit on paper."""
        return users_of(self.base.data).at(1.0, self.rate_bps, self.limit_ns)

    @property
    def _limit(self) -> int:
        """The largest number of users that is searched."""
        return max(math.ceil(self.bound), 1)

    def _find(self, _cases: object) -> Mapping[int, Measurements]:
        """Search the largest number of users; return what was run, also one user, in order.

        After Ctrl-C one user may be missing.
        """
        self.check_demand(users_of(self.base.data), self.rate_bps)
        self.check_count(f"{format_rate(self.rate_bps)} may carry", round(self.bound), "users")
        measurements = search(
            self._run_users,
            _FITS,
            guess=int(0.5 * self.bound),
            limit=self._limit,
            tolerance=TOLERANCE,
        )
        if 1 not in measurements:
            with suppress(RunsInterrupted):
                measurements = {1: self._run_users(1), **measurements}
        return measurements

    def _run_users(self, count: int) -> Measurements:
        return self.run_case(f"{_COUNT}={count}")

    def _basis(
        self, measurements: Mapping[int, Measurements]
    ) -> tuple[Measurements, Sequence[str]]:
        shown = Fitting.of(measurements, _FITS).count or min(measurements)
        return measurements[shown], [f"{_COUNT}={shown}"]

    def _is_at_limit(self, measurements: Mapping[int, Measurements]) -> bool:
        """Return whether other seeds or a little less time may decide if one user alone fits."""
        if 1 not in measurements:
            return False
        times_limit = measurements[1].mean("page_p95_ns") / self.limit_ns
        return abs(times_limit - 1) <= NEAR or all_met(_FITS, measurements[1]) is None

    def _judge(self, measurements: Mapping[int, Measurements]) -> Answer:
        # Interrupted in the search: the counts that were run leave more open.
        partial = self.experiment.interrupted
        fitting = Fitting.of(measurements, _FITS, limit=self._limit)
        shown, _ = self._basis(measurements)
        readers = users_of(self.base.data)
        # A user's rate is lowest beside as many users as fit: pages take longest then. If not even
        # one user fits, no subscriber does, whatever the rate.
        page_ns = shown.mean("page_mean_ns") if fitting.count else self.limit_ns
        at_limit = self._is_at_limit(measurements)
        per_mbps = None if at_limit or partial else fitting.count / (self.rate_bps / 1e6)
        demand = self.demand(fitting.count, readers.rate_bps(page_ns))
        counts = [
            {"users": count, **measured.estimates()} for count, measured in measurements.items()
        ]
        marks = [
            (end, counted(end, "user")) for end in (fitting.range if partial else [fitting.count])
        ]
        return Answer(
            facts={
                "base": shown,
                "shown": fitting.count or min(measurements),
                "readers": readers,
                "fitting": fitting,
                "at_limit": at_limit,
                "partial": partial,
                "runs": sum(measured.of("slow_share").runs for measured in measurements.values()),
            },
            figures={
                "users": None if partial else fitting.count,
                "users_range": fitting.range,
                "users_per_mbps": per_mbps,
                "bound_users": self.bound,
                "page_time_ns": self.limit_ns,
                "alone_page_p95_ns": None if self.page_time_ns else self.alone_ns,
                "demand": {} if partial else demand,
                "counts": counts,
            },
            tables=[table("users", "The counts that were run", counts)],
            charts=charts("users", measurements, marks=marks),
        )
