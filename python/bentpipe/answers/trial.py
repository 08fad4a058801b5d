"""What an answer says, tried in real time: its case as asked and the one that it recommends.

Both run with the kernel's TCP, or with real gateways.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from bentpipe import live
from bentpipe.answers.answer import Answer
from bentpipe.answers.runs import Estimate, Measurements
from bentpipe.errors import MachineError, UsageError
from bentpipe.plan.plan import Plan
from bentpipe.quantities import quantity
from bentpipe.results.result import Result


class Case(NamedTuple):
    """A scenario, and what the simulator says of the figure."""

    plan: Plan
    simulated: Estimate


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What can be tried: the case as asked, and those that are recommended, the best first.

    Of these the first one is tried that the machine has all for. ``measure`` takes the ``figure``
    from a result, also one in real time, which has no figures of the engines' insides.
    ``simulate`` returns the figures of plans, by the names of their cases. With one case nothing is
    recommended, and ``percent`` is None.
    """

    figure: str
    measure: Callable[[Result], float]
    names: Sequence[str]
    plan: Callable[[str], Plan]
    simulate: Callable[[Mapping[str, Plan]], Mapping[str, Measurements]]

    @classmethod
    def of(
        cls,
        figure: str,
        measure: Callable[[Result], float],
        plans: Mapping[str, Plan],
        measurements: Mapping[str, Measurements],
    ) -> Trial:
        """Return the trial of one or two plans, with their figures."""
        plan = plans.__getitem__
        return cls(
            figure=figure,
            measure=measure,
            names=[*plans],
            plan=plan,
            simulate=lambda _: measurements,
        )

    @cached_property
    def skipped(self) -> dict[str, str]:
        """The recommended cases that the machine cannot run before one that is tried, and why."""
        skipped = {}
        for name in self.names[1:-1]:
            try:
                live.check_plan(self.plan(name))
            except MachineError as error:
                skipped[name] = str(error)
            else:
                break
        return skipped

    @cached_property
    def plans(self) -> dict[str, Plan]:
        """The scenarios of the cases that are tried, by name."""
        names = [name for name in self.names if name not in self.skipped]
        return {name: self.plan(name) for name in names[:2]}

    @cached_property
    def found(self) -> Mapping[str, Measurements]:
        """The figures of their simulation."""
        return self.simulate(self.plans)

    @property
    def cases(self) -> dict[str, Case]:
        """The cases that are tried, by name: the one as asked first."""
        return {
            name: Case(plan, self.found[name].of(self.figure)) for name, plan in self.plans.items()
        }

    @property
    def percent(self) -> Estimate | None:
        """The simulated change of the figure; None if nothing is recommended."""
        before, *after = (self.found[name] for name in self.plans)
        return before.change(self.figure, after[0]) if after else None


class Tried(NamedTuple):
    """The figure of a case, simulated and in real time."""

    name: str
    simulated: Estimate
    measured: float

    @property
    def difference_percent(self) -> float | None:
        """The measured figure over the simulated one, less one; None if the latter is 0."""
        mean = self.simulated.mean
        return 100 * (self.measured / mean - 1) if mean else None

    def text(self, figure: str) -> str:
        """Return both for a person."""
        write = quantity(figure).text
        text = f"{self.name} {write(self.measured)} (simulated {write(self.simulated.mean)}"
        difference = self.difference_percent
        return text + ("" if difference is None else f"; {difference:+.1f} %") + ")"


def try_in_real_time(
    answer: Answer, progress: Callable[[int, int], None] = lambda _done, _total: None
) -> dict[str, Any]:
    """Run the cases of an answer once each in real time; return what they gave as plain data.

    ``sentence`` says it to a person.

    Raises:
        UsageError: the answer has nothing to try.
        MachineError: the machine lacks something.
        InvalidRunError: packets were late beyond the limits.
    """
    trial: Trial | None = answer.trial
    if trial is None:
        raise UsageError("this answer has nothing that could be tried in real time")
    tried = []
    for done, (name, case) in enumerate(trial.cases.items()):
        progress(done, len(trial.cases))
        measured = trial.measure(live.emulate(case.plan.scenario))
        tried.append(Tried(name, case.simulated, measured))
    progress(len(tried), len(tried))
    parts = [run.text(trial.figure) for run in tried]
    sentence = f"in one run each, {trial.figure.rpartition('_')[0].replace('_', ' ')}: "
    sentence += "; ".join(parts)
    data: dict[str, Any] = {"figure": trial.figure}
    if (simulated := trial.percent) is None:
        sentence += ". Nothing is recommended, so there is no change to try"
    else:
        change = 100 * (tried[1].measured / tried[0].measured - 1) if tried[0].measured else None
        data |= {
            "change_percent": change,
            "simulated_change_percent": simulated.mean,
        }
        if change is not None:
            sentence += f". A change of {change:+.1f} %, simulated {simulated.mean:+.1f} %"
    cases = {
        run.name: {
            "measured": run.measured,
            "simulated": run.simulated.mean,
            "difference_percent": run.difference_percent,
        }
        for run in tried
    }
    if trial.skipped:
        data["not_tried"] = trial.skipped
        sentence += "".join(
            f". Not tried: {name}, as {trial.skipped[name]}" for name in trial.skipped
        )
    return {**data, "cases": cases, "sentence": f"{sentence}."}
