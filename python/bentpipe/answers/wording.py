"""Phrases that answers share."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bentpipe.answers.answer import Estimate
from bentpipe.text import counted
from bentpipe.units import format_duration, format_rate


@dataclass(frozen=True)
class Link:
    """The link of a question: a preset or a file, and the settings that override it."""

    name: str
    settings: Sequence[str]

    @property
    def shell(self) -> str:
        """The name as an argument of a shell command."""
        return shlex.quote(self.name)

    def __str__(self) -> str:
        return " with ".join([self.name, *([", ".join(self.settings)] if self.settings else [])])


def rate_text(rate: Estimate | float) -> str:
    """Return a rate with its interval: ``12.3 ± 0.2 Mbit/s``."""
    if not isinstance(rate, Estimate):
        return format_rate(rate)
    if not rate.half_width:
        return format_rate(rate.mean)
    return f"{format_rate(rate.mean)} ± {format_rate(rate.half_width)}"


def time_text(time_ns: Estimate) -> str:
    """Return a time with its interval: ``512 ms ± 3.1 ms``."""
    if not time_ns.half_width:
        return format_duration(time_ns.mean)
    return f"{format_duration(time_ns.mean)} ± {format_duration(time_ns.half_width)}"


def percent_of(part: float, whole: float) -> str:
    """Return a part in percent: ``61.3 %``."""
    return f"{100 * part / whole:.1f} %" if whole else "-"


def percent_text(share: Estimate) -> str:
    """Return a share in percent with its interval: ``61.3 % ± 0.4``."""
    text = f"{100 * share.mean:.1f} %"
    return f"{text} ± {100 * share.half_width:.1f}" if share.half_width else text


def runs_text(estimate: Estimate) -> str:
    """Return how many runs an estimate has: ``10 runs``."""
    return counted(estimate.runs, "run")


def settings_text(settings: Iterable[str]) -> str:
    """Return settings as the options of a command, with a space before each."""
    return "".join(f" --set {shlex.quote(each)}" for each in settings)
