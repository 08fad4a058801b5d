"""The note's table and its other figures, compared with what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bentpipe.plan.plan import Plan
from bentpipe.simulation.no_drop import NoDropRate, NoDropSearch
from bentpipe.studies.base.comparison import Comparison, Row, Tolerance
from bentpipe.studies.base.files import read_rows
from bentpipe.studies.base.provenance import Provenance
from bentpipe.studies.base.samples import Samples
from bentpipe.studies.snip.facts import FACTS
from bentpipe.studies.snip.measure import Measured
from bentpipe.studies.snip.scenarios import Settings, is_channel_limited, table_scenario

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

_HERE: Final = Path(__file__).parent
_MISSED: Final = (
    "One packet rate and one framing hold for all rows; the published rows scatter about both."
)


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
    table, facts = read_published_table(), read_published_facts()
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
    abouts = {row["quantity"]: row for row in read_rows(_HERE / "facts.csv")}
    comparisons[FACT_ROWS] = Comparison(
        tuple(
            Row(
                labels={"quantity": quantity},
                unit=unit,
                published=published,
                simulated=Samples.of([FACTS[quantity](measured)], exact=True),
                provenance=Provenance(abouts[quantity]["provenance"]),
                tolerance=TOLERANCE,
                how=abouts[quantity]["how"],
                reason="See the remark on how it is simulated.",
            )
            for quantity, (published, unit) in facts.items()
        )
    )
    return comparisons


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
        for row in read_rows(_HERE / "published.csv")
    }


def read_published_facts() -> dict[str, tuple[float, str]]:
    """Return the note's other figures by quantity, each with its unit."""
    return {
        row["quantity"]: (float(row["value"]), row["unit"])
        for row in read_rows(_HERE / "published_facts.csv")
    }
