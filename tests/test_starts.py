"""Several flows of an entry start at random within one datagram interval, unless told otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bentpipe import Plan, Result, Scenario, simulate
from bentpipe.live.requirements import start_of
from bentpipe.studies.base.inputs import read_scenario
from bentpipe.studies.hermes.streams import CONFERENCE_CASES, StreamCase
from bentpipe.studies.snip.measure import shared_scenario

ROOT = Path(__file__).parents[1]
MS = 10**6
INTERVAL_MS = 20
CALLS = 60
# Each 20 ms has 60 packets of 188 bytes: 4.512 Mbit/s, 18 ms of the link's time.
LINK = {"rate": "5 Mbit/s", "delay": "250 ms", "queue": {"limit": "54 packets"}}


def scenario(*traffic: dict[str, Any], **fields: Any) -> dict[str, Any]:
    link = {"forward": LINK, "return": LINK, **fields.pop("link", {})}
    return {"link": link, "traffic": list(traffic), "duration": "5 s", **fields}


def call(**fields: Any) -> dict[str, Any]:
    """A G.711 call in one direction: 160 bytes of payload each 20 ms."""
    return {
        "name": "call",
        "kind": "constant_rate",
        "direction": "forward",
        "rate": "64 kbit/s",
        "payload": "160 B",
        "duration": "4 s",
        **fields,
    }


def jitter_ms(*traffic: dict[str, Any], **link: Any) -> list[float]:
    plan = Plan.resolve(scenario(*traffic, link=link)).data
    return [flow["start_jitter_ns"] / MS for flow in plan["flows"]]


def lost(result: Result) -> tuple[int, int]:
    """Return the datagrams lost, and those sent."""
    sent, received = (sum(result.flows[f"{what}_segments"]) for what in ("sent", "received"))
    return sent - received, sent


def test_calls_in_phase_overflow_a_queue_that_carries_calls_with_random_phases() -> None:
    """The bounds on paper.

    In phase: each 20 ms, 60 packets arrive at once, of which the queue holds 54 and the transmitter
    one. 5 of 60 are lost, 8.3 %.

    With random phases, an overflow needs 55 arrivals within 1.5 ms, in which the link sends 5: for
    60 uniform phases within 20 ms the probability is below 60 C(59, 54) (1.5 / 20)^54 < 10^-52.
    """
    in_phase = simulate(scenario(call(count=CALLS, start_jitter="0 s")))
    assert lost(in_phase) == (200 * 5, 200 * CALLS)
    for seed in range(1, 6):
        assert lost(simulate(scenario(call(count=CALLS)), seed=seed)) == (0, 200 * CALLS)


def test_the_scenario_of_the_docs_shows_both() -> None:
    calls = ROOT / "scenarios" / "calls-60.yaml"
    with_zero = Scenario.load(calls, settings=("traffic.call.start_jitter=0 s",))
    assert lost(simulate(calls))[0] == 0
    lost_datagrams, sent = lost(simulate(with_zero))
    assert lost_datagrams * CALLS == 5 * sent


def test_phases_come_from_the_seed_and_are_those_of_an_emulation() -> None:
    calls = scenario(call(count=CALLS, start="100 ms"))
    by_seed = {seed: simulate(calls, seed=seed).flows["start_ns"].to_list() for seed in (1, 2)}
    assert by_seed[1] != by_seed[2]
    plan = Plan.resolve(calls).data
    for seed, starts in by_seed.items():
        assert [start_of(flow, seed) for flow in plan["flows"]] == starts
        assert all(100 * MS <= start < 120 * MS for start in starts)
        # Not sorted: the order of the names says nothing about the phases.
        assert len(set(starts)) == CALLS
        assert starts != sorted(starts)


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({}, [0]),
        ({"count": 2}, [INTERVAL_MS] * 2),
        ({"count": 2, "direction": "both"}, [INTERVAL_MS] * 4),
        ({"direction": "both"}, [0, 0]),
        ({"count": 2, "start_jitter": "0 s"}, [0, 0]),
        ({"count": 2, "start_spacing": "7 ms"}, [0, 0]),
        ({"count": 2, "start_spacing": "7 ms", "start_jitter": "1 ms"}, [1, 1]),
        ({"start_jitter": "1 s"}, [1_000]),
    ],
)
def test_several_calls_have_a_jitter_of_one_interval(
    entry: dict[str, Any], expected: list[float]
) -> None:
    assert jitter_ms(call(**entry)) == expected


def test_terminals_and_participants_have_a_jitter_of_one_interval() -> None:
    assert jitter_ms(call(terminal="all"), terminals=3) == [INTERVAL_MS] * 3
    assert jitter_ms(call(terminal="all"), terminals=1) == [0]
    meeting = {"kind": "conference", "participants": 2, "rate": "128 kbit/s", "payload": "160 B"}
    assert jitter_ms(meeting, terminals=2) == [INTERVAL_MS / 2] * 2


def test_tcp_flows_have_a_jitter_only_if_it_is_written() -> None:
    bulk = {"kind": "bulk", "direction": "forward", "size": "10 kB", "count": 8}
    assert jitter_ms(bulk) == [0] * 8
    result = simulate(scenario(bulk | {"start_jitter": "500 ms"}))
    starts = result.flows["start_ns"].to_list()
    assert len(set(starts)) == 8
    assert all(0 <= start < 500 * MS for start in starts)
    fetch = {"kind": "fetch", "direction": "forward", "size": "10 kB", "files": 1, "count": 8}
    result = simulate(scenario(fetch | {"start_jitter": "500 ms"}))
    assert result.exchanges["start_ns"].n_unique() == 8


def test_the_studies_state_their_starts() -> None:
    """Their figures do not depend on the default: no plan has a random phase."""
    plans: list[Any] = [
        *(
            Plan.resolve(case.scenario()).data
            for case in (*CONFERENCE_CASES, StreamCase("s", 300, copies=20))
        ),
        *(
            Plan.resolve(shared_scenario(read_scenario("snip"), terminals)).data
            for terminals in (1, 8)
        ),
    ]
    assert {flow["start_jitter_ns"] for plan in plans for flow in plan["flows"]} == {0}
