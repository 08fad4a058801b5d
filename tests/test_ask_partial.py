"""Answers after Ctrl-C in a search: what the complete runs show, and that more is open."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Program

from bentpipe import Plan, ask
from bentpipe.answers.busy_link import BusyLink
from bentpipe.answers.counts import Fitting, search
from bentpipe.answers.remedies import Goal
from bentpipe.answers.runs import Experiment, Measurements
from bentpipe.errors import RunsInterrupted

SLOW = (Goal("slow_share", 0.05),)
FITTING_USERS = 10
READER = (
    "page_mean_ns",
    "page_p50_ns",
    "page_p95_ns",
    "mos_p5",
    "unplayed_percent",
    "stall_ratio_percent",
    "utilization",
)
PEP = (
    "busy",
    "channels_bps",
    "splittable_share",
    "large_bps",
    "large-quic_bps",
    "short_ns",
    "short-quic_ns",
)


def interrupt_after(runs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Press Ctrl-C after so many calls of `Experiment.run`, which return made-up figures.

    Up to `FITTING_USERS` readers, or calls, have no slow page.
    """
    left = iter(range(runs))

    def run(experiment: Experiment, cases: Mapping[Any, Plan], _: Any) -> dict[Any, Measurements]:
        if next(left, None) is None:
            experiment.interrupted = True
            raise RunsInterrupted("none of 3 seeds is complete in all cases")
        found = {}
        for name, plan in cases.items():
            count = sum(flow["name"].startswith(("reader", "call")) for flow in plan.data["flows"])
            slow = np.array([0.0, 0.01, 0.02]) + (count > FITTING_USERS)
            values = {name: np.full(3, 0.5) for name in (*READER, *PEP)}
            found[name] = Measurements(
                values, slow_share=slow, loss_percent=slow, wait_p99_ns=slow, page_p95_ns=slow
            )
        return found

    monkeypatch.setattr(Experiment, "run", run)


@pytest.mark.parametrize(("runs", "bounds"), [(1, (20, 80)), (2, (20, 39)), (3, (30, 39))])
def test_a_search_keeps_the_counts_that_were_run(runs: int, bounds: tuple[int, int]) -> None:
    """Given 35 that fit and Ctrl-C, expect what is shown by then, and the limit else."""
    left = iter(range(runs))

    def run(count: int) -> Measurements:
        if next(left, None) is None:
            raise RunsInterrupted("Ctrl-C")
        return Measurements(slow_share=np.array([0.0, 0.01, 0.02]) + (count > 35))

    found = search(run, SLOW, guess=20, limit=80)
    assert Fitting.of(found, SLOW, limit=80).range == [*bounds]
    with pytest.raises(RunsInterrupted):
        search(run, SLOW, guess=20, limit=80)


@pytest.mark.system
def test_users_are_between_what_the_complete_runs_show(
    bentpipe: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Given Ctrl-C after two counts, expect bounds, marked in all outputs, and exit code 130."""
    options = ("ask", "users", "--page-time", "20s", "--out", tmp_path / "out")
    interrupt_after(1, monkeypatch)
    shown = bentpipe(*options)
    assert shown.code == 130
    words = " ".join(shown.out.split())
    assert "At least 0 users, at most 11, on 16 Mbit/s" in words
    assert "from 3 runs; interrupted" in words
    assert "Interrupted: the answer is that of the runs that were complete" in words
    assert "interrupted; the answer is that of the runs that were complete" in shown.err
    assert "<b>Interrupted:</b>" in (tmp_path / "out" / "report.html").read_text()
    answer = json.loads((tmp_path / "out" / "answer.json").read_text())
    assert answer["interrupted"] is True
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert answer["seeds"] == manifest["seeds"] == [1, 2, 3, 4, 5]
    assert answer["figures"]["users"] is None
    assert answer["figures"]["users_range"] == [0, 11]
    interrupt_after(0, monkeypatch)
    nothing = bentpipe(*options)
    assert (nothing.code, nothing.out) == (130, "")
    assert "there is no answer" in nothing.err


def test_subscribers_are_not_known_from_part_of_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt_after(1, monkeypatch)
    answer = ask("users", "geo", page_time_ns=20_000_000_000, monthly_bytes=10_000_000_000)
    assert answer.figures["demand"] == {}
    assert any("How many subscribers fit is not known" in line for line in answer.lines)


def test_ctrl_c_in_the_runs_of_a_user_alone_ends_the_question(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Given Ctrl-C after some seeds of one user alone, expect that no count of users is run."""
    calls = []

    def run(experiment: Experiment, cases: Mapping[Any, Plan], _: Any) -> dict[Any, Measurements]:
        if experiment.interrupted:
            raise RunsInterrupted("Ctrl-C ended earlier runs")
        calls.append(experiment)
        experiment.interrupted = True
        return {name: Measurements(page_p95_ns=np.array([1e9])) for name in cases}

    monkeypatch.setattr(Experiment, "run", run)
    with pytest.raises(RunsInterrupted):
        ask("users", "geo")
    assert len(calls) == 1


def test_calls_of_the_searches_that_ran_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given Ctrl-C in the first of four searches, expect the bounds of that one alone."""
    interrupt_after(1, monkeypatch)
    answer = ask("small-packets", "leo")
    assert answer.interrupted
    assert answer.lines[0] == "Without aggregation: at least 0 calls, at most 59; interrupted"
    assert "at least 0 calls, at most 2,000" in answer.lines[1]
    assert answer.figures["calls"] is None


def test_a_pep_is_judged_without_the_runs_of_other_assumptions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Given Ctrl-C after the cases that are compared, expect their answer."""
    interrupt_after(2, monkeypatch)
    answer = ask("pep", "geo", seeds=3)
    assert answer.interrupted
    assert answer.matters_most == "none was varied."
    assert len(answer.figures["cases"]) == 4
    interrupt_after(1, monkeypatch)
    with pytest.raises(RunsInterrupted):
        ask("pep", "geo", seeds=3)


def test_a_count_that_was_adjusted_is_kept() -> None:
    """Given Ctrl-C in the second number of users, expect the figures of the first."""
    counts = []

    def run(count: int) -> Measurements:
        counts.append(count)
        if len(counts) > 1:
            raise RunsInterrupted("Ctrl-C")
        return Measurements(average=np.array([0.3]))

    count, measured = BusyLink().adjusted_count(
        "users", run, first=5, figure="average", wanted=0.6, tolerance=0.01
    )
    assert (count, measured.mean("average"), counts) == (5, 0.3, [5, 10])


def test_ctrl_c_between_runs_keeps_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given Ctrl-C while figures are taken from the second seed, expect the first one."""
    monkeypatch.setattr("bentpipe.answers.runs.cores", lambda: 0)
    bulk = {"kind": "bulk", "direction": "forward", "size": "1 kB"}
    wire = {"rate": "1 Mbit/s", "delay": "10 ms"}
    link = {"forward": wire, "return": wire}
    plan = Plan.resolve({"link": link, "duration": "1 s", "traffic": [bulk]})
    seeds = []

    def measure(result: Any) -> dict[str, float]:
        seeds.append(result.manifest["seed"])
        if len(seeds) > 1:
            raise KeyboardInterrupt
        return {"seed": float(seeds[-1])}

    experiment = Experiment(seeds=3)
    found = experiment.run({"": plan}, measure)[""]
    assert found["seed"].tolist() == [1.0]
    assert experiment.interrupted
