"""The measures of a validation, and the thresholds for their differences."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from bentpipe.validation.points import Point

Group = Literal["all", "not limited by the link rate"]
Statistic = Literal["median", "p90"]
STATISTICS: Final[tuple[Statistic, ...]] = ("median", "p90")
ALL: Final[Group] = "all"
NOT_LIMITED: Final[Group] = "not limited by the link rate"


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """The largest allowed median or 90th percentile of the differences of a group of points."""

    over: Group
    statistic: Statistic
    limit: float


@dataclass(frozen=True, kw_only=True)
class Measure:
    """Values that are compared at all points of one kind.

    A value below ``min_value`` in both engines is excluded: its relative difference means little.
    """

    name: str
    title: str
    kind: str
    values: tuple[str, ...]
    thresholds: tuple[Threshold, ...] = ()
    size_bytes: int | None = None
    min_value: float = 0.0

    def applies_to(self, point: Point) -> bool:
        """Return whether the measure has values at the point."""
        return point.kind == self.kind and self.size_bytes in {None, point.size_bytes}


# By the names of their columns in measures.csv.
_GROUPS: Final[dict[str, Group]] = {"all": ALL, "not_limited": NOT_LIMITED}


def _read() -> tuple[Measure, ...]:
    """Return the measures in measures.csv."""
    measures = []
    with (Path(__file__).parent / "measures.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(line for line in file if not line.startswith("#")):
            thresholds = (
                Threshold(over=group, statistic=statistic, limit=float(limit))
                for prefix, group in _GROUPS.items()
                for statistic in STATISTICS
                if (limit := row[f"{prefix}_{statistic}"])
            )
            measures.append(
                Measure(
                    name=row["name"],
                    title=row["title"],
                    kind=row["kind"],
                    values=tuple(row["values"].split()),
                    thresholds=tuple(thresholds),
                    size_bytes=int(row["size_bytes"]) if row["size_bytes"] else None,
                    min_value=float(row["min_value"] or 0),
                )
            )
    return tuple(measures)


MEASURES: Final = _read()
