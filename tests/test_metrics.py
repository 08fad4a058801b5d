"""The registry of metrics: complete, without duplicates, and consistent with the tables."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import get_args

import pytest
from conftest import SMALL, Program

from bentpipe import compare, metrics, simulate_many
from bentpipe.dashboard.sweeps import metrics_of as menu_of
from bentpipe.metrics import (
    ALL,
    CALLS,
    COLUMNS,
    EXCHANGES,
    KEYS,
    METRICS,
    TCP,
    UDP,
    Metric,
    Place,
    label_of,
    metrics_of,
    metrics_shown,
)
from bentpipe.quantities import quantity
from bentpipe.scenario.traffic import FLOWS

PLACES = get_args(Place)


def test_every_column_of_the_simulator_is_a_metric_or_a_key() -> None:
    for table, keys in KEYS.items():
        own = (name for name in metrics_of(table) if name in COLUMNS[table])
        assert Counter([*keys, *own]) == Counter(COLUMNS[table])


def test_tables_whose_columns_thresholds_do_not_have_are_hidden_by_name() -> None:
    hidden = {"legs", "capacity", "flow_samples", "direction_samples", "function_statistics"}
    assert set(COLUMNS) - set(KEYS) == {*hidden, "events"}


def test_names_and_labels_are_unique_in_a_table() -> None:
    assert max(Counter((each.table, each.name) for each in METRICS).values()) == 1
    labels = Counter((m.table, m.label, quantity(m.name).units[-1]) for m in METRICS)
    assert max(labels.values()) == 1


def test_each_entry_is_complete() -> None:
    for metric in METRICS:
        assert metric.title, metric
        assert set(metric.shown.split()) <= set(PLACES), metric
        assert not metric.formula or not metric.of, metric
        # The simulator's schema has the definitions of its columns.
        if metric.is_derived:
            assert metric.definition.endswith("."), metric
        else:
            assert metric.definition + metric.formula + metric.of == "", metric
        if metric.decimals is not None:
            assert quantity(metric.name).is_plain, metric


def test_kinds_of_flow_are_those_of_plans() -> None:
    # A fetch is a request_response.
    kinds = {*FLOWS, "channel"} - {"fetch", "channels"}
    assert set(TCP) | set(UDP) == kinds
    assert not set(TCP) & set(UDP)


def test_label_has_title_and_note() -> None:
    flows = metrics_of("flows")
    assert flows["goodput_bps"].label == "goodput, application bits"
    assert flows["start_ns"].label == "start"
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
    sweep = simulate_many(PLAIN, seeds=2)
    assert sweep.cells[ADDED.name].item() > 0
    assert f"{ADDED.name}_half_width" in sweep.cells.columns
    compared = compare(sweep, simulate_many({**PLAIN, "seed": 7}, seeds=2))
    shown = {str(each.metric): each.metric.title for each in compared.differences}
    assert shown[f"flows.call.{ADDED.name}.mean"] == "call: first byte"
    menu = menu_of(sweep)
    assert menu[f"flows.{ADDED.name}"] == "flows: first byte, from the start [ns]"


# The tables list their columns themselves so far.
@pytest.mark.xfail(strict=False)
@pytest.mark.usefixtures("_added")
def test_a_new_entry_is_in_the_table_and_the_report(bentpipe: Program, tmp_path: Path) -> None:
    file = tmp_path / "scenario.json"
    file.write_text(json.dumps(PLAIN))
    called = bentpipe("run", file, "--out", tmp_path / "out")
    assert called.code == 0, called.err
    assert "first byte" in called.out
    assert "first byte" in (tmp_path / "out" / "report.html").read_text()
