"""Cells of the table on the kernel's own TCP, over the same link in real time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple
from typing import Any, Final, Unpack

import numpy as np

from bentpipe.live.pool import EmulationJob
from bentpipe.results.measures import channel_utilization
from bentpipe.results.result import Result
from bentpipe.scenario.schema import Scenario
from bentpipe.studies import RealOptions
from bentpipe.studies.base.comparison import Comparison, Samples
from bentpipe.studies.base.inputs import read_scenario
from bentpipe.studies.base.outcome import RealOutcome, cells_by_name, real_row
from bentpipe.studies.base.tables import columns
from bentpipe.studies.base.work import KERNEL_RENO, RealWork, Work, real_job
from bentpipe.studies.jpl import study
from bentpipe.studies.jpl.study import BIT_ERROR_RATES, LINUX_SMALL_WINDOW, Cell, cells, scenario_of
from bentpipe.units import parse_rate

KERNEL_TCP: Final[dict[str, Any]] = {
    **KERNEL_RENO,
    "receive_buffer": "256 KiB",
    "receive_buffer_initial": "256 KiB",
}
_TRANSFER_BYTES: Final = 10 << 20
# Runs of the simulator for a stochastic cell.
_SIMULATED_RUNS: Final = 20


def run_real_time(**options: Unpack[RealOptions]) -> RealOutcome:
    """Run cells in real time; ``chosen`` is as in `cells_named`, None for all."""
    real = RealWork(**options)
    table = cells() if real.chosen is None else cells_named(real.chosen)
    base = read_scenario("jpl")
    runs = real.run({cell: _job(cell, base, real.seed) for cell in table})
    simulated = {} if real.interrupted else _simulated(table, base, real.seed)
    # Every run is over: the published figures may be read.
    published = study.read_published()
    nothing = Samples()
    rows = tuple(
        real_row(
            study.row_of(cell, published[cell], simulated.get((cell, False), nothing)),
            run,
            None if run is None else utilization_in_real_time(run.result),
            simulated.get((cell, True), nothing),
        )
        for cell, run in runs.items()
    )
    return RealOutcome(
        study="jpl",
        title="JPL testbed in real time: TCP channel utilization",
        inputs=study.inputs(base),
        comparisons={study.BSD: Comparison(rows)},
        labels=columns("jpl", "main")[:3],
        configuration=real.configuration(
            simulated_runs_of_a_cell_with_bit_errors=_SIMULATED_RUNS,
            tcp=KERNEL_TCP,
            tcp_with_64_kb_windows=KERNEL_TCP | LINUX_SMALL_WINDOW,
        ),
        interrupted=real.interrupted,
    )


def cells_named(chosen: str) -> tuple[Cell, ...]:
    """Return cells by `BIT_ERROR_RATE[:DELAY_MS[:WINDOWS]]`, a list with commas.

    A part that is left out matches all.

    Raises:
        UsageError: there is no such cell.
    """
    rows = ", ".join(BIT_ERROR_RATES)
    names = {cell: ":".join(map(str, astuple(cell))) for cell in cells()}
    how = f"Write a bit error rate ({rows}), optionally a delay in ms (0, 50 ... 300) and windows "
    return cells_by_name(chosen, names, f"{how}(yes, no; both up to 100 ms), as in 1e-7:250:no")


def kernel_scenario_of(cell: Cell, base: Mapping[str, Any]) -> Scenario:
    """Return the scenario of a cell with TCP settings that the kernel has."""
    data = scenario_of(cell, base).to_dict()
    (flow,) = data["traffic"]
    flow["profile"] = "linux"
    flow["tcp"] = KERNEL_TCP | (LINUX_SMALL_WINDOW if cell.large_windows == "no" else {})
    return Scenario.from_dict(data)


def utilization_in_real_time(result: Result) -> float | None:
    """Return acknowledged information bits over R T, in percent; None without a complete transfer.

    T ends when the last acknowledgement arrives: one delay after the receiver has all data.
    """
    row = result.flows.row(0, named=True)
    if row["finished_ns"] is None or row["established_ns"] is None:
        return None
    directions = result.plan["directions"]
    end_ns = row["finished_ns"] + directions[1]["delay_ns"]["value"]
    elapsed_ns = np.array([end_ns - row["established_ns"]])
    rate_bps = directions[0]["rate_bps"]["value"]
    return float(channel_utilization(np.array([row["delivered_bytes"]]), rate_bps, elapsed_ns)[0])


def _job(cell: Cell, base: Mapping[str, Any], seed: int) -> EmulationJob:
    scenario = kernel_scenario_of(cell, base)
    min_s = 8 * _TRANSFER_BYTES / parse_rate(scenario.to_dict()["link"]["forward"]["rate"])
    return real_job(scenario, seed, expected_s=2 * min_s)


def _simulated(
    table: Sequence[Cell], base: Mapping[str, Any], seed: int
) -> dict[tuple[Cell, bool], Samples]:
    """Return the utilization of each cell, with the study's hosts and with the kernel's."""
    work = Work("jpl", runs=_SIMULATED_RUNS, seed=seed)
    jobs = {
        (cell, kernel): study.jobs_of_cell(cell, scenario(cell, base), work)
        for cell in table
        for kernel, scenario in ((False, scenario_of), (True, kernel_scenario_of))
    }
    return {key: study.samples_of(key[0], found) for key, found in work.run(jobs).items()}
