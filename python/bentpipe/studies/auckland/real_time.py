"""Cells of the study with real channels, the PEP's daemon and the kernel's TCP, in real time."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from bentpipe import _core
from bentpipe.emulation.pool import EmulatedRun, EmulationJob
from bentpipe.results.execution import utc_now
from bentpipe.studies.auckland.cells import (
    BACKGROUND,
    LOADS,
    QUEUES_KB,
    TRANSFER,
    UNCODED,
    Cell,
    Data,
    LinkPath,
    base_scenario,
    cells,
    entry,
    jobs_of,
    scenario_of,
)
from bentpipe.studies.auckland.study import CELLS, inputs, listed_row
from bentpipe.studies.auckland.variants import BASE
from bentpipe.studies.base import tables
from bentpipe.studies.base.comparison import Comparison, Row
from bentpipe.studies.base.provenance import Input, Provenance
from bentpipe.studies.base.real_time import RealOutcome, cells_by_name, kernel_of, real_row
from bentpipe.studies.base.samples import Samples
from bentpipe.studies.base.work import RealWork, Work
from bentpipe.units import NS_PER_S

if TYPE_CHECKING:
    from bentpipe.results.result import Result

# A cell takes as long as its experiment, so that is shorter than the 600 s of the source.
DURATION_S: Final = 60
# A point of each figure: both queues, and each kind of path.
_PATHS: Final = (*UNCODED, LinkPath.CODED_10, LinkPath.TITRATED_10)
CHOSEN: Final = tuple(Cell(20, queue_kb, path) for queue_kb in QUEUES_KB for path in _PATHS)
# Besides its duration: the lab, its gateways and the programs start, and the last packets arrive.
_OVERHEAD_S: Final = 4.0
# A lab with a hundred channels takes a quarter of a processor, but in bursts that make labs beside
# it late: two run at a time by default.
_LOAD: Final = 2.0
_SERVER_RATE: Final = "100 Mbit/s"
_SHORTER: Final = {"duration", "traffic.1.start", "traffic.1.duration"}


@dataclass(frozen=True)
class _Figure:
    """A figure of a cell that both engines have."""

    name: str
    unit: str
    of: Callable[[Result], float | None]


def run_real_time(
    *,
    chosen: str | None,
    seed: int,
    parallel: int,
    progress: Callable[[float], None],
    note: Callable[[str], None],
    duration_s: int = DURATION_S,
) -> RealOutcome:
    """Run cells in real time, and the same plans in the simulator.

    ``chosen`` is as in `cells_named`, None for `CHOSEN`. Each cell runs for ``duration_s``, the
    transfer in the middle half of it.

    Raises:
        UsageError: there is no such cell.
        MachineError: the machine lacks something.
    """
    table = CHOSEN if chosen is None else cells_named(chosen)
    base = shorter(base_scenario(), duration_s)
    real = RealWork(parallel=parallel, progress=progress, note=note, total=len(table))
    runs = real.run({cell: _job(cell, base, seed, duration_s) for cell in table})
    simulated = {} if real.interrupted else _simulated(table, base, seed)
    rows = (
        _row(figure, cell, run, simulated.get(cell))
        for figure in FIGURES
        for cell, run in runs.items()
    )
    return RealOutcome(
        study="auckland",
        title="Auckland satellite simulator in real time: channels and a transfer",
        inputs=_inputs(base, table),
        comparisons={CELLS: Comparison(tuple(rows))},
        labels=(
            tables.label("figure", "figure"),
            tables.label("queue_kB", "queue", "kB"),
            tables.label("path", "path"),
            tables.label("channels", "channels"),
        ),
        notes=_notes(duration_s),
        configuration={
            "bentpipe_version": _core.version(),
            "seed": seed,
            "parallel": parallel,
            "duration_s": duration_s,
            "kernel": kernel_of(runs),
            "scenario": base,
        },
        interrupted=real.interrupted,
    )


def cells_named(chosen: str) -> tuple[Cell, ...]:
    """Return cells by `CHANNELS[:QUEUE_KB[:PATH]]`, a list with commas.

    A part that is left out matches all.

    Raises:
        UsageError: there is no such cell.
    """
    numbers, queues = (", ".join(map(str, each)) for each in (LOADS.every, QUEUES_KB))
    table = cells(LOADS.every, tuple(LinkPath))
    names = {cell: f"{cell.channels}:{cell.queue_kb}:{cell.path.value}" for cell in table}
    how = f"Write a number of channels ({numbers}), optionally a queue in kB ({queues}) and a path "
    paths = f"({', '.join(LinkPath)}), as in 100:120:PEP"
    return cells_by_name(chosen, names, f"{how}{paths}")


def shorter(base: Data, duration_s: int) -> Data:
    """Return the configuration with another duration, in s, and the transfer in its middle half.

    Its server has a line with a rate: without one it sends whole windows to a PEP at one instant,
    which no machine relays in time.
    """
    data = copy.deepcopy(base)
    data["hosts"]["world"][0]["rate"] = _SERVER_RATE
    transfer = entry(data, TRANSFER)
    assert transfer is not None
    transfer |= {"start": f"{duration_s / 4:g} s", "duration": f"{duration_s / 2:g} s"}
    # The goodput of the transfer is read from samples.
    return data | {"duration": f"{duration_s} s", "sample_interval": "1 s"}


def total_mbps(result: Result) -> float | None:
    """Return the goodput of the channels over the whole run and of the transfer, in Mbit/s.

    The transfer counts until its duration is over: iperf3 leaves then, while a simulated receiver
    waits for what a PEP still holds. None if there are no samples.
    """
    transfer_bytes = _transfer_bytes(result)
    if transfer_bytes is None:
        return None
    is_channel = np.array([_is_channel(flow["name"]) for flow in result.plan["flows"]])
    channel_bytes = result.flows["delivered_bytes"].to_numpy()[is_channel].sum()
    stop_ns: int = result.plan["stop_ns"]
    return float(channel_bytes + transfer_bytes) * 8 * NS_PER_S / stop_ns / 1e6


def transfer_mbps(result: Result) -> float | None:
    """Return the goodput of the transfer in its duration, in Mbit/s; None without samples."""
    transfer_bytes = _transfer_bytes(result)
    if transfer_bytes is None:
        return None
    return transfer_bytes * 8 * NS_PER_S / _duration_ns(result, _transfer(result)) / 1e6


def median_download_s(result: Result) -> float | None:
    """Return the median time of the finished downloads, in s; None without one."""
    exchanges = result.exchanges
    mine = [_is_channel(name) for name in exchanges["name"]]
    took_ns = exchanges["time_ns"].to_numpy()[np.array(mine, dtype=bool)].astype(np.float64)
    took_ns = took_ns[np.isfinite(took_ns)]
    return float(np.median(took_ns)) / NS_PER_S if took_ns.size else None


FIGURES: Final = (
    _Figure("total goodput", "Mbit/s", total_mbps),
    _Figure("transfer goodput", "Mbit/s", transfer_mbps),
    _Figure("median download", "s", median_download_s),
)


def _transfer(result: Result) -> int:
    return next(n for n, flow in enumerate(result.plan["flows"]) if flow["name"] == TRANSFER)


def _duration_ns(result: Result, flow: int) -> int:
    duration_ns: int = result.plan["flows"][flow]["workload"]["amount"]["value"]
    return duration_ns


def _transfer_bytes(result: Result) -> float | None:
    """Return what the transfer has delivered when its duration is over, between samples.

    In real time the transfer starts a little late.
    """
    flow = _transfer(result)
    samples = result.tables["flow_samples"]
    samples = samples.filter(
        (samples["flow"] == flow) & samples["delivered_bytes"].is_not_null()
    ).sort("time_ns")
    if samples.is_empty():
        return None
    end_ns = result.flows.row(flow, named=True)["start_ns"] + _duration_ns(result, flow)
    return float(np.interp(end_ns, samples["time_ns"], samples["delivered_bytes"]))


def _is_channel(name: str) -> bool:
    return name.startswith(BACKGROUND)


def _job(cell: Cell, base: Data, seed: int, duration_s: int) -> EmulationJob:
    scenario = scenario_of(cell, base, BASE).to_dict()
    expected_s = duration_s + _OVERHEAD_S
    return EmulationJob(scenario, seed, max_s=duration_s, expected_s=expected_s, load=_LOAD)


def _simulated(table: tuple[Cell, ...], base: Data, seed: int) -> Mapping[Cell, Result]:
    """Return the simulated run of each cell: the same plan and seed."""
    started = utc_now()
    work = Work(executor=None, progress=None, total=0)
    jobs = {cell: jobs_of(cell, base, BASE, range(seed, seed + 1)) for cell in table}
    return {
        cell: outcome.result(started=started)
        for cell, outcomes in work.run(jobs).items()
        for outcome in outcomes
    }


def _row(figure: _Figure, cell: Cell, run: EmulatedRun | None, simulated: Result | None) -> Row:
    """Return a figure of a cell in both engines."""
    value = None if simulated is None else figure.of(simulated)
    emulated = None if run is None else figure.of(run.result)
    row = replace(
        listed_row(cell, Samples.of([value], exact=False)),
        labels={"figure": figure.name, **cell.labels},
        title=f"{figure.name}, {cell.title}",
        unit=figure.unit,
    )
    return real_row(row, run, emulated)


def _inputs(base: Data, table: tuple[Cell, ...]) -> tuple[Input, ...]:
    """Return the inputs of these cells; what is shorter here is not that of the source."""
    source = "A cell takes as long as its experiment: shorter than the 600 s of the source"
    return tuple(
        replace(each, provenance=Provenance.ASSUMED, source=source)
        if each.name in _SHORTER
        else each
        for each in inputs(base, table)
    )


def _notes(duration_s: int) -> tuple[str, ...]:
    return (
        f"Emulated and simulated: one run of each cell with the same plan and seed, {duration_s} s "
        f"instead of 600 s, with the transfer from {duration_s / 4:g} s to {duration_s * 3 / 4:g} "
        "s. The claims of the source are not decided here.",
        f"The server of the transfer has a line of {_SERVER_RATE} in both engines.",
        "Emulated: channels are kernel sockets, iperf3 sends the transfer, and PEP and tunnel are "
        "the daemon bentpipe-gate.",
        "iperf3 sends its first data when its server has read a cookie, so the emulated transfer "
        "begins some 0.35 s later than the simulated one.",
        "Both engines have the same downloads in the same order, but not the same losses; over so "
        "short a time a few large downloads decide how much of the link the transfer gets. One "
        "pair of runs has no interval.",
    )
