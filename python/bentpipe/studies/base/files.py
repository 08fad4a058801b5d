"""Files of a study: published rows and inputs as CSV."""

from __future__ import annotations

import csv
from pathlib import Path


def read_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file by its header; lines that begin with ``#`` are comments."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))
