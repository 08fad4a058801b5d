"""The verb ``search``: find the largest value of something at which a promise still holds."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from bentpipe.errors import UsageError
from bentpipe.simulation.memory import MEMORY_LIMIT_HELP, limiting, read_limit

if TYPE_CHECKING:
    from bentpipe.simulation.no_drop import NoDropSearch

_EXIT_INTERRUPTED: Final = 130
_PERCENTAGE: Final = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*%\s*", re.ASCII)
_SIZE: Final = re.compile(r"\s*(\d{1,9})\s*B?\s*", re.ASCII)
MemoryLimit = Annotated[
    str | None, typer.Option(metavar="SIZE", help=MEMORY_LIMIT_HELP, show_default=False)
]

search_app = typer.Typer(
    help="Search for a limit by running a scenario again and again.",
    epilog="Example: bentpipe search no-drop scenarios/snip-duplex.yaml --sizes 58,200,1400",
    no_args_is_help=True,
    rich_markup_mode=None,
    callback=lambda: None,
)


@search_app.command(
    "no-drop",
    epilog="Example: bentpipe search no-drop scenarios/snip-duplex.yaml --sizes 58,200,1400",
)
def no_drop(  # noqa: PLR0913, PLR0917 - typer reads the options from the arguments
    scenario: Annotated[Path, typer.Argument(help="A scenario file (YAML).", show_default=False)],
    sizes: Annotated[
        str | None,
        typer.Option(
            metavar="BYTES,BYTES,...",
            help="UDP payloads, as iperf -l; by default the scenario's.",
            show_default=False,
        ),
    ] = None,
    resolution: Annotated[
        str, typer.Option(metavar="PERCENT", help="How closely the rate is found.")
    ] = "0.5%",
    flow: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Search with this flow alone; by default all constant_rate flows, at equal rates.",
            show_default=False,
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="PATH=VALUE",
            help="Lay a value over the scenario; repeatable.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Replace the scenario's seed.", show_default=False)
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="Threads; one a core by default.", show_default=False),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Write report.html and the data into this folder.", show_default=False),
    ] = None,
    memory_limit: MemoryLimit = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")] = False,
) -> None:
    """Find the largest rate of the constant_rate flows at which no packet is lost, by size."""
    from bentpipe.cli.progress import Progress, keeping_results
    from bentpipe.plan.resolver import load
    from bentpipe.results.folder import prepare_output_folder
    from bentpipe.simulation.search import no_drop_rate

    wanted, share = _sizes(sizes), _share(resolution)
    loaded = load(scenario, settings=tuple(settings or ()))
    if out is not None:
        prepare_output_folder(out, kind="search")
    with limiting(read_limit(memory_limit)), Progress("searching") as progress:
        found = no_drop_rate(
            loaded,
            wanted,
            flow=flow,
            resolution=share,
            seed=seed,
            threads=threads,
            progress=progress.count,
        )
    with keeping_results():
        _tell(found, out=out, as_json=as_json)
    if found.interrupted:
        typer.echo("bentpipe: interrupted; rates are those that had passed by then", err=True)
        raise typer.Exit(_EXIT_INTERRUPTED)


def _tell(found: NoDropSearch, *, out: Path | None, as_json: bool) -> None:
    from bentpipe.report.search import search_tables, write_search
    from bentpipe.report.terminal import show

    if out is not None:
        write_search(found, out)
        typer.echo(f"bentpipe: wrote {out} (report.html shows it)", err=True)
    if as_json:
        print(json.dumps(found.to_json(), indent=2))
    else:
        show(*search_tables(found))


def _sizes(text: str | None) -> list[int] | None:
    if text is None:
        return None
    sizes = []
    for part in text.split(","):
        match = _SIZE.fullmatch(part)
        if match is None:
            raise UsageError(
                f'--sizes: read "{part.strip()}"; sizes are whole bytes of UDP payload, separated '
                'by commas, such as "58,200,1400"'
            )
        sizes.append(int(match[1]))
    return sizes


def _share(text: str) -> float:
    match = _PERCENTAGE.fullmatch(text)
    if match is None:
        raise UsageError(f'--resolution: read "{text}"; write a percentage, such as "0.5%"')
    return float(match[1]) / 100
