"""The verb ``ask``: common questions, each answered with the runs behind it."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from inspect import Parameter, Signature, getdoc, unwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, get_args, get_type_hints

import typer

from bentpipe import answers, live
from bentpipe.cli.lazy import LazyGroup, command, examples_text
from bentpipe.cli.options import AsJson, complete_links, fraction, note, optional, print_json
from bentpipe.cli.progress import Progress, exit_interrupted
from bentpipe.errors import UnitError, UsageError
from bentpipe.plan.presets import preset_plans
from bentpipe.units import format_rate, parse_duration

if TYPE_CHECKING:
    from bentpipe.answers.answer import Answer
    from bentpipe.answers.question import Option

_WIDTH: Final = 80

# The first sentences of their own help: the list of questions imports none of them.
_QUESTIONS: Final = {
    "tcp": "What one TCP connection gets, and what helps most.",
    "buffer": "How large the queue should be.",
    "busy-link": "Why a link at 60 % average is felt as full.",
    "users": "How many users of web pages fit.",
    "small-packets": "How many calls a limit in packets per second carries.",
    "usable": "Whether calls, lectures and images are usable.",
    "pep": "Whether a split-TCP PEP helps, and whom.",
    "coding": "Whether network coding pays, and what it costs.",
    "preset": "What delay, jitter and loss to use for an orbit.",
}

Link = Annotated[
    str,
    typer.Option(
        "--link",
        metavar="|".join([*preset_plans(), "FILE"]),
        help="A preset, or a scenario file, of which the link is taken.",
        autocompletion=complete_links,
    ),
]
Settings = Annotated[
    list[str] | None,
    optional(
        "PATH=VALUE",
        "Override a value of the link or the traffic, such as link.forward.rate=4Mbit/s; "
        "repeatable.",
        "--set",
    ),
]
Seeds = Annotated[
    int | None,
    optional("N", "Runs of each case; by default up to 10, as the time allows.", "--seeds", min=1),
]
Emulate = Annotated[
    bool,
    typer.Option(
        "--emulate", help="Then run the case in real time, with the kernel's TCP, and compare."
    ),
]
Report = Annotated[
    Path | None,
    optional("FILE", "Write the answer as a page (HTML) with charts and tables.", "--report"),
]


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


# How options with these names of values are read, and how their defaults are written.
_FORMS: Final[Mapping[str, tuple[Callable[[str, str], Any], Callable[[Any], str]]]] = {
    "PERCENT": (fraction, "{:.0%}".format),
    "TIME": (_time, lambda time_ns: f"{time_ns // 10**6}ms"),
    "N[,N...]": (_integers, lambda numbers: ",".join(map(str, numbers))),
}


class _Questions(LazyGroup):
    """The questions, each a command that is created when it is needed."""

    def list_commands(self, _context: Any) -> list[str]:
        """Return the names of all questions."""
        return list(_QUESTIONS)

    def get_command(self, _context: Any, name: str) -> Any:
        """Return the command of a question, or None."""
        if name not in _QUESTIONS:
            return None
        if name == "preset":
            return _command(name, _preset, "geo", "leo --json")
        ask = getattr(answers, name.replace("-", "_"))
        return _command(name, _function(ask), *unwrap(ask).examples)

    def format_commands(self, _context: Any, formatter: Any) -> None:
        """Write the questions with their summaries."""
        with formatter.section("Commands"):
            formatter.write_dl([*_QUESTIONS.items()])


def _command(name: str, function: Callable[..., None], *examples: str) -> Any:
    return command(name, function, *(f"bentpipe ask {name} {each}" for each in examples))


ask_app = typer.Typer(
    cls=_Questions,
    help="Answer a common question about a link, with the reason.",
    epilog=examples_text(
        "bentpipe ask tcp --link geo", "bentpipe ask buffer --link geo --report buffer.html"
    ),
    rich_markup_mode=None,
    callback=lambda: None,
)


def _function(ask: Callable[..., Answer]) -> Callable[..., None]:
    """Return the function of a command: typer reads the options from its signature."""
    question: Any = unwrap(ask)
    defaults = {each.name: each.default for each in fields(question)}
    hints = get_type_hints(question, include_extras=True)
    asked = {name: get_args(hint) for name, hint in hints.items() if hasattr(hint, "__metadata__")}
    options = {
        name: _option(name, kind, about, defaults[name]) for name, (kind, about) in asked.items()
    }

    def run(link: str, settings: list[str] | None, **values: Any) -> None:
        arguments = {}
        for name, (_, about) in asked.items():
            value, form = values.pop(name), _FORMS.get(about.metavar)
            arguments[name] = (
                form[0](value, _flag(name, about)) if form and value is not None else value
            )
        _show_answer(partial(ask, link=link, settings=settings or (), **arguments), **values)

    parameters = {
        "link": (Link, defaults["link"]),
        "settings": (Settings, None),
        **options,
        "seeds": (Seeds, None),
        **({"emulate": (Emulate, False)} if question.can_emulate else {}),
        "report": (Report, None),
        "as_json": (AsJson, False),
    }
    run.__signature__ = Signature(  # type: ignore[attr-defined]
        [
            Parameter(each, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            for each, (annotation, default) in parameters.items()
        ]
    )
    run.__annotations__ = {name: annotation for name, (annotation, _) in parameters.items()}
    # The last paragraph is for programs.
    run.__doc__ = (getdoc(question) or "").rpartition("\n\n")[0]
    return run


def _option(name: str, kind: Any, about: Option, default: Any) -> tuple[Any, Any]:
    """Return the type from which typer makes the option of a parameter, and its default."""
    form = _FORMS.get(about.metavar or "")
    option = typer.Option(
        _flag(name, about),
        help=about.help,
        metavar=about.metavar,
        min=about.min,
        max=about.max,
        show_default=default is not None,
    )
    if form is None:
        return Annotated[kind, option], default
    return Annotated[str | None, option], None if default is None else form[1](default)


def _flag(name: str, about: Option) -> str:
    return about.flag or f"--{name.replace('_', '-')}"


def _preset(
    orbit: Annotated[
        Literal["geo", "meo", "leo"], typer.Argument(metavar="geo|meo|leo", help="The orbit.")
    ] = "geo",
    report: Report = None,
    as_json: AsJson = False,
) -> None:
    """What delay, jitter and loss to use for an orbit.

    Each has its source, range and year.
    """
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
        MachineError: the machine lacks something.
        InvalidRunError: packets were late beyond the limits.
    """
    with Progress("emulating"):
        result = live.emulate(answer.case)
    measured_bps = float(result.goodput_bps[0])
    simulated_bps = answer.figures["goodput_bps"].mean
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
