"""Write the plans of the training workload for profile-guided optimization, and print their paths.

`make bench` and `make wheel` call `python benches/train.py FOLDER`. The profile counts how often
each branch is taken, so the scenarios should include every kind of traffic and queue.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

import bentpipe

SCENARIOS: Final = sorted((Path(__file__).parent.parent / "scenarios").glob("*.yaml"))


def main(folder: Path) -> None:
    """Write one plan per scenario to ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    for scenario in SCENARIOS:
        path = folder / f"{scenario.stem}.json"
        path.write_text(json.dumps(bentpipe.Plan.resolve(scenario).data))
        print(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
