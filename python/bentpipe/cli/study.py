"""The verb ``study``: one sub-command for each study in the registry.

The registry is imported under this verb only.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from bentpipe.cli import options
from bentpipe.cli.lazy import LazyGroup, command
from bentpipe.cli.options import flag, note, option, output_folder
from bentpipe.cli.progress import Progress, exit_interrupted, finish
from bentpipe.errors import InvalidRunError, ThresholdError, UsageError
from bentpipe.simulation.memory import read_limit

if TYPE_CHECKING:
    from bentpipe.studies import Study
    from bentpipe.studies.base.outcome import StudyOutcome


def _studies() -> Mapping[str, Study]:
    studies: Mapping[str, Study] = import_module("bentpipe.studies").STUDIES
    return studies


class _StudyGroup(LazyGroup):
    """The sub-commands of ``study``: the name of each study."""

    renamed: ClassVar[Mapping[str, str]] = {"list": "bentpipe show studies"}

    def list_commands(self, _context: Any) -> list[str]:
        return list(_studies())

    def get_command(self, _context: Any, name: str) -> Any:
        return _study_command(_studies()[name])


study_app = typer.Typer(cls=_StudyGroup, rich_markup_mode=None)


def _study_command(study: Study) -> Any:
    def run_study(  # noqa: PLR0913, PLR0917 - a command line's options are its arguments
        runs: int | None = None,
        seed: Annotated[int, option("N", "The first seed.", min=0)] = 1,
        threads: int | None = None,
        out: options.Out = None,
        replace: options.Replace = False,
        as_json: options.AsJson = False,
        engine: Annotated[
            options.Engine, typer.Option(help="emulate: cells in real time, with the kernel's TCP.")
        ] = "simulate" if "simulate" in study.titles else "emulate",
        cells: str | None = None,
        seconds: float | None = None,
        check: Annotated[
            bool, flag("--check", "Exit with 99 if a row or a measure is outside its tolerance.")
        ] = False,
        dask: options.Dask = False,
        scheduler: options.Scheduler = None,
        memory_limit: options.MemoryLimit = None,
    ) -> None:
        chosen = options.ExecutorOptions(threads, dask, scheduler, read_limit(memory_limit))
        if engine not in study.titles:
            where = "real time" if engine == "simulate" else "the simulator"
            raise UsageError(f"engine: the study {study.name} runs in {where} only")
        if engine == "emulate":
            chosen.refuse_with_labs()
        elif cells is not None:
            raise UsageError("--cells: only with --engine emulate; the simulator runs all cells")
        if seconds is not None and (engine == "simulate" or study.seconds is None):
            raise UsageError("--seconds: how long a cell runs is given by the study")
        with output_folder(out, "study") as output, ExitStack() as stack:
            options.claim(output, study.name, replace=replace)
            with Progress(f"study {study.name}") as progress:
                if engine == "emulate":
                    folder = stack.enter_context(TemporaryDirectory(prefix="bentpipe-"))
                    outcome = study.run_real_time(
                        chosen=cells,
                        seed=seed,
                        runs=runs or 1,
                        seconds=seconds or 0.0,
                        parallel=threads or 0,
                        progress=progress.fraction,
                        note=note,
                        folder=Path(folder),
                    )
                else:
                    with chosen.executor(engine) as executor:
                        outcome = study.run(
                            runs=runs, seed=seed, executor=executor, progress=progress.count
                        )
            finish(outcome, output, type(outcome).write, type(outcome).terminal, as_json=as_json)
        if outcome.interrupted:
            exit_interrupted("the figures are those of the finished runs")
        _require(outcome, check=check)

    # typer evaluates annotations that are strings in the module, where `study` is not defined.
    run_study.__annotations__ |= _options_of(study)
    run_study.__doc__ = f"{study.title}. Source: {study.source}"
    example = f"bentpipe study {study.name} --out results/{study.name}"
    return command(study.name, run_study, example)


def _options_of(study: Study) -> dict[str, Any]:
    """Return the options whose help depends on the study."""
    runs = "No effect: no cell of this study is stochastic."
    threads = "Threads, by default one for each core; with emulate runs at a time"
    cells = "Not available: this study runs in the simulator only."
    seconds = "Not available: the study gives it."
    if study.default_runs is not None:
        default = f"{study.default_runs} by default"
        runs = f"Runs of each stochastic cell, with consecutive seeds; {default}."
    if "emulate" in study.titles:
        runs += " With emulate runs of each cell in real time; 1 by default."
        threads += f", by default {study.parallel or 'as many as the processors carry'}"
        cells = (
            f'With emulate: the cells to run; "{study.example_cells}", for example. By default '
            f"{study.default_cells}."
        )
    if "simulate" not in study.titles:
        runs = "Runs of each cell in real time; 1 by default. The simulator has 20 or as many."
    if study.seconds is not None:
        seconds = f"With emulate: how long a cell runs, in s; {study.seconds:g} by default."
    return {
        "runs": Annotated[int | None, option("N", runs, "--seeds", min=1)],
        "threads": Annotated[int | None, option("N", f"{threads}.", min=1)],
        "cells": Annotated[str | None, option("CELLS", cells)],
        "seconds": Annotated[float | None, option("N", seconds, min=1, max=3_600)],
    }


def _require(outcome: StudyOutcome, *, check: bool) -> None:
    """Refuse an outcome with cells that were late and, if wanted, with thresholds missed.

    Raises:
        InvalidRunError: naming the cells.
        ThresholdError: naming what was missed.
    """
    if late := outcome.late():
        raise InvalidRunError(
            f"INVALID: {'; '.join(late)}: late in every attempt; run again (--cells) when the "
            "machine is idle"
        )
    if check and (missed := outcome.missed()):
        raise ThresholdError(f"missed: {'; '.join(missed)}")
