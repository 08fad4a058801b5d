"""Ctrl-C at any time, and where it is ignored: background jobs of shells without job control."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Program, default_signals
from dask_processes import needs_dask, processes_below, until

from bentpipe import Plan, Scenario, simulation, sweeps
from bentpipe.answers.runs import Experiment
from bentpipe.cli.progress import delaying_interrupts
from bentpipe.errors import RunsInterrupted, UsageError
from bentpipe.live.child import deferring_interrupts

TIMEOUT_S = 60
SCENARIO = """\
link: {preset: leo}
traffic: [{kind: bulk, direction: forward, size: 100 kB}]
duration: 10 s
"""
# Sends SIGINT to itself at the import of a module of bentpipe.
INTERRUPTED_IMPORT = """
import os, runpy, signal, sys
class Finder:
    def find_spec(self, name, *_):
        if name == "bentpipe.cli.streams":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
sys.argv = ["bentpipe", "--version"]
runpy.run_module("bentpipe", run_name="__main__")
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "scenario.yaml"
    path.write_text(SCENARIO)
    return path


@pytest.fixture
def ignoring() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


def ignore_interrupts() -> None:
    default_signals()
    signal.signal(signal.SIGINT, signal.SIG_IGN)


# --- while bentpipe is loaded -------------------------------------------------------------------


@pytest.mark.system
@pytest.mark.parametrize(
    ("signals", "code", "out"),
    [(default_signals, -signal.SIGINT, ""), (ignore_interrupts, 0, "bentpipe 0.1.0\n")],
    ids=["foreground", "background"],
)
def test_ctrl_c_while_modules_are_imported_is_no_traceback(
    signals: Any, code: int, out: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_IMPORT],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        preexec_fn=signals,
    )
    assert (done.returncode, done.stdout, done.stderr) == (code, out, "")


# --- sweeps -------------------------------------------------------------------------------------


class Interrupted(simulation.Threads):
    """Threads on which Ctrl-C comes after three runs."""

    def run(self, jobs: Any, reduce: Any) -> Any:
        for number, each in enumerate(super().run(jobs, reduce)):
            if number == 3:
                raise KeyboardInterrupt
            yield each


def test_a_second_ctrl_c_keeps_the_journal_and_says_so(
    scenario: Path, bentpipe: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given Ctrl-C in a sweep and again while its data set is written, expect how to go on."""

    def write(*_arguments: Any, **_options: Any) -> None:
        raise KeyboardInterrupt

    out = tmp_path / "out"
    with monkeypatch.context() as patched:
        patched.setattr(simulation, "Threads", Interrupted)
        patched.setattr(sweeps.SweepFolder, "write", write)
        called = bentpipe("sweep", scenario, "--seeds", "20", "--out", out)
    assert called.code == 130
    assert called.err.splitlines()[-1] == (
        "bentpipe: interrupted; the 3 runs that have ended are kept, continue with "
        f"bentpipe sweep --resume {out}"
    )
    assert bentpipe("sweep", "--resume", out).code == 0
    assert sweeps.Sweep.load(out).runs.height == 20


# --- several settings, several cases ------------------------------------------------------------


def stop_after(runs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Press Ctrl-C when so many runs have ended, on one thread."""

    class Stopping(simulation.Threads):
        def __init__(self, *_arguments: Any, **_options: Any) -> None:
            super().__init__(1)

        def run(self, jobs: Any, reduce: Any) -> Any:
            for number, each in enumerate(super().run(jobs, reduce), 1):
                yield each
                if number == runs:
                    raise KeyboardInterrupt

    monkeypatch.setattr("bentpipe.simulation.executor.Threads", Stopping)
    monkeypatch.setattr("bentpipe.sweeps.run.Threads", Stopping)


def test_ctrl_c_keeps_the_seeds_of_a_comparison_that_all_settings_have(
    scenario: Path, bentpipe: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given Ctrl-C after 13 of 60 runs of two settings, expect the comparison of six seeds."""
    other = scenario.with_name("other.yaml")
    other.write_text(SCENARIO.replace("100 kB", "200 kB"))
    stop_after(13, monkeypatch)
    called = bentpipe("compare", scenario, other, "--json")
    found = json.loads(called.out)
    assert (called.code, found["interrupted"]) == (130, True)
    assert [each["runs"] for each in found["settings"]] == [6, 6]
    assert called.err.startswith("bentpipe: interrupted; the comparison is that of the seeds")
    stop_after(1, monkeypatch)
    called = bentpipe("compare", scenario, other)
    said = "interrupted; 1 of 60 runs are complete; no seed is complete in all scenarios"
    assert (called.code, called.out, called.err) == (130, "", f"bentpipe: {said}\n")


def test_ctrl_c_keeps_the_seeds_of_an_answer_that_all_cases_have(
    scenario: Path, bentpipe: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given Ctrl-C in a question whose cases ran one after another, expect the complete seeds."""
    with pytest.raises(UsageError, match="seeds: read 10001; must be 1 to 10000"):
        Experiment(seeds=10_001)
    experiment = Experiment(seeds=5)
    plan = Plan.resolve(scenario)
    cases = {"one": plan, "two": Plan.resolve(Scenario.load(scenario, ["duration=5 s"]))}
    # Batches of four runs: the first one is complete, the second one is not.
    monkeypatch.setattr("bentpipe.answers.runs.cores", lambda: 1)
    count = iter([None, 3])
    original = simulation.run_many

    def run_many(jobs: Any, **options: Any) -> Any:
        stop = next(count)
        if stop is None:
            return original(jobs, **options)
        raise RunsInterrupted("Ctrl-C", results=original(jobs[:stop], **options))

    monkeypatch.setattr("bentpipe.answers.runs.run_many", run_many)
    found = experiment.run(cases, lambda result: {"seed": float(result.manifest["seed"])})
    assert [of_case["seed"].tolist() for of_case in found.values()] == [[1, 2, 3], [1, 2, 3]]
    assert experiment.interrupted
    with pytest.raises(RunsInterrupted):
        experiment.run(cases, lambda _: {})

    def no_answer(*_arguments: Any, **_options: Any) -> Any:
        raise RunsInterrupted("none of 5 seeds is complete in all cases")

    monkeypatch.setattr("bentpipe.answers.ask", no_answer)
    called = bentpipe("ask", "tcp")
    said = "interrupted; none of 5 seeds is complete in all cases; there is no answer"
    assert (called.code, called.out, called.err) == (130, "", f"bentpipe: {said}\n")


def test_a_second_sweep_into_the_same_folder_is_refused(
    scenario: Path, bentpipe: Program, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with sweeps.SweepFolder(out):
        for options in (["sweep", scenario, "--out", out], ["sweep", "--resume", out]):
            called = bentpipe(*options)
            assert called.code == 2
            assert str(out) in called.err
            assert len(called.err.splitlines()) == 1
    assert bentpipe("sweep", scenario, "--out", out).code == 0


@pytest.mark.thorough
@pytest.mark.system
@needs_dask
def test_ctrl_c_while_a_cluster_starts_is_no_traceback(scenario: Path) -> None:
    """Given SIGINT when the first process of a cluster is there, expect a quiet end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bentpipe", "sweep", scenario, "--seeds", "100000", "--dask"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=default_signals,  # noqa: PLW1509 - the tests have one thread
    )
    try:
        until(lambda: bool(processes_below(process.pid)))
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 130
    assert (out, err) == ("", "")


def test_an_interrupt_is_deferred_to_the_end_of_a_block() -> None:
    done = []

    def work() -> None:
        with deferring_interrupts():
            signal.raise_signal(signal.SIGINT)
            done.append(True)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == [True]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


# --- where SIGINT is ignored --------------------------------------------------------------------


@pytest.mark.usefixtures("ignoring")
def test_an_ignored_interrupt_stays_ignored(capsys: pytest.CaptureFixture[str]) -> None:
    for delaying in (delaying_interrupts, deferring_interrupts):
        with delaying():
            signal.raise_signal(signal.SIGINT)
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    assert capsys.readouterr().err == ""
