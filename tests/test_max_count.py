"""The search for the largest count that meets thresholds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import Program

from bentpipe import Scenario, UsageError, max_count
from bentpipe.errors import RunsInterrupted
from bentpipe.results import Result
from bentpipe.simulation import search as module
from bentpipe.simulation.executor import run_jobs

HOP = {"rate": "1 Mbit/s", "delay": "100 ms"}
MOS = "flows.mos.p5 >= 3.6"


def scenario(*traffic: dict[str, Any], thresholds: list[str] | None = None) -> Any:
    """Return calls (80 kbit/s of IP packets each way) on a link of 1 Mbit/s."""
    calls = traffic or ({"name": "call", "kind": "voice"},)
    return Scenario.from_dict(
        {
            "name": "Calls",
            "link": {"forward": HOP, "return": HOP},
            "traffic": list(calls),
            "duration": "10 s",
            "thresholds": [MOS] if thresholds is None else thresholds,
        }
    )


def test_as_many_calls_fit_as_the_rate_carries() -> None:
    """12 calls need 0.96 Mbit/s; 13 need 1.04 of 1 Mbit/s: 4 % of 10 s fill the queue of 100."""
    found = max_count(scenario(), seeds=2)
    assert (found.count, found.fails, found.converged) == (12, 13, True)
    assert [trial.count for trial in found.trials] == [1, 2, 4, 8, 16, 12, 14, 13]
    assert found.reason is not None
    assert found.reason.threshold.text == MOS
    assert found.seeds == (1, 2)


def test_any_entry_with_a_count_can_be_varied() -> None:
    """Datagrams of 1,250 bytes of IP at 100 kbit/s: ten fill the link, eleven lose 9 %."""
    stream = {
        "name": "stream",
        "kind": "constant_rate",
        "direction": "forward",
        "rate": "97.76 kbit/s",
        "payload": "1222 B",
    }
    call = {"name": "call", "kind": "voice", "direction": "return"}
    made = scenario(stream, call, thresholds=["flows.stream.loss_percent.max <= 1 %"])
    found = max_count(made, entry="stream", seeds=1)
    assert (found.entry, found.count, found.fails) == ("stream", 10, 11)
    # Without a name it is the only call.
    assert max_count(made, seeds=1, bound=2).entry == "call"


def test_the_search_ends_at_its_bound() -> None:
    found = max_count(scenario(), seeds=1, bound=6)
    assert (found.count, found.fails, found.converged) == (6, None, True)
    assert [trial.count for trial in found.trials] == [1, 2, 4, 6]


def test_not_even_one_may_pass() -> None:
    found = max_count(scenario(thresholds=["flows.mos.min > 4.45"]), seeds=1)
    assert (found.count, found.fails, found.converged) == (None, 1, True)


def test_a_trial_takes_the_worst_seed() -> None:
    """Given 5 % random loss, expect the smallest MOS of the seeds in the check."""
    data = scenario(thresholds=["flows.call.forward.mos <= 5"]).to_dict()
    data["link"]["forward"]["loss"] = "5 %"
    data["thresholds"] = ["flows.call.forward.mos >= 1"]
    made = Scenario.from_dict(data)
    many = max_count(made, seeds=4, bound=1).trials[0].checks[0].value
    each = [
        max_count(made, seeds=1, seed=s, bound=1).trials[0].checks[0].value for s in range(1, 5)
    ]
    assert many == min(value for value in each if value is not None)
    assert len(set(each)) > 1


@pytest.mark.system
def test_the_result_does_not_depend_on_the_number_of_threads() -> None:
    one = max_count(scenario(), seeds=3, threads=1)
    assert one.to_json() == max_count(scenario(), seeds=3, threads=3).to_json()


def test_ctrl_c_keeps_the_counts_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def interrupted(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 3:
            raise RunsInterrupted("3 runs are complete")
        return run_jobs(*arguments, **options)

    monkeypatch.setattr(module, "run_jobs", interrupted)
    found = max_count(scenario(), seeds=1)
    assert (found.count, found.fails, found.interrupted) == (4, None, True)
    assert not found.converged


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"entry": "cell"}, 'did you mean "call"'),
        ({"bound": 0}, "max: read 0; must be 1 to 5000"),
        ({"bound": 5_001}, "must be 1 to 5000, by the number of flows"),
        ({"seeds": 0}, "seeds: read 0"),
        ({"seed": -1}, "seed"),
    ],
)
def test_bad_searches_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        max_count(scenario(), **options)


def test_a_search_needs_thresholds_and_one_entry() -> None:
    with pytest.raises(UsageError, match="the scenario has none; add one"):
        max_count(scenario(thresholds=[]))
    calls = [{"name": name, "kind": "voice"} for name in ("a", "b")]
    with pytest.raises(UsageError, match="name one of: a, b"):
        max_count(scenario(*calls))


def test_the_command_prints_the_answer_and_writes_the_report(
    bentpipe: Program, tmp_path: Path
) -> None:
    file, out = tmp_path / "calls.yaml", tmp_path / "out"
    file.write_text(json.dumps(scenario(thresholds=[]).to_dict()))
    command = ("search", "max-count", file, "--threshold", MOS, "--seeds", "1", "--max", "20")
    called = bentpipe(*command, "--out", out)
    assert called.code == 0
    assert "at most 12 of call meet the thresholds; at 13, flows.mos.p5 >= 3.6" in called.out
    assert (out / "trials.csv").read_text().startswith("count,passed,threshold,value\n1,")
    printed = json.loads(bentpipe(*command, "--json").out)
    assert printed == json.loads((out / "search.json").read_text())
    assert (printed["count"], printed["fails"]) == (12, 13)
    assert "at most 12 of call" in (out / "report.html").read_text()
    refused = bentpipe("search", "max-count", file)
    assert (refused.code, "the scenario has none" in refused.err) == (2, True)
    with pytest.raises(UsageError, match="result of a search"):
        Result.load(out)
