"""The study of the SnIP note: its rows and figures, what they must be, and what it writes.

It is deterministic. The whole study runs once for all tests, some eight seconds.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from conftest import Program

from bentpipe import Plan
from bentpipe.simulation.executor import run_jobs
from bentpipe.simulation.run import Job
from bentpipe.simulation.search import max_trials
from bentpipe.studies.base import comparison, inputs
from bentpipe.studies.base.comparison import Row
from bentpipe.studies.base.inputs import Provenance, read_quantities, read_scenario
from bentpipe.studies.base.work import Work
from bentpipe.studies.snip import measure, study
from bentpipe.studies.snip.measure import (
    DEFAULTS,
    RESOLUTION,
    scenario_of,
    tcp_scenario,
)
from bentpipe.studies.snip.study import (
    FACT_ROWS,
    FACTS_FILE,
    FITTED_WINDOWS,
    PACKETS,
    RATES,
    ROUND,
    TCP_LOW,
    SnipOutcome,
)

pytestmark = pytest.mark.system

MODEM_BPS = 29_520_000
PACKETS_PER_SECOND = 6222
# UDP 8, IP 20, PPP 8 with a check of 32 bits, and the flag.
OVERHEAD_BYTES = 37
REDUCED = replace(
    DEFAULTS,
    sizes=(58, 500, 1400),
    offered_pps=(1000, 5000),
    windows_bytes=(17_520, 65_535),
    tcp_duration="5 s",
    terminals=(1,),
    coarse_sizes=(40, 50),
    aggregated_sizes=(58, 500),
    aggregated_duration="1 s",
    loads_pps=(30, 450),
)


@pytest.fixture(scope="module")
def full() -> SnipOutcome:
    """The whole study."""
    return study.run(Work("snip"))


@pytest.fixture
def reduced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three sizes, two loads, two windows and one terminal, for a second of iperf and TCP."""
    base = read_scenario("snip")
    base["traffic"][0]["duration"] = "1 s"
    base["duration"] = "2 s"
    monkeypatch.setattr(inputs, "load_scenario", lambda _: base)
    monkeypatch.setattr(measure, "DEFAULTS", REDUCED)


# --- what is published, and what is run ---------------------------------------------------------


def test_the_published_table_is_the_source_s() -> None:
    table = study.read_published_table()
    assert list(table) == DEFAULTS.sizes
    assert sum(float(row["max_rate_mbps"]) for row in table.values()) == pytest.approx(224.2)
    assert [size for size, row in table.items() if row["limit"] == "channel"] == [
        700,
        800,
        1000,
        1400,
    ]
    assert len(read_quantities("snip", FACTS_FILE)) == 9


def test_the_constant_is_the_mean_that_the_scenario_says() -> None:
    """One constant, from the rows that the source calls limited by packet rate."""
    rows = [r for r in study.read_published_table().values() if r["limit"] == "packet rate"]
    mean = sum(float(row["packets_per_second"]) for row in rows) / len(rows)
    assert mean == pytest.approx(6222.5, abs=0.05)
    plan: Any = Plan.resolve(read_scenario("snip")).data
    for gateway in plan["gateways"]:
        (processor,) = gateway["functions"]
        assert processor["packets_per_second"] == int(mean) == PACKETS_PER_SECOND
        # No cost that could be bent from row to row.
        assert processor["per_byte_ns"] == 0


def test_the_rounds_of_the_search_are_as_many_as_the_bar_counts() -> None:
    scenario = scenario_of(read_scenario("snip"))
    seen: list[tuple[int, int]] = []
    work = Work("snip", progress=lambda *count: seen.append(count))
    work.total = 100
    work.search(scenario, (1400,), resolution=RESOLUTION)
    assert seen[-1] == (max_trials(scenario, (1400,), RESOLUTION), 100)


@pytest.mark.thorough
@pytest.mark.usefixtures("reduced")
def test_no_run_reads_a_published_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    """With other published figures the measured ones are the same, and all are read at the end."""
    honest = study.run(Work("snip"))
    row = {"max_rate_mbps": "1", "packets_per_second": "1", "limit": "?"}
    wrong = dict.fromkeys((58, 500, 1400), row)
    facts = dict.fromkeys(read_quantities("snip", FACTS_FILE), (1.0, "?"))
    monkeypatch.setattr(study, "read_published_table", lambda: wrong)
    monkeypatch.setattr(comparison, "read_quantities", lambda *_: facts)
    bent = study.run(Work("snip"))
    assert bent.measured == honest.measured
    for name, compared in honest.comparisons.items():
        ours = [(row.simulated, row.provenance) for row in compared.rows]
        assert [(row.simulated, row.provenance) for row in bent.comparisons[name].rows] == ours
        assert bent.comparisons[name].summary() != compared.summary()


# --- provenance ---------------------------------------------------------------------------------


def test_no_row_of_the_table_is_a_prediction(full: SnipOutcome) -> None:
    """One constant and the framing come from its rows; with the note's own rate eleven are free."""
    assert {row.provenance for row in full.comparisons[RATES].rows} == {Provenance.CALIBRATED}
    rounded = full.comparisons[ROUND]
    assert [row.labels["packet_bytes"] for row in rounded.of(Provenance.CALIBRATED)] == [
        *(700, 800, 1000, 1400)
    ]
    assert len(rounded.of(Provenance.PREDICTED)) == 11
    # 6,000 packets a second of 138 bytes for 6,802: the one row outside.
    assert [row.name for row in rounded.outside] == ["138"]


def test_the_other_figures_by_provenance(full: SnipOutcome) -> None:
    found = full.to_json()["facts"]["summary"]["by_provenance"]
    assert {name: each["rows"] for name, each in found.items()} == {
        "stated": 2,
        "calibrated": 1,
        "fitted": 5,
        "predicted": 1,
    }
    assert found["fitted"] == {"rows": 5}
    for quantity in FITTED_WINDOWS:
        (row,) = full.comparisons[FACT_ROWS].where(quantity=quantity).rows
        assert row.provenance is Provenance.FITTED


# --- the table ----------------------------------------------------------------------------------


def test_the_errors_are_within_the_stated_bounds(full: SnipOutcome) -> None:
    result = full.to_json()
    found = result["summary"]["by_provenance"]
    assert list(found) == ["calibrated"]
    assert found["calibrated"]["max_absolute_error"] <= 10
    assert result["summary"]["outside"] == []
    # Golden: what the model gives, the constant being what it is.
    assert found["calibrated"]["mean_absolute_error"] == pytest.approx(1.89, abs=0.05)
    rounded = result[ROUND]["summary"]["by_provenance"]["predicted"]
    assert rounded["mean_absolute_error"] == pytest.approx(4.16, abs=0.05)


def test_every_row_by_hand(full: SnipOutcome) -> None:
    """The lesser of processor and channel; 50 packets of buffer hide up to 0.2 % in ten seconds."""
    pairs = zip(full.comparisons[RATES].rows, full.comparisons[PACKETS].rows, strict=True)
    for row, packets in pairs:
        size = int(row.labels["packet_bytes"])
        by_processor = PACKETS_PER_SECOND * 8 * size
        by_channel = MODEM_BPS * size / (size + OVERHEAD_BYTES)
        assert row.simulated.mean is not None
        share = 1e6 * row.simulated.mean / min(by_processor, by_channel)
        assert 1 - RESOLUTION <= share <= 1.0025
        limit = "packet rate" if by_processor < by_channel else "channel"
        assert row.more == {"published_limit": limit, "simulated_limit": limit}
        assert packets.simulated.mean == pytest.approx(1e6 * row.simulated.mean / 8 / size)


def test_no_constant_could_bring_every_row_closer_than_eight_percent(full: SnipOutcome) -> None:
    """6,802 and 5,780 packets a second of neighbouring rows are 8.1 % from their middle."""
    found = full.comparisons[PACKETS].summary()["by_provenance"]["calibrated"]
    assert 100 * (6802 - 5780) / (6802 + 5780) <= found["max_absolute_error"] <= 8.6


# --- the other figures --------------------------------------------------------------------------


def fact(outcome: SnipOutcome, words: str) -> Row:
    (found,) = (row for row in outcome.comparisons[FACT_ROWS].rows if words in row.name)
    return found


def value(outcome: SnipOutcome, words: str) -> float:
    simulated = fact(outcome, words).simulated
    assert simulated.exact
    assert simulated.mean is not None
    return simulated.mean


def test_every_figure_is_within_ten_percent_and_says_how(full: SnipOutcome) -> None:
    facts = full.to_json()["facts"]["cells"]
    assert len(facts) == 9
    for each in facts:
        assert (each["agreement"] == "outside") == (abs(each["error"]) > 10)
        assert each["how"]
    assert sum(each["agreement"] == "outside" for each in facts) == 0


def test_the_figures_by_hand(full: SnipOutcome) -> None:
    # What the buffers of both sides hide in ten seconds is 100 packets of 54,000 or 62,000.
    assert value(full, "routing") == pytest.approx(PACKETS_PER_SECOND, rel=0.0035)
    assert value(full, "bridging") == pytest.approx(5400, rel=0.0035)
    # Two handlings at 161 us and 1,437 bytes at 29.52 Mbit/s beyond the link's delay.
    beyond_ms = 2 * 1e3 / PACKETS_PER_SECOND + 1437 * 8 * 1e3 / MODEM_BPS
    assert value(full, "one-way") == pytest.approx(250 + beyond_ms, abs=1e-4)
    assert value(full, "split") == pytest.approx(50, abs=0.1)
    # 1,460 of 1,509 bytes, and slow start from one segment costs some tenths of a second of sixty.
    ceiling = 100 * 1460 / 1509
    assert ceiling - 0.7 < value(full, "TCP efficiency") < ceiling
    # 4 Mbit/s at 6,222 packets a second leave 80.4 bytes: the next whole datagram has 81.
    assert value(full, "4 Mbit/s") == 81
    crossover = full.to_json()["crossover"]
    assert crossover == {"payload_bytes": 44, "ip_bytes": 72, "link_bytes": 81.0}


def test_a_window_carries_its_whole_segments_a_round_trip(full: SnipOutcome) -> None:
    """The start costs up to ten round trips of 120; bursts without a pair wait for delayed ACKs."""
    base = read_scenario("snip")
    jobs = []
    for window, bps in full.measured.tcp_bps.items():
        ceiling_bps = window // 1460 * 1460 * 8 / 0.5
        assert 0.8 * ceiling_bps < bps < ceiling_bps
        data = tcp_scenario(base, window, DEFAULTS.tcp_duration).to_dict()
        data["traffic"][0]["tcp"] |= {"delayed_ack_segments": 1}
        jobs.append(Job(plan=Plan.resolve(data), seed=1))
    # What the report says: with an ACK for each segment nothing waits.
    for window, outcome in zip(full.measured.tcp_bps, run_jobs(jobs), strict=True):
        bps = 8 * outcome.column("flows", "delivered_bytes")[0] / 60
        assert bps > 0.95 * (window // 1460 * 1460 * 8 / 0.5)


def test_the_windows_chosen_are_the_nearest_of_those_tried(full: SnipOutcome) -> None:
    for quantity, window in FITTED_WINDOWS.items():
        (row,) = full.comparisons[FACT_ROWS].where(quantity=quantity).rows
        assert row.published is not None
        published_bps = 1e3 * row.published
        tcp_bps = full.measured.tcp_bps
        assert min(tcp_bps, key=lambda each: abs(tcp_bps[each] - published_bps)) == window


def test_both_directions_share_and_so_do_terminals(full: SnipOutcome) -> None:
    half = PACKETS_PER_SECOND / 2
    for each in full.measured.duplex:
        # The buffers are emptied after the end: 50 packets of each side in ten seconds, two boxes.
        assert (
            min(each["offered_pps"], half)
            <= each["forward_pps"]
            <= min(each["offered_pps"], half + 10)
        )
        assert each["forward_pps"] == pytest.approx(each["return_pps"], abs=1)
    for terminals, found in full.measured.sharing.items():
        (rate,) = found.limits
        assert rate.flows == terminals
        assert rate.aggregate_packets_per_second == pytest.approx(PACKETS_PER_SECOND, rel=0.0035)
        assert rate.first_loss is not None
        assert rate.first_loss.place == "hub-processor"


def test_aggregation_multiplies_the_rate_of_small_packets_as_on_paper(full: SnipOutcome) -> None:
    shared = full.to_json()["aggregation"]
    rows = {row["payload_bytes"]: row for row in shared["sizes"]}
    assert rows[100]["gain"] >= 4
    for row in rows.values():
        assert abs(row["error_percent"]) <= 5
    # Between 1 / hold time and the next load that was tried.
    assert shared["begins_at_pps_by_hold_ms"] == {"5": 220, "25": 45}
    for row in shared["loads"]:
        assert row["added_delay_ms"] <= row["hold_ms"] + 0.4, "a full frame takes 0.4 ms"


# --- promises -----------------------------------------------------------------------------------


def test_what_is_outside_is_named(full: SnipOutcome) -> None:
    """Given a row and a figure that are far off, expect both outside, with reasons."""
    far = replace(full.measured, tcp_bps={**full.measured.tcp_bps, 17_520: 1e8}, table=None)
    base = read_scenario("snip")
    outcome = replace(full, measured=far, comparisons=study.compare(base, DEFAULTS, far))
    result = outcome.to_json()
    assert result["facts"]["summary"]["outside"] == [TCP_LOW]
    assert result["cells"][0]["simulated"] is None
    text = outcome.report()
    assert f"{TCP_LOW}: published 250 kbit/s, simulated 100,000.00" in text
    (row,) = full.comparisons[ROUND].where(packet_bytes=138).rows
    assert row.to_json()["reason"]


# --- what it writes -----------------------------------------------------------------------------


@pytest.mark.usefixtures("reduced")
def test_the_command_prints_tables_and_json(bentpipe: Program) -> None:
    called = bentpipe("study", "snip")
    assert (called.code, called.err) == (0, "")
    for words in (
        "mean absolute error",
        "packet rate",
        "calibrated",
        "Outside the tolerance",
    ):
        assert words in called.out
    printed: dict[str, Any] = json.loads(bentpipe("study", "snip", "--json").out)
    assert printed["study"] == "snip"
    assert not printed["interrupted"]
