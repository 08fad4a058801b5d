"""Committed files that a command writes are current: `make schema`."""

from __future__ import annotations

import json

from sources import PACKAGE

from bentpipe import json_schema
from bentpipe.plan.links import resolved_plans
from bentpipe.plan.presets import stored_plan
from bentpipe.scenario.presets import PRESETS


def test_the_published_schema_is_current() -> None:
    published = (PACKAGE / "scenario" / "schema.json").read_text(encoding="utf-8")
    assert json.loads(published) == json_schema()


def test_the_stored_plans_of_presets_are_current() -> None:
    assert {name: stored_plan(name) for name in PRESETS} == resolved_plans()
