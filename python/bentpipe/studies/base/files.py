"""Files of a study: its scenario, and published rows and inputs as CSV."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any, Final

from bentpipe.scenario.schema import Scenario

STUDIES_FOLDER: Final = Path(__file__).parent.parent


def read_scenario(study: str) -> dict[str, Any]:
    """Return the configuration of all cells of a study as plain data."""
    return Scenario.load(STUDIES_FOLDER / study / "scenario.yaml").to_dict()


def read_rows(study: str, name: str) -> list[dict[str, str]]:
    """Return the rows of a CSV file by its header; lines that begin with ``#`` are comments."""
    with (STUDIES_FOLDER / study / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def read_quantities(study: str, name: str) -> dict[str, tuple[float, str]]:
    """Return published values by quantity, each with its unit, in the order of the file."""
    rows = read_rows(study, name)
    return {row["quantity"]: (float(row["value"]), row["unit"]) for row in rows}
