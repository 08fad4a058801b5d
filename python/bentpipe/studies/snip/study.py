"""The study: the note's table and its other figures, simulated first and compared afterwards.

The sizes and all scenarios come from code and one scenario file. The published figures are read
after the last run, so that no run can depend on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from bentpipe import _core
from bentpipe.scenario.framings import frame_bits, plan_framing
from bentpipe.scenario.gateways import PROCESSOR_PPS
from bentpipe.studies.base import tables
from bentpipe.studies.base.comparison import Row
from bentpipe.studies.base.outcome import StudyOutcome
from bentpipe.studies.base.provenance import COUNTED, Input, Provenance, read_inputs
from bentpipe.studies.snip.aggregation import PUBLISHED_LOAD_PPS, begins_at
from bentpipe.studies.snip.compare import FACT_ROWS, PACKETS, RATES, ROUND, TOLERANCE, compare
from bentpipe.studies.snip.facts import CROSSOVER, FITTED_WINDOWS
from bentpipe.studies.snip.measure import RESOLUTION, Measured, measure
from bentpipe.studies.snip.plots import duplex_figure, load_figure, table_figure, window_figure
from bentpipe.studies.snip.scenarios import (
    DEFAULTS,
    NARROW_RATE,
    UDP_IP_HEADER_BYTES,
    Settings,
    base_scenario,
)
from bentpipe.sweeps.executor import Executor
from bentpipe.units import parse_rate

if TYPE_CHECKING:
    from rich.console import RenderableType

_HERE: Final = Path(__file__).parent
# Nothing is stochastic, so no column of intervals.
_EXACT: Final[Any] = {"interval": False, "error_digits": 1, "error_unit": "%"}
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

    folder: ClassVar[Path] = _HERE

    measured: Measured
    settings: Settings

    @property
    def facts(self) -> str:
        """The line under the report's title."""
        return f"{super().facts}; every figure is deterministic: one run each, no intervals"

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

    def terminal(self) -> Iterator[RenderableType]:
        """Yield table, other figures, and the errors of both."""
        yield tables.terminal_table(
            "Largest rate without a loss, in Mbit/s of UDP payload", self.columns(), self.main.rows
        )
        yield from self.headline()
        yield ""
        facts = self.comparisons[FACT_ROWS]
        yield tables.terminal_table("The note's other figures", fact_columns(), facts.rows)
        for row in facts.outside:
            yield f"Outside: {row.name}. {row.how}"
        yield ""
        yield "With packet aggregation at both gateways:"
        yield from self.aggregation_lines()

    def columns(self, *, wide: bool = False) -> tuple[tables.Column, ...]:
        """Return the columns of the table; ``wide`` has also the rates at 6,000 packets/s."""
        packets = tables.figures(0, unit="1/s", **_EXACT)
        rounded = tables.figures(unit="at 6,000/s", **_EXACT)[1:] if wide else ()
        return (
            tables.label("packet_bytes", "payload", "bytes"),
            *tables.figures(unit="Mbit/s", **_EXACT),
            *(tables.of_comparison(each, self.comparisons[PACKETS]) for each in packets),
            *(tables.of_comparison(each, self.comparisons[ROUND]) for each in rounded),
            tables.Column(heading="limit", unit="published, simulated", text=_limits, is_text=True),
            tables.AGREEMENT,
            tables.PROVENANCE,
        )

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
        """Return columns, figures and further variables of the template."""
        scenario = self.configuration["scenario"]
        facts = self.comparisons[FACT_ROWS]
        channel = [row for row in self.main.rows if row.more["published_limit"] == "channel"]
        bound = [
            row.published or 0.0
            for row in self.comparisons[PACKETS].rows
            if row.more["published_limit"] == "packet rate"
        ]
        return {
            "columns": self.columns(wide=True),
            "fact_columns": fact_columns(how=True),
            "fact_rows": facts.rows,
            "fact_outside": facts.outside,
            "measured": self.measured,
            "tolerance": TOLERANCE,
            "fitted_windows": FITTED_WINDOWS,
            "published_crossover": facts.where(quantity=CROSSOVER).rows[0].published,
            "published": {row.name: row.published for row in facts.rows},
            "link_mbps": parse_rate(scenario["link"]["forward"]["rate"]) / 1e6,
            "constant": scenario["gateways"]["hub"]["processor"]["packets_per_second"],
            "bound_pps": (min(bound), max(bound)),
            "channel": channel,
            "packets": {row.name: row for row in self.comparisons[PACKETS].rows},
            "framings": framing_rows(channel, parse_rate(scenario["link"]["forward"]["rate"])),
            "header_bytes": UDP_IP_HEADER_BYTES,
            "published_load_pps": PUBLISHED_LOAD_PPS,
            "rate_figure": table_figure(self.main, "Payload [Mbit/s]"),
            "packet_figure": table_figure(self.comparisons[PACKETS], "Packets [1/s]"),
            "duplex_figure": duplex_figure(self.measured.duplex),
            "window_figure": window_figure(self.measured.tcp_bps, facts, FITTED_WINDOWS),
            "load_figure": load_figure(self.measured.loads, self.settings.hold_times_ms),
        }


def fact_columns(*, how: bool = False) -> tuple[tables.Column, ...]:
    """Return the columns of the note's other figures; ``how`` has the remarks, too."""
    remarks = (tables.Column(heading="remark", text=lambda row: row.how, is_text=True),)
    return (
        tables.label("quantity", "quantity"),
        *tables.figures(1, interval=False, error_unit="%"),
        tables.UNIT,
        tables.AGREEMENT,
        tables.PROVENANCE,
        *(remarks if how else ()),
    )


def run(
    *,
    runs: int | None = None,  # noqa: ARG001 - every study is called alike; nothing here is stochastic
    seed: int = 1,
    executor: Executor | None = None,
    progress: Callable[[int, int], None] | None = None,
    settings: Settings | None = None,
) -> SnipOutcome:
    """Measure everything, then read the published figures and compare.

    Nothing in the study is stochastic, so ``runs`` changes nothing and the seed is only recorded in
    the configuration.
    """
    settings = DEFAULTS if settings is None else settings
    base = base_scenario()
    measured = measure(base, settings, seed=seed, executor=executor, progress=progress)
    return SnipOutcome(
        study="snip",
        title="SnIP: UDP rate without loss over packet size, and TCP over a satellite hop",
        inputs=inputs(base),
        comparisons=compare(base, settings, measured),
        configuration={
            "bentpipe_version": _core.version(),
            "seed": seed,
            "resolution": RESOLUTION,
            "tcp_duration": settings.tcp_duration,
            "scenario": base,
        },
        interrupted=measured.interrupted,
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
    return read_inputs(_HERE / "inputs.csv", base, values)


def _limits(row: Row) -> str:
    return f"{row.more['published_limit']}, {row.more['simulated_limit'] or '-'}"


def framing_rows(channel: list[Row], link_bps: int) -> list[list[str]]:
    """Compare what framings allow on a full channel with the published rows that it limits."""
    rows = []
    for kind, options in _CANDIDATES:
        framing = plan_framing(kind, options)
        errors = []
        for row in channel:
            size = int(row.labels["packet_bytes"])
            bits = frame_bits(framing, size + UDP_IP_HEADER_BYTES)
            rate_mbps = link_bps / 1e6 * 8 * size / bits
            errors.append(100 * (rate_mbps / (row.published or 1.0) - 1))
        named = ", ".join(f"{name} {value}" for name, value in options.items())
        mean = sum(map(abs, errors)) / len(errors)
        texts = [tables.number(error, sign=True) for error in errors]
        rows.append([f"{kind} ({named})" if named else kind, tables.number(mean), *texts])
    return rows
