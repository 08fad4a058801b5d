"""Web pages: their entry of traffic, the plan, warnings and page load times on paper."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import Program

from bentpipe import Plan, Scenario, simulate
from bentpipe.errors import ScenarioError

HOP = {"rate": "1 Gbit/s", "delay": "250 ms"}
SLOW = {"rate": "1 Mbit/s", "delay": "10 ms", "queue": {"limit": "100 kB"}}
PAGE = {
    "name": "reader",
    "kind": "web_page",
    "direction": "forward",
    "document": "1 kB",
    "object": "1 kB",
}


def data(hop: dict[str, Any] = HOP, **entry: Any) -> dict[str, Any]:
    return {
        "link": {"forward": hop, "return": hop},
        "traffic": [PAGE | entry],
        "duration": "60 s",
    }


def planned(**entry: Any) -> dict[str, Any]:
    workload: dict[str, Any] = dict(Plan.resolve(data(**entry)).data["flows"][0]["workload"])
    return workload


def warnings(**entry: Any) -> list[str]:
    return [str(each) for each in Plan.resolve(data(**entry)).warnings]


def test_the_defaults_are_those_of_the_median_page() -> None:
    workload = planned()
    assert workload["objects"] == {"kind": "constant", "value": 70}
    assert workload["think_ns"] == {"kind": "exponential", "mean": 15 * 10**9}
    chosen = {name: workload[name] for name in ("pages", "http", "connections", "tls", "dns")}
    assert chosen == {"pages": 1, "http": "2", "connections": 6, "tls": "1.3", "dns": True}
    link = {"forward": HOP, "return": HOP}
    entry = {"kind": "web_page", "direction": "forward"}
    flow = Plan.resolve(
        Scenario.from_dict({"link": link, "traffic": [entry], "duration": "1 s"})
    ).data["flows"][0]
    assert flow["name"] == "web_page-1"
    assert dict(flow["workload"])["object_bytes"] == {
        "kind": "lognormal",
        "median": 3_100,
        "sigma": 2.36,
        "max": 2_000_000,
    }


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"http": 1.1}, {"http": "1.1"}),
        ({"http": 2}, {"http": "2"}),
        ({"tls": 1.2}, {"tls": "1.2"}),
        ({"tls": "none"}, {"tls": None}),
        ({"pages": None}, {"pages": None}),
        ({"objects": {"exponential": 30}}, {"objects": {"kind": "exponential", "mean": 30}}),
        ({"objects": 0}, {"objects": {"kind": "constant", "value": 0}}),
    ],
)
def test_versions_may_be_numbers_and_counts_drawn(
    entry: dict[str, Any], expected: dict[str, Any]
) -> None:
    workload = planned(**entry)
    assert {name: workload[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"http": 3}, 'traffic.0.http: read "3"; allowed: 1.1, 2'),
        ({"tls": True}, "traffic.0.tls: "),
        ({"connections": 0}, "traffic.0.connections: "),
        ({"connections": 257}, "traffic.0.connections: "),
        ({"objects": -1}, "traffic.0.objects"),
        ({"objects": 20_000}, "traffic.0.objects"),
        ({"pages": 0}, "traffic.0.pages: "),
        (
            {"objects": {"pareto": {"min": 9, "shape": 1.5, "max": 8}}},
            "traffic.0.objects.pareto.max: read 8; must be at least 9",
        ),
    ],
)
def test_bad_values_are_refused_by_their_field(entry: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        simulate(data(**entry))
    assert message in str(caught.value)


def test_a_number_of_connections_without_effect_is_a_warning() -> None:
    (warning,) = warnings(connections=4)
    expected = 'read 4; HTTP/2 uses one connection: set http: "1.1", or leave it out'
    assert warning == f"traffic.0.connections: {expected}"
    assert warnings(connections=4, http="1.1") == []


def test_pages_that_cannot_end_are_a_warning() -> None:
    """Given five round trips of 0.5 s a page, expect less than 24 pages in 60 s."""
    assert warnings(pages=23) == []
    (warning,) = warnings(pages=25)
    assert "read 25; takes at least 62.51 s, but the run ends 60 s after the start" in warning
    assert warnings(pages=None) == []


@pytest.mark.parametrize(
    ("entry", "round_trips"),
    [
        ({}, 5),
        ({"tls": 1.2}, 6),
        ({"tls": "none", "dns": False}, 3),
        # Ten objects: k + 5 max(0, k - 2) >= 10 for k = 4.
        ({"http": 1.1, "objects": 10}, 8),
    ],
)
def test_a_page_takes_its_round_trips(entry: dict[str, Any], round_trips: int) -> None:
    result = simulate(data(**({"objects": 5} | entry)))
    (load_ns,) = result.pages["load_time_ns"]
    assert load_ns == pytest.approx(round_trips * 500e6, rel=0.01)
    assert load_ns >= round_trips * 500e6
    assert result.flows["page_load_time_p95_ns"].to_list() == [load_ns]


def test_a_page_is_not_faster_than_its_bytes() -> None:
    """Given 101 kB at 1 Mbit/s, expect at least 0.808 s."""
    result = simulate(data(SLOW, objects=10, object="10 kB"))
    (page,) = result.pages.to_dicts()
    assert page["response_bytes"] == 101_000
    assert page["load_time_ns"] >= 101_000 * 8 * 1_000


def test_thresholds_and_tables_have_the_page_load_time(tmp_path: Any, bentpipe: Program) -> None:
    path = tmp_path / "web.yaml"
    text = (
        "link: {preset: geo}\n"
        "traffic:\n"
        "  - {name: reader, kind: web_page, direction: forward, count: 2, objects: 3}\n"
        "duration: 60 s\n"
    )
    path.write_text(text)
    passed = bentpipe("run", path, "--threshold", "pages.reader.load_time_ns.p95 <= 30 s")
    assert passed.code == 0
    assert "Web pages (to the last byte of the last object)" in passed.out
    assert "2 users together: 2 pages loaded" in passed.out
    failed = bentpipe("run", path, "--threshold", "flows.reader.page_load_time_p50_ns.max <= 1 s")
    assert failed.code == 99
    refused = bentpipe("run", path, "--threshold", "pages.load_time_ns <= 1 s")
    assert refused.code == 2
    assert "names many pages; add a statistic" in refused.err
