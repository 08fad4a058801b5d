"""Studies on the kernel's own TCP: which cells, how rates are bisected, and one cell for real."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from conftest import needs, needs_lab

from bentpipe import Plan
from bentpipe.errors import UsageError
from bentpipe.studies.jpl import study as jpl
from bentpipe.studies.jpl.study import KERNEL, Cell, cells
from bentpipe.studies.snip import study as snip
from bentpipe.studies.snip.measure import DEFAULTS

pytestmark = pytest.mark.system

EXIT_USAGE = 2
EXIT_INVALID = 4


def bentpipe(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bentpipe", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


# --- which cells --------------------------------------------------------------------------------


def test_cells_are_named_from_the_left() -> None:
    row = [cell for cell in cells() if cell.bit_error_rate == "1e-9"]
    assert list(jpl.cells_named("1e-9")) == row
    assert jpl.cells_named("0:250") == (Cell("0", 250, "yes"), Cell("0", 250, "no"))
    assert jpl.cells_named("0:250:no, 0:250") == (Cell("0", 250, "no"), Cell("0", 250, "yes"))


@pytest.mark.parametrize("name", ["", "1e-6", "0:25", "0:250:both", "0:250:no:1"])
def test_cells_that_are_not_there_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match=rf'cells: read "{name}"'):
        jpl.cells_named(name)


def test_rows_of_the_note_are_named_by_size() -> None:
    assert snip.rows_named(None) == (tuple(DEFAULTS.sizes), True)
    assert snip.rows_named("1400, 58") == ((58, 1400), False)
    assert snip.rows_named("tcp") == ((), True)
    with pytest.raises(UsageError, match='cells: read "59"'):
        snip.rows_named("58,59")


@pytest.mark.parametrize("cell", cells(), ids=str)
def test_every_cell_is_one_that_the_kernel_can_be_asked_for(cell: Cell) -> None:
    """Given the hosts of a cell, expect Reno without options and the window of the cell."""
    plan: Any = Plan.resolve(replace(cell, hosts=KERNEL).scenario()).data
    workload = plan["flows"][0]["workload"]
    tcp = workload["receiver"]
    assert (tcp["congestion_control"], tcp["sack"], tcp["timestamps"]) == ("reno", False, False)
    assert tcp["receive_buffer_bytes"] == (65_535 if cell.large_windows == "no" else 256 * 1024)


def test_what_makes_no_sense_is_refused_in_words() -> None:
    for arguments, text in (
        (("osu", "--engine", "emulate"), "runs in the simulator only"),
        (("jpl", "--engine", "ns-3"), 'engine: read "ns-3"'),
        (("jpl", "--cells", "0"), "--cells: only with --engine emulate"),
        (("jpl", "--engine", "emulate", "--seconds", "2"), "--seconds: how long a cell runs"),
        (("linux", "--engine", "simulate"), "runs in real time only"),
    ):
        done = bentpipe("study", *arguments)
        assert done.returncode == EXIT_USAGE
        assert text in done.stderr


# --- bisection ----------------------------------------------------------------------------------


@pytest.mark.parametrize("largest", [0.3, 0.93, 1.0, 1.07, 2.2])
def test_the_bracket_contains_the_rate(largest: float) -> None:
    """Given losses at all rates above ``largest``, expect a bracket of 1 % that contains it.

    From 1.0, factors of 0.92 down or 1.05 up reach 0.3 or 2.2 in 17 steps. Three or four more halve
    the bracket to 1 %.
    """
    bracket, tries = snip.Bracket(start_bps=1.0), 0
    while (rate := bracket.next_bps()) is not None:
        bracket.record(rate, lost=rate > largest)
        tries += 1
    assert bracket.low_bps is not None
    assert bracket.high_bps is not None
    assert (
        bracket.low_bps
        <= largest
        <= bracket.high_bps
        <= bracket.low_bps / (1 - snip.REAL_RESOLUTION)
    )
    assert tries <= 24


# --- for real -----------------------------------------------------------------------------------


@needs_lab
@needs("iperf3")
@pytest.mark.thorough
def test_a_cell_of_the_testbed_on_the_kernel_s_tcp() -> None:
    """10 MiB without delay and errors: 1460 of 1508 bytes, 96.82 %, less the start.

    The start of a connection costs a round trip of two full segments, 12 ms of 43 s: 0.03 %. The
    tolerance of one point covers the time until iperf3 has read all data.
    """
    done = bentpipe("study", "jpl", "--engine", "emulate", "--cells", "0:0", "--json")
    assert done.returncode in {0, EXIT_INVALID}, done.stderr
    outcome = json.loads(done.stdout)
    (cell,) = outcome["cells"]
    assert (done.returncode == 0) == (cell["invalid"] is None)
    assert cell["published"] == pytest.approx(96.81)
    assert cell["simulated"] == pytest.approx(100 * 1460 / 1508, abs=0.3)
    if cell["invalid"] is None:
        assert cell["emulated"] == pytest.approx(100 * 1460 / 1508, abs=1.0)
        assert outcome["summary"]["max_absolute_difference_percent"] < 1.0
    else:
        assert outcome["summary"]["invalid"] == ["0, 0, both"]
