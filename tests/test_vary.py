"""Many runs with varied values: combinations, the tidy frame, errors, pickles, Ctrl-C."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from conftest import SMALL

import bentpipe
from bentpipe import Sweep, simulate
from bentpipe.errors import RunsInterrupted, ScenarioError, UsageError

VARIED: dict[str, Any] = {
    "link.forward.delay": ["10 ms", "250 ms"],
    "traffic.0.tcp.initial_window": [2, 10],
}


@pytest.fixture(scope="module")
def sweep() -> Sweep:
    """Two delays by two initial windows by three seeds: twelve runs of two flows."""
    return bentpipe.sweep(SMALL, vary=VARIED, seeds=3)


def test_every_combination_is_a_run_with_a_row_a_flow(sweep: Sweep) -> None:
    assert len(sweep.results) == 12
    assert not sweep.interrupted
    flows = sweep.flows
    assert flows.columns[:6] == [
        "run",
        "link.forward.delay",
        "link.forward.delay_ns",
        "traffic.0.tcp.initial_window",
        "seed",
        "name",
    ]
    assert flows.height == 12 * 2
    assert flows["run"].to_list() == [run for run in range(12) for _ in range(2)]
    # The last varied field changes faster than the first, and the seeds fastest.
    first_flow = flows.filter(flow=0)
    assert first_flow["link.forward.delay_ns"].to_list() == [10_000_000] * 6 + [250_000_000] * 6
    assert first_flow["traffic.0.tcp.initial_window"].to_list() == [2, 2, 2, 10, 10, 10] * 2
    assert first_flow["seed"].to_list() == [1, 2, 3] * 4
    # Two directions of one terminal.
    assert sweep.directions.height == 12 * 2


def test_a_row_is_the_run_that_simulate_gives(sweep: Sweep) -> None:
    """Given the eleventh combination run alone, expect its table, to the byte."""
    scenario = copy.deepcopy(SMALL)
    scenario["link"]["forward"]["delay"] = "250 ms"
    scenario["traffic"][0].setdefault("tcp", {})["initial_window"] = 10
    alone = simulate(scenario, seed=2)
    assert alone.tables["flows"].equals(sweep.results[10].tables["flows"])
    row = sweep.flows.filter(run=10, flow=0)
    assert row["goodput_bps"].to_list() == [alone.goodput_bps[0]]


def test_threads_change_nothing(sweep: Sweep) -> None:
    alone = bentpipe.sweep(SMALL, vary=VARIED, seeds=[1, 2, 3], threads=1)
    assert alone.flows.equals(sweep.flows)


def test_without_varied_values_there_is_a_run_a_seed() -> None:
    sweep = bentpipe.sweep({**SMALL, "seed": 7}, seeds=[5, 9])
    assert sweep.flows.columns[:3] == ["run", "seed", "name"]
    assert sweep.flows.filter(flow=0)["seed"].to_list() == [5, 9]
    assert sweep.runs.select("run", "seed", "traffic_ended").rows() == [(0, 5, True), (1, 9, True)]
    alone = bentpipe.sweep({**SMALL, "seed": 7})
    assert [result.manifest["seed"] for result in alone.results] == [7]


def test_integers_and_floats_are_one_column_of_floats() -> None:
    sweep = bentpipe.sweep(SMALL, vary={"link.forward.bit_error_rate": [0, 1e-6]})
    assert sweep.flows.filter(flow=0)["link.forward.bit_error_rate"].to_list() == [0.0, 1e-6]


def test_mappings_are_written_as_json() -> None:
    queues: list[Any] = [{"limit": "20 pkt"}, {"limit": "40 pkt"}]
    sweep = bentpipe.sweep(SMALL, vary={"link.forward.queue": queues})
    assert sweep.flows["link.forward.queue"].unique().sort().to_list() == [
        '{"limit": "20 pkt"}',
        '{"limit": "40 pkt"}',
    ]


@pytest.mark.parametrize(
    ("vary", "error", "message"),
    [
        ({"link.forward.delai": ["1 ms"]}, ScenarioError, "did you mean"),
        ({"link.forward.delay": ["1 m"]}, ScenarioError, "link.forward.delay"),
        ({"link.forward.delay": []}, UsageError, "has no values"),
        (
            {
                "traffic.0.tcp.initial_window": range(1, 50_001),
                "duration": ["1 s", "2 s", "3 s"],
            },
            UsageError,
            "150,000 runs",
        ),
        ({"seed": [1, 2]}, ScenarioError, "seeds are not varied"),
        ({"duration": ["1 s", "1 s"]}, ScenarioError, 'has "1 s" twice'),
    ],
)
def test_a_wrong_value_is_refused_before_any_run(
    vary: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        bentpipe.sweep(SMALL, vary=vary, progress=lambda *_: pytest.fail("a run was made"))


def test_zipped_fields_have_their_values_at_the_same_time() -> None:
    """Given two rates with their delays, and two windows, expect four combinations."""
    group: dict[str, Any] = {
        "link.forward.rate": ["4 Mbit/s", "8 Mbit/s"],
        "link.forward.delay": ["10 ms", "250 ms"],
    }
    sweep = bentpipe.sweep(SMALL, vary={"traffic.0.tcp.initial_window": [2, 10]}, zipped=[group])
    rows = sweep.flows.filter(flow=0)
    assert rows["traffic.0.tcp.initial_window"].to_list() == [2, 2, 10, 10]
    assert rows["link.forward.rate_bps"].to_list() == [4_000_000, 8_000_000] * 2
    assert rows["link.forward.delay_ns"].to_list() == [10_000_000, 250_000_000] * 2
    with pytest.raises(ScenarioError, match=r"rate has 2, link\.forward\.delay has 1"):
        bentpipe.sweep(SMALL, zipped=[group | {"link.forward.delay": ["1 ms"]}])


@pytest.mark.parametrize("seeds", [[], 0, [-1], [2**64], [3, 3]])
def test_seeds_out_of_range_are_refused(seeds: Any) -> None:
    with pytest.raises(UsageError, match="seeds: "):
        bentpipe.sweep(SMALL, seeds=seeds)


def test_ctrl_c_keeps_the_complete_runs() -> None:
    """Given Ctrl-C after the second of thirty runs, expect some, complete, in the exception."""

    def interrupt(done: int, _total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        bentpipe.sweep(SMALL, seeds=30, threads=1, progress=interrupt)
    assert isinstance(caught.value, RunsInterrupted)
    sweep = caught.value.sweep
    assert sweep.interrupted
    assert 2 <= len(sweep.results) < 30
    assert sweep.results == caught.value.results
    assert all(result.manifest["traffic_ended"] for result in sweep.results)
    assert sweep.flows["run"].max() == len(sweep.results) - 1


def test_what_a_worker_returns_can_be_pickled(sweep: Sweep) -> None:
    again = pickle.loads(pickle.dumps(sweep))
    assert again.flows.equals(sweep.flows)
    assert again.results[3].manifest == sweep.results[3].manifest
    with pytest.raises(ScenarioError) as caught:
        simulate({})
    copied = pickle.loads(pickle.dumps(caught.value))
    assert (str(copied), copied.problems) == (str(caught.value), caught.value.problems)


def test_a_notebook_shows_flows_and_directions(sweep: Sweep) -> None:
    shown = sweep.results[0]._repr_html_()
    # TCP flows, UDP flows, and the link.
    assert shown.count("<caption>") == 3
    assert shown.count("<table>") == shown.count("</table>")
    assert ">forward<" in shown
    assert "Mbit/s" in shown or "kbit/s" in shown
    assert "<table" in sweep._repr_html_()
