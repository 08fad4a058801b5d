"""The study: files, streams and a conference on one network, compared with the published rows.

The published figures are read after the last run, so that no run can depend on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from bentpipe.plan.plan import Plan
from bentpipe.results.views import View
from bentpipe.simulation.many import Job
from bentpipe.studies.base import tables
from bentpipe.studies.base.outcome import StudyOutcome
from bentpipe.studies.base.provenance import Input, read_inputs
from bentpipe.studies.base.tables import mean_text
from bentpipe.studies.base.work import Work
from bentpipe.studies.hermes import compare, network, plots, streams, transfers
from bentpipe.studies.hermes.network import LARGE_MSS_BYTES, MSS_BYTES, Case, Found, Network

if TYPE_CHECKING:
    from typing import Unpack

    from bentpipe.studies import RunOptions

_view: Final = partial(tables.view, "hermes")
_UNTUNED, _TUNED = network.DEFAULT_WINDOW_BYTES, network.TUNED_WINDOW_BYTES


@dataclass(frozen=True, kw_only=True)
class HermesOutcome(StudyOutcome):
    """The rows of the source, and the figures of all cases by part."""

    found: Found
    parts: Mapping[str, tuple[Case, ...]]
    asymmetries: tuple[transfers.Asymmetry, ...]

    def extras(self) -> dict[str, Any]:
        """Return the figures that have no published value."""
        found = self.found
        return {
            "window_bound_error_percent_largest": transfers.largest_window_error_percent(
                found, MSS_BYTES
            ),
            **{
                f"conference_participants_max{name}": {
                    str(rate_kbps): streams.max_participants(found, rate_kbps, copies).mean
                    for rate_kbps in streams.RATES_KBPS
                }
                for name, copies in (("", "each"), ("_one_copy", "one"))
            },
            "upstream_without_loss_kbps": streams.max_upstream_kbps(found),
            "asymmetry": [asdict(each) for each in self.asymmetries],
            **{part: [found.row(case) for case in cases] for part, cases in self.parts.items()},
        }

    def terminal(self) -> Iterator[View | str]:
        """Yield the table, its errors, and the rows outside the tolerance with their reasons."""
        yield _view("terminal", self.main.rows, tolerance=compare.TOLERANCE)
        yield ""
        yield from self.headline()
        for row in self.main.outside:
            yield f"Outside: {row.name}: {tables.row_text(row)}. {row.reason}"

    def context(self) -> dict[str, Any]:
        """Return tables, published values, and the modules whose figures the template prints."""
        return {
            "main_table": _view("main", self.main.rows, tolerance=compare.TOLERANCE),
            "other_table": _view("other", self.comparisons[compare.OTHER_MSS].rows),
            "windows_table": self._windows_view(),
            **self._cases_views(),
            "published": {row.name: row.published for row in self.main.rows},
            "found": self.found,
            "mean_text": mean_text,
            "tolerances": (compare.TOLERANCE,),
            "compare": compare,
            "network": network,
            "plots": plots,
            "streams": streams,
            "transfers": transfers,
        }

    def _windows_view(self) -> View:
        rows: list[list[Any]] = [
            [
                case.round_trip_ms,
                case.window_bytes,
                case.bound_bps / 1e6,
                case.bound_whole_segments_bps / 1e6,
                self.found.samples(case, "goodput_bps", 1e6),
                transfers.window_error_percent(self.found, case),
            ]
            for case in transfers.ideal_cases(MSS_BYTES)
        ]
        return _view("ideal", rows)

    def _cases_views(self) -> dict[str, View]:
        eight, case = transfers.SEVERAL[-1], transfers.SessionsCase
        files = {
            (size / 1e3,): tuple(transfers.FetchCase(size, w) for w in (_UNTUNED, _TUNED))
            for size in transfers.SIZES_BYTES
        }
        alone = {(n,): (case(n, _TUNED),) for n in transfers.SESSIONS}
        loads = {(load,): (case(eight, _TUNED, load),) for load in transfers.LOADS}
        sent = {(each.name, each.rate_kbps * each.copies): (each,) for each in streams.STREAMS}
        conference = {
            (each.rate_kbps, each.participants): (each,)
            for each in streams.conference_cases()
            if each.copies == "each"
        }
        every: dict[str, Mapping[tuple[Any, ...], Sequence[Case]]] = {
            "files": files,
            "sessions": alone,
            "loads": loads,
            "streams": sent,
            "conference": conference,
        }
        return {f"{name}_table": self._cases_view(name, lines) for name, lines in every.items()}

    def _cases_view(self, name: str, lines: Mapping[tuple[Any, ...], Sequence[Case]]) -> View:
        """Return a table of cases, with labels and figures as in tables.csv."""
        key = len(next(iter(lines)))
        names = [column.name for column in tables.columns("hermes", name)[key:]]
        figures = [each.partition(" /") for each in names]
        rows = []
        for label, cases in lines.items():
            each = len(figures) // len(cases)
            values = (
                self.found.samples(cases[i // each], figure, float(size or 1))
                for i, (figure, _, size) in enumerate(figures)
            )
            rows.append([*label, *values])
        return _view(name, rows, sessions=transfers.SEVERAL[-1])


def parts() -> dict[str, tuple[Case, ...]]:
    """Return all cases of all parts, in the order of the report."""
    return {
        "round_trip": (transfers.PingCase(),),
        "windows": transfers.ideal_cases(),
        "windows_on_the_network": transfers.network_cases(),
        "files": transfers.fetch_cases(),
        "sessions": transfers.session_cases(),
        "streams": streams.STREAMS,
        "upstream": streams.upstream_cases(),
        "conference": streams.conference_cases(),
    }


def run(**options: Unpack[RunOptions]) -> HermesOutcome:
    """Simulate all cases, then read the published rows and compare.

    A deterministic case runs once.
    """
    work = Work("hermes", **options)
    base = Network()
    all_parts = parts()
    jobs = {
        case: [
            Job(plan=case.plan(base, seed), seed=seed)
            for seed in work.seeds(None if case.is_stochastic else 1)
        ]
        for cases in all_parts.values()
        for case in cases
    }
    outcomes = work.run(jobs)
    found = Found({case: [case.measure(each) for each in outcomes[case]] for case in jobs})
    return HermesOutcome(
        study="hermes",
        title="HERMES: files, streams and a conference over satellite and ISDN",
        inputs=inputs(base.data),
        comparisons=compare.compare(found),
        configuration=work.configuration(
            runs_of_a_stochastic_case=work.runs,
            runs_of_a_deterministic_case=1,
            scenario=base.data,
        ),
        interrupted=work.interrupted,
        about_runs=f"first seed {work.seed}; {work.runs} runs of each stochastic case, one of each "
        "other",
        found=found,
        parts=all_parts,
        asymmetries=tuple(transfers.asymmetry(base, mss) for mss in (MSS_BYTES, LARGE_MSS_BYTES)),
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
        "8 KB window": f"{_UNTUNED} B",
        "ping payload": f"{transfers.PING_BYTES} B",
        "payload of streams": f"{network.STREAM_PAYLOAD_BYTES} B",
        "starts of streams": "0 s; participants within one interval",
        "rates of streams": f"{_list(each.rate_kbps for each in played)} kbit/s",
        "sessions": f"{transfers.SEVERAL[0]} to {transfers.SEVERAL[-1]}",
        "pause between images": f"{transfers.THINK_S[transfers.ASSUMED_LOAD]} s",
        "rates of participants": f"{_list(streams.RATES_KBPS)} kbit/s",
        "payload of participants": f"{streams.PAYLOAD_BYTES} B",
        "copies": "a copy for each",
        "tolerable loss": f"{streams.TOLERABLE_LOSS_PERCENT:g} %",
    }
    return read_inputs("hermes", scenario, values)


def _list(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))
