"""How long a file to many sites takes, and what it costs users.

Each site downloads a copy over TCP, some at the same time. It is sent around the clock in the class
of the users or in the lowest one, or in the night alone. The users read pages: each takes a page,
thinks for 15 s on average, and takes the next. One transmission to all is a bound on paper.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from bentpipe.answers.answer import Answer, table
from bentpipe.answers.catalog import Option
from bentpipe.answers.question import LinkQuestion
from bentpipe.answers.runs import Change, Measurements
from bentpipe.answers.traffic import (
    elapsed_h,
    elapsed_range_h,
    page_reader,
    page_times,
    run_length,
    strict_priority,
    users_of,
)
from bentpipe.plan.plan import Plan
from bentpipe.results.measures import entry_bps
from bentpipe.results.result import Result
from bentpipe.units import NS_PER_S, parse_size

_TOLERANCE: Final = 0.02
HOURS: Final = 24
# The sites that download at the same time.
AT_ONCE: Final = 8
_UPDATE: Final = "update"
# Runs: the load by day or in the night, and the class of the update, if there is one.
DAY, NIGHT = "day", "night"
Case = tuple[str, int | None]
WAYS: Final[Mapping[str, Case]] = {
    "in the class of the users": (DAY, 0),
    "in the lowest class": (DAY, 1),
    "in the night alone": (NIGHT, 0),
}
CASES: Final[tuple[Case, ...]] = ((DAY, None), (NIGHT, None), *WAYS.values())


@dataclass(kw_only=True, eq=False)
class Update(LinkQuestion):
    """The time of an update in three ways, and what it costs the users."""

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
    # The searches of the numbers of users, too.
    searched = 4 + len(CASES)
    figure = "update_bps"
    duration: str = field(default="", init=False)
    users: dict[str, int] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.size_bytes = parse_size(self.size)
        self.duration = run_length(self.link_rate_bps)

    def _traffic(self, users: int = 1, priority: int | None = 1) -> list[dict[str, Any]]:
        update = {
            "name": _UPDATE,
            "kind": "fetch",
            "direction": "forward",
            "count": min(AT_ONCE, self.sites),
            "size": f"{self.size_bytes} B",
            "start_jitter": "1 s",
            "priority": priority,
        }
        readers = {**page_reader(), "count": users}
        return [readers] if priority is None else [readers, update]

    def _measure(self, result: Result) -> Mapping[str, float]:
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
                first=round(users_of(self.base.data).at(load, self.rate_bps, NS_PER_S)),
                figure="busy",
                wanted=load,
                tolerance=_TOLERANCE,
            )[0]
            for when, load in ((DAY, self.load), (NIGHT, self.night_load))
        }
        return self.run({case: self._plan(*case) for case in CASES})

    def _plan(self, when: str, priority: int | None) -> Plan:
        traffic = self._traffic(self.users[when], priority)
        return self.plan(*([strict_priority(self.wire)] if priority else []), traffic=traffic)

    def _basis(self, found: Mapping[Case, Measurements]) -> tuple[Measurements, Sequence[str]]:
        count = f"traffic.reader.count={self.users[DAY]}"
        return found[DAY, 1], (strict_priority(self.wire), count)

    def _judge(self, found: Mapping[Case, Measurements]) -> Answer:
        day_h, bits = HOURS - self.night_hours, 8.0 * self.sites * self.size_bytes
        night = (self.night_hours, found[NIGHT, 0].of("update_bps"))
        ways: list[dict[str, Any]] = []
        rows = []
        for name, (when, priority) in WAYS.items():
            before, after = found[when, None], found[when, priority]
            phases = [(day_h, after.of("update_bps")), night][when == NIGHT :]
            hours, between = elapsed_range_h(bits, phases, HOURS)
            pages = Change.of("page_p50_ns", before, after, comparisons=len(WAYS))
            way = {"way": name, "hours": hours, "hours_range": between, "pages": pages.outcome}
            shown = after.estimates("update_bps", "page_p50_ns", "page_p95_ns")
            ways.append({**way, **shown, "page_change_percent": pages.percent})
            rows.append({**ways[-1], **after.means()})
        harmless = [way for way in ways if way["pages"] in {"gains", "equal"}]
        # Else the one that may lengthen pages the least.
        least = min(ways, key=lambda way: way["page_change_percent"].high)
        best = min(harmless, key=lambda way: way["hours"], default=least)
        day_bps, night_bps = (self.rate_bps * (1 - load) for load in (self.load, self.night_load))
        left = [(day_h, day_bps), (self.night_hours, night_bps)]
        return Answer(
            facts={"best": best, "harmless": harmless},
            figures={
                "users": self.users,
                "ways": ways,
                "left_hours": elapsed_h(bits, left),
                "once_hours": 8 * self.size_bytes / day_bps / 3600,
            },
            tables=[table(self.name, "Each way to send it", rows)],
        )
