"""The study: the note's table and its other figures, simulated first and compared afterwards.

The sizes and all scenarios come from code and one scenario file. The published figures are read
after the last run, so that no run can depend on them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from bentpipe.results.views import Column, View
from bentpipe.scenario.framings import frame_bits, plan_framing
from bentpipe.scenario.gateways import PROCESSOR_PPS
from bentpipe.studies.base import tables
from bentpipe.studies.base.comparison import Row
from bentpipe.studies.base.files import read_scenario
from bentpipe.studies.base.outcome import StudyOutcome
from bentpipe.studies.base.provenance import COUNTED, Input, Provenance, read_inputs
from bentpipe.studies.base.work import Work
from bentpipe.studies.snip import plots
from bentpipe.studies.snip.aggregation import PUBLISHED_LOAD_PPS, begins_at
from bentpipe.studies.snip.compare import (
    CROSSOVER,
    FACT_ROWS,
    FITTED_WINDOWS,
    PACKETS,
    RATES,
    ROUND,
    TOLERANCE,
    compare,
)
from bentpipe.studies.snip.measure import RESOLUTION, Measured, measure
from bentpipe.studies.snip.scenarios import DEFAULTS, NARROW_RATE, UDP_IP_HEADER_BYTES, Settings
from bentpipe.units import parse_rate

if TYPE_CHECKING:
    from typing import Unpack

    from bentpipe.studies import RunOptions

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

    measured: Measured
    settings: Settings

    def extras(self) -> dict[str, Any]:
        """Return the figures that have no published value."""
        measured = self.measured
        return {
            "packet_rate_limits": dict(measured.limits_pps),
            "tcp_goodput_kbps_by_window_bytes": {
                str(window): bps / 1e3 for window, bps in measured.tcp_bps.items()
            },
            "duplex": [
                {**asdict(each), "forward_percent": each.forward_percent}
                for each in measured.duplex
            ],
            "crossover": None if measured.crossover is None else asdict(measured.crossover),
            "shared_hub": [
                {
                    "terminals": terminals,
                    "packets_per_second_each": found.rates[0].packets_per_second,
                    "packets_per_second_all": found.rates[0].aggregate_packets_per_second,
                }
                for terminals, found in measured.sharing.items()
            ],
            "aggregation": {
                "sizes": [asdict(each) for each in measured.aggregated_sizes],
                "loads": [asdict(each) for each in measured.loads],
                "begins_at_pps_by_hold_ms": {
                    str(hold_ms): begins_at(measured.loads, hold_ms)
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
        number = tables.number
        lines = [
            f"{each.payload_bytes} bytes: {number(each.without_pps, 0)} packets a second without "
            f"aggregation, {number(each.with_pps, 0)} with it, {number(each.gain)} times as many; "
            f"on paper {number(each.paper_pps, 0)}, limited by {each.paper_limit} (error "
            f"{number(each.error_percent, sign=True)} %)."
            for each in self.measured.aggregated_sizes
        ]
        return lines + self.begin_lines()

    def begin_lines(self) -> list[str]:
        """Return the load above which aggregation saves frames, a sentence for each hold time."""
        return [
            f"Hold time {hold_ms} ms: of the loads tried, frames are fewer than packets from "
            f"{tables.number(begins_at(self.measured.loads, hold_ms), 0)} packets a second on; on "
            f"paper above {1000 // hold_ms}."
            for hold_ms in self.settings.hold_times_ms
        ]

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
            "header_bytes": UDP_IP_HEADER_BYTES,
            "published_load_pps": PUBLISHED_LOAD_PPS,
            "rate_figure": plots.table_figure(self.main, "Payload [Mbit/s]"),
            "packet_figure": plots.table_figure(packets, "Packets [1/s]"),
            "duplex_figure": plots.duplex_figure(self.measured.duplex),
            "window_figure": plots.window_figure(self.measured.tcp_bps, facts, FITTED_WINDOWS),
            "load_figure": plots.load_figure(self.measured.loads, self.settings.hold_times_ms),
        }

    def _measured_views(self, published_bytes: float) -> dict[str, View]:
        """Return the tables of what was measured beside the note's rows."""
        measured = self.measured
        published = {row.name: row.published for row in self.comparisons[FACT_ROWS].rows}
        sizes = {} if measured.crossover is None else asdict(measured.crossover)
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
                for terminals, found in measured.sharing.items()
                for rate in found.rates[:1]
            ],
            "sizes": [tuple(asdict(each).values()) for each in measured.aggregated_sizes],
        }
        return {f"{name}_table": _view(name, rows) for name, rows in every.items()}


def run(*, settings: Settings | None = None, **options: Unpack[RunOptions]) -> SnipOutcome:
    """Measure everything, then read the published figures and compare.

    Nothing in the study is stochastic, so the number of runs changes nothing and the seed is only
    recorded in the configuration.
    """
    work = Work("snip", **options)
    settings = DEFAULTS if settings is None else settings
    base = read_scenario("snip")
    measured = measure(base, settings, work)
    return SnipOutcome(
        study="snip",
        title="SnIP: UDP rate without loss over packet size, and TCP over a satellite hop",
        inputs=inputs(base),
        comparisons=compare(base, settings, measured),
        configuration=work.configuration(
            resolution=RESOLUTION, tcp_duration=settings.tcp_duration, scenario=base
        ),
        interrupted=measured.interrupted,
        about_runs="every figure is deterministic: one run each, no intervals",
        measured=measured,
        settings=settings,
    )


def inputs(base: Mapping[str, Any]) -> tuple[Input, ...]:
    """Return the inputs with their provenance."""
    values = {
        **{f"packet rate, {mode}": f"{rate} packet/s" for mode, rate in PROCESSOR_PPS.items()},
        "turns of the processor": "one packet each",
        "modem, other case": NARROW_RATE,
        "TCP hosts": "bsd-1997",
        "TCP duration": DEFAULTS.tcp_duration,
        **{
            f"TCP window, {name.rpartition('; ')[2]}": f"{window} B"
            for name, window in FITTED_WINDOWS.items()
        },
    }
    return read_inputs("snip", base, values)


def framings_view(channel: Sequence[Row], link_bps: int) -> View:
    """Compare what framings allow on a full channel with the published rows that it limits."""
    rows = []
    for kind, options in _CANDIDATES:
        framing = plan_framing(kind, options)
        errors = []
        for row in channel:
            size = int(row["packet_bytes"])
            bits = frame_bits(framing, size + UDP_IP_HEADER_BYTES)
            rate_mbps = link_bps / 1e6 * 8 * size / bits
            errors.append(100 * (rate_mbps / (row.published or 1.0) - 1))
        named = ", ".join(f"{name} {value}" for name, value in options.items())
        mean = sum(map(abs, errors)) / len(errors)
        rows.append((f"{kind} ({named})" if named else kind, mean, *errors))
    columns = [*tables.columns("snip", "framings")]
    for row in channel:
        name = f"error_{row.name}_percent"
        columns.append(Column(name, f"{row.name} bytes", "error, %", _signed))
    return _view("framings", rows, shown=columns)


def _signed(error: float) -> str:
    return tables.number(error, sign=True)
