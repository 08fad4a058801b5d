"""The child process of `bentpipe.emulation.worker`: ``python -m bentpipe.emulation.child``.

It reads one request as JSON from standard input, runs the scenario and saves the result.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from bentpipe import emulation, plan, scenario
from bentpipe.errors import BentpipeError


def main() -> int:
    """Run the scenario of the request; return the exit code."""
    request = json.load(sys.stdin)
    try:
        resolved = plan.Plan.resolve(scenario.Scenario.from_dict(request["scenario"]))
        emulation.prepare(resolved)
        result = emulation.run_emulation(
            resolved,
            seed=request["seed"],
            capture=None if request["capture"] is None else Path(request["capture"]),
        )
        result.save(Path(request["out"]))
    except BentpipeError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
