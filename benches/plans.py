"""Write the plans of the benchmark scenarios, as `NAME=PATH` arguments for `bentpipe-bench`.

Usage: `python benches/plans.py FOLDER`. The scenarios are the ones in `scenarios/`, resolved by the
same code that `bentpipe run` uses, so that the benchmark times what users run.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import bentpipe

SCENARIOS = {"jpl_cell": "jpl-cell.yaml", "osu_geo_15": "osu-geo-15.yaml"}


def main(folder: Path) -> None:
    """Write one plan a scenario into `folder` and print the arguments."""
    folder.mkdir(parents=True, exist_ok=True)
    scenarios = Path(__file__).parent.parent / "scenarios"
    for name, file in SCENARIOS.items():
        path = folder / f"{name}.json"
        path.write_text(json.dumps(bentpipe.load(scenarios / file).plan()))
        print(f"{name}={path}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
