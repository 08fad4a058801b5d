"""The verbs of results: ``report``, ``compare`` and ``serve``."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated, Final

from bentpipe import cli, comparison, report as reports, results, sweeps
from bentpipe.cli import options
from bentpipe.cli.options import argument, flag, note, option, print_json, require_folder
from bentpipe.cli.progress import Progress, exit_interrupted, telling_interrupts
from bentpipe.cli.thresholds import require_cell_thresholds, require_thresholds, write_junit
from bentpipe.errors import InvalidRunError, UsageError
from bentpipe.results.files import MANIFEST, kind_of, read_manifest
from bentpipe.units import fraction

_SERVER_PACKAGES: Final = frozenset({"starlette", "uvicorn"})


def report(
    folder: Annotated[Path, argument("FOLDER", "A result folder.")],
    report: Annotated[
        Path | None, option("FILE", "The HTML file; report.html in the folder by default.")
    ] = None,
    tables: Annotated[
        Path | None,
        option("FOLDER", "Write each table of the report to this folder, as CSV and LaTeX."),
    ] = None,
    threshold: options.Thresholds = None,
    junit: options.JUnit = None,
) -> None:
    """Write the HTML report of a result folder. Prints its path.

    The report of a sweep is written again, too. Studies, searches and questions keep theirs; of
    these --tables writes the tables. With --threshold or --junit, it also checks the thresholds of
    the scenario and the given ones.
    """
    require_folder(junit)
    require_folder(report)
    path = folder / results.REPORT if report is None else report
    kind = kind_of(read_manifest(folder))
    if kind == "sweep":
        if threshold:
            raise UsageError(
                f"--threshold: {folder} is a sweep, which checks its thresholds in every run; give "
                "it to bentpipe sweep"
            )
        _report_sweep(folder, path, tables, junit)
        return
    if kind != "run" and tables is not None and not (report or threshold or junit):
        reports.write_page_tables(path, tables)
        note(f"wrote the tables to {tables}")
        print(path)
        return
    result = results.Result.load(folder)
    wanted = bool(threshold or junit)
    checked = results.check_thresholds(result, threshold or ()) if wanted else []
    checks = [check.to_json() for check in checked]
    write_junit(junit, result, checks)
    reports.write_run_report(result, path)
    if tables is not None:
        reports.write_tables(reports.run_views(result), tables)
        note(f"wrote the tables to {tables}")
    print(path)
    if wanted and result.state != "completed":
        reason = result.invalid or result.ending
        raise InvalidRunError(f"{folder}: the thresholds cannot be checked: {reason}")
    require_thresholds(checks)


def _report_sweep(folder: Path, path: Path, tables: Path | None, junit: Path | None) -> None:
    """Write the report of a sweep, and the other files that are wanted."""
    sweep = sweeps.Sweep.load(folder, results=False)
    reports.write_sweep_report(sweep, path)
    if tables is not None:
        reports.write_tables(reports.sweep_views(sweep, sweep.cells.height), tables)
        note(f"wrote the tables to {tables}")
    print(path)
    if junit is not None:
        write_junit(junit, sweep, sweep.thresholds)
        require_cell_thresholds(sweep.thresholds, str(folder / MANIFEST))


def compare(
    sources: Annotated[
        list[Path],
        argument(
            "SOURCE", "Two or more settings; the first is the baseline.", options.complete_scenarios
        ),
    ],
    metric: Annotated[
        list[str] | None,
        option(
            "NAME",
            "A metric, such as flows.download.goodput_bps.p5; repeatable. By default those of "
            "each entry of traffic and each direction.",
        ),
    ] = None,
    by: Annotated[
        str | None, option("PATH", "Compare the values of this field of one sweep.")
    ] = None,
    seeds: Annotated[int, option("N", "The seeds of each scenario file.", min=1)] = 30,
    difference: Annotated[
        str, option("PERCENT", "State the seeds that would show a difference of this size.")
    ] = "5%",
    report: Annotated[Path | None, option("FILE", "Write a report with plots (HTML).")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Compare settings: differences with 95 % intervals.

    A setting is a result folder, the folder of a sweep, or a scenario file, which is simulated
    first. Runs are paired by seed. The sample is the run: two results of one run each have no
    interval.
    """
    require_folder(report)
    nothing = "no seed is complete in all scenarios"
    with telling_interrupts(nothing), Progress("simulating") as progress:
        compared = comparison.compare(
            *sources,
            metrics=metric,
            by=by,
            seeds=seeds,
            difference=fraction(difference, "--difference"),
            progress=progress.count,
        )
    if report is not None:
        reports.write_comparison(compared, report)
        note(f"wrote {report}")
    if as_json:
        print_json(compared.to_json())
    else:
        cli.print_views(*reports.comparison_tables(compared))
    if compared.interrupted:
        exit_interrupted("the comparison is that of the seeds that are complete in all scenarios")


def serve(
    folder: Annotated[Path, argument("FOLDER", "A folder with result folders.")],
    port: Annotated[int, option("N", "The TCP port; 0: a free one.", min=0, max=65535)] = 0,
    host: Annotated[
        str,
        option(
            "ADDRESS",
            "The address to listen on. One that other machines can reach asks for the token in the "
            "URL.",
        ),
    ] = "127.0.0.1",
    open_browser: Annotated[bool, flag("--open", "Open the page in a browser.")] = False,
) -> None:
    """Show results in a browser. Prints the URL; Ctrl-C ends it."""
    try:
        server = import_module("bentpipe.dashboard.server")
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if package not in _SERVER_PACKAGES:
            raise
        message = f"serve: {package} is not installed; pip install 'bentpipe[serve]'"
        raise UsageError(message) from None

    def ready(url: str) -> None:
        print(url, flush=True)
        note(f"shows the results in {folder}; press Ctrl-C to end it")

    server.serve(folder, host=host, port=port, open_browser=open_browser, ready=ready)
