"""The verb ``search``: find the limit of a scenario."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

import typer

from bentpipe import report, scenario, simulation
from bentpipe.cli import options
from bentpipe.cli.lazy import LazyGroup, examples_text
from bentpipe.cli.options import option, optional, output_folder
from bentpipe.cli.progress import Progress, exit_interrupted, finish
from bentpipe.errors import UsageError
from bentpipe.simulation.memory import limiting, read_limit
from bentpipe.units import fraction

if TYPE_CHECKING:
    from pathlib import Path

    from bentpipe.simulation.no_drop import NoDropSearch
    from bentpipe.simulation.search import MaxCount

_SIZE: Final = re.compile(r"\s*(\d{1,9})\s*B?\s*", re.ASCII)

_COUNT_EXAMPLE: Final = (
    "bentpipe search max-count scenarios/voice.yaml --threshold 'flows.mos.p5>3'"
)
_EXAMPLE: Final = "bentpipe search no-drop scenarios/snip-duplex.yaml --sizes 58,200,1400"

search_app = typer.Typer(
    cls=LazyGroup,
    help="Find a limit by running a scenario repeatedly.",
    epilog=examples_text(_EXAMPLE, _COUNT_EXAMPLE),
    rich_markup_mode=None,
    callback=lambda: None,
)


@search_app.command(
    "no-drop",
    short_help="Find the largest rate without loss, for each packet size.",
    epilog=examples_text(_EXAMPLE),
)
def no_drop(  # noqa: PLR0913, PLR0917 - typer reads the options from the arguments
    scenario_file: options.ScenarioFile,
    sizes: Annotated[
        str | None,
        optional("BYTES,BYTES,...", "UDP payloads, as of iperf -l; by default the scenario's."),
    ] = None,
    resolution: Annotated[str, option("PERCENT", "The precision of the rate.")] = "0.5%",
    flow: Annotated[
        str | None,
        optional(
            "NAME", "Vary this flow only; by default all constant_rate flows, at equal rates."
        ),
    ] = None,
    settings: options.Settings = None,
    seed: options.ScenarioSeed = None,
    threads: options.Threads = None,
    out: options.Out = None,
    memory_limit: options.MemoryLimit = None,
    as_json: options.AsJson = False,
) -> None:
    """Find the largest rate of the constant_rate flows without loss, for each packet size."""
    wanted, precision = _sizes(sizes), fraction(resolution, "--resolution")
    loaded = scenario.Scenario.load(scenario_file, settings or ())
    find = partial(
        simulation.no_drop_rate,
        loaded,
        wanted,
        flow=flow,
        resolution=precision,
        seed=seed,
        threads=threads,
    )
    if _search(find, out, memory_limit, as_json=as_json):
        exit_interrupted("the rates are those that had passed by then")


@search_app.command(
    "max-count",
    short_help="Find the largest number of calls, pages or users that meets thresholds.",
    epilog=examples_text(_COUNT_EXAMPLE),
)
def max_count(  # noqa: PLR0913, PLR0917 - typer reads the options from the arguments
    scenario_file: options.ScenarioFile,
    threshold: Annotated[
        list[str] | None,
        optional(
            "TEXT",
            "What must hold, in addition to the scenario's thresholds, such as "
            "'flows.mos.p5 >= 3.6'; repeatable.",
            "--threshold",
        ),
    ] = None,
    entry: Annotated[
        str | None,
        optional(
            "NAME", "Vary the count of this entry of traffic; by default the only one with a count."
        ),
    ] = None,
    bound: Annotated[int, option("N", "Try no larger count.", "--max", min=1)] = 1_000,
    seeds: Annotated[int, option("N", "Runs of each count, with consecutive seeds.", min=1)] = 5,
    settings: options.Settings = None,
    seed: options.ScenarioSeed = None,
    threads: options.Threads = None,
    out: options.Out = None,
    memory_limit: options.MemoryLimit = None,
    as_json: options.AsJson = False,
) -> None:
    """Find the largest count of an entry of traffic that meets all thresholds with every seed.

    The count is doubled until a threshold fails, and then bisected. This assumes that a larger
    count than one that fails fails, too.
    """
    loaded = scenario.Scenario.load(scenario_file, settings or (), thresholds=threshold or ())
    find = partial(
        simulation.max_count,
        loaded,
        entry=entry,
        bound=bound,
        seeds=seeds,
        seed=seed,
        threads=threads,
    )
    if _search(find, out, memory_limit, as_json=as_json):
        exit_interrupted("the counts are those that had been tried by then")


def _search(
    find: Callable[..., NoDropSearch | MaxCount],
    out: Path | None,
    memory_limit: str | None,
    *,
    as_json: bool,
) -> bool:
    """Search, write and print what is found; return whether the search was interrupted."""
    limit = read_limit(memory_limit)
    with output_folder(out, "search") as output:
        with limiting(limit), Progress("searching") as progress:
            found = find(progress=progress.count)
        finish(found, output, report.write_search, report.search_tables, as_json=as_json)
    return found.interrupted


def _sizes(text: str | None) -> list[int] | None:
    if text is None:
        return None
    sizes = []
    for part in text.split(","):
        match = _SIZE.fullmatch(part)
        if match is None:
            raise UsageError(
                f'--sizes: read "{part.strip()}"; expected bytes of UDP payload, separated '
                'by commas, such as "58,200,1400"'
            )
        sizes.append(int(match[1]))
    return sizes
