"""Derived columns, each against a value computed by hand, with nulls and divisions by zero."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import polars as pl
import pytest
from conftest import EVERY, SMALL, Program

from bentpipe import Result, simulate
from bentpipe.metrics import COLUMNS, METRICS, metrics_of
from bentpipe.results import tables as result_tables
from bentpipe.results.tables import TABLES, by_function, table_rows

DTYPES: Final = {"u8": pl.UInt8, "u32": pl.UInt32, "u64": pl.UInt64, "f64": pl.Float64}
MS: Final = 10**6
END_NS: Final = 2_000


def table(name: str, *rows: dict[str, Any]) -> pl.DataFrame:
    """Return a table of the simulator with these rows; other values are 0, or null if they may."""
    columns = TABLES[name].columns
    values = [{each.name: None if each.nullable else 0 for each in columns} | row for row in rows]
    return pl.DataFrame(values, schema={each.name: DTYPES[each.dtype] for each in columns})


def flow(kind: str, **workload: Any) -> dict[str, Any]:
    """Return a flow of a plan."""
    return {
        "name": kind,
        "direction": "forward",
        "terminal": 0,
        "workload": {"kind": kind, **workload},
    }


def plan_of(*flows: dict[str, Any]) -> dict[str, Any]:
    names = ("forward", "return-1", "return-2")
    return {
        "flows": [*flows],
        "directions": [{"name": name} for name in names],
        "gateways": [{"name": name} for name in ("hub", "terminal-1", "terminal-2")],
    }


def rows_of(
    name: str,
    plan: dict[str, Any],
    *rows: dict[str, Any],
    ends_ns: tuple[int, ...] = (END_NS,),
    **others: pl.DataFrame,
) -> pl.DataFrame:
    tables = {each: table(each) for each in TABLES}
    tables |= {name: table(name, *rows), **others}
    return table_rows(name, tables, plan, [], ends_ns)


def metric_of_flow(name: str, kind: str, **values: Any) -> Any:
    """Return a derived column of a flow of a kind without a size."""
    return rows_of("flows", plan_of(flow(kind)), values)[name].item()


# --- names --------------------------------------------------------------------------------------


def test_rows_of_flows_have_names_in_front_and_derived_columns_at_the_end() -> None:
    plan = plan_of(
        flow("bulk"), {**flow("bulk"), "name": "up", "direction": "return", "terminal": 1}
    )
    rows = rows_of("flows", plan, {"flow": 1}, {"flow": 0})
    assert rows.columns == [
        *("name", "kind", "direction", *COLUMNS["flows"], "entry"),
        *(each.name for each in METRICS if each.table == "flows" and each.is_derived),
    ]
    assert rows.select("flow", "name", "kind", "direction", "entry").rows() == [
        (1, "up", "bulk", "return-2", "up"),
        (0, "bulk", "bulk", "forward", "bulk"),
    ]


def test_rows_of_several_runs_keep_their_number() -> None:
    tables = {name: table(name) for name in TABLES}
    runs = pl.Series("run", [1, 0], dtype=pl.UInt32)
    tables["directions"] = table("directions", {"busy_ns": 100}, {"busy_ns": 100})
    tables["directions"] = tables["directions"].select(runs, pl.all())
    rows = table_rows("directions", tables, plan_of(), [], (400, 1_000))
    assert rows.select("run", "direction", "utilization").rows() == [
        (1, "forward", 0.1),
        (0, "forward", 0.25),
    ]
    # A flow's exchanges are those of its run; its goodput is until the end of its run.
    plan = plan_of(flow("bulk"))
    own = {"delivered_bytes": 1_000}
    tables["flows"] = table("flows", own, own).select(runs, pl.all())
    times = {"start_ns": 0, "finished_ns": 6}
    tables["exchanges"] = table("exchanges", times).select(runs[:1], pl.all())
    tables["pages"] = table("pages").select(runs[:0], pl.all())
    rows = table_rows("flows", tables, plan, [], (400, 1_000))
    assert rows.columns[:3] == ["run", "name", "kind"]
    assert rows.select("run", "goodput_bps", "exchange_time_p95_ns").rows() == [
        (1, 8e9, 6.0),
        (0, 20e9, None),
    ]


def test_processors_and_legs_have_the_names_of_gateways() -> None:
    rows = rows_of("processors", plan_of(), {"processor": 0}, {"processor": 2})
    assert rows["processor"].to_list() == ["hub-processor", "terminal-2-processor"]
    leg = {"from_gateway": None, "to_gateway": 2, "leg": 0, "connections": 3}
    other = {"from_gateway": 0, "to_gateway": None, "leg": 1}
    rows = rows_of("legs", plan_of(flow("bulk")), leg, other)
    assert rows.columns[:7] == ["name", "direction", "flow", "leg", "from", "to", "connections"]
    assert rows.select("leg", "from", "to", "connections").rows() == [
        (0, "sender", "terminal-2", 3),
        (1, "hub", "receiver", 0),
    ]


def test_tables_of_flows_without_derived_columns_have_names_only() -> None:
    rows = rows_of("flow_samples", plan_of(flow("bulk")), {"flow": 0, "time_ns": 5})
    assert rows.columns == ["name", "direction", *COLUMNS["flow_samples"]]


# --- flows --------------------------------------------------------------------------------------


def test_lost_packets_are_those_of_all_causes() -> None:
    names = [name for name in COLUMNS["flows"] if name.startswith("lost_")]
    counts = {name: 2**i for i, name in enumerate(names)}
    assert metric_of_flow("lost_packets", "bulk", **counts) == 2 ** len(names) - 1
    # In real time, some causes may be unknown.
    unknown = counts | {"lost_red_packets": None}
    assert metric_of_flow("lost_packets", "bulk", **unknown) is None
    assert metric_of_flow("lost_packets", "bulk") == 0


def test_loss_is_of_the_datagrams_that_were_expected() -> None:
    lost = {"lost_queue_full_packets": 3, "lost_red_packets": 1}
    assert metric_of_flow("loss_percent", "constant_rate", expected_segments=16, **lost) == 25
    assert metric_of_flow("loss_percent", "constant_rate", expected_segments=0) is None
    assert metric_of_flow("loss_percent", "bulk", **lost) is None


def test_retransmissions_are_of_the_segments_sent_by_tcp() -> None:
    sent = {"retransmitted_segments": 3, "sent_segments": 8}
    for kind in ("bulk", "request_response", "video", "web_page", "channel"):
        assert metric_of_flow("retransmitted_percent", kind, **sent) == 37.5
    for kind in ("constant_rate", "conference"):
        assert metric_of_flow("retransmitted_percent", kind, **sent) is None
    assert metric_of_flow("retransmitted_percent", "bulk", sent_segments=0) is None
    assert metric_of_flow("retransmitted_percent", "bulk", sent_segments=5) == 0


def test_completion_time_is_that_of_transfers_of_a_size() -> None:
    sized = flow("bulk", amount={"unit": "bytes", "value": 0})
    timed = flow("bulk", amount={"unit": "duration_ns", "value": 50})
    times = {"start_ns": 100, "finished_ns": 350}
    plan = plan_of(sized, timed, flow("constant_rate"))
    rows = [{"flow": i, **times} for i in range(3)]
    found = rows_of("flows", plan, *rows, {"flow": 0, "start_ns": 100})
    assert found["completion_time_ns"].to_list() == [250, None, None, None]
    assert found["completion_time_ns"].dtype == pl.UInt64


def test_idle_time_is_of_the_time_of_all_limits() -> None:
    names = [name for name in COLUMNS["flows"] if name.endswith("_limited_ns")]
    times = dict.fromkeys(names, 10) | {"application_limited_ns": 140}
    assert metric_of_flow("idle_percent", "bulk", **times) == 70
    assert metric_of_flow("idle_percent", "bulk", **dict.fromkeys(names, 0)) is None
    assert metric_of_flow("idle_percent", "bulk", **times | {names[-1]: None}) is None


@pytest.mark.parametrize(
    ("start_up", "stalled", "played", "ratio"),
    [
        (5, 1, 3, 25.0),
        (5, 0, 3, 0.0),
        (None, 0, 0, 100.0),
        # Started, and nothing was played yet.
        (5, 0, 0, None),
        # No video.
        (None, None, None, None),
    ],
)
def test_stall_ratio_is_of_the_time_after_the_first_frame(
    start_up: int | None, stalled: int | None, played: int | None, ratio: float | None
) -> None:
    values = {"start_up_time_ns": start_up, "stalled_ns": stalled, "played_ns": played}
    assert metric_of_flow("stall_ratio_percent", "video", **values) == ratio


def test_quantiles_of_times_are_those_of_finished_rows_of_the_flow() -> None:
    plan = plan_of(flow("request_response"), flow("web_page"))
    times = [{"flow": 0, "start_ns": 1, "finished_ns": end} for end in (3, 5, None)]
    pages = [{"flow": 1, "start_ns": 10, "finished_ns": end} for end in (10, 110, None)]
    rows = rows_of(
        "flows",
        plan,
        {"flow": 0},
        {"flow": 1},
        exchanges=table("exchanges", *times),
        pages=table("pages", *pages),
    )
    # Of 2 and 4 ns, interpolated.
    assert rows["exchange_time_median_ns"].to_list() == [3.0, None]
    assert rows["exchange_time_p95_ns"].to_list() == [pytest.approx(3.9), None]
    assert rows["page_load_time_p50_ns"].to_list() == [None, 50.0]
    assert rows["page_load_time_p95_ns"].to_list() == [None, pytest.approx(95)]
    assert rows["page_load_time_p99_ns"].to_list() == [None, pytest.approx(99)]


def test_a_flow_that_finished_no_exchange_has_no_quantile() -> None:
    plan = plan_of(flow("request_response"))
    rows = rows_of("flows", plan, {"flow": 0}, exchanges=table("exchanges", {"start_ns": 1}))
    assert rows["exchange_time_median_ns"].to_list() == [None]


def test_a_call_has_quality_and_other_flows_have_none() -> None:
    call = flow("voice", codec="g711", duration_ns=1_000)
    measured = {
        "expected_segments": 100,
        "lost_queue_full_packets": 3,
        "late_packets": 2,
        "loss_bursts": 5,
        "play_out_delay_ns": 50 * MS,
    }
    silent = measured | {"expected_segments": 0}
    unheard = measured | {"play_out_delay_ns": None}
    plan = plan_of(call, flow("constant_rate", duration_ns=1_000))
    rows = rows_of(
        "flows", plan, *({"flow": 0, **each} for each in (measured, silent, unheard)), {"flow": 1}
    )
    assert rows["unplayed_percent"].to_list() == [5.0, None, 100.0, None]
    mos, *others = rows["mos"].to_list()
    assert 3 < mos < 4.4
    assert others == [None, 1.0, None]
    r_factor, *others = rows["r_factor"].to_list()
    assert 70 < r_factor < 93
    assert others == [None, 0.0, None]
    assert rows["delay_impairment"].to_list() == [0.0, None, None, None]
    assert rows["mouth_to_ear_ns"][0] > 50 * MS


# --- the link -----------------------------------------------------------------------------------


def test_figures_of_directions() -> None:
    names = [f"dropped_{cause}_packets" for cause in ("queue_full", "bit_error", "red", "codel")]
    row = dict.fromkeys(names, 1) | {
        "direction": 2,
        "received_packets": 16,
        "busy_ns": 500,
        "queue_empty_ns": 200,
        "queue_full_ns": None,
    }
    found = rows_of("directions", plan_of(), row, {})
    assert found["direction"].to_list() == ["return-2", "forward"]
    assert found["utilization"].to_list() == [0.25, 0.0]
    assert found["dropped_packets"].to_list() == [4, 0]
    assert found["loss_percent"].to_list() == [25.0, None]
    assert found["queue_empty_percent"].to_list() == [10.0, None]
    assert found["queue_full_percent"].to_list() == [None, None]
    assert rows_of("directions", plan_of(), row)["dropped_packets"].dtype == pl.UInt64


def test_a_run_that_ended_at_once_has_no_division_by_zero() -> None:
    found = rows_of("processors", plan_of(), {"busy_ns": 0}, {"busy_ns": 3}, ends_ns=(0,))
    assert found["utilization"].to_list() == [0.0, 3.0]


def test_times_of_exchanges_and_pages_are_null_until_they_finish() -> None:
    plan = plan_of(flow("bulk"))
    times = [{"start_ns": 3, "finished_ns": 10}, {"start_ns": 3}]
    assert rows_of("exchanges", plan, *times)["time_ns"].to_list() == [7, None]
    assert rows_of("pages", plan, *times)["load_time_ns"].to_list() == [7, None]


# --- functions of gateways ----------------------------------------------------------------------


def function_rows(place: str, **statistics: int) -> list[dict[str, Any]]:
    return [{"place": place, "statistic": k, "value": v} for k, v in statistics.items()]


def test_the_hold_time_is_the_mean_of_packets_that_waited() -> None:
    counts = {"packed_packets": 3, "single_packets": 1, "hold_time_sum_ns": 100}
    idle = dict.fromkeys(counts, 0)
    found = by_function(
        [*function_rows("hub-aggregator", **counts), *function_rows("x-aggregator", **idle)], [0]
    )
    assert found == [
        {"function": "hub-aggregator", **counts, "hold_time_mean_ns": 25.0},
        {"function": "x-aggregator", **idle, "hold_time_mean_ns": None},
    ]


def test_figures_of_tunnels_are_of_their_direction() -> None:
    counts = {
        "sources_lost_packets": 5,
        "sources_received_packets": 15,
        "recovered_packets": 3,
        "repairs_sent_packets": 6,
        "repairs_sent_bytes": 300,
        "sources_sent_packets": 24,
        "order_wait_sum_ns": 90,
        "order_waited_packets": 4,
    }
    places = ("hub-tunnel", "terminal-2-tunnel")
    rows = [row for place in places for row in function_rows(place, **counts)]
    hub, terminal = by_function(rows, [1_200, 1, 3_000])
    figures = {
        "loss_before_percent": 25.0,
        "loss_after_percent": 10.0,
        "redundancy_percent": 25.0,
        "order_wait_mean_ns": 22.5,
    }
    assert hub == {"function": places[0], **counts, **figures, "repair_share_percent": 25.0}
    assert terminal == {"function": places[1], **counts, **figures, "repair_share_percent": 10.0}
    nothing = dict.fromkeys(counts, 0)
    (found,) = by_function(function_rows("hub-tunnel", **nothing), [0])
    assert found == {
        "function": "hub-tunnel",
        **nothing,
        **dict.fromkeys([*figures, "repair_share_percent"]),
    }


def test_functions_have_derived_metrics_of_their_own_statistics_only() -> None:
    rows = [*function_rows("hub-pep", split_connections=1), *function_rows("hub-tunnel", a=2)]
    assert by_function(rows, [0]) == [
        {"function": "hub-pep", "split_connections": 1},
        {"function": "hub-tunnel", "a": 2},
    ]
    assert by_function([], [0]) == []


def test_the_last_of_many_functions_has_its_derived_metrics() -> None:
    rows = [row for n in range(1, 200) for row in function_rows(f"terminal-{n}-pep", a=1)]
    rows += function_rows("hub-tunnel", repairs_sent_packets=1, sources_sent_packets=4)
    *_, last = by_function(rows, [0] * 200)
    assert last["redundancy_percent"] == 25


# --- results ------------------------------------------------------------------------------------


def test_every_formula_is_one_of_columns_of_its_table(every_result: Result) -> None:
    """Given all derived metrics, expect each in the rows of its table."""
    for name in ("flows", "directions", "processors", "exchanges", "pages"):
        frame = getattr(every_result, name)
        assert {each for each, m in metrics_of(name).items() if m.is_derived} <= set(frame.columns)


def test_every_metric_of_a_function_is_one_of_its_statistics(every_result: Result) -> None:
    ends: dict[str, Any] = {"hub": {"tunnel": {}}, "terminal": {"tunnel": {}}}
    tunnels = simulate({**SMALL, "gateways": ends}).functions
    for function in [*every_result.functions, *tunnels]:
        kind = function["function"].rpartition("-")[2]
        names = {each.name for each in metrics_of("functions").values() if kind in each.kinds}
        assert names
        assert names <= function.keys()


def test_each_table_has_a_property(every_result: Result) -> None:
    for name in TABLES:
        assert getattr(every_result, name).height == every_result.tables[name].height


@pytest.mark.system
def test_a_run_computes_the_rows_of_each_table_once(
    bentpipe: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a run with tables, a report and thresholds, expect each table once."""
    computed: list[str] = []

    def counting(name: str, *arguments: Any) -> pl.DataFrame:
        computed.append(name)
        return result_tables.table_rows(name, *arguments)

    monkeypatch.setattr("bentpipe.results.result.table_rows", counting)
    file = tmp_path / "scenario.json"
    file.write_text(json.dumps(EVERY))
    limit = "flows.goodput_bps.min > 1 bit/s"
    called = bentpipe("run", file, "--out", tmp_path / "out", "--threshold", limit)
    assert called.code == 0, called.err
    assert computed.count("flows") == 1
    assert len(set(computed)) == len(computed)
