"""The limit of a search: the bracket that its trials narrow, and its result."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeAlias

from bentpipe.results.metric_values import ThresholdCheck
from bentpipe.simulation.no_drop import Loss, LossCheck

Check: TypeAlias = ThresholdCheck | LossCheck


@dataclass
class Bracket:
    """The integers from ``min`` to ``max`` between which the limit of a search is.

    ``passes`` is the largest value that passed, ``fails`` the smallest that failed; if the
    ``smallest`` value that passes is searched, they are the smallest and the largest one. The
    search has converged when they differ by 1, or by ``resolution`` times the lower one.
    """

    min: int
    max: int
    resolution: float = 0.0
    passes: int | None = None
    fails: int | None = None
    smallest: bool = False

    @property
    def max_trials(self) -> int:
        """The largest number of trials of a search from ``min``."""
        doublings = math.ceil(math.log2(self.max / self.min))
        return 1 + doublings + math.ceil(math.log2(1 / (self.resolution or 1 / self.max)))

    def next(self) -> int | None:
        """Return the next value to try; None once the search has converged."""
        ends = (self.passes, self.fails)
        below, above = reversed(ends) if self.smallest else ends
        if below is None:
            if above is None:
                return self.min
            return max(above // 2, self.min) if above > self.min else None
        if above is None:
            return min(2 * below, self.max) if below < self.max else None
        if above - below <= max(1, self.resolution * below):
            return None
        return (below + above) // 2

    def record(self, value: int, *, passed: bool) -> None:
        """Narrow the bracket by a trial."""
        if passed:
            self.passes = value
        else:
            self.fails = value


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A value that was tried: of each threshold, or of the losses, the worst check of all seeds."""

    value: int
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Return whether the criterion is met with every seed."""
        return all(check.passed for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """Return the trial as plain data."""
        checks = [check.to_json() for check in self.checks]
        return {"value": self.value, "passed": self.passed, "checks": checks}


@dataclass
class Limit(Bracket):
    """The largest value that passes, or the smallest, in the base unit, and the trials behind it.

    ``passes`` is None if none passed, and ``fails`` if all did. A no-drop search has a limit
    for each ``payload_bytes`` (0 in another search): the rate of each of ``flows`` flows, in
    payload bits per second as ``iperf -b`` counts.
    """

    payload_bytes: int = 0
    flows: int = 1
    trials: list[Trial] = field(default_factory=list)

    def judge(self, value: int, checks: tuple[Check, ...]) -> None:
        """Add a trial, and narrow the bracket by it."""
        self.trials.append(Trial(value=value, checks=checks))
        self.record(value, passed=self.trials[-1].passed)

    @property
    def converged(self) -> bool:
        """Return whether the values that pass and fail differ by no more than the resolution."""
        return self.next() is None

    @property
    def packets_per_second(self) -> float | None:
        """Return the rate of each flow in packets per second."""
        if self.passes is None or not self.payload_bytes:
            return None
        return self.passes / (8 * self.payload_bytes)

    @property
    def aggregate_packets_per_second(self) -> float | None:
        """Return the rate of all searched flows together in packets per second."""
        per_flow = self.packets_per_second
        return None if per_flow is None else self.flows * per_flow

    @property
    def proven(self) -> bool:
        """Return whether the runs at the rate that passes show that it can last.

        It is then above what the path carries by no more than the resolution; if not, buffers or
        variations of the delay may hide more.
        """
        checks = self._checks(self.passes)
        return any(isinstance(check, LossCheck) and check.proven for check in checks)

    @property
    def reason(self) -> Check | None:
        """Return the first check that fails at ``fails``."""
        return next((check for check in self._checks(self.fails) if not check.passed), None)

    @property
    def first_loss(self) -> Loss | None:
        """Return the largest loss at the smallest rate that failed; None if none failed."""
        return self.reason.losses[0] if isinstance(self.reason, LossCheck) else None

    def _checks(self, value: int | None) -> tuple[Check, ...]:
        return next((trial.checks for trial in self.trials if trial.value == value), ())

    def to_json(self) -> dict[str, Any]:
        """Return the limit as plain data."""
        rates = ("packets_per_second", "aggregate_packets_per_second", "proven", "converged")
        names = (*(field.name for field in fields(self)), *rates)
        reason = None if self.reason is None else self.reason.to_json()
        trials = [trial.to_json() for trial in self.trials]
        return {name: getattr(self, name) for name in names} | {"reason": reason, "trials": trials}


@dataclass(frozen=True, kw_only=True)
class Search:
    """The limits that a search found, and its parameters.

    ``path`` is the varied field and ``unit`` the end of the columns of its values: ``bps``, ``ns``,
    ..., or nothing for a number. A no-drop search has no ``thresholds``; it has a limit for each
    packet size, the names of its ``flows``, and in ``sending_s`` the shortest time that one of them
    sends. ``interrupted``: Ctrl-C ended the search early.
    """

    scenario: str
    path: str
    unit: str
    seeds: tuple[int, ...]
    limits: tuple[Limit, ...]
    interrupted: bool
    thresholds: tuple[str, ...] = ()
    flows: tuple[str, ...] = ()
    sending_s: float | None = None

    @property
    def criterion(self) -> Literal["thresholds", "no-drop"]:
        """Return what a trial must meet."""
        return "thresholds" if self.thresholds else "no-drop"

    def to_json(self) -> dict[str, Any]:
        """Return the search as plain data."""
        data = {field.name: getattr(self, field.name) for field in fields(self)}
        lists = {name: list(data[name]) for name in ("seeds", "thresholds", "flows")}
        limits = [limit.to_json() for limit in self.limits]
        return {"criterion": self.criterion, **data, **lists, "limits": limits}
