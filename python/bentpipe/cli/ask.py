"""The verb ``ask``: common questions, each answered with the runs behind it."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from bentpipe import answers, emulation
from bentpipe.cli.lazy import LazyGroup, examples_text
from bentpipe.cli.options import AsJson, complete_links, note, print_json
from bentpipe.cli.progress import Progress
from bentpipe.errors import UsageError
from bentpipe.plan.presets import preset_names
from bentpipe.units import format_rate

if TYPE_CHECKING:
    from bentpipe.answers.answer import Answer
    from bentpipe.answers.cases import Experiment

_WIDTH: Final = 80
_EXAMPLES: Final = (
    "bentpipe ask tcp --link geo",
    "bentpipe ask buffer --link leo --report buffer.html",
)

ask_app = typer.Typer(
    cls=LazyGroup,
    help="Answer a common question about a link, with the reason.",
    epilog=examples_text(*_EXAMPLES),
    rich_markup_mode=None,
    callback=lambda: None,
)

_LinkOption = Annotated[
    str,
    typer.Option(
        "--link",
        metavar="|".join([*preset_names(), "FILE"]),
        help="A preset, or a scenario file, of which the link is taken.",
        autocompletion=complete_links,
    ),
]
_Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Override a value of the link or the traffic, such as link.forward.rate=4Mbit/s; "
        "repeatable.",
        show_default=False,
    ),
]
_Seeds = Annotated[
    int | None,
    typer.Option(
        "--seeds",
        metavar="N",
        min=1,
        help="Runs of each case; by default up to 10, as the time allows.",
        show_default=False,
    ),
]
_Report = Annotated[
    Path | None,
    typer.Option(
        "--report",
        metavar="FILE",
        help="Write the answer as a page (HTML) with charts and tables.",
        show_default=False,
    ),
]
_Emulate = Annotated[
    bool,
    typer.Option(
        "--emulate", help="Then run the case in real time, with the kernel's TCP, and compare."
    ),
]


@ask_app.command(
    "tcp",
    short_help="What one TCP connection gets, and what helps most.",
    epilog=examples_text(
        "bentpipe ask tcp --link geo",
        "bentpipe ask tcp --link geo --set traffic.transfer.tcp.receive_buffer=64kB",
    ),
)
def tcp(  # noqa: PLR0913, PLR0917 - a command line's options are its arguments
    link: _LinkOption = "geo",
    settings: _Set = None,
    direction: Annotated[
        Literal["forward", "return"], typer.Option(help="The direction of the data.")
    ] = "forward",
    congestion_control: Annotated[
        Literal["cubic", "bbr", "reno", "newreno", "hybla", "vegas", "westwood"],
        typer.Option(help="The congestion control of the sender."),
    ] = "cubic",
    seeds: _Seeds = None,
    report: _Report = None,
    emulate: _Emulate = False,
    as_json: AsJson = False,
) -> None:
    """Answer what one TCP connection gets on a link, and which one setting helps most."""
    _answer(
        lambda experiment: answers.tcp(
            link,
            settings=settings or (),
            direction=direction,
            congestion_control=congestion_control,
            experiment=experiment,
        ),
        seeds=seeds,
        report=report,
        emulate=emulate,
        as_json=as_json,
    )


def _answer(
    ask: Callable[[Experiment], Answer],
    *,
    seeds: int | None = None,
    report: Path | None = None,
    emulate: bool = False,
    as_json: bool = False,
) -> None:
    """Answer a question, and print or write the answer."""
    if report is not None and not report.parent.is_dir():
        raise UsageError(f"--report: there is no folder {report.parent}")
    with Progress("simulating") as progress:
        answer = ask(answers.Experiment(seeds=seeds, progress=progress.count))
    measured = _in_real_time(answer) if emulate else None
    if report is not None:
        answers.write_page(answer, report, real_time=measured and measured["sentence"])
        note(f"wrote {report}")
    if as_json:
        print_json(answer.to_json() | ({"real_time": measured} if measured else {}))
        return
    print(_wrapped(answer.text()))
    if measured:
        print(_wrapped(f"In real time: {measured['sentence']}"))


def _in_real_time(answer: Answer) -> dict[str, Any]:
    """Run the case of an answer in real time; return its goodput beside the simulated one.

    Raises:
        UsageError: the answer has no case that can run in real time.
        MachineError: the machine lacks something.
        InvalidRunError: packets were late beyond the limits.
    """
    if answer.check is None:
        raise UsageError("--emulate: this answer has no case to run in real time")
    with Progress("emulating"):
        result = emulation.emulate(answer.check.scenario)
    measured_bps = float(result.goodput_bps[answer.check.flow])
    simulated_bps = answer.check.goodput_bps.mean
    difference = 100 * (measured_bps / simulated_bps - 1) if simulated_bps else float("nan")
    return {
        "goodput_bps": measured_bps,
        "simulated_bps": simulated_bps,
        "difference_percent": difference,
        "sentence": f"Linux TCP got {format_rate(measured_bps)} in one run, {difference:+.1f} % "
        f"from the simulated {format_rate(simulated_bps)}.",
    }


def _wrapped(text: str) -> str:
    """Return lines of at most 80 columns; a command stays whole, so that it can be copied."""
    lines = []
    for line in text.split("\n"):
        if line.startswith("Next: "):
            lines.append(line)
            continue
        indent = "    " if line.startswith("  ") else "  "
        lines.append(textwrap.fill(line, _WIDTH, subsequent_indent=indent))
    return "\n".join(lines)
