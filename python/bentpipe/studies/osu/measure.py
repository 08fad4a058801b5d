"""The figures of a run, of a cell, and of several cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Final

import numpy as np

from bentpipe.results.measures import jain
from bentpipe.scenario.framings import frame_bits
from bentpipe.simulation.many import Outcome
from bentpipe.studies.base import samples
from bentpipe.studies.base.samples import Array, Samples
from bentpipe.studies.osu.cells import Cell
from bentpipe.units import NS_PER_S

# Slow start from one segment and what it loses are over by then, in all but the smallest buffers.
WARM_UP_S: Final = 20

_TCP_IP_HEADER_BYTES: Final = 40


@dataclass(frozen=True)
class Measurement(samples.Measurement[Cell]):
    """The figures of the runs of one cell."""

    buffer_cells: int

    def gain_over(self, other: Measurement, figure: str) -> Samples:
        """Return the difference of a figure from another cell's, by pairs of the same seed."""
        mine, others = self.by_seed(figure), other.by_seed(figure)
        gains = (value - others[seed] for seed, value in mine.items() if seed in others)
        return Samples.of(gains, exact=False)


def mean_over(cells: Sequence[Measurement], figure: str) -> Samples:
    """Return the mean of a figure over cells, for each seed that all that ran have."""
    runs = [each.runs for each in cells if each.runs]
    seeds = [seed for seed in runs[0] if all(seed in each for each in runs)] if runs else []
    return Samples.of((fmean(each[seed][figure] for each in runs) for seed in seeds), exact=False)


def lowest(cells: Sequence[Measurement], figure: str) -> float | None:
    """Return the lowest mean of a figure over cells."""
    means = (each[figure].mean for each in cells)
    return min((mean for mean in means if mean is not None), default=None)


def figures(outcome: Outcome) -> dict[str, float]:
    """Return the figures of a run: efficiencies in percent, fairness as Jain's index."""
    plan = outcome.job.plan.data
    warm_up_ns = WARM_UP_S * NS_PER_S
    stop_ns = plan["stop_ns"]
    largest_bps = largest_goodput_bps(plan)
    delivered_bytes = outcome.column("flows", "delivered_bytes").astype(np.float64)
    is_warm = outcome.column("flow_samples", "time_ns") == warm_up_ns
    early_bytes = np.zeros_like(delivered_bytes)
    early_bytes[outcome.column("flow_samples", "flow")[is_warm]] = outcome.column(
        "flow_samples", "delivered_bytes"
    )[is_warm]
    late_bytes = delivered_bytes - early_bytes

    def efficiency(size_bytes: Array, elapsed_ns: int) -> float:
        goodput_bps = float(size_bytes.sum()) * 8 * NS_PER_S / elapsed_ns
        return 100 * goodput_bps / largest_bps

    return {
        "efficiency": efficiency(late_bytes, stop_ns - warm_up_ns),
        "efficiency_whole_run": efficiency(delivered_bytes, stop_ns),
        "fairness": jain(delivered_bytes),
        "fairness_after_warm_up": jain(late_bytes),
        "recoveries_per_source": float(outcome.column("flows", "fast_recoveries").mean()),
        "timeouts_per_source": float(outcome.column("flows", "timeouts").mean()),
    }


def largest_goodput_bps(plan: Mapping[str, Any]) -> float:
    """Return the application bit/s of a link that sends full segments and nothing else."""
    forward = plan["directions"][0]
    mss_bytes = plan["flows"][0]["workload"]["sender"]["mss_bytes"]
    segment_bits = frame_bits(forward["framing"], mss_bytes + _TCP_IP_HEADER_BYTES)
    return float(forward["rate_bps"]["value"] * 8 * mss_bytes / segment_bits)
