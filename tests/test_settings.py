"""Settings of ``--set`` and ``vary``: entries of lists by name, wildcards, quoted names."""

from __future__ import annotations

from typing import Any

import pytest

import bentpipe
from bentpipe.errors import ScenarioError
from bentpipe.scenario import Document, Scenario
from bentpipe.scenario.metric_ref import with_thresholds
from bentpipe.scenario.settings import with_settings

Program = Any

DATA: dict[str, Any] = {
    "link": {"preset": "geo"},
    "hosts": {"world": [{"name": "near"}, {"name": "far", "delay": "9 ms"}]},
    "traffic": [
        {"name": "web", "kind": "fetch", "direction": "forward", "size": "100 kB", "files": 1},
        {"name": "call", "kind": "constant_rate", "rate": "8 kbit/s"},
        {"name": "v1.2", "kind": "bulk", "tcp": {"sack": True}},
        {"kind": "bulk"},
        {"name": "0", "kind": "bulk"},
    ],
    "duration": "5 s",
}


def changed(*settings: str) -> dict[str, Any]:
    return with_settings(Document(data=DATA, source="test"), settings, Scenario).data


@pytest.mark.parametrize(
    ("setting", "number"),
    [
        ("traffic.web.size=1MB", 0),
        ("traffic.call.size=1MB", 1),
        ('traffic."v1.2".size=1MB', 2),
        ("traffic.3.size=1MB", 3),
        # A number counts entries; in quotes it is a name.
        ("traffic.0.size=1MB", 0),
        ('traffic."0".size=1MB', 4),
    ],
)
def test_an_entry_of_a_list_is_named(setting: str, number: int) -> None:
    traffic = changed(setting)["traffic"]
    assert traffic[number] == DATA["traffic"][number] | {"size": "1MB"}
    assert [traffic[i] for i in range(5) if i != number] == [
        DATA["traffic"][i] for i in range(5) if i != number
    ]


def test_hosts_have_names_too() -> None:
    assert changed("hosts.world.far.delay=1 s")["hosts"]["world"][1]["delay"] == "1 s"


def test_a_wildcard_stands_for_the_entries_that_have_the_field() -> None:
    document = with_settings(
        Document(data=DATA, source="test"), ["traffic.*.tcp.congestion_control=bbr"], Scenario
    )
    written = [entry.get("tcp") for entry in document.data["traffic"]]
    bbr = {"congestion_control": "bbr"}
    assert written == [bbr, None, {"sack": True} | bbr, bbr, bbr]
    (warning,) = document.warnings
    assert str(warning) == (
        "traffic.*.tcp.congestion_control: set in 4 entries; left out, because they have no "
        "tcp.congestion_control: call"
    )


def test_a_wildcard_stands_for_the_fields_of_a_mapping_that_have_the_field() -> None:
    assert changed("link.*.rate=4Mbit/s")["link"] == {
        "preset": "geo",
        "forward": {"rate": "4Mbit/s"},
        "return": {"rate": "4Mbit/s"},
    }
    both = {"processor": {"mode": "bridge"}}
    assert changed("gateways.*.processor.mode=bridge")["gateways"] == {
        "hub": both,
        "terminal": both,
    }
    delays = [host["delay"] for host in changed("hosts.*.*.delay=1 s")["hosts"]["world"]]
    assert delays == ["1 s", "1 s"]


def test_places_that_share_a_mapping_are_set_alone() -> None:
    hop = {"rate": "1 Mbit/s"}
    shared = Document(data={"link": {"forward": hop, "return": hop}}, source="test")
    assert with_settings(shared, ["link.forward.rate=2Mbit/s"], Scenario).data["link"] == {
        "forward": {"rate": "2Mbit/s"},
        "return": {"rate": "1 Mbit/s"},
    }


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (
            "traffic.wbe.size=1MB",
            'traffic has no entry "wbe"; did you mean "web"? (entries: web, call, v1.2, 3, 0)',
        ),
        ("hosts.world.x.delay=1 s", 'hosts.world has no entry "x" (entries: near, far)'),
        ("traffic.9.size=1MB", 'traffic is a list with entries 0 to 4; read "9"'),
        ("traffic.*.tpc.sack=true", 'no entry of traffic has "tpc.sack"; did you mean "tcp"?'),
        ("traffic.*.tcp.sak=true", 'no entry of traffic has "tcp.sak"; did you mean "sack"?'),
        ("link.*.rat=1 s", 'no field of link has "rat"; did you mean "rate"?'),
        ("link.*=1", 'name a field after "link.*"'),
        ("duration.*.x=1", 'duration is the value "5 s"; it has no "*"'),
        ("traffic.web.=1", "write it as path=value, such as link.forward.delay=150ms"),
        ('traffic."web.size=1', "write it as path=value, such as link.forward.delay=150ms"),
    ],
)
def test_a_path_that_names_nothing_is_refused(setting: str, message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        changed(setting)
    assert str(caught.value) == f"--set {setting}: {message}"


def test_two_entries_of_one_name_need_a_number() -> None:
    twice = {"traffic": [{"name": "a"}, {"name": "b"}, {"name": "a"}]}
    with pytest.raises(ScenarioError, match='several entries "a"; write a number: 0 and 2'):
        with_settings(Document(data=twice, source="test"), ["traffic.a.size=1MB"], Scenario)


def test_vary_takes_names_and_wildcards() -> None:
    web = {**DATA, "traffic": DATA["traffic"][:1]}
    sweep = bentpipe.sweep(
        web, vary={"traffic.web.size": ["10 kB", "20 kB"], "link.*.delay": ["10 ms", "20 ms"]}
    )
    rows = sweep.flows.select("traffic.web.size", "link.*.delay", "delivered_bytes").rows()
    assert rows == [
        ("10 kB", "10 ms", 10_000),
        ("10 kB", "20 ms", 10_000),
        ("20 kB", "10 ms", 20_000),
        ("20 kB", "20 ms", 20_000),
    ]


def test_a_document_knows_the_values_that_settings_have_changed() -> None:
    """Given settings in two steps, expect the values that are not as at first, and no title."""
    data = {"name": "a", "link": {"preset": "geo"}, "traffic": [{"name": "web", "size": "1 MB"}]}
    first = Document(data=data, source="test")
    assert first.changes == {}
    once = with_settings(first, ["traffic.web.size=2 MB", "name=b"], Scenario)
    assert once.changes == {"traffic.0.size": "2 MB"}
    same = with_settings(first, ["traffic.web.size=1 MB"], Scenario)
    assert same.changes == {}
    twice = with_settings(once, ["link.preset=null", "link.forward.rate=1Mbit/s"], Scenario)
    expected = {"link.preset": None, "link.forward.rate": "1Mbit/s", "traffic.0.size": "2 MB"}
    assert twice.changes == expected
    limited = with_thresholds(once, ["flows.web.goodput >= 1 Mbit/s"])
    assert limited.changes == once.changes


def test_the_execution_of_a_run_has_its_changed_settings() -> None:
    web = {**DATA, "traffic": DATA["traffic"][:1]}
    changed = bentpipe.simulate(Scenario.from_dict(web, ["traffic.web.size=5 kB"]))
    assert changed.execution["settings"] == {"traffic.0.size": "5 kB"}
    assert "settings" not in bentpipe.simulate(web).execution
