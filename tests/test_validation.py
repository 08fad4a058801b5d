"""The model against the kernel: the grid, the arithmetic, and the verb on a point or two."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Program

from bentpipe import _emulate, _validation_runs
from bentpipe._validation_runs import Run
from bentpipe.scenario import from_dict
from bentpipe.validation import (
    CONTROLS,
    FLOWS,
    LEAST_QUEUE_BYTES,
    Comparison,
    Figures,
    Point,
    grid,
    simulated,
    sizes,
)

BENTPIPE = [sys.executable, "-m", "bentpipe"]
QUANTITIES = ("rate_mbps", "rtt_ms", "queue_bdp", "loss", "flows", "control")
EXIT_MACHINE = 3
EXIT_INVALID = 4
EXIT_INTERRUPTED = 130


def figures(seed: int, mbps: float, queue_ms: float = 0.0) -> Figures:
    return Figures(
        seed=seed,
        goodput_bps=mbps * 1e6,
        queue_ms=queue_ms,
        retransmitted_segments=0,
        sent_segments=100,
    )


# --- the grid -----------------------------------------------------------------------------------


def test_any_two_levels_of_any_two_quantities_meet_equally_often() -> None:
    """Given 27 points of six quantities with three levels each, expect each pair three times."""
    points = grid("small")
    assert [point.number for point in points] == list(range(1, 28))
    for one, other in itertools.combinations(QUANTITIES, 2):
        pairs = Counter((getattr(point, one), getattr(point, other)) for point in points)
        assert set(pairs.values()) == {3}, (one, other)
        assert len(pairs) == 9


def test_the_full_grid_meets_every_pair_for_each_control_and_number_of_flows() -> None:
    points = grid("full")
    assert len(points) == 225
    for control, flows in itertools.product(CONTROLS, FLOWS):
        own = [point for point in points if (point.control, point.flows) == (control, flows)]
        for one, other in itertools.combinations(QUANTITIES[:4], 2):
            pairs = {(getattr(point, one), getattr(point, other)) for point in own}
            assert len(pairs) == len(own) == 25


@pytest.mark.parametrize("name", ["small", "full"])
def test_the_grid_spans_the_ranges(name: str) -> None:
    points = grid(name)
    ranges = {
        "rate_mbps": (1, 50),
        "rtt_ms": (20, 600),
        "queue_bdp": (0.1, 2),
        "loss": (0, 0.01),
        "flows": (1, 8),
    }
    for quantity, ends in ranges.items():
        values = [getattr(point, quantity) for point in points]
        assert (min(values), max(values)) == ends


def test_a_point_is_the_scenario_that_it_says() -> None:
    """Given 7 Mbit/s, 110 ms, 2 BDP and 1 % of loss, expect these in the plan.

    2 x 7e6 x 0.11 / 8 = 192,500 B. A packet of 12,000 bits that survives with 0.99 has bits that
    survive with 0.99^(1/12000).
    """
    point = Point(
        number=1, control="cubic", rate_mbps=7, rtt_ms=110, queue_bdp=2, loss=0.01, flows=2
    )
    plan = from_dict(point.scenario(60)).plan()
    forward = plan["directions"][0]
    assert forward["rate_bps"]["value"] == 7_000_000
    assert forward["delay_ns"]["value"] == 55_000_000
    assert forward["queue"]["limit"] == {"unit": "bytes", "value": 192_500}
    assert (1 - forward["channel"]["bit_error_rate"]) ** 12_000 == pytest.approx(0.99, abs=1e-9)
    assert plan["stop_ns"] == 60 * 10**9
    assert [flow["start_ns"] for flow in plan["flows"]] == [0, 100_000_000]
    assert {flow["workload"]["sender"]["congestion_control"] for flow in plan["flows"]} == {"cubic"}


def test_no_queue_is_smaller_than_an_initial_window() -> None:
    """Given 0.1 of 1 Mbit/s x 20 ms, 250 B, expect ten packets."""
    point = next(
        each
        for each in grid("small")
        if (each.rate_mbps, each.rtt_ms, each.queue_bdp) == (1, 20, 0.1)
    )
    assert point.queue_bytes == LEAST_QUEUE_BYTES == 10 * 1_500


# --- the arithmetic -----------------------------------------------------------------------------


def test_median_and_percentile_of_differences() -> None:
    """Given 1, 2, 3, 4 and 10 % of either sign, expect 3 %, and 4 + 0.6 (10 - 4) = 7.6 %."""
    found = sizes([0.01, -0.02, None, 0.03, -0.1, 0.04])
    assert found == pytest.approx((0.03, 0.076))
    assert sizes([None]) is None


def test_a_difference_is_between_runs_with_the_same_seeds() -> None:
    """Given 8 Mbit/s with seed 2, and 6, 9 and 12 simulated with 1 to 3, expect 9/8 and 9/8.

    With seed 2 and 3 in real time, at 8 and 16, it is 10.5/12; the mean of the seeds is 9/12.
    """
    (point, *_) = grid("small")
    model = (figures(1, 6), figures(2, 9), figures(3, 12))
    one = Comparison(point=point, kernel=(figures(2, 8),), model=model)
    assert one.goodput_difference == pytest.approx(1 / 8)
    assert one.mean_goodput_difference == pytest.approx(1 / 8)
    assert one.goodput_spread == pytest.approx(3 / 9)
    two = Comparison(point=point, kernel=(figures(2, 8), figures(3, 16)), model=model)
    assert two.goodput_difference == pytest.approx(10.5 / 12 - 1)
    assert two.mean_goodput_difference == pytest.approx(9 / 12 - 1)
    none = Comparison(point=point, kernel=(), model=model, invalid="late")
    assert none.goodput_difference is None
    assert none.to_json()["invalid"] == "late"


def test_what_is_simulated_is_reproducible_and_below_the_rate() -> None:
    """Given one CUBIC flow at 1 Mbit/s, expect no more than 1,448 of 1,500 bytes of it."""
    point = Point(number=1, control="cubic", rate_mbps=1, rtt_ms=20, queue_bdp=2, loss=0, flows=1)
    (one,) = simulated(point, 5, [3])
    assert simulated(point, 5, [3]) == [one]
    assert 0.9e6 < one.goodput_bps <= 1e6 * 1_448 / 1_500
    # The queue holds 15 kB: 120 ms.
    assert 0 < one.queue_ms < 120


# --- the verb -----------------------------------------------------------------------------------


def test_the_verb_on_two_points(tmp_path: Path) -> None:
    """Given two points of 2 s, expect both in both engines, or named as late."""
    if shutil.which("iperf3") is None:
        pytest.skip("iperf3 is not installed")
    command = [*BENTPIPE, "validate-model", "--points", "1,3", "--seconds", "2", "--json"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "out")], capture_output=True, text=True, check=False
    )
    if done.returncode == EXIT_MACHINE:
        pytest.skip(f"no lab here: {done.stderr.strip()}")
    assert done.returncode in {0, EXIT_INVALID}, done.stderr
    report = json.loads(done.stdout)
    assert [each["point"]["number"] for each in report["points"]] == [1, 3]
    for each in report["points"]:
        assert len(each["model"]) == 20
        assert (each["invalid"] is None) == bool(each["kernel"])
        for run in each["kernel"]:
            # In 2 s at 1 Mbit/s the first flight alone is more than a tenth.
            assert 0.1e6 < run["goodput_bps"] <= 1e6
    assert json.loads((tmp_path / "out" / "validation.json").read_text()) == report
    assert list((tmp_path / "out" / "runs").glob("point-001-seed-1/manifest.json"))


@pytest.fixture
def no_lab(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_emulate, "prepare", lambda _: None)


@pytest.mark.usefixtures("no_lab")
def test_ctrl_c_prints_what_is_finished(bentpipe: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    def one_and_no_more(points: list[Point], **_: Any) -> Iterator[Run]:
        yield Run(point=points[0], seed=1, figures=figures(1, 0.96))
        raise KeyboardInterrupt

    monkeypatch.setattr(_validation_runs, "in_real_time", one_and_no_more)
    called = bentpipe("validate-model", "--points", "1,2", "--seconds", "2", "--json")
    assert called.code == EXIT_INTERRUPTED
    assert "interrupted; the figures are of the points that were done" in called.err
    report = json.loads(called.out)
    assert [each["point"]["number"] for each in report["points"]] == [1]


@pytest.mark.usefixtures("no_lab")
def test_points_that_were_always_late_are_named(
    bentpipe: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(points: list[Point], **_: Any) -> Iterator[Run]:
        yield Run(point=points[0], seed=1, figures=figures(1, 0.96))
        yield Run(point=points[1], seed=1, invalid="lateness p99 is 0.02 s")

    monkeypatch.setattr(_validation_runs, "in_real_time", late)
    called = bentpipe("validate-model", "--points", "1,3", "--seconds", "2")
    assert called.code == EXIT_INVALID
    assert "INVALID: point 3: late in every attempt" in called.err
    assert "Goodput, 1 points of 2 s" in called.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--grid", "smal"], 'grid: read "smal"; allowed are "small" and "full"'),
        (["--points", "1,x"], '--points: read "1,x"; write numbers'),
        (["--points", "28"], "--points: read 28; small has 1 to 27"),
    ],
)
def test_what_is_wrong_is_said(arguments: list[str], message: str, bentpipe: Program) -> None:
    called = bentpipe("validate-model", *arguments)
    assert (called.code, called.out) == (2, "")
    assert message in called.err
