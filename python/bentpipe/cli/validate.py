"""The verb ``validate``: check scenario files."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bentpipe import plan
from bentpipe.cli.options import AsJson, Settings, note, print_json
from bentpipe.errors import ScenarioError, UsageError

if TYPE_CHECKING:
    from bentpipe.plan.resolver import Loaded

ScenarioFiles = Annotated[
    list[Path],
    typer.Argument(
        metavar="SCENARIO...",
        help="Scenario files (YAML), or - for standard input.",
        show_default=False,
    ),
]


def validate(
    scenario_files: ScenarioFiles, settings: Settings = None, as_json: AsJson = False
) -> None:
    """Check scenario files without running them, and report all problems.

    The exit code is 2 if a file has a problem. With --json, print the problems, the warnings and
    the complete plan of each file.
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
    name = "<stdin>" if str(file) == "-" else str(file)
    try:
        loaded = plan.read(file, settings)
    except ScenarioError as error:
        count = len(error.problems)
        for problem in error.problems:
            note(str(problem))
        if not as_json:
            print(f"{name}: not valid, {count} problem{'' if count == 1 else 's'}")
        return {"file": name, "valid": False, "problems": [asdict(each) for each in error.problems]}
    for warning in loaded.warnings:
        note(f"{name}: warning: {warning}")
    if not as_json:
        print(f"{name}: {_summary(loaded)}")
    warnings = [asdict(warning) for warning in loaded.warnings]
    return {"file": name, "valid": True, "warnings": warnings, "plan": loaded.plan}


def _summary(loaded: Loaded) -> str:
    flows, warnings = len(loaded.plan["flows"]), len(loaded.warnings)
    text = f"valid, {flows:,} flow{'' if flows == 1 else 's'}"
    return text + (f", {warnings} warning{'' if warnings == 1 else 's'}" if warnings else "")
