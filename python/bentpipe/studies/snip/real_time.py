"""The note's table and its TCP figures with real iperf3 and the kernel's TCP, in real time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Unpack

from bentpipe.live.pool import EmulatedRun
from bentpipe.results.measures import rate_bps
from bentpipe.results.views import Column
from bentpipe.scenario.schema import Scenario
from bentpipe.simulation.search import Limit, search_no_drop
from bentpipe.studies import RealOptions
from bentpipe.studies.base.comparison import Comparison, Row, Samples
from bentpipe.studies.base.inputs import Provenance, read_quantities, read_scenario
from bentpipe.studies.base.outcome import RealOutcome, cells_by_name, real_row
from bentpipe.studies.base.work import KERNEL_RENO, RealWork, Work, jobs_of, real_job
from bentpipe.studies.snip import measure, study

TCP: Final = "tcp"
# The first rates tried are this far below and above the simulator's rate, and so is each further
# step. The two differ: otherwise the first midpoint would be the simulator's own rate.
_STEP_DOWN: Final = 0.08
_STEP_UP: Final = 0.05
REAL_RESOLUTION: Final = 0.01
# The usual number of rounds of a search, and the number after which it ends without a rate.
_USUAL_ROUNDS: Final = 6
_MAX_ROUNDS: Final = 12
KERNEL_TCP: Final[dict[str, Any]] = {**KERNEL_RENO, "window_scaling": False}


@dataclass
class Bracket:
    """The rates, in bit/s of payload, between which the largest rate without a loss lies.

    The run at ``low_bps`` had no losses and the one at ``high_bps`` had some; None before a run.
    """

    start_bps: float
    low_bps: float | None = None
    high_bps: float | None = None

    def next_bps(self) -> float | None:
        """Return the next rate to try; None once the bracket is within the resolution."""
        if self.low_bps is None:
            return (self.high_bps or self.start_bps) * (1 - _STEP_DOWN)
        if self.high_bps is None:
            return max(self.low_bps, self.start_bps) * (1 + _STEP_UP)
        if self.high_bps - self.low_bps <= REAL_RESOLUTION * self.high_bps:
            return None
        return (self.low_bps + self.high_bps) / 2

    def record(self, rate_bps: float, *, lost: bool) -> None:
        """Record whether packets were lost at a rate."""
        if lost:
            self.high_bps = rate_bps
        else:
            self.low_bps = rate_bps


def run_real_time(**options: Unpack[RealOptions]) -> RealOutcome:
    """Run rows in real time: packet sizes and ``tcp``, a list with commas; None for all."""
    work = RealWork(**options)
    sizes, with_tcp = rows_named(work.chosen)
    windows = study.FITTED_WINDOWS if with_tcp else {}
    base = read_scenario("snip")
    work.total = _USUAL_ROUNDS * len(sizes) + len(windows)
    scenario = measure.scenario_of(base)
    simulated = (
        search_no_drop(scenario, sizes, resolution=measure.RESOLUTION, seed=work.seed)
        if sizes
        else None
    )
    found, last_runs = _search(
        base, {each: measure.converged(simulated, each) for each in sizes}, work
    )
    tcp_runs = work.run(
        {w: real_job(kernel_tcp_scenario(base, w), work.seed) for w in windows.values()}
    )
    tcp = _simulate_tcp(base, list(windows.values()), work.seed)
    # Every run is over: the published figures may be read.
    table = study.read_published_table()
    published = read_quantities("snip", study.FACTS_FILE) if windows else {}
    rates = [
        real_row(
            replace(
                study.table_row(size, table[size], "Mbit/s", simulated, Provenance.CALIBRATED),
                labels={"row": f"{size} bytes"},
                more={},
            ),
            last_runs.get(size),
            _found_mbps(found.get(size)),
        )
        for size in sizes
    ]
    tcp_rows = [
        real_row(
            Row(
                labels={"row": quantity},
                unit=published[quantity][1],
                published=published[quantity][0],
                simulated=tcp[window, False],
                provenance=Provenance.FITTED,
                tolerance=study.TOLERANCE,
            ),
            tcp_runs[window],
            _goodput_kbps(tcp_runs[window]),
            tcp[window, True],
        )
        for quantity, window in windows.items()
    ]
    return RealOutcome(
        study="snip",
        title="SnIP in real time: UDP rate without loss, and TCP over a satellite hop",
        inputs=study.inputs(base),
        comparisons={study.RATES: Comparison((*rates, *tcp_rows))},
        labels=(Column("row", "row"),),
        configuration=work.configuration(
            resolution=REAL_RESOLUTION,
            tcp=KERNEL_TCP,
            tcp_duration=measure.DEFAULTS.tcp_duration,
            scenario=base,
        ),
        interrupted=work.interrupted,
    )


def rows_named(chosen: str | None) -> tuple[tuple[int, ...], bool]:
    """Return the packet sizes in ``chosen``, and whether it contains ``tcp``; None means all.

    Raises:
        UsageError: there is no such row.
    """
    names = {size: str(size) for size in measure.DEFAULTS.sizes} | {0: TCP}
    how = f"Write packet sizes or tcp, with commas between them: {', '.join(names.values())}"
    found = names if chosen is None else cells_by_name(chosen, names, how)
    return tuple(size for size in measure.DEFAULTS.sizes if size in found), 0 in found


def kernel_tcp_scenario(base: Mapping[str, Any], window_bytes: int) -> Scenario:
    """Return the scenario of one transfer with a window, with settings that the kernel has."""
    data = measure.tcp_scenario(base, window_bytes, measure.DEFAULTS.tcp_duration).to_dict()
    (flow,) = data["traffic"]
    flow["profile"] = "linux"
    buffer = f"{window_bytes} B"
    flow["tcp"] = KERNEL_TCP | {"receive_buffer": buffer, "receive_buffer_initial": buffer}
    return Scenario.from_dict(data)


def _search(
    base: Mapping[str, Any], simulated: Mapping[int, Limit | None], work: RealWork
) -> tuple[dict[int, Bracket], dict[int, EmulatedRun]]:
    """Bisect the rates of all sizes in parallel; return the bracket and the last run of each size.

    A run that was late in every attempt ends the search of its size.
    """
    brackets = {
        size: Bracket(start_bps=each.passes)
        for size, each in simulated.items()
        if each is not None and each.passes is not None
    }
    last_runs: dict[int, EmulatedRun] = {}
    for _ in range(_MAX_ROUNDS):
        rates = {
            size: rate
            for size, bracket in brackets.items()
            if not _is_late(last_runs.get(size)) and (rate := bracket.next_bps()) is not None
        }
        if not rates or work.interrupted:
            break
        trials = {
            size: real_job(
                measure.iperf_scenario(measure.scenario_of(base), size, round(rate)), work.seed
            )
            for size, rate in rates.items()
        }
        for size, run in work.run(trials).items():
            if run is not None:
                last_runs[size] = run
                if not _is_late(run):
                    brackets[size].record(rates[size], lost=_lost(run))
    return brackets, last_runs


def _is_late(run: EmulatedRun | None) -> bool:
    return run is not None and run.invalid is not None


def _lost(run: EmulatedRun) -> bool:
    flow = run.result.tables["flows"].row(0, named=True)
    return bool(flow["received_segments"] < flow["sent_segments"])


def _found_mbps(bracket: Bracket | None) -> float | None:
    if bracket is None or bracket.low_bps is None or bracket.next_bps() is not None:
        return None
    return bracket.low_bps / 1e6


def _simulate_tcp(
    base: Mapping[str, Any], windows: Sequence[int], seed: int
) -> dict[tuple[int, bool], Samples]:
    """Return the goodput by window, in kbit/s, of the study's hosts and of the kernel's."""
    work = Work("snip", seed=seed)
    scenarios = {
        (w, False): measure.tcp_scenario(base, w, measure.DEFAULTS.tcp_duration) for w in windows
    }
    scenarios |= {(w, True): kernel_tcp_scenario(base, w) for w in windows}
    jobs = {key: jobs_of(scenario, work.seeds(1)) for key, scenario in scenarios.items()}
    return {
        key: Samples.of((measure.goodput_bps(run) / 1e3 for run in outcomes), exact=True)
        for key, outcomes in work.run(jobs).items()
    }


def _goodput_kbps(run: EmulatedRun | None) -> float | None:
    if run is None:
        return None
    delivered_bytes = run.result.tables["flows"]["delivered_bytes"][0]
    return float(rate_bps(delivered_bytes, run.result.plan["stop_ns"])) / 1e3
