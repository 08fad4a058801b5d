"""The verb ``study``: one sub-command for each study in the registry.

The registry is imported under this verb only.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

import typer

from bentpipe.cli import options
from bentpipe.cli.lazy import LazyGroup, command, examples_text
from bentpipe.cli.options import note, option, optional, output_folder
from bentpipe.cli.progress import Progress, exit_interrupted, finish
from bentpipe.errors import UsageError
from bentpipe.simulation.memory import read_limit

if TYPE_CHECKING:
    from bentpipe.studies import Study

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
    """The sub-commands of ``study``: the name of each study."""

    renamed: ClassVar[Mapping[str, str]] = {"list": "bentpipe show studies"}

    def list_commands(self, _context: Any) -> list[str]:
        """Return the names of all sub-commands."""
        return list(_studies())

    def get_command(self, _context: Any, name: str) -> Any:
        """Return the sub-command called ``name``, or None."""
        study = _studies().get(name)
        return None if study is None else _study_command(study)


study_app = typer.Typer(
    cls=StudyGroup,
    help="Reproduce a published experiment.",
    epilog=examples_text("bentpipe study jpl --runs 30 --out results/jpl"),
    rich_markup_mode=None,
    callback=lambda: None,
)


def _study_command(study: Study) -> Any:
    def run_study(  # noqa: PLR0913, PLR0917 - a command line's options are its arguments
        runs: int | None = None,
        seed: Annotated[int, option("N", "The first seed.", min=0)] = _SEED,
        threads: Annotated[int | None, optional("N", _THREADS_HELP, min=1)] = None,
        out: options.Out = None,
        as_json: options.AsJson = False,
        engine: Annotated[
            options.Engine, typer.Option(help="emulate: cells in real time, with the kernel's TCP.")
        ] = "simulate",
        cells: str | None = None,
        dask: options.Dask = False,
        scheduler: options.Scheduler = None,
        memory_limit: options.MemoryLimit = None,
    ) -> None:
        chosen = options.ExecutorOptions(threads, dask, scheduler, read_limit(memory_limit))
        is_real_time = engine == "emulate"
        if is_real_time:
            if runs is not None:
                raise UsageError("--runs: only with --engine simulate")
            chosen.refuse_with_labs()
            if not study.example_cells:
                raise UsageError(f"engine: the study {study.name} runs in the simulator only")
        elif cells is not None:
            raise UsageError("--cells: only with --engine emulate; the simulator runs all cells")
        with output_folder(out, "study") as output:
            with Progress(f"study {study.name}") as progress:
                if is_real_time:
                    outcome = study.run_real_time(
                        chosen=cells,
                        seed=seed,
                        parallel=_PARALLEL if threads is None else threads,
                        progress=progress.fraction,
                        note=note,
                    )
                else:
                    with chosen.executor(engine) as executor:
                        outcome = study.run(
                            runs=runs, seed=seed, executor=executor, progress=progress.count
                        )
            finish(
                outcome,
                output,
                lambda found, folder: found.write(folder),
                lambda found: found.terminal(),
                as_json=as_json,
            )
        if outcome.interrupted:
            exit_interrupted("the figures are those of the finished runs")

    runs_help = "No effect: no cell of this study is stochastic."
    if study.default_runs is not None:
        runs_help = f"Runs of each stochastic cell; {study.default_runs} by default."
    cells_help = "Not available: this study runs in the simulator only."
    if study.example_cells:
        cells_help = (
            f'With emulate: the cells to run; "{study.example_cells}", for example. By default '
            f"{study.default_cells}."
        )
    # typer evaluates annotations that are strings in the module, where `study` is not defined.
    run_study.__annotations__["runs"] = Annotated[int | None, optional("N", runs_help, min=1)]
    run_study.__annotations__["cells"] = Annotated[str | None, optional("CELLS", cells_help)]
    run_study.__doc__ = f"{study.title}. Source: {study.source}"
    example = f"bentpipe study {study.name} --out results/{study.name}"
    return command(study.name, run_study, example)
