"""Count the instructions per packet-hop, and fail if there are more than the limit.

Usage: `python benches/instructions.py FOLDER`. Instruction counts, unlike times, do not depend on
the load of the machine, so they can guard the inner loop. The extension module runs each scenario
under callgrind for two durations, as the package does; the difference excludes the start of
Python, and the start and the end of a run.

The limits in `instructions.json` were set some 2 percent above the counts, as a margin for other
compilers. A change that lowers a count lowers its limit too.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import bentpipe

_HERE: Final = Path(__file__).parent
_SCENARIOS: Final = {
    "osu_geo_15": ("osu-geo-15.yaml", (20, 30)),
    "linux_geo_15": ("linux-geo-15.yaml", (20, 30)),
    "jpl_cell": ("jpl-cell.yaml", (30, 300)),
    "channels_50": ("channels-50.yaml", (20, 40)),
}
_RUN: Final = """
import sys
from bentpipe import _core
with open(sys.argv[1]) as plan:
    print(_core.run(plan.read(), 1)["packet_hops"])
"""


def main(folder: Path) -> int:
    """Count the instructions, print them, and return the exit code."""
    if shutil.which("valgrind") is None:
        print("make instructions needs valgrind: apt-get install valgrind", file=sys.stderr)
        return 3
    folder.mkdir(parents=True, exist_ok=True)
    limits: dict[str, int] = json.loads((_HERE / "instructions.json").read_text())
    failed = False
    for name, (file, durations) in _SCENARIOS.items():
        counts = [_run(folder / f"{name}-{seconds}.json", file, seconds) for seconds in durations]
        (first_instructions, first_hops), (instructions, hops) = counts
        per_hop = (instructions - first_instructions) / (hops - first_hops)
        over = per_hop > limits[name]
        failed |= over
        verdict = "ABOVE THE LIMIT" if over else "ok"
        print(f"{name}: {per_hop:.0f} instructions per packet-hop, limit {limits[name]}: {verdict}")
    return 1 if failed else 0


def _run(plan: Path, file: str, seconds: int) -> tuple[int, int]:
    """Return the instructions of one run of ``seconds``, and its packet-hops; write its plan."""
    data = bentpipe.Scenario.load(_HERE.parent / "scenarios" / file).to_dict()
    data |= {"duration": f"{seconds} s"}
    for flow in data["traffic"]:
        # No flow may outlast the run.
        if "duration" in flow:
            flow["duration"] = f"{seconds} s"
    plan.write_text(json.dumps(bentpipe.Plan.resolve(data).data))
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
    command += [sys.executable, "-c", _RUN, str(plan)]
    # The order of Python's sets and dictionaries of strings would change the count by some percent.
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    counted = re.search(r"Collected : (\d+)", done.stderr)
    if counted is None:
        raise RuntimeError(f"callgrind printed no count: {done.stderr}")
    return int(counted.group(1)), int(done.stdout)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
