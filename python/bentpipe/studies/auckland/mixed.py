"""Cells in which half of the channels are not coded: what coded flows take from the others."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from bentpipe.simulation.many import Outcome
from bentpipe.studies.auckland.cells import (
    BACKGROUND,
    CODED,
    QUEUES_KB,
    Cell,
    Data,
    LinkPath,
    Variant,
    entry,
)
from bentpipe.studies.auckland.measure import Measured, Measurement
from bentpipe.studies.auckland.verdicts import gain_percent
from bentpipe.studies.base.samples import Samples

MAX_MIXED_RUNS: Final = 5
PATHS: Final = (LinkPath.PLAIN, *CODED)
# Entries and classes of the halves; a drop-tail queue ignores the class.
_UNCODED: Final = "others"
_CODED_CLASS, _UNCODED_CLASS = 0, 1
CODED_HALF, UNCODED_HALF = "coded_half_mbps", "uncoded_half_mbps"


def _halve(data: Data) -> None:
    background = entry(data, BACKGROUND)
    channels = background["channels"]
    background["channels"] = channels - channels // 2
    others = copy.deepcopy(background)
    others |= {"name": _UNCODED, "channels": channels // 2, "priority": _UNCODED_CLASS}
    data["traffic"].append(others)
    for functions in data.get("gateways", {}).values():
        functions["tunnel"]["classes"] = [_CODED_CLASS]


HALVED: Final = Variant("half of the channels uncoded", paths=PATHS, change=_halve)


def halves(outcome: Outcome) -> dict[str, float]:
    """Return the goodput of each half of the channels in a run."""
    plan = outcome.job.plan.data
    delivered = outcome.column("flows", "delivered_bytes")
    stop_ns = plan["stop_ns"]
    found = {}
    for figure, entry_name in ((CODED_HALF, BACKGROUND), (UNCODED_HALF, _UNCODED)):
        mine = [flow["name"].startswith(entry_name) for flow in plan["flows"]]
        found[figure] = float(delivered[mine].sum()) * 8e3 / stop_ns
    return found


@dataclass(frozen=True)
class Share:
    """The goodput of both halves of the channels of a cell, and their changes from plain."""

    measurement: Measurement
    coded_gain_percent: Samples
    uncoded_gain_percent: Samples

    def to_json(self) -> dict[str, Any]:
        """Return the cell with goodputs and changes as plain data."""
        found = self.measurement
        return {
            **found.cell.labels,
            **found[CODED_HALF].to_json(CODED_HALF),
            **found[UNCODED_HALF].to_json(UNCODED_HALF),
            **self.coded_gain_percent.to_json("coded_half_change_percent"),
            **self.uncoded_gain_percent.to_json("uncoded_half_change_percent"),
        }


def shares(measured: Measured) -> Sequence[Share]:
    """Return the halves of each coded cell, compared with the same halves of the plain link."""
    found = []
    for queue_kb in QUEUES_KB:
        for cell, measurement in measured.items():
            plain = measured[Cell(cell.channels, cell.queue_kb, LinkPath.PLAIN)]
            if cell.queue_kb == queue_kb:
                gains = (
                    gain_percent(plain.by_seed(half), measurement.by_seed(half))
                    for half in (CODED_HALF, UNCODED_HALF)
                )
                found.append(Share(measurement, *gains))
    return found
