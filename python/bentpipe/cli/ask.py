"""The verb ``ask``: common questions, each answered with the runs behind it."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from bentpipe import answers, emulation
from bentpipe.cli.lazy import LazyGroup, examples_text
from bentpipe.cli.options import AsJson, complete_links, fraction, note, print_json
from bentpipe.cli.progress import Progress
from bentpipe.errors import UnitError, UsageError
from bentpipe.plan.presets import preset_names
from bentpipe.units import format_rate, parse_duration

if TYPE_CHECKING:
    from bentpipe.answers.answer import Answer
    from bentpipe.answers.cases import Experiment

_WIDTH: Final = 80
_EXAMPLES: Final = (
    "bentpipe ask tcp --link geo",
    "bentpipe ask buffer --link geo --report buffer.html",
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
_Direction = Annotated[
    Literal["forward", "return"], typer.Option(help="The direction of the data.")
]
_CongestionControl = Annotated[
    Literal["cubic", "bbr", "reno", "newreno", "hybla", "vegas", "westwood"],
    typer.Option(help="The congestion control of the senders."),
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
    direction: _Direction = "forward",
    congestion_control: _CongestionControl = "cubic",
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


@ask_app.command(
    "buffer",
    short_help="How large the queue should be.",
    epilog=examples_text(
        "bentpipe ask buffer --link geo",
        "bentpipe ask buffer --link geo --flows 16 --report buffer.html",
    ),
)
def buffer(  # noqa: PLR0913, PLR0917 - a command line's options are its arguments
    link: _LinkOption = "geo",
    settings: _Set = None,
    direction: _Direction = "forward",
    flows: Annotated[
        int, typer.Option(metavar="N", min=1, max=500, help="TCP transfers at the same time.")
    ] = 4,
    congestion_control: _CongestionControl = "cubic",
    seeds: _Seeds = None,
    report: _Report = None,
    as_json: AsJson = False,
) -> None:
    """Answer how large the queue of a direction should be, in bytes, milliseconds and BDP.

    It carries TCP transfers and a G.711 call. The answer is the knee: the smallest queue with 98 %
    of the best goodput, with the delay and the speech quality that it costs.
    """
    _answer(
        lambda experiment: answers.buffer(
            link,
            settings=settings or (),
            direction=direction,
            flows=flows,
            congestion_control=congestion_control,
            experiment=experiment,
        ),
        seeds=seeds,
        report=report,
        as_json=as_json,
    )


@ask_app.command(
    "complaint",
    short_help="Why a link at 60 % average is felt as full.",
    epilog=examples_text(
        "bentpipe ask complaint --link geo",
        "bentpipe ask complaint --average 30% --report complaint.html",
    ),
)
def complaint(
    link: _LinkOption = "geo",
    settings: _Set = None,
    average: Annotated[
        str, typer.Option(metavar="PERCENT", help="The average of 5 minutes, of the link rate.")
    ] = "60%",
    seeds: _Seeds = None,
    report: _Report = None,
    as_json: AsJson = False,
) -> None:
    """Answer why a link is felt as full: windows of 100 ms beside the average of 5 minutes."""
    share = fraction(average, "--average")
    _answer(
        lambda experiment: answers.complaint(
            link, settings=settings or (), average=share, experiment=experiment
        ),
        seeds=seeds,
        report=report,
        as_json=as_json,
    )


@ask_app.command(
    "users",
    short_help="How many users of web pages fit.",
    epilog=examples_text(
        "bentpipe ask users --link geo", "bentpipe ask users --link geo --page-time 5s"
    ),
)
def users(
    link: _LinkOption = "geo",
    settings: _Set = None,
    page_time: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="What 95 % of pages may take. [default: 10s, or twice as long as for one user]",
        ),
    ] = None,
    seeds: _Seeds = None,
    report: _Report = None,
    as_json: AsJson = False,
) -> None:
    """Answer how many users fit, in all and per Mbit/s, if 95 % of pages load in time."""
    page_time_ns = None if page_time is None else _duration(page_time, "--page-time")
    _answer(
        lambda experiment: answers.users(
            link, settings=settings or (), page_time_ns=page_time_ns, experiment=experiment
        ),
        seeds=seeds or 3,
        report=report,
        as_json=as_json,
    )


@ask_app.command(
    "small-packets",
    short_help="How many calls a limit in packets per second carries.",
    epilog=examples_text(
        "bentpipe ask small-packets --link leo --pps 6000",
        "bentpipe ask small-packets --link leo --pps 2000 --codec g729",
    ),
)
def small_packets(
    link: _LinkOption = "leo",
    settings: _Set = None,
    pps: Annotated[
        int,
        typer.Option(
            "--pps", metavar="N", min=1, help="Packets per second of each gateway, both ways."
        ),
    ] = 6_000,
    codec: Annotated[
        Literal["g711", "g729", "opus"], typer.Option(help="The codec of the calls.")
    ] = "g711",
    seeds: _Seeds = None,
    report: _Report = None,
    as_json: AsJson = False,
) -> None:
    """Answer how many calls a packets-per-second limit carries, with and without aggregation."""
    _answer(
        lambda experiment: answers.small_packets(
            link,
            settings=settings or (),
            packets_per_second=pps,
            codec=codec,
            experiment=experiment,
        ),
        seeds=seeds or 2,
        report=report,
        as_json=as_json,
    )


@ask_app.command(
    "usable",
    short_help="Whether calls, lectures and images are usable.",
    epilog=examples_text(
        "bentpipe ask usable --link geo",
        "bentpipe ask usable --link isdn-return --video 300kbit/s --downloads 0",
    ),
)
def usable(  # noqa: PLR0913, PLR0917 - a command line's options are its arguments
    link: _LinkOption = "geo",
    settings: _Set = None,
    video: Annotated[
        str, typer.Option(metavar="RATE", help="The rate of the lecture's media.")
    ] = "1Mbit/s",
    image: Annotated[str, typer.Option(metavar="SIZE", help="The size of an image.")] = "500kB",
    downloads: Annotated[
        int, typer.Option(metavar="N", min=0, max=500, help="TCP downloads at the same time.")
    ] = 1,
    seeds: _Seeds = None,
    report: _Report = None,
    as_json: AsJson = False,
) -> None:
    """Answer whether a call, a lecture and remote images are usable on a link."""
    _answer(
        lambda experiment: answers.usable(
            link,
            settings=settings or (),
            video=video,
            image=image,
            downloads=downloads,
            experiment=experiment,
        ),
        seeds=seeds,
        report=report,
        as_json=as_json,
    )


@ask_app.command(
    "preset",
    short_help="What delay, jitter and loss to use for an orbit.",
    epilog=examples_text("bentpipe ask preset geo", "bentpipe ask preset leo --json"),
)
def preset(
    orbit: Annotated[
        Literal["geo", "meo", "leo"], typer.Argument(metavar="geo|meo|leo", help="The orbit.")
    ] = "geo",
    report: _Report = None,
    as_json: AsJson = False,
) -> None:
    """Answer what delay, jitter and loss to use for an orbit, with source, range and year."""
    _answer(lambda _: answers.preset(orbit), report=report, as_json=as_json)


def _duration(text: str, option: str) -> int:
    try:
        return parse_duration(text)
    except UnitError as error:
        raise UsageError(f"{option}: {error}") from None


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
        sentence = measured["sentence"] if measured else None
        answers.write_page(answer, report, real_time=sentence)
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
