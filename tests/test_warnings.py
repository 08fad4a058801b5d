"""Warnings about scenarios that are valid, but may not mean what was intended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import Called

import bentpipe
from bentpipe import Plan, Result, Scenario, simulate
from bentpipe.errors import ScenarioWarning

Data = dict[str, Any]

# 10 Mbit/s are 1.25 MB/s; the round trip is 500 ms. 1 bdp is 625 kB.
HOP = {"rate": "10 Mbit/s", "delay": "250 ms", "queue": {"limit": "1 bdp"}}
LINK = {"forward": HOP, "return": HOP}
CALL: Data = {
    "kind": "constant_rate",
    "direction": "forward",
    "rate": "64 kbit/s",
    "payload": "160 B",
}
BULK: Data = {"kind": "bulk", "direction": "forward"}
EXCHANGES: Data = {
    "kind": "request_response",
    "direction": "forward",
    "request": "100 B",
    "response": "125 kB",
}


def scenario(*traffic: Data, **fields: Any) -> Data:
    return {"link": LINK, "traffic": list(traffic), "duration": "20 s", **fields}


def told(field: str, read: str, needs: str, left: str) -> str:
    return f"{field}: read {read}; {needs}, but the run ends {left}"


def warnings(data: Data, *settings: str) -> list[str]:
    return [str(each) for each in Plan.resolve(Scenario.from_dict(data, settings)).warnings]


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        # The handshake, 500 ms, and the way of the last segment, 250 ms, leave 19.25 s, in which
        # the link carries 24.06 MB.
        (BULK | {"size": "24 MB"}, None),
        (
            BULK | {"size": "24.1 MB"},
            told("size", '"24.1 MB"', "takes at least 20.03 s", "20 s after the start"),
        ),
        (
            BULK | {"size": "24 MB", "start": "1 s"},
            told("size", '"24 MB"', "takes at least 19.95 s", "19 s after the start"),
        ),
        (BULK | {"size": "8 MB", "count": 3}, None),
        (
            BULK | {"size": "8.1 MB", "count": 3},
            told(
                "size", '"8.1 MB"', "3 flows together take at least 20.19 s", "20 s after the start"
            ),
        ),
        (BULK | {"duration": "19 s", "start": "1 s"}, None),
        (
            BULK | {"duration": "19.5 s", "start": "1 s"},
            told("duration", '"19.5 s"', "lasts 19.5 s", "19 s after the start"),
        ),
        # Bulk flows need a size or a duration: that of the run is "to its end".
        (BULK | {"duration": "20 s", "start": "1 s"}, None),
        (CALL | {"duration": "19 s", "start": "1 s"}, None),
        (
            CALL | {"duration": "20 s", "start": "1 s"},
            told("duration", '"20 s"', "lasts 20 s", "19 s after the start"),
        ),
        (
            CALL | {"duration": "15 s", "count": 3, "start_spacing": "3010 ms"},
            told("duration", '"15 s"', "lasts 15 s", "13.98 s after the start of the last flow"),
        ),
        (CALL | {"start": "1 s"}, None),
        # An exchange takes a round trip and 100 ms; the connection takes another round trip.
        (EXCHANGES | {"exchanges": 32}, None),
        (
            EXCHANGES | {"exchanges": 33},
            told("exchanges", "33", "takes at least 20.3 s", "20 s after the start"),
        ),
        (
            EXCHANGES | {"exchanges": 32, "think": "500 ms"},
            told("exchanges", "32", "takes at least 35.2 s", "20 s after the start"),
        ),
        (EXCHANGES | {"exchanges": 10, "response": {"exponential": "1 GB"}}, None),
        (EXCHANGES, None),
    ],
)
def test_a_flow_that_cannot_end_is_told(entry: Data, expected: str | None) -> None:
    assert warnings(scenario(entry)) == ([] if expected is None else [f"traffic.0.{expected}"])


def test_a_fetch_takes_a_connection_for_each_file() -> None:
    fetch = {"kind": "fetch", "direction": "forward", "size": "125 kB"}
    # Two round trips and 100 ms each: 1.1 s.
    assert warnings(scenario(fetch | {"files": 18})) == []
    assert warnings(scenario(fetch | {"files": 19})) == [
        "traffic.0.files: read 19; takes at least 20.9 s, but the run ends 20 s after the start"
    ]


def test_the_bounds_hold_for_flows_that_end() -> None:
    """The flow of 24 MB without a warning needs slow start; one of 15 MB ends well before 20 s."""
    ended = simulate(scenario(BULK | {"size": "15 MB"}))
    assert ended.manifest["traffic_ended"]
    assert ended.warnings == ()


def test_a_constant_rate_beyond_that_of_the_link_is_told() -> None:
    # 64 kbit/s of payload are 75.2 kbit/s of IP: 132 of them need 9.93 Mbit/s.
    assert warnings(scenario(CALL | {"count": 132})) == []
    assert warnings(scenario(CALL | {"count": 140})) == [
        'traffic.0.rate: read "64 kbit/s"; 140 of them need 10.53 Mbit/s with headers, and forward '
        "has 10 Mbit/s: 5.0% is lost once the queue is full"
    ]
    # Never more than 70 at the same time.
    turns = {"count": 140, "duration": "100 ms", "start_spacing": "1429 us"}
    assert warnings(scenario(CALL | turns)) == []
    assert warnings(scenario(CALL | {"direction": "return", "rate": "9 Mbit/s"})) == [
        'traffic.0.rate: read "9 Mbit/s"; it needs 10.57 Mbit/s with headers, and return has '
        "10 Mbit/s: 5.4% is lost once the queue is full"
    ]


def test_the_copies_of_a_conference_count() -> None:
    meeting = {"kind": "conference", "participants": 4, "rate": "1 Mbit/s", "payload": "1000 B"}
    link = {**LINK, "terminals": 4}
    # 12 streams of 1.028 Mbit/s go forward.
    assert warnings(scenario(meeting, link=link))[0] == (
        'traffic.0.rate: read "1 Mbit/s"; 12 of them need 12.34 Mbit/s with headers, and forward '
        "has 10 Mbit/s: 18.9% is lost once the queue is full"
    )


def test_the_returns_of_several_terminals_are_told_with_their_sum() -> None:
    """Given four returns of 10 Mbit/s, expect 40 Mbit/s, if flows use more than one of them."""
    link, both = {**LINK, "terminals": 4}, CALL | {"terminal": "all"}
    assert warnings(scenario(both, link=link)) == [
        "link.terminals: read 4; each terminal has its own return of 10 Mbit/s, so together they "
        "have 40 Mbit/s"
    ]
    assert warnings(scenario(both)) == warnings(scenario(CALL, link=link)) == []


def test_starts_in_phase_or_after_the_end_are_told() -> None:
    spaced = CALL | {"count": 3, "start_spacing": "40 ms"}
    assert warnings(scenario(spaced)) == [
        'traffic.0.start_spacing: read "40 ms"; a multiple of the interval between datagrams, '
        "20 ms: the flows are in phase; start_jitter: 20 ms gives them random phases"
    ]
    assert warnings(scenario(spaced | {"start_spacing": "41 ms"})) == []
    assert warnings(scenario(spaced | {"start_jitter": "20 ms"})) == []
    assert warnings(scenario(BULK | {"size": "1 kB", "start_jitter": "30 s"})) == [
        'traffic.0.start_jitter: read "30 s"; a flow may start after the end of the run, 20 s'
    ]


def test_a_priority_without_classes_is_told() -> None:
    flow = CALL | {"priority": 1}
    assert warnings(scenario(flow)) == [
        "traffic.0.priority: read 1; no effect, since no queue of the link has classes"
    ]
    sorted_hop = HOP | {"queue": {"discipline": "strict_priority", "classes": 2}}
    assert warnings(scenario(flow, link={"forward": sorted_hop, "return": HOP})) == []


def test_a_queue_limit_in_bdp_that_a_setting_changes_is_told() -> None:
    data = scenario(CALL)
    assert warnings(data) == []
    # 2 Mbit/s x 500 ms.
    assert warnings(data, "link.forward.rate=2Mbit/s") == [
        'link.forward.queue.limit: "1 bdp" is 125,000 B with these settings; without them, '
        "625,000 B"
    ]
    # A delay counts for both directions.
    assert [each.split(":")[0] for each in warnings(data, "link.return.delay=50 ms")] == [
        "link.forward.queue.limit",
        "link.return.queue.limit",
    ]
    assert warnings(data, "link.forward.rate=2Mbit/s", "link.forward.queue.limit=2 bdp") == []
    assert warnings(data, "link.forward.rate=10Mbit/s", "traffic.0.rate=8kbit/s") == []
    # A file that is valid only with settings has no limits to compare with.
    incomplete = {key: data[key] for key in ("link", "traffic")}
    assert warnings(incomplete, "duration=20 s", "link.forward.rate=2Mbit/s") == []


def test_results_have_the_warnings(tmp_path: Path) -> None:
    late = scenario(CALL | {"duration": "30 s"}, duration="1 s")
    expected = ScenarioWarning(
        field="traffic.0.duration",
        message='read "30 s"; lasts 30 s, but the run ends 1 s after the start',
    )
    result = simulate(late)
    assert result.warnings == (expected,)
    assert Result.load(result.save(tmp_path / "result")).warnings == (expected,)
    varied = bentpipe.sweep(late, vary={"link.forward.rate": ["2 Mbit/s", "10 Mbit/s"]})
    fields = [[warning.field for warning in each.warnings] for each in varied.results]
    assert fields == [["traffic.0.duration", "link.forward.queue.limit"], ["traffic.0.duration"]]


@pytest.mark.system
def test_a_run_prints_and_reports_its_warnings(bentpipe: Any, tmp_path: Path) -> None:
    file = tmp_path / "scenario.yaml"
    file.write_text(json.dumps(scenario(CALL | {"duration": "30 s"}, duration="1 s")))
    line = 'traffic.0.duration: read "30 s"; lasts 30 s, but the run ends 1 s after the start'
    called: Called = bentpipe("run", file, "--json", "--out", tmp_path / "out")
    assert called.code == 0
    assert f"bentpipe: warning: {line}\n" in called.err
    field, _, message = line.partition(": ")
    assert json.loads(called.out)["warnings"] == [{"field": field, "message": message}]
    report = (tmp_path / "out" / "report.html").read_text()
    assert "Warning: traffic.0.duration" in report


@pytest.mark.parametrize("discipline", ["codel", "fq_codel"])
def test_codel_with_its_defaults_over_a_geostationary_link_is_told(discipline: str) -> None:
    """Given 542 ms and an interval of 100 ms, expect what fits: a round trip, and 5 % of it.

    100 ms is good up to 300 ms, so also for 160 ms.
    """
    queue = {"forward": {"queue": {"discipline": discipline}}}
    geo = scenario(CALL, link={"preset": "geo", **queue})
    assert warnings(geo) == [
        "link.forward.queue: an interval of 100 ms is too short for round trips of 542 ms: CoDel "
        "drops before senders can react; set target: 27.1 ms, interval: 542 ms"
    ]
    fitting = ("link.forward.queue.target=27.1 ms", "link.forward.queue.interval=542 ms")
    assert warnings(geo, *fitting) == []
    assert warnings(scenario(CALL, link={"preset": "meo", **queue})) == []
    # Queues of other disciplines have no interval.
    assert warnings(scenario(CALL, link={"preset": "geo"})) == []


# --- queues of two packets ----------------------------------------------------------------------


def short_queue(packets: int, *settings: str, **transfer: Any) -> list[str]:
    """Return the warnings of a transfer over a link with a queue of some packets."""
    queue = {"queue": {"limit": f"{packets} packets"}}
    return warnings(
        scenario(
            BULK | {"duration": "10 s"} | transfer,
            link={"forward": HOP | queue, "return": HOP},
        ),
        *settings,
    )


def test_a_queue_in_which_microseconds_decide_is_told() -> None:
    """Given room for two packets, expect the jitter that hosts have as advice; for three, nothing.

    BBR paces, so that its packets do not come in groups: also the one of a PEP over the link.
    """
    text = "link.forward.queue: it has room for {} of 1,500 bytes, so microseconds decide which "
    advice = "set link.return.jitter: 20 us, as real hosts have"
    for packets, count in ((1, "1 packet"), (2, "2 packets")):
        (message,) = short_queue(packets)
        assert message.startswith(text.format(count))
        assert message.endswith(advice)
    assert short_queue(3) == []
    assert short_queue(2, "link.return.jitter=20 us") == []
    assert short_queue(2, "link.forward.queue.limit=4500 B") == []
    assert short_queue(2, "link.forward.queue.limit=4499 B") != []
    assert short_queue(2, tcp={"congestion_control": "bbr"}) == []
    pep = "gateways.hub.pep={link_tcp: {congestion_control: bbr}}"
    assert short_queue(2, pep) == []
    assert short_queue(2, "gateways.hub.pep={}") != []
    # The returns of all terminals have one limit, and one warning.
    upload = {"direction": "return", "count": 2, "terminal": "all"}
    several = ("link.return.queue.limit=2 packets", "link.terminals=3")
    (message,) = (text for text in short_queue(9, *several, **upload) if "microseconds" in text)
    assert message.startswith("link.return.queue: it has room for 2 packets")
    assert message.endswith("set link.forward.jitter: 20 us, as real hosts have")


@pytest.mark.parametrize(("packets", "least", "most"), [(2, 0.3, 0.75), (3, 0.95, 1.05)])
def test_microseconds_decide_in_a_queue_of_two_packets(
    packets: int, least: float, most: float
) -> None:
    """Given 20 us of jitter, expect less goodput with room for two packets, and as much for three.

    An ACK of two segments lets the sender send three when the window grows. The third one fits if
    the packet that is being sent ends before it comes, which is at the same time by the ACK clock.
    """

    def goodput_bps(jitter: str) -> float:
        link = {
            "forward": {
                "rate": "7.57 Mbit/s",
                "delay": "8.66 ms",
                "queue": {"limit": f"{packets} packets"},
            },
            "return": {"rate": "1.89 Mbit/s", "delay": "8.66 ms", "jitter": jitter},
        }
        given = scenario(BULK | {"duration": "20 s"}, link=link)
        return float(simulate(given).flows["goodput_bps"][0])

    assert least < goodput_bps("20 us") / goodput_bps("0 s") < most
