"""The study: files, streams and a conference on one network, compared with the published rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from matplotlib.figure import Figure

from bentpipe.report import INK, MUTED, PALETTE, add_legend, new_figure
from bentpipe.results import View
from bentpipe.studies.base import tables
from bentpipe.studies.base.comparison import Comparison, Samples, quantity_rows, read_tolerances
from bentpipe.studies.base.inputs import read_scenario
from bentpipe.studies.base.outcome import StudyOutcome
from bentpipe.studies.base.tables import HOLLOW, mean_text, plot_samples
from bentpipe.studies.base.work import Work
from bentpipe.studies.hermes import network, streams, transfers
from bentpipe.studies.hermes.network import LARGE_MSS_BYTES, MSS_BYTES, Case, Found, case_to_json
from bentpipe.studies.hermes.streams import PARTICIPANTS, RATES_KBPS, ConferenceCase
from bentpipe.studies.hermes.transfers import (
    ASSUMED_LOAD,
    NONE,
    ROUND_TRIPS_MS,
    SESSIONS,
    SIZES_BYTES,
    WINDOWS_BYTES,
    FetchCase,
    IdealPathCase,
    LongTransferCase,
    SessionsCase,
)

ROWS, OTHER_MSS = "rows", "mss_1460"
(TOLERANCE,) = read_tolerances("hermes")
# A row of TCP is calibrated if the other MSS moves it by more than this.
MIN_CALIBRATED_PERCENT: Final = 2.0

_TUNED: Final = network.TUNED_WINDOW_BYTES
TCP_LIMIT: Final = "TCP limit with a 64 KB window"
HTTP: Final = {
    network.DEFAULT_WINDOW_BYTES: "HTTP throughput with the default 8 KB window",
    _TUNED: "HTTP throughput measured with a 64 KB window",
}
IMAGE_TIME: Final = "DICOM image must show within"
SESSIONS_MAX: Final = "maximum TCP throughput with several sessions on one client"

_IMAGE_LIMIT_S: Final = 10


def compare(measured: Found) -> dict[str, Comparison]:
    """Read the published figures and compare all rows, and those of TCP with the other MSS."""
    main, other = simulated(measured), tcp(measured, network.LARGE_MSS_BYTES)
    rows = quantity_rows("hermes", "published.csv", main.__getitem__, tolerance=TOLERANCE)
    others = (
        replace(row, simulated=other[row.name], judged=False) for row in rows if row.name in other
    )
    return {ROWS: Comparison(rows), OTHER_MSS: Comparison(tuple(others))}


def simulated(measured: Found) -> dict[str, Samples]:
    """Return the simulated values of all rows."""
    best = transfers.best_of_several(measured, transfers.ASSUMED_LOAD)
    lowest, middle, highest = streams.RATES_KBPS
    upstream = "upstream each participant manages over ISDN"
    received = {
        "UDP stream played without tuning": streams.STREAM,
        "UDP stream reception while buffering; highest seen": streams.BUFFERING,
        "video clip multicast from the operating theatre": streams.CLIP,
        f"{upstream}; lowest": streams.UpstreamCase(lowest),
        f"{upstream}; highest": streams.UpstreamCase(highest),
    }
    constants = {
        "DICOM image size (512 x 512 x 16 bit)": network.IMAGE_BYTES / 1e3,
        "throughput that the DICOM image needs": network.IMAGE_BYTES * 8 / _IMAGE_LIMIT_S / 1e3,
        "medical centres in the network": network.SITES,
    }
    participants = "videoconference participants in continuous presence"
    return {
        **tcp(measured, network.MSS_BYTES),
        **{name: measured[case].of("received_bps", 1e3) for name, case in received.items()},
        **{name: Samples((value,), exact=True) for name, value in constants.items()},
        "round-trip time": measured[transfers.PingCase()]["round_trip_ms"],
        "forward rate": measured[streams.FORWARD_FLOOD].of("link_bps", 1e6),
        "return rate": measured[streams.RETURN_FLOOD].of("link_bps", 1e3),
        SESSIONS_MAX: measured[best].of("goodput_bps", 1e6),
        participants: streams.max_participants(measured, middle),
    }


def tcp(measured: Found, mss_bytes: int) -> dict[str, Samples]:
    """Return the simulated values of the rows of single TCP connections."""
    fetches = [FetchCase(network.IMAGE_BYTES, window, mss_bytes) for window in HTTP]
    rates = measured.line(fetches, "throughput_bps", 1e3)
    return {
        TCP_LIMIT: measured[LongTransferCase(_TUNED, mss_bytes)].of("goodput_bps", 1e6),
        **dict(zip(HTTP.values(), rates, strict=True)),
        IMAGE_TIME: measured[fetches[-1]]["time_s"],
    }


_WINDOWS: Final = {"8 KB": network.DEFAULT_WINDOW_BYTES, "64 KB": network.TUNED_WINDOW_BYTES}

Points = Mapping[str, float]


def window_figure(measured: Found, published: Points) -> Figure:
    """Draw goodput over window: the bound as lines, the simulation as marks."""
    figure, (axes,) = new_figure(1, 1, height_in=4.0)
    sizes_kib = [window_bytes / 1024 for window_bytes in WINDOWS_BYTES]
    for colour, round_trip_ms in zip(PALETTE, ROUND_TRIPS_MS, strict=False):
        ideal = [IdealPathCase(window_bytes, round_trip_ms) for window_bytes in WINDOWS_BYTES]
        bounds = [case.bound_bps / 1e6 for case in ideal]
        axes.plot(sizes_kib, bounds, color=colour, label=f"window / {round_trip_ms} ms")
        goodputs = measured.line(ideal, "goodput_bps", 1e6)
        plot_samples(axes, sizes_kib, goodputs, color=colour, marker="o", **HOLLOW)
    goodputs = measured.line(map(LongTransferCase, WINDOWS_BYTES), "goodput_bps", 1e6)
    style = {"label": "on the network", "marker": "D", **HOLLOW}
    plot_samples(axes, sizes_kib, goodputs, color=PALETTE[3], **style)
    axes.plot([64], [published[TCP_LIMIT]], color=INK, label="published", marker="x", **HOLLOW)
    axes.set_xscale("log", base=2)
    axes.set(yscale="log", xlabel="Window [KiB]", ylabel="Goodput [Mbit/s]")
    axes.set_yticks([0.1, 1, 10], ["0.1", "1", "10"])
    axes.set_xticks(sizes_kib, [f"{size_kib:.0f}" for size_kib in sizes_kib])
    add_legend(axes)
    return figure


def file_figure(measured: Found, published: Points) -> Figure:
    """Draw the throughput of a file over its size."""
    figure, (axes,) = new_figure(1, 1, height_in=3.6)
    sizes_kb = [size_bytes / 1e3 for size_bytes in SIZES_BYTES]
    for colour, (name, window) in zip(PALETTE, _WINDOWS.items(), strict=False):
        for mss, style in ((network.MSS_BYTES, "-"), (network.LARGE_MSS_BYTES, "--")):
            cases = (FetchCase(size_bytes, window, mss) for size_bytes in SIZES_BYTES)
            rates = measured.line(cases, "throughput_bps", 1e3)
            label = f"{name}, MSS {mss} B"
            plot_samples(axes, sizes_kb, rates, color=colour, linestyle=style, label=label)
        rate = published[HTTP[window]]
        axes.plot([network.IMAGE_BYTES / 1e3], [rate], color=colour, marker="o", **HOLLOW)
    axes.set(xscale="log", xlabel="File [kB]", ylabel="Throughput [kbit/s]")
    axes.set_xticks([10, 100, 1000], ["10", "100", "1000"])
    axes.set_ylim(bottom=0)
    add_legend(axes)
    return figure


def session_figure(measured: Found, asymmetry: Mapping[str, float], published: Points) -> Figure:
    """Draw the goodput of all sessions over their number."""
    figure, (axes,) = new_figure(1, 1, height_in=3.8)
    for colour, (name, window) in zip(PALETTE, _WINDOWS.items(), strict=False):
        for load, style, words in ((NONE, "-", ""), (ASSUMED_LOAD, "--", ", with images")):
            cases = (SessionsCase(sessions, window, load) for sessions in SESSIONS)
            rates = measured.line(cases, "goodput_bps", 1e6)
            label = f"{name}{words}"
            plot_samples(axes, SESSIONS, rates, color=colour, linestyle=style, label=label)
    for text, bound_bps in (("carrier", asymmetry["carrier_bps"]), ("ISDN", asymmetry["isdn_bps"])):
        axes.axhline(bound_bps / 1e6, color=MUTED, linestyle=":", linewidth=1)
        axes.text(SESSIONS[-1], bound_bps / 1e6, f"{text} full", ha="right", va="bottom", color=INK)
    limit = published[SESSIONS_MAX]
    axes.axhline(limit, color=INK, linewidth=0.8)
    axes.text(SESSIONS[0], limit, "published", va="bottom", color=INK)
    axes.set(xlim=(0.5, SESSIONS[-1] + 0.5), xlabel="Sessions", ylabel="Goodput [Mbit/s]")
    axes.set_ylim(bottom=0)
    add_legend(axes)
    return figure


def conference_figure(measured: Found) -> Figure:
    """Draw what a receiver gets of each stream, and the loss, over the participants."""
    figure, panels = new_figure(2, 1, height_in=5.0)
    lines = (("received_bps_a_stream", 1e3), ("loss_percent", 1))
    for colour, rate_kbps in zip(PALETTE, RATES_KBPS, strict=False):
        for copies, style in (("each", "-"), ("one", "--")):
            cases = [ConferenceCase(count, rate_kbps, copies) for count in PARTICIPANTS]
            label = f"each sends {rate_kbps} kbit/s" if copies == "each" else None
            for axes, (name, unit) in zip(panels, lines, strict=True):
                values = measured.line(cases, name, unit)
                plot_samples(axes, PARTICIPANTS, values, color=colour, linestyle=style, label=label)
    panels[0].set(ylim=(0, 1.1 * RATES_KBPS[-1]), ylabel="Received of a stream [kbit/s]")
    panels[1].set(ylabel="Lost [%]", xlabel="Participants")
    add_legend(panels[0])
    return figure


_view: Final = partial(tables.view, "hermes")


@dataclass(frozen=True, kw_only=True)
class HermesOutcome(StudyOutcome):
    """The rows of the source, and the figures of all cases by part."""

    found: Found
    parts: Mapping[str, tuple[Case, ...]]
    asymmetries: tuple[dict[str, float], ...]

    def extras(self) -> dict[str, Any]:
        """Return the figures that have no published value."""
        measured = self.found
        return {
            "window_bound_error_percent_largest": transfers.largest_window_error_percent(
                measured, MSS_BYTES
            ),
            **{
                f"conference_participants_max{name}": {
                    str(rate_kbps): streams.max_participants(measured, rate_kbps, copies).mean
                    for rate_kbps in streams.RATES_KBPS
                }
                for name, copies in (("", "each"), ("_one_copy", "one"))
            },
            "upstream_without_loss_kbps": streams.max_upstream_kbps(measured),
            "asymmetry": list(self.asymmetries),
            **{
                part: [case_to_json(measured, case) for case in cases]
                for part, cases in self.parts.items()
            },
        }

    def terminal(self) -> Iterator[View | str]:
        """Yield the table, its errors, and the rows outside the tolerance with their reasons."""
        yield _view("terminal", self.main.rows, tolerance=TOLERANCE)
        yield ""
        yield from self.headline()
        for row in self.main.outside:
            yield f"Outside: {row.name}: {tables.row_text(row)}. {row.reason}"

    def context(self) -> dict[str, Any]:
        """Return tables, figures, and the modules whose values the template prints."""
        published = {row.name: row.published or 0.0 for row in self.main.rows}
        return {
            "main_table": _view("main", self.main.rows, tolerance=TOLERANCE),
            "other_table": _view("other", self.comparisons[OTHER_MSS].rows),
            "windows_table": self._windows_view(),
            **self._cases_views(),
            "published": published,
            "found": self.found,
            "mean_text": mean_text,
            "tolerances": (TOLERANCE,),
            "min_calibrated_percent": MIN_CALIBRATED_PERCENT,
            "window_figure": window_figure(self.found, published),
            "file_figure": file_figure(self.found, published),
            "session_figure": session_figure(self.found, self.asymmetries[0], published),
            "conference_figure": conference_figure(self.found),
            "network": network,
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
                self.found[case].of("goodput_bps", 1e6),
                transfers.window_error_percent(self.found, case),
            ]
            for case in transfers.ideal_cases(MSS_BYTES)
        ]
        return _view("ideal", rows)

    def _cases_views(self) -> dict[str, View]:
        every: dict[str, Mapping[tuple[Any, ...], Sequence[Case]]] = {
            "files": {
                (size / 1e3,): tuple(FetchCase(size, window) for window in _WINDOWS.values())
                for size in SIZES_BYTES
            },
            "sessions": {(n,): (SessionsCase(n, _TUNED),) for n in SESSIONS},
            "loads": {
                (load,): (SessionsCase(transfers.SEVERAL[-1], _TUNED, load),)
                for load in transfers.LOADS
            },
            "streams": {(c.name, c.rate_kbps * c.copies): (c,) for c in streams.STREAMS},
            "conference": {
                (case.rate_kbps, case.participants): (case,)
                for case in streams.CONFERENCE_CASES
                if case.copies == "each"
            },
        }
        return {f"{name}_table": self._cases_view(name, lines) for name, lines in every.items()}

    def _cases_view(self, name: str, lines: Mapping[tuple[Any, ...], Sequence[Case]]) -> View:
        """Return a table of cases, with labels and figures as in tables.csv."""
        key = len(next(iter(lines)))
        figures = [column.name.partition(" /") for column in tables.columns("hermes", name)[key:]]
        rows = []
        for label, cases in lines.items():
            per_case = len(figures) // len(cases)
            values = (
                self.found[cases[i // per_case]].of(figure, float(size or 1))
                for i, (figure, _, size) in enumerate(figures)
            )
            rows.append([*label, *values])
        return _view(name, rows, sessions=transfers.SEVERAL[-1])


# All cases, in the order of the report.
PARTS: Final[Mapping[str, tuple[Case, ...]]] = {
    "round_trip": (transfers.PingCase(),),
    "windows": transfers.ideal_cases(),
    "windows_on_the_network": transfers.NETWORK_CASES,
    "files": transfers.FETCH_CASES,
    "sessions": transfers.SESSION_CASES,
    "streams": streams.STREAMS,
    "upstream": streams.UPSTREAM_CASES,
    "conference": streams.CONFERENCE_CASES,
}


def run(work: Work) -> HermesOutcome:
    """Simulate all cases, deterministic ones once, then read the published rows and compare."""
    measured = work.measure(case for cases in PARTS.values() for case in cases)
    return work.outcome(
        HermesOutcome,
        compare(measured),
        {
            "runs_of_a_stochastic_case": work.runs,
            "runs_of_a_deterministic_case": 1,
            "scenario": read_scenario("hermes"),
        },
        about_runs=f"first seed {work.seed}; {work.runs} runs of each stochastic case, one of each "
        "other",
        found=measured,
        parts=PARTS,
        asymmetries=tuple(map(transfers.asymmetry, (MSS_BYTES, LARGE_MSS_BYTES))),
    )
