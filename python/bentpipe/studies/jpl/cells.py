"""The cells of the table: their scenarios, and the provenance of their agreement."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from bentpipe.scenario.schema import Scenario
from bentpipe.studies.base.comparison import Comparison, Row
from bentpipe.studies.base.provenance import Provenance

# The rows of the table by their names in the source, and the seven delays in ms.
BIT_ERROR_RATES: Final = {"1e-7": 1e-7, "1e-8": 1e-8, "1e-9": 1e-9, "0": 0.0}
SHORT_DELAYS_MS: Final = (0, 50, 100)
LONG_DELAYS_MS: Final = (150, 200, 250, 300)
WINDOWS: Final = ("both", "yes", "no")

# Without the window scale option TCP can advertise at most 65,535 bytes.
SMALL_WINDOW: Final = {
    "window_scaling": False,
    "receive_buffer": "65535 B",
    "receive_buffer_counts": "window",
}
# They replace the scenario's profile and tcp. The details follow the RFCs, so that the figures are
# those of the algorithms, not of one kernel.
LINUX_HOSTS: Final[dict[str, Any]] = {"profile": "linux", "tcp": {"stack": "rfc"}}
# The linux profile tunes its window from 64 KiB up, one byte more than the small window's cap.
LINUX_SMALL_WINDOW: Final = {**SMALL_WINDOW, "receive_buffer_initial": "65535 B"}


@dataclass(frozen=True)
class Cell:
    """One cell: its row, the delay one way, and the windows: ``yes`` (large), ``no`` or ``both``.

    Where the source has one figure for ``both``, the large windows count; 64 KB windows are
    simulated too (`small_window_cells`).
    """

    row: str
    one_way_delay_ms: int
    large_windows: str

    @property
    def labels(self) -> dict[str, str | int]:
        """The labels that identify the cell."""
        return {
            "bit_error_rate": self.row,
            "one_way_delay_ms": self.one_way_delay_ms,
            "large_windows": self.large_windows,
        }

    @property
    def is_stochastic(self) -> bool:
        """Return whether the cell has random bit errors."""
        return BIT_ERROR_RATES[self.row] > 0

    @property
    def provenance(self) -> Provenance:
        """The evidential value of the cell.

        The framing is computed from the first cell. Another value of a calibrated setting (the
        queue, the growth of the window) moves the calibrated cells by more than half a point.
        """
        if (self.row, self.one_way_delay_ms) == ("0", 0):
            return Provenance.DERIVED
        if self.large_windows == "no" and self.row in {"0", "1e-9"}:
            return Provenance.PREDICTED
        return Provenance.CALIBRATED


def cells() -> tuple[Cell, ...]:
    """Return the 44 cells in the order of the source."""
    grid = []
    for row in BIT_ERROR_RATES:
        grid += [Cell(row, delay_ms, "both") for delay_ms in SHORT_DELAYS_MS]
        grid += [
            Cell(row, delay_ms, windows) for delay_ms in LONG_DELAYS_MS for windows in ("yes", "no")
        ]
    return tuple(grid)


def small_window_cells() -> tuple[Cell, ...]:
    """Return the cells with one published figure for both windows, with 64 KB ones."""
    return tuple(
        replace(each, large_windows="no") for each in cells() if each.large_windows == "both"
    )


def scenario_of(cell: Cell, base: Mapping[str, Any], *, linux: bool = False) -> Scenario:
    """Return the complete scenario of one cell, as it is simulated."""
    data = copy.deepcopy(dict(base))
    data["name"] = f"{data['name']}: {cell.row}, {cell.one_way_delay_ms} ms, {cell.large_windows}"
    for direction in ("forward", "return"):
        data["link"][direction]["delay"] = f"{cell.one_way_delay_ms} ms"
        data["link"][direction]["bit_error_rate"] = BIT_ERROR_RATES[cell.row]
    (flow,) = data["traffic"]
    if linux:
        flow.update(copy.deepcopy(LINUX_HOSTS))
    if cell.large_windows == "no":
        flow["tcp"] |= LINUX_SMALL_WINDOW if linux else SMALL_WINDOW
    return Scenario.from_dict(data)


def either_window(main: Comparison, small: Comparison) -> Comparison:
    """Return the table with 64 KB windows where one published figure serves both windows."""
    others = {_place(row): row for row in small.rows}
    return Comparison(
        tuple(
            others.get(_place(row), row) if row.labels["large_windows"] == "both" else row
            for row in main.rows
        )
    )


def _place(row: Row) -> tuple[Any, Any]:
    return row.labels["bit_error_rate"], row.labels["one_way_delay_ms"]
