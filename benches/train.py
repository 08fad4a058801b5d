"""Run or write what the compiler learns from when it builds the simulator a second time.

`make wheel` has every scenario in `scenarios/` run by `python benches/train.py`; `make bench` has
their plans written by `python benches/train.py FOLDER`, which prints the paths. What is learnt is
which way branches mostly go: every kind of traffic and queue should be among the scenarios.
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
    """Write one plan a scenario into `folder` and print the paths."""
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
