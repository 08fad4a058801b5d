"""Calls in scenarios: their traffic, the jitter buffer, and their quality in every result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import Program

from bentpipe import Plan, Result, Scenario, simulate
from bentpipe.errors import ScenarioError
from bentpipe.results import check_thresholds
from bentpipe.results.run_views import flow_views
from bentpipe.scenario import Voice

MS = 10**6
HOP = {"rate": "1 Mbit/s", "delay": "100 ms"}


def scenario(*calls: dict[str, Any], duration: str = "10 s", **forward: Any) -> Any:
    """Return calls on a link of 1 Mbit/s and 100 ms."""
    link = {"forward": {**HOP, **forward}, "return": HOP}
    traffic = [{"kind": "voice", **call} for call in calls]
    return Scenario.from_dict({"link": link, "traffic": traffic, "duration": duration})


def flows(result: Result) -> dict[str, dict[str, Any]]:
    return {flow["name"]: flow for flow in result.flows.to_dicts()}


# --- traffic ------------------------------------------------------------------------------------


def test_a_call_is_two_flows_of_fifty_packets_a_second() -> None:
    """Given G.711 for 10 s, expect 500 packets of 172 bytes of payload each way."""
    result = simulate(scenario({"codec": "g711"}))
    found = flows(result)
    assert list(found) == ["voice-1-forward", "voice-1-return"]
    for flow in found.values():
        assert (flow["kind"], flow["sent_segments"], flow["sent_bytes"]) == ("voice", 500, 86_000)


@pytest.mark.parametrize(
    ("codec", "payload", "rate"),
    [("g711", 172, 68_800), ("g729", 32, 12_800), ("opus", 92, 36_800)],
)
def test_a_codec_gives_the_rate_and_the_payload(codec: str, payload: int, rate: int) -> None:
    workload = Plan.resolve(scenario({"codec": codec})).data["flows"][0]["workload"]
    assert workload["kind"] == "voice"
    assert (workload["payload_bytes"], workload["rate_bps"]) == (payload, rate)
    assert (workload["codec"], workload["jitter_buffer_ns"]) == (codec, 60 * MS)
    assert workload["talk_spurts"] is None


def test_several_calls_start_at_random_phases_of_a_packet_interval() -> None:
    plan = Plan.resolve(scenario({"count": 3})).data
    assert [flow["start_jitter_ns"] for flow in plan["flows"]] == [20 * MS] * 6
    assert Plan.resolve(scenario({})).data["flows"][0]["start_jitter_ns"] == 0


def test_silence_suppression_sends_in_talk_spurts_only() -> None:
    """P.59: 1.004 of 2.591 s. Given 40 directions for 500 s, expect 38.75 % of 25,000 packets each.

    A direction has some 190 cycles; the share of 40 has a standard error of 0.4 %. A packet at the
    beginning of each spurt adds 0.4 %.
    """
    call = {"count": 20, "silence_suppression": True, "codec": "g729"}
    made = scenario(call, duration="500 s")
    result = simulate(made)
    share = sum(result.flows["sent_segments"].to_list()) / (40 * 25_000)
    assert abs(share - 0.3914) < 0.016
    assert result.flows["lost_packets"].sum() == 0


def test_a_call_can_be_written_in_python() -> None:
    assert Voice(codec="g729").model_dump(exclude_unset=True) == {"kind": "voice", "codec": "g729"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"codec": "g722"}, "codec"),
        ({"payload": "160 B"}, "payload"),
        ({"direction": "up"}, "direction"),
    ],
)
def test_bad_calls_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        scenario(fields)


# --- jitter buffer and quality ------------------------------------------------------------------


def test_mouth_to_ear_delay_is_packet_network_and_buffer() -> None:
    """20 ms of speech, 101.6 ms on the link (200 bytes at 1 Mbit/s, 100 ms), 60 ms of buffer.

    Idd of 181.6 ms is 1.46 by hand (X = 0.8608), and R = 93.21 - 1.46 without loss.
    """
    flow = flows(simulate(scenario({})))["voice-1-forward"]
    assert flow["mouth_to_ear_ns"] == pytest.approx(181.6 * MS)
    assert flow["delay_impairment"] == pytest.approx(1.46, abs=0.02)
    assert flow["loss_impairment"] == 0
    assert flow["r_factor"] == pytest.approx(93.21 - 1.46, abs=0.02)
    assert (flow["late_packets"], flow["loss_bursts"], flow["unplayed_percent"]) == (0, 0, 0)
    longer = flows(simulate(scenario({"jitter_buffer": "100 ms"})))["voice-1-forward"]
    assert longer["mouth_to_ear_ns"] == pytest.approx(221.6 * MS)


def test_packets_that_wait_longer_than_the_buffer_are_late() -> None:
    """Given an outage of 1 s from 5 s on, expect packets late that wait for more than 60 ms.

    Packets are sent at 5.00, 5.02, ..., 5.98 s. That of 5.00 s + 20 n ms waits until 6 s, and for
    the n before it, 1.6 ms each: 1000 - 20 n + 1.6 n ms over 60 ms for n up to 51.08. After the
    outage the queue empties at 18.4 ms a packet: late are n = 0 to 51.
    """
    made = scenario({}, outage=[{"at": "5 s", "for": "1 s"}])
    flow = flows(simulate(made))["voice-1-forward"]
    assert flow["lost_packets"] == 0
    assert flow["late_packets"] == 52
    assert flow["loss_bursts"] == 1
    assert flow["unplayed_percent"] == pytest.approx(10.4)
    assert flows(simulate(made))["voice-1-return"]["late_packets"] == 0


def test_lost_packets_are_counted_with_their_bursts() -> None:
    """Given 10 % random loss of 5,000 packets, expect bursts as of independent losses.

    There are 500 losses in 450 bursts; four standard deviations are 85 losses.
    """
    flow = flows(simulate(scenario({}, duration="100 s", loss="10 %")))["voice-1-forward"]
    assert abs(flow["lost_packets"] - 500) < 85
    mean_length = flow["lost_packets"] / flow["loss_bursts"]
    assert mean_length == pytest.approx(1 / 0.9, abs=0.07)
    assert flow["unplayed_percent"] == pytest.approx(flow["lost_packets"] / 50)
    assert 1.5 < flow["mos"] < 3.5


def test_a_call_of_which_nothing_arrives_has_the_worst_score() -> None:
    flow = flows(simulate(scenario({}, loss="100 %")))["voice-1-forward"]
    assert (flow["mos"], flow["r_factor"], flow["unplayed_percent"]) == (1, 0, 100)
    assert flow["mouth_to_ear_ns"] is None


def test_other_flows_have_no_score() -> None:
    traffic = [{"kind": "bulk", "direction": "forward", "size": "10 kB"}]
    link = {"forward": HOP, "return": HOP}
    result = simulate(Scenario.from_dict({"link": link, "traffic": traffic, "duration": "9 s"}))
    (flow,) = result.flows.to_dicts()
    assert flow["mos"] is None
    assert flow["late_packets"] is None
    assert result.entries[0]["mos"] is None


# --- results ------------------------------------------------------------------------------------


def test_calls_have_a_table_and_percentiles_over_the_calls_of_an_entry() -> None:
    few = simulate(scenario({"name": "call"}))
    (calls,) = [table for table in flow_views(few) if table.title.startswith("Calls")]
    assert [row[:3] for row in calls.texts()] == [
        ["call-forward", "forward", "4.38"],
        ["call-return", "return", "4.38"],
    ]
    many = simulate(scenario({"name": "call", "codec": "g729", "count": 8}))
    (calls,) = [table for table in flow_views(many) if table.title.startswith("Calls")]
    assert [row[:4] for row in calls.rows][:3] == [
        ["call", "forward", f"p{p}", 8] for p in (5, 50, 95)
    ]
    forward = many.entries[0]
    assert forward["mos"]["p5"] <= forward["mos"]["p50"] <= forward["mos"]["p95"] < 4.2


@pytest.mark.system
def test_the_score_is_in_json_and_in_the_report(bentpipe: Program, tmp_path: Path) -> None:
    file = tmp_path / "call.yaml"
    file.write_text(json.dumps(scenario({"name": "call"}).to_dict()))
    out, unsampled = tmp_path / "out", ("--set", "sample_interval=null")
    printed = json.loads(bentpipe("run", file, "--json", "--out", out, *unsampled).out)
    assert printed["flows"][0]["mos"] == pytest.approx(4.38, abs=0.01)
    assert printed["entries"][0]["mos"]["p5"] == pytest.approx(4.38, abs=0.01)
    assert "ITU-T G.107" in (out / "report.html").read_text()
    assert "4.38" in bentpipe("run", file).out


def test_a_codec_that_needs_more_than_the_link_is_warned_about() -> None:
    """13 calls of G.711 need 1.04 Mbit/s of IP packets; in talk spurts 33 would."""
    result = simulate(scenario({"count": 13}, duration="1 s"))
    texts = [warning.message for warning in result.warnings]
    assert any('read "g711"; 13 of them need 1.04 Mbit/s' in text for text in texts)
    quiet = simulate(scenario({"count": 13, "silence_suppression": True}, duration="1 s"))
    assert not quiet.warnings


def test_the_example_of_calls_beside_a_download_is_better_with_fq_codel() -> None:
    """The queue of the download ruins the calls; FQ-CoDel protects them."""
    path = "scenarios/voice.yaml"
    bad = simulate(Scenario.load(path, settings=("link.forward.queue={limit: 500 kB}",))).entries[0]
    good = simulate(Scenario.load(path)).entries[0]
    assert bad["mos"]["p50"] < 2
    assert good["mos"]["p5"] > 3.6


def test_thresholds_are_about_the_score_of_calls() -> None:
    """A score is one of the metrics of flows; a missed one is told by how much."""
    made = scenario({"name": "call", "codec": "g729"})
    result = simulate(
        Scenario.from_dict(made.to_dict() | {"thresholds": ["flows.call.mos.p5 >= 4.2"]})
    )
    (check,) = check_thresholds(result)
    assert not check.passed
    assert check.value == pytest.approx(result.flows["mos"].min())
