"""The registry of metrics: complete, without duplicates, and consistent with the tables."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from pathlib import Path
from typing import Any, get_args

import polars as pl
import pytest
from conftest import SMALL, Program

import bentpipe
from bentpipe import compare, metrics
from bentpipe.errors import UsageError
from bentpipe.metrics import (
    ALL,
    CALLS,
    COLUMNS,
    EXCHANGES,
    KEYS,
    KINDS_OF_ROWS,
    METRICS,
    TCP,
    UDP,
    Metric,
    ShownIn,
    label_of,
    metrics_of,
    metrics_shown,
)
from bentpipe.quantities import quantity
from bentpipe.report.sweep import metrics_of as menu_of
from bentpipe.results.metric_values import metric_values, of_runs
from bentpipe.scenario.gateways import FunctionName
from bentpipe.scenario.metric_ref import read_metric
from bentpipe.scenario.traffic import FLOWS

PLACES = get_args(ShownIn)


def test_every_column_of_the_simulator_is_a_metric_or_a_key() -> None:
    for table, keys in KEYS.items():
        own = (name for name in metrics_of(table) if name in COLUMNS[table])
        assert Counter([*keys, *own]) == Counter(COLUMNS[table])


def test_tables_whose_columns_thresholds_do_not_have_are_hidden_by_name() -> None:
    samples = {"flow_samples", "datagram_samples", "direction_samples"}
    hidden = {"legs", "capacity", "function_statistics", "events"}
    assert set(COLUMNS) - set(KEYS) == samples | hidden


def test_names_and_labels_are_unique_in_a_table() -> None:
    assert max(Counter((each.table, each.name) for each in METRICS).values()) == 1
    labels = Counter((m.table, m.label, quantity(m.name).units[-1]) for m in METRICS)
    assert max(labels.values()) == 1


def test_each_entry_is_complete() -> None:
    for metric in METRICS:
        assert metric.title, metric
        assert set(metric.shown.split()) <= set(PLACES), metric
        assert not metric.formula or not metric.of, metric
        assert metric.meaning.endswith("."), metric
        # The simulator's schema has the definitions of its columns.
        if metric.name in COLUMNS.get(metric.table, ()):
            assert metric.definition + metric.formula + metric.of == "", metric
        if metric.decimals is not None:
            assert quantity(metric.name).units[-1][0] == "", metric


def test_kinds_of_flow_and_function_are_those_of_plans() -> None:
    # A fetch is a request_response.
    kinds = {*FLOWS, "channel"} - {"fetch", "channels"}
    assert set(TCP) | set(UDP) == kinds
    assert not set(TCP) & set(UDP)
    assert {kind for rows in KINDS_OF_ROWS.values() for kind in rows} <= set(TCP)
    functions = {kind for each in metrics_of("functions").values() for kind in each.kinds}
    assert functions == set(get_args(FunctionName)) - {"processor"}


def test_label_has_title_and_note() -> None:
    flows = metrics_of("flows")
    assert flows["goodput_bps"].label == "goodput, application bits"
    assert flows["start_ns"].label == "start"
    assert flows["lost_queue_full_packets"].label == "lost: queue full"
    # A note that is the unit is not repeated.
    assert flows["sent_segments"].label == "sent"
    assert flows["timeouts"].label == "timeouts, events"
    assert label_of("utilization") == "utilization, busy time / run"
    assert label_of("link.forward.delay_ns") == "link.forward.delay"


def test_a_metric_is_derived_unless_the_simulator_has_it() -> None:
    assert metrics_of("flows")["goodput_bps"].is_derived
    assert not metrics_of("flows")["sent_segments"].is_derived
    assert metrics_of("functions")["hold_time_mean_ns"].is_derived
    assert not metrics_of("functions")["hold_time_max_ns"].is_derived


def test_shown_metrics_are_those_of_the_place_the_table_and_the_kinds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = (
        Metric("flows", "a", "a", shown="run entry"),
        Metric("flows", "b", "b", shown="run", kinds=TCP),
        Metric("flows", "c", "c", shown="entry", kinds=TCP),
        Metric("flows", "d", "d", shown="run", kinds=CALLS),
        Metric("directions", "e", "e", shown="run"),
    )
    monkeypatch.setattr(metrics, "METRICS", own)
    assert [each.name for each in metrics_shown("run", "flows")] == ["a", "b", "d"]
    assert [each.name for each in metrics_shown("run", "flows", ALL, TCP)] == ["a", "b"]
    assert [each.name for each in metrics_shown("run", "flows", EXCHANGES)] == []
    assert [each.name for each in metrics_shown("entry", "flows")] == ["a", "c"]
    assert [each.name for each in metrics_shown("run", "directions")] == ["e"]
    assert list(metrics_of("directions")) == ["e"]


# --- values -------------------------------------------------------------------------------------

# Two runs: two flows of an entry, forward and return, and one of another that has no value.
VALUES = pl.DataFrame(
    {
        "run": [0, 0, 0, 1, 1],
        "name": ["a-1", "a-2", "b", "a-1", "a-2"],
        "entry": ["a", "a", "b", "a", "a"],
        "direction": ["forward", "return-2", "forward", "forward", "return-2"],
        "jitter_ns": [1, 3, None, 0, 0],
        "rtt_mean_ns": [2.0, math.inf, None, 5.0, None],
        "loss_percent": [0.1, 0.5, None, None, None],
    }
)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("flows.jitter_ns.min", {0: 1, 1: 0}),
        ("flows.jitter_ns.max", {0: 3, 1: 0}),
        ("flows.jitter_ns.mean", {0: 2, 1: 0}),
        ("flows.jitter_ns.sum", {0: 4, 1: 0}),
        ("flows.jitter_ns.p25", {0: 1.5, 1: 0}),
        ("flows.jitter_ns.p100", {0: 3, 1: 0}),
        ("flows.jitter_ns.p999", {0: 2.998, 1: 0}),
        # (1 + 3)^2 / (2 (1 + 9)); all zero is fair.
        ("flows.jitter_ns.jain", {0: 0.8, 1: 1}),
        ("flows.loss_percent.jain", {0: 0.36 / 0.52}),
        ("flows.a-1.jitter_ns", {0: 1, 1: 0}),
        ("flows.a.jitter_ns.max", {0: 3, 1: 0}),
        ("flows.a.return.jitter_ns", {0: 3, 1: 0}),
        ("flows.forward.jitter_ns.sum", {0: 1, 1: 0}),
        # A flow without a value is left out.
        ("flows.b.jitter_ns", {}),
        # Between a finite and an infinite value.
        ("flows.rtt_mean_ns.p50", {0: math.inf, 1: 5}),
        ("flows.rtt_mean_ns.p0", {0: 2, 1: 5}),
    ],
)
def test_a_metric_of_each_run(text: str, values: dict[int, float]) -> None:
    found = metric_values(VALUES, read_metric(text))
    assert dict(found.iter_rows()) == pytest.approx(values)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("flows.jitter_ns", "flows.jitter_ns: has several values in a run; add a statistic"),
        ("flows.c.jitter_ns", 'name: read "c"; allowed: a, b, a-1, a-2'),
        ("flows.mos.min", "these results have no column mos"),
    ],
)
def test_a_metric_that_the_rows_do_not_have_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        metric_values(VALUES, read_metric(text))


def test_a_name_is_checked_unless_the_table_is_empty() -> None:
    unknown = read_metric("flows.c.jitter_ns")
    assert metric_values(VALUES[:0], unknown).is_empty()
    with pytest.raises(UsageError, match="allowed: a, a-1"):
        metric_values(VALUES[:1], unknown)


def test_a_table_without_directions_refuses_a_heading() -> None:
    rows = pl.DataFrame({"run": [0], "processor": ["hub-processor"], "busy_ns": [1]})
    with pytest.raises(UsageError, match="the table processors has no directions"):
        metric_values(rows, read_metric("processors.forward.busy_ns"))
    found = metric_values(rows, read_metric("processors.hub-processor.busy_ns"))
    assert found.rows() == [(0, 1.0)]


def test_times_of_what_did_not_end_or_start_are_infinite() -> None:
    rows = pl.DataFrame(
        {
            "flow": [0, 0, 1, 2, 2],
            "completion_time_ns": [5, None, None, None, None],
            "played_ns": [None, None, None, 0, 0],
            "start_up_time_ns": [None, None, None, None, 7],
        }
    )
    sized = {"amount": {"unit": "bytes", "value": 1}}
    workloads: tuple[dict[str, Any], ...] = (
        sized,
        {"amount": {"unit": "duration_ns", "value": 1}},
        {},
    )
    plan = {"flows": [{"name": "x", "workload": workload} for workload in workloads]}
    found = of_runs(rows, "flows", plan, [])
    assert found["completion_time_ns"].to_list() == [5, math.inf, None, None, None]
    assert found["start_up_time_ns"].to_list() == [None, None, None, math.inf, 7]


def test_rows_of_exchanges_and_pages_have_the_entry_of_their_flow() -> None:
    plan = {"flows": [{"name": name} for name in ("a-1", "a-2", "b")]}
    entries: list[dict[str, Any]] = [{"name": "a", "flows": 2}, {"name": None, "flows": 1}]
    rows = pl.DataFrame({"flow": [2, 1]})
    for table in ("exchanges", "pages"):
        assert of_runs(rows, table, plan, entries)["entry"].to_list() == ["b", "a"]
    assert of_runs(rows, "directions", plan, entries).columns == ["flow"]


def test_which_values_are_better() -> None:
    for text, better in (
        ("flows.goodput_bps.p5", "higher"),
        ("flows.loss_percent.jain", "higher"),
        ("flows.loss_percent.max", "lower"),
        ("directions.utilization.max", ""),
    ):
        assert read_metric(text).better == better


def test_titles_of_references() -> None:
    for text, title in (
        ("flows.goodput_bps.p5", "goodput p5"),
        ("flows.download.goodput_bps.mean", "download: goodput"),
        ("flows.a.return.goodput_bps.jain", "a return: fairness of goodput"),
        ("directions.queue_max_bytes.max", "directions: largest queue max"),
        ("directions.forward.utilization", "forward: utilization"),
    ):
        assert read_metric(text).title == title


# --- a new metric -------------------------------------------------------------------------------

ADDED = Metric(
    *("flows", "first_byte_delay_ns", "first byte", "from the start"),
    *("run entry sweep compare dashboard", "lower"),
    formula="first_delivery_ns - start_ns",
    definition="From the start to the first delivery.",
)
PLAIN = {**SMALL, "packet_events": False, "sample_interval": None}


@pytest.fixture
def _added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "METRICS", (*METRICS, ADDED))


@pytest.mark.system
@pytest.mark.usefixtures("_added")
def test_a_new_entry_is_in_json_thresholds_and_entries(bentpipe: Program, tmp_path: Path) -> None:
    file = tmp_path / "scenario.json"
    limit = f"flows.{ADDED.name}.max <= 1 s"
    file.write_text(json.dumps({**PLAIN, "thresholds": [limit]}))
    called = bentpipe("run", file, "--json")
    assert called.code == 0, called.err
    found = json.loads(called.out)
    values = [flow["first_delivery_ns"] - flow["start_ns"] for flow in found["flows"]]
    assert [flow[ADDED.name] for flow in found["flows"]] == values
    assert [entry[ADDED.name]["p50"] for entry in found["entries"]] == values
    (check,) = found["thresholds"]
    assert check["value"] == max(values)


@pytest.mark.usefixtures("_added")
def test_a_new_entry_is_in_sweeps_comparisons_and_the_menu_of_the_page() -> None:
    sweep = bentpipe.sweep(PLAIN, seeds=2)
    assert sweep.cells[ADDED.name].item() > 0
    assert f"{ADDED.name}_half_width" in sweep.cells.columns
    compared = compare(sweep, bentpipe.sweep({**PLAIN, "seed": 7}, seeds=2))
    shown = {str(each.metric): each.metric.title for each in compared.differences}
    assert shown[f"flows.call.{ADDED.name}.mean"] == "call: first byte"
    better = {each["metric"]: each["better"] for each in compared.to_json()["differences"]}
    assert better["flows.bulk-1.goodput_bps.mean"] == "higher"
    assert better["directions.forward.utilization.mean"] is None
    menu = menu_of(sweep)
    assert menu[f"flows.{ADDED.name}"] == "flows: first byte, from the start [ns]"


@pytest.mark.system
@pytest.mark.usefixtures("_added")
def test_a_new_entry_is_in_the_table_and_the_report(bentpipe: Program, tmp_path: Path) -> None:
    file = tmp_path / "scenario.json"
    file.write_text(json.dumps(PLAIN))
    called = bentpipe("run", file, "--out", tmp_path / "out")
    assert called.code == 0, called.err
    assert "first byte" in called.out
    assert "first byte" in (tmp_path / "out" / "report.html").read_text()
