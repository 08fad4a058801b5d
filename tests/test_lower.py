"""Fields of a scenario as integers of a plan, and the fields that those come from."""

from __future__ import annotations

import copy
import json
import pickle
from dataclasses import asdict, dataclass
from typing import Any

import pytest
from hypothesis import given, strategies as st
from properties import examples

from bentpipe import Plan, units
from bentpipe.plan.hosts import host_plan
from bentpipe.plan.lower import (
    Part,
    PlanningError,
    draw,
    field_name,
    lower,
    origin,
    origins_of,
    part,
)
from bentpipe.scenario import Tcp
from bentpipe.scenario.record import (
    Duration,
    DurationOrNone,
    Number,
    Packets,
    PositiveSize,
    Rate,
    Record,
    Segments,
    Size,
)
from bentpipe.scenario.tcp import PROFILES, Host
from bentpipe.scenario.traffic import CountDraw, SizeDraw, TimeDraw, TimeOrDraw, WebPage


class Example(Record):
    """A field of each unit, with and without a default, and fields without a unit."""

    name: str
    rate: Rate
    delay: Duration | None = None
    interval: DurationOrNone = units.duration("1 s")
    size: PositiveSize | None = None
    frame_bytes: Size = units.size("9 B")
    buffer: Packets = units.packets("7 packets")
    window: Segments = 3
    quick_segments: Segments | None = 4
    segments_per_ack: Number = 5
    think: TimeOrDraw = units.duration("2 s")
    classes: tuple[int, ...] = (3, 1)
    on: bool = True


EXAMPLE = Example(name="a", rate="1 kbit/s", delay="2 us")
VALUES = {
    "name": "a",
    "rate_bps": 1_000,
    "delay_ns": 2_000,
    "interval_ns": 10**9,
    "size_bytes": None,
    "frame_bytes": 9,
    "buffer_packets": 7,
    "window_segments": 3,
    "quick_segments": 4,
    "segments_per_ack": 5,
    "think_ns": {"kind": "constant", "value": 2 * 10**9},
    "classes": [3, 1],
    "on": True,
}


def test_a_quantity_becomes_an_integer_and_its_unit_ends_the_name() -> None:
    lowered = lower(EXAMPLE, ("example",))
    assert lowered == VALUES
    assert list(lowered) == list(VALUES)
    assert type(lowered["rate_bps"]) is int
    assert type(lowered["classes"]) is list


def test_fields_are_left_out() -> None:
    lowered = lower(EXAMPLE, (), leave_out={"rate", "name", "on"})
    assert lowered == {
        name: VALUES[name] for name in VALUES if name not in {"rate_bps", "name", "on"}
    }


def test_each_value_knows_its_field() -> None:
    lowered = lower(EXAMPLE, ("traffic", 3))
    assert lowered.path == ("traffic", 3)
    assert lowered.origins == origins_of(EXAMPLE, ("traffic", 3))
    assert lowered.origins["delay_ns"] == ("traffic", 3, "delay")
    assert lowered.origins["frame_bytes"] == ("traffic", 3, "frame_bytes")
    assert lowered.origins["think_ns"] == lowered["think_ns"].path == ("traffic", 3, "think")
    assert len(lowered.origins) == len(VALUES)
    for name, (*_, field) in lowered.origins.items():
        assert field_name(Example, name) == field


def test_a_new_setting_of_tcp_needs_its_field_alone() -> None:
    """Given a field of the settings and of a profile, expect it in the plan of a host."""

    class WithPacing(Tcp):
        pacing_delay: Duration | None = None
        pacing: bool | None = None

    written = WithPacing(pacing_delay="3 ms", pacing=False, mss="1000 B")
    lowered = lower(
        written.over(WithPacing(**PROFILES["linux"].model_dump(exclude_unset=True), pacing=True)),
        ("tcp",),
    )
    assert (lowered["pacing_delay_ns"], lowered["pacing"]) == (3_000_000, False)
    assert origin(lowered, ["pacing_delay_ns"]) == ("tcp", "pacing_delay")
    known = host_plan("linux", Tcp(mss="1000 B"), ("tcp",))
    assert lowered.keys() - known.keys() == {"pacing_delay_ns", "pacing"}
    assert lowered | known == lowered


# --- draws --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "expected", "origins"),
    [
        (units.size("3 kB"), {"kind": "constant", "value": 3_000}, {"value": "f"}),
        (7, {"kind": "constant", "value": 7}, {"value": "f"}),
        (
            TimeDraw(exponential="2 s"),
            {"kind": "exponential", "mean": 2 * 10**9},
            {"mean": "f.exponential"},
        ),
        (
            SizeDraw.model_validate({"pareto": {"min": "4 kB", "shape": 1.5, "max": "4 kB"}}),
            {"kind": "pareto", "min": 4_000, "shape": 1.5, "max": 4_000},
            {"min": "f.pareto.min", "shape": "f.pareto.shape", "max": "f.pareto.max"},
        ),
        (
            CountDraw.model_validate({"lognormal": {"median": 3, "sigma": 0.5, "max": 3}}),
            {"kind": "lognormal", "median": 3, "sigma": 0.5, "max": 3},
            {"median": "f.lognormal.median", "sigma": "f.lognormal.sigma"},
        ),
    ],
)
def test_draws(written: Any, expected: dict[str, Any], origins: dict[str, str]) -> None:
    drawn = draw(written, ("f",))
    assert drawn == expected
    assert list(drawn) == list(expected)
    for name, field in origins.items():
        assert origin(drawn, [name]) == tuple(field.split("."))


@pytest.mark.parametrize(
    ("written", "path", "message"),
    [
        (
            SizeDraw.model_validate({"pareto": {"min": "4 kB", "shape": 1.5, "max": "3 kB"}}),
            ("f", "pareto", "max"),
            'read "3 kB"; must be at least "4 kB", the minimum',
        ),
        (
            CountDraw.model_validate({"lognormal": {"median": 3, "sigma": 0.5, "max": 2}}),
            ("f", "lognormal", "max"),
            "read 2; must be at least 3, the median",
        ),
    ],
)
def test_a_maximum_below_the_rest_is_refused(
    written: Any, path: tuple[str, ...], message: str
) -> None:
    with pytest.raises(PlanningError) as caught:
        draw(written, ("f",))
    assert (caught.value.path, caught.value.message) == (path, message)


# --- parts of a plan ----------------------------------------------------------------------------


def test_a_part_made_by_hand_names_its_fields() -> None:
    made = part(("link", "forward"), {"rate_bps": 1, "name": "forward"}, rate_bps="rate")
    assert made == {"rate_bps": 1, "name": "forward"}
    assert origin(made, ["rate_bps"]) == ("link", "forward", "rate")
    assert origin(made, ["name"]) == ("link", "forward")


def test_a_renamed_value_keeps_its_field() -> None:
    lowered = lower(EXAMPLE, ("e",), leave_out=set(VALUES) - {"rate"})
    lowered.rename("rate_bps", "speed")
    assert lowered["speed"] == 1_000
    assert "rate_bps" not in lowered
    assert "rate_bps" not in lowered.origins
    assert origin(lowered, ["speed"]) == ("e", "rate")


def test_a_default_replaces_none_alone() -> None:
    made = part((), {"a": None, "b": 0})
    made.default("a", 1)
    made.default("b", 1)
    assert made == {"a": 1, "b": 0}


def test_selected_values_keep_their_fields_under_new_names() -> None:
    made = part(("t",), {"a": 1, "b": 2, "c": 3}, a="x", b="y", c="z")
    selected = made.select({"kind": "k"}, "a", new="b")
    assert list(selected.items()) == [("kind", "k"), ("a", 1), ("new", 2)]
    origins = [origin(selected, [name]) for name in selected]
    assert origins == [("t",), ("t", "x"), ("t", "y")]


def test_an_origin_is_that_of_the_smallest_part() -> None:
    inner = part(("a", "b"), {"x": {"y": 1}}, x="c")
    data = {"list": [inner, {"z": inner, "plain": [1, 2]}]}
    assert origin(data, ["list"]) == ()
    assert origin(data, ["list", "0"]) == ("a", "b")
    assert origin(data, ["list", "0", "x"]) == ("a", "b", "c")
    assert origin(data, ["list", "0", "x", "y"]) == ("a", "b", "c")
    assert origin(data, ["list", "1", "plain", "1"]) == ()
    assert origin(data, ["list", "1", "z", "other"]) == ("a", "b")
    assert origin(data, ["absent", "x"]) == ()
    assert origin(part(("p",), {"list": [1]}, list="q"), ["list", "0", "x"]) == ("p", "q")


def test_copies_of_a_part_are_plain() -> None:
    @dataclass
    class Holder:
        data: Any

    made = part(("a",), {"x": [part(("b",), {"y": 1})]}, x="z")
    for again in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert type(again) is dict
        assert type(again["x"][0]) is dict
        assert again == made
    assert json.loads(json.dumps(made)) == made
    assert asdict(Holder(made)) == {"data": made}
    assert Part([("x", 1)]).path == ()
    assert Part({}).origins == {}
    origins = {"x": ("a",)}
    first = Part({"x": 1}, (), origins)
    first.rename("x", "y")
    assert origins == {"x": ("a",)}


@given(delay_ns=st.integers(0, 10**12), rate_bps=st.integers(1, 10**12), name=st.text(min_size=1))
@examples(50)
def test_a_host_is_lowered_to_what_is_written(delay_ns: int, rate_bps: int, name: str) -> None:
    host = Host(name=name[:100], delay=f"{delay_ns} ns", rate=f"{rate_bps} bit/s")
    assert lower(host, ()) == {
        "name": name[:100],
        "delay_ns": delay_ns,
        "jitter_ns": 0,
        "rate_bps": rate_bps,
    }


def test_every_value_of_a_flow_leads_to_a_field_of_its_entry() -> None:
    page = {"kind": "web_page", "direction": "forward"}
    plan = Plan.resolve({"link": {"preset": "geo"}, "traffic": [page], "duration": "9 s"})
    (flow,) = plan.data["flows"]
    for name in flow["workload"]:
        found = origin(plan.data, ["flows", "0", "workload", name])
        assert found[:2] == ("traffic", 0)
        assert len(found) == 3, name
        assert found[2] in WebPage.model_fields
