"""What an answer recommends, tried in real time: here with the simulator in place of a lab."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from conftest import Program

from bentpipe import Answer, Result, Scenario, ask, live, simulate
from bentpipe.answers import try_in_real_time
from bentpipe.answers.pep import Pep
from bentpipe.answers.runs import Experiment
from bentpipe.errors import MachineError, UsageError
from bentpipe.plan.plan import Plan

# What cannot be observed in real time, by table (docs/results-format.md).
HIDDEN = {
    "flows": "^(fast_recoveries|tail_loss_probes|spurious_.*|retransmitted_bytes|.*_limited_ns)$",
    "directions": "^queue_.*_ns$",
}
SETTINGS = ["link.forward.rate=2Mbit/s", "link.*.delay=50ms", "link.forward.bit_error_rate=1e-6"]


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> list[Scenario]:
    """The scenarios that ran; each run is that of the simulator with another seed.

    What cannot be observed in real time is missing.
    """
    scenarios: list[Scenario] = []

    def emulate(scenario: Scenario) -> Result:
        scenarios.append(scenario)
        result = simulate(scenario, seed=100)
        tables = {**result.tables, "capacity": result.tables["capacity"].clear()}
        for name, columns in HIDDEN.items():
            nulls = pl.when(pl.lit(value=False)).then(pl.col(columns))
            tables[name] = tables[name].with_columns(nulls)
        return Result(result.manifest, tables)

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


def asked_buffer(limit: str) -> Answer:
    lengths = ["traffic.transfer.duration=10s", "duration=10s"]
    settings = [*SETTINGS[:2], *lengths, f"link.forward.queue.limit={limit}"]
    return ask("buffer", "geo", settings=settings, flows=1, seeds=5)


@pytest.mark.thorough
@pytest.mark.system
@pytest.mark.parametrize(
    ("limit", "figure"), [("3 kB", "goodput_bps"), ("100 kB", "queue_delay_p99_ns")]
)
def test_the_queue_of_the_link_and_the_knee_are_tried(
    limit: str, figure: str, emulated: list[Scenario]
) -> None:
    """Given a short queue, expect more goodput at the knee; given a long one, a shorter wait."""
    answer = asked_buffer(limit)
    found = try_in_real_time(answer)
    assert found["figure"] == figure
    assert [*found["cases"]] == ["now", f"{answer.figures['knee']['bdp']:g} BDP"]
    limits = [each.to_dict()["link"]["forward"]["queue"]["limit"] for each in emulated]
    assert limits == [limit, f"{answer.figures['knee']['limit_bytes']} B"]
    changes = found["change_percent"], found["simulated_change_percent"]
    assert min(changes) > 5 if figure == "goodput_bps" else max(changes) < -5
    for case in found["cases"].values():
        assert case["measured"] == pytest.approx(case["simulated"], rel=0.2)


@pytest.mark.thorough
@pytest.mark.system
def test_without_a_recommendation_the_case_as_asked_is_tried(emulated: list[Scenario]) -> None:
    """Given the queue of the knee, expect nothing else to be tried."""
    answer = asked_buffer("0.75bdp")
    assert answer.figures["knee"]["bdp"] == 0.75
    found = try_in_real_time(answer)
    assert [*found["cases"]] == ["now"]
    assert len(emulated) == 1
    assert "change_percent" not in found
    assert found["sentence"].endswith("Nothing is recommended, so there is no change to try.")


def functions(scenario: Scenario) -> list[str]:
    """Return the functions at the hub."""
    hub = Plan.resolve(scenario).data["gateways"][0]["functions"]
    return [each["kind"] for each in hub]


@pytest.fixture(scope="module")
def about_pep() -> Answer:
    settings = [*SETTINGS[:2], "link.return.rate=500kbit/s", "duration=40s"]
    return ask("pep", "geo", settings=settings, load=0.3, seeds=2, threads=1)


@pytest.mark.system
def test_a_pep_is_tried_without_quic(
    about_pep: Answer, emulated: list[Scenario], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given 40 % of QUIC, which the kernel cannot send, expect TCP alone, plain and with a PEP."""
    monkeypatch.setattr(live, "check_plan", lambda _plan: None)
    found = try_in_real_time(about_pep)
    assert [*found["cases"]] == ["plain", f"PEP, {about_pep.figures['best']['case'][4:]}"]
    assert found["figure"] in {"channels_bps", "large_bps", "short_ns"}
    assert [functions(each) for each in emulated] == [[], ["pep"]]
    flows = [flow for each in emulated for flow in Plan.resolve(each).data["flows"]]
    assert all(flow["splittable"] for flow in flows)
    assert not any("quic" in flow["name"] for flow in flows)
    assert about_pep.trial is not None
    assert about_pep.trial.percent is not None
    assert found["simulated_change_percent"] == about_pep.trial.percent.mean


@pytest.mark.system
def test_a_kernel_without_a_congestion_control_tries_another_pep(
    emulated: list[Scenario], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a kernel without Hybla, expect the PEP with BBR, and the reason."""

    def check_plan(plan: Plan) -> None:
        for each in plan.data["gateways"][0]["functions"]:
            if each["kind"] == "pep" and each["link_tcp"]["congestion_control"] == "hybla":
                raise MachineError("the kernel has no congestion control hybla")

    monkeypatch.setattr(live, "check_plan", check_plan)
    asked = Pep(settings=SETTINGS[:2], experiment=Experiment(seeds=1, threads=1), load=0)
    asked.duration = "40 s"
    found = asked.measured()
    hybla = asked.verdict(found, 0, "pep_hybla")
    tried = try_in_real_time(Answer(figures={}, trial=asked.trial(hybla)))
    assert [*tried["cases"]] == ["plain", "PEP, bbr"]
    assert tried["not_tried"] == {"PEP, hybla": "the kernel has no congestion control hybla"}
    assert tried["sentence"].endswith(
        ". Not tried: PEP, hybla, as the kernel has no congestion control hybla."
    )
    assert len(emulated) == 2


@pytest.mark.system
def test_the_best_coding_is_tried_by_the_total(
    emulated: list[Scenario], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given 2 % of random loss, expect a tunnel to raise the total about as simulated."""
    monkeypatch.setattr(live, "check_plan", lambda _plan: None)
    settings = [*SETTINGS[:2], "link.forward.loss=2%"]
    answer = ask("coding", "geo", settings=settings, loads=[0], seeds=2, threads=1)
    found = try_in_real_time(answer)
    assert found["figure"] == "total_bps"
    assert [functions(each) for each in emulated] == [[], ["tunnel"]]
    assert found["change_percent"] > 20
    for case in found["cases"].values():
        assert case["measured"] == pytest.approx(case["simulated"], rel=0.2)


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
