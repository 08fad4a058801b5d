"""The command line: what goes to stdout, what to stderr, and the exit code."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest
from conftest import ROOT, Called, Program

from bentpipe import Result, __version__, simulate
from bentpipe.cli.check import examine
from bentpipe.cli.progress import Progress
from bentpipe.report.run import save_run
from bentpipe.results.output import OutputFolder, write_folder
from bentpipe.scenario.framings import FRAMINGS

GEO = ROOT / "scenarios" / "geo-bulk.yaml"
# For reports that are not looked at: with a single chart.
UNSAMPLED = ("--set", "sample_interval=null")
VERBS = ["run", "report", "show", "check", "study", "search"]


def test_version(bentpipe: Program) -> None:
    assert bentpipe("--version") == Called(0, f"bentpipe {__version__}\n", "")


def test_a_closed_standard_input_is_bad_input(
    bentpipe: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    called = bentpipe("run", "-")
    assert (called.code, "<stdin>: cannot be read" in called.err) == (2, True)


def test_a_folder_that_cannot_be_looked_up_is_bad_input(bentpipe: Program) -> None:
    called = bentpipe("report", "a" * 300)
    assert (called.code, "cannot be read: File name too long" in called.err) == (2, True)


def test_help_names_every_verb(bentpipe: Program) -> None:
    called = bentpipe("--help")
    assert called.code == 0
    assert all(f"  {verb} " in called.out for verb in VERBS)


@pytest.mark.parametrize(
    "arguments",
    [["rn"], ["run"], ["run", "--sed", "1", str(GEO)], ["run", str(GEO), "--seed", "x"]],
)
def test_a_wrong_call_is_exit_code_2(arguments: list[str], bentpipe: Program) -> None:
    called = bentpipe(*arguments)
    assert (called.code, called.out) == (2, "")
    assert called.err
    assert "Traceback" not in called.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["exce"], 'command: read "exce"; allowed: run, '),
        (["exce"], 'did you mean "exec"?'),
        (["presets"], 'command: read "presets"; write: bentpipe show presets'),
        (["doctor"], 'command: read "doctor"; write: bentpipe check'),
        (["check", "--measure", str(GEO)], "--measure: measures this machine; leave out"),
        (["check", "--set", "seed=1"], "--set: overrides values of scenario files; name one"),
        (["help"], "for help: bentpipe --help"),
        (["lab", "help"], "for help: bentpipe lab --help"),
        (["lab", "dwn"], 'did you mean "down"?'),
        (["study", "jlp"], 'did you mean "jpl"?'),
        (["run", "--sed", "1", str(GEO)], "no such option: --sed (Possible options: --seed"),
        (["run"], "missing argument 'SCENARIO'; see bentpipe run --help"),
        (["search", "no-drop", str(GEO)], "write bentpipe search SCENARIO --no-drop"),
        (["search", "max-count", str(GEO)], "write bentpipe search SCENARIO [PATH]"),
        (
            ["run", str(GEO), "--engine", "emulat"],
            '--engine: read "emulat"; allowed: simulate, ',
        ),
        (["study", "jpl", "--engine", "emulat"], 'did you mean "emulate"?'),
        (["validate-model", "--grid", "small"], "write: bentpipe study linux"),
        (["lab", "up", "--link", "geo", "sat", "--seed", "x"], "invalid value for '--seed'"),
    ],
)
def test_the_error_of_a_wrong_call_names_the_mistake(
    arguments: list[str], message: str, bentpipe: Program
) -> None:
    called = bentpipe(*arguments)
    assert (called.code, called.out) == (2, "")
    assert message in called.err
    assert len(called.err.splitlines()) == 1


@pytest.mark.parametrize("arguments", [[], ["lab"], ["study"]])
def test_without_a_verb_the_help_is_printed_and_the_exit_code_is_2(
    arguments: list[str], bentpipe: Program
) -> None:
    called = bentpipe(*arguments)
    assert (called.code, called.out) == (2, "")
    assert called.err == bentpipe(*arguments, "--help").out


# --- run ----------------------------------------------------------------------------------------


def test_run_prints_statistics_of_flows_and_directions(bentpipe: Program, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    called = bentpipe("run", GEO)
    assert (called.code, called.err) == (0, "")
    for words in ("A bulk download over GEO: seed 1", "bulk-1", "Mbit/s", "10.49 MB", "IP bytes"):
        assert words in called.out
    assert sorted(tmp_path.iterdir()) == before


def test_run_as_json_is_what_simulate_returns(bentpipe: Program) -> None:
    called = bentpipe("run", GEO, "--json", "--seed", "7")
    assert (called.code, called.err) == (0, "")
    assert json.loads(called.out) == simulate(GEO, seed=7).summary()


def test_set_changes_what_is_run(bentpipe: Program) -> None:
    called = bentpipe(
        "run", GEO, "--set", "link.forward.delay=150ms", "--set", "traffic.0.size=1MB", "--json"
    )
    (flow,) = json.loads(called.out)["flows"]
    assert flow["delivered_bytes"] == 1_000_000
    # 150 ms there and 271 ms back, read from timestamps that tick in milliseconds.
    assert 421e6 <= flow["rtt_min_ns"] <= 423e6


@pytest.mark.system
def test_out_writes_a_result_with_its_report(bentpipe: Program, tmp_path: Path) -> None:
    folder = tmp_path / "result"
    called = bentpipe("run", GEO, *UNSAMPLED, "--out", folder)
    assert called.code == 0
    assert f"wrote {folder}" in called.err
    assert Result.load(folder).manifest["scenario"]["name"] == "A bulk download over GEO"
    assert "<html" in (folder / "report.html").read_text(encoding="utf-8")


def test_out_refuses_a_folder_with_other_files(bentpipe: Program, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years", encoding="utf-8")
    called = bentpipe("run", GEO, "--out", tmp_path)
    assert (called.code, called.out) == (2, "")
    assert "contains other files" in called.err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    below_a_file = bentpipe("run", GEO, "--out", tmp_path / "thesis.tex" / "result")
    assert (below_a_file.code, below_a_file.out) == (2, "")
    assert "cannot be written" in below_a_file.err


@pytest.mark.system
def test_report_writes_the_file_and_prints_its_path(
    bentpipe: Program, plain_result: Result, tmp_path: Path
) -> None:
    folder = plain_result.save(tmp_path / "result")
    inside = bentpipe("report", folder)
    assert (inside.code, inside.out) == (0, f"{folder / 'report.html'}\n")
    elsewhere = tmp_path / "geo.html"
    assert bentpipe("report", folder, "--report", elsewhere).out == f"{elsewhere}\n"
    text = elsewhere.read_text(encoding="utf-8").replace("geo-charts/", "charts/")
    assert text == (folder / "report.html").read_text(encoding="utf-8")
    refused = bentpipe("report", tmp_path)
    assert (refused.code, refused.out) == (2, "")
    assert "not a bentpipe result" in refused.err


def test_the_tables_of_a_report_are_files(
    bentpipe: Program, tmp_path: Path, plain_result: Result
) -> None:
    """Given a result, expect each table that its report links, as CSV and LaTeX."""
    folder = plain_result.save(tmp_path / "small")
    tables = tmp_path / "tables"
    called = bentpipe("report", folder, "--tables", tables)
    assert (called.code, called.err) == (0, f"bentpipe: wrote the tables to {tables}\n")
    page = (folder / "report.html").read_text(encoding="utf-8")
    linked = re.findall(r'<a download="([^"]+)"', page)
    assert sorted(path.name for path in tables.iterdir()) == sorted(linked)
    assert len(linked) > 6
    flows = next(tables.glob("tcp-flows*.tex")).read_text(encoding="utf-8")
    assert r"\begin{tabular}" in flows
    assert "Mbit/s" in flows
    refused = bentpipe("report", folder, "--tables", tmp_path / "no" / "folder")
    assert refused.code == 2
    assert "cannot be written" in refused.err


# --- framings -----------------------------------------------------------------------------------


def test_framings_are_listed_with_the_bytes_that_packets_take(bentpipe: Program) -> None:
    listed = bentpipe("show", "framings")
    assert (listed.code, listed.err) == (0, "")
    (aal5,) = (line for line in listed.out.splitlines() if line.startswith("aal5 "))
    # 40 and 16 of LLC and trailer are 2 cells of 53; 1516 are 32 cells.
    assert aal5.split()[-4:] == ["106.0", "265.0", "689.0", "1696.0"]


def test_a_metric_that_a_text_names_is_shown_with_its_definition(bentpipe: Program) -> None:
    """Given a name, a title, or both with the table, expect its definition; else the nearest."""
    for name in ("mos", "MOS", "flows.mos"):
        shown = " ".join(bentpipe("show", "metrics", name).out.split())
        assert "Mean opinion score of a call by ITU-T G.107, without echo." in shown
    listed = json.loads(bentpipe("show", "metrics", "--json").out)
    assert all(each["definition"] for each in listed)
    # Of flows and of directions.
    found = json.loads(bentpipe("show", "metrics", "loss_percent", "--json").out)
    tables = ("flows", "directions", "classes")
    assert [each["metric"] for each in found] == [f"{table}.loss_percent" for table in tables]
    called = bentpipe("show", "metrics", "goodputt")
    assert (called.code, called.out) == (2, "")
    assert 'read "goodputt"' in called.err
    assert 'did you mean "goodput"?' in called.err


def test_a_framing_is_shown_with_its_options_and_source(bentpipe: Program) -> None:
    shown = bentpipe("show", "framings", "ppp").out
    for words in ("framing: {kind: ppp, fcs: 16, payload: random}", "16, 32", "RFC 1662"):
        assert words in shown
    assert "framing: none\n" in bentpipe("show", "framings", "none").out
    (facts,) = json.loads(bentpipe("show", "framings", "ethernet", "--json").out)
    assert facts["plan"]["min_bytes"] == 64
    assert facts["frames"][0] == {"ip_bytes": 40, "link_bits": 64 * 8}
    assert len(json.loads(bentpipe("show", "framings", "--json").out)) > 5


def test_the_output_for_a_framing_is_valid_in_a_scenario(bentpipe: Program) -> None:
    for name in FRAMINGS:
        shown = bentpipe("show", "framings", name).out
        (line,) = (line for line in shown.splitlines() if line.startswith("framing: "))
        called = bentpipe("check", GEO, "--set", f"link.forward.{line.replace(': ', '=', 1)}")
        assert (called.code, called.err) == (0, ""), name


def test_an_unknown_framing_is_refused_with_a_suggestion(bentpipe: Program) -> None:
    called = bentpipe("show", "framings", "ethernot")
    assert (called.code, called.out) == (2, "")
    assert 'did you mean "ethernet"?' in called.err


# --- interruption -------------------------------------------------------------------------------

SLOW = """\
link:
  preset: leo
  forward: {rate: 10 Gbit/s}
traffic:
  - {kind: constant_rate, direction: forward, rate: 1 Gbit/s, payload: 125 B}
duration: 600 s
"""


@pytest.mark.system
def test_ctrl_c_keeps_what_was_recorded_and_exits_130(
    bentpipe: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real signal, sent as soon as the run has started."""

    def send_signal(_progress: Progress, done: float) -> None:
        if done > 0:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Progress, "fraction", send_signal)
    file, folder = tmp_path / "slow.yaml", tmp_path / "result"
    file.write_text(SLOW, encoding="utf-8")
    called = bentpipe("run", file, *UNSAMPLED, "--out", folder, "--json")
    assert called.code == 130
    assert called.err.endswith(f"interrupted; what was recorded is in {folder}\n")
    assert json.loads(called.out)["state"] == "interrupted"
    kept = Result.load(folder)
    assert kept.interrupted
    assert 0 < kept.manifest["end_ns"] < 600e9
    assert kept.flows["delivered_bytes"][0] > 0


def test_progress_is_quiet_at_first_then_rare_and_on_stderr(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr("bentpipe.cli.progress.time.monotonic", lambda: clock[0])
    with Progress("simulating") as progress:
        for second in range(41):
            clock[0] = second
            progress.fraction(second / 40)
        progress.count(1, 2)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines() == [
        "bentpipe: simulating: 25%, about 30 s left",
        "bentpipe: simulating: 50%, about 20 s left",
        "bentpipe: simulating: 75%, about 10 s left",
        "bentpipe: simulating: 100%, about 0 s left",
    ]


def test_the_remaining_time_does_not_count_on_what_was_done_before(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given 50 of 100 runs done before and 25 in 10 s, expect 10 s for the other 25."""
    clock = [0.0]
    monkeypatch.setattr("bentpipe.cli.progress.time.monotonic", lambda: clock[0])
    with Progress("sweep", before=50) as progress:
        clock[0] = 10.0
        progress.count(75, 100)
        clock[0] = 20.0
        # Seeds were added.
        progress.count(100, 200)
    assert capsys.readouterr().err.splitlines() == [
        "bentpipe: sweep: 75%, about 10 s left",
        "bentpipe: sweep: 50%, about 40 s left",
    ]


def test_progress_is_a_bar_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr("bentpipe.cli.progress.time.monotonic", lambda: clock[0])
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with Progress("simulating") as progress:
        progress.fraction(0.1)
        assert capsys.readouterr().err == ""
        clock[0] = 2.5
        progress.fraction(0.5)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "simulating" in printed.err
    assert "50%" in printed.err


@pytest.mark.system
def test_ctrl_c_while_results_are_written_waits_for_them(
    bentpipe: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def send_signal(result: Result, output: OutputFolder) -> None:
        signal.raise_signal(signal.SIGINT)
        save_run(result, output)

    monkeypatch.setattr("bentpipe.report.save_run", send_signal)
    before = signal.getsignal(signal.SIGINT)
    folder = tmp_path / "result"
    called = bentpipe("run", GEO, *UNSAMPLED, "--out", folder, "--json")
    assert called.code == 0
    assert "press Ctrl-C again to discard" in called.err
    assert json.loads(called.out)["state"] == "completed"
    assert (folder / "report.html").is_file()
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_ctrl_c_stops_the_writing_too(
    bentpipe: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def send_signals(_result: Result, _output: OutputFolder) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("bentpipe.report.save_run", send_signals)
    called = bentpipe("run", GEO, "--out", tmp_path / "result")
    assert (called.code, called.out) == (130, "")


def test_many_terminals_are_grouped_and_exchanges_are_summarized(
    bentpipe: Program, tmp_path: Path
) -> None:
    file = tmp_path / "readers.yaml"
    file.write_text(
        "link: {preset: leo, terminals: 30}\n"
        "gateways: {terminal: {processor: {}}}\n"
        "traffic:\n"
        "  - {kind: fetch, direction: forward, size: 1 kB, think: 1 s, files: 2, terminal: all}\n"
        "duration: 10 s\n",
        encoding="utf-8",
    )
    lines = bentpipe("run", file).out.splitlines()
    assert "All 30 flows: --json, or flows.parquet in the folder of --out" in lines
    assert "All 31 directions: --json, or directions.parquet in the folder of --out" in lines
    assert any(line.startswith("terminal-1-processor to terminal-30-processor") for line in lines)
    assert any(line.startswith("30 flows together: 60 finished, time median ") for line in lines)


@pytest.mark.parametrize("name", ["jpl", "snip", "hermes", "osu"])
def test_runs_and_seeds_out_of_range_are_refused_before_anything_is_planned(
    bentpipe: Program, name: str
) -> None:
    called = bentpipe("study", name, "--seeds", "99999999999")
    refusal = "bentpipe: seeds: read 99999999999; must be 1 to 1000\n"
    assert called == Called(2, "", refusal)
    called = bentpipe("study", name, "--seed", str(2**64))
    assert (called.code, called.out) == (2, "")
    assert called.err.startswith(f"bentpipe: seed: read {2**64}; must be 0 to 1844674407370955")


# --- study --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FakeOutcome:
    """The outcome of a study, without its runs."""

    asked: dict[str, Any]
    interrupted: bool = False

    def to_json(self) -> dict[str, Any]:
        return {"study": "moon", **self.asked}

    def terminal(self) -> list[str]:
        return ["published 1, measured 2"]

    def late(self) -> list[str]:
        return []

    def missed(self) -> list[str]:
        return ["a crater"]

    def write(self, out: OutputFolder) -> None:
        manifest = {"bentpipe_version": "0", "study": "moon"}
        write_folder(out, kind="study", manifest=manifest, files={"report.html": "<html>"})


class FakeStudy:
    """A study of the moon."""

    name = "moon"
    title = "A bounce off the moon"
    source = "Trexler, 1958"
    titles: ClassVar = {"simulate": "The moon"}
    default_runs = 2
    seconds = None

    def __init__(self, *, interrupted: bool) -> None:
        self.interrupted = interrupted

    def run(self, *, runs: int | None, seed: int, executor: Any, progress: Any) -> Any:
        progress(1, 1)
        asked = {"runs": runs, "seed": seed, "executor": type(executor).__name__}
        return FakeOutcome(asked, self.interrupted)


@pytest.fixture
def moon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the registry of studies by two fake ones."""
    registry = ModuleType("bentpipe.studies")
    studies = {"moon": FakeStudy(interrupted=False), "eclipse": FakeStudy(interrupted=True)}
    registry.STUDIES = studies  # type: ignore[attr-defined]  # a module made by hand
    monkeypatch.setitem(sys.modules, "bentpipe.studies", registry)


@pytest.mark.usefixtures("moon")
def test_studies_are_listed_with_their_sources(bentpipe: Program) -> None:
    listed = bentpipe("show", "studies")
    assert (listed.code, listed.err) == (0, "")
    assert "A bounce off the moon" in listed.out
    assert json.loads(bentpipe("show", "studies", "--json").out)[0] == {
        "name": "moon",
        "title": "A bounce off the moon",
        "source": "Trexler, 1958",
    }


@pytest.mark.usefixtures("moon")
def test_a_study_is_a_verb_of_its_own(bentpipe: Program, tmp_path: Path) -> None:
    described = bentpipe("study", "moon", "--help")
    assert "A bounce off the moon. Source: Trexler, 1958" in described.out
    assert "Example:\n    bentpipe study moon" in described.out
    shown = " ".join(described.out.split())
    assert "Runs of each stochastic cell, with consecutive seeds; 2 by default" in shown
    assert bentpipe("study", "moon").out == "published 1, measured 2\n"
    out = tmp_path / "moon"
    called = bentpipe("study", "moon", "--seeds", "3", "--seed", "5", "--out", out, "--json")
    assert called.code == 0
    assert json.loads(called.out) == {
        "study": "moon",
        "runs": 3,
        "seed": 5,
        "executor": "Threads",
    }
    assert (out / "report.html").is_file()
    checked = bentpipe("study", "moon", "--check")
    assert (checked.code, checked.out) == (99, "published 1, measured 2\n")
    assert "missed: a crater" in checked.err


@pytest.mark.usefixtures("moon")
def test_a_study_that_cannot_be_written_is_printed(
    bentpipe: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a full disk after the runs, expect their figures, and an error."""

    def full(_: FakeOutcome, out: OutputFolder) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(out.path))

    monkeypatch.setattr(FakeOutcome, "write", full)
    called = bentpipe("study", "moon", "--out", tmp_path / "moon", "--json")
    assert called.code != 0
    assert json.loads(called.out)["study"] == "moon"
    assert os.strerror(errno.ENOSPC) in called.err


@pytest.mark.usefixtures("moon")
def test_an_unknown_study_is_refused_with_a_suggestion(bentpipe: Program) -> None:
    called = bentpipe("study", "moom")
    assert (called.code, called.out) == (2, "")
    assert 'did you mean "moon"?' in called.err


@pytest.mark.usefixtures("moon")
def test_an_interrupted_study_shows_what_was_done_and_exits_130(bentpipe: Program) -> None:
    called = bentpipe("study", "eclipse")
    assert called.code == 130
    assert called.out == "published 1, measured 2\n"
    assert "interrupted" in called.err


# --- check --------------------------------------------------------------------------------------


@pytest.mark.system
def test_this_machine_passes_the_check(bentpipe: Program) -> None:
    called = bentpipe("check")
    assert (called.code, called.err) == (0, "")
    for name in ("python", "bentpipe._core", "polars", "ruamel-yaml", "cores", "folder"):
        assert f"ok  {name} " in called.out
    assert json.loads(bentpipe("check", "--json").out)["ok"] is True


@pytest.mark.system
def test_the_check_of_a_machine_names_missing_packages_and_the_fix(
    bentpipe: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = ["polars>=2.1", "moonphase>=3", 'ruff>=1; extra == "dev"']
    monkeypatch.setattr("bentpipe.cli.check.metadata.requires", lambda _name: wanted)
    called = bentpipe("check", "--json")
    assert called.code == 3
    assert 'pip install "moonphase>=3"' in called.err
    answer = json.loads(called.out)
    assert answer["ok"] is False
    # Optional programs may be missing, too.
    failed = {check["name"] for check in answer["checks"] if not check["ok"] and check["needed"]}
    assert failed == {"moonphase"}
    assert "ruff" not in [check["name"] for check in answer["checks"]]


@pytest.mark.system
@pytest.mark.parametrize("ends", ["raise KeyError('lab')", "import os; os.abort()"])
def test_the_check_of_a_machine_prints_sentences_and_no_names_of_classes(
    ends: str, bentpipe: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Given a lab that fails unexpectedly and no programs, expect reason and fix of each."""
    monkeypatch.setattr("bentpipe.cli.check._TRY_A_LAB", ends)
    monkeypatch.setenv("PATH", str(tmp_path))
    wanted = ["moonphase>=3", "typer>=999"]
    monkeypatch.setattr("bentpipe.cli.check.metadata.requires", lambda _name: wanted)
    called = bentpipe("check", "--json")
    checks = {check["name"]: check for check in json.loads(called.out)["checks"]}
    assert all(check["found"].endswith(".") for check in checks.values())
    failed = [name for name, check in checks.items() if not check["ok"]]
    assert failed == ["moonphase", "typer", "labs", "iperf3", "tshark", "slirp4netns", "chromium"]
    assert all(checks[name]["fix"] for name in failed)
    assert checks["moonphase"]["found"] == "It is not installed."
    assert checks["typer"]["found"].endswith("is older than 999.")
    assert checks["labs"]["found"].startswith("Labs do not work, simulations do: ")
    shown = bentpipe("check").out
    assert "Error" not in shown
    assert shown.count("To fix it: ") == len(failed)


@pytest.mark.system
def test_the_check_of_a_machine_finds_a_folder_that_is_not_writable(tmp_path: Path) -> None:
    checks = examine(tmp_path / "none")
    missing = [check for check in checks if check.needed and not check.ok]
    assert [check.name for check in missing] == ["folder"]
    assert "--out" in missing[0].fix


def test_the_check_of_a_file_says_valid_and_prints_the_plan(bentpipe: Program) -> None:
    assert bentpipe("check", GEO) == Called(0, f"{GEO}: valid, 1 flow\n", "")
    answer = json.loads(bentpipe("check", GEO, "--set", "duration=5 s", "--json").out)
    assert answer["valid"] is True
    assert answer["files"][0]["plan"]["stop_ns"] == 5_000_000_000


def test_an_internal_error_is_exit_code_1_and_asks_for_a_report(
    bentpipe: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("bentpipe.scenario.json_schema", fail)
    called = bentpipe("show", "schema")
    assert (called.code, called.out) == (1, "")
    assert "ZeroDivisionError: a bug" in called.err
    assert called.err.endswith("bentpipe: internal error; please report the lines above\n")
