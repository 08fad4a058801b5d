"""The verb ``sweep``: a scenario with varied values and seeds."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Final

import typer

from bentpipe import cli, report, sweeps
from bentpipe.cli import options
from bentpipe.cli.options import argument, flag, note, option, print_json, require_folder
from bentpipe.cli.progress import Progress, delaying_interrupts, exit_interrupted
from bentpipe.cli.thresholds import require_cell_thresholds, write_junit
from bentpipe.errors import UsageError
from bentpipe.results.files import REPORT, read_manifest
from bentpipe.scenario.document import read_file
from bentpipe.scenario.schema import Scenario
from bentpipe.simulation.memory import read_limit
from bentpipe.text import counted
from bentpipe.units import fraction

if TYPE_CHECKING:
    from bentpipe.simulation.executor import Executor
    from bentpipe.sweeps.definition import Definition
    from bentpipe.sweeps.folder import SweepFolder
    from bentpipe.sweeps.reader import Sweep
    from bentpipe.sweeps.run import SweepRun

ScenarioOrSweep = Annotated[
    Path | None,
    argument(
        "SCENARIO",
        "A scenario file (YAML), or a sweep file, which names one.",
        options.complete_scenarios,
    ),
]
Vary = Annotated[
    list[str] | None,
    option(
        "PATH=V1,V2,...",
        "Values of a field; repeat for all combinations. A range is lin(FROM, TO, POINTS) "
        "or log(FROM, TO, POINTS). A comma in quotes or brackets belongs to the value.",
    ),
]
Seeds = Annotated[
    int | None,
    option(
        "N",
        "Seeds of each combination, from the scenario's on; by default 1, or 5 with --until-ci.",
        min=1,
    ),
]
UntilCi = Annotated[
    str | None,
    option(
        "PERCENT",
        "Add seeds to each combination until the 95 % confidence interval of the mean is "
        "this narrow: ± PERCENT of the mean.",
    ),
]
Metric = Annotated[str, option("NAME", "The metric of --until-ci, a column of flows.")]
MaxSeeds = Annotated[int, option("N", "The most seeds that --until-ci gives.", min=2)]
SweepOut = Annotated[
    str | None,
    option(
        "FOLDER",
        "Write the data set to this folder; replaces an earlier sweep. A URL such as "
        "s3://BUCKET/NAME is shared storage, to which workers write the runs of --keep-runs.",
    ),
]
Resume = Annotated[str | None, option("FOLDER", "Continue the unfinished sweep of this folder.")]
Yes = Annotated[bool, flag("--yes", "Do more than a million runs without a question.")]
KeepRuns = Annotated[bool, flag("--keep-runs", "Keep the result folder of each run, too.")]
SweepEngine = Annotated[
    options.Engine,
    typer.Option(help="emulate: in real time, with the kernel's TCP; late runs are repeated."),
]

# Enough for a first interval.
_SEEDS_OF_INTERVALS: Final = 5
_MAX_WARNINGS: Final = 5


@dataclass(frozen=True, kw_only=True)
class _Request:
    """What the command line asks for."""

    engine: str
    scenario: Path | None = None
    settings: Sequence[str] = ()
    vary: Sequence[str] = ()
    seeds: int | None = None
    until: sweeps.UntilCi | None = None
    keep_runs: bool = False
    thresholds: Sequence[str] = ()


# The options that the fields of a definition come from.
_OPTIONS: Final = {
    "scenario": "the scenario or --set",
    "axes": "--vary",
    "seeds": "--seeds",
    "until_ci": "--until-ci",
    "keep_runs": "--keep-runs",
    "engine": "--engine",
}


def sweep(  # noqa: PLR0913, PLR0917 - a command line's options are its arguments
    scenario_file: ScenarioOrSweep = None,
    vary: Vary = None,
    settings: options.Settings = None,
    seeds: Seeds = None,
    until_ci: UntilCi = None,
    metric: Metric = "goodput_bps",
    max_seeds: MaxSeeds = 1000,
    out: SweepOut = None,
    replace: options.Replace = False,
    resume: Resume = None,
    yes: Yes = False,
    keep_runs: KeepRuns = False,
    engine: SweepEngine = "simulate",
    threads: options.Threads = None,
    dask: options.Dask = False,
    scheduler: options.Scheduler = None,
    memory_limit: options.MemoryLimit = None,
    threshold: options.Thresholds = None,
    junit: options.JUnit = None,
    as_json: options.AsJson = False,
) -> None:
    """Run a scenario with varied values and seeds.

    Prints the mean of each combination with its confidence interval. With --out, the flows of all
    runs are Parquet files, partitioned by the varied values. Ctrl-C keeps the runs that have ended,
    and --resume does the others. A run that fails is recorded, and the others go on. A threshold,
    of the scenario or of --threshold, must be met by every run: if one misses it, the sweep is
    finished and ends with exit code 99.
    """
    require_folder(junit)
    request = _Request(
        scenario=scenario_file,
        settings=settings or (),
        vary=vary or (),
        seeds=seeds,
        until=None if until_ci is None else _until(until_ci, metric, max_seeds),
        keep_runs=keep_runs,
        engine=engine,
        thresholds=threshold or (),
    )
    chosen = options.ExecutorOptions(threads, dask, scheduler, read_limit(memory_limit))
    with _folder(out, resume) as folder:
        if resume is not None:
            _resume(request, folder, chosen, yes=yes)
        else:
            definition = _defined(request, yes=yes)
            options.claim(folder, definition.scenario, replace=replace)
            with chosen.executor(definition.engine) as executor:
                _execute(sweeps.SweepRun.begin(folder, definition, unlimited=yes), executor)
        kept = out or resume
        with delaying_interrupts():
            loaded = sweeps.Sweep.load(folder.path, results=False) if folder.has_result else None
            if loaded is not None:
                _output(loaded, folder, kept, as_json=as_json)
                write_junit(junit, loaded, loaded.thresholds)
    _check(loaded, kept)


@contextmanager
def _folder(out: str | None, resume: str | None) -> Iterator[SweepFolder]:
    """Open the folder of the sweep; without one, a temporary folder."""
    if out is not None and resume is not None:
        raise UsageError("--resume: continues in the folder that it names; leave out --out")
    kept = out if resume is None else resume
    with ExitStack() as stack:
        path = kept or stack.enter_context(TemporaryDirectory(prefix="bentpipe-sweep-"))
        folder = stack.enter_context(
            sweeps.SweepFolder(path, resume=resume is not None, temporary=not kept)
        )
        try:
            yield folder
        except KeyboardInterrupt:
            # The second Ctrl-C, while the data set was written.
            if kept and folder.is_unfinished:
                note(f"interrupted{folder.advice}")
            raise


def _resume(
    request: _Request, folder: SweepFolder, chosen: options.ExecutorOptions, *, yes: bool
) -> None:
    """Continue an unfinished sweep; one that the command line describes, too, is compared."""
    if request.scenario is None and request != _Request(engine=request.engine):
        raise UsageError(
            "--resume: continues as the sweep was begun; leave out --vary and --set, --seeds, "
            "--until-ci, --keep-runs and --threshold"
        )
    definition = None if folder.is_complete else folder.resume()
    if request.scenario is not None:
        begun = read_manifest(folder.path) if definition is None else definition.to_json()
        described = json.loads(json.dumps(_defined(request, yes=True).to_json()))
        others = {name for name, value in described.items() if begun.get(name) != value}
        if others:
            see = ", ".join(option for name, option in _OPTIONS.items() if name in others)
            raise UsageError(
                f"{folder.path}: the command line describes another sweep than the one in this "
                f"folder{f' ({see})' if see else ''}; leave out the scenario and its options, or "
                "start again in a new folder"
            )
    if definition is None:
        note(f"{folder.path}: the sweep is complete")
        return
    running = sweeps.SweepRun(folder, definition, unlimited=yes)
    note(f"resuming: {len(folder.journal):,} of {running.total:,} runs have ended")
    with chosen.executor(definition.engine) as executor:
        _execute(running, executor)


def _require_wanted(runs: int) -> None:
    """Ask whether so many runs are wanted, if they are more than a million.

    Raises:
        UsageError: they are not, or there is nobody to ask.
    """
    if runs <= sweeps.RUNS_MAX:
        return
    if sys.stdin.isatty() and sys.stderr.isatty():
        print(f"bentpipe: {runs:,} runs. Do them all? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() in {"y", "yes"}:
            return
    raise UsageError(sweeps.runs_message(runs))


def _defined(request: _Request, *, yes: bool) -> Definition:
    """Return what the command line and the file describe."""
    if request.scenario is None:
        raise UsageError("name a scenario file or a sweep file, or --resume FOLDER")
    document = read_file(request.scenario)
    file, axes = None, list(map(sweeps.vary_option, request.vary))
    if (parsed := sweeps.parse_sweep_file(document)) is not None:
        file, points = parsed
        axes = [*points.axes, *axes]
        document = read_file(Path(document.source).parent / file.scenario)
    scenario = Scenario.from_document(document, request.settings, thresholds=request.thresholds)
    points = sweeps.Points(axes)
    until = request.until
    if until is None and file is not None and file.until_ci is not None:
        until = _until(file.until_ci.width, file.until_ci.metric, file.until_ci.max_seeds)
    seeds: int | tuple[int, ...] | None = request.seeds
    if seeds is None and file is not None:
        seeds = file.seeds
    if seeds is None:
        seeds = _SEEDS_OF_INTERVALS if until else 1
    if not yes:
        # Before every point is resolved.
        _require_wanted(len(points) * (seeds if isinstance(seeds, int) else len(seeds)))
    with Progress("preparing the sweep") as progress:
        definition = sweeps.Definition.of(
            scenario,
            points,
            seeds,
            progress=progress.count,
            until_ci=until,
            keep_runs=request.keep_runs,
            engine=request.engine,
            sources=[
                (str(path.absolute()), sweeps.file_hash(path))
                for path in dict.fromkeys([request.scenario, Path(document.source)])
                if path.is_file()
            ],
        )
    warnings = [*dict.fromkeys(text for cell in definition.cells for text in cell.warnings)]
    for warning in warnings[:_MAX_WARNINGS]:
        note(f"warning: {warning}")
    if len(warnings) > _MAX_WARNINGS:
        note(f"and {counted(len(warnings) - _MAX_WARNINGS, 'more warning')}")
    return definition


def _until(width: str, metric: str, max_seeds: int) -> sweeps.UntilCi:
    return sweeps.UntilCi(fraction(width, "--until-ci"), metric, max_seeds)


def _execute(running: SweepRun, executor: Executor) -> None:
    before, started_s = len(running.folder.journal), time.monotonic()
    with Progress("sweep", before=before) as progress:

        def text() -> str:
            done = len(running.folder.journal)
            rate = (done - before) / max(time.monotonic() - started_s, 1e-9)
            return f"{done:,} of {running.total:,} runs, {rate:.3g} runs/s"

        progress.describe(text)
        running.execute(executor, progress.count, delaying_interrupts())
    if (until := running.definition.until_ci) is None:
        return
    cells = counted(len(running.definition.cells), "cell")
    if without := running.cells_without_value:
        what = f"no run of {without:,} of {cells} has a value of {until.metric}"
        note(f"--until-ci: {what}: no seeds were added there")
    if wide := running.cells_too_wide:
        note(
            f"--until-ci: {wide:,} of {cells} did not reach {100 * until.width:g} % of the mean "
            f"with {until.max_seeds:,} seeds (--max-seeds)"
        )


def _output(sweep: Sweep, folder: SweepFolder, kept: str | None, *, as_json: bool) -> None:
    if kept is not None:
        if folder.output.replaced is not None:
            note(f"replaced {folder.output.replaced}")
        shown = "flows, directions: Parquet"
        if folder.storage is None:
            report.write_sweep_report(sweep, folder.path / REPORT)
            shown += f"; {REPORT} shows it"
        note(f"wrote {kept} ({shown})")
    if as_json:
        print_json(sweep.to_json())
    else:
        cli.print_views(*report.sweep_tables(sweep, str(kept) if kept else "--json"))


def _check(sweep: Sweep | None, kept: str | None) -> None:
    """Exit with the code of an interrupted sweep, or raise the error of failed runs."""
    if sweep is None or sweep.interrupted:
        runs = sweep.runs.height if sweep else 0
        count = f"{counted(runs, 'run')} {'is' if runs == 1 else 'are'}" if runs else "no run is"
        advice = f"; continue with bentpipe sweep --resume {kept}" if kept else ""
        exit_interrupted(f"{count} complete{advice}")
    if sweep.failures.height:
        first = sweep.failures.row(0, named=True)
        where = f"; {kept}/failures.parquet has their seeds and errors" if kept else ""
        raise sweeps.error_of(
            first["kind"],
            f"{sweep.failures.height:,} of {sweep.failures.height + sweep.runs.height:,} runs "
            f"failed{where}. The first, with seed {first['seed']}: {first['message']}",
        )
    require_cell_thresholds(sweep.thresholds, f"{kept}/manifest.json" if kept else "--json")
