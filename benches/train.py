"""Run the training workload for profile-guided optimization, or write its plans.

`make wheel` calls `python benches/train.py` to run every scenario in `scenarios/`; `make bench`
calls `python benches/train.py FOLDER` to write their plans and print the paths. The profile counts
how often each branch is taken, so the scenarios should include every kind of traffic and queue.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

import bentpipe

SCENARIOS: Final = sorted((Path(__file__).parent.parent / "scenarios").glob("*.yaml"))
SEED: Final = 7


def write_plans(folder: Path) -> None:
    """Write one plan per scenario to `folder` and print the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    for scenario in SCENARIOS:
        path = folder / f"{scenario.stem}.json"
        path.write_text(json.dumps(bentpipe.resolve(bentpipe.load(scenario))))
        print(path)


def main(arguments: list[str]) -> None:
    """Write the plans, or run the scenarios."""
    if arguments:
        write_plans(Path(arguments[0]))
        return
    for scenario in SCENARIOS:
        bentpipe.simulate(scenario, seed=SEED)


if __name__ == "__main__":
    main(sys.argv[1:])
