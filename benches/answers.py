"""Try the recommendations of `bentpipe ask` in real time, over links that are drawn at random.

Usage: `python benches/answers.py [--links 10] [--seed 1] [--seeds 2] [--out FILE.csv]`. Each link
has a rate of 0.5 to 200 Mbit/s, a one-way delay of 5 to 300 ms, a bit error rate of 0 or 1e-9 to
1e-6, and a queue of 0.1 to 2 bandwidth-delay products, all by the logarithm. Each question is asked
about it, and its case as asked and the recommended one run with the kernel's TCP in labs. It prints
a table in Markdown, and exits with 1 if a change has the wrong sign, or if the figure changes by a
factor that is not within 25 % of the simulated one.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import numpy as np

import bentpipe
from bentpipe.answers.trial import Trial
from bentpipe.errors import BentpipeError
from bentpipe.live import EmulationJob, emulate_as_completed

# Those whose answers have a trial, with parameters.
QUESTIONS: Final[Mapping[str, Mapping[str, Any]]] = {"tcp": {}}
RATES_MBPS: Final = (0.5, 200.0)
DELAYS_MS: Final = (5.0, 300.0)
BIT_ERROR_RATES: Final = (1e-9, 1e-6)
QUEUES_BDP: Final = (0.1, 2.0)
WITHIN: Final = 0.25
NS_PER_S: Final = 1e9
# Runs of faster links are alone, so that they are in time.
ALONE_MBPS: Final = 50.0
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


def measured(trial: Trial, seeds: int, parallel: float) -> dict[str, float]:
    """Return the mean of the figure of each case over runs in real time."""
    jobs = [
        EmulationJob(plan=case.plan, seed=seed, max_s=stop_s, expected_s=stop_s)
        for case in trial.cases.values()
        for stop_s in [case.plan.data["stop_ns"] / NS_PER_S]
        for seed in range(1, seeds + 1)
    ]
    values: dict[int, float] = {}
    with closing(emulate_as_completed(jobs, parallel=parallel, total=len(jobs))) as runs:
        for run in runs:
            if run.invalid:
                raise BentpipeError(run.invalid)
            values[run.index] = trial.measure(run.result)[trial.figure]
    means = (np.mean([values[i] for i in part]) for part in _batched(range(len(jobs)), seeds))
    return dict(zip(trial.cases, map(float, means), strict=True))


def _batched(numbers: range, size: int) -> Iterator[range]:
    return (numbers[i : i + size] for i in range(0, len(numbers), size))


def row_of(question: str, settings: list[str], seeds: int, parallel: float) -> dict[str, Any]:
    """Return the cells of a question about a link."""
    row: dict[str, Any] = {"link": ", ".join(settings), "question": question}
    try:
        answer = bentpipe.ask(question, "geo", settings=settings, **QUESTIONS[question])
        trial = answer.trial
        if trial is None or trial.percent is None:
            return row | {"recommended": "nothing", "holds": "-"}
        before, after = measured(trial, seeds, parallel).values()
    except BentpipeError as error:
        return row | {"recommended": f"not tried: {error}", "holds": "NO"}
    simulated = trial.percent.mean
    change = 100 * (after / before - 1)
    ratio = (100 + change) / (100 + simulated)
    holds = change * simulated > 0 and abs(ratio - 1) <= WITHIN
    return row | {
        "figure": trial.figure,
        "recommended": [*trial.cases][1],
        "simulated": f"{simulated:+.1f} %",
        "measured": f"{change:+.1f} %",
        "holds": "yes" if holds else "NO",
    }


def main() -> int:
    """Try all recommendations; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--links", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--parallel", type=float, default=4.0)
    parser.add_argument("--questions", nargs="*", default=[*QUESTIONS])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = []
    print("| " + " | ".join(COLUMNS) + " |\n" + "| --- " * len(COLUMNS) + "|")
    drawn = links(options.links, options.seed)
    for (rate_mbps, settings), question in itertools.product(drawn, options.questions):
        parallel = 1.0 if rate_mbps > ALONE_MBPS else options.parallel
        row = row_of(question, settings, options.seeds, parallel)
        rows.append({column: row.get(column, "") for column in COLUMNS})
        print("| " + " | ".join(map(str, rows[-1].values())) + " |", flush=True)
    if options.out is not None:
        with options.out.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(rows)
    return int(any(row["holds"] == "NO" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
