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
from bentpipe.answers.question import Assumption, LinkQuestion
from bentpipe.answers.runs import Change, Measurements
from bentpipe.answers.traffic import elapsed_h, page_reader, page_times, run_length, users_of
from bentpipe.results.result import Result
from bentpipe.units import NS_PER_S, parse_size

_TOLERANCE: Final = 0.02
HOURS: Final = 24
# The sites that download at the same time.
AT_ONCE: Final = 8
# The ways to send it, in the order of `CASES`.
WAYS: Final = ("in the class of the users", "in the lowest class", "in the night alone")
_UPDATE: Final = "update"
_CLASSES: Final = "link.forward.queue={discipline: strict_priority}"
# Runs: the load by day or in the night, and the class of the update, if there is one.
DAY, NIGHT = "day", "night"
Case = tuple[str, int | None]
CASES: Final[tuple[Case, ...]] = ((DAY, None), (NIGHT, None), (DAY, 0), (DAY, 1), (NIGHT, 0))


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

    def _run(self, *cases: tuple[str, int | None, int]) -> dict[Case, Measurements]:
        """Run cases, each with the time, the class of the update, and the number of users."""
        plans = {
            (when, priority): self.plan(
                *([_CLASSES] if priority else []), traffic=self._traffic(users, priority)
            )
            for when, priority, users in cases
        }
        return self.run(plans)

    def _measure(self, result: Result) -> Mapping[str, float]:
        flows = result.flows
        bits = 8 * float(flows.filter(flows["entry"] == _UPDATE)["delivered_bytes"].sum())
        return {
            **page_times(result),
            "update_bps": bits * NS_PER_S / result.manifest["end_ns"],
            "busy": float(result.directions["utilization"][0]),
        }

    def _find(self, _cases: object) -> Mapping[Case, Measurements]:
        """Run the cases beside as many users as keep the link this busy without the update."""
        self._counts = {
            when: self.adjusted_count(
                "users",
                lambda count: self._run((DAY, None, count))[DAY, None],
                first=round(users_of(self.base.data).at(load, self.rate_bps, NS_PER_S)),
                figure="busy",
                wanted=load,
                tolerance=_TOLERANCE,
            )[0]
            for when, load in ((DAY, self.load), (NIGHT, self.night_load))
        }
        return self._run(*((*case, self._counts[case[0]]) for case in CASES))

    def _assumptions(self) -> list[Assumption]:
        entry, now = f"traffic.{_UPDATE}", f"{min(AT_ONCE, self.sites)}"
        return [
            Assumption("BBR at the server", "CUBIC", (f"{entry}.tcp.congestion_control=bbr",)),
            Assumption("one site at a time", now, (f"{entry}.count=1",)),
        ]

    def _basis(self, found: Mapping[Case, Measurements]) -> tuple[Measurements, Sequence[str]]:
        return found[DAY, 1], (_CLASSES, f"traffic.reader.count={self._counts[DAY]}")

    def _judge(self, found: Mapping[Case, Measurements]) -> Answer:
        day_h, bits = HOURS - self.night_hours, 8.0 * self.sites * self.size_bytes
        night = (self.night_hours, found[NIGHT, 0].mean("update_bps"))
        ways: list[dict[str, Any]] = []
        rows = []
        for name, (when, priority) in zip(WAYS, CASES[2:], strict=True):
            before, after = found[when, None], found[when, priority]
            by_day = (day_h, after.mean("update_bps"))
            phases = [by_day, night] if when == DAY else [night, (day_h, 0)]
            pages = Change.of("page_p50_ns", before, after, comparisons=len(WAYS))
            way = {"way": name, "hours": elapsed_h(bits, phases), "pages": pages.outcome}
            change = {"page_change_percent": pages.percent}
            ways.append(
                {**way, **after.estimates("update_bps", "page_p50_ns", "page_p95_ns"), **change}
            )
            rows.append({**ways[-1], **after.means()})
        harmless = [way for way in ways if way["pages"] in {"gains", "equal"}]
        day_bps, night_bps = (self.rate_bps * (1 - load) for load in (self.load, self.night_load))
        left = [(day_h, day_bps), (self.night_hours, night_bps)]
        return Answer(
            facts={
                # Else the one that may lengthen pages the least.
                "best": min(harmless, key=lambda way: way["hours"])
                if harmless
                else min(ways, key=lambda way: way["page_change_percent"].high),
                "harmless": harmless,
            },
            figures={
                "users": self._counts,
                "ways": ways,
                "left_hours": elapsed_h(bits, left),
                "once_hours": 8 * self.size_bytes / day_bps / 3600,
            },
            tables=[table(self.name, "Each way to send it", rows)],
        )
