"""What an answer recommends, tried in real time: here with the simulator in place of a lab."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import Program

from bentpipe import Answer, Result, Scenario, ask, live, simulate
from bentpipe.answers import try_in_real_time
from bentpipe.errors import MachineError, UsageError

SETTINGS = ["link.forward.rate=2Mbit/s", "link.*.delay=50ms", "link.forward.bit_error_rate=1e-6"]


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> list[Scenario]:
    """The scenarios that ran; each run is that of the simulator with another seed."""
    scenarios: list[Scenario] = []

    def emulate(scenario: Scenario) -> Result:
        scenarios.append(scenario)
        return simulate(scenario, seed=100)

    monkeypatch.setattr(live, "emulate", emulate)
    return scenarios


@pytest.fixture(scope="module")
def answer() -> Answer:
    return ask("tcp", "geo", settings=SETTINGS, duration="10 s", seeds=5, threads=1)


@pytest.mark.system
def test_what_was_asked_and_what_helps_most_are_tried(
    answer: Answer, emulated: list[Scenario]
) -> None:
    """Given bit errors, expect CUBIC and then BBR, with the change between them as simulated."""
    done: list[tuple[int, int]] = []
    found = try_in_real_time(answer, lambda *each: done.append(each))
    best = answer.figures["helps_most"]
    assert [*found["cases"]] == ["as asked", best]
    assert done == [(0, 2), (1, 2), (2, 2)]
    plans: list[Any] = [each.to_dict()["traffic"][0]["tcp"] for each in emulated]
    assert [each["congestion_control"] for each in plans] == ["cubic", "bbr"]
    before, after = (each["measured"] for each in found["cases"].values())
    assert found["change_percent"] == pytest.approx(100 * (after / before - 1))
    simulated = answer.figures["gains_percent"][best].mean
    assert found["simulated_change_percent"] == pytest.approx(simulated)
    assert f"A change of {found['change_percent']:+.1f} %" in found["sentence"]


def test_an_answer_without_a_case_has_nothing_to_try() -> None:
    with pytest.raises(UsageError, match="nothing that could be tried"):
        try_in_real_time(ask("preset", orbit="leo"))


@pytest.mark.system
def test_an_answer_is_kept_if_it_cannot_be_tried(
    bentpipe: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a machine without labs, expect the simulated answer, its page and the error."""

    def emulate(_scenario: Scenario) -> Result:
        raise MachineError("no labs here")

    monkeypatch.setattr(live, "emulate", emulate)
    page = tmp_path / "answer.html"
    settings = [word for each in SETTINGS for word in ("--set", each)]
    options = ("--link", "geo", "--seeds", "5", "--engine", "emulate", "--report", page)
    called = bentpipe("ask", "tcp", *settings, *options)
    assert called.code == 3
    assert "no labs here" in called.err
    assert "What matters most" in called.out
    assert page.is_file()
