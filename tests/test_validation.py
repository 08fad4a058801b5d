"""The simulator compared with Linux TCP: the grid, the arithmetic, and the verb."""

from __future__ import annotations

import itertools
import json
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from conftest import Program, measures, needs

from bentpipe import Plan
from bentpipe.results.result import Result
from bentpipe.validation.comparison import MEASURES, Comparison, Measure, Value, summarize
from bentpipe.validation.points import CONTROLS, FLOWS, MIN_QUEUE_BYTES, Point, grid, pep_grid
from bentpipe.validation.report import missed_thresholds
from bentpipe.validation.runs import DeliveredBytes, PointRun, RunMetrics, simulate_point

BENTPIPE = [sys.executable, "-m", "bentpipe"]
QUANTITIES = ("rate_mbps", "rtt_ms", "queue_bdp", "loss", "flows", "control")
EXIT_INVALID = 4
EXIT_THRESHOLD = 99
EXIT_INTERRUPTED = 130


def metrics(seed: int, mbps: float, retransmitted: float = 0.0) -> RunMetrics:
    return RunMetrics(
        seed=seed,
        values={
            "goodput_bps": mbps * 1e6,
            "queue_ms": 0.0,
            "retransmitted_segments": retransmitted,
        },
    )


def points_of(kind: str) -> list[Point]:
    return [point for point in grid("small") if point.kind == kind]


def measure(name: str) -> Measure:
    return next(each for each in MEASURES if each.name == name)


def value(
    point: Point,
    difference: float | None,
    *,
    rate_limited: bool | None = None,
    name: str = "goodput",
    scale: float = 1e6,
) -> Value:
    """Return a value with a difference; None if all runs of the point were late."""
    kernel = None if difference is None else scale
    model = None if difference is None else scale * (1 + difference)
    of = measure(name)
    return Value(
        measure=of,
        name=of.values[0],
        point=point,
        kernel=kernel,
        model=model,
        rate_limited=rate_limited,
    )


# --- the grid -----------------------------------------------------------------------------------


def test_any_two_levels_of_any_two_quantities_occur_equally_often() -> None:
    """Given 27 points of six quantities with three levels each, expect each pair three times."""
    points = points_of("goodput")
    assert [point.number for point in points] == list(range(1, 28))
    for one, other in itertools.combinations(QUANTITIES, 2):
        pairs = Counter((getattr(point, one), getattr(point, other)) for point in points)
        assert set(pairs.values()) == {3}, (one, other)
        assert len(pairs) == 9


def test_the_full_grid_has_every_pair_for_each_control_and_number_of_flows() -> None:
    points = [point for point in grid("full") if point.kind == "goodput"]
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


def test_a_point_is_a_scenario() -> None:
    """Given 7 Mbit/s, 110 ms, 2 BDP and 1 % of loss, expect these in the plan.

    2 x 7e6 x 0.11 / 8 = 192,500 B. A packet of 12,000 bits that survives with 0.99 has bits that
    survive with 0.99^(1/12000).
    """
    point = Point(
        number=1, control="cubic", rate_mbps=7, rtt_ms=110, queue_bdp=2, loss=0.01, flows=2
    )
    plan: Any = Plan.resolve(point.scenario(60)).data
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
    assert point.queue_bytes == MIN_QUEUE_BYTES == 10 * 1_500


def test_other_kinds_have_every_pair_of_levels_once() -> None:
    """Given nine points of four quantities with three levels each, expect each pair once."""
    points = grid("small")
    assert [point.number for point in points] == list(range(1, 82))
    assert [point.number for point in grid("full")] == list(range(1, 280))
    varied = ("rate_mbps", "rtt_ms", "queue_bdp", "control")
    for kind in ("two-way", "rate-step", "outage"):
        for one, other in itertools.combinations(varied, 2):
            pairs = Counter((getattr(each, one), getattr(each, other)) for each in points_of(kind))
            assert list(pairs.values()) == [1] * 9, (kind, one, other)
    sizes = {point.size_bytes for point in points_of("completion")}
    assert sizes == {10_000, 100_000, 1_000_000}
    for size in sizes:
        own = [point for point in points_of("completion") if point.size_bytes == size]
        for one, other in itertools.combinations(("rate_mbps", "rtt_ms", "loss", "control"), 2):
            assert len({(getattr(each, one), getattr(each, other)) for each in own}) == 9


def test_a_step_and_an_outage_are_in_the_plan() -> None:
    """Given points at 1 Mbit/s, expect half the rate from 12 s on, and none from 12 to 14 s."""
    steps: Any
    steps = Plan.resolve(points_of("rate-step")[0].scenario(30)).data["directions"][0]["rate_bps"]
    assert steps["steps"] == [[0, 1_000_000], [12 * 10**9, 500_000]]
    steps = Plan.resolve(points_of("outage")[0].scenario(30)).data["directions"][0]["rate_bps"]
    assert steps["steps"] == [[0, 1_000_000], [12 * 10**9, 0], [14 * 10**9, 1_000_000]]


def test_the_runs_of_the_small_grid_take_at_most_eight_minutes() -> None:
    """Given two processors and the load of each run, expect 480 s, if all are in time."""
    work_s = sum(point.load * point.expected_s(30) for point in grid("small"))
    assert work_s / 2 < 8 * 60


def test_points_with_peps_have_every_pair_of_levels_once() -> None:
    """Given nine points of four quantities with three levels each, expect each pair once.

    Three more have other controls over the link and data from the island; the twelve are repeated
    with files.
    """
    points = [point for point in pep_grid() if point.kind == "pep-goodput"]
    assert [point.number for point in pep_grid()] == list(range(1, 25))
    assert len(points) == 12
    forward = [point for point in points if point.direction == "forward"]
    for one, other in itertools.combinations(("place", "control", "rtt_ms", "loss"), 2):
        pairs = Counter((getattr(each, one), getattr(each, other)) for each in forward)
        assert list(pairs.values()) == [1] * 9, (one, other)
    assert all(point.control != point.link_control for point in points[9:])
    for point in pep_grid():
        plan: Any = Plan.resolve(point.scenario(30)).data
        kinds = [[each["kind"] for each in gateway["functions"]] for gateway in plan["gateways"]]
        assert kinds == [["pep"] * (point.place in (end, "both")) for end in ("hub", "terminal")]
        losing = plan["directions"][point.direction == "return"]["channel"]
        assert losing.get("bit_error_rate", 0) == pytest.approx(point.loss / 12_000, rel=0.01)


# --- the arithmetic -----------------------------------------------------------------------------


def test_median_and_percentile_of_differences() -> None:
    """Given 1, 2, 3, 4 and 10 % of either sign, expect 3 %, and 4 + 0.6 (10 - 4) = 7.6 %."""
    points = points_of("goodput")
    sizes = (0.01, -0.02, 0.03, -0.1, 0.04)
    found = summarize(
        measure("goodput"),
        [value(point, size) for point, size in zip(points, sizes, strict=False)],
    )
    assert found is not None
    assert (found.counted, found.failed, found.excluded) == (5, 0, 0)
    assert found.over == {"all": {"median": pytest.approx(0.03), "p90": pytest.approx(0.076)}}
    assert [found.meets(each) for each in measure("goodput").thresholds] == [
        False,
        False,
        True,
        True,
    ]
    assert summarize(measure("two-way"), [value(points[0], 0.1)]) is None


def test_points_that_the_rate_limits_are_in_one_group_only() -> None:
    """Given 0 % at three points that the rate limits, and 4 % at one that it does not.

    Expect a median of 0 and a 90th percentile of 0.7 x 4 = 2.8 % over all, 4 % over the one.
    """
    points = points_of("goodput")
    limited = [value(point, 0.0, rate_limited=True) for point in points[:3]]
    found = summarize(measure("goodput"), [*limited, value(points[3], 0.04, rate_limited=False)])
    assert found is not None
    assert found.over["all"] == {"median": 0.0, "p90": pytest.approx(0.028)}
    alone = found.over["not limited by the link rate"]
    assert alone == {"median": pytest.approx(0.04), "p90": pytest.approx(0.04)}
    assert [found.meets(each) for each in found.measure.thresholds] == [True, True, False, True]
    assert not found.passed


def test_a_point_that_was_always_late_meets_no_threshold() -> None:
    """Given 0 % twice and a point without a valid run, expect the median and not the percentile.

    0.9 of the way from the first to the third lies between the second and the failed one.
    """
    points = points_of("goodput")
    values = [value(points[0], 0.0), value(points[1], 0.0), value(points[2], None)]
    found = summarize(measure("goodput"), values)
    assert found is not None
    assert found.failed == 1
    assert found.over["all"] == {"median": 0.0, "p90": math.inf}
    data = found.to_json()
    assert data["difference"]["all"] == {"median": 0.0, "p90": None}
    assert [each["passed"] for each in data["thresholds"]][:2] == [True, False]
    assert missed_thresholds([found]) == ["goodput, all: 90th percentile failed, at most 5%"]


def test_few_retransmissions_are_excluded() -> None:
    """Given 5 and 8 retransmissions, expect no difference; given 5 and 20, one of 300 %."""
    (point, *_) = points_of("goodput")
    few = value(point, 0.6, name="retransmissions", scale=5)
    found = summarize(measure("retransmissions"), [few])
    assert found is not None
    assert (found.counted, found.excluded, found.passed) == (0, 1, True)
    many = value(point, 3.0, name="retransmissions", scale=5)
    found = summarize(measure("retransmissions"), [many])
    assert found is not None
    assert found.over["all"]["median"] == pytest.approx(3)
    none = value(point, 0.0, name="retransmissions", scale=0)
    assert none.difference == 0


@pytest.mark.parametrize(
    ("kernel", "model", "expected"), [(0.96, 0.97, True), (0.96, 0.9, False), (0.9, 0.96, False)]
)
def test_the_rate_limits_a_point_if_both_engines_reach_it(
    kernel: float, model: float, expected: bool
) -> None:
    """Given shares of the largest possible goodput, expect 95 % of it in both engines to count."""
    (point, *_) = points_of("goodput")
    possible_mbps = point.possible_bps / 1e6
    found = Comparison(
        point=point,
        kernel=(metrics(1, kernel * possible_mbps),),
        model=(metrics(1, model * possible_mbps),),
    )
    assert [each.rate_limited for each in found.values()] == [expected] * 3


def test_a_difference_is_between_runs_with_the_same_seeds() -> None:
    """Given 8 Mbit/s with seed 2, and 6, 9 and 12 simulated with 1 to 3, expect 9/8 and 9/8.

    With seed 2 and 3 in real time, at 8 and 16, it is 10.5/12; the mean of the seeds is 9/12.
    """
    (point, *_) = points_of("goodput")
    model = (metrics(1, 6), metrics(2, 9), metrics(3, 12))
    one, *_ = Comparison(point=point, kernel=(metrics(2, 8),), model=model).values()
    assert one.difference == pytest.approx(1 / 8)
    assert one.mean_difference == pytest.approx(1 / 8)
    # t(0.975, 2) = 4.303; the standard deviation of 6, 9 and 12 is 3.
    assert one.mean_difference_half_width == pytest.approx(4.3027 * 3 / math.sqrt(3) / 8, rel=1e-4)
    two, *_ = Comparison(point=point, kernel=(metrics(2, 8), metrics(3, 16)), model=model).values()
    assert two.difference == pytest.approx(10.5 / 12 - 1)
    assert two.mean_difference == pytest.approx(9 / 12 - 1)
    late = Comparison(point=point, kernel=(), model=model, invalid="late")
    assert [each.difference for each in late.values()] == [None, None, None]
    assert late.to_json()["invalid"] == "late"


# --- delivered bytes over time ------------------------------------------------------------------


def delivered(rows: list[tuple[float, int]]) -> DeliveredBytes:
    times, sizes = zip(*rows, strict=True)
    samples = pl.DataFrame(
        {
            "time_ns": pl.Series([round(each * 1e9) for each in times], dtype=pl.UInt64),
            "flow": pl.Series([0] * len(rows), dtype=pl.UInt32),
            "delivered_bytes": pl.Series(sizes, dtype=pl.UInt64),
        }
    )
    return DeliveredBytes(Result({}, {"flow_samples": samples}))


def test_bytes_between_samples_are_interpolated() -> None:
    """Given 1,000 B at 1 s and 3,000 B at 2 s, expect 2,000 B at 1.5 s: 16 kbit/s from 1 s on."""
    found = delivered([(1, 1_000), (2, 3_000), (4, 3_000)])
    assert found.bytes(0.5) == 500
    assert found.bytes(1.5) == 2_000
    assert found.goodput_bps(1, 2) == 16_000
    assert found.goodput_bps(2, 4) == 0


def test_the_time_until_bytes_are_delivered() -> None:
    """Given 1,000 B at 3 s and 5,000 B at 5 s, expect 3,000 B at 4 s, and 9,000 B never."""
    found = delivered([(1, 1_000), (3, 1_000), (5, 5_000), (6, 5_000)])
    assert found.seconds_until(3_000, after_s=2) == pytest.approx(2)
    assert found.seconds_until(5_000, after_s=2) == pytest.approx(3)
    assert found.seconds_until(9_000, after_s=2) == pytest.approx(4)
    assert found.seconds_until(1_000, after_s=2) == 0


# --- the simulator's side -----------------------------------------------------------------------


def test_simulations_are_reproducible_and_below_the_rate() -> None:
    """Given one CUBIC flow at 1 Mbit/s, expect no more than 1,448 of 1,500 bytes of it."""
    point = Point(number=1, control="cubic", rate_mbps=1, rtt_ms=20, queue_bdp=2, loss=0, flows=1)
    (one,) = simulate_point(point, 5, [3])
    assert simulate_point(point, 5, [3]) == [one]
    assert 0.9e6 < number(one, "goodput_bps") <= 1e6 * 1_448 / 1_500
    # The queue holds 15 kB: 120 ms.
    assert 0 < number(one, "queue_ms") < 120


def number(found: RunMetrics, name: str) -> float:
    known = found.values[name]
    assert known is not None
    return known


def simulated_at(kind: str, **values: Any) -> tuple[Point, RunMetrics]:
    fixed = {"number": 1, "control": "reno", "queue_bdp": 1.0, "loss": 0.0, "flows": 1}
    point = Point(kind=kind, **{**fixed, **values})  # type: ignore[arg-type]
    (found,) = simulate_point(point, 5, [1])
    return point, found


def test_ten_kilobytes_take_two_round_trips_and_their_sending() -> None:
    """Given 10 kB at 1 Mbit/s and 20 ms, expect two round trips and seven packets of data.

    The first window holds all: the handshake, the request and the response. Seven packets with
    10,000 B and 52 B of headers each take 82.9 ms, SYN, ACK and request some 3 to 5 ms.
    """
    _, found = simulated_at("completion", rate_mbps=1, rtt_ms=20, size_bytes=10_000)
    assert 0.04 + 0.0829 < number(found, "completion_s") < 0.04 + 0.0829 + 0.006


def test_two_way_transfers_share_the_link_with_their_acks() -> None:
    """Given Reno both ways at 7 Mbit/s and a queue of 2 BDP, expect 60 to 100 % of each way."""
    point, found = simulated_at("two-way", rate_mbps=7, rtt_ms=20, queue_bdp=2.0)
    for name in ("forward_bps", "return_bps"):
        assert 0.6 * point.possible_bps < number(found, name) < point.possible_bps


def test_half_the_rate_is_half_the_goodput() -> None:
    """Given a queue of 1 BDP, expect the rate before the step and half of it after, within 5 %.

    What waits at the step, 17.5 kB, is 0.5 % of 8 s at the lower rate.
    """
    point, found = simulated_at("rate-step", rate_mbps=7, rtt_ms=20)
    possible = point.possible_bps
    assert number(found, "before_bps") == pytest.approx(possible, rel=0.05)
    assert number(found, "after_bps") == pytest.approx(possible / 2, rel=0.05)
    assert number(found, "after_bps") <= 1.005 * possible / 2


def test_recovery_after_an_outage_takes_at_most_the_timer() -> None:
    """Given 2 s without a rate, expect the goodput of 2 s again no sooner than 2 s after it.

    The retransmission timer has backed off to 1.6 s at most by then (200 ms, doubled thrice): that
    is the maximum loss, of 6 s.
    """
    point, found = simulated_at("outage", rate_mbps=7, rtt_ms=20, queue_bdp=2.0)
    assert 1.95 < number(found, "recovery_s") < 4.0
    assert 0.6 < number(found, "after_bps") / point.possible_bps <= 1


# --- the verb -----------------------------------------------------------------------------------


@measures
@needs("iperf3")
@pytest.mark.thorough
def test_the_verb_on_points_of_two_kinds(tmp_path: Path) -> None:
    """Given two points of 2 s and files of 10 kB, expect both engines, or late points by name."""
    command = [*BENTPIPE, "validate-model", "--points", "1,3,28", "--seconds", "2", "--json"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "out")], capture_output=True, text=True, check=False
    )
    assert done.returncode in {0, EXIT_INVALID}, done.stderr
    report = json.loads(done.stdout)
    assert [each["point"]["number"] for each in report["points"]] == [1, 3, 28]
    for each in report["points"]:
        assert len(each["model"]) == 20
        assert (each["invalid"] is None) == bool(each["kernel"])
        for run in each["kernel"]:
            if each["point"]["kind"] == "goodput":
                # In 2 s at 1 Mbit/s the first flight alone is more than a tenth.
                assert 0.1e6 < run["goodput_bps"] <= 1e6
            else:
                # Two round trips and 83 ms of sending; ten times that is no completion time.
                assert 0.12 < run["completion_s"] < 1.2
    measures = report["measures"]
    assert list(measures) == ["goodput", "queue", "retransmissions", "completion-10kB"]
    assert report["passed"] == all(each["passed"] for each in measures.values())
    assert "| point | control |" in (tmp_path / "out" / "validation.md").read_text()
    assert json.loads((tmp_path / "out" / "validation.json").read_text()) == report
    assert list((tmp_path / "out" / "runs").glob("point-001-seed-1/manifest.json"))


@pytest.fixture
def no_lab(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bentpipe.live.check_plan", lambda _: None)


@pytest.mark.usefixtures("no_lab")
def test_ctrl_c_prints_what_is_finished(bentpipe: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    def one_and_no_more(points: list[Point], **_: Any) -> Iterator[PointRun]:
        yield PointRun(point=points[0], seed=1, metrics=metrics(1, 0.96))
        raise KeyboardInterrupt

    monkeypatch.setattr("bentpipe.validation.run_points", one_and_no_more)
    called = bentpipe("validate-model", "--points", "1,2", "--seconds", "2", "--json")
    assert called.code == EXIT_INTERRUPTED
    assert "interrupted; the figures are those of the finished points" in called.err
    report = json.loads(called.out)
    assert [each["point"]["number"] for each in report["points"]] == [1]


@pytest.mark.usefixtures("no_lab")
def test_points_that_were_always_late_are_named(
    bentpipe: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(points: list[Point], **_: Any) -> Iterator[PointRun]:
        yield PointRun(point=points[0], seed=1, metrics=metrics(1, 0.96))
        yield PointRun(point=points[1], seed=1, invalid="lateness p99 is 0.02 s")

    monkeypatch.setattr("bentpipe.validation.run_points", late)
    called = bentpipe("validate-model", "--points", "1,3", "--seconds", "2")
    assert called.code == EXIT_INVALID
    assert "INVALID: point 3: late in every attempt" in called.err
    # It counts as failed in the tables and for the thresholds.
    assert "FAILED" in called.out
    assert "median 1%: MISSED" in called.out


@pytest.mark.usefixtures("no_lab")
@pytest.mark.parametrize(("asked", "code"), [([], 0), (["--check"], EXIT_THRESHOLD)])
def test_a_missed_threshold_is_exit_code_99_if_asked(
    asked: list[str], code: int, bentpipe: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given half of the simulator's goodput in real time, expect missed thresholds."""

    def slow(points: list[Point], **_: Any) -> Iterator[PointRun]:
        yield PointRun(point=points[0], seed=1, metrics=metrics(1, 0.48, 124))

    monkeypatch.setattr("bentpipe.validation.run_points", slow)
    called = bentpipe("validate-model", "--points", "1", "--seconds", "2", *asked)
    assert called.code == code
    assert "median 1%: MISSED" in called.out
    missed = "missed: goodput, all: median" in called.err
    assert missed == bool(asked)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--grid", "smal"],
            '--grid: read "smal"; allowed: small, full, pep; did you mean "small"?',
        ),
        (["--points", "1,x"], '--points: read "1,x"; expected numbers'),
        (["--points", "82"], "--points: read 82; small has 1 to 81"),
        (["--points", "1", "--measures", "outage"], "--points: read 1; small has 73 to 81"),
        (["--measures", "goodputs"], '--measures: read "goodputs"; allowed: goodput, completion'),
    ],
)
def test_wrong_arguments_are_refused(arguments: list[str], message: str, bentpipe: Program) -> None:
    called = bentpipe("validate-model", *arguments)
    assert (called.code, called.out) == (2, "")
    assert message in called.err
