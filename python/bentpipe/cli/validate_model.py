"""The verb ``validate-model``: the same points in both engines, side by side."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from bentpipe.errors import InvalidRunError, ThresholdError, UsageError

if TYPE_CHECKING:
    from bentpipe.validation.comparison import Comparison, Point
    from bentpipe.validation.runs import Run

_EXIT_INTERRUPTED: Final = 130
_USUAL_SECONDS: Final = 30.0
KIND: Final = "validation"

_Points = Annotated[
    str | None,
    typer.Option(
        metavar="N,N,...", help="Only these points of the grid, by number.", show_default=False
    ),
]
_Measures = Annotated[
    str | None,
    typer.Option(
        metavar="KIND,...",
        help="Only these: goodput, completion, two-way, rate-step, outage.",
        show_default=False,
    ),
]
_Seconds = Annotated[
    float, typer.Option(min=1, max=3_600, help="How long each point of goodput runs in real time.")
]
_Parallel = Annotated[
    int | None,
    typer.Option(
        min=1, help="Processors to use; all by default. Slow links share one.", show_default=False
    ),
]


def validate_model(  # noqa: PLR0913, PLR0917 - typer reads the options from the arguments
    grid: Annotated[
        str, typer.Option(help="small (27 points of goodput and 54 others) or full (225 and 54).")
    ] = "small",
    points: _Points = None,
    measures: _Measures = None,
    seconds: _Seconds = _USUAL_SECONDS,
    repeats: Annotated[
        int, typer.Option(min=1, max=100, help="How often each point runs in real time.")
    ] = 1,
    parallel: _Parallel = None,
    check: Annotated[
        bool, typer.Option("--check", help="Exit with code 99 if a bar is missed.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Write the figures, and each run, into this folder.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")] = False,
) -> None:
    """Compare the simulator with Linux TCP: the same traffic over the same links in both.

    Linux runs in real time, several points at once; a point that was late is repeated up to three
    times. The simulator runs each point with 20 seeds. Compared are goodput, mean queue and
    retransmissions, completion times of 10 kB, 100 kB and 1 MB, two-way transfers, a rate step and
    an outage of 2 s. A difference is the simulator's value over the kernel's, less 1, with the same
    seed, so that both lose the same packets; the mean of the seeds stands beside it.
    """
    chosen = _chosen(grid, points, measures)
    # Before the modules that start threads, as for a single run.
    from bentpipe.emulation.run import prepare
    from bentpipe.plan.resolver import from_dict

    for point in chosen:
        prepare(from_dict(point.scenario(seconds)))
    from bentpipe.cli.progress import keeping_results
    from bentpipe.results.folder import prepare_output_folder
    from bentpipe.simulation.many import cores

    if out is not None:
        prepare_output_folder(out, kind=KIND)
    with tempfile.TemporaryDirectory(prefix="bentpipe-") as name:
        runs, interrupted = _in_real_time(
            chosen,
            seconds=seconds,
            seeds=range(1, repeats + 1),
            parallel=parallel or cores(),
            folder=Path(name),
        )
        with keeping_results():
            compared = list(_compared(chosen, runs, seconds))
            _tell(compared, grid=grid, seconds=seconds, runs=Path(name), out=out, as_json=as_json)
    if interrupted:
        typer.echo("bentpipe: interrupted; the figures are of the points that were done", err=True)
        raise typer.Exit(_EXIT_INTERRUPTED)
    _refuse_late(compared)
    if check:
        _refuse_missed(compared)


def _in_real_time(
    points: list[Point], *, seconds: float, seeds: range, parallel: int, folder: Path
) -> tuple[list[Run], bool]:
    """Run the points in real time; return what was done, and whether Ctrl-C ended it."""
    from bentpipe.cli.progress import Progress
    from bentpipe.validation.runs import in_real_time

    done: list[Run] = []
    with Progress("validating") as progress:
        try:
            for run in in_real_time(
                points,
                seconds=seconds,
                seeds=seeds,
                parallel=parallel,
                folder=folder,
                progress=progress.fraction,
            ):
                done.append(run)  # noqa: PERF402 - what was done by Ctrl-C stays
        except KeyboardInterrupt:
            return done, True
    return done, False


def _refuse_late(compared: Sequence[Comparison]) -> None:
    late = ",".join(str(each.point.number) for each in compared if each.invalid is not None)
    if late:
        raise InvalidRunError(
            f"INVALID: point {late}: late in every attempt; run again with --points {late} when "
            "the machine is quiet"
        )


def _refuse_missed(compared: Sequence[Comparison]) -> None:
    from bentpipe.validation.report import missed_bars, summaries

    missed = missed_bars(summaries(compared))
    if missed:
        raise ThresholdError(f"missed: {'; '.join(missed)}")


def _chosen(name: str, numbers: str | None, measures: str | None) -> list[Point]:
    from bentpipe.validation.comparison import MEASURES, grid

    points = grid(name)
    if measures is not None:
        from bentpipe.text import choice

        kinds = tuple(dict.fromkeys(measure.kind for measure in MEASURES))
        asked = [each.strip() for each in measures.split(",")]
        for each in asked:
            if each not in kinds:
                raise UsageError(f"--measures: {choice(each, kinds)}")
        points = [point for point in points if point.kind in asked]
    if numbers is None:
        return points
    try:
        wanted = {int(number) for number in numbers.split(",")}
    except ValueError:
        raise UsageError(f'--points: read "{numbers}"; write numbers, such as "1,14"') from None
    unknown = sorted(wanted - {point.number for point in points})
    if unknown:
        first, last = points[0].number, points[-1].number
        raise UsageError(f"--points: read {unknown[0]}; {name} has {first} to {last}")
    return [point for point in points if point.number in wanted]


def _compared(points: Sequence[Point], runs: Sequence[Run], seconds: float) -> Iterator[Comparison]:
    """Simulate the points that were run in real time, and put both side by side."""
    from bentpipe.validation.comparison import SEEDS, Comparison, simulated

    for point in points:
        own = [run for run in runs if run.point == point]
        if not own:
            continue
        kernel = tuple(run.figures for run in own if run.figures is not None)
        invalid = next((run.invalid for run in own if run.figures is None), None)
        seeds = range(1, max(SEEDS, *(run.seed for run in own)) + 1)
        model = tuple(simulated(point, seconds, seeds))
        yield Comparison(
            point=point, kernel=kernel, model=model, invalid=None if kernel else invalid
        )


def _tell(
    compared: list[Comparison],
    *,
    grid: str,
    seconds: float,
    runs: Path,
    out: Path | None,
    as_json: bool,
) -> None:
    from bentpipe.validation.report import largest_lines, markdown, report_of

    report = report_of(compared, grid=grid, seconds=seconds)
    if out is not None:
        _write(report, markdown(compared), runs, out)
    if as_json:
        print(json.dumps(report, indent=2))
        return
    _show(compared)
    if compared:
        print("\nThe largest differences, in units of the bars:")
        print("\n".join(largest_lines(compared)))
    if seconds < _USUAL_SECONDS:
        print(f"bentpipe: runs of {seconds:g} s are short: slow start counts much", file=sys.stderr)


def _show(compared: Sequence[Comparison]) -> None:
    from bentpipe.report.terminal import plain_table, show
    from bentpipe.validation.report import summaries, summary_table, tables_of

    for table in (*tables_of(compared), summary_table(summaries(compared))):
        show(table.title, plain_table(table.headings, table.rows), "")


def _write(report: dict[str, Any], tables: str, runs: Path, out: Path) -> None:
    from bentpipe import _core
    from bentpipe.results.folder import json_text, write_folder

    about = {"bentpipe_version": _core.version(), "machine": report["machine"]}
    texts = {"validation.json": json_text(report), "validation.md": tables}
    write_folder(out, kind=KIND, manifest=about, texts=texts)
    kept = out / "runs"
    try:
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(runs, kept)
    except OSError as error:
        raise UsageError(f"{kept}: cannot be written: {error.strerror or error}") from None
    typer.echo(f"bentpipe: wrote {out}", err=True)
