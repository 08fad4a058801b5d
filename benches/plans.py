"""Write the plans of the benchmark scenarios and print `NAME=PATH` arguments for `bentpipe-bench`.

Usage: `python benches/plans.py FOLDER`. The scenarios in `scenarios/` are resolved by
the same code as in `bentpipe run`, so that the benchmark times what users run.
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
    "linux_geo_15": "linux-geo-15.yaml",
    "osu_geo_50": "osu-geo-50.yaml",
    "osu_leo_100": "osu-leo-100.yaml",
    "channels_50": "channels-50.yaml",
}
# Scaling with the number of flows: on the same link, where each flow gets a smaller share, and on a
# link in proportion to it, where each share is constant. The cost of a hop should not change.
FLOWS_SCENARIO: Final = "osu-leo-100.yaml"
FLOWS: Final = (1, 10, 1000)
PROPORTIONAL_FLOWS: Final = (1, 10, 100, 1000)
RATE_PER_FLOW_MBPS: Final = 1.5552
QUEUE_PER_FLOW_CELLS: Final = 55.02
# Flows times seconds: with more flows a shorter run is as much work.
FLOW_SECONDS: Final = 2_000


def proportional(count: int) -> tuple[str, ...]:
    """Return the settings of `count` flows with the share of the link per flow of `osu_leo_100`."""
    rate_mbps = f"{RATE_PER_FLOW_MBPS * count:g} Mbit/s"
    duration = f"{min(100, max(20, FLOW_SECONDS // count))} s"
    return (
        f"traffic.0.count={count}",
        f"traffic.0.start_spacing={1000 / count:g} ms",
        f"traffic.0.duration={duration}",
        f"duration={duration}",
        f"link.forward.rate={rate_mbps}",
        f"link.return.rate={rate_mbps}",
        f"link.forward.queue.limit={QUEUE_PER_FLOW_CELLS * count:.0f} cells",
    )


def main(folder: Path) -> None:
    """Write one plan per scenario to `folder` and print the arguments."""
    folder.mkdir(parents=True, exist_ok=True)
    scenarios = Path(__file__).parent.parent / "scenarios"
    loads = {name: (file, ()) for name, file in SCENARIOS.items()}
    for count in FLOWS:
        settings = (f"traffic.0.count={count}", f"traffic.0.start_spacing={1000 // count} ms")
        loads[f"flows_{count}"] = (FLOWS_SCENARIO, settings)
    for count in PROPORTIONAL_FLOWS:
        loads[f"proportional_{count}"] = (FLOWS_SCENARIO, proportional(count))
    for name, (file, settings) in loads.items():
        path = folder / f"{name}.json"
        path.write_text(
            json.dumps(
                bentpipe.Plan.resolve(
                    bentpipe.Scenario.load(scenarios / file, settings=settings)
                ).data
            )
        )
        print(f"{name}={path}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
