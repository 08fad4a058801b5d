"""The study: files, streams and a conference on one network, compared with the published rows.

The published figures are read after the last run, so that no run can depend on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from bentpipe import _core
from bentpipe.plan.plan import Plan
from bentpipe.simulation.many import Job
from bentpipe.studies.base import tables
from bentpipe.studies.base.outcome import StudyOutcome
from bentpipe.studies.base.provenance import Input, read_inputs
from bentpipe.studies.base.work import Work
from bentpipe.studies.hermes import (
    compare,
    conference,
    network,
    plots,
    sessions,
    streams,
    transfers,
)
from bentpipe.studies.hermes.network import LARGE_MSS_BYTES, MSS_BYTES, Case, Found, Network
from bentpipe.sweeps.executor import Executor

if TYPE_CHECKING:
    from rich.console import RenderableType

DEFAULT_RUNS: Final = 5
_HERE: Final = Path(__file__).parent


@dataclass(frozen=True, kw_only=True)
class HermesOutcome(StudyOutcome):
    """The rows of the source, and the figures of all cases by part."""

    folder: ClassVar[Path] = _HERE

    found: Found
    parts: Mapping[str, tuple[Case, ...]]
    asymmetries: tuple[sessions.Asymmetry, ...]

    @property
    def facts(self) -> str:
        """The line under the report's title."""
        return (
            f"{super().facts}; first seed {self.configuration['first_seed']}; "
            f"{self.configuration['runs_of_a_stochastic_case']} runs of each stochastic case, one "
            "of each other"
        )

    def extras(self) -> dict[str, Any]:
        """Return the figures that have no published value."""
        found = self.found
        return {
            "window_bound_error_percent_largest": transfers.largest_window_error_percent(
                found, MSS_BYTES
            ),
            **{
                f"conference_participants_max{name}": {
                    str(rate_kbps): conference.max_participants(found, rate_kbps, copies).mean
                    for rate_kbps in conference.RATES_KBPS
                }
                for name, copies in (("", "each"), ("_one_copy", "one"))
            },
            "upstream_without_loss_kbps": conference.max_upstream_kbps(found),
            "asymmetry": [asdict(each) for each in self.asymmetries],
            **{part: [found.row(case) for case in cases] for part, cases in self.parts.items()},
        }

    def terminal(self) -> Iterator[RenderableType]:
        """Yield the table, its errors, and the rows outside the tolerance with their reasons."""
        title = f"Published vs. simulated (tolerance {compare.TOLERANCE})"
        yield tables.terminal_table(title, columns(), self.main.rows)
        yield ""
        yield from self.headline()
        for row in self.main.outside:
            yield f"Outside: {row.name}: {tables.row_text(row)}. {row.reason}"

    def context(self) -> dict[str, Any]:
        """Return columns, published values, and the modules whose figures the template prints."""
        return {
            "columns": columns(how=True),
            "other_mss": self.comparisons[compare.OTHER_MSS].rows,
            "other_columns": [each for each in columns() if each is not tables.AGREEMENT],
            "published": {row.name: row.published for row in self.main.rows},
            "found": self.found,
            "mean_text": tables.mean_text,
            "compare": compare,
            "conference": conference,
            "network": network,
            "plots": plots,
            "sessions": sessions,
            "streams": streams,
            "transfers": transfers,
        }


def columns(*, how: bool = False) -> tuple[tables.Column, ...]:
    """Return the columns of the rows; ``how`` has the remarks, too."""
    remarks = (tables.Column(heading="how", text=lambda row: row.how, is_text=True),)
    return (
        tables.label("quantity", "quantity"),
        *tables.figures(None, error_unit="%", error_digits=1),
        tables.UNIT,
        tables.AGREEMENT,
        tables.PROVENANCE,
        *(remarks if how else ()),
    )


def parts() -> dict[str, tuple[Case, ...]]:
    """Return all cases of all parts, in the order of the report."""
    return {
        "round_trip": (transfers.PingCase(),),
        "windows": transfers.ideal_cases(),
        "windows_on_the_network": transfers.network_cases(),
        "files": transfers.fetch_cases(),
        "sessions": sessions.session_cases(),
        "streams": streams.STREAMS,
        "upstream": conference.upstream_cases(),
        "conference": conference.conference_cases(),
    }


def run(
    *,
    runs: int | None = None,
    seed: int = 1,
    executor: Executor | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> HermesOutcome:
    """Simulate all cases, then read the published rows and compare.

    ``runs`` (default 5) is the number of runs of a stochastic case, with the seeds ``seed``,
    ``seed`` + 1, ...; a deterministic case runs once.
    """
    count = DEFAULT_RUNS if runs is None else runs
    base = Network()
    all_parts = parts()
    jobs = {
        case: [
            Job(plan=case.plan(base, each), seed=each)
            for each in range(seed, seed + (count if case.is_stochastic else 1))
        ]
        for cases in all_parts.values()
        for case in cases
    }
    work = Work(executor=executor, progress=progress, total=sum(map(len, jobs.values())))
    outcomes = work.run(jobs)
    found = Found({case: [case.measure(each) for each in outcomes[case]] for case in jobs})
    return HermesOutcome(
        study="hermes",
        title="HERMES: files, streams and a conference over satellite and ISDN",
        inputs=inputs(base.data),
        comparisons=compare.compare(found),
        configuration={
            "bentpipe_version": _core.version(),
            "first_seed": seed,
            "runs_of_a_stochastic_case": count,
            "runs_of_a_deterministic_case": 1,
            "scenario": base.data,
        },
        interrupted=work.interrupted,
        found=found,
        parts=all_parts,
        asymmetries=tuple(sessions.asymmetry(base, mss) for mss in (MSS_BYTES, LARGE_MSS_BYTES)),
    )


def inputs(scenario: Mapping[str, Any]) -> tuple[Input, ...]:
    """Return the inputs with their provenance."""
    plan: Mapping[str, Any] = Plan.resolve(dict(scenario)).data
    hops = plan["directions"][:2]
    rates_bps = [hop["rate_bps"]["value"] for hop in hops]
    queues_bytes = [hop["queue"]["limit"]["value"] for hop in hops]
    played = (streams.STREAM, streams.BUFFERING, streams.CLIP)
    values = {
        "forward rate": f"{rates_bps[0] / 1e6:g} Mbit/s",
        "return rate": f"{rates_bps[1] / 1e3:g} kbit/s",
        "round-trip delay": f"{sum(hop['delay_ns']['value'] for hop in hops) / 1e6:g} ms",
        "queues": f"{queues_bytes[0]} B and {queues_bytes[1]} B",
        "8 KB window": f"{network.DEFAULT_WINDOW_BYTES} B",
        "ping payload": f"{transfers.PING_BYTES} B",
        "payload of streams": f"{streams.STREAM_PAYLOAD_BYTES} B",
        "starts of streams": "0 s; participants within one interval",
        "rates of streams": f"{_list(each.rate_kbps for each in played)} kbit/s",
        "sessions": f"{sessions.SEVERAL[0]} to {sessions.SEVERAL[-1]}",
        "pause between images": f"{sessions.THINK_S[sessions.ASSUMED_LOAD]} s",
        "rates of participants": f"{_list(conference.RATES_KBPS)} kbit/s",
        "payload of participants": f"{conference.PAYLOAD_BYTES} B",
        "copies": "a copy for each",
        "tolerable loss": f"{conference.TOLERABLE_LOSS_PERCENT:g} %",
    }
    return read_inputs(_HERE / "inputs.csv", scenario, values)


def _list(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))
