"""The verdict on a run in real time, in words and as data: what to trust and what not."""

from __future__ import annotations

from typing import Any

import pytest

from bentpipe import Result
from bentpipe.cli.link_status import summary_lines
from bentpipe.report.run import run_report
from bentpipe.report.terminal import run_tables
from bentpipe.results.verdict import (
    bounds,
    invalid_message,
    judged,
    late_windows,
    over_time,
    verdict,
)

SECOND_NS = 1_000_000_000
LATE = (
    "packets were late by up to 12.0 ms (limit 10 ms), 3 of 500 by more than 1 ms "
    "(limit 5 packets); to fix it: stop other programs"
)
CAUSE, _, FIX = LATE.partition("; to fix it: ")
DROPPED = "the kernel dropped 3 packets before the link; to fix it: send less"
QUANTILES = {"p50_ns": 9_000, "p99_ns": 300_000, "max_ns": 12_000_000}
TRUST = "trust packet counts and losses, not delays, jitter and TCP throughput"


def window(start_s: float, end_s: float, fault: str | None = None, **more: Any) -> dict[str, Any]:
    """A window of a run; ``more`` replaces its values."""
    reasons = {"late": LATE, "lost": DROPPED}
    times = {"start_ns": round(start_s * SECOND_NS), "end_ns": round(end_s * SECOND_NS)}
    found = {"fault": fault, "invalid": None if fault is None else reasons[fault]}
    return {**times, "packets": 500, **QUANTILES, **found, **more}


def record(*windows: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A report with these windows; ``more`` replaces its values."""
    reasons = [each["invalid"] for each in windows if each["invalid"] is not None]
    counts = {"window_count": len(windows), "invalid_windows": len(reasons)}
    return {"windows": list(windows), **counts, "invalid": next(iter(reasons), None), **more}


def test_a_valid_run_has_no_message() -> None:
    valid = record(window(0, 10), window(10, 12))
    assert invalid_message(valid) is None
    assert late_windows(valid) == []
    lists: dict[str, list[str]] = {"unreliable": [], "reliable": []}
    assert verdict(valid) == {"valid": True, "message": None, "bounds": None, **lists}


def test_a_run_of_one_window_says_which_figures_hold() -> None:
    """Given late packets in a run of 3 s, expect delays and TCP to be doubted, counts to hold."""
    late = record(window(0, 3, "late"))
    assert invalid_message(late) == f"{CAUSE}; {TRUST}; to fix it: {FIX}"
    found = verdict(late)
    assert found["unreliable"] == ["delays", "jitter", "TCP throughput"]
    assert found["reliable"] == ["packet counts", "losses"]
    assert not found["valid"]


def test_late_windows_are_named_and_the_others_hold() -> None:
    """Given 3 late windows of 6, of which two follow each other, expect their times."""
    windows = [window(10 * n, 10 * n + 10, "late" if n in {1, 2, 4} else None) for n in range(6)]
    late = record(*windows)
    assert invalid_message(late) == (
        f"{CAUSE} in 3 of 6 windows of time (10.0 to 30.0 s, 40.0 to 50.0 s); "
        f"in these windows {TRUST}; trust the other windows; means over the whole run include the "
        f"invalid ones; to fix it: {FIX}"
    )
    starts = [each["start_ns"] // SECOND_NS for each in late_windows(late)]
    assert starts == [10, 20, 40]
    assert {each["fault"] for each in late_windows(late)} == {"late"}


def test_only_the_first_windows_are_listed() -> None:
    late = record(*(window(20 * n, 20 * n + 10, "late") for n in range(5)))
    assert "(0.0 to 10.0 s, 20.0 to 30.0 s, 40.0 to 50.0 s, 2 more)" in str(invalid_message(late))


def test_the_latest_packet_is_that_of_the_worst_window() -> None:
    worse = LATE.replace("12.0", "50.0")
    late = record(window(0, 10, "late"), window(10, 20, "late", invalid=worse, max_ns=50_000_000))
    assert str(invalid_message(late)).startswith("packets were late by up to 50.0 ms")


def test_lost_packets_leave_neither_losses_nor_throughput_to_trust() -> None:
    lost = record(window(0, 3, "lost"))
    assert "; do not trust losses and throughput; to fix it: send less" in str(
        invalid_message(lost)
    )
    both = verdict(record(window(0, 10, "late"), window(10, 12, "lost")))
    assert both["unreliable"] == ["delays", "jitter", "losses", "throughput"]
    assert both["reliable"] == []


def test_a_run_may_be_late_though_no_window_is() -> None:
    """Given one late packet in each of many windows, or late windows that are no longer kept."""
    late = record(window(600, 610), window(610, 620), fault="late", invalid=LATE)
    assert invalid_message(late) == f"{CAUSE}; {TRUST}; to fix it: {FIX}"


@pytest.mark.parametrize("windows", [[window(0, 10, "late"), window(10, 12)], []])
def test_nothing_holds_once_the_link_has_failed(windows: list[dict[str, Any]]) -> None:
    why = "the link has failed: no such device"
    failed = record(*windows, failure=why, invalid=why)
    assert invalid_message(failed) == f"{why}; do not use the figures"


def test_a_stored_run_without_faults_says_not_to_use_it() -> None:
    """Expect no more of a result folder that was written before faults had names."""
    assert invalid_message({"invalid": "late"}) == "late; do not use the figures"


# --- bounds ---------------------------------------------------------------------------------------


def measured(*windows: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A report of 12 s with bounds: packets late by up to 12 ms can slow a connection by 0.25 %."""
    about = {"at_ns": 12 * SECOND_NS, "slowdown_percent": 0.25, "directions": {}}
    return record(*windows, **{**about, "lateness": {"packets": 500, **QUANTILES}, **more})


def test_a_valid_run_says_by_how_much_its_figures_could_be_off() -> None:
    """Given chains of packets that take up to a quarter longer, expect that of transfers, too."""
    assert bounds(measured(window(0, 12), slowdown_percent=25)) == {
        "delay_ns": 12_000_000,
        "transfer_percent": 25,
    }
    text = "delays are too long by at most 12 ms, a TCP transfer by at most 0.3 %"
    assert summary_lines(measured(window(0, 12)))[-1] == text
    late = measured(window(0, 12, "late"), fault="late")
    assert invalid_message(late) == f"{CAUSE}; {TRUST}; {text}; to fix it: {FIX}"
    assert summary_lines(late)[-1] == f"INVALID: {invalid_message(late)}"


def test_a_bound_is_that_of_the_time_in_which_connections_were() -> None:
    """Given 0.25 % of 12 s, 30 ms, expect 1 % of 3 s."""
    assert over_time(measured(), 3 * SECOND_NS)["slowdown_percent"] == pytest.approx(1)


@pytest.mark.parametrize(
    "report",
    [
        measured(window(0, 12, "lost"), fault="lost"),
        measured(window(0, 10, "late"), window(10, 12, "lost"), fault="late"),
        measured(window(0, 12), failure="the link has failed", invalid="the link has failed"),
        measured(window(0, 12), fault="pep", invalid="the PEP has ended"),
        record(window(0, 12)),
    ],
)
def test_nothing_is_bounded_unless_lateness_is_all_that_is_wrong(report: dict[str, Any]) -> None:
    assert bounds(report) is None


def test_a_run_without_packets_cannot_be_judged_so_it_is_invalid() -> None:
    nothing = {"packets": 0, "p50_ns": 0, "p99_ns": 0, "max_ns": 0}
    idle = judged(measured(window(0, 12, packets=0), slowdown_percent=0, lateness=nothing))
    assert idle["fault"] == "idle"
    assert not verdict(idle)["valid"]
    assert verdict(idle)["bounds"] is None
    assert str(invalid_message(idle)).startswith("no packet has left the link, so nothing shows")
    assert str(invalid_message(idle)).endswith("; do not use the figures")
    # A fault that is known is the reason.
    lost = judged(measured(window(0, 12, "lost"), fault="lost", lateness=nothing))
    assert lost["fault"] == "lost"
    assert judged(measured(window(0, 12)))["invalid"] is None


# --- everywhere -----------------------------------------------------------------------------------


@pytest.mark.system
def test_the_same_sentence_is_everywhere(small_result: Result) -> None:
    """Expect it in the lines after `exec`, the table, the notebook, the page and the JSON."""
    late = record(window(0, 10, "late"), window(10, 12))
    about = {"kernel": "6.1", "iperf3": "iperf 3.12", "warnings": [], **late}
    about["lateness"] = about["wait"] = {"packets": 7, **QUANTILES, "p90_ns": 0, "p999_ns": 0}
    manifest = {**small_result.manifest, "engine": "emulate", "emulation": about}
    result = Result(manifest, small_result.tables)
    message = f"INVALID: {invalid_message(late)}"
    assert TRUST in message
    report = {**about, "at_ns": 12 * SECOND_NS, "directions": {}}
    assert summary_lines(report)[-1] == message
    assert message in run_tables(result)
    assert message in result._repr_html_()
    assert message in run_report(result)
    assert result.invalid == invalid_message(late)
    summary = result.summary()
    assert summary["verdict"]["message"] == result.invalid
    assert summary["late_windows"] == late_windows(late)
