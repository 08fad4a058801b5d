"""The verb ``study``: one sub-command for each study in the registry.

The registry is imported under this verb only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from bentpipe import report
from bentpipe.cli.executors import Dask, ExecutorOptions, Scheduler
from bentpipe.cli.lazy import LazyGroup, command, examples_text
from bentpipe.cli.options import (
    AsJson,
    Engine,
    MemoryLimit,
    Out,
    note,
    optional,
    output_folder,
    print_json,
)
from bentpipe.cli.progress import Progress, exit_interrupted, finish
from bentpipe.errors import UsageError
from bentpipe.results.views import Column, View, records
from bentpipe.simulation.memory import read_limit

if TYPE_CHECKING:
    from bentpipe.studies import Study
    from bentpipe.studies.base.outcome import StudyOutcome

_SEED: Final = 1
# Emulated runs load a core little, but delay each other if more run at a time.
_PARALLEL: Final = 4
_THREADS_HELP: Final = (
    f"Threads, by default one for each core; with emulate runs at a time, by default {_PARALLEL}."
)


def _studies() -> Mapping[str, Study]:
    studies: Mapping[str, Study] = import_module("bentpipe.studies").STUDIES
    return studies


class StudyGroup(LazyGroup):
    """The sub-commands of ``study``: ``list``, and the name of each study."""

    def list_commands(self, _context: Any) -> list[str]:
        """Return the names of all sub-commands."""
        return ["list", *_studies()]

    def get_command(self, _context: Any, name: str) -> Any:
        """Return the sub-command called ``name``, or None."""
        if name == "list":
            return command("list", _list, "bentpipe study list")
        study = _studies().get(name)
        return None if study is None else _study_command(study)


study_app = typer.Typer(
    cls=StudyGroup,
    help="Reproduce a published experiment.",
    epilog=examples_text("bentpipe study list", "bentpipe study jpl --runs 30 --out results/jpl"),
    rich_markup_mode=None,
    callback=lambda: None,
)


def _list(as_json: AsJson = False) -> None:
    """List the studies and the publications that they reproduce."""
    columns = [Column("name", "study"), Column("title", "title"), Column("source", "source")]
    rows = [(study.name, study.title, study.source) for study in _studies().values()]
    view = View("", columns, rows)
    if as_json:
        print_json(records(view))
    else:
        report.show(view)


def _runs_help(study: Study) -> str:
    if study.default_runs is None:
        return "No effect: no cell of this study is stochastic."
    return f"Runs of each stochastic cell; {study.default_runs} by default."


def _cells_help(study: Study) -> str:
    if not study.example_cells:
        return "Not available: this study runs in the simulator only."
    return (
        f'With emulate: the cells to run; "{study.example_cells}", for example. By default '
        f"{study.default_cells}."
    )


def _study_command(study: Study) -> Any:
    def run_study(  # noqa: PLR0913, PLR0917 - a command line's options are its arguments
        runs: int | None = None,
        seed: Annotated[int, typer.Option(metavar="N", min=0, help="The first seed.")] = _SEED,
        threads: Annotated[
            int | None,
            optional("N", _THREADS_HELP, min=1),
        ] = None,
        out: Out = None,
        as_json: AsJson = False,
        engine: Annotated[
            Engine, typer.Option(help="emulate: cells in real time, with the kernel's TCP.")
        ] = "simulate",
        cells: str | None = None,
        dask: Dask = False,
        scheduler: Scheduler = None,
        memory_limit: MemoryLimit = None,
    ) -> None:
        options = ExecutorOptions(threads, dask, scheduler, read_limit(memory_limit))
        if engine == "simulate":
            if cells is not None:
                raise UsageError(
                    "--cells: only with --engine emulate; the simulator runs all cells"
                )
            _run(study, options, runs=runs, seed=seed, out=out, as_json=as_json)
        else:
            if runs is not None:
                raise UsageError("--runs: only with --engine simulate")
            options.refuse_with_labs()
            parallel = _PARALLEL if threads is None else threads
            _run_real_time(
                study, cells=cells, seed=seed, parallel=parallel, out=out, as_json=as_json
            )

    # typer evaluates annotations that are strings in the module, where `study` is not defined.
    run_study.__annotations__["runs"] = Annotated[
        int | None,
        optional("N", _runs_help(study), min=1),
    ]
    run_study.__annotations__["cells"] = Annotated[
        str | None, optional("CELLS", _cells_help(study))
    ]
    run_study.__doc__ = f"{study.title}. Source: {study.source}"
    example = f"bentpipe study {study.name} --out results/{study.name}"
    return command(study.name, run_study, example)


def _run_real_time(
    study: Study, *, cells: str | None, seed: int, parallel: int, out: Path | None, as_json: bool
) -> None:
    if not study.example_cells:
        raise UsageError(f"engine: the study {study.name} runs in the simulator only")
    _finish(
        study,
        lambda progress: study.run_real_time(
            chosen=cells, seed=seed, parallel=parallel, progress=progress.fraction, note=note
        ),
        out=out,
        as_json=as_json,
    )


def _run(
    study: Study,
    options: ExecutorOptions,
    *,
    runs: int | None,
    seed: int,
    out: Path | None,
    as_json: bool,
) -> None:
    def run(progress: Progress) -> StudyOutcome:
        with options.executor("simulate") as executor:
            return study.run(runs=runs, seed=seed, executor=executor, progress=progress.count)

    _finish(study, run, out=out, as_json=as_json)


def _finish(
    study: Study,
    run: Callable[[Progress], StudyOutcome],
    *,
    out: Path | None,
    as_json: bool,
) -> None:
    with output_folder(out, "study") as output:
        with Progress(f"study {study.name}") as progress:
            outcome = run(progress)
        finish(
            outcome,
            output,
            lambda found, folder: found.write(folder),
            lambda found: found.terminal(),
            as_json=as_json,
        )
    if outcome.interrupted:
        exit_interrupted("the figures are those of the finished runs")
