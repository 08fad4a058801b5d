"""The exceptions that bentpipe raises on purpose, each with the exit code of the command line.

Anything else that escapes is a bug and ends the command line with exit code 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar


class BentpipeError(Exception):
    """Base class of every deliberate error; ``exit_code`` is what the command line returns."""

    exit_code: ClassVar[int] = 1


class InternalError(BentpipeError):
    """An invariant of bentpipe does not hold, such as the conservation of packets."""


class UsageError(BentpipeError):
    """Something that was asked for cannot be done as written; nothing was run."""

    exit_code: ClassVar[int] = 2


class UnitError(UsageError, ValueError):
    """A quantity could not be read; the message names what was read and what is allowed."""


class RunSizeError(UsageError):
    """The hosts and links of a run alone take more than its memory limit."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing wrong with a scenario.

    ``field`` is the path from the top of the scenario ("link.forward.rate"), empty for the
    document as a whole. ``line`` counts from 1 and is None where there is no text to point at.
    """

    source: str
    field: str
    message: str
    line: int | None = None

    def __str__(self) -> str:
        place = self.source if self.line is None else f"{self.source}:{self.line}"
        return ": ".join(part for part in (place, self.field, self.message) if part)


@dataclass(frozen=True, kw_only=True)
class ScenarioWarning:
    """A scenario is valid, but may not mean what was intended.

    ``field`` is the path from the top of the scenario ("traffic.0.duration").
    """

    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


class ScenarioError(UsageError, ValueError):
    """A scenario is wrong; each of ``problems`` names the place, what was read and what is allowed.

    The text of the error is one line a problem.
    """

    def __init__(self, *problems: Problem) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems


class MachineError(BentpipeError):
    """The machine lacks something; the message names it and the fix."""

    exit_code: ClassVar[int] = 3


class ProgramStartError(UsageError):
    """A program could not be started in a lab; ``found`` tells whether it exists."""

    def __init__(self, message: str, *, found: bool) -> None:
        super().__init__(message)
        self.found = found


class InvalidRunError(BentpipeError):
    """A run finished and its figures must not be used.

    ``result`` is the `bentpipe.Result` of the run, or None where there is none.
    """

    exit_code: ClassVar[int] = 4

    def __init__(self, message: str, *, result: Any = None) -> None:
        super().__init__(message)
        self.result = result


class _KeptResults(BaseException):
    """Runs ended early; what is complete is kept.

    ``results`` are those of many runs (`bentpipe.Result`), ``result`` is that of a single run, and
    ``sweep`` the `bentpipe.Sweep` of `bentpipe.sweep`; None where there is none.
    ``outcomes`` are the undecoded results, for functions of bentpipe.
    """

    def __init__(
        self,
        message: str,
        *,
        result: Any = None,
        results: Sequence[Any] = (),
        sweep: Any = None,
        outcomes: Sequence[Any] = (),
    ) -> None:
        super().__init__(message)
        self.result = result
        self.results = tuple(results)
        self.sweep = sweep
        self.outcomes = tuple(outcomes)


class MemoryLimitError(_KeptResults, InvalidRunError):
    """A run reached its memory limit and ended early; what it recorded is among the results."""


class RunsInterrupted(_KeptResults, KeyboardInterrupt):
    """Ctrl-C ended many runs."""


class ThresholdError(BentpipeError):
    """A run is valid and misses a threshold that was asked for."""

    exit_code: ClassVar[int] = 99


def error_with_code(exit_code: int, message: str) -> BentpipeError:
    """Return the error that another process of bentpipe reported by its exit code and message."""
    kinds = (UsageError, MachineError, InvalidRunError, ThresholdError)
    return next((kind for kind in kinds if kind.exit_code == exit_code), BentpipeError)(message)
