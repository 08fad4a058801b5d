"""Values read from the data of a plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def series_values(series: Mapping[str, Any]) -> list[int]:
    """Return the values of a series, such as a rate, in the order of their times."""
    if series["kind"] == "constant":
        return [series["value"]]
    return [value for _, value in series["steps"]]


def direction_number(flow: Mapping[str, Any]) -> int:
    """Return the number of the direction that carries the data of a flow."""
    return 0 if flow["direction"] == "forward" else 1 + int(flow["terminal"])
