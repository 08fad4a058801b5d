"""Presets: public sources, and delays that match their geometry."""

from __future__ import annotations

import json
import math

import pytest
from conftest import Program

from bentpipe import Plan, Scenario
from bentpipe.scenario import PRESETS
from bentpipe.units import parse_duration

LIGHT_KM_PER_S = 299_792.458
EARTH_RADIUS_KM = 6_371.0
# Altitude and elevation of each hop, as the sources state them.
HOPS = {"geo": (35_786, 10), "meo": (8_062, 10), "leo": (600, 10), "isdn-return": (35_786, 40)}


def one_way_ms(altitude_km: float, elevation_degrees: float) -> float:
    """Return the delay through the satellite with both ends at this elevation."""
    rise_km = EARTH_RADIUS_KM * math.sin(math.radians(elevation_degrees))
    slant_km = math.sqrt(rise_km**2 + altitude_km**2 + 2 * EARTH_RADIUS_KM * altitude_km) - rise_km
    return 2 * slant_km / LIGHT_KM_PER_S * 1_000


def test_the_geometry_gives_the_published_delays() -> None:
    """TR 38.821, table 4.2-2, round trip: 541.46 ms (GEO) and 25.77 ms (600 km), 10 degrees."""
    assert 2 * one_way_ms(35_786, 10) == pytest.approx(541.46, abs=0.05)
    assert 2 * one_way_ms(600, 10) == pytest.approx(25.77, abs=0.05)
    # RFC 2488, section 2: 239.6 ms overhead, there with 36,000 km in round figures.
    assert one_way_ms(35_786, 90) == pytest.approx(239.6, abs=1)


@pytest.mark.parametrize("name", sorted(HOPS))
def test_a_preset_has_and_documents_the_delay_of_its_hop(name: str) -> None:
    preset = PRESETS[name]
    delay_ms = one_way_ms(*HOPS[name])
    assert parse_duration(preset.link["forward"]["delay"]) == round(delay_ms) * 1_000_000
    altitude_km, elevation = HOPS[name]
    assert f"h = {altitude_km:,} km" in preset.source
    assert f"e = {elevation} degrees" in preset.source
    assert f"{delay_ms:.1f} ms" in preset.source


def test_every_preset_is_checked_and_resolves() -> None:
    # leo-handover is measured; tests/test_outages.py compares it with its source.
    assert set(PRESETS) == {*HOPS, "leo-handover"}
    for name, preset in PRESETS.items():
        assert preset.name == name
        traffic = [{"kind": "bulk", "direction": "forward", "size": "1 MB"}]
        scenario = Scenario.from_dict(
            {"link": {"preset": name}, "traffic": traffic, "duration": "9 s"}
        )
        written_out = Scenario.from_dict(
            {"link": preset.link, "traffic": traffic, "duration": "9 s"}
        )
        assert Plan.resolve(scenario).data == Plan.resolve(written_out).data


def test_the_isdn_preset_has_the_round_trip_of_its_source() -> None:
    """A little under 400 ms."""
    link = PRESETS["isdn-return"].link
    round_trip_ns = sum(parse_duration(link[end]["delay"]) for end in ("forward", "return"))
    assert 380e6 < round_trip_ns < 400e6


def test_the_command_lists_presets_and_their_sources(bentpipe: Program) -> None:
    listed = bentpipe("show", "presets")
    assert listed.code == 0
    assert all(name in listed.out for name in PRESETS)
    one = bentpipe("show", "presets", "geo")
    assert "forward: {rate: 16 Mbit/s, delay: 271 ms" in one.out
    assert "TR 38.821" in one.out
    as_json = json.loads(bentpipe("show", "presets", "leo", "--json").out)
    assert [(preset["name"], preset["source"]) for preset in as_json] == [
        ("leo", PRESETS["leo"].source)
    ]
    unknown = bentpipe("show", "presets", "gea")
    assert (unknown.code, unknown.out) == (2, "")
    assert 'did you mean "geo"?' in unknown.err
