"""What the source claims, held against the measured cells; a miss is named with its reason."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from bentpipe.studies._common import number
from bentpipe.studies.osu.study import VARIANT_KS, Cell, Measurement, Published, Sensitivity

# What the source leaves to the eye ("rises", "high") needs a number here.
NOISE_POINTS: Final = 0.5
MIN_FAIRNESS: Final = 0.95
SMALLEST_FAIR_BUFFER_K: Final = 3

# R of selective drop: the buffer fills no further when all sources have their share.
_FILLED: Final = 0.9


@dataclass(frozen=True)
class Miss:
    """A cell that does not do what is claimed."""

    cell: Cell
    found: str
    reason: str

    def to_json(self) -> dict[str, Any]:
        """Return the miss as plain data."""
        return {
            "scenario": self.cell.scenario,
            "sources": self.cell.sources,
            "k": self.cell.k,
            "found": self.found,
            "reason": self.reason,
        }


@dataclass(frozen=True)
class Check:
    """A claim, in how many places it was looked at, and where it does not hold."""

    name: str
    claim: str
    places: int
    worst: str
    misses: tuple[Miss, ...]

    @property
    def verdict(self) -> str:
        """``pass``, ``miss``, or ``not measured``."""
        if not self.places:
            return "not measured"
        return "miss" if self.misses else "pass"

    def to_json(self) -> dict[str, Any]:
        """Return the check as plain data."""
        return {
            "name": self.name,
            "claim": self.claim,
            "verdict": self.verdict,
            "places": self.places,
            "worst": self.worst,
            "misses": [miss.to_json() for miss in self.misses],
        }


def checks(measurements: Sequence[Measurement], published: Published) -> tuple[Check, ...]:
    """Return the three checks, all of selective drop."""
    measured = [
        each for each in measurements if each.cell.discipline == "selective_drop" and each.runs
    ]
    tails = {
        (each.cell.scenario, each.cell.sources, each.cell.k): each
        for each in measurements
        if each.cell.discipline == "drop_tail" and each.runs
    }
    return (
        _enough(measured, published),
        _rising(measured, tails),
        _fair(measured),
    )


def efficiency_if_halving(buffer_rtt: float, share: float) -> float:
    """Return the efficiency in percent when a share of equal sources halves at each loss.

    On paper, with windows in bandwidth-delay products: the sum of the windows grows to the link and
    the filled buffer, ``1 + b``, falls to ``w = (1 + b) (1 - share / 2)`` and grows evenly. A round
    trip takes 1 up to the window 1 and as long as the window above. Below 1 the link sends what
    the window lets it, above it is busy.
    """
    highest = 1 + buffer_rtt
    lowest = highest * (1 - share / 2)
    if lowest >= 1:
        return 100.0
    busy = (highest**2 - 1) / 2
    return 100 * ((1 - lowest**2) / 2 + busy) / (1 - lowest + busy)


def filled_buffer_rtt(k: int) -> float:
    """Return how far selective drop lets a buffer of 2^-k round trips fill, in round trips."""
    return _FILLED * 2.0**-k


def place(cell: Cell) -> str:
    """Return a cell's name."""
    return f"{cell.scenario}, {cell.sources} sources, k = {cell.k}"


def _figure(each: Measurement, figure: str) -> float:
    value = each.mean(figure)
    assert value is not None, "measured cells have runs"
    return value


def _lowest(asked: Sequence[Measurement], figure: str, *, digits: int, unit: str = "") -> str:
    lowest = min(asked, key=lambda each: _figure(each, figure), default=None)
    if lowest is None:
        return ""
    return f"{number(lowest.mean(figure), digits=digits)}{unit}: {place(lowest.cell)}"


def _with_error(each: Measurement, figure: str, *, digits: int) -> str:
    error = each.standard_error(figure)
    text = number(each.mean(figure), digits=digits)
    return text if error is None else f"{text} (standard error {number(error, digits=digits)})"


def _enough(measured: Sequence[Measurement], published: Published) -> Check:
    floor = published.min_efficiency
    asked = [each for each in measured if 2.0**-each.cell.k >= published.from_buffer_rtt]
    misses = [
        Miss(
            each.cell,
            f"{_with_error(each, 'efficiency', digits=2)} %",
            _reason_for_idling(each),
        )
        for each in asked
        if _figure(each, "efficiency") < floor
    ]
    return Check(
        "efficiency from half a round trip up",
        f"with a buffer of {published.from_buffer_rtt:g} round trips or more the efficiency is at "
        f"least {floor:g} %, for every number of sources",
        len(asked),
        _lowest(asked, "efficiency", digits=2, unit=" %"),
        tuple(misses),
    )


def _reason_for_idling(each: Measurement) -> str:
    buffer_rtt = filled_buffer_rtt(each.cell.k)
    together, half = (efficiency_if_halving(buffer_rtt, share) for share in (1.0, 0.5))
    return (
        f"with this buffer equal sources that all halve at once leave {number(together)} %, with "
        f"every second one {number(half)} %: too many lose in the same round trip, or too much is "
        f"lost in slow start to be back by the end ({number(each.mean('recoveries_per_source'))} "
        "recoveries a source)"
    )


def _rising(
    measured: Sequence[Measurement], tails: dict[tuple[str, int, int], Measurement]
) -> Check:
    pairs = list(_neighbours(measured))
    falls = [
        (_figure(small, "efficiency") - _figure(large, "efficiency"), large, small)
        for large, small in pairs
    ]
    misses = [
        Miss(
            large.cell,
            f"{number(large.mean('efficiency'))} %, and {number(small.mean('efficiency'))} % with "
            "half of the buffer",
            _reason_for_falling(large, small, tails),
        )
        for fall, large, small in falls
        if fall > NOISE_POINTS
    ]
    worst = max(falls, key=lambda each: each[0], default=None)
    return Check(
        "efficiency rises with the buffer",
        f"twice the buffer costs no efficiency, within {NOISE_POINTS:g} points of noise",
        len(pairs),
        "" if worst is None else f"{number(-worst[0], sign=True)} points: {place(worst[1].cell)}",
        tuple(misses),
    )


def _neighbours(measured: Sequence[Measurement]) -> Iterator[tuple[Measurement, Measurement]]:
    """Yield the cells whose buffers differ by a factor of two, the larger one first."""
    curves: dict[tuple[str, int], list[Measurement]] = {}
    for each in measured:
        curves.setdefault((each.cell.scenario, each.cell.sources), []).append(each)
    for curve in curves.values():
        curve.sort(key=lambda each: each.cell.k)
        for large, small in pairwise(curve):
            if small.cell.k == large.cell.k + 1:
                yield large, small


def _reason_for_falling(
    large: Measurement,
    small: Measurement,
    tails: dict[tuple[str, int, int], Measurement],
) -> str:
    gain = _figure(large, "efficiency_whole_run") - _figure(small, "efficiency_whole_run")
    whole = [number(each.mean("efficiency_whole_run")) for each in (large, small)]
    text = f"over the whole run it is {whole[0]} and {whole[1]} %"
    if gain >= -NOISE_POINTS:
        text += ", so that the smaller buffer only delivers more of it after the warm-up"
    cell = large.cell
    beside = [tails.get((cell.scenario, cell.sources, k)) for k in (cell.k, cell.k + 1)]
    if all(beside):
        figures = [number(each.mean("efficiency")) for each in beside if each is not None]
        text += f"; with drop-tail it is {figures[0]} and {figures[1]} %"
    return text


def _fair(measured: Sequence[Measurement]) -> Check:
    asked = [each for each in measured if each.cell.k <= SMALLEST_FAIR_BUFFER_K]
    misses = [
        Miss(each.cell, _with_error(each, "fairness", digits=3), _reason_for_unfairness(each))
        for each in asked
        if _figure(each, "fairness") < MIN_FAIRNESS
    ]
    return Check(
        "fairness",
        f"Jain's index is at least {MIN_FAIRNESS:g} with buffers down to "
        f"1/{2**SMALLEST_FAIR_BUFFER_K} round trip",
        len(asked),
        _lowest(asked, "fairness", digits=3),
        tuple(misses),
    )


def _reason_for_unfairness(each: Measurement) -> str:
    error = each.standard_error("fairness")
    reason = (
        f"{_figure(each, 'recoveries_per_source'):.1f} loss recoveries a source in the run: whose "
        "window is halved when is chance, and that has not evened out"
    )
    if error is not None and MIN_FAIRNESS - _figure(each, "fairness") <= 2 * error:
        reason += " (within two standard errors of what is asked)"
    return reason


def sensitivity_json(sensitivity: Sensitivity) -> dict[str, Any]:
    """Return a variant's figures beside those of the same runs as described."""
    return {
        "variant": sensitivity.variant.name,
        "changed": _digest(sensitivity.measurements),
        "as_described": _digest(sensitivity.described),
    }


def _digest(measurements: Sequence[Measurement]) -> dict[str, Any]:
    measured = [each for each in measurements if each.runs]
    halves, eighths = (
        [_figure(each, "efficiency") for each in measured if each.cell.k == k] for k in VARIANT_KS
    )
    fairness = [_figure(each, "fairness") for each in measured]
    return {
        "measured_min_at_half_rtt": min(halves, default=None),
        "measured_mean_at_half_rtt": sum(halves) / len(halves) if halves else None,
        "measured_mean_at_eighth_rtt": sum(eighths) / len(eighths) if eighths else None,
        "fairness_min": min(fairness, default=None),
        "fairness_mean": sum(fairness) / len(fairness) if fairness else None,
        "runs_of_a_cell": min((len(each.runs) for each in measured), default=0),
    }
