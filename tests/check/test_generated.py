"""Committed files that a command writes are current: `make schema`."""

from __future__ import annotations

import json
from importlib import import_module

import pytest
from sources import PACKAGE, ROOT

from bentpipe.plan.presets import preset_plans, resolved_plan
from bentpipe.scenario import json_schema
from bentpipe.scenario.tables import PRESETS


def test_the_published_schema_is_current() -> None:
    published = (PACKAGE / "scenario" / "schema.json").read_text(encoding="utf-8")
    assert json.loads(published) == json_schema()


def test_the_stored_plans_of_presets_are_current() -> None:
    for name in PRESETS:
        assert preset_plans()[name] == resolved_plan(name)


def test_the_tables_of_columns_are_current(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    columns = import_module("columns")
    page = columns.PAGE.read_text(encoding="utf-8")
    assert columns.with_columns(page) == page
    assert columns.with_columns(page.replace("| u64 |", "| u8 |")) == page
