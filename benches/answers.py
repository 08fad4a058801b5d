"""Try the recommendations of `bentpipe ask` in real time, over links that are drawn at random.

Usage: `python benches/answers.py [--links 10] [--seed 1] [--seeds 2] [--out FILE.csv]`. Each link
has a rate of 0.5 to 200 Mbit/s, a one-way delay of 5 to 300 ms, a bit error rate of 0 or 1e-9 to
1e-6, and a queue of 0.1 to 2 bandwidth-delay products, all by the logarithm. Each question whose
answers can be tried is asked about it, and its case as asked and the recommended one run with the
kernel's TCP in labs. It prints a table in Markdown, each row when it is known, and a summary, and
exits with 1 if a change has the wrong sign, or if the figure changes by a factor that is not within
25 % of the simulated one. Where an answer recommends nothing, there is nothing to try.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

import bentpipe
from bentpipe import answers
from bentpipe.answers.trial import Trial
from bentpipe.errors import BentpipeError
from bentpipe.live import EmulationJob, check_plan, emulate_as_completed

QUESTIONS: Final = [name for name in answers.QUESTIONS if answers.class_of(name).can_emulate]
# What the cases of a question need in real time, by the rate in Mbit/s: the kernel has no QUIC, and
# channels are as many for the rate as by default at 16 Mbit/s, but not more than a machine runs.
PARAMETERS: Final[Mapping[str, Callable[[float], dict[str, Any]]]] = {
    "pep": lambda _: {"quic_share": 0.0},
    "coding": lambda rate_mbps: {"loads": [min(max(round(20 / 16 * rate_mbps), 1), 100)]},
}
RATES_MBPS: Final = (0.5, 200.0)
DELAYS_MS: Final = (5.0, 300.0)
BIT_ERROR_RATES: Final = (1e-9, 1e-6)
QUEUES_BDP: Final = (0.1, 2.0)
WITHIN: Final = 0.25
NS_PER_S: Final = 1e9
# A run of a faster link counts as several, so that all are in time.
MBPS_A_CORE: Final = 50.0
COLUMNS: Final = ("link", "question", "figure", "recommended", "simulated", "measured", "holds")


def links(count: int, seed: int) -> Iterator[tuple[float, list[str]]]:
    """Yield the rate in Mbit/s and the settings of each link."""
    rng = np.random.default_rng(seed)

    def drawn(low: float, high: float) -> float:
        return float(np.exp(rng.uniform(np.log(low), np.log(high))))

    for _ in range(count):
        rate_mbps, delay_ms = drawn(*RATES_MBPS), drawn(*DELAYS_MS)
        errors = drawn(*BIT_ERROR_RATES) if rng.random() < 0.5 else 0.0  # noqa: PLR2004
        yield (
            rate_mbps,
            [
                f"link.forward.rate={round(rate_mbps * 1000)}kbit/s",
                f"link.return.rate={round(rate_mbps * 250)}kbit/s",
                f"link.*.delay={round(delay_ms * 1000)}us",
                f"link.*.bit_error_rate={errors:.2g}",
                f"link.*.queue.limit={drawn(*QUEUES_BDP):.2f}bdp",
            ],
        )


@dataclass
class Asked:
    """A question about a link, and what came of it: cells of the table."""

    rate_mbps: float
    cells: dict[str, str]
    trial: Trial | None = None
    measured: dict[str, list[float]] = field(default_factory=dict)

    @classmethod
    def of(cls, question: str, rate_mbps: float, settings: list[str]) -> Asked:
        """Ask a question about a link."""
        cells = {"link": ", ".join(settings), "question": question, "holds": "-"}
        more = PARAMETERS[question](rate_mbps) if question in PARAMETERS else {}
        try:
            answer = bentpipe.ask(question, "geo", settings=settings, **more)
            if answer.trial is None or answer.trial.percent is None:
                return cls(rate_mbps, cells | {"recommended": "nothing"})
            for case in answer.trial.cases.values():
                check_plan(case.plan)
        except BentpipeError as error:
            return cls(rate_mbps, cells | {"recommended": f"not tried: {error}", "holds": "NO"})
        return cls(rate_mbps, cells, answer.trial)

    def jobs(self, seeds: int) -> Iterator[tuple[str, EmulationJob]]:
        """Yield the runs in real time of each case, with its name."""
        for name, case in self.trial.cases.items() if self.trial else ():
            stop_s = case.plan.data["stop_ns"] / NS_PER_S
            for seed in range(1, seeds + 1):
                load = max(1.0, self.rate_mbps / MBPS_A_CORE)
                yield name, EmulationJob(case.plan, seed, stop_s, stop_s, load)

    def judge(self) -> None:
        """Compare what was measured with what was simulated."""
        if self.trial is None or self.trial.percent is None:
            return
        before, after = (float(np.mean(self.measured[name])) for name in self.trial.cases)
        simulated = self.trial.percent.mean
        factor, expected = after / before if before else np.inf, 1 + simulated / 100
        change = 100 * (factor - 1)
        holds = change * simulated > 0 and abs(factor - expected) <= WITHIN * expected
        self.cells |= {
            "figure": self.trial.figure,
            "recommended": [*self.trial.cases][1],
            "simulated": f"{simulated:+.1f} %",
            "measured": f"{change:+.1f} %",
            "holds": "yes" if holds else "NO",
        }


def as_completed(asked: list[Asked], seeds: int, parallel: float) -> Iterator[Asked]:
    """Run all cases in real time; yield each question when it is judged."""
    work = [(each, *job) for each in asked for job in each.jobs(seeds)]
    left = Counter(id(each) for each, _, _ in work)
    yield from (each for each in asked if not left[id(each)])
    jobs = [job for _, _, job in work]
    with closing(emulate_as_completed(jobs, parallel=parallel, total=len(jobs))) as runs:
        for run in runs:
            each, name, _ = work[run.index]
            left[id(each)] -= 1
            if run.invalid:
                each.cells |= {"recommended": f"not tried: {run.invalid}", "holds": "NO"}
                each.trial = None
            elif each.trial is not None:
                each.measured.setdefault(name, []).append(each.trial.measure(run.result))
            if not left[id(each)]:
                each.judge()
                yield each


def summary(question: str, judged: list[Asked]) -> str:
    """Return how many recommendations of a question hold, as a sentence."""
    held = [each.cells["holds"] for each in judged if each.cells["question"] == question]
    text = f"{question}: {held.count('yes')} of {len(held) - held.count('-')} recommendations hold"
    nothing = held.count("-")
    return (
        f"{text}; nothing is recommended for {nothing} of {len(held)} links, so nothing is tried."
    )


def main() -> int:
    """Try all recommendations; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--links", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--parallel", type=float, default=os.cpu_count() or 1)
    parser.add_argument("--questions", nargs="*", choices=QUESTIONS, default=QUESTIONS)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    drawn = itertools.product(links(options.links, options.seed), options.questions)
    asked = [Asked.of(question, *link) for link, question in drawn]
    with ExitStack() as stack:
        writer = None
        if options.out is not None:
            file = stack.enter_context(options.out.open("w", 1, encoding="utf-8", newline=""))
            writer = csv.DictWriter(file, COLUMNS, restval="")
            writer.writeheader()
        print("| " + " | ".join(COLUMNS) + " |\n" + "| --- " * len(COLUMNS) + "|", flush=True)
        for each in as_completed(asked, options.seeds, options.parallel):
            row = (each.cells.get(column, "") for column in COLUMNS)
            print("| " + " | ".join(row) + " |", flush=True)
            if writer is not None:
                writer.writerow(each.cells)
    for question in options.questions:
        print(f"\n{summary(question, asked)}")
    return int(any(each.cells["holds"] == "NO" for each in asked))


if __name__ == "__main__":
    sys.exit(main())
