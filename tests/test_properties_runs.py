"""Properties of runs: Rust accepts the plan of a scenario, and packets are conserved."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import assume, example, given, strategies as st
from properties import SCENARIOS, attempt, examples

from bentpipe import Plan, Result, Scenario, _core, simulate
from bentpipe.errors import ScenarioError

T = TypeVar("T")

# Limits of number types, and values of other types.
_EDGES = [0, 1, -1, 2**16 - 1, 2**32, 2**50, 2**63 - 1, 2**64 - 1, 2**64, 10**400]
ODD_VALUES: st.SearchStrategy[Any] = st.sampled_from(
    [
        *_EDGES,
        0.5,
        -0.5,
        1e-300,
        1e300,
        None,
        True,
        "",
        "forward",
        [],
        {},
        [[]],
        {"kind": "constant"},
        {"kind": "constant", "value": 0},
        {"kind": "steps", "steps": [[5, 1]]},
        {"unit": "packets"},
    ]
)


def fitting(data: dict[str, Any]) -> Scenario:
    """The scenario of plain data; another example if its parts do not fit together."""
    scenario = attempt(ScenarioError, lambda: Plan.resolve(data).scenario)
    assume(not isinstance(scenario, ScenarioError))
    assert isinstance(scenario, Scenario)
    return scenario


def loaded(path: Path, settings: Sequence[str]) -> Scenario:
    """The scenario of a file, whose parts fit together."""
    return Plan.resolve(Scenario.load(path, settings)).scenario


def without_panic(call: Callable[[], T]) -> T:
    """Call the extension; a panic in Rust is no subclass of Exception."""
    try:
        return call()
    except BaseException as error:
        if type(error).__name__ == "PanicException":
            pytest.fail(f"panic: {error}")
        raise


def leaves(tree: Any) -> list[tuple[Any, Any]]:
    """Each container of a tree with each of its keys."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    if not isinstance(tree, dict | list):
        return []
    below = [
        found for _, child in items if isinstance(child, dict | list) for found in leaves(child)
    ]
    keys = tree.keys() if isinstance(tree, dict) else range(len(tree))
    return [*((tree, key) for key in keys), *below]


def column(result: Result, table: str, name: str) -> list[int]:
    return [int(value) for value in result.tables[table][name].to_list()]


@pytest.mark.system
@given(data=SCENARIOS)
@examples(40)
def test_a_run_of_any_scenario_conserves_its_packets(data: dict[str, Any]) -> None:
    """Per direction: received = delivered + dropped by any cause + held, in packets and bytes."""
    scenario = fitting(data)
    resolved = Plan.resolve(scenario)
    assert Plan.resolve(scenario).data == resolved.data
    without_panic(lambda: _core.validate(resolved.text))
    result = without_panic(lambda: simulate(scenario))
    assert isinstance(result, Result)
    for unit in ("packets", "bytes"):
        causes = [f"dropped_{cause}_{unit}" for cause in _core.drop_causes()]
        table = "directions"
        counts = zip(
            column(result, table, f"received_{unit}"),
            column(result, table, f"delivered_{unit}"),
            column(result, table, f"held_{unit}"),
            *(column(result, table, cause) for cause in causes),
            strict=True,
        )
        for received, *accounted in counts:
            assert received == sum(accounted), unit
    flows = zip(
        *(column(result, "flows", name) for name in ("acked_bytes", "delivered_bytes")), strict=True
    )
    assert all(acked <= delivered for acked, delivered in flows)


@pytest.mark.system
@given(data=SCENARIOS, seed=st.integers(0, 2**64 - 1))
@examples(8)
def test_the_same_plan_and_seed_give_the_same_tables(data: dict[str, Any], seed: int) -> None:
    scenario = fitting(data)
    first, second = (simulate(scenario, seed=seed).tables for _ in range(2))
    assert first.keys() == second.keys()
    assert all(first[name].equals(second[name], null_equal=True) for name in first)


@given(data=SCENARIOS)
@examples(40)
def test_a_scenario_survives_its_plain_data(data: dict[str, Any]) -> None:
    scenario = fitting(data)
    again = Scenario.from_dict(json.loads(json.dumps(scenario.to_dict())))
    assert again == scenario
    assert again.to_dict() == scenario.to_dict()
    assert Plan.resolve(again).data == Plan.resolve(scenario).data


@pytest.mark.system
@given(data=SCENARIOS)
@examples(10)
def test_a_saved_result_is_loaded_as_it_was(data: dict[str, Any]) -> None:
    result = simulate(fitting(data))
    with tempfile.TemporaryDirectory() as folder:
        again = Result.load(result.save(Path(folder) / "result"))
    assert again.manifest == json.loads(json.dumps(result.manifest))
    assert again.tables.keys() == result.tables.keys()
    for name, table in result.tables.items():
        assert again.tables[name].schema == table.schema
        assert again.tables[name].equals(table, null_equal=True), name
    assert again.summary() == again.summary()
    # The plan of a result runs again.
    without_panic(lambda: _core.validate(json.dumps(again.plan)))


@pytest.mark.system
@given(data=SCENARIOS, draw=st.data(), value=ODD_VALUES)
@examples(150)
def test_a_plan_with_one_odd_value_is_accepted_or_refused_by_name(
    data: dict[str, Any], draw: st.DataObject, value: object
) -> None:
    """Given a change of a valid plan, expect PlanError or a plan whose memory can be estimated."""
    changed: Any = json.loads(Plan.resolve(fitting(data)).text)
    container, key = draw.draw(st.sampled_from(leaves(changed)))
    if isinstance(container, dict) and draw.draw(st.booleans()):
        del container[key]
    else:
        container[key] = value
    text = json.dumps(changed)
    refused = attempt(_core.PlanError, lambda: without_panic(lambda: _core.validate(text)))
    if isinstance(refused, _core.PlanError):
        assert refused.reason
        return
    estimate = without_panic(lambda: _core.memory_estimate(text))
    assert all(estimate[use] >= 0 for use in ("fixed", "packets", "samples", "events"))


@given(text=st.text(max_size=40) | st.sampled_from(["[" * 1000, "{" * 1000, '{"a":' * 1000]))
@example('{"format_version": 1e400}')
@example("\ud800")
@examples(40)
def test_a_text_that_is_no_plan_is_refused(text: str) -> None:
    if any("\ud800" <= character <= "\udfff" for character in text):
        # It cannot be passed as UTF-8.
        with pytest.raises(UnicodeEncodeError):
            _core.validate(text)
        return
    with pytest.raises(_core.PlanError):
        without_panic(lambda: _core.validate(text))


@pytest.mark.system
@given(
    settings=st.lists(
        st.tuples(
            st.sampled_from(
                ["link.forward.rate", "link.return.delay", "duration", "seed", "traffic.0.start"]
            ),
            st.sampled_from(["1 Mbit/s", "2 ms", "3 s", "7", "0 s", "x", "-1", "[]", "1e30 s"]),
        ),
        max_size=3,
    ),
    data=SCENARIOS,
)
@examples(30)
def test_settings_of_a_file_are_settings_of_its_plan(
    settings: list[tuple[str, str]], data: dict[str, Any]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scenario.yaml"
        # JSON is YAML.
        path.write_text(json.dumps(fitting(data).to_dict()), encoding="utf-8")
        options = tuple(f"{name}={value}" for name, value in settings)
        changed = attempt(ScenarioError, lambda: loaded(path, options))
    if isinstance(changed, ScenarioError):
        assert settings, str(changed)
        return
    written = dict(settings)
    if "duration" in written:
        assert str(changed.duration) == written["duration"]
    if "seed" in written:
        assert changed.seed == int(written["seed"])
