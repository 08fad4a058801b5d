"""The verb ``validate``: check scenario files."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from bentpipe import plan, scenario
from bentpipe.cli.options import AsJson, Settings, argument, complete_scenarios, note, print_json
from bentpipe.errors import ScenarioError, UsageError
from bentpipe.text import counted

ScenarioFiles = Annotated[
    list[Path],
    argument("SCENARIO", "Scenario files (YAML), or - for standard input.", complete_scenarios),
]


def validate(
    scenario_files: ScenarioFiles, settings: Settings = None, as_json: AsJson = False
) -> None:
    """Check scenario files without running them.

    All problems are reported; the exit code is 2 if a file has one. With --json, print the
    problems, the warnings and the complete plan of each file.
    """
    if [str(file) for file in scenario_files].count("-") > 1:
        raise UsageError("-: standard input can be read only once")
    answers = [_validate(file, settings or (), as_json=as_json) for file in scenario_files]
    valid = all(answer["valid"] for answer in answers)
    if as_json:
        print_json({"valid": valid, "files": answers})
    if not valid:
        raise typer.Exit(ScenarioError.exit_code)


def _validate(file: Path, settings: list[str] | tuple[()], *, as_json: bool) -> dict[str, Any]:
    """Check a file, print what was found, and return it as plain data."""
    name = scenario.STDIN if str(file) == "-" else str(file)
    answer: dict[str, Any] = {"valid": False, "problems": [], "warnings": [], "plan": None}
    try:
        resolved = plan.Plan.resolve(scenario.Scenario.load(file, settings))
    except ScenarioError as error:
        for problem in error.problems:
            note(str(problem))
        text = f"not valid, {counted(len(error.problems), 'problem')}"
        answer["problems"] = [asdict(problem) for problem in error.problems]
    else:
        for warning in resolved.warnings:
            note(f"{name}: warning: {warning}")
        text = f"valid, {counted(len(resolved.data['flows']), 'flow')}"
        text += f", {counted(len(resolved.warnings), 'warning')}" if resolved.warnings else ""
        warnings = [asdict(warning) for warning in resolved.warnings]
        answer |= {"valid": True, "warnings": warnings, "plan": resolved.data}
    if not as_json:
        print(f"{name}: {text}")
    return {"file": name, **answer}
