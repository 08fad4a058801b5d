"""What every question of ``ask`` does: read times, run, print the answer, write its page."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from bentpipe import answers, emulation
from bentpipe.cli.exits import EXIT_INTERRUPTED
from bentpipe.cli.options import note, print_json
from bentpipe.cli.progress import Progress
from bentpipe.errors import UnitError, UsageError
from bentpipe.units import format_rate, parse_duration

if TYPE_CHECKING:
    from bentpipe.answers.answer import Answer
    from bentpipe.answers.cases import Experiment

_WIDTH: Final = 80


def duration(text: str, option: str) -> int:
    """Return the time of an option in ns.

    Raises:
        UsageError: it is no time.
    """
    try:
        return parse_duration(text)
    except UnitError as error:
        raise UsageError(f"{option}: {error}") from None


def integers(text: str, option: str) -> list[int]:
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


def show_answer(
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
    else:
        print(_wrapped(answer.text()))
        if measured:
            print(_wrapped(f"In real time: {measured['sentence']}"))
    if answer.interrupted:
        note("interrupted; the answer is that of the seeds that were complete by then")
        raise typer.Exit(EXIT_INTERRUPTED)


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
