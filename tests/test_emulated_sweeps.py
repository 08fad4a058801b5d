"""Sweeps in real time: repeated runs, failures, and how many run at once."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from conftest import SMALL, Program, needs, needs_lab

from bentpipe import Plan, Result
from bentpipe.errors import InvalidRunError, MachineError, UsageError
from bentpipe.live import pool
from bentpipe.simulation import Finished, Job
from bentpipe.simulation.run import Outcome
from bentpipe.sweeps import Emulated

PLAN = Plan.resolve(SMALL)


def jobs(count: int, rate: str = "8 Mbit/s") -> Iterator[tuple[int, Job]]:
    scenario = {**SMALL, "link": {**SMALL["link"], "forward": {"rate": rate, "delay": "20 ms"}}}
    plan = Plan.resolve(scenario)
    for seed in range(count):
        yield seed, Job(plan=plan, seed=seed)


class FakeLabs:
    """Replaces the processes of runs; ``ends`` says by seed how each attempt ends."""

    def __init__(self, patch: pytest.MonkeyPatch, result: Result) -> None:
        self.ends: dict[int, list[str | Exception]] = {}
        self.attempts: list[int] = []
        self.running: set[int] = set()
        self.most = 0
        about = {"window_count": 1, "windows": [], "failure": "a fake"}
        self._results = {
            invalid: Result(
                {
                    **result.manifest,
                    "engine": "emulate",
                    "state": "completed" if invalid is None else "invalid",
                    "emulation": {**about, "invalid": invalid},
                },
                result.tables,
            )
            for invalid in (None, "late")
        }
        # As the emulator leaves it.
        for each in self._results.values():
            each.manifest["engine_calls"] = None
        patch.setattr(pool, "Child", partial(FakeChild, self))

    def end(self, seed: int) -> Result:
        ends = self.ends.get(seed, [])
        end = ends.pop(0) if ends else None
        if isinstance(end, Exception):
            raise end
        return self._results[end]


class FakeChild:
    """A run that ends at once."""

    def __init__(self, labs: FakeLabs, *request: Any, folder: Path) -> None:
        self._labs, self._folder = labs, folder
        _, _, _, self._seed, *_ = request
        labs.attempts.append(self._seed)
        labs.running.add(self._seed)
        labs.most = max(labs.most, len(labs.running))

    def has_message(self) -> bool:
        return True

    def receive(self) -> tuple[str, Result]:
        return "result", self._labs.end(self._seed)

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._labs.running.discard(self._seed)


@pytest.fixture
def labs(monkeypatch: pytest.MonkeyPatch, small_result: Result) -> FakeLabs:
    return FakeLabs(monkeypatch, small_result)


def goodput(outcome: Outcome) -> tuple[str, float]:
    result = outcome.result(started="")
    assert outcome.column("flows", "delivered_bytes").tolist() == pytest.approx(
        result.tables["flows"]["delivered_bytes"].to_list()
    )
    return result.engine, float(result.goodput_bps[0])


def in_order(finished: Iterator[Finished[Any]]) -> list[Finished[Any]]:
    return sorted(finished, key=lambda each: each.index)


@pytest.mark.system
def test_a_late_run_is_repeated(labs: FakeLabs, small_result: Result) -> None:
    """Given a run that is late once and one that is always, expect a value and a failure."""
    labs.ends = {1: ["late"], 2: ["late"] * 3}
    zero, one, two = in_order(Emulated(2).run(jobs(3), goodput))
    value = ("emulate", pytest.approx(float(small_result.goodput_bps[0])))
    assert (zero.value, one.value, two.value) == (value, value, None)
    assert isinstance(two.error, InvalidRunError)
    assert str(two.error).startswith("invalid in 3 attempts: late")
    assert labs.attempts.count(1) == 2
    assert labs.attempts.count(2) == 3


def test_a_failed_run_does_not_end_the_others(labs: FakeLabs) -> None:
    """Given a machine that has run one, expect an error of the machine to be one of the run."""
    labs.ends = {1: [UsageError("red: not in real time")], 2: [MachineError("does not end")]}
    errors = [each.error for each in in_order(Emulated(1).run(jobs(4), goodput))]
    assert list(map(type, errors)) == [type(None), UsageError, MachineError, type(None)]


def test_a_machine_that_cannot_run_any_ends_the_sweep(labs: FakeLabs) -> None:
    labs.ends = {0: [MachineError("iperf3 is not installed")]}
    with pytest.raises(MachineError, match="iperf3 is not installed"):
        list(Emulated(1).run(jobs(4), goodput))
    assert labs.running == set()
    assert len(labs.attempts) < 4


@pytest.mark.system
@pytest.mark.parametrize(("rate", "most"), [("50 Mbit/s", 2), ("1 Mbit/s", 7)])
def test_slow_links_run_at_once(labs: FakeLabs, rate: str, most: int) -> None:
    """Given two processors, expect two runs at 50 Mbit/s at once, and 2 / 0.265 at 1 Mbit/s."""
    assert len(list(Emulated(2).run(jobs(8, rate), goodput))) == 8
    assert labs.most == most


def test_closing_the_iterator_ends_the_labs(labs: FakeLabs) -> None:
    with closing(Emulated(2).run(jobs(10**9), goodput)) as runs:
        next(runs)
    assert labs.running == set()
    assert len(labs.attempts) < 20


def test_options_of_simulated_runs_are_refused(bentpipe: Program, tmp_path: Path) -> None:
    scenario = tmp_path / "a.yaml"
    scenario.write_text(
        "link: {preset: leo}\ntraffic: [{kind: bulk, direction: forward, "
        "size: 1 MB}]\nduration: 9 s\n"
    )
    for verb in (["sweep", scenario], ["study", "jpl"]):
        for option in (["--dask"], ["--scheduler", "tcp://h:1"], ["--memory-limit", "1GB"]):
            called = bentpipe(*verb, "--engine", "emulate", *option)
            assert called.code == 2
            assert f"{option[0]}: only for simulated runs; labs are on this machine" in called.err


@pytest.mark.thorough
@needs_lab
@needs("iperf3")
def test_a_sweep_in_real_time(bentpipe: Program, tmp_path: Path) -> None:
    """Given two controls in labs, expect two cells whose runs are those of the kernel."""
    scenario = tmp_path / "a.yaml"
    scenario.write_text(
        "link: {forward: {rate: 2 Mbit/s, delay: 10 ms}, return: {rate: 1 Mbit/s, delay: 10 ms}}\n"
        "traffic: [{kind: constant_rate, direction: forward, rate: 400 kbit/s, payload: 1000 B, "
        "duration: 1 s}]\nduration: 3 s\n"
    )
    out = tmp_path / "out"
    called = bentpipe(
        "sweep",
        scenario,
        *("--engine", "emulate", "--keep-runs"),
        *("--vary", "link.forward.delay=10ms,30ms"),
        *("--out", out),
    )
    failures = pl.read_parquet(out / "failures.parquet")
    if failures.height:
        # On a busy machine.
        assert set(failures["kind"]) == {"invalid"}
        assert called.code == 4
        return
    assert called.code == 0, called.err
    first, second = (Result.load(folder) for folder in sorted((out / "runs").iterdir()))
    assert (first.engine, second.engine) == ("emulate", "emulate")
    flows = pl.read_parquet(out / "flows", hive_partitioning=True).sort("one_way_delay_mean_ns")
    delays_ns = flows["one_way_delay_mean_ns"].to_list()
    assert flows["link.forward.delay"].to_list() == ["10ms", "30ms"]
    assert delays_ns[0] >= 10e6
    assert delays_ns[1] >= 30e6
    assert flows["delivered_bytes"].to_list() == [
        int(each.tables["flows"]["delivered_bytes"][0]) for each in (first, second)
    ]
