"""The note's table and its TCP figures with real iperf3 and the kernel's TCP, in real time."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bentpipe import _core
from bentpipe.emulation.pool import RealJob, RealRun, emulate_all
from bentpipe.errors import UsageError
from bentpipe.plan.resolver import from_dict, resolve
from bentpipe.plan.resolver import 
from bentpipe.scenario.schema import Scenario
from bentpipe.simulation.many import Job, run_many
from bentpipe.simulation.search import no_drop_rate
from bentpipe.studies._real_time import RealCell, RealOutcome, late
from bentpipe.studies.snip._facts import FITTED_WINDOWS
from bentpipe.studies.snip._measure import (
    RESOLUTION,
    SIZES,
    TCP_DURATION,
    base_scenario,
    table_scenario,
    tcp_scenario,
)
from bentpipe.studies.snip.study import read_published_facts, read_published_table
from bentpipe.units import parse_duration

TCP: Final = "tcp"
# The first rates that are tried stand so far below and above the simulator's, and the steps beyond
# them are as large. Not as far, or half-way between them would be the simulator's own.
_STEP_DOWN: Final = 0.08
_STEP_UP: Final = 0.05
REAL_RESOLUTION: Final = 0.01
# A rate that is never found ends the search.
_MAX_ROUNDS: Final = 12
_NS_PER_S: Final = 1e9
_NOTES: Final = (
    "Emulated rows: iperf3 sends ten seconds of datagrams through processor and link; the largest "
    "rate without a loss is bisected to 1 %, beginning about the simulator's. Losses are counted "
    "at the link, since iperf3's receiver loses some itself.",
    "iperf3 sends in bursts of a millisecond, which the buffer of 50 packets takes.",
    "TCP: goodput over the hop with the windows that the study chose to fit the note; the "
    "kernel's Reno without SACK and timestamps. The kernel's hosts: the simulator with the "
    "settings that the kernel has.",
    "Asked for 17,520 and 57,344 bytes of window, Linux 6.18 carried as much as larger ones would: "
    "it derives the window from its memory. That is a miss of the settings, not of the model.",
)


@dataclass
class Bracket:
    """Between which rates, in bit/s of payload, the largest without a loss lies.

    ``low`` had none and ``high`` had some, once they are known.
    """

    start: float
    low: float | None = None
    high: float | None = None

    def next_rate(self) -> float | None:
        """Return the rate to try next, None when the two are close enough."""
        if self.low is None:
            return (self.high or self.start) * (1 - _STEP_DOWN)
        if self.high is None:
            return max(self.low, self.start) * (1 + _STEP_UP)
        if self.high - self.low <= REAL_RESOLUTION * self.high:
            return None
        return (self.low + self.high) / 2

    def tried(self, rate: float, *, lost: bool) -> None:
        """Note how a rate did."""
        if lost:
            self.high = rate
        else:
            self.low = rate


def run_real_time(
    *,
    chosen: str | None,
    seed: int,
    parallel: int,
    progress: Callable[[float], None],
) -> RealOutcome:
    """Run rows in real time: packet sizes and ``tcp``, a list with commas; None for all.

    Raises:
        UsageError: a row is not in the table.
        MachineError: the machine lacks something.
    """
    sizes, with_tcp = rows_named(chosen)
    base = base_scenario()
    counter = _Counter(progress, rounds=6, sizes=len(sizes), with_tcp=with_tcp)
    simulated = _simulated_rates(base, sizes, seed)
    found, last_runs = _search(base, simulated, seed, parallel, counter)
    tcp_runs = _run_tcp(base, seed, parallel, counter) if with_tcp and not counter.stopped else {}
    hosts = _simulate_tcp(base, seed) if with_tcp else {}
    # Every run is over: what was published may be read.
    return RealOutcome(
        study="snip",
        title="SnIP in real time: UDP rate without loss, and TCP over a satellite hop",
        label_names=("row",),
        cells=(
            *_rows(sizes, simulated, found, last_runs),
            *(_tcp_rows(hosts, tcp_runs) if with_tcp else ()),
        ),
        notes=_NOTES,
        configuration={
            "bentpipe_version": _core.version(),
            "seed": seed,
            "parallel": parallel,
            "resolution": REAL_RESOLUTION,
            "tcp": KERNEL_TCP,
            "tcp_duration": TCP_DURATION,
            "scenario": base,
        },
        interrupted=counter.stopped,
    )


def rows_named(chosen: str | None) -> tuple[tuple[int, ...], bool]:
    """Return the sizes that are asked for, and whether TCP is.

    Raises:
        UsageError: there is no such row.
    """
    if chosen is None:
        return SIZES, True
    names = [name.strip() for name in chosen.split(",")]
    known = [str(size) for size in SIZES]
    for name in names:
        if name != TCP and name not in known:
            raise UsageError(
                f'cells: read "{name}"; write packet sizes ({", ".join(known)}) or tcp, with '
                "commas between them"
            )
    return tuple(size for size in SIZES if str(size) in names), TCP in names


class _Counter:
    """Turns rounds of runs into one progress; knows whether Ctrl-C was pressed."""

    def __init__(
        self,
        progress: Callable[[float], None],
        *,
        rounds: int,
        sizes: int,
        with_tcp: bool,
    ) -> None:
        self.stopped = False
        self._progress = progress
        self._total = rounds * sizes + with_tcp * len(FITTED_WINDOWS)
        self._done = 0

    def run(self, scenarios: Sequence[Scenario], seed: int, parallel: int) -> list[RealRun | None]:
        def share(of_these: float) -> None:
            self._progress(min(1.0, (self._done + of_these * len(scenarios)) / self._total))

        runs = emulate_all(
            [_job(each, seed) for each in scenarios], parallel=parallel, progress=share
        )
        self._done += len(scenarios)
        self.stopped = None in runs
        return runs


def _job(scenario: Scenario, seed: int) -> RealJob:
    whole_s = resolve(scenario)["stop_ns"] / _NS_PER_S
    return RealJob(scenario.to_dict(), seed, longest_s=whole_s, usual_s=whole_s)


# --- the table ----------------------------------------------------------------------------------


def _simulated_rates(base: Mapping[str, Any], sizes: Sequence[int], seed: int) -> dict[int, float]:
    if not sizes:
        return {}
    found = no_drop_rate(table_scenario(base), sizes, resolution=RESOLUTION, seed=seed)
    rates = {size: found.rate(size).rate_bps for size in sizes}
    return {size: rate for size, rate in rates.items() if rate is not None}


def _search(
    base: Mapping[str, Any],
    simulated: Mapping[int, float],
    seed: int,
    parallel: int,
    counter: _Counter,
) -> tuple[dict[int, Bracket], dict[int, RealRun]]:
    """Bisect all sizes in step; return the brackets and the last run of each size.

    One that was late to the end is the last one.
    """
    brackets = {size: Bracket(start=rate) for size, rate in simulated.items()}
    last_runs: dict[int, RealRun] = {}
    for _ in range(_MAX_ROUNDS):
        rates = {
            size: rate
            for size, bracket in brackets.items()
            if not _is_late(last_runs.get(size)) and (rate := bracket.next_rate()) is not None
        }
        if not rates:
            break
        scenarios = [_trial(base, size, rate) for size, rate in rates.items()]
        for (size, rate), run in zip(
            rates.items(), counter.run(scenarios, seed, parallel), strict=True
        ):
            if run is None:
                continue
            last_runs[size] = run
            if not _is_late(run):
                brackets[size].tried(rate, lost=_lost(run))
        if counter.stopped:
            break
    return brackets, last_runs


def _is_late(run: RealRun | None) -> bool:
    return run is not None and run.invalid is not None


def _trial(base: Mapping[str, Any], size: int, rate_bps: float) -> Scenario:
    data = table_scenario(base).to_dict()
    data["name"] = f"{data['name']}, {size} bytes"
    data["traffic"][0] |= {"payload": f"{size} B", "rate": f"{round(rate_bps)} bit/s"}
    return from_dict(data)


def _lost(run: RealRun) -> bool:
    flow = run.result.tables["flows"].row(0, named=True)
    return bool(flow["received_segments"] < flow["sent_segments"])


def _rows(
    sizes: Sequence[int],
    simulated: Mapping[int, float],
    found: Mapping[int, Bracket],
    last_runs: Mapping[int, RealRun],
) -> list[RealCell]:
    table = read_published_table()
    cells = []
    for size in sizes:
        bracket = found.get(size, Bracket(0.0))
        converged = bracket.low is not None and bracket.next_rate() is None
        emulated = (bracket.low or 0.0) / 1e6 if converged else None
        published, rate_bps = table[size], simulated.get(size)
        cells.append(
            RealCell(
                labels={"row": f"{size} bytes"},
                unit="Mbit/s",
                published=published.rate_mbps,
                simulated=None if rate_bps is None else rate_bps / 1e6,
                simulated_kernel_hosts=None,
                emulated=emulated,
                **late(last_runs.get(size)),
            )
        )
    return cells


# --- TCP ----------------------------------------------------------------------------------------

KERNEL_TCP: Final[dict[str, Any]] = {
    "congestion_control": "reno",
    "sack": False,
    "timestamps": False,
    "rack_tlp": False,
    "window_scaling": False,
    "receive_buffer_counts": "window",
    "initial_window": 1,
}


def kernel_tcp_scenario(base: Mapping[str, Any], window_bytes: int) -> Scenario:
    """Return the scenario of one transfer with a window, with hosts that the kernel can be."""
    data = copy.deepcopy(tcp_scenario(base, window_bytes).to_dict())
    (flow,) = data["traffic"]
    flow["profile"] = "linux"
    buffer = f"{window_bytes} B"
    flow["tcp"] = KERNEL_TCP | {"receive_buffer": buffer, "receive_buffer_initial": buffer}
    return from_dict(data)


def _run_tcp(
    base: Mapping[str, Any], seed: int, parallel: int, counter: _Counter
) -> dict[int, RealRun | None]:
    windows = list(FITTED_WINDOWS.values())
    scenarios = [kernel_tcp_scenario(base, window) for window in windows]
    return dict(zip(windows, counter.run(scenarios, seed, parallel), strict=True))


def _simulate_tcp(base: Mapping[str, Any], seed: int) -> dict[int, tuple[float, float]]:
    """Return the goodput by window, in kbit/s, of the study's hosts and of the kernel's."""
    windows = list(FITTED_WINDOWS.values())
    scenarios = [
        each for w in windows for each in (tcp_scenario(base, w), kernel_tcp_scenario(base, w))
    ]
    rates: dict[int, float] = {}
    for outcome in run_many([Job(plan=resolve(each), seed=seed) for each in scenarios]):
        rates[outcome.index] = _goodput_kbps(int(outcome.column("flows", "delivered_bytes")[0]))
    return {window: (rates[2 * i], rates[2 * i + 1]) for i, window in enumerate(windows)}


def _tcp_rows(
    hosts: Mapping[int, tuple[float, float]], runs: Mapping[int, RealRun | None]
) -> list[RealCell]:
    published = read_published_facts()
    cells = []
    for quantity, window in FITTED_WINDOWS.items():
        figure, unit = published[quantity]
        old, new = hosts[window]
        run = runs.get(window)
        emulated = None
        if run is not None:
            emulated = _goodput_kbps(int(run.result.tables["flows"]["delivered_bytes"][0]))
        cells.append(
            RealCell(
                labels={"row": quantity},
                unit=unit,
                published=figure,
                simulated=old,
                simulated_kernel_hosts=new,
                emulated=emulated,
                **late(run),
            )
        )
    return cells


def _goodput_kbps(delivered_bytes: int) -> float:
    return 8 * delivered_bytes / (parse_duration(TCP_DURATION) / _NS_PER_S) / 1e3
