"""The study: points in both engines, their differences, and the thresholds of these.

Linux runs a point in real time; the simulator runs it with many seeds. A difference is the
simulator's value over the kernel's, less one, with the same seeds: then both lose the same packets
by number, so that random losses add no difference. Each measure has thresholds for the median and
the 90th percentile of the absolute differences over its points.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain, product
from typing import Any, ClassVar, Final

from bentpipe.quantities import quantity
from bentpipe.results import Cell, View
from bentpipe.studies.base import tables
from bentpipe.studies.base.comparison import Comparison, Row, Samples, Tolerance
from bentpipe.studies.base.inputs import Provenance, read_rows
from bentpipe.studies.base.real_time import RealMeasurement, RealOutcome, RealWork, cells_by_name
from bentpipe.studies.linux.points import Point, points

SEEDS: Final = 20
# A goodput above this share of the largest possible one is limited by the rate of the link.
LIMITED_SHARE: Final = 0.95
# The unit of differences of a measure without a threshold.
_DEFAULT_THRESHOLD: Final = 0.15
_LARGEST: Final = 10
_USUAL_SECONDS: Final = 30.0
_JUDGED_BY_MEASURE: Final = Tolerance(0.0, "%", "thresholds are for the points of a measure")
# By the names of their columns in measures.csv.
ALL, NOT_LIMITED = "all", "not limited by the link rate"
_GROUPS: Final = {"all": ALL, "not_limited": NOT_LIMITED}
_STATISTICS: Final = {"median": 0.5, "p90": 0.9}
_WORDS: Final = {"median": "median", "p90": "90th percentile"}
# By whether the link rate limits a value (None: no goodput): the end of a table's title.
_LIMITS: Final = {
    False: ", not limited by the link rate",
    True: ", limited by the link rate",
    None: "",
}
# A group of points and a statistic.
Key = tuple[str, str]
_view: Final = partial(tables.view, "linux")


@dataclass(frozen=True, kw_only=True)
class Measure:
    """Values that are compared at all points of one kind, with the largest allowed differences.

    A value below ``min_value`` in both engines is excluded: its relative difference means little.
    """

    name: str
    title: str
    kind: str
    values: tuple[str, ...]
    size_bytes: int | None
    min_value: float
    limits: Mapping[Key, float]

    @classmethod
    def of_row(cls, row: Mapping[str, str]) -> Measure:
        """Return the measure of a row of measures.csv."""
        return cls(
            **{name: row[name] for name in ("name", "title", "kind")},
            values=tuple(row["values"].split()),
            size_bytes=int(row["size_bytes"]) if row["size_bytes"] else None,
            min_value=float(row["min_value"] or 0),
            limits={
                (group, statistic): float(limit)
                for (prefix, group), statistic in product(_GROUPS.items(), _STATISTICS)
                if (limit := row[f"{prefix}_{statistic}"])
            },
        )


MEASURES: Final = tuple(map(Measure.of_row, read_rows("linux", "measures.csv")))


def row_of(measure: Measure, name: str, point: Point, measurement: RealMeasurement) -> Row:
    """Return one value of a point in both engines.

    ``simulated`` are the values of all seeds, ``same_seeds`` is the mean with the kernel's seeds.
    An engine has no value if one of its runs lacks it; the kernel has none without a valid run.
    """
    both = kernel, same = _in_both(measurement, name)
    values = Samples.of(run[name] for run in measurement.simulated.runs.values())
    if len(values.values) < len(measurement.simulated.runs):
        values = Samples()
    errors = [_difference_percent(value, kernel) for value in values.values]
    link = ("rate_mbps", "rtt_ms", "queue_bdp", "loss", "flows", "size_bytes")
    return Row(
        labels={"point": point.key, "kind": point.kind, "measure": measure.name, "value": name},
        unit=name.rpartition("_")[2].replace("bps", "bit/s"),
        published=None,
        simulated=values,
        provenance=Provenance.PREDICTED,
        tolerance=_JUDGED_BY_MEASURE,
        how=str(point),
        judged=False,
        more={
            "control": point.label,
            **{setting: getattr(point, setting) for setting in link},
            "same_seeds": same,
            "emulated": kernel,
            "difference_percent": _difference_percent(same, kernel),
            "mean_difference_percent": Samples.of(errors),
            "rate_limited": is_rate_limited(point, name, measurement),
            "excluded": all(value is not None and value < measure.min_value for value in both),
            "attempts": sum(run.attempts for run in measurement.runs),
            "invalid": measurement.invalid,
        },
    )


def _in_both(measurement: RealMeasurement, name: str) -> tuple[float | None, float | None]:
    return (measurement.emulated(name) if measurement.valid else None), measurement.same_seeds(name)


def is_rate_limited(point: Point, name: str, measurement: RealMeasurement) -> bool | None:
    """Return whether the link rate limits a goodput in both engines; None for other values."""
    name = "goodput_bps" if point.kind == "goodput" else name
    if not name.endswith("_bps"):
        return None
    is_halved = (point.kind, name) == ("rate-step", "after_bps")
    least_bps = LIMITED_SHARE * point.possible_bps / (2 if is_halved else 1)
    return all(bps is not None and bps >= least_bps for bps in _in_both(measurement, name))


def _difference_percent(simulated: float | None, kernel: float | None) -> float | None:
    if simulated is None or kernel is None:
        return None
    if kernel == simulated:
        return 0.0
    return 100 * (simulated / kernel - 1) if kernel else None


def size_of(row: Row) -> float:
    """Return the absolute difference as a share; infinite if there is none: the point failed."""
    percent = row["difference_percent"]
    return math.inf if percent is None else abs(percent) / 100


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The absolute differences of a measure over its points, by group and statistic.

    A percentile is infinite if it depends on a failed point.
    """

    measure: Measure
    counted: int
    failed: int
    excluded: int
    found: Mapping[Key, float]

    def meets(self, key: Key) -> bool:
        """Return whether a threshold is met; one over no points is."""
        return self.found.get(key, 0.0) <= self.measure.limits[key]

    @property
    def missed(self) -> list[str]:
        """The thresholds that are not met, as text."""
        return [
            f"{self.measure.title}, {key[0]}: {_WORDS[key[1]]} {_percent(self.found[key])}, at "
            f"most {limit:.0%}"
            for key, limit in self.measure.limits.items()
            if not self.meets(key)
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the summary as plain data; null is a percentile that depends on a failed point."""
        values = {
            key: difference if math.isfinite(difference) else None
            for key, difference in self.found.items()
        }
        return {
            "title": self.measure.title,
            "counted": self.counted,
            "failed": self.failed,
            "excluded": self.excluded,
            "difference": {
                group: {name: values[group, name] for name in _STATISTICS}
                for group in dict.fromkeys(group for group, _ in self.found)
            },
            "thresholds": [
                {
                    "over": key[0],
                    "statistic": key[1],
                    "limit": limit,
                    "found": values.get(key),
                    "passed": self.meets(key),
                }
                for key, limit in self.measure.limits.items()
            ],
            "passed": not self.missed,
        }


def summarize(measure: Measure, rows: Iterable[Row]) -> Summary | None:
    """Return the summary of a measure; None if it has no values.

    A row without a difference, because every run in real time was late, counts as infinite, so
    that it meets no threshold. It is in both groups.
    """
    of_measure = [row for row in rows if row["measure"] == measure.name]
    if not of_measure:
        return None
    counted = [row for row in of_measure if not row["excluded"]]
    groups = {ALL: counted, NOT_LIMITED: [row for row in counted if row["rate_limited"] is False]}
    return Summary(
        measure=measure,
        counted=len(counted),
        failed=sum(row["difference_percent"] is None for row in counted),
        excluded=len(of_measure) - len(counted),
        found={
            (group, name): quantile(map(size_of, of_group), share)
            for group, of_group in groups.items()
            if of_group
            for name, share in _STATISTICS.items()
        },
    )


def quantile(values: Iterable[float], share: float) -> float:
    """Return a quantile, interpolated linearly; infinite if one of its two values is."""
    ordered = sorted(values)
    rest, low = math.modf(share * (len(ordered) - 1))
    below, above = ordered[int(low)], ordered[math.ceil(low + rest)]
    # Of two infinite ones the difference is not a number.
    return above if math.isinf(above) else below + rest * (above - below)


@dataclass(frozen=True, kw_only=True)
class LinuxOutcome(RealOutcome):
    """The rows of all points, with the values of each run."""

    template: ClassVar[str] = "report.html.j2"

    found: Mapping[Point, RealMeasurement]

    def late(self) -> list[str]:
        """Return the points that were late in every attempt."""
        return [
            point.key
            for point, measurement in self.found.items()
            if measurement.invalid is not None
        ]

    def missed(self) -> list[str]:
        """Return the thresholds that are not met."""
        return [text for summary in self.summaries() for text in summary.missed]

    def summaries(self) -> list[Summary]:
        """Return the summaries of all measures that have values."""
        every = (summarize(measure, self.main.rows) for measure in MEASURES)
        return [summary for summary in every if summary is not None]

    def largest(self) -> list[Row]:
        """Return the largest differences, in units of the first threshold of their measure."""
        units = {
            measure.name: next(iter(measure.limits.values()), _DEFAULT_THRESHOLD)
            for measure in MEASURES
        }
        counted = [row for row in self.main.rows if not row["excluded"]]
        counted.sort(key=lambda row: size_of(row) / units[row["measure"]], reverse=True)
        return counted[:_LARGEST]

    def summary(self) -> dict[str, Any]:
        """Return the number of rows, the points that were late, and the measures."""
        return {
            "rows": len(self.main.rows),
            "invalid": self.late(),
            "passed": not self.missed(),
            "measures": {summary.measure.name: summary.to_json() for summary in self.summaries()},
        }

    def extras(self) -> dict[str, Any]:
        """Return the values of each run."""
        return {
            "points": [
                {
                    "point": point.key,
                    **{name: value for name, value in asdict(point).items() if value != ""},
                    "emulated": [{"seed": run.seed, **run.figures} for run in measurement.valid],
                    "simulated": [
                        {"seed": n, **run} for n, run in measurement.simulated.runs.items()
                    ],
                }
                for point, measurement in self.found.items()
            ],
        }

    def headline(self) -> list[str]:
        """Return the largest differences, a line each."""
        return [
            f"{_TITLES[row['measure']]} ({_name(row)}) {_signed(row['difference_percent'], ' %')}: "
            f"kernel {_number(row, 'emulated').text}, simulator {_number(row, 'same_seeds').text}; "
            f"{row['point']}: {row.how}"
            for row in self.largest()
        ]

    def terminal(self) -> Iterator[View | str]:
        """Yield the points, the summary and the largest differences."""
        yield from self.views()
        yield self.summary_view()
        yield ""
        yield "The largest differences, in units of the thresholds:"
        yield from (f"  {line}" for line in self.headline())
        seconds = self.configuration["seconds"]
        if seconds < _USUAL_SECONDS:
            yield f"Runs of {seconds:g} s are short: slow start is a large part of them."

    def context(self) -> dict[str, Any]:
        """Return the tables."""
        return {"tolerances": (), "summary_table": self.summary_view(), "tables": self.views()}

    def summary_view(self) -> View:
        """Return the measures, one a row for each group of points."""
        rows: list[list[Any]] = []
        for summary in self.summaries():
            for group in _GROUPS.values():
                limits = {k: limit for k, limit in summary.measure.limits.items() if k[0] == group}
                values = [summary.found.get((group, name)) for name in _STATISTICS]
                verdicts = (
                    f"{_WORDS[key[1]]} {limit:.0%}: {'passed' if summary.meets(key) else 'MISSED'}"
                    for key, limit in limits.items()
                )
                if values[0] is not None and (group == ALL or limits):
                    counts = (summary.counted, summary.failed, summary.excluded)
                    texts = (Cell(value, _percent(value)) for value in values if value is not None)
                    rows.append([summary.measure.title, group, *counts, *texts])
                    rows[-1].append(", ".join(verdicts) or None)
        return _view("summary", rows)

    def views(self) -> list[View]:
        """Return the points, a table for each kind; those limited by the link's rate are apart."""
        views = []
        for kind in dict.fromkeys(point.kind for point in self.found):
            of_kind = [row for row in self.main.rows if row["kind"] == kind]
            # The values of a goodput point are one row.
            size, columns = (3, "goodput") if kind == "goodput" else (1, "value")
            lines = [of_kind[i : i + size] for i in range(0, len(of_kind), size)]
            for is_limited, suffix in _LIMITS.items():
                rows = [_line(line) for line in lines if line[0]["rate_limited"] is is_limited]
                if rows:
                    views.append(_view(columns, rows, kind=kind, suffix=suffix))
        return views


_TITLES: Final = {measure.name: measure.title for measure in MEASURES}


def _line(rows: Sequence[Row]) -> list[Any]:
    """Return a line of a table: the values of a goodput point, or one value of another point."""
    first = rows[0]
    names = ("point", "control", "rate_mbps", "rtt_ms", "queue_bdp")
    link = [*(first[name] for name in names), first["loss"] * 100, first["flows"]]
    mean = first["mean_difference_percent"]
    half = "" if mean.interval is None else f" \u00b1 {mean.interval.high - mean.mean:.1f}"
    text = "-" if mean.mean is None else f"{mean.mean:+.1f}{half}"
    cells = [[_number(row, name) for name in ("emulated", "same_seeds")] for row in rows]
    difference = first["difference_percent"]
    cells.insert(1, [Cell(difference, _signed(difference)), Cell(mean.mean, text)])
    return [*link, *([_name(first)] if len(rows) == 1 else []), *chain.from_iterable(cells)]


def _percent(size: float) -> str:
    return f"{size:.1%}" if math.isfinite(size) else "failed"


def _signed(percent: float | None, unit: str = "") -> str:
    return "FAILED" if percent is None else f"{percent:+.1f}{unit}"


def _name(row: Row) -> str:
    """Return the name of a value with its unit."""
    if row["size_bytes"] is not None:
        return f"{quantity('size_bytes').text(row['size_bytes'])}, s"
    name, _, unit = row["value"].rpartition("_")
    return f"{name}, {'Mbit/s' if unit == 'bps' else unit}"


def _number(row: Row, name: str) -> Cell:
    forms = {"bit/s": (1e6, ",.3f"), "segments": (1, ",.0f"), "ms": (1, ",.1f")}
    factor, form = forms.get(row.unit, (1, ",.3f"))
    value = row[name]
    return Cell(value, "-" if value is None else format(value / factor, form))


def run_real_time(work: RealWork) -> LinuxOutcome:
    """Run points in real time, and simulate those that are done with 20 seeds."""
    names = {point: (point.key, f"{point.grid}:{point.kind}") for point in points()}
    chosen = [
        replace(point, seconds=work.seconds) for point in cells_by_name("linux", work.chosen, names)
    ]
    by_rate = sorted(chosen, key=lambda point: point.rate_mbps)
    # Fast points run at the same time as slow ones.
    mixed = dict.fromkeys(chain.from_iterable(zip(reversed(by_rate), by_rate, strict=True)))
    measured = work.compare({point: point for point in mixed}, runs=SEEDS)
    measurements = {point: measured[point] for point in chosen if measured[point].runs}
    rows = tuple(
        row_of(measure, name, point, measurement)
        for point, measurement in measurements.items()
        for measure in MEASURES
        if measure.kind == point.kind and measure.size_bytes in {None, point.size_bytes}
        for name in measure.values
    )
    return work.outcome(
        LinuxOutcome,
        {"values": Comparison(rows)},
        {
            "seconds": work.seconds,
            "runs_in_real_time": work.runs,
            "simulated_runs": max(SEEDS, work.runs),
            "cores": os.cpu_count(),
        },
        folder=work.folder,
        found=measurements,
    )
