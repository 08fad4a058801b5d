"""Properties of YAML documents and ``--set``: a document, or an error that names the place."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import example, given, strategies as st
from properties import SCENARIOS, attempt, examples

from bentpipe import Plan, Scenario
from bentpipe.errors import ScenarioError
from bentpipe.scenario.document import Document, FieldPath, read_text
from bentpipe.scenario.settings import with_settings
from bentpipe.text import nearest

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from(["10 Mbit/s", "1e999999999 s", "unlimited", "all", "\ud800", "\0", "=", "."]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
# Characters with a meaning in YAML, and words of a scenario.
_YAML = st.lists(
    st.sampled_from(
        [
            *"{}[]:,-&*!#|>@%'\"\\?=~<\n\t \r\x85\u2028\ufeff�",
            "  ",
            "- ",
            ": ",
            "---\n",
            "...\n",
            "link",
            "traffic",
            "rate",
            "&a ",
            "*a",
            "<<: ",
            "!!int ",
            "!!binary ",
            "!!set ",
            "! ",
            "0x",
            "0o8",
            "1_0",
            ".inf",
            "-.nan",
            "1e5",
            "9" * 5000,
            "2020-01-01",
            "true",
            "null",
            "~",
        ]
    )
    | st.text(max_size=3),
    max_size=25,
).map("".join)
_KEYS = st.sampled_from(
    [
        "link",
        "forward",
        "return",
        "rate",
        "delay",
        "queue",
        "limit",
        "traffic",
        "duration",
        "csv",
        "terminals",
        "tcp",
        "mss",
        "size",
        "preset",
        "gateways",
        "hub",
        "framing",
        "kind",
        "errors",
    ]
)
_PATHS = st.lists(
    _KEYS
    | st.sampled_from(["0", "1", "-1", "01", "9" * 5000, "²", "٣", "*", ""])
    | st.text(max_size=6),
    max_size=6,
).map(".".join)
_SETTINGS = st.builds("{}{}{}".format, _PATHS, st.sampled_from(["=", "", " = ", "=="]), _YAML)


def paths(value: Any, path: FieldPath = ()) -> list[FieldPath]:
    """The paths of a value and of all values in it."""
    inner = []
    if isinstance(value, dict):
        inner = list(value.items())
    elif isinstance(value, list):
        inner = list(enumerate(value))
    return [path, *(found for key, child in inner for found in paths(child, (*path, key)))]


def assert_named(error: ScenarioError, source: str) -> None:
    assert error.problems
    for problem in error.problems:
        assert problem.message
        assert problem.source.startswith((source, "--set "))


@pytest.mark.system
@given(text=_YAML)
@example("a: " + "9" * 5000)
@example("{" * 1000)
@example("[" * 1000)
@example("a: &a [*a]")
@example("? [a]\n: b")
@example("a: !!int x")
@example("a: !!float ''")
@example("a: !!bool ''")
@example("a: 0x")
@example("%YAML 9.9\n--- a")
@example("%YAML 1.3\n--- a")
@example('a: "\\U00110000"')
@example('a: "\\UFFFFFFFF"')
@examples(150)
def test_any_text_is_a_document_or_refused(text: str) -> None:
    document = attempt(ScenarioError, lambda: read_text(text, "file.yaml"))
    if isinstance(document, ScenarioError):
        assert_named(document, "file.yaml")
        return
    lines = text.count("\n") + text.count("\r") + text.count("\x85") + text.count("\u2028") + 2
    for path in paths(document.data):
        location = document.location(path)
        assert location.source == "file.yaml"
        assert location.line is not None
        assert 1 <= location.line <= lines


@given(data=st.dictionaries(st.text(max_size=8), VALUES, max_size=5))
@example({"name": "\U0001f6f0", "\U0001f6f0": 1})
@example({"name": "\ud800"})
@examples(50)
def test_json_is_read_as_the_same_data(data: dict[str, Any]) -> None:
    """JSON is YAML 1.2, except for numbers without a form in it, such as Infinity."""
    try:
        text = json.dumps(data, allow_nan=False)
    except ValueError:
        return
    found = attempt(ScenarioError, lambda: read_text(text, "file.json"))
    if isinstance(found, ScenarioError):
        assert "surrogate" in str(found)
        return
    assert json.dumps(found.data, sort_keys=True) == json.dumps(data, sort_keys=True)


@given(settings=st.lists(_SETTINGS, min_size=1, max_size=3))
@example(["traffic." + "9" * 5000 + "=1"])
@example(["traffic.0.size=1MB", "traffic.0.size.x=1"])
@example(["=1"])
@example(["...=1"])
@example(["link="])
@examples(75)
def test_any_setting_changes_a_copy_or_is_refused(settings: list[str]) -> None:
    data = {"link": {"forward": {"rate": "1 Mbit/s"}, "return": None}, "traffic": [{"size": 1}, 2]}
    document = Document(data=copy.deepcopy(data), source="file.yaml")
    changed = attempt(ScenarioError, lambda: with_settings(document, settings, Scenario))
    if isinstance(changed, ScenarioError):
        assert_named(changed, "file.yaml")
    else:
        for path in paths(changed.data):
            assert changed.location(path).source
    assert document.data == data, "the document itself is never changed"


@given(value=SCALARS, data=st.data())
@examples(100)
def test_a_setting_is_read_back_at_its_path(value: object, data: st.DataObject) -> None:
    document = Document(data={"a": {"b": [1, {"c": 2}]}, "d": None}, source="file.yaml")
    path = data.draw(st.sampled_from(["a", "a.b", "a.b.0", "a.b.1.c", "a.b.1.new", "d.e.f", "x.y"]))
    text = json.dumps(value)
    changed = attempt(ScenarioError, lambda: with_settings(document, [f"{path}={text}"], Scenario))
    if isinstance(changed, ScenarioError):
        # Half of a surrogate pair, or a word of JSON that is none in YAML.
        assert "\\ud" in text or "Infinity" in text or "NaN" in text
        return
    found: Any = changed.data
    for part in path.split("."):
        found = found[int(part)] if isinstance(found, list) else found[part]
    # JSON writes Infinity, which is a word in YAML.
    assert found == value or "Infinity" in text or "NaN" in text
    location = changed.location(tuple(int(p) if p.isdigit() else p for p in path.split(".")))
    assert location.source == f"--set {path}={text}"


@pytest.mark.system
@given(scenario=SCENARIOS, data=st.data(), value=VALUES, name=st.text(max_size=8))
@examples(80)
def test_a_scenario_with_one_odd_value_is_accepted_or_refused_by_name(
    scenario: dict[str, Any], data: st.DataObject, value: object, name: str
) -> None:
    path = data.draw(st.sampled_from(paths(scenario)[1:]))
    container: Any = scenario
    for part in path[:-1]:
        container = container[part]
    if isinstance(container, dict) and data.draw(st.booleans()):
        container[name] = value
    else:
        container[path[-1]] = value
    made = attempt(ScenarioError, lambda: Plan.resolve(scenario).scenario)
    if isinstance(made, ScenarioError):
        assert_named(made, "scenario")
        return
    assert Scenario.from_dict(made.to_dict()) == made


@given(word=st.text(max_size=12), words=st.lists(st.text(max_size=12), max_size=5))
@examples(60)
def test_a_suggestion_is_one_of_the_words(word: str, words: list[str]) -> None:
    found = nearest(word, tuple(words))
    assert found is None or found in words
    if word in words:
        assert found == word
