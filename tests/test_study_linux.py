"""The simulator compared with Linux TCP: the grid, the arithmetic, and the verb."""

from __future__ import annotations

import itertools
import json
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from conftest import Program, measures, needs

from bentpipe import Plan
from bentpipe.live import EmulatedRun, EmulationJob
from bentpipe.results import Result
from bentpipe.simulation.executor import run_jobs
from bentpipe.simulation.run import Job
from bentpipe.studies.base.comparison import Measurement, Row
from bentpipe.studies.base.real_time import RealMeasurement, RealRun
from bentpipe.studies.base.work import Work
from bentpipe.studies.linux.points import MIN_QUEUE_BYTES, DeliveredBytes, Point, points
from bentpipe.studies.linux.study import MEASURES, Measure, Summary, row_of, summarize

BENTPIPE = [sys.executable, "-m", "bentpipe"]
QUANTITIES = ("rate_mbps", "rtt_ms", "queue_bdp", "loss", "flows", "control")
EXIT_INVALID = 4
EXIT_THRESHOLD = 99
EXIT_INTERRUPTED = 130
LINUX = ("study", "linux", "--cells")


def grid(name: str) -> list[Point]:
    return [each for each in points() if each.grid == name]


def points_of(kind: str, name: str = "small") -> list[Point]:
    return [point for point in grid(name) if point.kind == kind]


def measure(name: str) -> Measure:
    return next(each for each in MEASURES if each.name == name)


def row(
    point: Point,
    kernel: Mapping[int, float],
    model: Mapping[int, float],
    name: str = "goodput",
    *,
    goodput: bool | None = None,
) -> Row:
    """Return a row of the values by seed of both engines; ``goodput``: at the link's rate, or 0."""
    (figure, *_), bps = measure(name).values, (goodput or 0) * point.possible_bps
    more = {} if goodput is None else {"goodput_bps": bps}
    runs = tuple(RealRun(seed, {**more, figure: value}) for seed, value in kernel.items())
    simulated = Measurement({seed: {**more, figure: value} for seed, value in model.items()})
    return row_of(measure(name), figure, point, RealMeasurement(runs, simulated))


def summary(name: str, rows: Sequence[Row]) -> Summary:
    found = summarize(measure(name), rows)
    assert found is not None
    return found


def differing(point: Point, difference: float | None) -> Row:
    """Return a goodput with a difference; None if all runs of the point were late."""
    kernel = {} if difference is None else {1: 1.0}
    return row(point, kernel, {1: 1 + (difference or 0)})


# --- the grid -----------------------------------------------------------------------------------


def test_any_two_levels_of_any_two_quantities_occur_equally_often() -> None:
    """Given 27 points of six quantities with three levels each, expect each pair three times."""
    of_goodput = points_of("goodput")
    assert [point.number for point in of_goodput] == list(range(1, 28))
    for one, other in itertools.combinations(QUANTITIES, 2):
        pairs = Counter((getattr(point, one), getattr(point, other)) for point in of_goodput)
        assert set(pairs.values()) == {3}, (one, other)
        assert len(pairs) == 9


def test_the_full_grid_has_every_pair_for_each_control_and_number_of_flows() -> None:
    of_goodput = points_of("goodput", "full")
    assert len(of_goodput) == 225
    for control, flows in itertools.product(("reno", "cubic", "bbr"), (1, 2, 8)):
        own = [each for each in of_goodput if (each.control, each.flows) == (control, flows)]
        for one, other in itertools.combinations(QUANTITIES[:4], 2):
            pairs = {(getattr(point, one), getattr(point, other)) for point in own}
            assert len(pairs) == len(own) == 25


@pytest.mark.parametrize("name", ["small", "full"])
def test_the_grid_spans_the_ranges(name: str) -> None:
    ranges = {
        "rate_mbps": (1, 50),
        "rtt_ms": (20, 600),
        "queue_bdp": (0.1, 2),
        "loss": (0, 0.01),
        "flows": (1, 8),
    }
    for quantity, ends in ranges.items():
        values = [getattr(point, quantity) for point in grid(name)]
        assert (min(values), max(values)) == ends


def point_of(**values: Any) -> Point:
    fixed = {"number": 1, "control": "reno", "rate_mbps": 7, "rtt_ms": 20, "queue_bdp": 1.0}
    return Point(**{**fixed, "loss": 0.0, "flows": 1, **values})


def test_a_point_is_a_scenario() -> None:
    """Given 7 Mbit/s, 110 ms, 2 BDP and 1 % of loss, expect these in the plan.

    2 x 7e6 x 0.11 / 8 = 192,500 B. A packet of 12,000 bits that survives with 0.99 has bits that
    survive with 0.99^(1/12000).
    """
    point = point_of(control="cubic", rtt_ms=110, queue_bdp=2, loss=0.01, flows=2, seconds=60)
    plan: Any = Plan.resolve(point.scenario()).data
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
    assert [point.number for point in grid("small")] == list(range(1, 82))
    assert [point.number for point in grid("full")] == list(range(1, 280))
    varied = ("rate_mbps", "rtt_ms", "queue_bdp", "control")
    for kind in ("two-way", "rate-step", "outage"):
        for one, other in itertools.combinations(varied, 2):
            pairs = Counter((getattr(each, one), getattr(each, other)) for each in points_of(kind))
            assert list(pairs.values()) == [1] * 9, (kind, one, other)
    assert [(each.kind, each.control) for each in grid("full")[225:]] == [
        (each.kind, each.control) for each in grid("small")[27:]
    ]
    sizes = {point.size_bytes for point in points_of("completion")}
    assert sizes == {10_000, 100_000, 1_000_000}
    for size in sizes:
        own = [point for point in points_of("completion") if point.size_bytes == size]
        for one, other in itertools.combinations(("rate_mbps", "rtt_ms", "loss", "control"), 2):
            assert len({(getattr(each, one), getattr(each, other)) for each in own}) == 9


def test_a_step_and_an_outage_are_in_the_plan() -> None:
    """Given points at 1 Mbit/s, expect half the rate from 12 s on, and none from 12 to 14 s."""
    steps: Any
    steps = Plan.resolve(points_of("rate-step")[0].scenario()).data["directions"][0]["rate_bps"]
    assert steps["steps"] == [[0, 1_000_000], [12 * 10**9, 500_000]]
    steps = Plan.resolve(points_of("outage")[0].scenario()).data["directions"][0]["rate_bps"]
    assert steps["steps"] == [[0, 1_000_000], [12 * 10**9, 0], [14 * 10**9, 1_000_000]]


def test_the_runs_of_the_small_grid_take_at_most_eight_minutes() -> None:
    """Given two processors and the load of each run, expect 480 s, if all are in time."""
    work_s = sum(point.load * point.expected_s for point in grid("small"))
    assert work_s / 2 < 8 * 60


def test_points_with_peps_have_every_pair_of_levels_once() -> None:
    """Given nine points of four quantities with three levels each, expect each pair once.

    Three more have other controls over the link and data from the island; the twelve are repeated
    with files.
    """
    of_goodput = points_of("pep-goodput", "pep")
    assert [point.number for point in grid("pep")] == list(range(1, 25))
    assert len(of_goodput) == 12
    forward = [point for point in of_goodput if point.direction == "forward"]
    for one, other in itertools.combinations(("place", "control", "rtt_ms", "loss"), 2):
        pairs = Counter((getattr(each, one), getattr(each, other)) for each in forward)
        assert list(pairs.values()) == [1] * 9, (one, other)
    assert all(point.control != point.link_control for point in of_goodput[9:])
    for point in grid("pep"):
        plan: Any = Plan.resolve(point.scenario()).data
        kinds = [[each["kind"] for each in gateway["functions"]] for gateway in plan["gateways"]]
        assert kinds == [["pep"] * (point.place in (end, "both")) for end in ("hub", "terminal")]
        losing = plan["directions"][point.direction == "return"]["channel"]
        assert losing.get("bit_error_rate", 0) == pytest.approx(point.loss / 12_000, rel=0.01)


# --- the arithmetic -----------------------------------------------------------------------------


def test_median_and_percentile_of_differences() -> None:
    """Given 1, 2, 3, 4 and 10 % of either sign, expect 3 %, and 4 + 0.6 (10 - 4) = 7.6 %."""
    sizes = (0.01, -0.02, 0.03, -0.1, 0.04)
    pairs = zip(points_of("two-way"), sizes, strict=False)
    rows = [row(point, {1: 1.0}, {1: 1 + size}, "two-way") for point, size in pairs]
    found = summary("two-way", rows)
    assert (found.counted, found.failed, found.excluded) == (5, 0, 0)
    assert found.found["all", "median"] == pytest.approx(0.03)
    assert found.found["all", "p90"] == pytest.approx(0.076)
    assert found.missed == []
    assert summarize(measure("goodput"), rows) is None


def test_points_that_the_rate_limits_are_in_one_group_only() -> None:
    """Given 0 % at three points that the rate limits, and 4 % at one that it does not.

    Expect a median of 0 and a 90th percentile of 0.7 x 4 = 2.8 % over all, 4 % over the one.
    """
    points = points_of("goodput")
    limited = [row(p, {1: p.possible_bps}, {1: p.possible_bps}) for p in points[:3]]
    found = summary("goodput", [*limited, differing(points[3], 0.04)])
    alone = "not limited by the link rate"
    assert found.found == {
        ("all", "median"): 0.0,
        ("all", "p90"): pytest.approx(0.028),
        (alone, "median"): pytest.approx(0.04),
        (alone, "p90"): pytest.approx(0.04),
    }
    met = [found.meets(key) for key in found.measure.limits]
    assert met == [True, True, False, True]


def test_a_point_that_was_always_late_meets_no_threshold() -> None:
    """Given 0 % twice and a point without a valid run, expect the median and not the percentile.

    0.9 of the way from the first to the third lies between the second and the failed one.
    """
    points = points_of("goodput")
    rows = [differing(p, each) for p, each in zip(points, (0.0, 0.0, None), strict=False)]
    found = summary("goodput", rows)
    assert found.failed == 1
    data = found.to_json()
    assert data["difference"]["all"] == {"median": 0.0, "p90": None}
    assert [each["passed"] for each in data["thresholds"]][:2] == [True, False]
    assert found.missed[0] == "goodput, all: 90th percentile failed, at most 5%"


def test_few_retransmissions_are_excluded() -> None:
    """Given 5 and 8 retransmissions, expect no difference; given 5 and 20, one of 300 %."""
    (point, *_) = points_of("goodput")
    few, many, none = (
        row(point, {1: kernel}, {1: model}, "retransmissions", goodput=False)
        for kernel, model in ((5, 8), (5, 20), (0, 0))
    )
    found = summary("retransmissions", [few])
    assert (found.counted, found.excluded, found.missed) == (0, 1, [])
    assert summary("retransmissions", [many]).found["all", "median"] == pytest.approx(3)
    assert none["difference_percent"] == 0


@pytest.mark.parametrize(
    ("kernel", "model", "expected"), [(0.96, 0.97, True), (0.96, 0.9, False), (0.9, 0.96, False)]
)
def test_the_rate_limits_a_point_if_both_engines_reach_it(
    kernel: float, model: float, expected: bool
) -> None:
    """Given shares of the largest possible goodput, expect 95 % of it in both engines to count."""
    (point, *_) = points_of("goodput")
    found = row(point, {1: kernel * point.possible_bps}, {1: model * point.possible_bps})
    assert found["rate_limited"] is expected
    queue = row(point, {1: 0.0}, {1: 0.0}, "queue", goodput=expected)
    assert queue["rate_limited"] is expected


def test_a_difference_is_between_runs_with_the_same_seeds() -> None:
    """Given 8 Mbit/s with seed 2, and 6, 9 and 12 simulated with 1 to 3, expect 9/8 and 9/8.

    With seed 2 and 3 in real time, at 8 and 16, it is 10.5/12; the mean of the seeds is 9/12.
    """
    (point, *_) = points_of("goodput")
    model = {1: 6.0, 2: 9.0, 3: 12.0}
    one, two, late = (row(point, each, model) for each in ({2: 8.0}, {2: 8.0, 3: 16.0}, {}))
    assert one["difference_percent"] == pytest.approx(100 / 8)
    mean = one["mean_difference_percent"]
    assert mean.mean == pytest.approx(100 / 8)
    # t(0.975, 2) = 4.303; the standard deviation of 6, 9 and 12 is 3.
    half = 100 * 4.3027 * 3 / math.sqrt(3) / 8
    assert mean.interval.high - mean.mean == pytest.approx(half, rel=1e-4)
    assert two["difference_percent"] == pytest.approx(100 * (10.5 / 12 - 1))
    assert two["mean_difference_percent"].mean == pytest.approx(100 * (9 / 12 - 1))
    assert (late["difference_percent"], late["emulated"]) == (None, None)


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


def simulated_at(**values: Any) -> tuple[Point, Mapping[str, float]]:
    point = point_of(seconds=5, **values)
    found = Work("linux", runs=1).measure([point])[point].runs[1]
    assert None not in found.values()
    return point, {name: value or 0.0 for name, value in found.items()}


def test_simulations_are_reproducible_and_below_the_rate() -> None:
    """Given one CUBIC flow at 1 Mbit/s, expect no more than 1,448 of 1,500 bytes of it."""
    values = {"control": "cubic", "rate_mbps": 1, "queue_bdp": 2}
    _, one = simulated_at(**values)
    assert simulated_at(**values)[1] == one
    assert 0.9e6 < one["goodput_bps"] <= 1e6 * 1_448 / 1_500
    # The queue holds 15 kB: 120 ms.
    assert 0 < one["queue_ms"] < 120


def test_ten_kilobytes_take_two_round_trips_and_their_sending() -> None:
    """Given 10 kB at 1 Mbit/s and 20 ms, expect two round trips and seven packets of data.

    The first window holds all: the handshake, the request and the response. Seven packets with
    10,000 B and 52 B of headers each take 82.9 ms, SYN, ACK and request some 3 to 5 ms.
    """
    _, found = simulated_at(kind="completion", rate_mbps=1, size_bytes=10_000)
    assert 0.04 + 0.0829 < found["completion_s"] < 0.04 + 0.0829 + 0.006


def test_two_way_transfers_share_the_link_with_their_acks() -> None:
    """Given Reno both ways at 7 Mbit/s and a queue of 2 BDP, expect 60 to 100 % of each way."""
    point, found = simulated_at(kind="two-way", queue_bdp=2.0)
    for name in ("forward_bps", "return_bps"):
        assert 0.6 * point.possible_bps < found[name] < point.possible_bps


def test_half_the_rate_is_half_the_goodput() -> None:
    """Given a queue of 1 BDP, expect the rate before the step and half of it after, within 5 %.

    What waits at the step, 17.5 kB, is 0.5 % of 8 s at the lower rate.
    """
    point, found = simulated_at(kind="rate-step")
    possible = point.possible_bps
    assert found["before_bps"] == pytest.approx(possible, rel=0.05)
    assert found["after_bps"] == pytest.approx(possible / 2, rel=0.05)
    assert found["after_bps"] <= 1.005 * possible / 2


def test_recovery_after_an_outage_takes_at_most_the_timer() -> None:
    """Given 2 s without a rate, expect the goodput of 2 s again no sooner than 2 s after it.

    The retransmission timer has backed off to 1.6 s at most by then (200 ms, doubled thrice): that
    is the maximum loss, of 6 s.
    """
    point, found = simulated_at(kind="outage", queue_bdp=2.0)
    assert 1.95 < found["recovery_s"] < 4.0
    assert 0.6 < found["after_bps"] / point.possible_bps <= 1


# --- the command --------------------------------------------------------------------------------


@measures
@needs("iperf3")
@pytest.mark.thorough
def test_the_command_on_points_of_two_kinds(tmp_path: Path) -> None:
    """Given two points of 2 s and files of 10 kB, expect both engines, or late points by name."""
    chosen = ["--cells", "small:1,small:3,small:28", "--seconds", "2"]
    command = [*BENTPIPE, "study", "linux", *chosen, "--json", "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in {0, EXIT_INVALID}, done.stderr
    result = json.loads(done.stdout)
    assert [each["number"] for each in result["points"]] == [1, 3, 28]
    assert bool(result["summary"]["invalid"]) == (done.returncode == EXIT_INVALID)
    for each in result["points"]:
        assert len(each["simulated"]) == 20
        assert (each["point"] in result["summary"]["invalid"]) != bool(each["emulated"])
        for run in each["emulated"]:
            if each["kind"] == "goodput":
                # In 2 s at 1 Mbit/s the first flight alone is more than a tenth.
                assert 0.1e6 < run["goodput_bps"] <= 1e6
            else:
                # Two round trips and 83 ms of sending; ten times that is no completion time.
                assert 0.12 < run["completion_s"] < 1.2
    measures = result["summary"]["measures"]
    assert list(measures) == ["goodput", "queue", "retransmissions", "completion-10kB"]
    assert "small:28" in (tmp_path / "out/report.html").read_text()
    assert json.loads((tmp_path / "out/result.json").read_text()) == result
    assert list((tmp_path / "out/runs").glob("*small-1-seed-1/manifest.json"))


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> dict[int, Any]:
    """Simulated runs in place of the kernel's; by index: why late, a rate in bit/s, or Ctrl-C."""
    changes: dict[int, Any] = {}

    def emulate(jobs: Sequence[EmulationJob], **_: Any) -> Generator[EmulatedRun]:
        for index, job in enumerate(jobs):
            change = changes.get(index)
            if change is KeyboardInterrupt:
                raise KeyboardInterrupt
            plan = job.plan
            if isinstance(change, int):
                (forward, back), rate = (
                    plan.data["directions"],
                    plan.data["directions"][0]["rate_bps"],
                )
                slow = {**forward, "rate_bps": {**rate, "value": change}}
                plan = plan.with_values(directions=[slow, back])
            (outcome,) = run_jobs([Job(plan=plan, seed=job.seed)])
            result = outcome.result(started="")
            late = change if isinstance(change, str) else None
            result.manifest["emulation"] = {"kernel": "6.0", "invalid": late, "windows": []}
            yield EmulatedRun(index, job, attempts=3 if late else 1, outcome=result)

    monkeypatch.setattr("bentpipe.studies.base.real_time.emulate_as_completed", emulate)
    monkeypatch.setattr("bentpipe.studies.base.real_time.check_plan", lambda _: None)
    return changes


def test_ctrl_c_prints_what_is_finished(bentpipe: Program, kernel: dict[int, Any]) -> None:
    kernel[1] = KeyboardInterrupt
    called = bentpipe(*LINUX, "small:3,small:1", "--seconds", "2", "--json")
    assert called.code == EXIT_INTERRUPTED
    assert "interrupted; the figures are those of the finished runs" in called.err
    assert [each["number"] for each in json.loads(called.out)["points"]] == [1]


def test_points_that_were_always_late_are_named(
    bentpipe: Program, kernel: dict[int, Any], tmp_path: Path
) -> None:
    kernel[0] = "lateness p99 is 0.02 s"
    out = tmp_path / "out"
    called = bentpipe(*LINUX, "small:1,small:3", "--seconds", "2", "--out", out)
    assert called.code == EXIT_INVALID
    assert "INVALID: small:3: late in every attempt" in called.err
    # It counts as failed in the tables and for the thresholds.
    assert "FAILED" in called.out
    assert "5%: MISSED" in called.out
    assert "Late in every attempt, so that they count as failed: small:3." in (
        out / "report.html"
    ).read_text(encoding="utf-8")


@pytest.mark.parametrize(("asked", "code"), [([], 0), (["--check"], EXIT_THRESHOLD)])
def test_a_missed_threshold_is_exit_code_99_if_asked(
    asked: list[str], code: int, bentpipe: Program, kernel: dict[int, Any]
) -> None:
    """Given half of the simulator's rate in real time, expect missed thresholds."""
    kernel[0] = 500_000
    called = bentpipe(*LINUX, "small:1", "--seconds", "2", *asked)
    assert called.code == code
    assert "median 1%: MISSED" in called.out
    missed = "missed: goodput, all: median" in called.err
    assert missed == bool(asked)


def test_names_of_cells(bentpipe: Program) -> None:
    called = bentpipe(*LINUX, "small:82")
    assert (called.code, called.out) == (2, "")
    assert 'cells: read "small:82"; there is no such cell. Write a grid (small, full' in called.err
    before = bentpipe("validate-model", "--grid", "small")
    assert (before.code, before.out) == (2, "")
    assert "write: bentpipe study linux" in before.err
