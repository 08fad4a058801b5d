"""The list of questions, how one is asked from Python, and what parameters of questions may be.

The summaries are read from the modules without importing them: `bentpipe ask --help` needs neither
polars nor pydantic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from decimal import Decimal
from importlib import import_module
from inspect import cleandoc
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Literal,
    NamedTuple,
    get_args,
    get_origin,
    get_type_hints,
)

from bentpipe.errors import UnitError, UsageError
from bentpipe.text import choice
from bentpipe.units import (
    NS_PER_MS,
    NS_PER_S,
    NS_PER_US,
    fraction,
    parse_duration,
    parse_size,
)

if TYPE_CHECKING:
    from bentpipe.answers.answer import Answer
    from bentpipe.answers.question import Question

# In the order of the help. A question has a module with a class of this name.
QUESTIONS: Final = (
    "tcp",
    "buffer",
    "busy-link",
    "users",
    "small-packets",
    "usable",
    "pep",
    "coding",
    "update",
    "preset",
)


def help_of(question: str) -> str:
    """Return the docstring of the module of a question; its first line is the summary."""
    file = Path(__file__).with_name(f"{question.replace('-', '_')}.py")
    return cleandoc(file.read_text(encoding="utf-8").split('"""', 2)[1])


def class_of(question: str) -> type[Question]:
    """Return the class of a question.

    Raises:
        UsageError: there is no such question.
    """
    if question not in QUESTIONS:
        raise UsageError(f"question: {choice(question, QUESTIONS)}")
    words = question.split("-")
    module = import_module(f"bentpipe.answers.{'_'.join(words)}")
    question_class: type[Question] = getattr(module, "".join(word.title() for word in words))
    return question_class


def ask(
    question: str,
    link: str | None = None,
    *,
    seeds: int | None = None,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    **parameters: Any,
) -> Answer:
    """Answer a common question about a link with the runs behind it, as ``bentpipe ask`` does.

    Parameters
    ----------
    question
        Its name on the command line, such as ``busy-link``.
    link
        A preset or a scenario file, of which the link and the gateways are taken; by default the
        question's own.
    seeds
        Of each case; by default up to 10 or 20, as the time allows.
    threads
        One for each core by default.
    progress
        Called with the runs that are done, and their number.
    parameters
        The options of the question's command. ``settings`` override values of the link, and of the
        entries of the question's traffic.

    Returns
    -------
    Answer
        For a person (``text``) and for programs (``to_json``).

    Raises
    ------
    ScenarioError
        The link or a setting is wrong.
    UsageError
        There is no such question, link or parameter, or it has a wrong value.
    RunsInterrupted
        Ctrl-C.

    Examples
    --------
    >>> answer = bentpipe.ask("preset", orbit="leo")
    >>> answer.figures["link"]["forward"]["rate"]
    '100 Mbit/s'
    """
    given = {**({} if link is None else {"link": link}), **parameters}
    asked = class_of(question).of(given, seeds=seeds, threads=threads, progress=progress)
    return asked.ask()


class Option(NamedTuple):
    """A parameter that the command asks for; ``flag`` is its option if not that of its name.

    ``min`` and ``max`` are bounds, of each number if there are several. `parameters_of` adds the
    name, the type and the default.
    """

    help: str
    metavar: str | None = None
    flag: str = ""
    min: float | None = None
    max: float | None = None
    is_argument: bool = False
    name: str = ""
    kind: Any = None
    default: Any = None

    @property
    def form(self) -> Form | None:
        """How values are read from text and written, unless the command does it by their type."""
        return _FORMS.get(self.metavar or "")

    def read(self, value: Any) -> Any:
        """Return the value of the command's option.

        Raises:
            UsageError: a text cannot be read.
        """
        return self.form.read(value, self.flag) if self.form else value

    def check(self, value: Any) -> None:
        """Check that a value is one of those allowed.

        Raises:
            UsageError: it is not.
        """
        label, choices = self.flag.removeprefix("--"), get_args(self.kind)
        if get_origin(self.kind) is Literal and value not in choices:
            raise UsageError(f"{label}: {choice(value, choices)}")
        low, high, write = self.min, self.max, self.form.write if self.form else str
        numbers = value if isinstance(value, list | tuple) else [value]
        for number in () if value is None else numbers:
            # A comparison with NaN is false.
            if not (low is None or number >= low) or not (high is None or number <= high):
                allowed = (
                    f"{write(low)} or more" if high is None else f"{write(low)} to {write(high)}"
                )
                raise UsageError(f"{label}: read {write(number)}; expected {allowed}")


def parameters_of(question: type[Any]) -> list[Option]:
    """Return the parameters of the class of a question that are options of its command."""
    defaults = {field.name: field.default for field in fields(question)}
    options = []
    for name, hint in get_type_hints(question, include_extras=True).items():
        if hasattr(hint, "__metadata__"):
            kind, option = get_args(hint)
            flag = option.flag or f"--{name.replace('_', '-')}"
            options.append(option._replace(name=name, kind=kind, flag=flag, default=defaults[name]))
    return options


def options_of(question: Question) -> Iterator[tuple[str, str]]:
    """Yield flag and value of the options of a question that do not have their defaults.

    Those of all questions about links are left out: the link, and settings. An argument has no
    flag.
    """
    for option in parameters_of(type(question)):
        value = getattr(question, option.name)
        value = tuple(value) if isinstance(value, list) else value
        if option.name not in {"link", "settings"} and value != option.default:
            text = option.form.write(value) if option.form else str(value)
            yield "" if option.is_argument else option.flag, text


class Form(NamedTuple):
    """How the value of an option is read from text, and written for a person."""

    read: Callable[[str, str], Any]
    write: Callable[[Any], str]


def _time(text: str, option: str) -> int:
    try:
        return parse_duration(text)
    except UnitError as error:
        raise UsageError(f"{option}: {error}") from None


def _time_text(time_ns: int) -> str:
    units = ((NS_PER_S, "s"), (NS_PER_MS, "ms"), (NS_PER_US, "us"), (1, "ns"))
    factor, unit = next(each for each in units if time_ns % each[0] == 0)
    return f"{time_ns // factor}{unit}"


def _size_text(size_bytes: int) -> str:
    units = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"), (1, "B"))
    factor, unit = next(each for each in units if size_bytes % each[0] == 0)
    return f"{size_bytes // factor}{unit}"


def _percent_text(share: float) -> str:
    """Return the shortest text that is read as the same share."""
    texts = (f"{Decimal(f'{100 * share:.{digits}g}'):f}" for digits in range(6, 18))
    return f"{next((text for text in texts if float(text) / 100 == share), f'{100 * share:f}')}%"


def _size(text: str, option: str) -> int:
    try:
        return parse_size(text)
    except UnitError as error:
        raise UsageError(f"{option}: {error}") from None


def _integers(text: str, option: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        if not (part.isascii() and part.isdecimal()):
            raise UsageError(
                f'{option}: read "{part}"; expected integers separated by commas, such as "0,20,60"'
            )
    return [int(part) for part in parts]


def _integers_text(numbers: Any) -> str:
    return ",".join(map(str, numbers)) if isinstance(numbers, list | tuple) else f"{numbers:,}"


# By the name of the value in the help.
_FORMS: Final[Mapping[str, Form]] = {
    "PERCENT": Form(fraction, _percent_text),
    "DATA": Form(_size, _size_text),
    "TIME": Form(_time, _time_text),
    "N[,N...]": Form(_integers, _integers_text),
}
