"""The verb ``validate``: check a scenario file."""

from __future__ import annotations

from dataclasses import asdict

from bentpipe import plan
from bentpipe.cli.options import AsJson, ScenarioFile, Settings, print_json
from bentpipe.errors import ScenarioError


def validate(
    scenario_file: ScenarioFile, settings: Settings = None, as_json: AsJson = False
) -> None:
    """Check a scenario file without running it. With --json, print its complete plan."""
    try:
        resolved = plan.resolve(plan.load(scenario_file, settings=tuple(settings or ())))
    except ScenarioError as error:
        if as_json:
            problems = [asdict(problem) for problem in error.problems]
            print_json({"valid": False, "problems": problems})
        raise
    if as_json:
        print_json({"valid": True, "plan": resolved})
    else:
        flows = len(resolved["flows"])
        print(f"{scenario_file}: valid, {flows:,} flow{'' if flows == 1 else 's'}")
