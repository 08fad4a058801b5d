"""The registry of metrics: complete, without duplicates, and consistent with the tables."""

from __future__ import annotations

from collections import Counter
from typing import get_args, get_type_hints

import pytest

from bentpipe import metrics
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
    metrics_of,
    metrics_shown,
)
from bentpipe.plan.types import WorkloadPlan
from bentpipe.quantities import quantity

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
    assert max(Counter((each.table, each.label) for each in METRICS).values()) == 1


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
    kinds = {get_args(get_type_hints(plan)["kind"])[0] for plan in get_args(WorkloadPlan)}
    assert set(TCP) | set(UDP) == kinds
    assert not set(TCP) & set(UDP)


def test_label_has_title_note_and_unit() -> None:
    flows = metrics_of("flows")
    assert flows["goodput_bps"].label == "goodput, application bits [bit/s]"
    assert flows["mos"].label == "MOS, 1 to 4.5"
    # A note that is the unit is not repeated.
    assert flows["sent_segments"].label == "sent [segments]"
    assert flows["start_ns"].label == "start [ns]"
    assert flows["timeouts"].label == "timeouts, events"


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
