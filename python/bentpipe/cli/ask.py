"""The verb ``ask``: common questions, each answered with the runs behind it."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from inspect import Parameter, Signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from bentpipe import answers, emulation
from bentpipe.cli.lazy import LazyGroup, command, examples_text
from bentpipe.cli.options import AsJson, complete_links, fraction, note, optional, print_json
from bentpipe.cli.progress import Progress, exit_interrupted
from bentpipe.errors import UnitError, UsageError
from bentpipe.plan.presets import preset_names
from bentpipe.units import format_rate, parse_duration

if TYPE_CHECKING:
    from bentpipe.answers.answer import Answer

_WIDTH: Final = 80


def _time(text: str, option: str) -> int:
    """Return the time of an option in ns.

    Raises:
        UsageError: it is no time.
    """
    try:
        return parse_duration(text)
    except UnitError as error:
        raise UsageError(f"{option}: {error}") from None


def _integers(text: str, option: str) -> list[int]:
    """Return the numbers of an option such as ``0,20,60``.

    Raises:
        UsageError: one of them is no number.
    """
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        if not (part.isascii() and part.isdecimal()):
            raise UsageError(
                f'{option}: read "{part}"; expected integers separated by commas, such as "0,20,60"'
            )
    return [int(part) for part in parts]


@dataclass(frozen=True)
class _Option:
    """An option of a question: its default, its text in --help, its type, and how it is read.

    ``parameter`` is that of the function of the question, by default named as the option.
    """

    default: Any
    help: str
    metavar: str | None = None
    read: Callable[[str, str], Any] | None = None
    parameter: str = ""
    kind: Any = str
    min: int | None = None
    max: int | None = None
    flag: str = ""
    completion: Callable[[str], Iterable[str]] | None = None

    def annotation(self, name: str) -> Any:
        """Return the type from which typer makes the option."""
        kind = self.kind if self.default is not None else self.kind | None
        option = typer.Option(
            self.flag or f"--{name.replace('_', '-')}",
            metavar=self.metavar,
            help=self.help,
            min=self.min,
            max=self.max,
            show_default=self.default is not None,
            autocompletion=self.completion,
        )
        return Annotated[kind, option]


_LINK_OPTIONS: Final = {
    "link": _Option(
        "geo",
        "A preset, or a scenario file, of which the link is taken.",
        "|".join([*preset_names(), "FILE"]),
        completion=complete_links,
    ),
    "settings": _Option(
        None,
        "Override a value of the link or the traffic, such as link.forward.rate=4Mbit/s; "
        "repeatable.",
        "PATH=VALUE",
        kind=list[str],
        flag="--set",
    ),
}
_SEEDS: Final = _Option(
    None, "Runs of each case; by default up to 10, as the time allows.", "N", kind=int, min=1
)
Report = Annotated[
    Path | None,
    optional("FILE", "Write the answer as a page (HTML) with charts and tables.", "--report"),
]
_EMULATE: Final = _Option(
    False,
    "Then run the case in real time, with the kernel's TCP, and compare.",
    kind=bool,
    flag="--emulate",
)
_DIRECTION: Final = _Option(
    "forward", "The direction of the data.", kind=Literal["forward", "return"]
)
_CONGESTION_CONTROL: Final = _Option(
    "cubic",
    "The congestion control of the senders.",
    kind=Literal["cubic", "bbr", "reno", "newreno", "hybla", "vegas", "westwood"],
)


@dataclass(frozen=True)
class _Question:
    """A question: what --help says, and its options beside those of all questions."""

    summary: str
    help: str
    examples: tuple[str, ...]
    options: Mapping[str, _Option]
    link: str = "geo"
    can_emulate: bool = False


_QUESTIONS: Final[Mapping[str, _Question]] = {
    "tcp": _Question(
        "What one TCP connection gets, and what helps most.",
        "Answer what one TCP connection gets on a link, and which one setting helps most.",
        (
            "bentpipe ask tcp --link geo",
            "bentpipe ask tcp --link geo --set traffic.transfer.tcp.receive_buffer=64kB",
        ),
        {"direction": _DIRECTION, "congestion_control": _CONGESTION_CONTROL},
        can_emulate=True,
    ),
    "buffer": _Question(
        "How large the queue should be.",
        """Answer how large the queue of a direction should be, in bytes, milliseconds and BDP.

        It carries TCP transfers and a G.711 call. The answer is the knee: the smallest queue with
        98 % of the best goodput, with the delay and the speech quality that it costs.
        """,
        (
            "bentpipe ask buffer --link geo",
            "bentpipe ask buffer --link geo --flows 16 --report buffer.html",
        ),
        {
            "direction": _DIRECTION,
            "flows": _Option(4, "TCP transfers at the same time.", "N", kind=int, min=1, max=500),
            "congestion_control": _CONGESTION_CONTROL,
        },
    ),
    "busy-link": _Question(
        "Why a link at 60 % average is felt as full.",
        "Answer why a link is felt as full: windows of 100 ms beside the average of 5 minutes.",
        (
            "bentpipe ask busy-link --link geo",
            "bentpipe ask busy-link --average 30% --report busy-link.html",
        ),
        {
            "average": _Option(
                "60%", "The average of 5 minutes, of the link rate.", "PERCENT", fraction
            )
        },
    ),
    "users": _Question(
        "How many users of web pages fit.",
        "Answer how many users fit, in all and per Mbit/s, if 95 % of pages load in time.",
        ("bentpipe ask users --link geo", "bentpipe ask users --link geo --page-time 5s"),
        {
            "page_time": _Option(
                None,
                "What 95 % of pages may take. [default: 10s, or twice as long as for one user]",
                "TIME",
                _time,
                "page_time_ns",
            )
        },
    ),
    "small-packets": _Question(
        "How many calls a limit in packets per second carries.",
        "Answer how many calls a packets-per-second limit carries, with and without aggregation.",
        (
            "bentpipe ask small-packets --link leo --pps 6000",
            "bentpipe ask small-packets --link leo --pps 2000 --codec g729",
        ),
        {
            "pps": _Option(
                6_000,
                "Packets per second of each gateway, both ways.",
                "N",
                parameter="packets_per_second",
                kind=int,
                min=1,
            ),
            "codec": _Option(
                "g711", "The codec of the calls.", kind=Literal["g711", "g729", "opus"]
            ),
        },
        link="leo",
    ),
    "usable": _Question(
        "Whether calls, lectures and images are usable.",
        "Answer whether a call, a lecture and remote images are usable on a link.",
        (
            "bentpipe ask usable --link geo",
            "bentpipe ask usable --link isdn-return --video 300kbit/s --downloads 0",
        ),
        {
            "video": _Option("1Mbit/s", "The rate of the lecture's media.", "RATE"),
            "image": _Option("500kB", "The size of an image.", "SIZE"),
            "downloads": _Option(
                1, "TCP downloads at the same time.", "N", kind=int, min=0, max=500
            ),
        },
    ),
    "pep": _Question(
        "Whether a split-TCP PEP helps, and whom.",
        "Answer what a split-TCP PEP at the hub gains for the total, for large and for short "
        "flows.",
        (
            "bentpipe ask pep --link geo --load 50% --quic-share 40%",
            "bentpipe ask pep --link geo --load 90% --terrestrial 20ms --report pep.html",
        ),
        {
            "load": _Option(
                "50%",
                "How busy users keep the forward direction without a PEP, 0% to 95%.",
                "PERCENT",
                fraction,
            ),
            "quic_share": _Option(
                "40%",
                "The users, of all, whose traffic a PEP cannot split: QUIC, VPNs.",
                "PERCENT",
                fraction,
            ),
            "terrestrial": _Option(
                "80ms",
                "The round trip between the hub and the servers.",
                "TIME",
                _time,
                "terrestrial_ns",
            ),
        },
    ),
    "coding": _Question(
        "Whether network coding pays, and what it costs.",
        """Answer what network coding and titration give, over a plain link and over a PEP.

        A coded tunnel between the gateways sends repair: 10 % at once, 10 % while the queue has
        room (titrated), or titrated and as much as the loss takes (adaptive). The answer has gains
        and losses with 95 % intervals, costs in link bytes and delay, and the reason.
        """,
        (
            "bentpipe ask coding --link geo --queue 120kB",
            "bentpipe ask coding --link geo --load 20 --set link.forward.loss=2%",
        ),
        {
            "load": _Option(
                "0,20,60",
                "How many channels, each one download after another, share the link: one to four "
                "numbers.",
                "N[,N...]",
                _integers,
                "loads",
            ),
            "queue": _Option(
                None,
                "The limit of the forward queue, such as 120kB or 1bdp; by default the link's.",
                "LIMIT",
            ),
        },
    ),
}


class _Questions(LazyGroup):
    """The questions, each a command that is created when it is needed."""

    def list_commands(self, _context: Any) -> list[str]:
        """Return the names of all questions."""
        return [*_QUESTIONS, "preset"]

    def get_command(self, _context: Any, name: str) -> Any:
        """Return the command of a question, or None."""
        if name == "preset":
            made = command(
                name, _preset, "bentpipe ask preset geo", "bentpipe ask preset leo --json"
            )
            made.short_help = "What delay, jitter and loss to use for an orbit."
            return made
        question = _QUESTIONS.get(name)
        if question is None:
            return None
        made = command(name, _function(name, question), *question.examples)
        made.short_help = question.summary
        return made


ask_app = typer.Typer(
    cls=_Questions,
    help="Answer a common question about a link, with the reason.",
    epilog=examples_text(
        "bentpipe ask tcp --link geo", "bentpipe ask buffer --link geo --report buffer.html"
    ),
    rich_markup_mode=None,
    callback=lambda: None,
)


def _function(name: str, question: _Question) -> Callable[..., None]:
    """Return the function of a command: typer reads the options from its signature."""
    options = {
        **_LINK_OPTIONS,
        "link": replace(_LINK_OPTIONS["link"], default=question.link),
        **question.options,
        "seeds": _SEEDS,
        **({"emulate": _EMULATE} if question.can_emulate else {}),
    }

    def run(as_json: bool, **values: Any) -> None:
        arguments = {"link": values["link"], "settings": values["settings"] or ()}
        for option, about in question.options.items():
            value = values[option]
            if about.read is not None and value is not None:
                value = about.read(value, f"--{option.replace('_', '-')}")
            arguments[about.parameter or option] = value
        ask = partial(getattr(answers, name.replace("-", "_")), **arguments)
        _show_answer(ask, values["report"], as_json, values["seeds"], values.get("emulate", False))

    parameters = {name: (about.annotation(name), about.default) for name, about in options.items()}
    parameters |= {"report": (Report, None), "as_json": (AsJson, False)}
    run.__signature__ = Signature(  # type: ignore[attr-defined]
        [
            Parameter(each, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            for each, (annotation, default) in parameters.items()
        ]
    )
    run.__annotations__ = {name: annotation for name, (annotation, _) in parameters.items()}
    run.__doc__ = question.help
    return run


def _preset(
    orbit: Annotated[
        Literal["geo", "meo", "leo"], typer.Argument(metavar="geo|meo|leo", help="The orbit.")
    ] = "geo",
    report: Report = None,
    as_json: AsJson = False,
) -> None:
    """Answer what delay, jitter and loss to use for an orbit, with source, range and year."""
    _show_answer(lambda experiment: answers.preset(orbit), report, as_json)  # noqa: ARG005


def _show_answer(
    ask: Callable[..., Answer],
    report: Path | None,
    as_json: bool,
    seeds: int | None = None,
    emulate: bool = False,
) -> None:
    """Answer a question, and print or write the answer."""
    if report is not None and not report.parent.is_dir():
        raise UsageError(f"--report: there is no folder {report.parent}")
    with Progress("simulating") as progress:
        answer = ask(experiment=answers.Experiment(seeds=seeds, progress=progress.count))
    measured = _in_real_time(answer) if emulate else None
    if report is not None:
        sentence = measured["sentence"] if measured else None
        answers.write_page(answer, report, real_time=sentence)
        note(f"wrote {report}")
    if as_json:
        print_json(answer.to_json() | ({"real_time": measured} if measured else {}))
    else:
        print(_wrapped(answer.text()))
        if measured:
            print(_wrapped(f"In real time: {measured['sentence']}"))
    if answer.interrupted:
        exit_interrupted("the answer is that of the seeds that were complete by then")


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
