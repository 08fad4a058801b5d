"""The study: the note's table and its other figures, measured first and compared afterwards.

The sizes and all scenarios come from code and one scenario file (`_measure`). The published figures
are read after the last run, so that no run can depend on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from bentpipe import _core
from bentpipe.simulation.no_drop import NoDropSearch
from bentpipe.studies._common import read_rows
from bentpipe.studies.snip._facts import Finding, findings
from bentpipe.studies.snip._measure import (
    RESOLUTION,
    SIZES,
    TCP_DURATION,
    Measured,
    base_scenario,
    measure,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

# Beyond this share of the published figure a figure is called a miss.
TOLERANCE_PERCENT: Final = 10.0
_MISSED_ROW: Final = (
    "One packet rate and one framing hold for all rows; the published rows scatter about both."
)
_HERE: Final = Path(__file__).parent


@dataclass(frozen=True, kw_only=True)
class PublishedRow:
    """One row of the table: Mbit/s of payload, packets a second, what the source says limits."""

    rate_mbps: float
    packets_per_second: float
    limit: str


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One row, published beside measured; ``round_figure_mbps`` is without calibration."""

    packet_bytes: int
    published: PublishedRow
    measured_mbps: float | None
    measured_pps: float | None
    measured_limit: str | None
    round_figure_mbps: float | None

    @property
    def error_percent(self) -> float | None:
        """The rate's error in percent of the published rate."""
        return _error_percent(self.measured_mbps, self.published.rate_mbps)

    @property
    def pps_error_percent(self) -> float | None:
        """The error of the packets a second, in percent of the published ones."""
        return _error_percent(self.measured_pps, self.published.packets_per_second)

    @property
    def round_figure_error_percent(self) -> float | None:
        """The rate's error without calibration."""
        return _error_percent(self.round_figure_mbps, self.published.rate_mbps)

    @property
    def miss(self) -> bool:
        """Whether the rate is measured and further off than the tolerance."""
        return _is_miss(self.error_percent)

    def to_json(self) -> dict[str, Any]:
        """Return the row as plain data; rates in Mbit/s of UDP payload."""
        return {
            "packet_bytes": self.packet_bytes,
            "published": self.published.rate_mbps,
            "measured": self.measured_mbps,
            "error_percent": self.error_percent,
            "published_pps": self.published.packets_per_second,
            "measured_pps": self.measured_pps,
            "pps_error_percent": self.pps_error_percent,
            "published_limit": self.published.limit,
            "measured_limit": self.measured_limit,
            "measured_at_round_figure": self.round_figure_mbps,
            "miss": self.miss,
            "reason": _MISSED_ROW if self.miss else None,
        }


@dataclass(frozen=True, kw_only=True)
class Fact:
    """Another figure of the note, published beside measured, and what its measurement is worth."""

    quantity: str
    unit: str
    published: float
    finding: Finding

    @property
    def error_percent(self) -> float | None:
        """The error in percent of the published figure."""
        return _error_percent(self.finding.measured, self.published)

    @property
    def miss(self) -> bool:
        """Whether it is measured and further off than the tolerance."""
        return _is_miss(self.error_percent)

    def to_json(self) -> dict[str, Any]:
        """Return the figure as plain data."""
        return {
            "quantity": self.quantity,
            "published": self.published,
            "measured": self.finding.measured,
            "unit": self.unit,
            "error_percent": self.error_percent,
            "miss": self.miss,
            "basis": self.finding.basis,
            "reason": self.finding.reason,
        }


@dataclass(frozen=True, kw_only=True)
class SnipOutcome:
    """The table, the facts, and all that was measured."""

    cells: tuple[Cell, ...]
    facts: tuple[Fact, ...]
    measured: Measured
    configuration: dict[str, Any]

    @property
    def interrupted(self) -> bool:
        """Whether figures are missing because the study was stopped."""
        return self.measured.interrupted

    def summary(self) -> dict[str, Any]:
        """Return the errors of table and facts as plain data, in percent."""
        rates = _known(cell.error_percent for cell in self.cells)
        packets = _known(cell.pps_error_percent for cell in self.cells)
        uncalibrated = _known(cell.round_figure_error_percent for cell in self.cells)
        return {
            "mean_error_percent": _mean(rates),
            "max_error_percent": max(rates, default=None),
            "mean_pps_error_percent": _mean(packets),
            "max_pps_error_percent": max(packets, default=None),
            "mean_error_percent_at_round_figure": _mean(uncalibrated),
            "max_error_percent_at_round_figure": max(uncalibrated, default=None),
            "tolerance_percent": TOLERANCE_PERCENT,
            "misses": [
                *(f"{cell.packet_bytes} bytes" for cell in self.cells if cell.miss),
                *(fact.quantity for fact in self.facts if fact.miss),
            ],
        }

    def to_json(self) -> dict[str, Any]:
        """Return the figures as plain data."""
        measured, crossover = self.measured, self.measured.crossover
        return {
            "study": "snip",
            "interrupted": self.interrupted,
            "cells": [cell.to_json() for cell in self.cells],
            "summary": self.summary(),
            "facts": [fact.to_json() for fact in self.facts],
            "packet_rate_limits": dict(measured.limits),
            "tcp_goodput_kbps_by_window_bytes": {
                str(window): bps / 1e3 for window, bps in measured.tcp_bps.items()
            },
            "duplex": [
                {
                    "offered_pps": each.offered,
                    "forward_pps": each.forward,
                    "return_pps": each.backward,
                    "forward_percent": each.split_percent,
                }
                for each in measured.duplex
            ],
            "crossover": None
            if crossover is None
            else {
                "payload_bytes": crossover.payload_bytes,
                "ip_bytes": crossover.ip_bytes,
                "link_bytes": crossover.link_bytes,
            },
            "shared_hub": [
                {
                    "terminals": terminals,
                    "packets_per_second_each": found.rates[0].packets_per_second,
                    "packets_per_second_all": found.rates[0].aggregate_packets_per_second,
                }
                for terminals, found in measured.sharing.items()
            ],
            "aggregation": measured.aggregation.to_json(measured.table),
            "configuration": self.configuration,
        }

    def table(self) -> RenderableType:
        """Return table and facts for a terminal."""
        from bentpipe.studies.snip._tables import terminal_table

        return terminal_table(self)

    def write(self, out_dir: Path) -> Path:
        """Write report, cells.csv, facts.csv, result.json and manifest.json; return the folder.

        Raises:
            UsageError: the folder has other things in it, or cannot be written.
        """
        from bentpipe.studies.snip._tables import write_outcome

        return write_outcome(self, out_dir)


def run(
    *,
    runs: int | None = None,  # noqa: ARG001 - every study is called alike; nothing here draws chance
    seed: int = 1,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> SnipOutcome:
    """Measure everything, then read the published figures and compare.

    Nothing in the study draws chance, so ``runs`` changes nothing and the seed only stands in the
    configuration.
    """
    base = base_scenario()
    measured = measure(base, seed=seed, threads=threads, progress=progress)
    table = read_published_table()
    found = findings(measured)
    return SnipOutcome(
        cells=tuple(_cell(size, table[size], measured) for size in SIZES),
        facts=tuple(
            Fact(quantity=quantity, unit=unit, published=published, finding=found[quantity])
            for quantity, (published, unit) in read_published_facts().items()
        ),
        measured=measured,
        configuration={
            "bentpipe_version": _core.version(),
            "seed": seed,
            "resolution": RESOLUTION,
            "tcp_duration": TCP_DURATION,
            "scenario": base,
        },
    )


def read_published_table() -> dict[int, PublishedRow]:
    """Return the published table by packet size."""
    return {
        int(row["packet_bytes"]): PublishedRow(
            rate_mbps=float(row["max_rate_mbps"]),
            packets_per_second=float(row["packets_per_second"]),
            limit=row["limit"],
        )
        for row in read_rows(_HERE / "published.csv")
    }


def read_published_facts() -> dict[str, tuple[float, str]]:
    """Return the note's other figures by quantity, each with its unit."""
    return {
        row["quantity"]: (float(row["value"]), row["unit"])
        for row in read_rows(_HERE / "published_facts.csv")
    }


def _cell(size: int, published: PublishedRow, measured: Measured) -> Cell:
    rate_mbps, packets_per_second, limit = _settled(measured.table, size)
    round_figure_mbps, _, _ = _settled(measured.round_figure, size)
    return Cell(
        packet_bytes=size,
        published=published,
        measured_mbps=rate_mbps,
        measured_pps=packets_per_second,
        measured_limit=limit,
        round_figure_mbps=round_figure_mbps,
    )


def _settled(
    found: NoDropSearch | None, size: int
) -> tuple[float | None, float | None, str | None]:
    """Return rate in Mbit/s, packets a second and limit of one size, if the search came so far."""
    if found is None:
        return None, None, None
    each = found.rate(size)
    if not each.converged or each.rate_bps is None or each.first_loss is None:
        return None, None, None
    return each.rate_bps / 1e6, each.packets_per_second, each.first_loss.limit


def _error_percent(measured: float | None, published: float) -> float | None:
    return None if measured is None else 100 * (measured / published - 1)


def _is_miss(error_percent: float | None) -> bool:
    return error_percent is not None and abs(error_percent) > TOLERANCE_PERCENT


def _known(errors: Iterator[float | None]) -> list[float]:
    return [abs(error) for error in errors if error is not None]


def _mean(errors: list[float]) -> float | None:
    return float(np.mean(errors)) if errors else None
