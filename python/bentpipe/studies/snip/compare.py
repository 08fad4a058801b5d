"""The note's table and its other figures, compared with what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from bentpipe.plan.plan import Plan
from bentpipe.simulation.no_drop import NoDropRate, NoDropSearch
from bentpipe.studies.base.comparison import Comparison, Row, Tolerance, quantity_rows
from bentpipe.studies.base.files import read_rows
from bentpipe.studies.base.provenance import Provenance
from bentpipe.studies.base.samples import Samples
from bentpipe.studies.snip.measure import Measured
from bentpipe.studies.snip.scenarios import MODES, Settings, is_channel_limited, table_scenario

TOLERANCE: Final = Tolerance(
    10.0,
    "%",
    "the published packets a second scatter by 8.1 % about any constant, and the rates are rounded "
    "to 0.1 Mbit/s, up to 1.7 % of the smallest.",
)
RATES, PACKETS, ROUND, FACT_ROWS = (
    "rates",
    "packets_per_second",
    "rates_at_6000_per_second",
    "facts",
)

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


def simulated_facts(measured: Measured) -> dict[str, float | None]:
    """Return the simulated values of the note's other figures; None was not run."""
    limits = measured.limits_pps
    bridge = [limits[mode] for mode in MODES if mode in limits]
    overload = [each for each in measured.duplex if each.offered_pps == OVERLOAD_PPS]
    crossover, tcp_bps = measured.crossover, measured.tcp_bps
    return {
        "packet rate limit; routing; both directions together": limits.get("route"),
        "packet rate limit; bridging and pass-thru; both directions together": (
            sum(bridge) / len(bridge) if len(bridge) == len(MODES) else None
        ),
        "TCP efficiency on the channel with large packets and no delay": (
            measured.efficiency_percent
        ),
        "one-way satellite delay": measured.one_way_delay_ms,
        "split of the packet rate when both directions are offered the same load": (
            overload[0].forward_percent if overload else None
        ),
        CROSSOVER: None if crossover is None else crossover.link_bytes,
        **{
            quantity: tcp_bps[window] / 1e3 if window in tcp_bps else None
            for quantity, window in FITTED_WINDOWS.items()
        },
    }


@dataclass(frozen=True, kw_only=True)
class PublishedRow:
    """One row of the table: Mbit/s of payload, packets a second, and the stated limit."""

    rate_mbps: float
    packets_per_second: float
    limit: str


def compare(
    base: Mapping[str, Any], settings: Settings, measured: Measured
) -> dict[str, Comparison]:
    """Read the published figures and compare what was measured with them."""
    table = read_published_table()
    plan = Plan.resolve(table_scenario(base)).data
    # With the note's own packet rate only the framing is calibrated.
    rounded = {
        size: Provenance.CALIBRATED if is_channel_limited(plan, size) else Provenance.PREDICTED
        for size in settings.sizes
    }
    own = dict.fromkeys(settings.sizes, Provenance.CALIBRATED)
    comparisons = {
        name: Comparison(
            tuple(
                table_row(size, table[size], unit, found, provenances[size])
                for size in settings.sizes
            )
        )
        for name, unit, found, provenances in (
            (RATES, "Mbit/s", measured.table, own),
            (PACKETS, "packet/s", measured.table, own),
            (ROUND, "Mbit/s", measured.round_figure, rounded),
        )
    }
    values = {name: Samples.of([v], exact=True) for name, v in simulated_facts(measured).items()}
    facts = quantity_rows("snip", FACTS_FILE, values.__getitem__, tolerance=TOLERANCE)
    return {**comparisons, FACT_ROWS: Comparison(facts)}


def table_row(
    size: int,
    published: PublishedRow,
    unit: str,
    found: NoDropSearch | None,
    provenance: Provenance,
) -> Row:
    """Return a row of the table, as a rate in Mbit/s or in packets a second."""
    best = converged(found, size)
    rate_bps = None if best is None else best.rate_bps
    loss = None if best is None else best.first_loss
    by_rate = unit == "Mbit/s"
    per_unit = 1e6 if by_rate else 8 * size
    return Row(
        labels={"packet_bytes": size},
        unit=unit,
        published=published.rate_mbps if by_rate else published.packets_per_second,
        simulated=Samples.of([None if rate_bps is None else rate_bps / per_unit], exact=True),
        provenance=provenance,
        tolerance=TOLERANCE,
        reason=_MISSED,
        more={
            "published_limit": published.limit,
            "simulated_limit": None if loss is None else loss.limit,
        },
    )


def converged(found: NoDropSearch | None, size: int) -> NoDropRate | None:
    """Return the rate of one size; None if its search did not converge."""
    for each in () if found is None else found.rates:
        if each.payload_bytes == size and each.converged and each.first_loss is not None:
            return each
    return None


def read_published_table() -> dict[int, PublishedRow]:
    """Return the published table by packet size."""
    return {
        int(row["packet_bytes"]): PublishedRow(
            rate_mbps=float(row["max_rate_mbps"]),
            packets_per_second=float(row["packets_per_second"]),
            limit=row["limit"],
        )
        for row in read_rows("snip", "published.csv")
    }
