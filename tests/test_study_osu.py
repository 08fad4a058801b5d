"""The study of ATM Forum 97-0616: its cells, its figures on a reduced grid, and what it writes.

The whole study takes minutes; these tests run the cells in which the source's number must hold, and
a few over GEO for the rest.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import Program
from test_plots_report import assert_self_contained

from bentpipe import Plan
from bentpipe.simulation import Threads
from bentpipe.simulation.run import Job, Outcome
from bentpipe.studies import STUDIES
from bentpipe.studies.base import work
from bentpipe.studies.base.comparison import Agreement, Measurement, Row, difference
from bentpipe.studies.base.inputs import Provenance, read_rows
from bentpipe.studies.base.work import Measured, Work, largest_goodput_bps
from bentpipe.studies.osu import cells, study
from bentpipe.studies.osu.cells import (
    BASE,
    DISCIPLINES,
    ROUTES,
    VARIANTS,
    Cell,
    Variant,
)
from bentpipe.studies.osu.study import EFFICIENCY, FAIRNESS, RISE, OsuOutcome
from bentpipe.units import parse_size

pytestmark = pytest.mark.system

RATE_BPS = 155_520_000
GEO = tuple(
    Cell("GEO single hop", sources, k, discipline)
    for sources in (5, 15)
    for k in (0, 1, 3)
    for discipline in DISCIPLINES
)
EACH_ACK = next(each for each in VARIANTS if each.name == "an ACK for each segment")

BY_BYTES = next(each for each in VARIANTS if each.tcp == {"avoidance_counting": "bytes"})


@pytest.fixture(scope="module")
def short() -> OsuOutcome:
    """Two runs of a few cells over GEO, on one thread, with all variants."""
    return study.run(Work("osu", runs=2, seed=7, executor=Threads(1)), grid=GEO)


def plan_of(cell: Cell, seed: int = 1, variant: Variant = BASE) -> Plan:
    (job,) = replace(cell, variant_name=variant.name).jobs([seed])
    return job.plan


def mean(each: Row | Measurement, figure: str = EFFICIENCY) -> float:
    """Return the mean of a measured figure, or the simulated mean of a row."""
    value = each[figure].mean if isinstance(each, Measurement) else each.simulated.mean
    assert value is not None
    return value


# --- the source and the cells -------------------------------------------------------------------


def test_the_cells_are_those_of_the_source() -> None:
    """12 scenarios and numbers of sources, 8 buffers, 2 disciplines; 100 ms is from its figure."""
    assert len(set(cells.cells())) == len(cells.cells()) == 12 * 8 * 2
    routes = {
        (name.split(",")[0], route.one_way_ms): route.sources for name, route in ROUTES.items()
    }
    drawn = routes.pop(("LEO multiple hop", 100))
    published = read_rows("osu", "published.csv")
    assert routes == {
        (row["scenario"], int(row["satellite_one_way_ms"])): tuple(
            int(sources) for sources in row["sources"].split(";")
        )
        for row in published
    }
    assert drawn == routes["LEO multiple hop", 50]


def test_what_the_source_says_in_text() -> None:
    claims = study.read_claims()
    bounds = {name: (each.min_value, each.from_buffer_rtt) for name, each in claims.items()}
    assert bounds == {EFFICIENCY: (98, 0.5), RISE: (0, 0), FAIRNESS: (study.MIN_FAIRNESS, 1 / 8)}
    assert claims[FAIRNESS].from_buffer_rtt == 2.0**-study.SMALLEST_FAIR_BUFFER_K
    # The bounds are those of the texts.
    assert "efficiency >= 98 %" in claims[EFFICIENCY].published
    assert f"{study.NOISE.value:g} points" in claims[RISE].claim


def test_a_round_trip_over_geo_is_209072_cells() -> None:
    """2 x (275 + 5 + 5) ms x 155.52 Mbit/s / (8 x 53): 209,071.7."""
    assert ROUTES["GEO single hop"].rtt_ms == 570
    round_trip_cells = 0.570 * RATE_BPS / 424
    assert round_trip_cells == pytest.approx(209_071.7, abs=0.1)
    (outcome,) = jobs_of([Cell("GEO single hop", 5, 0)], runs=1)
    assert limit_of(outcome) == 209_072 * 53
    (outcome,) = jobs_of([Cell("LEO single hop", 15, 6)], runs=1)
    assert limit_of(outcome) == round(0.030 * RATE_BPS / 424 / 64) * 53 == 172 * 53


def limit_of(job: Job) -> int:
    limit = job.plan.data["directions"][0]["queue"]["limit"]
    assert limit["unit"] == "link_bytes"
    return int(limit["value"])


def jobs_of(
    grid: Sequence[Cell], *, runs: int, variants: Sequence[Variant] = (), seed: int = 1
) -> list[Job]:
    """Return what the study would run."""
    seen: list[Job] = []

    def collect(jobs: Sequence[Job], *_: object, **__: object) -> list[Outcome]:
        seen.extend(jobs)
        return []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(work, "run_jobs", collect)
        study.run(Work("osu", runs=runs, seed=seed), grid=grid, variants=variants)
    return seen


@pytest.mark.parametrize(("mss_bytes", "atm_cells"), [(9180, 193), (1024, 23)])
def test_the_largest_goodput_is_what_full_segments_leave(mss_bytes: int, atm_cells: int) -> None:
    """40 bytes of TCP/IP, 16 of LLC/SNAP and trailer, cells of 48 in 53: 89.74 and 84.00 %."""
    assert -(-(mss_bytes + 56) // 48) == atm_cells
    name = "GEO single hop" if mss_bytes == 9180 else "LEO single hop"
    plan = plan_of(Cell(name, 15, 1), seed=1).data
    share = largest_goodput_bps(plan, plan["flows"][0]) / RATE_BPS
    assert share == pytest.approx(mss_bytes / (53 * atm_cells))
    assert share == pytest.approx({9180: 0.8974, 1024: 0.8400}[mss_bytes], abs=5e-5)


@pytest.mark.thorough
def test_one_configuration_for_all_cells() -> None:
    """Plans differ in delay, buffer, discipline, segment size and sources; in nothing else."""
    seen = set()
    for job in jobs_of(cells.cells(), runs=1):
        plan = json.loads(job.plan.text)
        queue = plan["directions"][0].pop("queue")
        assert queue["discipline"] in DISCIPLINES
        assert queue.get("threshold", 0.9) == 0.9
        assert queue.get("load_ratio", 0.8) == 0.8
        for way in plan["directions"]:
            way.pop("delay_ns")
        for flow in plan.pop("flows"):
            for host in ("sender", "receiver"):
                flow["workload"][host].pop("mss_bytes")
            assert 0 <= flow.pop("start_ns") < 10**9
            flow.pop("name")
            plan["flow"] = flow
        seen.add(json.dumps(plan, sort_keys=True))
    assert len(seen) == 1


def test_the_scenario_file_is_a_cell() -> None:
    """Written out is GEO with half a round trip of buffer."""
    written = Plan.resolve(Path(study.__file__).parent / "scenario.yaml").data
    made = plan_of(Cell("GEO single hop", 15, 1), seed=1).data
    assert written["directions"] == made["directions"]
    assert written["flows"][0]["workload"] == made["flows"][0]["workload"]


def test_windows_never_limit() -> None:
    """At most a round trip and the largest buffer are under way, all of it of one source."""
    data = Cell("GEO single hop", 5, -1).scenario().to_dict()
    max_bytes = 3 * 0.570 * RATE_BPS / 8
    for source in data["traffic"]:
        for buffer in ("send_buffer", "receive_buffer"):
            assert parse_size(source["tcp"][buffer]) > 2 * max_bytes


def test_runs_differ_in_their_starts_and_variants_in_one_thing_more() -> None:
    cell = Cell("GEO single hop", 15, 3, "drop_tail")
    jobs = jobs_of([cell], runs=3, seed=4)
    assert [job.seed for job in jobs] == [4, 5, 6]
    assert [job.plan.data for job in jobs] == [plan_of(cell, seed).data for seed in (4, 5, 6)]
    varied = replace(cell, discipline="selective_drop")
    jobs = jobs_of([varied], runs=1, variants=VARIANTS, seed=4)
    plans = [plan_of(varied, 4, each).text for each in (BASE, *VARIANTS)]
    assert sorted(job.plan.text for job in jobs) == sorted(plans)
    assert len(set(plans)) == 1 + len(VARIANTS)


def test_sources_start_at_moments_drawn_from_the_seed() -> None:
    jobs = Cell("GEO single hop", 50, 1).jobs(range(100))
    runs = [[flow["start_ns"] for flow in job.plan.data["flows"]] for job in jobs]
    assert runs[3] == [
        flow["start_ns"] for flow in plan_of(Cell("GEO single hop", 50, 1), 3).data["flows"]
    ]
    assert runs[3] != runs[4]
    starts = [start for run in runs for start in run]
    assert all(0 <= start < 10**9 for start in starts)
    # The mean of 5,000 even draws has a deviation of 1 s / sqrt(12 x 5000) = 4 ms.
    assert sum(starts) / len(starts) == pytest.approx(0.5e9, abs=0.016e9)


def test_long_runs_come_first() -> None:
    grid = [Cell("GEO single hop", 5, 1), Cell("LEO single hop", 100, 1)]
    sources = [len(job.plan.data["flows"]) for job in jobs_of(grid, runs=2)]
    assert sources == [100, 100, 5, 5]


def test_the_model_reads_no_published_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """With another claim in the source the measured figures are the same."""
    grid = [Cell("GEO single hop", 5, 1)]
    honest = study.run(Work("osu", runs=1), grid=grid, variants=())
    claims = study.read_claims()
    claims[EFFICIENCY] = replace(claims[EFFICIENCY], min_value=100.5, from_buffer_rtt=0.1)
    monkeypatch.setattr(study, "read_claims", lambda: claims)
    bent = study.run(Work("osu", runs=1), grid=grid, variants=())
    assert bent.measured == honest.measured
    assert [each.main.rows[0].agreement for each in (honest, bent)] == [
        Agreement.WITHIN_TOLERANCE,
        Agreement.OUTSIDE,
    ]


@pytest.mark.thorough
def test_the_claim_on_predicted_cells_holds_with_each_calibrated_input() -> None:
    """Growth by bytes, and efficiency over the whole run; five sources over GEO need both."""
    half = [each for each in cells.cells() if (each.k, each.discipline) == (1, "selective_drop")]
    grid = [each for each in half if each.provenance is Provenance.PREDICTED]
    assert [each.sources for each in grid] == [15, 50, 100, 50, 50]
    outcome = study.run(Work("osu", runs=1), grid=grid, variants=[BY_BYTES])
    assert all(mean(each, "efficiency_whole_run") >= 98 for each in outcome.measured.values())
    assert outcome.comparisons["sensitivity"].rows[1].to_json()["efficiency_min"] >= 98
    other = study.run(Work("osu", runs=1), grid=[Cell("GEO single hop", 5, 1)], variants=[BY_BYTES])
    (row,) = other.main.rows
    assert row.provenance is Provenance.CALIBRATED
    assert row.to_json()["efficiency_whole_run"] < 98
    assert other.comparisons["sensitivity"].rows[1].to_json()["efficiency_min"] < 98


# --- the figures --------------------------------------------------------------------------------


@pytest.mark.thorough
def test_half_a_round_trip_of_buffer_is_enough_everywhere() -> None:
    """The source's number: 98 % for every scenario and number of sources, here in two runs."""
    grid = [cell for cell in cells.cells() if (cell.k, cell.discipline) == (1, "selective_drop")]
    outcome = study.run(Work("osu", runs=2), grid=grid, variants=())
    assert len(outcome.main.rows) == 12
    for row in outcome.main.rows:
        assert row.agreement is Agreement.WITHIN_TOLERANCE
        # Above 100 % only by what waited behind a hole at the end of the warm-up.
        assert 98 <= mean(row) < 101
    for cell, each in outcome.measured.items():
        assert 1 / cell.sources < mean(each, FAIRNESS) <= 1


def test_the_paper_s_lines() -> None:
    """By hand: windows from 0.725 to 1.45 round trips idle 0.275^2 / 2 of 0.826: 4.6 %."""
    assert study.halving(1)[0] == study.efficiency_if_halving(0.45, 1.0)
    idle = (0.275**2 / 2) / (0.275 + (1.45**2 - 1) / 2)
    assert study.efficiency_if_halving(0.45, 1.0) == pytest.approx(100 * (1 - idle))
    # A quarter less than 1.45 still fills the link; so does half of two round trips.
    assert study.efficiency_if_halving(0.45, 0.5) == 100
    assert study.efficiency_if_halving(1.0, 1.0) == 100
    # Without a buffer windows run evenly from 1/2 to 1, or from 3/4.
    assert study.efficiency_if_halving(0.0, 1.0) == pytest.approx(75)
    assert study.efficiency_if_halving(0.0, 0.5) == pytest.approx(87.5)


@pytest.mark.thorough
def test_fifteen_sources_over_leo_keep_to_the_paper_s_lines() -> None:
    """1/8 round trip: 95.2 % when every second source halves, 82.5 % when all do.

    With delayed ACKs and growth for each ACK a source adds a segment every second round trip, with
    an ACK for each segment it adds one in each: so many are lost.
    """
    outcome = study.run(
        Work("osu", runs=2), grid=[Cell("LEO single hop", 15, 3)], variants=(EACH_ACK,)
    )
    (described,) = outcome.measured.values()
    _, changed = outcome.comparisons["sensitivity"].rows
    assert mean(described) == pytest.approx(study.halving(3)[1], abs=1.5)
    # The variant of the study grows for each ACK as well: a segment in each round trip.
    eighth = changed.to_json()["efficiency_at_eighth_rtt"]
    assert eighth == pytest.approx(study.halving(3)[0], abs=2.5)


@pytest.mark.usefixtures("undrawn")
def test_a_row_outside_stays_named() -> None:
    """Five sources over 220 ms with two round trips of buffer: hardly two losses a source."""
    outcome = study.run(Work("osu"), grid=[Cell("LEO multiple hop, 100 ms", 5, -1)], variants=())
    (row,) = outcome.comparisons[FAIRNESS].outside
    assert "loss recoveries a source" in row.reason
    (cell,) = outcome.to_json()["cells"]
    assert 0.8 < cell["fairness_low"] < cell["fairness"] < cell["fairness_high"] < 0.95
    assert cell["recoveries_per_source"] < 3
    assert row.reason in outcome.report()


def test_slow_start_is_in_the_whole_run_and_not_in_the_figure(short: OsuOutcome) -> None:
    """Five windows of a segment grow by half each 570 ms to the 1,083 segments of a round trip.

    That takes ln(1083 / 5) / ln(1.5) = 13.3 round trips, in which as much is sent as in two with a
    busy link: 6.4 s are missing, and some 1.5 s for start, handshake, first delayed ACK and the
    delay of the first segment.
    """
    for cell, each in short.measured.items():
        if (cell.sources, cell.k) == (5, 0):
            assert mean(each) == pytest.approx(100, abs=0.5)
            assert 6 < mean(each) - mean(each, "efficiency_whole_run") < 9


def test_json_has_every_cell_with_its_runs(short: OsuOutcome) -> None:
    result = json.loads(json.dumps(short.to_json(), allow_nan=False))
    assert result["study"] == "osu"
    assert len(result["cells"]) == len(GEO)
    for cell, data in zip(GEO, result["cells"], strict=True):
        assert (data["scenario"], data["sources"], data["k"], data["discipline"]) == (
            cell.route_name,
            cell.sources,
            cell.k,
            cell.discipline,
        )
        assert (data["one_way_ms"], data["rtt_ms"], data["mss_bytes"]) == (275, 570, 9180)
        assert data["buffer_cells"] == round(209_071.698 * 2.0**-cell.k)
        assert data["simulated_runs"] == 2
        assert data["simulated_low"] <= data["simulated"] <= data["simulated_high"]
        assert 0 < data["efficiency_whole_run"] <= 100
        is_claimed = cell.k <= 1 and cell.discipline == "selective_drop"
        assert data["published"] == (98 if is_claimed else None)
    # Selective drop alone: k = 0 and 1 of two curves; one pair of neighbours each; all three.
    kinds = (result["summary"], result[RISE]["summary"], result[FAIRNESS]["summary"])
    assert [kind["by_provenance"]["calibrated"]["rows"] for kind in kinds] == [4, 2, 6]
    variants = result["sensitivity"]["cells"]
    assert [each["changed"] for each in variants] == ["nothing", *(each.name for each in VARIANTS)]
    assert all(each["simulated_runs"] == 2 for each in variants)


# --- the comparison, on cells made by hand --------------------------------------------------------

Made = tuple[Cell, Measurement]


def made(k: int, *efficiencies: float, fairness: float = 0.99, sources: int = 5) -> Made:
    return Cell("GEO single hop", sources, k), Measurement(
        {
            seed: {
                "efficiency": efficiency,
                "efficiency_whole_run": efficiency - 5,
                "fairness": fairness,
                "fairness_after_warm_up": fairness,
                "recoveries_per_source": 2.5,
                "timeouts_per_source": 0.0,
            }
            for seed, efficiency in enumerate(efficiencies)
        }
    )


def rows_of(name: str, *measured: Made) -> dict[int, Row]:
    """Return the rows of a comparison by k."""
    compared = study.compare(Measured(measured), study.read_claims())
    return {int(row.labels["k"]): row for row in compared[name].rows}


def test_a_cell_below_the_claim_is_outside_with_its_reason() -> None:
    rows = rows_of(EFFICIENCY, made(1, 97.9), made(0, 98.0), made(2, 50.0), made(-1, 97.0, 98.5))
    assert {k: row.agreement for k, row in rows.items()} == {
        1: Agreement.OUTSIDE,
        0: Agreement.WITHIN_TOLERANCE,
        # No claim with a quarter of a round trip.
        2: None,
        -1: Agreement.WITHIN_INTERVAL,
    }
    assert "halve at once leave 95.42 %" in rows[1].reason


def test_more_than_noise_lost_with_twice_the_buffer_is_outside() -> None:
    curve = (made(4, 80.6, 80.6), made(3, 80.0, 80.0), made(2, 79.6, 79.6), made(6, 99.0, 99.0))
    rows = rows_of(RISE, *curve, made(2, 1.0, 1.0, sources=15))
    # Not from k = 6 to 4, and not from another curve.
    assert {k: row.agreement for k, row in rows.items()} == {
        3: Agreement.OUTSIDE,
        2: Agreement.WITHIN_TOLERANCE,
    }
    assert mean(rows[3]) == pytest.approx(-0.6)
    assert "The efficiency is 80.00 \u00b10.00 %, and 80.60 \u00b10.00 %" in rows[3].reason


def test_a_gain_is_of_runs_with_the_same_seed() -> None:
    """Given a run missing with half of the buffer, expect the gain of the two other seeds."""
    (_, large), (_, small) = made(3, 10.0, 20.0, 30.0), made(4, 11.0, 22.0, 0.0)
    cut = replace(small, runs={seed: small.runs[seed] for seed in (0, 1)})
    gains = difference(cut.by_seed(EFFICIENCY), large.by_seed(EFFICIENCY))
    assert gains.values == (-1.0, -2.0)
    assert cells.mean_over((large, cut), EFFICIENCY).values == (10.5, 21.0)
    assert cells.lowest((large, cut), EFFICIENCY) == 16.5


def test_unfair_cells_count_down_to_an_eighth_of_a_round_trip() -> None:
    rows = rows_of(FAIRNESS, made(3, 90.0, fairness=0.949), made(4, 90.0, fairness=0.5))
    assert {k: row.agreement for k, row in rows.items()} == {3: Agreement.OUTSIDE}
    assert "2.5 loss recoveries a source" in rows[3].reason


def test_what_was_not_simulated_agrees_with_nothing() -> None:
    for name in (EFFICIENCY, FAIRNESS):
        assert rows_of(name, made(1))[1].agreement is None


# --- what it writes -----------------------------------------------------------------------------


def test_the_report_is_self_contained_and_has_the_numbers(short: OsuOutcome) -> None:
    text = short.report()
    page = assert_self_contained(text)
    assert page.tags.count("svg") == 3
    for each in short.measured.values():
        assert f"{mean(each):.2f}" in text
    for claim in short.claims.values():
        assert claim.published.split(" ")[0] in text
    for words in ("quick look", "every second", "Not stated in the source", "Sensitivity analysis"):
        assert words in text


def test_the_command_prints_tables_and_verdicts(
    bentpipe: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cells, "cells", lambda: GEO)
    called = bentpipe("study", "osu", "--seeds", "1")
    assert called.code == 0
    # Two tables, a line for each curve.
    assert sum(line.startswith("GEO single hop ") for line in called.out.splitlines()) == 2 * 4
    assert "Efficiency of at least 98 %" in called.out
    assert STUDIES["osu"].name == "osu"
