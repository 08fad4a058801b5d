"""The grids of a validation by name."""

from __future__ import annotations

from collections.abc import Sequence

from bentpipe.validation import points
from bentpipe.validation.pep_points import pep_grid
from bentpipe.validation.points import Point


def grid(name: str) -> Sequence[Point]:
    """Return the points of a grid: ``small`` and ``full`` of links, ``pep`` of links with PEPs.

    Raises:
        UsageError: there is no such grid.
    """
    return pep_grid() if name == "pep" else points.grid(name)
