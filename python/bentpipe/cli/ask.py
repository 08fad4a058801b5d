"""The verb ``ask``: common questions, each answered with the runs behind it."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable
from functools import partial
from inspect import Parameter, Signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from bentpipe import answers
from bentpipe.cli import options
from bentpipe.cli.lazy import LazyGroup, command
from bentpipe.cli.options import note, note_written, option, output_folder, print_json
from bentpipe.cli.progress import Progress, exit_interrupted, telling_interrupts
from bentpipe.cli.streams import fit_command
from bentpipe.errors import BentpipeError, UsageError

if TYPE_CHECKING:
    from bentpipe.answers.answer import Answer
    from bentpipe.answers.catalog import Option
    from bentpipe.results.output import OutputFolder

_WIDTH: Final = 80

Seeds = Annotated[
    int | None,
    option("N", "Runs of each case; by default up to 10 or 20, as the time allows.", min=1),
]
AskEngine = Annotated[
    options.Engine,
    typer.Option(help="emulate: then run what was asked and what helps in real time, and compare."),
]
Out = Annotated[
    Path | None,
    option(
        "FOLDER",
        "Write the page, its tables and the answer as JSON to this folder, which serve lists.",
    ),
]
Report = Annotated[
    Path | None, option("FILE", "Write the answer as a page (HTML) with charts and tables.")
]


class _Questions(LazyGroup):
    """The questions, each a command that is created when it is needed."""

    def list_commands(self, _context: Any) -> list[str]:
        return list(answers.QUESTIONS)

    def get_command(self, _context: Any, name: str) -> Any:
        return _command(name)

    def summary(self, _context: Any, name: str) -> str:
        """Return the summary of a question without importing it."""
        return answers.help_of(name).split("\n")[0]


ask_app = typer.Typer(cls=_Questions, rich_markup_mode=None)


def _command(name: str) -> Any:
    """Return the command of a question: typer reads the options from its signature."""
    question: Any = answers.class_of(name)
    asked = {option.name: option for option in answers.parameters_of(question)}

    def run(
        out: Path | None,
        report: Path | None,
        as_json: bool,
        engine: options.Engine = "simulate",
        **values: Any,
    ) -> None:
        given = {
            keyword: asked[keyword].read(value) if keyword in asked else value
            for keyword, value in values.items()
            if value is not None
        }
        ask = partial(answers.ask, name, **given)
        with output_folder(out, "question") as output:
            _show_answer(ask, output, report, as_json=as_json, emulate=engine == "emulate")

    parameters = {
        **{name: _option(option) for name, option in asked.items()},
        **({"seeds": (Seeds, None)} if "link" in asked else {}),
        **({"engine": (AskEngine, "simulate")} if question.can_emulate else {}),
        "out": (Out, None),
        "report": (Report, None),
        "as_json": (options.AsJson, False),
    }
    run.__signature__ = Signature(  # type: ignore[attr-defined]
        [
            Parameter(keyword, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            for keyword, (annotation, default) in parameters.items()
        ]
    )
    run.__doc__ = answers.help_of(name)
    return command(name, run, *(f"bentpipe ask {name} {example}" for example in question.examples))


def _option(asked: Option) -> tuple[Any, Any]:
    """Return the type from which typer makes the option of a parameter, and its default."""
    kind, default, form = asked.kind, asked.default, asked.form
    if asked.is_argument:
        return Annotated[kind, typer.Argument(metavar=asked.metavar, help=asked.help)], default
    option = typer.Option(
        asked.flag,
        help=asked.help,
        metavar=asked.metavar,
        min=None if form else asked.min,
        max=None if form else asked.max,
        autocompletion=options.complete_links if asked.name == "link" else None,
    )
    if form is not None:
        return Annotated[str | None, option], None if default is None else form.write(default)
    if default == ():
        return Annotated[list[str] | None, option], None
    return Annotated[kind, option], default


def _show_answer(
    ask: Callable[..., Answer],
    output: OutputFolder | None,
    report: Path | None,
    *,
    as_json: bool,
    emulate: bool,
) -> None:
    """Answer a question, and print or write the answer."""
    if report is not None and not report.parent.is_dir():
        raise UsageError(f"--report: there is no folder {report.parent}")
    with telling_interrupts("there is no answer"), Progress("simulating") as progress:
        answer = ask(progress=progress.count)
    measured: dict[str, Any] = {}
    failure: BentpipeError | KeyboardInterrupt | None = None
    if emulate and not answer.interrupted:
        try:
            with Progress("emulating") as progress:
                measured = answers.try_in_real_time(answer, progress.count)
        except (BentpipeError, KeyboardInterrupt) as error:
            # What was simulated is complete.
            failure = error
    if report is not None:
        answers.write_page(answer, report, real_time=measured.get("sentence"))
        note(f"wrote {report}")
    if output is not None:
        answers.write_answer(answer, output, real_time=measured)
        note_written(output)
    if as_json:
        print_json(answer.to_json() | ({"real_time": measured} if measured else {}))
    else:
        print(_wrapped(answer.text()))
        if measured:
            print(_wrapped(f"In real time: {measured['sentence']}"))
    if failure is not None:
        raise failure
    if answer.interrupted:
        exit_interrupted(answer.interruption)


def _wrapped(text: str) -> str:
    """Return lines of at most 80 columns; a command is broken on a terminal alone."""
    lines = []
    for line in text.split("\n"):
        if line.startswith("Next: "):
            lines.append(fit_command(line, sys.stdout))
            continue
        indent = "    " if line.startswith("  ") else "  "
        lines.append(textwrap.fill(line, _WIDTH, subsequent_indent=indent))
    return "\n".join(lines)
