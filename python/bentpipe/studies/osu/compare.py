"""The source's claims vs. the measured cells."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from bentpipe.studies.base.comparison import Comparison, Row, Tolerance
from bentpipe.studies.base.files import STUDIES_FOLDER
from bentpipe.studies.base.provenance import Provenance
from bentpipe.studies.base.tables import margin_text, number
from bentpipe.studies.osu.cells import LEO_SINGLE, SELECTIVE, VARIANT_KS, Cell
from bentpipe.studies.osu.measure import Measurement, lowest, mean_over

EFFICIENCY, RISE, FAIRNESS, SENSITIVITY = "efficiency", "rise", "fairness", "sensitivity"
# Shown with the efficiency of each cell.
FIGURES: Final = (
    "efficiency_whole_run",
    "fairness",
    "fairness_after_warm_up",
    "recoveries_per_source",
    "timeouts_per_source",
)
# The source says "high" and gives no number.
MIN_FAIRNESS: Final = 0.95
SMALLEST_FAIR_BUFFER_K: Final = 3
FAIR: Final = Tolerance(
    0.0, "points", "the source gives no number for a high fairness; the bound is this study's."
)
ENOUGH: Final = Tolerance(0.0, "points", "98 % of efficiency is a bound that the source states.")
NOISE: Final = Tolerance(
    0.5,
    "points",
    "the source shows a rise of efficiency with the buffer as curves without figures; half a point "
    "is what a reader of such curves may miss.",
)

# All sources halve at a loss, or every second one.
SHARES: Final = (1.0, 0.5)
# R of selective drop: the buffer fills no further when all sources have their share.
_FILLED: Final = 0.9


@dataclass(frozen=True)
class Published:
    """What the source says in text."""

    claims: tuple[str, ...]
    min_efficiency: float
    from_buffer_rtt: float


def compare(measured: Mapping[Cell, Measurement], published: Published) -> dict[str, Comparison]:
    """Return the comparisons for the three claims, which are all about selective drop.

    That of the efficiency has every cell; where nothing is claimed, the row has no published value.
    """
    selective = {cell: each for cell, each in measured.items() if cell.discipline == SELECTIVE}
    rises = [
        rise_row(large, selective[half])
        for cell, large in selective.items()
        if (half := replace(cell, k=cell.k + 1)) in selective
    ]
    fair = (each for cell, each in selective.items() if cell.k <= SMALLEST_FAIR_BUFFER_K)
    every = (efficiency_row(each, published) for each in measured.values())
    return {
        EFFICIENCY: Comparison(tuple(every)),
        RISE: Comparison(tuple(rises)),
        FAIRNESS: Comparison(tuple(map(fairness_row, fair))),
    }


def claims(published: Published) -> dict[str, str]:
    """Return what each comparison checks, in words."""
    return {
        EFFICIENCY: (
            f"Efficiency of at least {published.min_efficiency:g} % with a buffer of "
            f"{published.from_buffer_rtt:g} round trips or more"
        ),
        RISE: f"Efficiency rises with the buffer, within {NOISE.value:g} points of noise",
        FAIRNESS: (
            f"Fairness (Jain's index) of at least {MIN_FAIRNESS:g}, this study's bound, with "
            f"buffers down to 1/{2**SMALLEST_FAIR_BUFFER_K} round trip"
        ),
    }


def efficiency_row(each: Measurement, published: Published) -> Row:
    """Return a cell with its efficiency; the claim is on selective drop and large buffers."""
    cell = each.cell
    is_claimed = cell.discipline == SELECTIVE and cell.buffer_rtt >= published.from_buffer_rtt
    together, half = halving(cell.k)
    return _row(
        each,
        unit="%",
        published=published.min_efficiency if is_claimed else None,
        simulated=each[EFFICIENCY],
        tolerance=ENOUGH,
        reason=(
            "In theory, with this buffer equal sources that all halve at once leave "
            f"{number(together)} %, with every second one {number(half)} %: too many lose in the "
            "same round trip, or too much is lost in slow start to recover before the end "
            f"({number(each['recoveries_per_source'].mean)} recoveries a source)."
        ),
        more={
            "one_way_ms": cell.route.one_way_ms,
            "rtt_ms": cell.route.rtt_ms,
            "mss_bytes": cell.route.mss_bytes,
            "buffer_cells": each.buffer_cells,
            **{figure: each[figure] for figure in FIGURES},
        },
    )


def rise_row(large: Measurement, small: Measurement) -> Row:
    """Return how much efficiency twice the buffer gains."""
    whole_run = large.gain_over(small, "efficiency_whole_run")
    reason = (
        f"The efficiency is {margin_text(large[EFFICIENCY])} %, and "
        f"{margin_text(small[EFFICIENCY])} % with half of the buffer; over the whole run, twice "
        f"the buffer gains {margin_text(whole_run)} points"
    )
    if (whole_run.mean or 0.0) >= -NOISE.value:
        reason += ", so that the smaller buffer only delivers more of it after the warm-up"
    row = _row(
        large,
        unit="points",
        published=0.0,
        simulated=large.gain_over(small, EFFICIENCY),
        tolerance=NOISE,
        how="Efficiency less that with half of the buffer, by pairs of runs with the same seed.",
        reason=f"{reason}.",
        more={"whole_run": whole_run},
    )
    # With windows that grow by bytes, these rows lose 1 to 2 points.
    is_calibrated = (large.cell.scenario, large.cell.k) == (LEO_SINGLE, 4)
    return replace(row, provenance=Provenance.CALIBRATED) if is_calibrated else row


def fairness_row(each: Measurement) -> Row:
    """Return the fairness of a cell against the study's own bound."""
    recoveries = each["recoveries_per_source"]
    return _row(
        each,
        unit="(Jain's index)",
        published=MIN_FAIRNESS,
        simulated=each[FAIRNESS],
        tolerance=FAIR,
        how=f"The source says 'high'; {MIN_FAIRNESS:g} is this study's bound.",
        reason=(
            f"{number(recoveries.mean, 1)} loss recoveries a source in the run: windows are halved "
            "at random, and so few halvings do not even them out."
        ),
        more={"recoveries_per_source": recoveries},
    )


def sensitivity_row(changed: str, measured: Sequence[Measurement]) -> Row:
    """Return the cells of a variant together; nothing is published for it."""
    half, eighth = ([each for each in measured if each.cell.k == k] for k in VARIANT_KS)
    return Row(
        labels={"changed": changed},
        unit="%",
        published=None,
        simulated=mean_over(half, EFFICIENCY),
        provenance=Provenance.PREDICTED,
        tolerance=ENOUGH,
        how="Mean efficiency of the cells with selective drop and half a round trip of buffer.",
        more={
            "efficiency_min": lowest(half, EFFICIENCY),
            "efficiency_at_eighth_rtt": mean_over(eighth, EFFICIENCY),
            "fairness_min": lowest(measured, FAIRNESS),
            "fairness": mean_over(measured, FAIRNESS),
        },
    )


def efficiency_if_halving(buffer_rtt: float, share: float) -> float:
    """Return the efficiency in percent when a share of equal sources halves at each loss.

    In theory, with windows in bandwidth-delay products: the sum of the windows grows to the link
    and the filled buffer, ``1 + b``, falls to ``w = (1 + b) (1 - share / 2)`` and grows evenly. A
    round trip takes 1 up to the window 1, and as long as the window above. Below 1 the link sends
    what the window lets it, above it is busy.
    """
    highest = 1 + buffer_rtt
    lowest = highest * (1 - share / 2)
    if lowest >= 1:
        return 100.0
    busy = (highest**2 - 1) / 2
    return 100 * ((1 - lowest**2) / 2 + busy) / (1 - lowest + busy)


def halving(k: int) -> list[float]:
    """Return these efficiencies with a buffer of 2^-k round trips, for each of `SHARES`."""
    return [efficiency_if_halving(filled_buffer_rtt(k), share) for share in SHARES]


def filled_buffer_rtt(k: int) -> float:
    """Return how far selective drop lets a buffer of 2^-k round trips fill, in round trips."""
    return _FILLED * 2.0**-k


def read_published() -> Published:
    """Return what the source says in text.

    Raises:
        ValueError: the claim on the efficiency is not there.
    """
    text = (STUDIES_FOLDER / "osu" / "published.csv").read_text(encoding="utf-8")
    texts = tuple(re.findall("^# claim: (.*)$", text, re.MULTILINE))
    pattern = re.compile(r"buffer >= ([0-9.]+) RTT gives efficiency >= ([0-9.]+) %")
    ((buffer, efficiency),) = pattern.findall("\n".join(texts))
    return Published(texts, float(efficiency), float(buffer))


def _row(each: Measurement, **values: Any) -> Row:
    cell = each.cell
    return Row(
        labels=asdict(cell),
        title=cell.title,
        provenance=cell.provenance,
        bound="at_least",
        **values,
    )
