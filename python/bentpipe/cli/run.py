"""The verb ``run``: one scenario, simulated or emulated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from bentpipe import cli, live, plan, report, results, scenario, simulation
from bentpipe.cli import options
from bentpipe.cli.link_status import LinkStatus
from bentpipe.cli.options import note, note_written, output_folder, print_json, require_folder
from bentpipe.cli.progress import Progress, delaying_interrupts, exit_interrupted
from bentpipe.cli.thresholds import require_thresholds, write_junit
from bentpipe.errors import InvalidRunError, MemoryLimitError
from bentpipe.simulation.memory import read_limit

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bentpipe.plan.plan import Plan
    from bentpipe.results.result import Result


def run(  # noqa: PLR0913, PLR0917 - a command line's options are its arguments
    scenario_file: options.ScenarioInput,
    settings: options.Settings = None,
    seed: options.ScenarioSeed = None,
    out: options.Out = None,
    replace: options.Replace = False,
    capture: options.Capture = None,
    engine: Annotated[
        options.Engine,
        typer.Option(help="emulate: in real time, with iperf3 and the kernel's TCP."),
    ] = "simulate",
    memory_limit: options.MemoryLimit = None,
    threshold: options.Thresholds = None,
    junit: options.JUnit = None,
    as_json: options.AsJson = False,
) -> None:
    """Run a scenario and print per-flow statistics.

    With --engine emulate the scenario runs in real time: iperf3 in network namespaces, the kernel's
    TCP, the same link. A run that exceeded its lateness limits, or reached its memory limit, ends
    with exit code 4; its results are kept. A valid run that misses a threshold, of the scenario or
    of --threshold, ends with exit code 99.
    """
    loaded = scenario.Scenario.load(scenario_file, settings or (), thresholds=threshold or ())
    resolved = plan.Plan.resolve(loaded)
    require_folder(junit)
    for warning in resolved.warnings:
        note(f"warning: {warning}")
    limit = read_limit(memory_limit)
    if engine == "emulate":
        live.check_plan(resolved)
    with output_folder(out, "run") as output:
        options.claim(output, loaded, replace=replace)
        if engine == "emulate":
            result = _emulate(resolved, seed, capture)
        else:
            result = _simulate(resolved, seed, capture, limit)
        with delaying_interrupts():
            if capture is not None:
                note(f"wrote {capture}")
            if output is not None:
                report.save_run(result, output)
                note_written(output)
            checks = [check.to_json() for check in results.check_thresholds(result)]
            if as_json:
                is_checked = checks and result.state == "completed"
                print_json(result.summary() | ({"thresholds": checks} if is_checked else {}))
            else:
                cli.print_views(*report.run_tables(result))
            write_junit(junit, result, checks)
    _check(resolved, result, out, capture)
    require_thresholds(checks)


def _emulate(resolved: Plan, seed: int | None, capture: Path | None) -> Result:
    status = LinkStatus()
    with Progress("emulating") as progress:
        listeners: dict[str, Callable[[Any], None]] = {
            "progress": progress.fraction,
            "note": note,
            "report": lambda report: progress.describe(lambda: status.brief(report)),
        }
        return live.run_plan(resolved, seed=seed, capture=capture, listeners=listeners)


def _simulate(
    resolved: Plan, seed: int | None, capture: Path | None, memory_limit: int | None
) -> Result:
    if (warning := simulation.memory_warning(resolved, memory_limit)) is not None:
        note(f"warning: the run {warning}")
    with Progress("simulating") as progress:
        return simulation.run_simulation(
            resolved,
            seed=seed,
            progress=progress.fraction,
            capture=capture,
            memory_limit=memory_limit,
        )


def _check(resolved: Plan, result: Result, out: Path | None, capture: Path | None) -> None:
    """Exit with the code of a run that was interrupted, or raise the error of an invalid one."""
    if result.interrupted:
        written = " and ".join(str(path) for path in (out, capture) if path)
        place = f"in {written}" if written else "shown; with --out FOLDER it is kept"
        exit_interrupted(f"what was recorded is {place}")
    if result.memory_limit_reached:
        kept = f"; the results up to then are in {out}" if out else ""
        message = f"{simulation.memory_message(resolved, result)}{kept}"
        raise MemoryLimitError(message, result=result)
    if result.invalid is not None:
        raise InvalidRunError(f"INVALID: {result.invalid}")
