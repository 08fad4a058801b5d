"""The plan of a scenario: resolved once, encoded once, and validated once for a run."""

from __future__ import annotations

import copy
import json
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from conftest import SMALL

from bentpipe import Plan, Scenario, _core, live, simulate
from bentpipe.cli.app import main
from bentpipe.errors import ScenarioError
from bentpipe.simulation import memory_warning

GEO = Path(__file__).parent.parent / "scenarios" / "geo-bulk.yaml"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the plans that are resolved, encoded, and validated by the simulator."""
    found: Counter[str] = Counter()
    resolve, validate = Plan.resolve, _core.validate

    def counted_resolve(source: Any) -> Plan:
        found["resolve"] += 1
        plan = resolve(source)
        found["warnings"] += len(plan.warnings)
        return plan

    def counted_validate(text: str) -> None:
        found["validate"] += 1
        validate(text)

    monkeypatch.setattr(Plan, "resolve", counted_resolve)
    monkeypatch.setattr(_core, "validate", counted_validate)
    return found


@pytest.mark.system
@pytest.mark.parametrize(
    ("settings", "warnings"),
    [
        ((), 0),
        (("--set", "link.forward.queue.limit=2 bdp", "--set", "link.forward.rate=2 Mbit/s"), 0),
        # The queue of the preset is 1 bdp: its size without the setting is in the warning.
        (("--set", "link.forward.rate=2 Mbit/s"), 1),
    ],
)
def test_a_run_resolves_and_validates_its_plan_once(
    settings: tuple[str, ...], warnings: int, calls: Counter[str], tmp_path: Path
) -> None:
    options = ("--set", "traffic.0.size=100 kB", "--out", str(tmp_path / "out"))
    assert (
        main(["run", str(GEO), *options, *settings, "--threshold", "flows.goodput_bps > 1 bit/s"])
        == 0
    )
    assert calls == Counter(resolve=1, validate=1, warnings=warnings)


def test_an_emulation_resolves_its_plan_once_and_its_child_does_not(
    calls: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given the request that the parent sends, run in this process, expect the parent's plan."""
    requests: list[bytes] = []
    ran: list[Plan] = []

    class StoppedError(Exception):
        pass

    def child(_name: str, *request: Any, folder: Path) -> None:
        folder.rmdir()
        requests.append(pickle.dumps(request))
        raise StoppedError

    def run(plan: Plan) -> None:
        ran.append(plan)
        raise StoppedError

    monkeypatch.setattr("bentpipe.live.pool.Child", child)
    monkeypatch.setattr("bentpipe.live.pool.check_plan", lambda _: None)
    with pytest.raises(StoppedError):
        live.emulate(GEO)
    monkeypatch.setattr("bentpipe.live.run.check_plan", run)
    function, *arguments = pickle.loads(requests[0])
    with pytest.raises(StoppedError):
        function(*arguments, None)
    assert ran[0].data == Plan.resolve(GEO).data
    assert ran[0].scenario == Scenario.load(GEO)
    assert (calls["resolve"], calls["validate"]) == (2, 2), "of the parent, and of this test"


def test_a_plan_is_encoded_once() -> None:
    plan = Plan.resolve(SMALL)
    text = plan.text
    assert memory_warning(plan, 10**9) is None
    assert json.loads(text) == plan.data
    assert plan.text is text


def test_a_plan_knows_the_entry_of_each_flow() -> None:
    call = {"kind": "voice", "name": "call", "count": 2}
    plan = Plan.resolve({**SMALL, "traffic": [call, *SMALL["traffic"]]})
    assert plan.entries == [
        {"name": "call", "flows": 4},
        {"name": None, "flows": 1},
        {"name": "call", "flows": 1},
    ]
    assert plan.entry_of_flow == (0, 0, 0, 0, 1, 2)


def test_other_values_are_those_of_another_plan() -> None:
    plan = Plan.resolve(SMALL)
    other = plan.with_values(stop_ns=7)
    assert other.data == plan.data | {"stop_ns": 7}
    assert json.loads(other.text)["stop_ns"] == 7
    assert json.loads(plan.text)["stop_ns"] == 20 * 10**9
    assert other.scenario is plan.scenario


def test_a_plan_survives_pickling() -> None:
    plan = Plan.resolve(GEO)
    again = pickle.loads(pickle.dumps(plan))
    assert again.text == plan.text
    assert again.scenario == plan.scenario
    assert copy.deepcopy(plan.data) == plan.data


def test_errors_of_a_plan_point_into_the_file(tmp_path: Path) -> None:
    file = tmp_path / "scenario.yaml"
    file.write_text(GEO.read_text(encoding="utf-8"), encoding="utf-8")
    scenario = Scenario.load(file, ["traffic.0.terminal=2"])
    with pytest.raises(ScenarioError) as caught:
        Plan.resolve(scenario)
    assert str(caught.value) == (
        "--set traffic.0.terminal=2: traffic.0.terminal: read 2; link.terminals is 1"
    )


@pytest.mark.system
def test_a_scenario_is_read_from_what_simulate_takes() -> None:
    scenario = Scenario.load(GEO)
    assert Scenario.of(scenario) is scenario
    assert Scenario.of(str(GEO)) == Scenario.of(GEO) == Scenario.of(scenario.to_dict()) == scenario
    assert scenario != Scenario.of(SMALL)
    assert hash(scenario) == hash(Scenario.load(GEO))
    assert simulate(SMALL).plan == Plan.resolve(SMALL).data


@pytest.mark.parametrize(
    ("flow", "is_random"),
    [
        ({"kind": "bulk", "size": "1 kB", "name": "bbr"}, False),
        ({"kind": "fetch", "size": {"exponential": "9 kB"}}, True),
        ({"kind": "fetch", "size": "9 kB", "think": {"exponential": "1 s"}}, True),
        ({"kind": "channels", "channels": 2}, True),
    ],
)
def test_drawn_traffic_is_random_and_a_name_is_not(
    flow: dict[str, Any], *, is_random: bool
) -> None:
    hop, heading = {"rate": "1 Mbit/s", "delay": "1 ms"}, {"direction": "forward"}
    traffic = [flow if flow["kind"] == "channels" else heading | flow]
    data = {"link": {"forward": hop, "return": hop}, "traffic": traffic, "duration": "1 s"}
    assert Plan.resolve(Scenario.from_dict(data)).is_random is is_random
