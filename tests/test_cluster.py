"""Sweeps on Dask: an existing cluster of separate processes, and one of this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, SMALL, Program
from dask_processes import (
    HERE,
    OTHER_VERSION,
    DaskProcesses,
    delivered,
    disk_full,
    killing_seed_3,
    needs_dask,
    processes_below,
    raw,
    until,
)

from bentpipe import Plan, Scenario
from bentpipe.errors import MachineError, MemoryLimitError, ScenarioError, UsageError
from bentpipe.simulation import Finished, Job, Threads
from bentpipe.sweeps import Cluster, LocalCluster, cluster as dask_cluster

pytestmark = needs_dask

PLAN = Plan.resolve({**SMALL, "packet_events": False})
LONG = Plan.resolve(
    Scenario.from_dict(
        {
            "link": {"preset": "leo", "forward": {"rate": "10 Gbit/s"}},
            "traffic": [
                {
                    "kind": "constant_rate",
                    "direction": "forward",
                    "rate": "1 Gbit/s",
                    "payload": "125 B",
                }
            ],
            "duration": "600 s",
        }
    )
)


def jobs(count: int) -> Iterator[tuple[int, Job]]:
    """Yield jobs of one plan, with the seeds from 0 on."""
    for seed in range(count):
        yield seed, Job(plan=PLAN, seed=seed)


def in_order(finished: Iterator[Finished[Any]]) -> list[Finished[Any]]:
    return sorted(finished, key=lambda each: each.index)


def run_until_lost(
    cluster: Cluster, action: Callable[[], Any], *, after: int
) -> tuple[list[Finished[Any]], str]:
    """Run jobs without end and act after some; return the finished ones, and the error."""
    finished = []
    try:
        for each in cluster.run(jobs(10**6), delivered):
            finished.append(each)
            if len(finished) == after:
                action()
    except MachineError as error:
        return finished, str(error)
    raise AssertionError("a million runs finished")


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaskProcesses]:
    """A scheduler and two workers, of which none is killed."""
    processes = DaskProcesses(tmp_path_factory.mktemp("dask"))
    processes.add_worker()
    processes.add_worker()
    processes.wait_for_workers()
    yield processes
    processes.close()


@pytest.fixture
def doomed(tmp_path: Path) -> Iterator[DaskProcesses]:
    """A scheduler without workers, for one test."""
    processes = DaskProcesses(tmp_path)
    yield processes
    processes.close()


@pytest.mark.thorough
@pytest.mark.system
def test_an_existing_cluster_gives_the_bytes_of_threads(two_workers: DaskProcesses) -> None:
    expected = in_order(Threads(2).run(jobs(40), raw))
    with Cluster(two_workers.address) as cluster:
        assert in_order(cluster.run(jobs(40), raw)) == expected
        # The same connection runs the next jobs.
        assert in_order(cluster.run(jobs(3), raw)) == expected[:3]


@pytest.mark.system
def test_closing_the_iterator_stops_the_runs_of_the_workers(two_workers: DaskProcesses) -> None:
    """Given both workers with runs of minutes, expect them to be free after `close`."""
    with Cluster(two_workers.address) as cluster:
        work = [Job(plan=PLAN, seed=1), *[Job(plan=LONG, seed=1)] * 4]
        with closing(cluster.run(enumerate(work), delivered)) as runs:
            assert next(runs).index == 0
        assert len(list(cluster.run(jobs(6), delivered))) == 6


@pytest.mark.system
def test_a_failed_run_does_not_end_the_others(two_workers: DaskProcesses) -> None:
    work = dict(jobs(4))
    work[2] = Job(plan=PLAN.with_values(directions=[]), seed=2)
    with Cluster(two_workers.address) as cluster:
        finished = in_order(cluster.run(iter(work.items()), delivered))
        assert [each.error is None for each in finished] == [True, True, False, True]
        with pytest.raises(OSError, match="No space left"):
            list(cluster.run(jobs(3), disk_full))
    (threads,) = Threads(1).run([(2, work[2])], delivered)
    for each in (finished[2], threads):
        assert isinstance(each.error, ScenarioError)
        assert str(each.error) == str(threads.error)


@pytest.mark.system
def test_the_runs_of_a_machine_share_the_memory_limit(two_workers: DaskProcesses) -> None:
    """Given a limit that one run needs, expect the runs of two workers of a machine to fail."""
    (alone,) = Threads(1).run(jobs(1), raw)
    assert alone.value is not None
    limit = int(1.5 * alone.value["memory_bytes_max"])
    with Cluster(two_workers.address, memory_limit=limit) as cluster:
        (each,) = cluster.run(jobs(1), raw)
    assert isinstance(each.error, MemoryLimitError)
    assert not each.error.outcomes
    assert "its part of what 2 runs share" in str(each.error)


def files_of(folder: Path) -> dict[str, bytes]:
    """Return the files of a sweep, but when and where it was made."""
    files = {str(each.relative_to(folder)): each for each in folder.rglob("*") if each.is_file()}
    return {name: each.read_bytes() for name, each in files.items() if name != "execution.json"}


@pytest.mark.system
def test_a_sweep_and_a_study_on_a_cluster_have_the_bytes_of_threads(
    two_workers: DaskProcesses, bentpipe: Program, tmp_path: Path
) -> None:
    scenario = [ROOT / "scenarios" / "geo-bulk.yaml", "--set", "traffic.0.size=200 kB"]
    varied = ["--vary", "link.forward.bit_error_rate=1e-8,1e-6", "--seeds", "20"]
    for executor in (["--threads", "2"], ["--scheduler", two_workers.address]):
        out = tmp_path / executor[0]
        assert bentpipe("sweep", *scenario, *varied, "--out", out, *executor).code == 0
    of_threads = files_of(tmp_path / "--threads")
    # With a report and its chart as PNG, SVG and CSV.
    assert len(of_threads) == 9
    assert files_of(tmp_path / "--scheduler") == of_threads
    study = ("study", "jpl", "--seeds", "1", "--json")
    assert bentpipe(*study).out == bentpipe(*study, "--scheduler", two_workers.address).out


def test_options_of_clusters_exclude_others(bentpipe: Program) -> None:
    for other in (["--dask"], ["--threads", "2"]):
        called = bentpipe("study", "jpl", "--scheduler", "tcp://h:1", *other)
        assert called.code == 2
        assert f"leave out {other[0]}" in called.err


@pytest.mark.thorough
@pytest.mark.system
def test_a_killed_worker_changes_nothing(doomed: DaskProcesses) -> None:
    """Given two workers and SIGKILL for one in the middle, expect the values of threads."""
    doomed.add_worker()
    doomed.add_worker()
    doomed.wait_for_workers()
    count = 1500
    finished = []
    with Cluster(doomed.address) as cluster:
        for each in cluster.run(jobs(count), delivered):
            finished.append(each)
            if len(finished) == 100:
                doomed.workers[0].kill()
    assert doomed.workers[0].wait() == -signal.SIGKILL
    assert in_order(iter(finished)) == in_order(Threads(2).run(jobs(count), delivered))


@pytest.mark.thorough
@pytest.mark.system
def test_a_lost_scheduler_is_one_message_and_finished_runs_are_kept(doomed: DaskProcesses) -> None:
    doomed.add_worker()
    doomed.wait_for_workers()
    with Cluster(doomed.address) as cluster:
        finished, message = run_until_lost(cluster, doomed.scheduler.kill, after=100)
    assert message == "lost the connection to the Dask scheduler"
    assert len(finished) >= 100
    assert {each.value for each in finished} == {1e6}


@pytest.mark.system
def test_a_cluster_that_cannot_run_jobs_is_refused(
    doomed: DaskProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given no workers, one with bentpipe 0.0.1 (its name, both versions), and no scheduler."""
    address = doomed.address
    with monkeypatch.context() as patch:
        patch.setattr(dask_cluster, "_CONNECT_S", 0.5)
        with pytest.raises(MachineError, match=f"{address} has no workers; start one with dask w"):
            Cluster(address)
    doomed.add_worker(OTHER_VERSION)
    doomed.wait_for_workers()
    with pytest.raises(MachineError) as caught:
        Cluster(address)
    first, fix = str(caught.value).splitlines()
    assert first.startswith("the worker tcp://127.0.0.1:")
    assert first.endswith(" has bentpipe 0.0.1, not 0.1.0")
    assert "pip install bentpipe==0.1.0" in fix
    (line,) = (each for each in doomed.log("worker-0").splitlines() if "Start worker at" in each)
    assert first.split()[2] == line.split()[-1]
    doomed.close()
    monkeypatch.setattr(dask_cluster, "_CONNECT_S", 0.5)
    with pytest.raises(MachineError, match=f"no Dask scheduler answers at {address}"):
        Cluster(address)
    with pytest.raises(UsageError, match=r'read "10\.0\.0\.1:8786"; expected tcp://HOST:PORT'):
        Cluster("10.0.0.1:8786")


@pytest.mark.thorough
@pytest.mark.system
def test_a_worker_of_another_version_that_joins_is_refused(doomed: DaskProcesses) -> None:
    doomed.add_worker()
    doomed.wait_for_workers()
    with Cluster(doomed.address) as cluster:
        _, message = run_until_lost(cluster, lambda: doomed.add_worker(OTHER_VERSION), after=1)
    assert "has bentpipe 0.0.1, not 0.1.0" in message


@pytest.mark.thorough
@pytest.mark.system
def test_a_cluster_that_lost_all_workers_is_given_up(
    doomed: DaskProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dask_cluster, "_NO_WORKERS_S", 1.0)
    monkeypatch.setattr(dask_cluster, "_REFRESH_S", 0.2)
    monkeypatch.setattr(dask_cluster, "_RESULT_S", 0.5)
    doomed.add_worker()
    doomed.wait_for_workers()
    with Cluster(doomed.address) as cluster:
        _, message = run_until_lost(cluster, doomed.workers[0].kill, after=10)
    assert message == "the cluster has had no workers for 1 s"


@pytest.mark.thorough
@pytest.mark.system
def test_a_local_cluster_gives_the_bytes_of_threads_and_survives_deadly_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Given a run that kills its worker, expect a failure of it alone, and the worker as before."""
    # The only worker takes long to restart beside other tests.
    monkeypatch.setattr(dask_cluster, "_NO_WORKERS_S", 200.0)
    others = set(processes_below())
    with (
        import_module("dask").config.set({"distributed.scheduler.allowed-failures": 0}),
        LocalCluster(1) as local,
    ):
        own = set(processes_below()) - others
        assert own
        connections = [each for process in own for each in process.net_connections()]
        assert {each.laddr.ip for each in connections if each.status == "LISTEN"} == {"127.0.0.1"}
        deadly = in_order(local.run(jobs(4), killing_seed_3))
        assert in_order(local.run(jobs(6), raw)) == in_order(Threads(2).run(jobs(6), raw))
    assert [each.index for each in deadly if each.error is not None] == [3]
    assert isinstance(deadly[3].error, MachineError)
    assert {each.value for each in deadly if each.error is None} == {1e6}


SCRIPT = """
import sys
from test_cluster import LONG, PLAN, delivered
from bentpipe.simulation import Job
from bentpipe.sweeps import LocalCluster

if __name__ == "__main__":
    with LocalCluster(2) as cluster:
        work = [Job(plan=PLAN, seed=1), *[Job(plan=LONG, seed=1)] * 4]
        try:
            for each in cluster.run(enumerate(work), delivered):
                print(each.index, flush=True)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
            sys.exit(130)
"""


@pytest.mark.thorough
@pytest.mark.system
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_ctrl_c_and_kill_leave_no_process_and_no_message(
    number: signal.Signals, tmp_path: Path
) -> None:
    """Given a script with runs of minutes, expect a signal for its process group to end all."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with subprocess.Popen(
        [sys.executable, script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(HERE), "TMPDIR": str(tmp_path)},
        start_new_session=True,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "0\n"
        children = processes_below(process.pid)
        assert len(children) >= 2
        if number == signal.SIGINT:
            os.killpg(process.pid, number)
        else:
            process.kill()
        rest, errors = process.communicate(timeout=60)
    until(lambda: not any(child.is_running() for child in children))
    if number == signal.SIGINT:
        assert errors == ""
        assert (process.returncode, rest) == (130, "interrupted\n")
        assert list(tmp_path.iterdir()) == [script]
