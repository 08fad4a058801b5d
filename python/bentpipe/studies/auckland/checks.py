"""Numbers of older pages and of traces, which the sizes of downloads must meet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from bentpipe.scenario import Scenario
from bentpipe.simulation import Outcome
from bentpipe.studies.auckland.cells import configuration, entry, set_values
from bentpipe.studies.auckland.runs import BACKGROUND, TRANSFER
from bentpipe.studies.base.comparison import Comparison, Measurement, Row, Tolerance
from bentpipe.studies.base.inputs import Provenance, read_rows
from bentpipe.studies.base.work import Cell, steady_bps
from bentpipe.units import NS_PER_S

# Of the older page.
_QUEUE: Final = "0.1 bdp"
_TOLERANCE: Final = Tolerance(0.0, "%", "the bounds have the source's own uncertainty")


@dataclass(frozen=True)
class CheckCell(Cell):
    """One transfer of a size over the plain link, after a lead beside channels."""

    channels: int
    sizes: str
    transfer: str
    lead: str
    # Servers, sizes and starts are drawn.
    is_stochastic = True

    def scenario(self) -> Scenario:
        """Return the complete scenario."""
        data = configuration()
        data |= {"name": f"Auckland: {self.transfer}, {self.channels} channels"}
        data |= {"sample_interval": "1 s"}
        for direction in ("forward", "return"):
            set_values(data, f"link.{direction}.queue.limit", _QUEUE)
        transfer, background = (entry(data, name) for name in (TRANSFER, BACKGROUND))
        del transfer["duration"]
        transfer |= {"size": self.transfer, "start": self.lead}
        background["channels"] = self.channels
        if self.sizes == "small":
            background["sizes"] = background["sizes"][:-1]
        data["traffic"] = [background, transfer] if self.channels else [transfer]
        return Scenario.from_dict(data)

    def figures(self, outcome: Outcome) -> Mapping[str, float | None]:
        """Return how long the transfer takes, and the goodput of the channels meanwhile."""
        names = [flow["name"] for flow in outcome.job.plan.data["flows"]]
        number = names.index(TRANSFER)
        end_ns = float(outcome.column("flows", "finished_ns").astype(np.float64)[number])
        if np.isnan(end_ns):
            # It takes longer than the run.
            end_ns = float(outcome.job.plan.data["stop_ns"])
        start_ns: int = outcome.job.plan.data["flows"][number]["start_ns"]
        flow, at_ns = (outcome.column("flow_samples", name) for name in ("flow", "time_ns"))
        within = (flow != number) & (at_ns >= start_ns) & (at_ns <= end_ns)
        times_s = np.unique(at_ns[within]) / NS_PER_S
        channels_mbps = 0.0
        if times_s.size > 1:
            channels = [n for n in range(len(names)) if n != number]
            channels_mbps = steady_bps(outcome, channels, times_s[0], times_s[-1]) / 1e6
        return {"transfer_s": (end_ns - start_ns) / NS_PER_S, "channels_mbps": channels_mbps}


def _cell(row: Mapping[str, str]) -> CheckCell:
    return CheckCell(int(row["channels"]), row["sizes"], row["transfer"], row["lead"])


def cells() -> tuple[CheckCell, ...]:
    """Return the cells of checks.csv."""
    return tuple(dict.fromkeys(map(_cell, read_rows("auckland", "checks.csv"))))


def comparison(measured: Mapping[CheckCell, Measurement]) -> Comparison:
    """Return the published bounds vs. the runs."""
    return Comparison(
        tuple(
            Row(
                labels={"quantity": row["quantity"], "bound": row["bound"]},
                title=f"{row['quantity']} {row['bound'].replace('_', ' ')}",
                unit=row["unit"],
                published=float(row["value"]),
                simulated=measured[_cell(row)][row["figure"]],
                provenance=Provenance(row["provenance"]),
                tolerance=_TOLERANCE,
                bound="at_least" if row["bound"] == "at_least" else "at_most",
                how=row["source"],
            )
            for row in read_rows("auckland", "checks.csv")
        )
    )


def missed(checks: Comparison) -> list[str]:
    """Return the bounds that are not kept, or were not tried."""
    return [row.name for row in checks.rows if row.is_outside or row.agreement is None]
