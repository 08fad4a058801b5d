"""The verb ``search``: find a limit of a scenario."""

from __future__ import annotations

import re
from functools import partial
from typing import Annotated, Any, Final

import bentpipe
from bentpipe import report, scenario
from bentpipe.cli import options
from bentpipe.cli.options import argument, flag, note, option, output_folder
from bentpipe.cli.progress import Progress, exit_interrupted, finish
from bentpipe.errors import UsageError
from bentpipe.scenario.document import read_value
from bentpipe.simulation.memory import limiting, read_limit
from bentpipe.simulation.search import DEFAULT_MAX
from bentpipe.units import fraction

_SIZE: Final = re.compile(r"\d{1,9}", re.ASCII)
# Sub-commands of earlier versions.
_FORMER: Final = {"no-drop": "SCENARIO --no-drop", "max-count": "SCENARIO [PATH]"}


Field = Annotated[
    str | None,
    argument("PATH", "The field to vary, such as traffic.call.count; by default the only count."),
]
Bound = Annotated[
    str | None,
    option(
        "VALUE",
        "Try no larger value, such as 20 or '20 Mbit/s'; by default 1000 or what fits.",
        "--max",
    ),
]
Thresholds = Annotated[
    list[str] | None,
    option(
        "TEXT",
        "What must hold, in addition to the scenario's thresholds, such as 'flows.mos.p5 >= 3.6'; "
        "repeatable.",
    ),
]
Smallest = Annotated[
    bool, flag("--smallest", "Find the smallest value that passes instead, such as of a rate.")
]
NoDrop = Annotated[
    bool, flag("--no-drop", "Find the largest rate of constant_rate flows without loss instead.")
]
Sizes = Annotated[
    str | None,
    option(
        "BYTES,BYTES,...", "UDP payloads, as of iperf -l, for --no-drop; by default the file's."
    ),
]
FlowName = Annotated[
    str | None,
    option("NAME", "Vary this flow only, with --no-drop; by default all of constant_rate."),
]
Seeds = Annotated[
    int | None,
    option("N", "Runs of each value, with consecutive seeds; 5, or 1 with --no-drop.", min=1),
]
Resolution = Annotated[
    str | None, option("PERCENT", "The precision; by default 0.5%, and exact for a count.")
]


def search(  # noqa: PLR0913, PLR0917 - typer reads the options from the arguments
    scenario_file: options.ScenarioFile,
    path: Field = None,
    bound: Bound = None,
    threshold: Thresholds = None,
    smallest: Smallest = False,
    no_drop: NoDrop = False,
    sizes: Sizes = None,
    flow: FlowName = None,
    seeds: Seeds = None,
    resolution: Resolution = None,
    settings: options.Settings = None,
    seed: options.ScenarioSeed = None,
    threads: options.Threads = None,
    out: options.Out = None,
    replace: options.Replace = False,
    memory_limit: options.MemoryLimit = None,
    as_json: options.AsJson = False,
) -> None:
    """Find the largest or smallest value that meets thresholds.

    The value is doubled until a threshold fails with one of the seeds, and then bisected. This
    assumes that a larger value than one that fails fails, too; with --smallest, a smaller one. With
    --no-drop it is the rate of the constant_rate flows, for each packet size, and nothing may be
    lost.
    """
    if usage := _FORMER.get(str(scenario_file)):
        raise UsageError(f"search {scenario_file}: write bentpipe search {usage}")
    others: dict[str, Any] = {"PATH": path, "--max": bound, "--threshold": threshold or None}
    others["--smallest"] = smallest or None
    if not no_drop:
        others = {"--sizes": sizes, "--flow": flow}
    for name, value in others.items():
        if value is not None:
            raise UsageError(f"{name}: {'not' if no_drop else 'only'} with --no-drop")
    loaded = scenario.Scenario.load(scenario_file, settings or (), thresholds=threshold or ())
    if no_drop:
        find: Any = partial(bentpipe.search_no_drop, loaded, _sizes(sizes), flow=flow)
    else:
        largest = None if bound is None else read_value(bound, "--max")
        find = partial(bentpipe.search, loaded, path, bound=largest, smallest=smallest)
    precision = None if resolution is None else fraction(resolution, "--resolution")
    find = partial(find, seeds=seeds, seed=seed, threads=threads, resolution=precision)
    limit = read_limit(memory_limit)
    with output_folder(out, "search") as output:
        options.claim(output, loaded, replace=replace)
        with limiting(limit), Progress("searching") as progress:
            outcome = find(progress=progress.count)
        if outcome.interrupted and not any(limit.trials for limit in outcome.limits):
            exit_interrupted("no value has been tried with all seeds")
        finish(outcome, output, report.write_search, report.search_tables, as_json=as_json)
    if bound is None and not no_drop and (tried_max := outcome.limits[0].max) < DEFAULT_MAX:
        note(f"{outcome.path}: values up to {tried_max}, the largest that the scenario allows")
    if outcome.interrupted:
        exit_interrupted("the limits are those of the values that had been tried by then")


def _sizes(text: str | None) -> list[int] | None:
    if text is None:
        return None
    sizes = [part.strip().removesuffix("B").rstrip() for part in text.split(",")]
    for size in sizes:
        if not _SIZE.fullmatch(size):
            expected = 'bytes of UDP payload, separated by commas, such as "58,200,1400"'
            raise UsageError(f'--sizes: read "{size}"; expected {expected}')
    return [int(size) for size in sizes]
