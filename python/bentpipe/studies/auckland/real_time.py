"""Cells of the study with real channels, the PEP's daemon and the kernel's TCP, in real time."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Final, Unpack

import numpy as np

from bentpipe.live.pool import EmulatedRun
from bentpipe.results.files import utc_now
from bentpipe.results.result import Result
from bentpipe.studies import RealOptions
from bentpipe.studies.auckland import cells
from bentpipe.studies.auckland.study import CELLS, inputs, listed_row
from bentpipe.studies.base.comparison import Comparison, Row, Samples
from bentpipe.studies.base.inputs import Input, Provenance, read_scenario
from bentpipe.studies.base.outcome import RealOutcome, cells_by_name, real_row
from bentpipe.studies.base.tables import columns
from bentpipe.studies.base.work import RealWork, Work, jobs_of, real_job
from bentpipe.units import NS_PER_S

# A cell takes as long as its experiment, so that is shorter than the 600 s of the source.
DURATION_S: Final = 60
# A point of each figure: both queues, and each kind of path.
_PATHS: Final = (*cells.UNCODED, cells.LinkPath.CODED_10, cells.LinkPath.TITRATED_10)
CHOSEN: Final = tuple(
    cells.Cell(20, queue_kb, path) for queue_kb in cells.QUEUES_KB for path in _PATHS
)
# Besides its duration: the lab, its gateways and the programs start, and the last packets arrive.
_OVERHEAD_S: Final = 4.0
# A lab with a hundred channels takes a quarter of a processor, but in bursts that make labs beside
# it late: two run at a time by default.
_LOAD: Final = 2.0
_SERVER_RATE: Final = "100 Mbit/s"
# Of the figures of a cell that both engines have.
UNITS: Final = {"total goodput": "Mbit/s", "transfer goodput": "Mbit/s", "median download": "s"}
_SHORTER: Final = {"duration", "traffic.1.start", "traffic.1.duration"}


def run_real_time(*, duration_s: int = DURATION_S, **options: Unpack[RealOptions]) -> RealOutcome:
    """Run cells in real time, and the same plans in the simulator.

    ``chosen`` is as in `cells_named`, None for `CHOSEN`. Each cell runs for ``duration_s``, the
    transfer in the middle half of it.
    """
    real = RealWork(**options)
    table = CHOSEN if real.chosen is None else cells_named(real.chosen)
    base = shorter(read_scenario("auckland"), duration_s)
    time: dict[str, float] = {"expected_s": duration_s + _OVERHEAD_S, "load": _LOAD}
    scenarios = {cell: cells.scenario_of(cell, base, cells.BASE) for cell in table}
    runs = real.run({cell: real_job(each, real.seed, **time) for cell, each in scenarios.items()})
    simulated = {} if real.interrupted else _simulated(table, base, real.seed)
    rows = (
        _row(name, cell, run, simulated.get(cell))
        for name, (cell, run) in product(UNITS, runs.items())
    )
    return RealOutcome(
        study="auckland",
        title="Auckland satellite simulator in real time: channels and a transfer",
        inputs=_inputs(base, table),
        comparisons={CELLS: Comparison(tuple(rows))},
        labels=columns("auckland", "real"),
        configuration=real.configuration(duration_s=duration_s, scenario=base),
        interrupted=real.interrupted,
    )


def cells_named(chosen: str) -> tuple[cells.Cell, ...]:
    """Return cells by `CHANNELS[:QUEUE_KB[:PATH]]`, a list with commas.

    A part that is left out matches all.

    Raises:
        UsageError: there is no such cell.
    """
    numbers, queues = (", ".join(map(str, each)) for each in (cells.LOADS.every, cells.QUEUES_KB))
    table = cells.cells(cells.LOADS.every, tuple(cells.LinkPath))
    names = {cell: f"{cell.channels}:{cell.queue_kb}:{cell.path.value}" for cell in table}
    how = f"Write a number of channels ({numbers}), optionally a queue in kB ({queues}) and a path "
    paths = f"({', '.join(cells.LinkPath)}), as in 100:120:PEP"
    return cells_by_name(chosen, names, f"{how}{paths}")


def shorter(base: cells.Data, duration_s: int) -> cells.Data:
    """Return the configuration with another duration, in s, and the transfer in its middle half.

    Its server has a line with a rate: without one it sends whole windows to a PEP at one instant,
    which no machine relays in time.
    """
    data = copy.deepcopy(base)
    cells.set_values(data, "hosts.world.*.rate", _SERVER_RATE)
    transfer = {"start": f"{duration_s / 4:g} s", "duration": f"{duration_s / 2:g} s"}
    cells.entry(data, cells.TRANSFER).update(transfer)
    # The goodput of the transfer is read from samples.
    return data | {"duration": f"{duration_s} s", "sample_interval": "1 s"}


def figures(result: Result) -> dict[str, float | None]:
    """Return the figures of a run in either engine, as in `UNITS`; None without a value.

    The transfer counts until its duration is over, between samples: iperf3 leaves then, while a
    simulated receiver waits for what a PEP still holds. In real time it starts a little late.
    """
    flows = result.plan["flows"]
    is_channel = np.array([flow["name"].startswith(cells.BACKGROUND) for flow in flows])
    channel_bytes = result.flows["delivered_bytes"].to_numpy()[is_channel].sum()
    number = next(n for n, flow in enumerate(flows) if flow["name"] == cells.TRANSFER)
    duration_ns: int = flows[number]["workload"]["amount"]["value"]
    samples = result.tables["flow_samples"].drop_nulls("delivered_bytes").sort("time_ns")
    samples = samples.filter(samples["flow"] == number)
    total = transfer = None
    if not samples.is_empty():
        end_ns = result.flows.row(number, named=True)["start_ns"] + duration_ns
        transfer_bytes = float(np.interp(end_ns, samples["time_ns"], samples["delivered_bytes"]))
        transfer = transfer_bytes * 8 * NS_PER_S / duration_ns / 1e6
        total = float(channel_bytes + transfer_bytes) * 8 * NS_PER_S / result.plan["stop_ns"] / 1e6
    exchanges = result.exchanges
    mine = np.array([name.startswith(cells.BACKGROUND) for name in exchanges["name"]], dtype=bool)
    took_ns = exchanges["time_ns"].to_numpy()[mine].astype(np.float64)
    took_ns = took_ns[np.isfinite(took_ns)]
    median_s = float(np.median(took_ns)) / NS_PER_S if took_ns.size else None
    return dict(zip(UNITS, (total, transfer, median_s), strict=True))


def _simulated(
    table: tuple[cells.Cell, ...], base: cells.Data, seed: int
) -> Mapping[cells.Cell, Result]:
    """Return the simulated run of each cell: the same plan and seed."""
    started = utc_now()
    jobs = {cell: jobs_of(cells.scenario_of(cell, base, cells.BASE), [seed]) for cell in table}
    found = Work("auckland", seed=seed).run(jobs)
    return {
        cell: outcome.result(started=started)
        for cell, outcomes in found.items()
        for outcome in outcomes
    }


def _row(name: str, cell: cells.Cell, run: EmulatedRun | None, simulated: Result | None) -> Row:
    """Return a figure of a cell in both engines."""
    value = None if simulated is None else figures(simulated)[name]
    row = replace(
        listed_row(cell, Samples.of([value], exact=False)),
        labels={"figure": name, **cell.labels},
        title=f"{name}, {cell.title}",
        unit=UNITS[name],
    )
    return real_row(row, run, None if run is None else figures(run.result)[name])


def _inputs(base: cells.Data, table: tuple[cells.Cell, ...]) -> tuple[Input, ...]:
    """Return the inputs of these cells; what is shorter here is not that of the source."""
    source = "A cell takes as long as its experiment: shorter than the 600 s of the source"
    return tuple(
        replace(each, provenance=Provenance.ASSUMED, source=source)
        if each.name in _SHORTER
        else each
        for each in inputs(base, table)
    )
