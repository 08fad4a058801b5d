"""`validate`: all problems of several files and of standard input; `run -`."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, Called, Program

GEO = ROOT / "scenarios" / "geo-bulk.yaml"

FIELDS = """\
link:
  preset: geo
  forward: {rte: 5 Mbit/s, queue: {limit: 5 packs}}
traffic:
  - {kind: bulk, sise: 1MB, direction: sideways}
  - {kind: constant_rate, direction: both, rate: 5, pay: 3, load: 3}
duration: 5
"""
PARTS = """\
link:
  forward: {rate: 5 Mbit/s, delay: 3 ms, queue: {limit: 5 B}}
  return: {rate: 5 Mbit/s, delay: 3 ms, queue: {limit: 9 B}}
hosts: {world: [{name: a}, {name: a}]}
traffic:
  - {kind: bulk, size: 1MB, direction: forward, start: 9 s, terminal: 4, world_host: b}
  - {kind: constant_rate, direction: both, rate: 5 kbit/s, payload: 70 kB}
  - {kind: bulk, size: 1MB, direction: forward}
duration: 5 s
sample_interval: 1 ns
"""
# The simulator knows these limits.
VALUES = """\
link: {preset: geo}
traffic:
  - {kind: bulk, size: 1MB, direction: forward, tcp: {mss: 60 B}, count: 3}
  - {kind: bulk, size: 1MB, direction: forward}
  - {kind: bulk, size: 1MB, direction: forward, tcp: {mss: 61 B}}
duration: 5 s
"""


def problems(bentpipe: Program, file: Path, text: str) -> list[tuple[int, str]]:
    file.write_text(text)
    called = bentpipe("check", file)
    assert called.code == 2
    found = [
        line.removeprefix(f"bentpipe: {file}:").split(": ") for line in called.err.splitlines()
    ]
    assert called.out == f"{file}: not valid, {len(found)} problems\n"
    return [(int(line), field) for line, field, *_ in found]


def test_all_problems_of_fields_are_reported(bentpipe: Program, tmp_path: Path) -> None:
    assert problems(bentpipe, tmp_path / "fields.yaml", FIELDS) == [
        (3, "link.forward.rte"),
        (3, "link.forward.queue.limit"),
        (5, "traffic.0.sise"),
        (5, "traffic.0.direction"),
        (6, "traffic.1.pay"),
        (6, "traffic.1.load"),
        (6, "traffic.1.rate"),
        (7, "duration"),
    ]


def test_all_problems_between_parts_are_reported(bentpipe: Program, tmp_path: Path) -> None:
    assert problems(bentpipe, tmp_path / "parts.yaml", PARTS) == [
        (2, "link.forward.queue.limit"),
        (3, "link.return.queue.limit"),
        (4, "hosts.world.1.name"),
        (6, "traffic.0.terminal"),
        (6, "traffic.0.start"),
        (6, "traffic.0.world_host"),
        (7, "traffic.1.payload"),
        (10, "sample_interval"),
    ]


def test_all_entries_that_the_simulator_refuses_are_reported(
    bentpipe: Program, tmp_path: Path
) -> None:
    assert problems(bentpipe, tmp_path / "values.yaml", VALUES) == [
        (3, "traffic.0.tcp.mss"),
        (5, "traffic.2.tcp.mss"),
    ]


def test_each_of_several_files_has_a_line(bentpipe: Program, tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text(VALUES)
    missing = tmp_path / "missing.yaml"
    called = bentpipe("check", GEO, bad, missing, GEO)
    assert called.code == 2
    assert called.out.splitlines() == [
        f"{GEO}: valid, 1 flow",
        f"{bad}: not valid, 2 problems",
        f"{missing}: not valid, 1 problem",
        f"{GEO}: valid, 1 flow",
    ]
    assert f"bentpipe: {missing}: no such file\n" in called.err
    assert bentpipe("check", GEO, GEO).code == 0
    answer = json.loads(bentpipe("check", bad, GEO, "--json").out)
    assert answer["valid"] is False
    assert [each["valid"] for each in answer["files"]] == [False, True]
    assert [each["line"] for each in answer["files"][0]["problems"]] == [3, 5]


def test_a_file_with_a_link_alone_is_said_to_be_one(bentpipe: Program, tmp_path: Path) -> None:
    """Given no traffic, expect no scenario, but a link for the commands that take one."""
    link = tmp_path / "link.yaml"
    link.write_text("link: {preset: geo}\n")
    called, takes = bentpipe("check", link), "ask, exec and lab take it as --link"
    assert called.code == 2
    assert called.out == f"{link}: no scenario, since it lacks traffic; {takes}\n"
    link.write_text("link: {preset: geo, forward: {rate: 0 bit/s}}\n")
    assert takes not in bentpipe("check", link).out


@pytest.fixture
def piped(bentpipe: Program, monkeypatch: pytest.MonkeyPatch) -> Program:
    """Call the program with a text as standard input."""

    def call(text: str, *arguments: str) -> Called:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        return bentpipe(*arguments)

    return call


def test_a_scenario_is_read_from_standard_input(piped: Program) -> None:
    text = GEO.read_text()
    checked = piped(text, "check", "-")
    assert (checked.code, checked.out) == (0, "<stdin>: valid, 1 flow\n")
    wrong = piped(text.replace("bulk", "bulky"), "run", "-")
    assert wrong.code == 2
    assert wrong.err.startswith("bentpipe: <stdin>:")
    assert "traffic.0.kind" in wrong.err
    empty = piped("", "run", "-")
    assert (empty.code, empty.out) == (2, "")
    assert empty.err.startswith("bentpipe: <stdin>: is empty")
    twice = piped(text, "check", "-", "-")
    assert twice.code == 2
    assert "only once" in twice.err


@pytest.mark.system
def test_a_scenario_is_run_from_a_pipe() -> None:
    command = [sys.executable, "-m", "bentpipe", "run", "-", "--set", "duration=2 s", "--json"]
    ran = subprocess.run(command, input=GEO.read_bytes(), capture_output=True, check=True)
    assert json.loads(ran.stdout)["end_ns"] <= 2_000_000_000
