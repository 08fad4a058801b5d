"""Thresholds: how metrics are named, what is refused, verdicts, exit codes and JUnit files."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import polars as pl
import pytest
from conftest import PLAIN, SMALL, Program
from hypothesis import example, given, strategies as st
from properties import attempt, examples

from bentpipe import Plan, Result, simulate
from bentpipe.cli.thresholds import junit_text
from bentpipe.errors import ScenarioError, UsageError
from bentpipe.metrics import KEYS, metrics_of
from bentpipe.results import check_thresholds
from bentpipe.results.measures import jain
from bentpipe.results.metric_values import ThresholdCheck, metric_value, threshold_view
from bentpipe.scenario.metric_ref import MetricRef, read_metric, read_threshold

GOODPUT = "flows.bulk-1.goodput_bps"
MET = f"{GOODPUT} >= 1 Mbit/s"
MISSED = f"{GOODPUT} >= 1 Gbit/s"


def checks_of(result: Result, *thresholds: str) -> list[dict[str, Any]]:
    return [check.to_json() for check in check_thresholds(result, thresholds)]


def scenario_with(*thresholds: str, **changes: Any) -> dict[str, Any]:
    return {**copy.deepcopy(SMALL), **changes, "thresholds": list(thresholds)}


# --- names --------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", KEYS)
def test_every_number_of_a_result_has_a_metric(table: str, every_result: Result) -> None:
    """Given the tables of a result, expect a metric for each column that is not a key."""
    keys = {"flow", "terminal", "exchange", "host", "page", "direction", "processor"}
    frame = getattr(every_result, table)
    numbers = {name for name, dtype in frame.schema.items() if dtype.is_numeric()} - keys
    assert set(metrics_of(table)) == numbers


@pytest.mark.parametrize(
    ("text", "metric"),
    [
        ("flows.goodput_bps.p5", MetricRef("flows", "goodput_bps", "p5")),
        ("flows.call.return.jitter_ns", MetricRef("flows", "jitter_ns", None, "call", "return")),
        (
            "flows.return.goodput_bps.p999",
            MetricRef("flows", "goodput_bps", "p999", None, "return"),
        ),
        ('flows."a.b".goodput_bps.jain', MetricRef("flows", "goodput_bps", "jain", "a.b")),
        ('flows."return".goodput_bps', MetricRef("flows", "goodput_bps", None, "return")),
        (
            "directions.forward.utilization",
            MetricRef("directions", "utilization", None, None, "forward"),
        ),
    ],
)
def test_names_are_read_and_written(text: str, metric: MetricRef) -> None:
    assert read_metric(text) == metric
    assert str(metric) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("flow.goodput_bps.p5", 'did you mean "flows"'),
        ("flows.goodput.p5", 'no column "goodput"; did you mean "goodput_bps"'),
        ("flows.x.goodput_bp", 'did you mean "goodput_bps"'),
        ("flows.goodput_bps.p95th", "statistic"),
        ("flows.goodput_bps.p101", "statistic"),
        ("flows.goodput_bps.p05", "statistic"),
        ("flows.goodput_bps.p5.", "expected names with dots"),
        ("flows", "expected TABLE.COLUMN.STATISTIC"),
        ("flows.a.b.goodput_bps.p5", "a name with dots goes in double quotes"),
        ("flows..goodput_bps", "expected names with dots"),
        ("", "expected names with dots"),
    ],
)
def test_an_unknown_metric_is_refused_with_the_nearest_name(text: str, message: str) -> None:
    with pytest.raises(UsageError, match="metric") as caught:
        read_metric(text)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("flows.goodput_bps.p5 >= 2 Mbit/s", 2e6),
        ("flows.completion_time_ns.max<10 s", 10e9),
        ("directions.utilization.max <= 80 %", 0.8),
        ("directions.utilization.max <= 0.8", 0.8),
        ("flows.loss_percent.max <= 1%", 1.0),
        ("flows.lost_packets.sum == 0", 0.0),
        ("flows.lost_packets.sum < 5 packets", 5.0),
        ("flows.goodput_bps.jain > 0.9", 0.9),
        ("directions.queue_max_bytes.max < 120 kB", 120_000),
        ('flows."a=b".lost_packets.sum == 0', 0.0),
    ],
)
def test_a_limit_has_the_unit_of_its_metric(text: str, limit: float) -> None:
    assert read_threshold(text).limit == pytest.approx(limit)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("flows.goodput_bps.p5", "expected METRIC"),
        ("flows.goodput_bps.p5 => 2 Mbit/s", "expected METRIC"),
        ("flows.goodput_bps.p5 != 2 Mbit/s", "expected METRIC"),
        ("flows.goodput_bps.p5 >= 2", "the unit is missing"),
        ("flows.goodput_bps.p5 >= 2 ms", "not a unit of rate"),
        ("flows.loss_percent.max < 1", 'expected a number, such as "5 %"'),
        ("flows.goodput_bps.jain > 1 Mbit/s", "expected a number"),
    ],
)
def test_a_wrong_limit_is_refused(text: str, message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        Plan.resolve(scenario_with(text))
    assert caught.value.problems[0].field == "thresholds.0"
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("flows.bulk.goodput_bps > 1 bit/s", 'did you mean "bulk-1"'),
        ("flows.goodput_bps > 1 bit/s", "names 2 flows; add a statistic"),
        ("flows.call.forward.goodput_bps > 1 bit/s", 'read "call"; allowed: bulk-1'),
        ("directions.up.utilization < 1", "allowed: forward, return"),
        ("processors.utilization.max < 1", "the scenario has no processors"),
        ("exchanges.time_ns.p95 < 1 s", "the scenario has no exchanges"),
    ],
)
def test_a_name_that_the_result_will_not_have_is_refused_before_the_run(
    text: str, message: str
) -> None:
    with pytest.raises(ScenarioError) as caught:
        Plan.resolve(scenario_with(MET, text))
    assert caught.value.problems[0].field == "thresholds.1"
    assert message in str(caught.value)


def test_thresholds_are_no_part_of_the_plan() -> None:
    assert Plan.resolve(scenario_with(MET)).data == Plan.resolve(SMALL).data


# --- values -------------------------------------------------------------------------------------


def test_statistics_are_those_of_the_values(every_result: Result) -> None:
    """Given the goodputs of all flows and numpy's percentiles, expect the same."""
    values = every_result.flows["goodput_bps"].to_numpy()
    expected = {
        "min": values.min(),
        "mean": values.mean(),
        "sum": values.sum(),
        "p5": np.percentile(values, 5),
        "p100": values.max(),
        "p999": np.percentile(values, 99.9),
        "jain": jain(values),
    }
    for statistic, value in expected.items():
        metric = read_metric(f"flows.goodput_bps.{statistic}")
        assert metric_value(every_result, metric) == pytest.approx(value)


def test_names_select_flows_entries_and_directions(every_result: Result) -> None:
    flows = every_result.flows
    (entry,) = flows.filter(kind="request_response")["entry"].unique()
    for name, own in (
        (f'flows."{entry}"', flows.filter(entry=entry)),
        (f'flows."{flows["name"][0]}"', flows[:1]),
        ("flows.forward", flows.filter(direction="forward")),
        ("flows.return", flows.filter(pl.col("direction").str.starts_with("return"))),
    ):
        found = metric_value(every_result, read_metric(f"{name}.delivered_bytes.sum"))
        assert found == (own["delivered_bytes"].sum() if own.height else None)
    times_ns = every_result.exchanges["time_ns"].drop_nulls()
    metric = read_metric(f'exchanges."{entry}".time_ns.max')
    assert metric_value(every_result, metric) == times_ns.max()
    returns = every_result.directions.filter(pl.col("direction") != "forward")
    metric = read_metric("directions.return.utilization.max")
    assert metric_value(every_result, metric) == returns["utilization"].max()


def test_a_transfer_that_did_not_end_misses_a_limit_of_its_time() -> None:
    """Given one of two transfers that cannot end, expect the maximum to be missed."""
    bulk = SMALL["traffic"][0]
    traffic = [{**bulk, "name": "short"}, {**bulk, "name": "long", "size": "1 GB"}]
    result = simulate(
        scenario_with(
            "flows.completion_time_ns.max < 1 h",
            "flows.completion_time_ns.p95 < 1 h",
            "flows.short.completion_time_ns < 1 h",
            traffic=traffic,
        )
    )
    longest, high, short = check_thresholds(result)
    assert not longest.passed
    assert not high.passed
    assert longest.message == "flows.completion_time_ns.max < 1 h: did not end"
    assert longest.to_json()["value"] is None
    assert short.passed


def test_a_metric_without_a_value_misses_its_threshold() -> None:
    """Given the loss of a TCP flow, which is not known, expect a failure that says so."""
    (check,) = check_thresholds(simulate(scenario_with("flows.bulk-1.loss_percent < 1 %")))
    assert not check.passed
    assert check.message == "flows.bulk-1.loss_percent < 1 %: no value"


@pytest.mark.parametrize(
    ("operator", "passes"), [(">=", True), ("<=", True), ("==", True), (">", False), ("<", False)]
)
def test_a_value_at_the_limit(small_result: Result, operator: str, passes: bool) -> None:
    """Given a call of which nothing is lost, expect 0 to meet all but the strict comparisons."""
    (check,) = check_thresholds(small_result, [f"flows.call.lost_packets {operator} 0"])
    assert check.passed is passes


def test_a_table_says_by_how_much_a_limit_was_missed(small_result: Result) -> None:
    """Given a call of 100 datagrams, expect also the share of the limit unless that is 0."""
    limits = [f"flows.call.expected_segments {limit}" for limit in ("<= 100", ">= 200", "== 0")]
    limits.append("flows.bulk-1.loss_percent < 1 %")
    manifest = {**small_result.manifest, "scenario": {"thresholds": limits}}
    view = threshold_view(Result(manifest, small_result.tables))
    assert view is not None
    assert (view.title, [each.title for each in view.columns]) == (
        "Thresholds",
        ["threshold", "limit", "value", "missed by", "result"],
    )
    assert view.texts() == [
        ["call: expected <=", "100 segments", "100 segments", "-", "passed"],
        ["call: expected >=", "200 segments", "100 segments", "100 segments (50 %)", "FAILED"],
        ["call: expected ==", "0 segments", "100 segments", "100 segments", "FAILED"],
        ["bulk-1: loss <", "1 %", "no value", "-", "FAILED"],
    ]


@pytest.mark.parametrize(
    ("limit", "value", "margin"),
    [
        ("< 5", 6, (False, -1)),
        ("<= 5", 4, (True, 1)),
        ("> 5", 7, (True, 2)),
        (">= 5", 2, (False, -3)),
        ("== 5", 5, (True, 0)),
        ("== 5", 8, (False, -3)),
        ("== 5", None, (False, -math.inf)),
    ],
)
def test_a_margin_is_how_far_a_value_is_on_the_right_side(
    limit: str, value: float | None, margin: tuple[bool, float]
) -> None:
    check = ThresholdCheck(read_threshold(f"flows.lost_packets.sum {limit}"), value)
    assert check.margin == margin


def test_percentages_miss_a_limit_by_points() -> None:
    threshold = read_threshold("directions.forward.loss_percent <= 1 %")
    message = ThresholdCheck(threshold, 8.56).message
    assert message == f"{threshold.text}: 8.56 %, missed by 7.56 points (756 %)"


# --- the command line ---------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "scenario.yaml"
    path.write_text(json.dumps(scenario_with(MET, **PLAIN)))
    return path


@pytest.mark.system
def test_a_run_that_misses_a_threshold_exits_with_99(
    bentpipe: Program, file: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert bentpipe("run", file).code == 0
    called = bentpipe("run", file, "--threshold", MISSED, "--out", out)
    assert called.code == 99
    assert "1 of 2 thresholds failed" in called.err
    assert f"{MISSED}: " in called.err
    assert "missed by 99" in called.err
    assert "FAILED" in called.out
    # The result is kept; verdicts are derived from it.
    result = Result.load(out)
    assert result.manifest["scenario"]["thresholds"] == [MET, MISSED]
    assert [each.passed for each in check_thresholds(result)] == [True, False]
    assert "FAILED" in (out / "report.html").read_text()


def test_thresholds_are_in_the_json(bentpipe: Program, file: Path) -> None:
    called = bentpipe("run", file, "--json", "--threshold", MISSED)
    assert called.code == 99
    met, missed = json.loads(called.out)["thresholds"]
    assert (met["threshold"], met["passed"], met["limit"]) == (MET, True, 1e6)
    assert missed == {
        "threshold": MISSED,
        "metric": GOODPUT,
        "operator": ">=",
        "limit": 1e9,
        "value": met["value"],
        "passed": False,
        "message": missed["message"],
    }
    assert "thresholds" not in json.loads(
        bentpipe("run", file, "--set", "thresholds=[]", "--json").out
    )


def test_a_wrong_threshold_runs_nothing(bentpipe: Program, file: Path, tmp_path: Path) -> None:
    out, junit = tmp_path / "out", tmp_path / "no" / "junit.xml"
    called = bentpipe("run", file, "--threshold", "flows.goodput >= 1 Mbit/s", "--out", out)
    assert called.code == 2
    assert called.err.count("\n") == 1
    assert 'did you mean "goodput_bps"' in called.err
    called = bentpipe("run", file, "--junit", junit, "--out", out)
    assert (called.code, "there is no folder" in called.err) == (2, True)
    assert not out.exists()


@pytest.mark.system
def test_the_result_of_an_earlier_run_is_checked(
    bentpipe: Program, plain_result: Result, tmp_path: Path
) -> None:
    plain_result.save(tmp_path / "out")
    assert bentpipe("report", tmp_path / "out", "--threshold", MET).code == 0
    called = bentpipe("report", tmp_path / "out", "--threshold", MISSED)
    assert called.code == 99
    assert "1 of 1 thresholds failed" in called.err
    called = bentpipe("report", tmp_path / "out", "--threshold", "flows.x.goodput_bps > 1 bit/s")
    assert called.code == 2


# --- JUnit --------------------------------------------------------------------------------------


def test_a_junit_file_has_a_case_a_threshold(bentpipe: Program, file: Path, tmp_path: Path) -> None:
    junit = tmp_path / "junit.xml"
    assert bentpipe("run", file, "--threshold", MISSED, "--junit", junit).code == 99
    suite = ET.parse(junit).getroot().find("testsuite")
    assert suite is not None
    assert (suite.get("name"), suite.get("tests"), suite.get("failures")) == ("small", "2", "1")
    met, missed = suite.findall("testcase")
    assert met.get("name") == MET
    assert met.find("failure") is None
    failure = missed.find("failure")
    assert failure is not None
    assert str(failure.get("message")).startswith(f"{MISSED}: ")


def test_names_are_escaped(small_result: Result) -> None:
    """Given a name with markup and a control character, which XML has no form of, expect XML."""
    checks = checks_of(small_result, MET)
    root = ET.fromstring(junit_text('<a> & "b" \x07', small_result.manifest, checks))
    suite = root.find("testsuite")
    assert suite is not None
    assert suite.get("name") == '<a> & "b" \N{REPLACEMENT CHARACTER}'


def test_cases_of_an_invalid_run_are_errors(small_result: Result) -> None:
    checks = checks_of(small_result, MET, MISSED)
    root = ET.fromstring(junit_text("small", {}, checks, error="late by 20 ms"))
    assert (root.get("failures"), root.get("errors")) == ("0", "2")
    assert [each.get("message") for each in root.iter("error")] == ["late by 20 ms"] * 2


# --- any text -----------------------------------------------------------------------------------

PARTS = st.sampled_from(
    [*KEYS, *metrics_of("flows"), "forward", "return", "call", "p5", "p999", "jain"]
)
NAMES = st.lists(PARTS | st.text(max_size=8).map('"{}"'.format), max_size=5).map(".".join)
LIMITS = st.sampled_from(["2 Mbit/s", "5 %", "10 ms", "1e400", "-1", "nan", "inf", "", "3 kB"])
LINES = st.builds("{} {} {}".format, NAMES, st.sampled_from([">=", "<", "==", "=>", ""]), LIMITS)


@pytest.mark.system
@given(text=st.text(max_size=40) | LINES)
@example(text="flows.goodput_bps.jain >= 1e99")
@examples(300)
def test_any_text_is_a_threshold_or_refused(text: str) -> None:
    """Given any text, expect a finite limit and a name that reads back, or a UsageError."""
    found = attempt(UsageError, lambda: read_threshold(text))
    if isinstance(found, UsageError):
        return
    assert math.isfinite(found.limit)
    assert read_metric(str(found.metric)) == found.metric
