"""The published JSON Schema: current, complete and consistent with the loader."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from conftest import Program

from bentpipe.scenario import json_schema
from bentpipe.scenario.framings import FRAMINGS
from bentpipe.scenario.link import DEFAULT_DIRECTION, QUEUES
from bentpipe.scenario.record import Record
from bentpipe.scenario.schema import Scenario
from bentpipe.scenario.tcp import PROFILES
from bentpipe.scenario.traffic import FLOWS
from bentpipe.units import Quantity


def test_the_command_prints_the_schema(bentpipe: Program) -> None:
    called = bentpipe("show", "schema")
    assert (called.code, called.err) == (0, "")
    assert json.loads(called.out) == json_schema()


def records() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the schema of the scenario and of each of its parts."""
    schema = json_schema()
    yield "Scenario", schema
    yield from schema["$defs"].items()


def test_every_record_refuses_unknown_fields_and_describes_its_own() -> None:
    names = [name for name, _ in records()]
    assert len(names) == 55
    for name, record in records():
        assert record["additionalProperties"] is False, name
        for field, value in record["properties"].items():
            assert value.get("description"), f"{name}.{field}"


def texts(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every sub-schema that has a pattern."""
    if isinstance(value, dict):
        if "pattern" in value:
            yield value
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from texts(item)


def test_patterns_accept_examples_and_defaults_and_nothing_ambiguous() -> None:
    found = list(texts(json_schema()))
    assert len(found) > 20
    for text in found:
        pattern = re.compile(text["pattern"])
        assert all(pattern.search(example) for example in text["examples"])
        assert "default" not in text or text["default"] is None or pattern.search(text["default"])
        for wrong in ("16", "16 mbps", "120 KB", "-5 ms", "fast"):
            assert not pattern.search(wrong)


def test_patterns_accept_the_quantities_of_profiles() -> None:
    fields = json_schema()["$defs"]["Tcp"]["properties"]
    checked = 0
    for profile in PROFILES.values():
        for name, value in profile.model_dump(exclude_none=True).items():
            if isinstance(value, str) and (patterns := list(texts(fields[name]))):
                assert re.search(patterns[0]["pattern"], value), name
                checked += 1
    assert checked > 10


def test_the_schema_contains_defaults() -> None:
    definitions = json_schema()["$defs"]
    assert definitions["Direction"]["properties"]["framing"]["default"] == DEFAULT_DIRECTION.framing
    for discipline, queue in QUEUES.items():
        fields = definitions[queue.__name__]["properties"]
        assert fields["limit"]["default"] == queue.default_limit
        assert fields["discipline"]["default"] == discipline
    assert json_schema()["properties"]["seed"]["default"] == Scenario.model_fields["seed"].default
    # The kind tells flows apart, so a file must have it, although Python code need not.
    for flow in FLOWS.values():
        assert "kind" in definitions[flow.__name__]["required"]
    # A queue without a discipline is that of its preset, or drop-tail.
    assert "discipline" in definitions["Red"]["required"]
    assert "discipline" not in definitions["DropTail"].get("required", [])


def test_the_schema_lists_framings_with_their_options() -> None:
    text, mapping = json_schema()["$defs"]["Direction"]["properties"]["framing"]["anyOf"][0][
        "oneOf"
    ]
    assert text["anyOf"][0]["enum"] == list(FRAMINGS)
    listed = {each["properties"]["kind"]["const"]: each["properties"] for each in mapping["anyOf"]}
    assert set(listed) == set(FRAMINGS)
    assert listed["ppp"]["fcs"]["enum"] == [16, 32]
    assert listed["ppp"]["fcs"]["default"] == 16
    assert list(listed["aal5"]) == ["kind"]


def test_defaults_of_quantities_are_parsed() -> None:
    """Given every record, expect each default with a unit to hold its value, as plans need it."""
    records = [Record]
    for record in records:
        records.extend(record.__subclasses__())
    defaults = [field.default for record in records for field in record.model_fields.values()]
    written = [
        default
        for default in defaults
        # Versions such as "1.3" have no unit, and shares in percent are read where they are used.
        if isinstance(default, str) and re.match(r"\d.*[^\d%]$", default)
    ]
    assert len(written) > 15
    assert all(isinstance(default, Quantity) for default in written)
