"""Write the tables of columns in ``results-format.md`` (`make schema`)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from bentpipe.metrics import METRICS
from bentpipe.results.tables import TABLES

PAGE: Final = Path(__file__).parent / "results-format.md"


def with_columns(page: str) -> str:
    """Return the page with the columns of the schema and of the registry of metrics."""
    rows = {
        name: [
            f"| `{column.name}` | {column.dtype} | {column.unit} | {column.meaning}"
            f"{' May be null.' if column.nullable else ''} |"
            for column in table.columns
        ]
        for name, table in TABLES.items()
    }
    derived = (metric for metric in METRICS if metric.is_derived and metric.definition)
    rows["Derived columns"] = [f"| `{m.table}.{m.name}` | {m.definition} |" for m in derived]
    for heading, lines in rows.items():
        head, body, rest = re.split(
            rf"(?<=^## {heading}\n)((?:(?!## ).*\n)*?\| --- .*\n)(?:\|.*\n)*",
            page,
            maxsplit=1,
            flags=re.MULTILINE,
        )
        page = head + body + "".join(f"{line}\n" for line in lines) + rest
    return page


if __name__ == "__main__":
    PAGE.write_text(with_columns(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
