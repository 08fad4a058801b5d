"""The verb ``study``: one sub-command for each study in the registry, made when it is asked for.

The registry is imported only under this verb, so that no other one waits for it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from bentpipe.cli.lazy import LazyGroup, command
from bentpipe.errors import UsageError
from bentpipe.simulation.memory import MEMORY_LIMIT_HELP, limiting, read_limit

if TYPE_CHECKING:
    from bentpipe.cli.progress import Progress
    from bentpipe.studies import Study, StudyOutcome

_EXIT_INTERRUPTED: Final = 130
_SEED: Final = 1
_ENGINES: Final = ("simulate", "emulate")
# Slow links hardly keep a core busy; more at once make each other late.
_PARALLEL: Final = 4
_THREADS_HELP: Final = f"Threads, one a core by default; with emulate runs at once, {_PARALLEL}."


class StudyGroup(LazyGroup):
    """The sub-commands of ``study``: ``list``, and the name of each study."""

    def list_commands(self, _context: Any) -> list[str]:
        """Return the names of all sub-commands."""
        from bentpipe.studies import STUDIES

        return ["list", *STUDIES]

    def get_command(self, _context: Any, name: str) -> Any:
        """Return the sub-command called ``name``, or None."""
        from bentpipe.studies import STUDIES

        if name == "list":
            return command("list", _list, "Example: bentpipe study list")
        if name not in STUDIES:
            return None
        return _study_command(STUDIES[name])


study_app = typer.Typer(
    cls=StudyGroup,
    help="Run a published experiment again and print published vs. measured.",
    epilog="Example: bentpipe study jpl --runs 30 --out results/jpl",
    no_args_is_help=True,
    rich_markup_mode=None,
    callback=lambda: None,
)


def _list(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")] = False,
) -> None:
    """List the studies and the publications that they re-run."""
    from bentpipe.studies import STUDIES

    if as_json:
        rows = [
            {"name": study.name, "title": study.title, "source": study.source}
            for study in STUDIES.values()
        ]
        print(json.dumps(rows, indent=2))
        return
    from bentpipe.report.terminal import plain_table, show

    cells = [(study.name, study.title, study.source) for study in STUDIES.values()]
    show(plain_table(("study", "title", "source"), cells))


def _runs_help(study: Study) -> str:
    if study.default_runs is None:
        return "Changes nothing here: no cell draws chance."
    return f"Runs for each cell that draws chance; {study.default_runs} by default."


def _cells_help(study: Study) -> str:
    if study.run_real_time is None:
        return "Not for this study, which runs in the simulator only."
    return f'With emulate: the cells to run, all by default; "{study.example_cells}", for example.'


def _study_command(study: Study) -> Any:
    def run_study(  # noqa: PLR0913, PLR0917 - a command line's options are its arguments
        runs: int | None = None,
        seed: Annotated[int, typer.Option(min=0, help="The first seed.")] = _SEED,
        threads: Annotated[
            int | None,
            typer.Option(min=1, help=_THREADS_HELP, show_default=False),
        ] = None,
        out: Annotated[
            Path | None,
            typer.Option(
                help="Write report.html and the data into this folder.", show_default=False
            ),
        ] = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")] = False,
        engine: Annotated[
            str,
            typer.Option(help="simulate, or emulate: cells in real time, on the kernel's TCP."),
        ] = "simulate",
        cells: str | None = None,
        memory_limit: Annotated[
            str | None,
            typer.Option(metavar="SIZE", help=MEMORY_LIMIT_HELP, show_default=False),
        ] = None,
    ) -> None:
        if engine not in _ENGINES:
            from bentpipe.text import choice

            raise UsageError(f"engine: {choice(engine, _ENGINES)}")
        if engine == "simulate":
            if cells is not None:
                raise UsageError("--cells: is for --engine emulate; the simulator runs all cells")
            with limiting(read_limit(memory_limit)):
                _run(study, runs=runs, seed=seed, threads=threads, out=out, as_json=as_json)
        else:
            if runs is not None:
                raise UsageError("--runs: is for --engine simulate; leave it out")
            parallel = _PARALLEL if threads is None else threads
            _run_real_time(
                study, cells=cells, seed=seed, parallel=parallel, out=out, as_json=as_json
            )

    # Written annotations are read where no local name is known.
    run_study.__annotations__["runs"] = Annotated[
        int | None, typer.Option(min=1, help=_runs_help(study), show_default=False)
    ]
    run_study.__annotations__["cells"] = Annotated[
        str | None, typer.Option(help=_cells_help(study), show_default=False)
    ]
    run_study.__doc__ = f"{study.title}. Source: {study.source}"
    example = f"Example: bentpipe study {study.name} --out results/{study.name}"
    return command(study.name, run_study, example)


def _run_real_time(
    study: Study, *, cells: str | None, seed: int, parallel: int, out: Path | None, as_json: bool
) -> None:
    real = study.run_real_time
    if real is None:
        raise UsageError(f"engine: the study {study.name} runs in the simulator only")
    _finish(
        study,
        lambda progress: real(
            chosen=cells, seed=seed, parallel=parallel, progress=progress.fraction
        ),
        out=out,
        as_json=as_json,
    )


def _run(
    study: Study,
    *,
    runs: int | None,
    seed: int,
    threads: int | None,
    out: Path | None,
    as_json: bool,
) -> None:
    _finish(
        study,
        lambda progress: study.run(runs=runs, seed=seed, threads=threads, progress=progress.count),
        out=out,
        as_json=as_json,
    )


def _finish(
    study: Study,
    run: Callable[[Progress], StudyOutcome],
    *,
    out: Path | None,
    as_json: bool,
) -> None:
    from bentpipe.cli.progress import Progress, keeping_results
    from bentpipe.results.folder import prepare_output_folder

    if out is not None:
        prepare_output_folder(out, kind="study")
    with Progress(f"study {study.name}") as progress:
        outcome = run(progress)
    with keeping_results():
        if out is not None:
            outcome.write(out)
            typer.echo(f"bentpipe: wrote {out} (report.html shows it)", err=True)
        if as_json:
            print(json.dumps(outcome.to_json(), indent=2))
        else:
            from bentpipe.report.terminal import show

            show(outcome.table())
    if outcome.interrupted:
        typer.echo("bentpipe: interrupted; the figures are of the runs that were done", err=True)
        raise typer.Exit(_EXIT_INTERRUPTED)
