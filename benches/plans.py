"""Write the plans of the benchmark scenarios, as `NAME=PATH` arguments for `bentpipe-bench`.

Usage: `python benches/plans.py FOLDER`. The scenarios are the ones in `scenarios/`, resolved by the
same code that `bentpipe run` uses, so that the benchmark times what users run.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

import bentpipe

SCENARIOS: Final = {
    "jpl_cell": "jpl-cell.yaml",
    "osu_geo_15": "osu-geo-15.yaml",
    "osu_geo_50": "osu-geo-50.yaml",
    "osu_leo_100": "osu-leo-100.yaml",
    "channels_50": "channels-50.yaml",
}
# The same link with other numbers of flows: what a hop costs must not depend on them.
FLOWS: Final = (1, 10, 1000)
FLOWS_SCENARIO: Final = "osu-leo-100.yaml"


def main(folder: Path) -> None:
    """Write one plan a scenario into `folder` and print the arguments."""
    folder.mkdir(parents=True, exist_ok=True)
    scenarios = Path(__file__).parent.parent / "scenarios"
    loads = {name: (file, ()) for name, file in SCENARIOS.items()}
    for count in FLOWS:
        settings = (f"traffic.0.count={count}", f"traffic.0.start_spacing={1000 // count} ms")
        loads[f"flows_{count}"] = (FLOWS_SCENARIO, settings)
    for name, (file, settings) in loads.items():
        path = folder / f"{name}.json"
        path.write_text(json.dumps(bentpipe.load(scenarios / file, settings=settings).plan()))
        print(f"{name}={path}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
