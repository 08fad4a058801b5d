"""The stored plans of presets are current, and labs use them."""

from __future__ import annotations

from bentpipe.plan.links import resolved_plans
from bentpipe.plan.presets import link_plan, stored_plan
from bentpipe.scenario.presets import PRESETS


def test_the_stored_plans_are_current() -> None:
    """When this fails: make schema."""
    assert {name: stored_plan(name) for name in PRESETS} == resolved_plans()


def test_settings_change_the_plan_of_a_preset() -> None:
    plan = link_plan("geo", ["link.forward.rate=4Mbit/s"])
    assert plan["directions"][0]["rate_bps"] == {"kind": "constant", "value": 4_000_000}
    assert link_plan("geo")["directions"][0]["rate_bps"] != plan["directions"][0]["rate_bps"]


def test_an_unknown_preset_has_no_stored_plan() -> None:
    assert stored_plan("scenarios/geo-bulk.yaml") is None
