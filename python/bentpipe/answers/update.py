"""How long a file to many sites takes, and what it costs users.

Each site downloads a copy over TCP, some at the same time. It is sent around the clock in the class
of the users or in the lowest one, or in the night alone, in either class. The users read pages:
each takes a page, thinks for 15 s on average, and takes the next. Pages by day and in the night are
compared with those in the same queue without the update. One transmission to all is a bound on
paper.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from bentpipe.answers.answer import Answer, table
from bentpipe.answers.catalog import Option
from bentpipe.answers.question import LinkQuestion
from bentpipe.answers.queues import with_classes
from bentpipe.answers.runs import Change, Figures, Measurements
from bentpipe.answers.traffic import (
    MEDIAN_PAGE_BYTES,
    elapsed_h,
    elapsed_range_h,
    page_reader,
    page_times,
    run_length,
    users_of,
)
from bentpipe.plan.plan import Plan
from bentpipe.results.measures import entry_bps
from bentpipe.results.result import Result
from bentpipe.units import NS_PER_S, parse_size

# Of the share of time that users keep the link busy: users are searched until it is this close.
_TOLERANCE: Final = 0.02
HOURS: Final = 24
# The sites that download at the same time: a choice, which is compared with one at a time.
AT_ONCE: Final = 8
_UPDATE: Final = "update"
DAY, NIGHT = "day", "night"
# The load of the users (`DAY` or `NIGHT`), the class of the update (None: there is none), and
# whether the queue has classes.
Case = tuple[str, int | None, bool]
# When the update is sent, its class, and whether the queue has classes.
WAYS: Final[Mapping[str, tuple[Sequence[str], int, bool]]] = {
    "in the class of the users": ((DAY, NIGHT), 0, False),
    "in the lowest class": ((DAY, NIGHT), 1, True),
    "in the night alone": ((NIGHT,), 0, False),
    "in the night alone, in the lowest class": ((NIGHT,), 1, True),
}
CASES: Final[Sequence[Case]] = [
    (when, priority, classes)
    for when in (DAY, NIGHT)
    for priority, classes in ((None, False), (None, True), (0, False), (1, True))
]
# Changes of pages that are shown, so that the intervals of all of them hold together.
_COMPARED: Final = sum(len(times) for times, *_ in WAYS.values())
# Outcomes of a change of pages, the worst last: a way has that of the worse part of the day.
_WORSE: Final = ("gains", "equal", "not decided", "loses")


@dataclass(kw_only=True, eq=False)
class Update(LinkQuestion):
    """The time of an update in four ways, and what it costs the users."""

    sites: Annotated[int, Option("Sites that each get the file.", "N", min=1)] = 100
    size: Annotated[str, Option("The size of the file.", "SIZE")] = "500MB"
    load: Annotated[
        float, Option("How busy users keep the link by day.", "PERCENT", min=0.01, max=0.95)
    ] = 0.6
    night_load: Annotated[
        float, Option("How busy they keep it in the night.", "PERCENT", min=0.01, max=0.95)
    ] = 0.1
    night_hours: Annotated[
        int, Option("The hours of the night, of 24.", "N", min=1, max=HOURS - 1)
    ] = 6

    examples = ("--link geo --sites 200 --size 1GB", "--load 80% --night-hours 5")
    constants = ("rate_bps",)
    entries = (_UPDATE,)
    # Two searches of a number of users, of some two runs each, and the cases.
    searched = 4 + len(CASES)
    figure = "update_bps"
    duration: str = field(default="", init=False)
    users: dict[str, int] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.size_bytes = parse_size(self.size)
        # The mean page is 3 medians: exp(sigma^2 / 2), with the sigma of `page_reader`.
        self.duration = run_length(self.link_rate_bps, 3 * MEDIAN_PAGE_BYTES)

    @property
    def at_once(self) -> int:
        """The sites that download at the same time."""
        return min(AT_ONCE, self.sites)

    def _traffic(self, users: int = 1, priority: int | None = 1) -> list[dict[str, Any]]:
        """Return the users, and the update in a class; None leaves it out."""
        update = {
            "name": _UPDATE,
            "kind": "fetch",
            "direction": "forward",
            "count": self.at_once,
            "size": f"{self.size_bytes} B",
            "start_jitter": "1 s",
            "priority": priority,
        }
        readers = {**page_reader(), "count": users}
        return [readers] if priority is None else [readers, update]

    def _measure(self, result: Result) -> Figures:
        return {
            **page_times(result),
            "update_bps": entry_bps(result, _UPDATE),
            "busy": float(result.directions["utilization"][0]),
        }

    def _find(self, _cases: object) -> Mapping[Case, Measurements]:
        """Run the cases beside as many users as keep the link this busy without the update."""
        self.users = {
            when: self.adjusted_count(
                "users",
                lambda count: self.run_case(traffic=self._traffic(count, None)),
                # At first as if pages took 1 s.
                first=round(users_of(self.base.data).at(load, self.rate_bps, NS_PER_S)),
                figure="busy",
                wanted=load,
                tolerance=_TOLERANCE,
            )[0]
            for when, load in ((DAY, self.load), (NIGHT, self.night_load))
        }
        return self.run({case: self._plan(*case) for case in CASES})

    def _plan(self, when: str, priority: int | None, classes: bool) -> Plan:
        traffic = self._traffic(self.users[when], priority)
        return self.plan(*([self.classes] if classes else []), traffic=traffic)

    @property
    def classes(self) -> str:
        """The setting of a queue with a class below that of the users, and the same limit."""
        return with_classes("forward", self.wire)

    def _basis(
        self, measurements: Mapping[Case, Measurements]
    ) -> tuple[Measurements, Sequence[str]]:
        """Return the case that assumptions change, and the settings that make it."""
        return measurements[DAY, 1, True], (self.classes, f"traffic.reader.count={self.users[DAY]}")

    def _way(self, name: str, measurements: Mapping[Case, Measurements]) -> dict[str, Any]:
        """Return the time of a way, and the pages of the part of the day that are worse off."""
        times, priority, classes = WAYS[name]
        hours = {DAY: HOURS - self.night_hours, NIGHT: self.night_hours}
        # The headline has the shortest way, so the hours of all ways hold together.
        rates = {
            when: measurements[when, priority, classes].of("update_bps", len(WAYS))
            for when in times
        }
        bits = 8.0 * self.sites * self.size_bytes
        phases = [(hours[when], rates[when]) for when in times]
        mean_h, between_h = elapsed_range_h(bits, phases, HOURS)
        changes = {
            when: Change.of(
                "page_p50_ns",
                measurements[when, None, classes],
                measurements[when, priority, classes],
                comparisons=_COMPARED,
            )
            for when in times
        }
        worst = max(
            times,
            key=lambda when: (_WORSE.index(changes[when].outcome), changes[when].percent.high),
        )
        after = measurements[worst, priority, classes]
        return {
            "way": name,
            "hours": mean_h,
            "hours_range": between_h,
            "pages": changes[worst].outcome,
            "pages_at": worst,
            "rates_bps": rates,
            "update_bps": rates[times[0]],
            **after.estimates("page_p50_ns", "page_p95_ns"),
            "page_change_percent": changes[worst].percent,
        }

    def _judge(self, measurements: Mapping[Case, Measurements]) -> Answer:
        ways = [self._way(name, measurements) for name in WAYS]
        harmless = [way for way in ways if way["pages"] in {"gains", "equal"}]
        # Else the one that may lengthen pages the least.
        least = min(ways, key=lambda way: way["page_change_percent"].high)
        best = min(harmless, key=lambda way: way["hours"], default=least)
        busy = {when: measurements[when, None, False].of("busy") for when in (DAY, NIGHT)}
        day_bps, night_bps = (self.rate_bps * max(1 - busy[when].mean, 0) for when in (DAY, NIGHT))
        left = [(HOURS - self.night_hours, day_bps), (self.night_hours, night_bps)]
        loads = {DAY: self.load, NIGHT: self.night_load}
        # Where one user alone is more load than asked for.
        beyond = [
            when
            for when in loads
            if self.users[when] == 1 and busy[when].mean > loads[when] + _TOLERANCE
        ]
        return Answer(
            facts={"best": best, "harmless": harmless, "beyond": beyond},
            figures={
                "users": self.users,
                "busy": busy,
                "ways": ways,
                "left_hours": elapsed_h(8.0 * self.sites * self.size_bytes, left),
                "once_hours": elapsed_h(8.0 * self.size_bytes, left),
            },
            tables=[table(self.name, "Each way to send it", ways)],
        )
