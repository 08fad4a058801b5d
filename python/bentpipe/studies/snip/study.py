"""The study: the note's table and its other figures, simulated first and compared afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bentpipe.plan import Plan
from bentpipe.report import INK, MUTED, PALETTE, add_legend, log_axis, new_figure
from bentpipe.results import Column, View
from bentpipe.scenario import frame_bits, plan_framing
from bentpipe.simulation import Limit, Search
from bentpipe.studies.base import tables
from bentpipe.studies.base.comparison import (
    Comparison,
    Row,
    Samples,
    quantity_rows,
    read_tolerances,
)
from bentpipe.studies.base.inputs import (
    COUNTED,
    Provenance,
    read_quantities,
    read_rows,
    read_scenario,
)
from bentpipe.studies.base.outcome import StudyOutcome
from bentpipe.studies.base.real_time import (
    RealMeasurement,
    RealOutcome,
    RealRun,
    RealWork,
    cells_by_name,
)
from bentpipe.studies.base.tables import number, plot_published, plot_samples
from bentpipe.studies.base.work import Work
from bentpipe.studies.snip import measure
from bentpipe.units import UDP_IP_BYTES, parse_rate

(TOLERANCE,) = read_tolerances("snip")
RATES, PACKETS = "rates", "packets_per_second"
ROUND, FACT_ROWS = "rates_at_6000_per_second", "facts"

FACTS_FILE: Final = "published_facts.csv"
_MISSED: Final = (
    "One packet rate and one framing hold for all rows; the published rows scatter about both."
)
OVERLOAD_PPS: Final = 5000
_TCP: Final = "TCP throughput over one satellite hop without acceleration"
TCP_LOW: Final = f"{_TCP}; low"
CROSSOVER: Final = "packet size from which a 4 Mbit/s modem is channel limited"
# The note does not state its windows. Each of these is the one of the tried windows that comes
# nearest to one of its three figures, so all three are fitted.
FITTED_WINDOWS: Final[Mapping[str, int]] = {
    TCP_LOW: 17_520,
    f"{_TCP}; high": 57_344,
    f"{_TCP}; highest seen": 65_535,
}


def simulated_facts(measured: measure.Measurements) -> dict[str, float | None]:
    """Return the simulated values of the note's other figures; None was not run."""
    limits = measured.limits_pps
    bridge = [limits[mode] for mode in measure.MODES if mode in limits]
    overload = [record for record in measured.duplex if record["offered_pps"] == OVERLOAD_PPS]
    crossover, tcp_bps = measured.crossover, measured.tcp_bps
    return {
        "packet rate limit; routing; both directions together": limits.get("route"),
        "packet rate limit; bridging and pass-thru; both directions together": (
            sum(bridge) / len(bridge) if len(bridge) == len(measure.MODES) else None
        ),
        "TCP efficiency on the channel with large packets and no delay": (
            measured.efficiency_percent
        ),
        "one-way satellite delay": measured.one_way_delay_ms,
        "split of the packet rate when both directions are offered the same load": (
            overload[0]["forward_percent"] if overload else None
        ),
        CROSSOVER: None if crossover is None else crossover["link_bytes"],
        **{
            quantity: tcp_bps[window] / 1e3 if window in tcp_bps else None
            for quantity, window in FITTED_WINDOWS.items()
        },
    }


def compare(
    base: Mapping[str, Any], settings: measure.Settings, measured: measure.Measurements
) -> dict[str, Comparison]:
    """Read the published figures and compare what was measured with them."""
    table = read_published_table()
    plan = Plan.resolve(measure.scenario_of(base)).data
    # With the note's own packet rate only the framing is calibrated.
    rounded = {
        size: Provenance.CALIBRATED
        if measure.is_channel_limited(plan, size)
        else Provenance.PREDICTED
        for size in settings.sizes
    }
    calibrated = dict.fromkeys(settings.sizes, Provenance.CALIBRATED)
    comparisons = {
        name: Comparison(
            tuple(
                table_row(size, table[size], unit, search, provenances[size])
                for size in settings.sizes
            )
        )
        for name, unit, search, provenances in (
            (RATES, "Mbit/s", measured.table, calibrated),
            (PACKETS, "packet/s", measured.table, calibrated),
            (ROUND, "Mbit/s", measured.round_figure, rounded),
        )
    }
    values = {name: Samples.of([v], exact=True) for name, v in simulated_facts(measured).items()}
    facts = quantity_rows("snip", FACTS_FILE, values.__getitem__, tolerance=TOLERANCE)
    return {**comparisons, FACT_ROWS: Comparison(facts)}


def table_row(
    size: int,
    published: Mapping[str, str],
    unit: str,
    search: Search | None,
    provenance: Provenance,
) -> Row:
    """Return a row of the table, as a rate in Mbit/s or in packets a second."""
    best = measure.converged(search, size)
    loss = None if best is None else best.first_loss
    rate_bps = None if best is None or loss is None else best.passes
    by_rate = unit == "Mbit/s"
    per_unit = 1e6 if by_rate else 8 * size
    return Row(
        labels={"packet_bytes": size},
        unit=unit,
        published=float(published["max_rate_mbps" if by_rate else "packets_per_second"]),
        simulated=Samples.of([None if rate_bps is None else rate_bps / per_unit], exact=True),
        provenance=provenance,
        tolerance=TOLERANCE,
        reason=_MISSED,
        more={
            "published_limit": published["limit"],
            "simulated_limit": None if loss is None else loss.limit,
        },
    )


def read_published_table() -> dict[int, dict[str, str]]:
    """Return the rows of the published table by packet size."""
    return {int(row["packet_bytes"]): row for row in read_rows("snip", "published.csv")}


def table_figure(comparison: Comparison, label: str) -> Figure:
    """Draw published and simulated values over packet size."""
    figure, (axes,) = new_figure(1, 1, height_in=3.2)
    sizes = [float(row.labels["packet_bytes"]) for row in comparison.rows]
    samples = [row.simulated for row in comparison.rows]
    plot_samples(axes, sizes, samples, color=PALETTE[0], label="simulated")
    plot_published(axes, sizes, comparison.rows, PALETTE[1], "published")
    return _finish(figure, axes, "UDP payload [bytes]", label)


def duplex_figure(duplex: Sequence[measure.Record]) -> Figure:
    """Draw the delivered over the offered packets a second of both directions."""
    figure, (axes,) = new_figure(1, 1, height_in=3.2)
    offered = [record["offered_pps"] for record in duplex]
    marks: dict[str, Any] = {"linestyle": "none", "marker": "x"}
    for color, name, style in zip(PALETTE, ("forward", "return"), ({}, marks), strict=False):
        delivered = [record[f"{name}_pps"] for record in duplex]
        axes.plot(offered, delivered, color=color, label=name, **style)
    axes.plot(offered, offered, color=MUTED, linestyle=":", linewidth=1, label="offered")
    return _finish(figure, axes, "Offered in each direction [packets/s]", "Delivered [packets/s]")


def window_figure(tcp_bps: Mapping[int, float], facts: Comparison) -> Figure:
    """Draw the goodput over the receive window, with the note's three figures."""
    figure, (axes,) = new_figure(1, 1, height_in=3.2)
    axes.plot(
        [window / 1e3 for window in tcp_bps],
        [bps / 1e3 for bps in tcp_bps.values()],
        color=PALETTE[0],
        marker="o",
        markersize=4,
        label="simulated",
    )
    for row in facts.rows:
        if row.name in FITTED_WINDOWS and row.published is not None:
            axes.axhline(row.published, color=PALETTE[1], linestyle="--", linewidth=1)
            text = f"published, {row.name.rpartition('; ')[2]}"
            axes.text(1, row.published, text, va="bottom", color=INK)
    return _finish(figure, axes, "Receive window [kB]", "Goodput [kbit/s]")


def load_figure(loads: Sequence[measure.Record], hold_times_ms: Sequence[int]) -> Figure:
    """Draw packets a frame and added delay over the load, a line for each hold time."""
    figure, (packets, delay) = new_figure(2, 1, height_in=4.8)
    for color, hold_ms in zip(PALETTE, hold_times_ms, strict=False):
        ours = [record for record in loads if record["hold_ms"] == hold_ms]
        offered = [record["offered_pps"] for record in ours]
        for axes, name in ((packets, "packets_per_frame"), (delay, "added_delay_ms")):
            values = [record[name] for record in ours]
            axes.plot(offered, values, color=color, marker="o", label=f"{hold_ms} ms")
    packets.axvline(measure.PUBLISHED_LOAD_PPS, color=MUTED, linestyle=":", label="published")
    packets.set_ylabel("Packets a frame")
    delay.set(xlabel="Offered [packets/s]", ylabel="Added delay [ms]")
    for axes in (packets, delay):
        log_axis(axes.xaxis)
        axes.set_ylim(bottom=0)
        add_legend(axes)
    return figure


def _finish(figure: Figure, axes: Axes, across: str, up: str) -> Figure:
    """Label the axes and start both at zero, after everything is drawn."""
    axes.set(xlabel=across, ylabel=up)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    add_legend(axes)
    return figure


_view: Final = partial(tables.view, "snip")
_CANDIDATES: Final[tuple[tuple[str, dict[str, object]], ...]] = (
    ("ppp", {"fcs": 16, "payload": "iperf"}),
    ("ppp", {"fcs": 32, "payload": "iperf"}),
    ("ppp", {"fcs": 32, "payload": "random"}),
    ("ethernet", {}),
    ("gse", {}),
    ("mpe", {}),
    ("aal5", {}),
)


@dataclass(frozen=True, kw_only=True)
class SnipOutcome(StudyOutcome):
    """The table, the facts, and the measured values."""

    measured: measure.Measurements
    settings: measure.Settings

    def extras(self) -> dict[str, Any]:
        """Return the figures that have no published value."""
        measured = self.measured
        return {
            "packet_rate_limits": dict(measured.limits_pps),
            "tcp_goodput_kbps_by_window_bytes": {
                str(window): bps / 1e3 for window, bps in measured.tcp_bps.items()
            },
            "duplex": list(measured.duplex),
            "crossover": measured.crossover,
            "shared_hub": [
                {
                    "terminals": terminals,
                    "packets_per_second_each": search.limits[0].packets_per_second,
                    "packets_per_second_all": search.limits[0].aggregate_packets_per_second,
                }
                for terminals, search in measured.sharing.items()
            ],
            "aggregation": {
                "sizes": list(measured.aggregated_sizes),
                "loads": list(measured.loads),
                "begins_at_pps_by_hold_ms": {
                    str(hold_ms): measure.begins_at(measured.loads, hold_ms)
                    for hold_ms in self.settings.hold_times_ms
                },
            },
        }

    def headline(self) -> list[str]:
        """Return the errors of the rates, and of those at the note's own packet rate."""
        rates, rounded = self.comparisons[RATES], self.comparisons[ROUND]
        outside = {
            name: ", ".join(row.name for row in self.comparisons[name].outside) or "none"
            for name in (RATES, ROUND, FACT_ROWS)
        }
        return [
            "Calibrated rows, one packet rate for all: "
            + tables.errors_text(rates.of(Provenance.CALIBRATED)),
            "Predicted rows, at the note's round figure of 6,000 packets a second: "
            + tables.errors_text(rounded.of(Provenance.PREDICTED)),
            "Packets a second, calibrated: " + tables.errors_text(self.comparisons[PACKETS].rows),
            *(
                f"The note's other figures, {provenance.value}: {tables.errors_text(rows)}"
                for provenance in COUNTED
                if (rows := self.comparisons[FACT_ROWS].of(provenance))
            ),
            f"Outside the tolerance of {TOLERANCE}: rates {outside[RATES]}; rates at 6,000 "
            f"packets a second {outside[ROUND]}; other figures {outside[FACT_ROWS]}.",
        ]

    def terminal(self) -> Iterator[View | str]:
        """Yield table, other figures, and the errors of both."""
        yield self.rates_view("rates")
        yield from self.headline()
        yield ""
        facts = self.comparisons[FACT_ROWS]
        yield _view("facts", facts.rows)
        for row in facts.outside:
            yield f"Outside: {row.name}. {row.how}"
        yield ""
        yield "With packet aggregation at both gateways:"
        yield from self.aggregation_lines()

    def rates_view(self, table: str) -> View:
        """Return the rows of the table; ``wide`` has also the rates at 6,000 packets/s."""
        others = {"packets": self.comparisons[PACKETS], "rounded": self.comparisons[ROUND]}
        strong = ("error", "packets.error", "rounded.error")
        return _view(table, self.main.beside(**others), strong=strong, tolerance=TOLERANCE)

    def aggregation_lines(self) -> list[str]:
        """Return the gain of aggregation, one sentence a line."""
        lines = [
            f"{record['payload_bytes']} bytes: {number(record['without_pps'], 0)} packets a second "
            f"without aggregation, {number(record['with_pps'], 0)} with it, "
            f"{number(record['gain'])} times as many; on paper "
            f"{number(record['paper_pps'], 0)}, limited by {record['paper_limit']} "
            f"(error {number(record['error_percent'], sign=True)} %)."
            for record in self.measured.aggregated_sizes
        ]
        return lines + self.begin_lines()

    def begin_lines(self) -> list[str]:
        """Return the load above which aggregation saves frames, a sentence for each hold time."""
        lines = []
        for hold_ms in self.settings.hold_times_ms:
            begins_at = measure.begins_at(self.measured.loads, hold_ms)
            where = "at none" if begins_at is None else f"from {begins_at:,} packets a second on"
            lines.append(
                f"Hold time {hold_ms} ms: of the loads tried, frames are fewer than packets "
                f"{where}; on paper above {1000 // hold_ms}."
            )
        return lines

    def context(self) -> dict[str, Any]:
        """Return tables, figures and further variables of the template."""
        scenario = self.configuration["scenario"]
        facts, packets = self.comparisons[FACT_ROWS], self.comparisons[PACKETS]
        channel = [row for row in self.main.rows if row.more["published_limit"] == "channel"]
        bound = [
            row.published or 0.0 for row in packets.rows if row["published_limit"] == "packet rate"
        ]
        link_bps = parse_rate(scenario["link"]["forward"]["rate"])
        return {
            "tolerances": (TOLERANCE,),
            "rates_table": self.rates_view("wide"),
            "facts_table": _view("how", facts.rows, tolerance=TOLERANCE),
            **self._measured_views(facts.where(quantity=CROSSOVER).rows[0].published or 0.0),
            "fact_outside": facts.outside,
            "measured": self.measured,
            "link_mbps": link_bps / 1e6,
            "constant": scenario["gateways"]["hub"]["processor"]["packets_per_second"],
            "bound_pps": (min(bound), max(bound)),
            "channel": channel,
            "packets": {row.name: row for row in packets.rows},
            "framings": framings_view(channel, link_bps),
            "header_bytes": UDP_IP_BYTES,
            "published_load_pps": measure.PUBLISHED_LOAD_PPS,
            "rate_figure": table_figure(self.main, "Payload [Mbit/s]"),
            "packet_figure": table_figure(packets, "Packets [1/s]"),
            "duplex_figure": duplex_figure(self.measured.duplex),
            "window_figure": window_figure(self.measured.tcp_bps, facts),
            "load_figure": load_figure(self.measured.loads, self.settings.hold_times_ms),
        }

    def _measured_views(self, published_bytes: float) -> dict[str, View]:
        """Return the tables of what was measured beside the note's rows."""
        measured = self.measured
        published = {row.name: row.published for row in self.comparisons[FACT_ROWS].rows}
        sizes = measured.crossover or {}
        layers = zip(("UDP payload", "IP packet", "on the link"), sizes.values(), strict=False)
        tcp_kbps = {window: bps / 1e3 for window, bps in measured.tcp_bps.items()}
        every: dict[str, list[tuple[Any, ...]]] = {
            "crossover": [
                (layer, published_bytes, size, 100 * (size / published_bytes - 1))
                for layer, size in layers
            ],
            "windows": [
                (name.rpartition("; ")[2], window, published[name], tcp_kbps.get(window))
                for name, window in FITTED_WINDOWS.items()
            ],
            "sharing": [
                (terminals, rate.packets_per_second, rate.aggregate_packets_per_second)
                for terminals, search in measured.sharing.items()
                for rate in search.limits[:1]
            ],
            "sizes": [tuple(record.values()) for record in measured.aggregated_sizes],
        }
        return {f"{name}_table": _view(name, rows) for name, rows in every.items()}


def run(work: Work, *, settings: measure.Settings | None = None) -> SnipOutcome:
    """Measure everything, then compare; runs and seed change nothing."""
    settings = measure.DEFAULTS if settings is None else settings
    base = read_scenario("snip")
    measured = measure.measure(settings, work)
    return work.outcome(
        SnipOutcome,
        compare(base, settings, measured),
        {
            "resolution": measure.RESOLUTION,
            "tcp_duration": settings.tcp_duration,
            "scenario": base,
        },
        about_runs="every figure is deterministic: one run each, no intervals",
        measured=measured,
        settings=settings,
    )


def framings_view(channel: Sequence[Row], link_bps: int) -> View:
    """Compare what framings allow on a full channel with the published rows that it limits."""
    rows = []
    for kind, options in _CANDIDATES:
        framing = plan_framing(kind, options)
        errors = []
        for row in channel:
            size = int(row["packet_bytes"])
            bits = frame_bits(framing, size + UDP_IP_BYTES)
            rate_mbps = link_bps / 1e6 * 8 * size / bits
            errors.append(100 * (rate_mbps / (row.published or 1.0) - 1))
        named = ", ".join(f"{name} {value}" for name, value in options.items())
        # Small packets alone never fill the channel.
        mean = sum(map(abs, errors)) / len(errors) if errors else None
        rows.append((f"{kind} ({named})" if named else kind, mean, *errors))
    signed = partial(number, sign=True)
    errors_of_rows = (
        Column(f"error_{row.name}_percent", f"{row.name} bytes", "error, %", signed)
        for row in channel
    )
    return _view("framings", rows, shown=(*tables.columns("snip", "framings"), *errors_of_rows))


# --- in real time, with iperf3 and the kernel's TCP -----------------------------------------------

TCP: Final = "tcp"
# The first rates tried are this far below and above the simulator's rate, and so is each further
# step. The two differ: otherwise the first midpoint would be the simulator's own rate.
_STEP_DOWN: Final = 0.08
_STEP_UP: Final = 0.05
REAL_RESOLUTION: Final = 0.01
# The usual number of rounds of a search, and the number after which it ends without a rate.
_USUAL_ROUNDS: Final = 6
_MAX_ROUNDS: Final = 12


@dataclass
class Bracket:
    """The rates, in bit/s of payload, between which the largest rate without a loss lies.

    The run at ``low_bps`` had no losses and the one at ``high_bps`` had some; None before a run.
    """

    start_bps: float
    low_bps: float | None = None
    high_bps: float | None = None
    last: RealRun | None = None

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

    def measurement(self) -> RealMeasurement:
        """Return the last run, with the rate that was found, if one was."""
        low_bps = self.low_bps if self.next_bps() is None else None
        figures = {"rate_mbps": None if low_bps is None else low_bps / 1e6}
        return RealMeasurement(() if self.last is None else (replace(self.last, figures=figures),))


def run_real_time(work: RealWork) -> RealOutcome:
    """Run rows in real time: packet sizes and ``tcp``, by default all."""
    sizes, with_tcp = rows_named(work.chosen)
    windows = FITTED_WINDOWS if with_tcp else {}
    duration = measure.DEFAULTS.tcp_duration
    work.total = _USUAL_ROUNDS * len(sizes) + len(windows)
    scenario = measure.scenario_of(read_scenario("snip"))
    simulator = Work("snip", seed=work.seed)
    simulated = simulator.search(scenario, sizes, resolution=measure.RESOLUTION) if sizes else None
    brackets = _search({size: measure.converged(simulated, size) for size in sizes}, work)
    cells = {name: measure.Run(TCP, window, duration) for name, window in windows.items()}
    tcp = work.compare({cell: replace(cell, kernel=True) for cell in cells.values()})
    # Every run is over: the published figures may be read.
    table, facts = read_published_table(), read_quantities("snip", FACTS_FILE)
    rows = []
    for size in sizes:
        row = table_row(size, table[size], "Mbit/s", simulated, Provenance.CALIBRATED)
        measurement = brackets[size].measurement() if size in brackets else RealMeasurement()
        rows.append(
            measurement.row(replace(row, labels={"row": f"{size} bytes"}, more={}), "rate_mbps")
        )
    for quantity, cell in cells.items():
        published, unit = facts[quantity]
        row = Row(
            labels={"row": quantity},
            unit=unit,
            published=published,
            simulated=tcp[cell].simulated["goodput_kbps"],
            provenance=Provenance.FITTED,
            tolerance=TOLERANCE,
        )
        rows.append(tcp[cell].row(row, "goodput_kbps"))
    return work.outcome(
        RealOutcome,
        {RATES: Comparison(tuple(rows))},
        {
            "resolution": REAL_RESOLUTION,
            "tcp": measure.KERNEL_TCP,
            "tcp_duration": duration,
            "scenario": read_scenario("snip"),
        },
        labels=(Column("row", "row"),),
        folder=work.folder,
    )


def rows_named(chosen: str | None) -> tuple[tuple[int, ...], bool]:
    """Return the packet sizes in ``chosen``, and whether it contains ``tcp``; None means all.

    Raises:
        UsageError: there is no such row.
    """
    names = {size: (str(size),) for size in measure.DEFAULTS.sizes} | {0: (TCP,)}
    selected = cells_by_name("snip", chosen, names)
    return tuple(size for size in measure.DEFAULTS.sizes if size in selected), 0 in selected


def _search(simulated: Mapping[int, Limit | None], work: RealWork) -> dict[int, Bracket]:
    """Bisect the rates of all sizes in parallel; return the bracket of each.

    A run that was late in every attempt ends the search of its size.
    """
    brackets = {
        size: Bracket(start_bps=limit.passes)
        for size, limit in simulated.items()
        if limit is not None and limit.passes is not None
    }
    for _ in range(_MAX_ROUNDS):
        rates = {
            size: rate
            for size, bracket in brackets.items()
            if not (bracket.last is not None and bracket.last.invalid is not None)
            and (rate := bracket.next_bps()) is not None
        }
        if not rates or work.interrupted:
            break
        trials = {size: measure.Run("rate", size, rate_bps=round(r)) for size, r in rates.items()}
        for size, runs in work.run(trials).items():
            for run in runs[-1:]:
                brackets[size].last = run
                if run.invalid is None:
                    lost = any(repetition.figures["lost"] for repetition in runs)
                    brackets[size].record(rates[size], lost=lost)
    return brackets
