"""Labs use the stored plans of presets."""

from __future__ import annotations

from bentpipe.plan.presets import link_plan, preset_plans


def test_settings_change_the_plan_of_a_preset() -> None:
    plan = link_plan("geo", ["link.forward.rate=4Mbit/s"])
    assert plan["directions"][0]["rate_bps"] == {"kind": "constant", "value": 4_000_000}
    assert link_plan("geo")["directions"][0]["rate_bps"] != plan["directions"][0]["rate_bps"]


def test_an_unknown_preset_has_no_stored_plan() -> None:
    assert "scenarios/geo-bulk.yaml" not in preset_plans()


def test_outages_of_a_link_without_duration_repeat_for_an_hour() -> None:
    """Given an outage of 1 s every 10 s, expect the 359 that start within 3,600 s."""
    plan = link_plan("geo", ["link.forward.outage={every: 10 s, for: 1 s}"])
    rates = [rate_bps for _, rate_bps in plan["directions"][0]["rate_bps"]["steps"]]
    assert rates.count(0) == 359
