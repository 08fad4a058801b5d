"""The verb ``validate-model``: the same points in the simulator and in Linux TCP."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

import bentpipe
from bentpipe import live, plan, report, results, scenario, simulation, validation
from bentpipe.cli.options import (
    AsJson,
    flag,
    note,
    note_written,
    option,
    optional,
    output_folder,
    print_json,
)
from bentpipe.cli.progress import Progress, delaying_interrupts, exit_interrupted
from bentpipe.errors import InvalidRunError, ThresholdError, UsageError
from bentpipe.text import choice

if TYPE_CHECKING:
    from bentpipe.results.output import OutputFolder
    from bentpipe.validation.comparison import Comparison
    from bentpipe.validation.points import Point
    from bentpipe.validation.runs import PointRun

_DEFAULT_SECONDS: Final = 30.0
_KIND: Final = "validation"


def _measure_kinds() -> tuple[str, ...]:
    return tuple(dict.fromkeys(measure.kind for measure in validation.MEASURES))


def _complete_measures(incomplete: str) -> list[str]:
    before, comma, _ = incomplete.rpartition(",")
    return [f"{before}{comma}{kind}" for kind in _measure_kinds()]


def validate_model(  # noqa: PLR0913, PLR0917 - typer reads the options from the arguments
    grid: Annotated[
        Literal["small", "full", "pep"],
        typer.Option(
            help="27 or 225 points of goodput, and 54 others with either; or 12 points with PEPs, "
            "each with a bulk flow and with files."
        ),
    ] = "small",
    points: Annotated[
        str | None, optional("N,N,...", "Only these points of the grid, by number.")
    ] = None,
    measures: Annotated[
        str | None,
        optional(
            "KIND,...",
            "Only these: goodput, completion, two-way, rate-step, outage, pep-goodput, "
            "pep-completion.",
            autocompletion=_complete_measures,
        ),
    ] = None,
    seconds: Annotated[
        float, option("N", "The duration of goodput points in real time.", min=1, max=3_600)
    ] = _DEFAULT_SECONDS,
    repeats: Annotated[
        int, option("N", "The number of runs of each point in real time.", min=1, max=100)
    ] = 1,
    parallel: Annotated[
        int | None,
        optional("N", "Processors to use; all by default. Slow links share one.", min=1),
    ] = None,
    check: Annotated[bool, flag("--check", "Exit with code 99 if a threshold is not met.")] = False,
    out: Annotated[
        Path | None,
        optional("FOLDER", "Write the report and the result of each run to this folder."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare the simulator with Linux TCP.

    Both run the same traffic over the same links. Linux runs in real time, several points at a
    time; a point that was late is repeated up to three times. The simulator runs each point with 20
    seeds. Compared are goodput, mean queue and retransmissions, completion times of 10 kB, 100 kB
    and 1 MB, two-way transfers, a rate step and an outage of 2 s. A difference is the simulator's
    value over the kernel's, less 1, with the same seed, so that both lose the same packets; the
    mean over the seeds has a 95 % confidence interval.
    """
    chosen = _chosen_points(grid, points, measures)
    for point in chosen:
        made = scenario.Scenario.from_dict(point.scenario(seconds))
        live.check_plan(plan.Plan.resolve(made))
    with output_folder(out, _KIND) as output, TemporaryDirectory(prefix="bentpipe-") as name:
        runs, interrupted = _run_points(
            chosen,
            seconds=seconds,
            seeds=range(1, repeats + 1),
            parallel=parallel or simulation.cores(),
            folder=Path(name),
        )
        with delaying_interrupts():
            compared = list(_compare(chosen, runs, seconds))
            content = validation.report_of(compared, grid=grid, seconds=seconds)
            if output is not None:
                _write(content, validation.markdown(compared), Path(name), output)
            if as_json:
                print_json(content)
            else:
                _show(compared, seconds)
    if interrupted:
        exit_interrupted("the figures are those of the finished points")
    _require(compared, thresholds=check)


def _require(compared: Sequence[Comparison], *, thresholds: bool) -> None:
    """Refuse points that were late and, if wanted, thresholds that are missed."""
    late = ",".join(str(each.point.number) for each in compared if each.invalid is not None)
    if late:
        raise InvalidRunError(
            f"INVALID: point {late}: late in every attempt; run again with --points {late} when "
            "the machine is idle"
        )
    missed = validation.missed_thresholds(validation.summaries(compared)) if thresholds else []
    if missed:
        raise ThresholdError(f"missed: {'; '.join(missed)}")


def _chosen_points(name: str, numbers: str | None, measures: str | None) -> list[Point]:
    points = list(validation.grid(name))
    if measures is not None:
        kinds = _measure_kinds()
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
        raise UsageError(f'--points: read "{numbers}"; expected numbers, such as "1,14"') from None
    unknown = sorted(wanted - {point.number for point in points})
    if unknown:
        first, last = points[0].number, points[-1].number
        raise UsageError(f"--points: read {unknown[0]}; {name} has {first} to {last}")
    return [point for point in points if point.number in wanted]


def _run_points(
    points: list[Point], *, seconds: float, seeds: range, parallel: int, folder: Path
) -> tuple[list[PointRun], bool]:
    """Run points in real time; return the finished runs, and whether Ctrl-C ended the others."""
    done: list[PointRun] = []
    with Progress("validating") as progress:
        try:
            for run in validation.run_points(
                points,
                seconds=seconds,
                seeds=seeds,
                parallel=parallel,
                folder=folder,
                progress=progress.fraction,
            ):
                done.append(run)  # noqa: PERF402 - Ctrl-C keeps the finished runs
        except KeyboardInterrupt:
            return done, True
    return done, False


def _compare(
    points: Sequence[Point], runs: Sequence[PointRun], seconds: float
) -> Iterator[Comparison]:
    for point in points:
        own = [run for run in runs if run.point == point]
        if not own:
            continue
        kernel = tuple(run.metrics for run in own if run.metrics is not None)
        invalid = next((run.invalid for run in own if run.metrics is None), None)
        seeds = range(1, max(validation.SEEDS, *(run.seed for run in own)) + 1)
        model = tuple(validation.simulate_point(point, seconds, seeds))
        yield validation.Comparison(
            point=point, kernel=kernel, model=model, invalid=None if kernel else invalid
        )


def _show(compared: Sequence[Comparison], seconds: float) -> None:
    summary = validation.summary_view(validation.summaries(compared))
    report.show(*validation.views_of(compared), summary)
    if compared:
        print("\nThe largest differences, in units of the thresholds:")
        print("\n".join(validation.largest_lines(compared)))
    if seconds < _DEFAULT_SECONDS:
        note(f"runs of {seconds:g} s are short: slow start is a large part of them")


def _write(content: dict[str, Any], tables: str, runs: Path, output: OutputFolder) -> None:
    texts = {"validation.json": results.json_text(content), "validation.md": tables}
    manifest = {"bentpipe_version": bentpipe.__version__, "machine": content["machine"]}
    results.write_folder(output, kind=_KIND, manifest=manifest, files=texts, folders={"runs": runs})
    note_written(output, "validation.md shows it")
