"""Sweeps in `bentpipe serve`: what a chart of one has, and how one is followed."""

from __future__ import annotations

import copy
import csv
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any, Final

import polars as pl
import pytest
from conftest import SMALL, default_signals
from starlette.testclient import TestClient
from test_dashboard_server import events, serving

import bentpipe
from bentpipe.cli.app import main
from bentpipe.dashboard.app import create_app, progress_data
from bentpipe.dashboard.catalog import Catalog
from bentpipe.errors import UsageError
from bentpipe.report.sweep import (
    axes_of,
    draw_sweep,
    metrics_of,
    sweep_chart,
    sweep_report,
)
from bentpipe.results.confidence import mean_intervals
from bentpipe.results.output import OutputFolder, is_being_written
from bentpipe.sweeps import Sweep
from bentpipe.sweeps.journal import FAILURE, RESULT, Journal, Progress, ProgressReader, Run

DELAYS: Final = ("10ms", "100ms", "250ms")
# More than end while a test looks at them.
MANY_SEEDS: Final = "50000"


def scenario() -> dict[str, Any]:
    found = copy.deepcopy(SMALL) | {"packet_events": False, "duration": "5 s"}
    found["traffic"][0] |= {"name": "web", "size": "50 kB"}
    return found


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a sweep of three varied fields, with three seeds each."""
    root = tmp_path_factory.mktemp("sweeps")
    (root / "s.yaml").write_text(json.dumps(scenario()))
    command = ["sweep", str(root / "s.yaml"), "--seeds", "3", "--keep-runs"]
    command += ["--vary", f"link.forward.delay={','.join(DELAYS)}"]
    command += ["--vary", "traffic.web.tcp.congestion_control=cubic,newreno"]
    command += ["--vary", "link.forward.bit_error_rate=0,1e-5"]
    assert main([*command, "--out", str(root / "done")]) == 0
    return root


@pytest.fixture(scope="module")
def sweep(root: Path) -> Sweep:
    return Sweep.load(root / "done", results=False)


@pytest.fixture
def client(root: Path) -> Iterator[TestClient]:
    with TestClient(create_app(root)) as client:
        yield client


def chart(sweep: Sweep, **query: str) -> dict[str, Any]:
    return sweep_chart(sweep, query)


# --- charts -------------------------------------------------------------------------------------


@pytest.mark.system
def test_a_chart_has_the_means_of_the_runs_with_their_intervals(sweep: Sweep) -> None:
    """Given delay, congestion control and one error rate, expect `mean_intervals` of its runs."""
    data = chart(sweep, metric="flows.goodput_bps", of="web", axis2="1")
    assert (data["x"], data["x_unit"], data["labels"]) == ("link.forward.delay", "ms", None)
    assert [line["name"] for line in data["lines"]] == ["cubic", "newreno"]
    # What one value is taken of is said, also below the chart of the report.
    assert data["fixed"] == ["link.forward.bit_error_rate=1e-05"]
    report = sweep_report(sweep)
    assert "link.forward.delay, at link.forward.bit_error_rate=0.0. Mean of" in report
    own = sweep.flows.filter(
        pl.col("entry") == "web",
        pl.col("link.forward.bit_error_rate") == 1e-5,
        pl.col("traffic.web.tcp.congestion_control") == "newreno",
    )
    expected = mean_intervals(own, "goodput_bps", "link.forward.delay_ns")
    line = data["lines"][1]
    assert line["x"] == [10, 100, 250]
    assert line["runs"] == [3, 3, 3]
    for name, column in (("y", "mean"), ("low", "low"), ("high", "high")):
        assert line[name] == pytest.approx([each / 1e6 for each in expected[column]])
    rows = zip(line["low"], line["y"], line["high"], strict=True)
    assert all(low <= mean <= high for low, mean, high in rows)


def test_names_in_the_horizontal_are_in_the_order_of_the_sweep(sweep: Sweep) -> None:
    data = chart(
        sweep,
        metric="directions.utilization",
        of="forward",
        x="traffic.web.tcp.congestion_control",
        by="link.forward.delay",
    )
    assert data["labels"] == ["cubic", "newreno"]
    assert data["unit"] == "%"
    assert [line["name"] for line in data["lines"]] == list(DELAYS)
    assert data["lines"][0]["x"] == [0, 1]
    assert not data["log"]


def test_the_legend_names_the_field_of_its_lines(sweep: Sweep) -> None:
    axes, points = draw_sweep(chart(sweep, by="traffic.web.tcp.congestion_control"))
    legend = axes.get_legend()
    assert legend is not None
    assert legend.get_title().get_text() == "traffic.web.tcp.congestion_control"
    assert points.startswith("traffic.web.tcp.congestion_control,link.forward.delay [ms],")


def test_a_run_with_a_transfer_that_did_not_end_has_no_point(sweep: Sweep) -> None:
    """Given a run without an end, expect the mean of the others, and one run less."""
    lost = pl.when(pl.col("run") > 0).then(pl.col("completion_time_ns"))
    flows = sweep.flows.with_columns(completion_time_ns=lost)
    before, after = (
        chart(found, metric="flows.completion_time_ns", of="web")["lines"][0]
        for found in (sweep, replace(sweep, flows=flows))
    )
    assert (before["runs"][0], after["runs"][0]) == (3, 2)
    assert after["y"][1:] == before["y"][1:]


def test_one_line_takes_one_value_of_each_other_axis(sweep: Sweep) -> None:
    data = chart(sweep, by="", x="link.forward.bit_error_rate", axis0="2", axis1="0")
    (line,) = data["lines"]
    assert (line["name"], line["x"], line["runs"]) == ("mean", [0, 1e-5], [3, 3])


def test_fields_that_vary_together_are_one_axis() -> None:
    """Given a Latin hypercube's axes, expect neither a line nor a choice for the other field."""
    found = bentpipe.sweep(scenario(), vary={"link.forward.delay": list(DELAYS)}, seeds=2)
    sizes = dict(zip(DELAYS, (1, 2, 3), strict=True))
    frames = {
        name: getattr(found, name).with_columns(
            pl.col("link.forward.delay").replace_strict(sizes).alias("size")
        )
        for name in ("flows", "directions")
    }
    columns = frames["flows"].columns
    order = ["run", "link.forward.delay", "link.forward.delay_ns", "size", *columns[3:-1]]
    axis = {"kind": "zip", "paths": ["link.forward.delay", "size"], "rows": []}
    frames = {
        name: frame.select(*order[:4], pl.exclude(order[:4])) for name, frame in frames.items()
    }
    together = Sweep(
        results=(), interrupted=False, manifest={**found.manifest, "axes": [axis]}, **frames
    )
    (only,) = axes_of(together)
    assert only.rows() == [("10ms", 1), ("100ms", 2), ("250ms", 3)]
    (line,) = chart(together, x="size")["lines"]
    assert (line["name"], line["x"]) == ("mean", [1, 2, 3])


def test_the_first_metric_is_goodput_and_each_has_its_unit(sweep: Sweep) -> None:
    metrics = metrics_of(sweep)
    assert next(iter(metrics.items())) == (
        "flows.goodput_bps",
        "flows: goodput, application bits [bit/s]",
    )
    assert metrics["directions.utilization"] == "directions: utilization, busy time / run [%]"
    assert not {"flows.flow", "flows.name", "directions.direction"} & set(metrics)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"metric": "flows.goodput"}, "metric: read .*goodput_bps"),
        ({"x": "link.forward.rate"}, "x: "),
        ({"by": "link.forward.delay"}, "by: "),
        ({"of": "nothing"}, "of: "),
        ({"axis2": "2"}, "axis2: expected a number below 2"),
        ({"axis2": "-1"}, "axis2: expected a number below 2"),
    ],
)
def test_a_chart_that_is_not_there_is_one_message(
    sweep: Sweep, client: TestClient, query: Mapping[str, str], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        chart(sweep, **query)
    assert client.get("/data/sweep/done", params=dict(query)).status_code == 422


# --- pages --------------------------------------------------------------------------------------


def test_the_page_of_a_sweep_has_choices_and_its_runs(client: TestClient) -> None:
    page = client.get("/result/done").text
    assert "sweep, completed, 36 runs, bentpipe " in page
    assert "flows.goodput_bps" in page
    (kept, *_) = (line for line in page.splitlines() if "/result/done/runs/" in line)
    name = kept.partition("/result/done/runs/")[2].partition('"')[0]
    assert client.get(f"/result/done/runs/{name}").status_code == 200
    assert client.get("/data/sweep/done").json()["lines"]


@pytest.mark.parametrize("x", ["", "traffic.web.tcp.congestion_control"])
def test_the_chart_of_a_sweep_is_a_file_of_each_kind(client: TestClient, x: str) -> None:
    """Given what the page shows, expect its points and its picture."""
    query = {"x": x} if x else {}
    lines = client.get("/data/sweep/done", params=query).json()["lines"]
    files = {
        kind: client.get(f"/export/sweep.{kind}/done", params=query)
        for kind in ("png", "svg", "csv")
    }
    _, *rows = csv.reader(StringIO(files["csv"].text))
    points = [[line["name"], y] for line in lines for y in line["y"]]
    assert [[row[0], float(row[2])] for row in rows] == points
    assert files["png"].content.startswith(b"\x89PNG")
    assert "<svg" in files["svg"].text


def test_two_sweeps_are_compared_with_intervals(tmp_path: Path) -> None:
    """Given six pairs of runs that differ in the delay, expect a difference with its interval."""
    (tmp_path / "s.yaml").write_text(json.dumps(scenario()))
    for name, delay in (("near", "10ms"), ("far", "250ms")):
        command = ["sweep", str(tmp_path / "s.yaml"), "--seeds", "6", "--out", str(tmp_path / name)]
        assert main([*command, "--set", f"link.forward.delay={delay}"]) == 0
    with TestClient(create_app(tmp_path)) as client:
        assert client.get("/").text.count('type="checkbox"') == 2
        page = client.get("/compare?result=near&result=far").text
    assert "Difference shown: the 95 % interval excludes zero" in page
    assert "web: goodput" in page
    assert "data-chart" not in page
    assert str(tmp_path) not in page


def test_a_damaged_or_absent_data_set_is_one_message(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "done", tmp_path / "cut")
    for file in (tmp_path / "cut/flows").rglob("*.parquet"):
        file.write_bytes(b"")
    shutil.copytree(root / "done", tmp_path / "link")
    file = next((tmp_path / "link/flows").rglob("*.parquet"))
    file.unlink()
    file.symlink_to(root / "done/runs.parquet")
    with TestClient(create_app(tmp_path)) as client:
        cut = client.get("/data/sweep/cut")
        assert (cut.status_code, "damaged" in cut.json()["error"]) == (422, True)
        link = client.get("/data/sweep/link").json()["error"]
        assert "is a link to a place outside the served folder" in link
        assert client.get("/data/sweep/nothing").status_code == 404


# --- progress -----------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.system
def test_a_sweep_is_followed_until_it_is_interrupted(root: Path, tmp_path: Path) -> None:
    """Given a sweep in another process, expect it in the list, its progress, and its end."""
    command = [sys.executable, "-m", "bentpipe", "sweep", str(root / "s.yaml")]
    with serving(tmp_path) as server:
        process = subprocess.Popen(
            [*command, "--seeds", MANY_SEEDS, "--out", str(tmp_path / "new")],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            preexec_fn=default_signals,  # noqa: PLW1509 - no threads
        )
        try:
            with server.stream("/events/list") as stream:
                listing = events(stream)
                while b"/result/new" not in server.get("/list").content:
                    next(listing)
            while Catalog(tmp_path).entry("new").kind != "sweep":
                assert process.poll() is None
            assert Catalog(tmp_path).entry("new").state == "running"
            assert b'id="running"' in server.get("/result/new").content
            with server.stream("/events/sweep/new") as stream:
                following = events(stream)
                counts: list[int] = []
                while len(set(counts)) < 3:
                    kind, data = next(following)
                    assert (kind, data["total"], data["failed"]) == ("progress", 50_000, 0)
                    counts.append(data["ended"])
                assert counts == sorted(counts)
                process.send_signal(signal.SIGINT)
                _, err = process.communicate()
                assert process.returncode == 130, err
                assert [kind for kind, _ in following][-1] == "ended"
        finally:
            process.kill()
            process.wait()
        page = server.get("/result/new").content
        assert b"The sweep was interrupted." in page
    reader = ProgressReader(tmp_path / "new")
    found = reader.read()
    assert found is not None
    assert (found.running, found.ended >= counts[-1]) == (False, True)
    # Read again, from where it ended.
    assert reader.read() == found


def test_a_journal_is_counted_to_its_last_complete_record(tmp_path: Path) -> None:
    """Given a journal that is cut at any byte, expect the runs whose records are complete."""
    work = tmp_path / "new/.part/work"
    work.mkdir(parents=True)
    definition = {"points": 2, "seeds": [1, 2], "until_ci": None}
    (work / "sweep.json").write_text(json.dumps({"definition": definition}))
    ends = []
    with Journal(work / "journal") as journal:
        for run, kind in ((Run(0, 1), RESULT), (Run(1, 1), FAILURE), (Run(0, 2), RESULT)):
            journal.append(run, kind, b"data" * run.seed)
            ends.append((work / "journal").stat().st_size)
    whole = (work / "journal").read_bytes()
    growing = ProgressReader(tmp_path / "new")
    for size in range(len(whole) + 1):
        (work / "journal").write_bytes(whole[:size])
        for reader in (growing, ProgressReader(tmp_path / "new")):
            found = reader.read()
            assert found is not None
            assert found.ended == sum(end <= size for end in ends)
    assert found == Progress(ended=3, failed=1, total=4, grows=False, running=False)
    (work / "journal").write_bytes(b"")
    again = growing.read()
    assert again is not None
    assert again.ended == 0
    (work / "sweep.json").unlink()
    assert growing.read() is None


def test_the_rate_of_a_sweep_tells_how_long_it_takes() -> None:
    """Given 100 runs in 10 s and 900 more to do, expect 10 runs/s and 90 s."""
    found = Progress(ended=100, failed=1, total=1000, grows=True, running=True)
    data = progress_data(found, [(5.0, 0), (10.0, 40), (15.0, 100)])
    assert (data["runs_per_s"], data["left_s"]) == (10.0, 90.0)
    assert (data["ended"], data["failed"], data["grows"]) == (100, 1, True)
    assert progress_data(found, [(5.0, 100)])["left_s"] is None


def test_a_sweep_is_known_from_the_moment_it_says_what_it_runs(tmp_path: Path) -> None:
    """Given a locked folder, then the definition of a sweep in it, expect the list to change."""
    catalog = Catalog(tmp_path)
    with OutputFolder(tmp_path / "new", kind="sweep") as output:
        assert (catalog.entry("new").kind, catalog.entry("new").state) == ("", "running")
        output.work.mkdir()
        definition = {"scenario": {"name": "small"}, "engine": "simulate"}
        (output.work / "sweep.json").write_text(json.dumps({"definition": definition}))
        assert (catalog.entry("new").kind, catalog.entry("new").state) == ("sweep", "running")
    assert (catalog.entry("new").kind, catalog.entry("new").state) == ("sweep", "interrupted")


def test_a_lock_is_seen_without_taking_it(tmp_path: Path) -> None:
    """Given a folder that is being written, expect it to be listed so, and another one not."""
    assert not is_being_written(tmp_path / "new")
    with OutputFolder(tmp_path / "new", kind="run"):
        assert is_being_written(tmp_path / "new")
        (entry,) = Catalog(tmp_path).entries()
        assert (entry.path, entry.state) == ("new", "running")
        with TestClient(create_app(tmp_path)) as client:
            assert "A program writes its result" in client.get("/result/new").text
    assert not is_being_written(tmp_path / "new")
    assert Catalog(tmp_path).entries() == []
