"""The search for the largest value that meets thresholds, against limits that can be worked out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import Program
from hypothesis import given, strategies as st

from bentpipe import Scenario, search
from bentpipe.errors import RunsInterrupted, ScenarioError, UsageError
from bentpipe.report import search_tables
from bentpipe.results import Result
from bentpipe.results.views import View
from bentpipe.simulation import Job, Limit
from bentpipe.simulation.executor import run_jobs
from bentpipe.simulation.limits import Bracket
from bentpipe.simulation.run import Outcome

HOP = {"rate": "1 Mbit/s", "delay": "100 ms"}
MOS = "flows.mos.p5 >= 3.6"
# Datagrams of 1,250 bytes of IP, at 100 kbit/s.
STREAM = {
    "name": "stream",
    "kind": "constant_rate",
    "direction": "forward",
    "rate": "97.76 kbit/s",
    "payload": "1222 B",
}
LOSS = "flows.stream.loss_percent.max <= 1 %"


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


def ends(limit: Limit) -> tuple[int | None, int | None, bool]:
    return limit.passes, limit.fails, limit.converged


# --- the bracket --------------------------------------------------------------------------------


def narrowed(bracket: Bracket, limit: int, first: int) -> list[int]:
    """Search from a first value; return those tried.

    All up to the limit pass, or all from it on if the smallest is searched.
    """
    tried = []
    value: int | None = first
    while value is not None:
        tried.append(value)
        bracket.record(value, passed=value >= limit if bracket.smallest else value <= limit)
        value = bracket.next()
    return tried


@given(
    st.integers(0, 3_000),
    st.integers(1, 100),
    st.integers(0, 2_000),
    st.none() | st.integers(-5, 3_000),
    st.sampled_from([0.0, 1e-4, 0.005, 0.1, 0.5]),
)
def test_a_bracket_ends_at_the_limit(
    limit: int, low: int, span: int, guess: int | None, resolution: float
) -> None:
    """Given that all values up to a limit pass, expect its bracket, whatever the guess."""
    high = low + span
    bracket = Bracket(min=low, max=high, resolution=resolution)
    first = low if guess is None else min(max(guess, low), high)
    tried = narrowed(bracket, limit, first)
    assert bracket.next() is None
    assert len(set(tried)) == len(tried)
    assert guess is not None or len(tried) <= bracket.max_trials
    assert all(low <= value <= high for value in tried)
    passes, fails = bracket.passes, bracket.fails
    assert (passes is None, fails is None) == (limit < low, limit >= high)
    assert passes in {None, high} or limit < high
    if passes is None:
        assert fails == low
    elif fails is not None:
        assert passes <= limit < fails
        assert fails - passes <= max(1, resolution * passes)


@given(
    st.integers(0, 3_000),
    st.integers(1, 100),
    st.integers(0, 2_000),
    st.sampled_from([0.0, 1e-4, 0.005, 0.1, 0.5]),
)
def test_a_bracket_of_the_smallest_value_ends_at_the_limit(
    limit: int, low: int, span: int, resolution: float
) -> None:
    """Given that all values from a limit on pass, expect its bracket."""
    bracket = Bracket(min=low, max=low + span, resolution=resolution, smallest=True)
    tried = narrowed(bracket, limit, low)
    assert len(set(tried)) == len(tried) <= bracket.max_trials
    assert all(low <= value <= low + span for value in tried)
    passes, fails = bracket.passes, bracket.fails
    assert (passes is None, fails is None) == (limit > low + span, limit <= low)
    if passes is not None and fails is not None:
        assert fails < limit <= passes
        assert passes - fails <= max(1, resolution * fails)


def test_a_bracket_is_no_narrower_than_needed() -> None:
    """Given 10 %, expect the end at 144 and 153: 9 is within 10 % of 144, 18 is not."""
    bracket = Bracket(min=1, max=1_000, resolution=0.1)
    assert narrowed(bracket, 150, 135) == [135, 270, 202, 168, 151, 143]


def test_a_bracket_is_halved_until_a_value_passes() -> None:
    assert narrowed(Bracket(min=1, max=1_000), 10, 100) == [100, 50, 25, 12, 6, 9, 10, 11]


# --- any field ----------------------------------------------------------------------------------


def test_as_many_calls_fit_as_the_rate_carries() -> None:
    """12 calls need 0.96 Mbit/s; 13 need 1.04 of 1 Mbit/s: 4 % of 10 s fill the queue of 100."""
    found = search(scenario(), seeds=2)
    (limit,) = found.limits
    assert (*ends(limit), limit.resolution) == (12, 13, True, 0.0)
    assert [trial.value for trial in limit.trials] == [1, 2, 4, 8, 16, 12, 14, 13]
    assert limit.reason is not None
    assert limit.reason.to_json()["threshold"] == MOS
    assert (found.path, found.unit, found.seeds) == ("traffic.call.count", "", (1, 2))


def test_any_count_can_be_varied() -> None:
    """Given streams of 100 kbit/s, expect ten to fill the link, and eleven to lose 9 %."""
    call = {"name": "call", "kind": "voice", "direction": "return"}
    made = scenario(STREAM, call, thresholds=[LOSS])
    (limit,) = search(made, "traffic.stream.count", seeds=1).limits
    assert ends(limit) == (10, 11, True)
    # Without a path it is that of the only call, or the only one that is written.
    assert search(made, seeds=1, bound=2).path == "traffic.call.count"
    made = scenario(STREAM | {"count": 2}, call, thresholds=[LOSS])
    assert search(made, seeds=1, bound=2).path == "traffic.stream.count"


@pytest.mark.parametrize(
    ("path", "bound", "threshold", "unit", "expected"),
    [
        # In 10 s the link carries 1,000 packets and 100 wait: 1,111 may be sent if 1 % may be lost.
        ("traffic.stream.rate", "20 Mbit/s", LOSS, "bps", 1_111 * 8 * 1_222 / 10),
        # A packet takes 10 ms to send.
        ("link.*.delay", "20 s", "flows.stream.one_way_delay_max_ns <= 250 ms", "ns", 240e6),
    ],
)
def test_a_quantity_is_searched_in_its_base_unit(
    path: str, bound: str, threshold: str, unit: str, expected: float
) -> None:
    found = search(scenario(STREAM, thresholds=[threshold]), path, seeds=1, bound=bound)
    (limit,) = found.limits
    assert (found.unit, limit.resolution, limit.converged) == (unit, 0.005, True)
    assert limit.trials[0].value == limit.max // 1_000
    assert limit.passes == pytest.approx(expected, rel=0.01)


def test_the_smallest_rate_is_found_where_more_is_better() -> None:
    """Given packets of 10,000 bits and 100 ms of delay, expect 200 kbit/s for 150 ms at most."""
    delay = "flows.stream.one_way_delay_max_ns <= 150 ms"
    made = scenario(STREAM, thresholds=[delay])
    found = search(made, "link.forward.rate", seeds=1, bound="10 Mbit/s", smallest=True)
    (limit,) = found.limits
    assert limit.converged
    assert (limit.fails or 0) < 200_000 <= (limit.passes or 0) <= 201_000
    said, _, note = map(str, search_tables(found))
    assert "link.forward.rate: the smallest value that meets the thresholds is 20" in said
    assert "every value below one that fails fails" in note
    low = search(made, "link.forward.rate", seeds=1, bound="10 Mbit/s")
    assert "even 10 kbit/s misses the thresholds; at" in str(search_tables(low)[0])
    assert str(search_tables(low)[0]).endswith("; if larger values are better, use --smallest")
    high = search(made, "link.forward.rate", seeds=1, bound="150 kbit/s", smallest=True)
    assert "even 150 kbit/s misses the thresholds; at" in str(search_tables(high)[0])
    first = search(made, "link.forward.rate", seeds=1, bound="300 Mbit/s", smallest=True)
    said = str(search_tables(first)[0])
    assert said.endswith("300 kbit/s meets the thresholds, and no smaller value was tried (--max)")


def test_a_search_begins_with_a_value_that_fits() -> None:
    """Given 2 Mbit/s on 1 Mbit/s, expect a queue of 89 packets of 10 ms for a delay up to 1 s.

    A thousandth of 1 MB is less than a packet.
    """
    delay = "flows.stream.one_way_delay_max_ns <= 1 s"
    made = scenario(STREAM | {"rate": "2 Mbit/s"}, thresholds=[delay])
    found = search(made, "link.forward.queue.limit", seeds=1, bound="1 MB")
    (limit,) = found.limits
    assert (found.unit, limit.trials[0].value) == ("bytes", 2_000)
    assert 89 * 1_250 <= (limit.passes or 0) < 90 * 1_250


def no_runs(_jobs: Sequence[Job]) -> Sequence[Outcome]:
    raise RunsInterrupted("no run is complete")


def test_the_default_bound_is_what_the_field_allows() -> None:
    """Given that a browser opens at most 256 connections, expect no refusal of the default 1000."""
    page = {"name": "page", "kind": "web_page", "direction": "forward", "pages": 1, "http": "1.1"}
    sizes = {"objects": 2, "document": "4 kB", "object": "6 kB"}
    made = scenario(page | sizes, thresholds=["pages.load_time_ns.max <= 9 s"])
    found = search(made, "traffic.page.connections", run=no_runs)
    assert (found.limits[0].min, found.limits[0].max) == (1, 256)
    with pytest.raises(ScenarioError, match="must be at most 256"):
        search(made, "traffic.page.connections", bound=257, run=no_runs)


def test_the_default_bound_is_what_other_fields_allow() -> None:
    """Given 8 terminals and a conference of one participant each, expect 2 to 8."""
    talk = {"kind": "conference", "rate": "8 kbit/s", "payload": "160 B", "participants": 2}
    data = scenario(thresholds=["flows.goodput_bps.min >= 1 kbit/s"]).to_dict()
    data |= {"traffic": [talk], "link": {**data["link"], "terminals": 8}}
    found = search(data, "traffic.0.participants", run=no_runs)
    assert (found.limits[0].min, found.limits[0].max) == (2, 8)


def test_the_default_seeds_end_at_the_largest_seed() -> None:
    found = search(scenario(), bound=1, seed=2**64 - 2, run=no_runs)
    assert found.seeds == (2**64 - 2, 2**64 - 1)


def test_the_search_ends_at_its_bound() -> None:
    (limit,) = search(scenario(), seeds=1, bound=6).limits
    assert ends(limit) == (6, None, True)
    assert [trial.value for trial in limit.trials] == [1, 2, 4, 6]


def test_not_even_one_may_pass() -> None:
    (limit,) = search(scenario(thresholds=[]), thresholds=["flows.mos.min > 4.45"], seeds=1).limits
    assert ends(limit) == (None, 1, True)


def test_a_trial_takes_the_worst_seed() -> None:
    """Given 5 % random loss, expect the smallest MOS of the seeds in the check."""
    data = scenario(thresholds=["flows.call.forward.mos <= 5"]).to_dict()
    data["link"]["forward"]["loss"] = "5 %"
    data["thresholds"] = ["flows.call.forward.mos >= 1"]
    made = Scenario.from_dict(data)

    def mos(**options: Any) -> float:
        (limit,) = search(made, bound=1, **options).limits
        return float(limit.trials[0].checks[0].to_json()["value"])

    each = [mos(seeds=1, seed=seed) for seed in range(1, 5)]
    assert mos(seeds=4) == min(each)
    assert len(set(each)) > 1


@pytest.mark.system
def test_the_result_does_not_depend_on_the_number_of_threads() -> None:
    one, three = (search(scenario(), seeds=3, threads=threads) for threads in (1, 3))
    assert one.to_json() == three.to_json()


def test_ctrl_c_keeps_the_counts_so_far() -> None:
    calls = 0

    def interrupted(jobs: Sequence[Job]) -> Sequence[Outcome]:
        nonlocal calls
        calls += 1
        outcomes = run_jobs(jobs)
        if calls > 3:
            raise RunsInterrupted("one of two seeds is complete", outcomes=outcomes[:1])
        return outcomes

    found = search(scenario(), seeds=2, run=interrupted)
    assert found.interrupted
    assert ends(found.limits[0]) == (4, None, False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "traffic.call.conut"}, 'traffic.0.conut: .*did you mean "count"'),
        ({"path": "traffic.cell.count"}, 'no entry "cell"; did you mean "call"'),
        ({"path": "link.forward.delay"}, r"max: link.forward.delay has a unit; .* --max '275 ms'"),
        ({"bound": 0}, "max: read 0; must be above zero"),
        ({"bound": "many"}, 'max: read "many"; expected an integer, a rate, a time or a size'),
        ({"bound": 0.5}, "max: read 0.5; expected an integer"),
        ({"bound": True}, "max: read true; expected an integer"),
        ({"bound": 5_001}, "traffic.call.count=5001: traffic: has 10002 flows; at most 10000"),
        ({"thresholds": ["flows.call.forward.mos > 3"]}, "names 1000 flows; add a statistic"),
        ({"seeds": 0}, "seeds: read 0"),
        ({"seed": -1}, "seed"),
        ({"resolution": 0.6}, "resolution: read 60"),
    ],
)
def test_bad_searches_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises((UsageError, ScenarioError), match=message):
        search(scenario(), **options)


def test_a_search_needs_thresholds_and_one_count() -> None:
    with pytest.raises(UsageError, match="the scenario has none; add one"):
        search(scenario(thresholds=[]))
    calls = [{"name": name, "kind": "voice"} for name in ("a", "b.c")]
    with pytest.raises(UsageError, match=r"name one of: traffic.a.count, traffic.1.count"):
        search(scenario(*calls))


def test_the_command_prints_the_answer_and_writes_the_report(
    bentpipe: Program, tmp_path: Path
) -> None:
    file, out = tmp_path / "calls.yaml", tmp_path / "out"
    file.write_text(json.dumps(scenario(thresholds=[]).to_dict()))
    command = ("search", file, "--threshold", MOS, "--seeds", "1", "--max", "20")
    called = bentpipe(*command, "--out", out)
    assert called.code == 0
    answer = "Calls: traffic.call.count: the largest value that meets the thresholds is 12"
    assert f"{answer}; at 13, flows.mos.p5 >= 3.6" in called.out
    assert "Trials: seed 1\n" in called.out
    assert (out / "trials.csv").read_text().startswith(f"traffic.call.count,passed,{MOS}\n1,True,")
    printed = json.loads(bentpipe(*command, "--json").out)
    assert printed == json.loads((out / "search.json").read_text())
    assert [(each["passes"], each["fails"]) for each in printed["limits"]] == [(12, 13)]
    assert answer in (out / "report.html").read_text()
    refused = bentpipe("search", file)
    assert (refused.code, "the scenario has none" in refused.err) == (2, True)
    with pytest.raises(UsageError, match="result of a search"):
        Result.load(out)


@pytest.mark.parametrize(
    ("bound", "threshold", "answer"),
    [
        (2, MOS, "2 meets the thresholds, and no larger value was tried (--max)"),
        (2, "flows.mos.p5 >= 4.6", "even 1 misses the thresholds; at 1, flows.mos.p5 >= 4.6"),
    ],
)
def test_an_answer_says_what_was_tried(bound: int, threshold: str, answer: str) -> None:
    """Given calls that all pass up to the bound, or none, expect no "at least 2 meets"."""
    found = search(scenario(thresholds=[threshold]), "traffic.call.count", bound=bound, seeds=2)
    said, view, *_ = search_tables(found)
    assert str(said).startswith(f"Calls: traffic.call.count: {answer}")
    assert isinstance(view, View)
    assert view.title == "Trials: the worst of seeds 1 to 2"
