"""Results: the columns that the simulator writes, the folder, and what a reader refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from conftest import EVERY, SMALL

from bentpipe import Result, __version__, simulate
from bentpipe.errors import UsageError
from bentpipe.results.measures import finished_times_ns
from bentpipe.results.tables import DROP_CAUSES, TABLES, decode_column

POLARS = {"u8": pl.UInt8, "u32": pl.UInt32, "u64": pl.UInt64, "f64": pl.Float64}


# --- columns ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(TABLES))
def test_the_simulator_writes_the_documented_columns(
    name: str, every_result: Result, small_result: Result
) -> None:
    documented = {column.name: POLARS[column.dtype] for column in TABLES[name].columns}
    table = (small_result if name == "datagram_samples" else every_result).tables[name]
    assert table.columns == list(documented), "also their order"
    assert dict(table.schema) == documented
    assert len(table) > 0
    nullable = {column.name for column in TABLES[name].columns if column.nullable}
    with_nulls = {column for column in table.columns if table[column].null_count()}
    assert with_nulls <= nullable


def test_the_simulator_writes_the_documented_tables(small_result: Result) -> None:
    assert set(small_result.tables) == set(TABLES)
    assert set(simulate({**SMALL, "packet_events": False}).tables) == set(TABLES) - {"events"}


def test_without_samples_their_tables_have_no_rows() -> None:
    result = simulate({**SMALL, "sample_interval": None})
    assert (len(result.flow_samples), len(result.direction_samples)) == (0, 0)
    assert len(result.flows) == 2


def test_nulls_survive_decoding() -> None:
    values, valid = decode_column(("u8", b"\x01\x02", b"\x01\x00"))
    assert values.tolist() == [1, 2]
    assert valid is not None
    assert valid.tolist() == [True, False]
    assert decode_column(("f64", b"\0" * 8, None))[1] is None


def test_packets_are_conserved(small_result: Result, every_result: Result) -> None:
    """In = out + dropped by cause + held, in packets and bytes, in each direction."""
    for row in [*small_result.directions.to_dicts(), *every_result.directions.to_dicts()]:
        for unit in ("packets", "bytes"):
            dropped = sum(row[f"dropped_{cause}_{unit}"] for cause in DROP_CAUSES)
            held = row[f"held_{unit}"]
            assert row[f"received_{unit}"] == row[f"delivered_{unit}"] + dropped + held
    # Otherwise the equations could hold of nothing.
    assert small_result.directions["dropped_bit_error_packets"].sum() > 0
    assert every_result.directions["dropped_red_packets"].sum() > 0


def test_processors_conserve_packets_too(every_result: Result) -> None:
    """In on either side = out on the other + dropped + held."""
    for row in every_result.processors.to_dicts():
        for unit in ("packets", "bytes"):
            received, forwarded, dropped = (
                row[f"{what}_lan_{unit}"] + row[f"{what}_link_{unit}"]
                for what in ("received", "forwarded", "dropped")
            )
            assert received == forwarded + dropped + row[f"held_{unit}"]
    hub = every_result.processors.row(0, named=True)
    # What the hub sends on from its network is what the forward direction is given.
    assert hub["forwarded_lan_packets"] == every_result.directions["received_packets"][0]


def test_events_add_up_to_the_totals(small_result: Result) -> None:
    counted = small_result.events.group_by("place", "kind", "cause").len()
    lost = counted.filter(kind="dropped", cause="bit_error")["len"].sum()
    assert lost == small_result.directions["dropped_bit_error_packets"].sum() > 0
    delivered = counted.filter(kind="delivered")["len"].sum()
    assert delivered == small_result.directions["delivered_packets"].sum()


def test_the_last_sample_equals_the_totals(small_result: Result) -> None:
    last = small_result.flow_samples.filter(flow=0).sort("time_ns").tail(1)
    assert last["delivered_bytes"].item() == small_result.flows["delivered_bytes"][0] == 1_000_000
    sent = small_result.direction_samples.filter(direction="forward")["sent_bytes"]
    assert sent.is_sorted()
    assert sent[-1] == small_result.tables["directions"]["sent_bytes"][0]


def test_events_name_directions_and_processors(every_result: Result) -> None:
    places = every_result.manifest["names"]["places"]
    assert places == [
        "forward",
        "return-1",
        "return-2",
        "hub-aggregator",
        "hub-processor",
        "terminal-1-pep",
        "terminal-1-aggregator",
        "terminal-1-processor",
        "terminal-2-pep",
        "terminal-2-aggregator",
        "terminal-2-processor",
    ]
    assert set(every_result.events["place"].unique()) <= set(places)
    overload = every_result.events.filter(cause="processor_overload")
    dropped = every_result.processors.select(
        pl.col("dropped_lan_packets") + pl.col("dropped_link_packets")
    ).to_series()
    assert len(overload) == dropped.sum() > 0
    assert overload["place"].unique().to_list() == ["hub-processor"]


# --- properties ---------------------------------------------------------------------------------


def test_flows_carry_names_and_goodput(small_result: Result) -> None:
    flows = small_result.flows
    assert flows["name"].to_list() == ["bulk-1", "call"]
    assert flows["kind"].to_list() == ["bulk", "constant_rate"]
    assert flows["direction"].to_list() == ["forward", "return"]
    bulk_bps, call_bps = flows["goodput_bps"].to_list()
    # 8 Mbit/s times 1448 of 1500 bytes is the most that headers leave; slow start costs a part.
    assert 3e6 < bulk_bps < 8e6 * 1448 / 1500
    # 64 kbit/s offered on a clear return link.
    assert call_bps == pytest.approx(64_000)
    assert small_result.goodput_bps.tolist() == [bulk_bps, call_bps]


def test_directions_carry_names_and_utilization(small_result: Result) -> None:
    directions = small_result.directions
    assert directions["direction"].to_list() == ["forward", "return"]
    # 1 MB over 8 Mbit/s keeps the transmitter busy for a second and a bit, headers included.
    busy_s = directions["busy_ns"][0] / 1e9
    assert 1.0 < busy_s < 1.1
    assert directions["utilization"][0] == pytest.approx(
        busy_s * 1e9 / small_result.manifest["end_ns"]
    )


def test_each_terminal_has_its_own_return_direction(every_result: Result) -> None:
    flows = every_result.flows
    assert flows["name"].to_list() == ["bulk-1", "bulk-2", "web", "reader"]
    assert flows["terminal"].to_list() == [0, 1, 1, 0]
    assert every_result.flow_directions == flows["direction"].to_list() == ["forward"] * 4
    assert every_result.directions["direction"].to_list() == ["forward", "return-1", "return-2"]
    upload = {"kind": "bulk", "direction": "return", "size": "10 kB", "terminal": 2}
    assert simulate({**EVERY, "traffic": [upload]}).flow_directions == ["return-2"]


def test_processors_carry_names_and_utilization(every_result: Result) -> None:
    processors = every_result.processors
    assert processors["processor"].to_list() == [
        "hub-processor",
        "terminal-1-processor",
        "terminal-2-processor",
    ]
    hub = processors.row(0, named=True)
    handled = hub["forwarded_lan_packets"] + hub["forwarded_link_packets"]
    # 1.25 ms a packet at 800 packets a second.
    assert hub["busy_ns"] == handled * 1_250_000
    assert hub["utilization"] == pytest.approx(hub["busy_ns"] / every_result.manifest["end_ns"])


def test_pages_carry_names_and_times(every_result: Result) -> None:
    pages = every_result.pages
    assert pages["name"].to_list() == ["reader"] * 3
    assert pages["page"].to_list() == [0, 1, 2]
    for row in pages.to_dicts():
        # The DNS, TCP, TLS 1.3 and the document are four round trips of 40 ms.
        assert row["load_time_ns"] == row["finished_ns"] - row["start_ns"] > 160e6
        steps = ("start_ns", "resolved_ns", "established_ns", "first_byte_ns", "document_ns")
        times = [row[step] for step in (*steps, "finished_ns")]
        assert times == sorted(times)
    times_ns = finished_times_ns(every_result, "pages")
    assert every_result.flows["page_load_time_p50_ns"].to_list() == [
        None,
        None,
        None,
        np.median(times_ns),
    ]
    (entry,) = (each for each in every_result.entries if each["entry"] == "reader")
    for p in (50, 95, 99):
        expected = pytest.approx(np.percentile(times_ns, p))
        assert entry["page_load_time_ns"][f"p{p}"] == expected
        assert every_result.flows[f"page_load_time_p{p}_ns"][3] == expected
    # The connections of a page have different limits at the same time.
    assert every_result.flows["idle_percent"][3] is None


def test_exchanges_carry_names_and_times(every_result: Result) -> None:
    exchanges = every_result.exchanges
    assert exchanges["name"].to_list() == ["web"] * 6
    assert exchanges["exchange"].to_list() == list(range(6))
    assert exchanges["start_ns"].is_sorted()
    for row in exchanges.to_dicts():
        # A handshake and an answer are two round trips of 40 ms.
        assert row["time_ns"] == row["finished_ns"] - row["start_ns"] > 80e6
        assert row["start_ns"] < row["established_ns"] < row["first_byte_ns"] <= row["finished_ns"]
    flows = every_result.flows
    assert flows["exchanges"].to_list() == [0, 0, 6, 3]
    assert flows["delivered_bytes"][2] == exchanges["response_bytes"].sum()
    assert flows["exchange_time_median_ns"].to_list() == [
        None,
        None,
        pytest.approx(exchanges["time_ns"].median()),
        None,
    ]


def test_the_manifest_says_what_was_run(small_result: Result) -> None:
    manifest = small_result.manifest
    assert manifest["scenario"] == SMALL
    assert manifest["seed"] == 1
    assert manifest["bentpipe_version"] == __version__
    assert (small_result.state, manifest["traffic_ended"]) == ("completed", True)
    assert small_result.interrupted is False
    assert small_result.plan["stop_ns"] == 20_000_000_000
    assert small_result.execution["started"] <= small_result.execution["ended"]
    # The last of the call's datagrams, every 20 ms, is sent at 1.98 s and takes some 21.5 ms.
    assert repr(small_result) == "<Result 'small': 2 flows, completed at 2.002 s>"


def test_the_summary_is_json(small_result: Result, every_result: Result) -> None:
    summary = json.loads(json.dumps(small_result.summary()))
    assert [flow["name"] for flow in summary["flows"]] == ["bulk-1", "call"]
    assert [direction["direction"] for direction in summary["directions"]] == ["forward", "return"]
    assert summary["processors"] == []
    assert json.loads(json.dumps(every_result.summary()))["processors"][0]["utilization"] > 0


def test_the_same_plan_and_seed_give_the_same_tables(small_result: Result) -> None:
    again, other = simulate(SMALL), simulate(SMALL, seed=2)
    for name, table in small_result.tables.items():
        assert table.equals(again.tables[name])
    assert not small_result.tables["events"].equals(other.tables["events"])


def test_a_seed_is_64_bits() -> None:
    assert simulate(SMALL, seed=2**64 - 1).manifest["seed"] == 2**64 - 1
    for seed in (-1, 2**64):
        with pytest.raises(UsageError, match="seed"):
            simulate(SMALL, seed=seed)


# --- folder -------------------------------------------------------------------------------------


def test_a_saved_result_is_loaded_unchanged(small_result: Result, tmp_path: Path) -> None:
    folder = small_result.save(tmp_path / "new" / "result")
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        ["execution.json", "manifest.json", *(f"{name}.parquet" for name in TABLES)]
    )
    back = Result.load(folder)
    assert back.manifest == small_result.manifest
    assert back.execution == small_result.execution
    assert back.summary() == small_result.summary()
    for name, table in small_result.tables.items():
        assert back.tables[name].equals(table)
        assert back.tables[name].schema == table.schema


def test_a_result_replaces_a_result_and_leaves_nothing_of_it(
    small_result: Result, tmp_path: Path
) -> None:
    small_result.save(tmp_path)
    (tmp_path / "report.html").write_text("of the first", encoding="utf-8")
    simulate({**SMALL, "packet_events": False}, seed=9).save(tmp_path)
    back = Result.load(tmp_path)
    assert back.manifest["seed"] == 9
    assert not (tmp_path / "events.parquet").exists()
    assert not (tmp_path / "report.html").exists()
    with pytest.raises(UsageError, match="packet_events: true"):
        _ = back.events


def test_a_result_is_not_saved_among_other_files(small_result: Result, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years", encoding="utf-8")
    with pytest.raises(UsageError, match="contains other files"):
        small_result.save(tmp_path)
    (tmp_path / "manifest.json").write_text('{"name": "a web application"}', encoding="utf-8")
    with pytest.raises(UsageError, match="not the manifest of a bentpipe result"):
        small_result.save(tmp_path)
    with pytest.raises(UsageError, match="is a file"):
        small_result.save(tmp_path / "thesis.tex")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["manifest.json", "thesis.tex"]


def test_an_unknown_format_version_is_refused(small_result: Result, tmp_path: Path) -> None:
    small_result.save(tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text(encoding="utf-8"))
    for version in (0, 7, 9, "8", None):
        text = json.dumps({**manifest, "format_version": version})
        (tmp_path / "manifest.json").write_text(text, encoding="utf-8")
        with pytest.raises(UsageError, match=r"format_version is .* this bentpipe reads 8"):
            Result.load(tmp_path)


def test_a_damaged_result_or_another_folder_is_refused(
    small_result: Result, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="no such folder"):
        Result.load(tmp_path / "none")
    with pytest.raises(UsageError, match="not a bentpipe result"):
        Result.load(tmp_path)
    small_result.save(tmp_path)
    (tmp_path / "flows.parquet").write_bytes(b"PAR1 but no more")
    with pytest.raises(UsageError, match=r"flows\.parquet: cannot be read"):
        Result.load(tmp_path)
    (tmp_path / "manifest.json").write_text("{", encoding="utf-8")
    with pytest.raises(UsageError, match=r"manifest\.json: cannot be read"):
        Result.load(tmp_path)
