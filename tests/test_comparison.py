"""Settings compared: intervals that cover, pairs by seed, effect sizes, words and reports."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import SMALL, Program
from matplotlib.figure import Figure

from bentpipe import Result, compare, simulate, sweep
from bentpipe.comparison.differences import (
    Array,
    Estimate,
    paired_estimate,
    unpaired_estimate,
)
from bentpipe.errors import InvalidRunError, UsageError
from bentpipe.report.comparison import (
    comparison_notes,
    comparison_report,
    comparison_tables,
    difference_views,
    setting_views,
    write_comparison,
)
from bentpipe.results.confidence import bootstrap_interval
from bentpipe.results.views import View, text_table

Draw = Callable[[np.random.Generator, int], Array]
# As runs are distributed: goodput with random losses, goodput just below the link rate (skewed),
# completion times (a long tail), and runs of which a third has a timeout.
SHAPES: dict[str, Draw] = {
    "normal": lambda rng, size: rng.normal(5, 0.5, size),
    "below a rate": lambda rng, size: 10 * rng.beta(8, 1, size),
    "long tail": lambda rng, size: rng.lognormal(0, 0.5, size),
    "timeouts": lambda rng, size: np.where(
        rng.random(size) < 0.3, rng.normal(2, 0.2, size), rng.normal(5, 0.1, size)
    ),
}
LOSSY = copy.deepcopy(SMALL)
LOSSY["packet_events"] = False
LOSSY["sample_interval"] = None
LOSSY["link"]["forward"]["bit_error_rate"] = 2e-6


def with_bbr(scenario: dict[str, Any]) -> dict[str, Any]:
    changed = copy.deepcopy(scenario)
    changed["traffic"][0]["tcp"] = {"congestion_control": "bbr"}
    return changed


# --- intervals ----------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.system
@pytest.mark.parametrize("estimate", [paired_estimate, unpaired_estimate])
@pytest.mark.parametrize("shape", SHAPES)
def test_intervals_cover_zero_where_nothing_differs(
    shape: str, estimate: Callable[[Array, Array], Estimate]
) -> None:
    """Given 1,000 comparisons of 30 runs with 30 of the same distribution, expect 93 to 97 %."""
    seed = 7
    rng = np.random.default_rng(seed)
    covered = 0
    for _ in range(1000):
        found = estimate(SHAPES[shape](rng, 30), SHAPES[shape](rng, 30))
        assert found.interval is not None
        covered += found.interval.contains(0)
    print(f"{shape}, seed {seed}: {covered} of 1,000 intervals contain zero")
    assert 930 <= covered <= 970


@pytest.mark.system
def test_intervals_cover_the_mean_of_skewed_differences() -> None:
    """Given 1,000 times 30 exponential differences of mean 0, expect more than Student's 91 %."""
    rng = np.random.default_rng(7)
    covered = 0
    for _ in range(1000):
        found = bootstrap_interval(rng.exponential(size=30) - 1)
        assert found is not None
        covered += found.contains(0)
    assert 930 <= covered <= 970


def test_values_that_are_nearly_all_equal_have_an_interval() -> None:
    """Given 29 zeros and a one, expect twice Student's interval, although resamples have none."""
    values = np.zeros(30)
    values[0] = 1
    found = bootstrap_interval(values)
    assert found is not None
    # The mean and its standard error are 1/30; t(0.975, 29) = 2.045.
    half = 2 * 2.045 / 30
    assert (found.low, found.high) == pytest.approx((1 / 30 - half, 1 / 30 + half), rel=1e-3)
    equal = bootstrap_interval(np.full(5, 0.1))
    assert equal is not None
    assert equal.low == equal.high == pytest.approx(0.1)
    assert bootstrap_interval(np.arange(4)) is None


def test_effect_sizes_are_those_of_their_definitions() -> None:
    """Given differences 1 to 5, expect d_z = 3 / sqrt(2.5); given two sets, expect Hedges' g."""
    first, second = np.arange(5.0), np.arange(5.0) + np.arange(1, 6)
    assert paired_estimate(first, second).effect == pytest.approx(3 / math.sqrt(2.5))
    found = unpaired_estimate(np.arange(5.0), np.arange(5.0) + 3)
    assert found.effect == pytest.approx(3 / math.sqrt(2.5) * (1 - 3 / 31))


def test_seeds_are_those_of_published_tables() -> None:
    """Given an effect size of 0.5, expect 34 pairs, or 64 runs of each (Cohen 1988, 80 %)."""
    values = np.array([-1.0, 1.0] * 50) / np.std([-1, 1] * 50, ddof=1)
    assert paired_estimate(np.zeros(100), values).seeds_to_show(0.5) == 34
    assert unpaired_estimate(values, values).seeds_to_show(0.5) == 64
    assert paired_estimate(values, values).seeds_to_show(0.5) is None


# --- runs ---------------------------------------------------------------------------------------


def test_scenarios_are_simulated_with_the_same_seeds() -> None:
    """Given losses, expect BBR to be faster than CUBIC, and the call not to depend on it."""
    counts: list[tuple[int, int]] = []
    found = compare(LOSSY, with_bbr(LOSSY), seeds=12, progress=lambda *at: counts.append(at))
    assert counts[-1] == (24, 24)
    assert found.runs == (12, 12)
    by_name = {str(each.metric): each for each in found.differences}
    goodput = by_name["flows.bulk-1.goodput_bps.mean"]
    assert goodput.estimate.paired
    assert goodput.verdict == "difference shown"
    assert goodput.estimate.difference > 0
    assert goodput.estimate.first.runs == 12
    # The values are those of runs with the same seed.
    alone = simulate(with_bbr(LOSSY), seed=3)
    assert goodput.values[1][2] == alone.goodput_bps[0]
    assert by_name["flows.call.goodput_bps.mean"].verdict == "equal in every run"
    assert "directions.forward.utilization.mean" in by_name
    assert "flows.call.loss_percent.mean" not in by_name  # nothing is lost


def test_a_scenario_equals_itself() -> None:
    found = compare(LOSSY, LOSSY, seeds=5)
    assert {each.verdict for each in found.differences} == {"equal in every run"}


def test_the_run_is_the_sample_not_the_flow() -> None:
    """Given three competing downloads and 6 seeds, expect 6 values, and their fairness."""
    shared = copy.deepcopy(LOSSY)
    shared["traffic"] = [
        {"name": "d", "kind": "bulk", "direction": "forward", "size": "300 kB", "count": 3}
    ]
    found = compare(shared, with_bbr(shared), seeds=6)
    by_name = {str(each.metric): each for each in found.differences}
    assert {each.estimate.first.runs for each in found.differences} == {6}
    assert "flows.forward.goodput_bps.jain" in by_name
    assert "flows.d.completion_time_ns.p50" in by_name
    mean = simulate(shared, seed=1).goodput_bps.mean()
    assert by_name["flows.d.goodput_bps.mean"].values[0][0] == pytest.approx(mean)


def test_runs_without_common_seeds_are_not_paired() -> None:
    sweeps = [sweep(LOSSY, seeds=range(first, first + 6)) for first in (1, 4)]
    goodput = compare(*sweeps, metrics=["flows.bulk-1.goodput_bps"]).differences[0]
    # Three seeds are common, which is too few for pairs.
    assert not goodput.estimate.paired
    assert goodput.to_json()["effect_size_name"] == "hedges_g"


def test_sweeps_are_compared_cell_by_cell() -> None:
    vary = {"link.forward.delay": ["10 ms", "100 ms"]}
    first = sweep(LOSSY, vary=vary, seeds=5)
    second = sweep(with_bbr(LOSSY), vary=vary, seeds=5)
    found = compare(first, second, metrics=["flows.bulk-1.goodput_bps"])
    assert [dict(each.cell) for each in found.differences] == [
        {"link.forward.delay": "10 ms"},
        {"link.forward.delay": "100 ms"},
    ]
    assert all(each.estimate.first.runs == 5 for each in found.differences)
    with pytest.raises(
        UsageError, match=r"varies link\.forward\.delay, a sweep \(2\) varies nothing"
    ):
        compare(first, sweep(LOSSY, seeds=5))


def test_cells_have_all_varied_fields_also_of_one_beginning() -> None:
    """Given a field whose name is the beginning of the next one, expect both in the cells."""
    tunnels: dict[str, Any] = {end: {"tunnel": {}} for end in ("hub", "terminal")}
    path = "gateways.hub.tunnel.window"
    vary = {path: [64, 128], f"{path}_max": [512, 1024]}
    swept = sweep({**LOSSY, "gateways": tunnels}, vary=vary)
    found = compare(swept, swept, metrics=["flows.bulk-1.goodput_bps"])
    assert [tuple(each.cell.values()) for each in found.differences] == [
        (64, 512),
        (64, 1024),
        (128, 512),
        (128, 1024),
    ]


def test_transfers_that_do_not_end_are_the_slowest() -> None:
    """Given three downloads of which two end in time, expect the slower of these as the median."""
    short = copy.deepcopy(LOSSY)
    short["duration"] = "1 s"
    short["traffic"] = [
        {"name": "d", "kind": "bulk", "direction": "forward", "size": "300 kB", "count": 3}
    ]
    times = simulate(short, seed=1).flows["completion_time_ns"]
    assert times.null_count() == 1
    found = compare(short, short, seeds=5, metrics=["flows.d.completion_time_ns.p50"])
    assert found.differences[0].values[0][0] == times.max()
    with pytest.raises(UsageError, match="no metric with values in common"):
        compare(short, short, seeds=5, metrics=["flows.d.completion_time_ns.mean"])


@pytest.mark.usefixtures("undrawn")
def test_several_settings_are_a_table_of_metric_by_setting() -> None:
    """Given CUBIC, BBR and a smaller queue, expect means, changes, and differences in brackets."""
    small = copy.deepcopy(LOSSY)
    small["link"]["forward"]["queue"] = {"limit": "20 packets"}
    metrics = ["flows.bulk-1.goodput_bps", "flows.call.goodput_bps"]
    found = compare(LOSSY, with_bbr(LOSSY), small, seeds=5, metrics=metrics)
    goodput, call = found.metrics
    assert [str(each.metric) for each in found.metrics] == metrics
    for label, scenario in zip(found.labels, (LOSSY, with_bbr(LOSSY), small), strict=True):
        rates = [simulate(scenario, seed=seed).goodput_bps[0] for seed in range(1, 6)]
        summary = goodput.settings[label]
        assert summary is not None
        assert summary.runs == 5
        assert summary.mean == pytest.approx(np.mean(rates))
    assert found.changed == {
        "traffic.0.tcp.congestion_control": (None, "bbr", None),
        "link.forward.queue.limit": (None, None, "20 packets"),
    }
    data = json.loads(json.dumps(found.to_json()))
    assert list(data["metrics"][0]["settings"]) == list(found.labels)
    assert data["changed_settings"]["link.forward.queue.limit"]["small (3)"] == "20 packets"
    changed, by_setting = setting_views(found)
    assert [column.title for column in by_setting.columns] == ["metric", "A", "B", "C"]
    # The call is the same with each; a difference that is shown is in brackets.
    shown = {each.setting: each for each in found.differences if each.metric == goodput.metric}
    for label, cell in zip(found.labels[1:], by_setting.rows[0][2:], strict=True):
        assert ("%" in cell.text) is (shown[label].verdict == "difference shown")
    assert not any("%" in cell.text for cell in by_setting.rows[1][1:])
    assert call.settings.keys() == set(found.labels)
    tables = [part for part in comparison_tables(found) if isinstance(part, View)]
    assert tables[:2] == [changed, by_setting]
    assert "20 packets" in text_table(changed, 80)
    page = comparison_report(found)
    assert page.index(changed.title) < page.index("Each metric by setting")


def test_two_settings_have_what_is_changed_and_no_further_table() -> None:
    found = compare(LOSSY, with_bbr(LOSSY), seeds=5, metrics=["flows.bulk-1.goodput_bps"])
    (changed,) = setting_views(found)
    assert changed.rows == [["traffic.0.tcp.congestion_control", None, "bbr"]]
    assert setting_views(compare(LOSSY, LOSSY, seeds=5)) == []


def test_the_same_source_twice_gets_two_labels() -> None:
    assert compare(LOSSY, LOSSY, LOSSY, seeds=5).labels == ("small", "small (2)", "small (3)")


def test_one_sweep_is_split_by_a_field() -> None:
    name = "traffic.0.tcp.congestion_control"
    vary = {name: ["cubic", "bbr"], "link.forward.delay": ["10 ms", "100 ms"]}
    one = sweep(LOSSY, vary=vary, seeds=5)
    found = compare(one, by=name, metrics=["flows.bulk-1.goodput_bps"])
    assert found.labels == (f"{name}=cubic", f"{name}=bbr")
    assert len(found.differences) == 2
    with pytest.raises(UsageError, match=f'did you mean "{name}"'):
        compare(one, by="traffic.0.tcp.congestion")


def test_the_folder_of_a_sweep_is_compared_as_the_sweep(tmp_path: Path, bentpipe: Program) -> None:
    """Given a sweep in memory and in a folder, expect the same differences."""
    name = "traffic.0.tcp.congestion_control"
    (tmp_path / "lossy.json").write_text(json.dumps(LOSSY))
    swept = bentpipe(
        *("sweep", tmp_path / "lossy.json", "--vary", f"{name}=cubic,bbr"),
        *("--seeds", "5", "--out", tmp_path / "out"),
    )
    assert swept.code == 0
    metrics = ["flows.bulk-1.goodput_bps"]
    found = compare(tmp_path / "out", by=name, metrics=metrics)
    memory = sweep(LOSSY, vary={name: ["cubic", "bbr"]}, seeds=5)
    assert found.to_json() == compare(memory, by=name, metrics=metrics).to_json()


def test_transfers_that_did_not_end_are_left_out_and_counted() -> None:
    """Given a duration that some runs exceed, expect the pairs without a time to be counted."""
    short = copy.deepcopy(LOSSY)
    short["duration"] = "3 s"
    metrics = ["flows.bulk-1.completion_time_ns", "flows.bulk-1.goodput_bps"]
    time, goodput = compare(short, with_bbr(short), seeds=20, metrics=metrics).differences
    assert goodput.missing == 0
    assert 0 < time.missing < 20
    assert time.estimate.first.runs + time.missing == 20


def test_transfers_that_never_end_are_counted() -> None:
    """Given a transfer that ends in no run of one setting, expect a note instead of silence."""
    endless = copy.deepcopy(LOSSY)
    endless["traffic"][0]["size"] = "1 GB"
    endless["duration"] = "2 s"
    found = compare(LOSSY, endless, seeds=2)
    assert not any(each.metric.column == "completion_time_ns" for each in found.differences)
    assert found.unfinished == {"small (2)": {"bulk-1": (2, 2)}}
    (note,) = (text for text in comparison_notes(found) if "completion time" in text)
    assert "bulk-1: 2 of 2 in B. A longer duration" in note
    counts = {"small (2)": {"bulk-1": {"unfinished": 2, "transfers": 2}}}
    assert found.to_json()["unfinished_transfers"] == counts
    goodput = ["flows.bulk-1.goodput_bps"]
    assert compare(LOSSY, endless, seeds=2, metrics=goodput).unfinished == {}


def test_flows_without_a_counterpart_are_named() -> None:
    """Given other names of entries, expect a note with the remedy instead of silence."""
    renamed = copy.deepcopy(LOSSY)
    renamed["traffic"][0]["name"] = "file"
    found = compare(LOSSY, renamed, LOSSY, seeds=5)
    assert found.unmatched == {"small (2)": (["bulk-1"], ["file"])}
    (note,) = (text for text in comparison_notes(found) if "counterpart" in text)
    assert "bulk-1 has no counterpart in B, file has no counterpart in A" in note
    assert "the same name" in note
    entries = {"baseline_only": ["bulk-1"], "setting_only": ["file"]}
    assert found.to_json()["unmatched_entries"] == {"small (2)": entries}
    assert compare(LOSSY, renamed, seeds=1, metrics=["flows.call.goodput_bps"]).unmatched == {}


# --- words --------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    paths = tmp_path / "cubic.yaml", tmp_path / "bbr.yaml"
    for path, scenario in zip(paths, (LOSSY, with_bbr(LOSSY)), strict=True):
        path.write_text(json.dumps(scenario))
    return paths


def test_the_tables_fit_in_80_columns(
    bentpipe: Program, files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(files[0].parent)
    called = bentpipe("compare", "cubic.yaml", "bbr.yaml", "--seeds", 12)
    assert called.code == 0, called.err
    lines = called.out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[:2] == ["A: cubic.yaml, 12 runs", "B: bbr.yaml, 12 runs"]
    text = " ".join(called.out.split())
    assert "Difference shown: the 95 % interval excludes zero" in text
    assert "call: goodput" in text.partition("Equal in every run: ")[2].partition(".")[0]
    assert "one in 20 misses the true difference" in text


def test_no_difference_is_stated_with_the_seeds_that_would_show_one(
    bentpipe: Program, files: tuple[Path, Path]
) -> None:
    """Given other seeds of the same scenario, expect no difference, and a number of seeds."""
    other = {**LOSSY, "name": "other", "link": copy.deepcopy(LOSSY["link"])}
    other["link"]["forward"]["delay"] = "20.001 ms"
    files[1].write_text(json.dumps(other))
    metric = "flows.bulk-1.goodput_bps"
    options = ("--seeds", 8, "--metric", metric, "--difference", "0.5%")
    called = bentpipe("compare", *files, *options)
    assert "No difference shown" in called.out
    assert "Seeds that would show a difference of 0.5 % of A" in called.out
    (found,) = json.loads(bentpipe("compare", *files, *options, "--json").out)["differences"]
    assert found["verdict"] == "no difference shown"
    assert found["low"] < 0 < found["high"]
    assert found["more_seeds"] >= 0


def test_single_runs_have_no_interval(
    bentpipe: Program, small_result: Result, tmp_path: Path
) -> None:
    small_result.save(tmp_path / "a")
    simulate(with_bbr(SMALL)).save(tmp_path / "b")
    called = bentpipe("compare", tmp_path / "a", tmp_path / "b")
    assert called.code == 0
    text = " ".join(called.out.split())
    assert "No interval: 1 pair, and an interval takes 5" in text
    assert "compare scenarios, which are simulated with 30 seeds each" in text


@pytest.mark.system
def test_the_report_has_distributions_and_fetches_nothing(
    bentpipe: Program, files: tuple[Path, Path], tmp_path: Path
) -> None:
    report = tmp_path / "compared.html"
    metric = ("--metric", "flows.bulk-1.goodput_bps")
    called = bentpipe("compare", *files, "--seeds", 6, *metric, "--report", report)
    assert called.code == 0
    assert called.err == f"bentpipe: wrote {report}\n"
    page = report.read_text()
    assert "bulk-1: goodput [Mbit/s]" in page
    assert "pair by pair" in page
    assert not any(found in page for found in ("http://", "https://", "<script", "<link"))


@pytest.mark.usefixtures("undrawn")
def test_a_page_that_is_replaced_takes_its_figures_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given another comparison of the same name, expect its figures alone, and others' files."""
    figures: list[Figure] = []

    def png_file(figure: Figure) -> bytes:
        figures.append(figure)
        return b""

    monkeypatch.setattr("bentpipe.report.html.png_file", png_file)
    lossless = copy.deepcopy(LOSSY)
    del lossless["link"]["forward"]["bit_error_rate"]
    page, charts = tmp_path / "page.html", tmp_path / "page-charts"
    metrics = ["flows.bulk-1.goodput_bps", "directions.forward.utilization"]
    write_comparison(compare(LOSSY, with_bbr(LOSSY), seeds=5, metrics=metrics), page)
    kinds = ("csv", "png", "svg")
    names = {f"{metric}.{kind}" for metric in metrics for kind in kinds}
    assert {path.name for path in charts.iterdir()} == names
    # The lines are named by what differs.
    left, right = figures[0].axes
    legend = left.get_legend()
    assert legend is not None
    assert legend.get_title().get_text() == "traffic.0.tcp.congestion_control"
    assert [text.get_text() for text in legend.get_texts()] == ["A: default", "B: bbr"]
    assert "95 % interval of the mean" in right.get_legend_handles_labels()[1]
    (charts / "own.png").write_bytes(b"")
    found = compare(LOSSY, lossless, with_bbr(LOSSY), seeds=5, metrics=metrics[:1])
    write_comparison(found, page)
    names = {f"{metrics[0]}-{setting}.{kind}" for setting in "BC" for kind in kinds}
    assert {path.name for path in charts.iterdir()} == {"own.png"} | names


def test_a_difference_of_percentages_is_in_points() -> None:
    """Given no loss and some loss, expect no percentage of the former, but points."""
    lossless = copy.deepcopy(LOSSY)
    del lossless["link"]["forward"]["bit_error_rate"]
    metrics = ["directions.forward.loss_percent"]
    (view, *_) = difference_views(compare(lossless, LOSSY, seeds=5, metrics=metrics))
    difference = view.rows[0][3].text
    assert difference.endswith(" points")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "missing argument"),
        (("cubic.yaml",), "1 sources; compare takes two or more settings"),
        (("cubic.yaml", "none.yaml"), "none.yaml"),
        (("cubic.yaml", "bbr.yaml", "--metric", "flows.goodput"), 'did you mean "goodput_bps"'),
        (("cubic.yaml", "bbr.yaml", "--metric", "flows.x.goodput_bps"), 'name: read "x"'),
        (("cubic.yaml", "bbr.yaml", "--difference", "five"), "expected a percentage"),
        (("cubic.yaml", "bbr.yaml", "--report", "no/where.html"), "there is no folder no"),
    ],
)
def test_bad_input_is_one_message(
    arguments: tuple[str, ...],
    message: str,
    bentpipe: Program,
    files: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(files[0].parent)
    called = bentpipe("compare", *arguments, "--seeds", 5)
    assert called.code == 2
    assert message in called.err.lower() or message in called.err


def test_incomplete_runs_are_refused(small_result: Result) -> None:
    cut = Result({**small_result.manifest, "state": "interrupted"}, small_result.tables)
    with pytest.raises(InvalidRunError, match="seed 1 is not complete"):
        compare(small_result, cut)


# --- folders of sweeps --------------------------------------------------------------------------


@pytest.mark.system
def test_folders_of_sweeps_are_compared_cell_by_cell(bentpipe: Program, tmp_path: Path) -> None:
    """Given `bentpipe sweep`, expect the differences of the same runs in memory."""
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(json.dumps(LOSSY))
    name, delay = "traffic.0.tcp.congestion_control", "link.forward.delay"
    vary = ("--vary", f"{name}=cubic,bbr", "--vary", f"{delay}=10 ms,100 ms")
    out = tmp_path / "sweep"
    assert bentpipe("sweep", scenario, *vary, "--seeds", 5, "--out", out).code == 0
    called = bentpipe("compare", out, "--by", name, "--json")
    assert called.code == 0, called.err
    found = json.loads(called.out)["differences"]
    memory = sweep(LOSSY, vary={name: ["cubic", "bbr"], delay: ["10 ms", "100 ms"]}, seeds=5)
    expected = json.loads(json.dumps(compare(memory, by=name).to_json()["differences"]))
    assert found == expected
    assert {each["cell"][delay] for each in found} == {"10 ms", "100 ms"}
    # A sweep against itself.
    again = compare(out, out)
    assert {each.verdict for each in again.differences} == {"equal in every run"}


def test_a_difference_that_no_seed_changes_is_exact(
    bentpipe: Program, files: tuple[Path, Path]
) -> None:
    """Given a lossless link with 20 and 30 ms, expect a difference without width, and a note."""
    for path, delay in zip(files, ("20 ms", "30 ms"), strict=True):
        lossless = copy.deepcopy(LOSSY)
        lossless["link"]["forward"] = {"rate": "8 Mbit/s", "delay": delay}
        path.write_text(json.dumps(lossless))
    options = ("--seeds", 6, "--metric", "flows.bulk-1.goodput_bps")
    (found,) = json.loads(bentpipe("compare", *files, *options, "--json").out)["differences"]
    assert found["exact"]
    assert found["low"] == found["high"] == found["difference"] < 0
    assert found["shown"]
    text = bentpipe("compare", *files, *options).out
    assert "The same difference with every seed: bulk-1: goodput." in text
