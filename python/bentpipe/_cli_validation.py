"""The verb ``validate-model``: the same points in both engines, side by side."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from bentpipe.errors import InvalidRunError, UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from bentpipe._validation_runs import Run
    from bentpipe.validation import Comparison, Point

_EXIT_INTERRUPTED: Final = 130
_LEAST_SECONDS: Final = 60.0
KIND: Final = "validation"


def validate_model(
    grid: Annotated[str, typer.Option(help="small (27 points) or full (225).")] = "small",
    points: Annotated[
        str | None,
        typer.Option(
            metavar="N,N,...", help="Only these points of the grid, by number.", show_default=False
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=1, max=3_600, help="How long each point runs in real time.")
    ] = _LEAST_SECONDS,
    repeats: Annotated[
        int, typer.Option(min=1, max=100, help="How often each point runs in real time.")
    ] = 1,
    parallel: Annotated[
        int | None,
        typer.Option(min=1, help="Points at once; one a core by default.", show_default=False),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Write the figures, and each run, into this folder.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")] = False,
) -> None:
    """Hold the simulator against the kernel: the same flows over the same links in both.

    The kernel runs in real time, several points at once, each with iperf3; a point that was late is
    repeated up to three times. The simulator runs each point with 20 seeds. Goodput is that of all
    flows, from the first SYN to the end; a difference is the simulator's over the kernel's, less 1,
    with the same seed, so that both lose the same packets; the mean of the seeds stands beside it.
    """
    chosen = _chosen(grid, points)
    # Before the modules that start threads, as for a single run.
    from bentpipe._emulate import prepare
    from bentpipe.scenario import from_dict

    for point in chosen:
        prepare(from_dict(point.scenario(seconds)))
    from bentpipe._progress import Progress, keeping_results
    from bentpipe.results import prepare_output_folder
    from bentpipe.sweep import cores

    if out is not None:
        prepare_output_folder(out, kind=KIND)
    interrupted = False
    runs: list[Run] = []
    with tempfile.TemporaryDirectory(prefix="bentpipe-") as name:
        try:
            from bentpipe._validation_runs import in_real_time

            with Progress("validating") as progress:
                for run in in_real_time(
                    chosen,
                    seconds=seconds,
                    seeds=range(1, repeats + 1),
                    parallel=parallel or cores(),
                    folder=Path(name),
                    progress=progress.fraction,
                ):
                    runs.append(run)  # noqa: PERF402 - what was done by Ctrl-C stays
        except KeyboardInterrupt:
            interrupted = True
        with keeping_results():
            compared = list(_compared(chosen, runs, seconds))
            _tell(compared, grid=grid, seconds=seconds, runs=Path(name), out=out, as_json=as_json)
    if interrupted:
        typer.echo("bentpipe: interrupted; the figures are of the points that were done", err=True)
        raise typer.Exit(_EXIT_INTERRUPTED)
    _refuse_late(compared)


def _refuse_late(compared: Sequence[Comparison]) -> None:
    late = ",".join(str(each.point.number) for each in compared if each.invalid is not None)
    if late:
        raise InvalidRunError(
            f"INVALID: point {late}: late in every attempt; run again with --points {late} when "
            "the machine is quiet"
        )


def _chosen(name: str, numbers: str | None) -> list[Point]:
    from bentpipe.validation import grid

    points = grid(name)
    if numbers is None:
        return points
    try:
        wanted = {int(number) for number in numbers.split(",")}
    except ValueError:
        raise UsageError(f'--points: read "{numbers}"; write numbers, such as "1,14"') from None
    unknown = sorted(wanted - {point.number for point in points})
    if unknown:
        raise UsageError(f"--points: read {unknown[0]}; {name} has 1 to {len(points)}")
    return [point for point in points if point.number in wanted]


def _compared(points: Sequence[Point], runs: Sequence[Run], seconds: float) -> Iterator[Comparison]:
    """Simulate the points that were run in real time, and put both side by side."""
    from bentpipe.validation import SEEDS, Comparison, simulated

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
    from bentpipe.validation import sizes

    same = sizes(each.goodput_difference for each in compared)
    mean = sizes(each.mean_goodput_difference for each in compared)
    report: dict[str, Any] = {
        "grid": grid,
        "seconds": seconds,
        "machine": {"cores": os.cpu_count(), "kernel": platform.release()},
        "goodput_difference": _sizes(same),
        "mean_goodput_difference": _sizes(mean),
        "points": [each.to_json() for each in compared],
    }
    if out is not None:
        _write(report, runs, out)
    if as_json:
        print(json.dumps(report, indent=2))
        return
    from bentpipe._cli_tables import show

    show(comparison_table(compared))
    if same is not None and mean is not None:
        counted = sum(each.goodput_difference is not None for each in compared)
        print(f"Goodput, {counted} points of {seconds:g} s, size of the difference:")
        for which, (median, high) in (("same seeds", same), ("mean of the seeds", mean)):
            print(f"  {which}: median {median:.1%}, 90th percentile {high:.1%}")
    if seconds < _LEAST_SECONDS:
        print(f"bentpipe: runs of {seconds:g} s are short: slow start counts much", file=sys.stderr)


def _sizes(found: tuple[float, float] | None) -> dict[str, float] | None:
    return None if found is None else {"median": found[0], "p90": found[1]}


def _write(report: dict[str, Any], runs: Path, out: Path) -> None:
    from bentpipe import _core
    from bentpipe._folder import json_text, write_folder

    about = {"bentpipe_version": _core.version(), "machine": report["machine"]}
    write_folder(out, kind=KIND, manifest=about, texts={"validation.json": json_text(report)})
    kept = out / "runs"
    try:
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(runs, kept)
    except OSError as error:
        raise UsageError(f"{kept}: cannot be written: {error.strerror or error}") from None
    typer.echo(f"bentpipe: wrote {out}", err=True)


def comparison_table(compared: Sequence[Comparison]) -> Table:
    """Return the points, one a row; of several runs the means."""
    from bentpipe._cli_tables import plain_table

    headings = (
        *("point", "control", "Mbit/s", "RTT ms", "queue BDP", "loss", "flows"),
        *("goodput kernel", "model Mbit/s", "difference", "mean of seeds"),
        *("queue kernel", "model ms", "sent again kernel", "model"),
    )
    return plain_table(headings, [_row(each) for each in compared])


def _row(each: Comparison) -> tuple[str, ...]:
    point, same, mean = each.point, each.goodput_difference, each.mean_goodput_difference
    paired = [run for run in each.model if run.seed in {run.seed for run in each.kernel}]
    return (
        str(point.number),
        point.control,
        f"{point.rate_mbps:g}",
        f"{point.rtt_ms:g}",
        f"{point.queue_bdp:g}",
        f"{point.loss:.2%}" if point.loss else "0",
        str(point.flows),
        _figure(each.kernel, "goodput_bps", 1e-6, 3),
        _figure(paired or each.model, "goodput_bps", 1e-6, 3),
        "INVALID" if same is None else f"{same:+.1%}",
        "-" if mean is None else f"{mean:+.1%} ± {each.goodput_spread:.1%}",
        _figure(each.kernel, "queue_ms", 1, 1),
        _figure(paired or each.model, "queue_ms", 1, 1),
        _figure(each.kernel, "retransmitted_segments", 1, 0),
        _figure(paired or each.model, "retransmitted_segments", 1, 0),
    )


def _figure(runs: Sequence[Any], name: str, scale: float, digits: int) -> str:
    from bentpipe.validation import mean_of

    mean = mean_of(runs, name)
    return "-" if mean is None else f"{mean * scale:,.{digits}f}"
