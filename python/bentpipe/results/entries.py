"""The flows of each entry of ``traffic`` together: counts, and percentiles over flows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from bentpipe.metrics import KINDS_OF_ROWS, metrics_shown
from bentpipe.results.measures import exchange_times_ns, page_load_times_ns

if TYPE_CHECKING:
    from bentpipe.results.result import Result

# More flows are shown by entry: they fill more than a screen.
MAX_SINGLE_FLOWS: Final = 12
# Of a band of many flows in a plot, and of the flows of an entry.
PERCENTILES: Final = (5, 50, 95)
ENTRY_PERCENTILES: Final = (*PERCENTILES, 99)


def entry_names(result: Result) -> list[str]:
    """Return the name of each flow's entry: its own, or those of its first and last flow."""
    return names_of_entries(result.plan, result.manifest.get("entries", []))


def names_of_entries(plan: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the name of each flow's entry, from the plan and the entries of the manifest."""
    names = [flow["name"] for flow in plan["flows"]]
    found: list[str] = []
    for entry in entries:
        own = names[len(found) : len(found) + entry["flows"]]
        title = own[0] if len(own) == 1 else entry["name"] or f"{own[0]} to {own[-1]}"
        found += [title] * len(own)
    return found or names


def entry_flows(result: Result) -> dict[tuple[int, str], list[int]]:
    """Return the flows of each entry and heading (forward or return), as indices into the plan."""
    sizes = [entry["flows"] for entry in result.manifest.get("entries", [])]
    flows = result.plan["flows"]
    numbers = [i for i, size in enumerate(sizes) for _ in range(size)] or range(len(flows))
    groups: dict[tuple[int, str], list[int]] = {}
    for i, (number, flow) in enumerate(zip(numbers, flows, strict=True)):
        groups.setdefault((number, flow["direction"]), []).append(i)
    return groups


def entry_statistics(result: Result) -> list[dict[str, Any]]:
    """Return the figures of each entry and direction of its data, as plain data.

    Each quantity has p5, p50, p95 and p99 over the flows that have one (linear interpolation); None
    if none has. The completion times of requests and responses are those of all
    exchanges; page load times are those of all pages.
    """
    flows, names = result.flows.to_dicts(), entry_names(result)
    columns = [metric.name for metric in metrics_shown("entry", "flows")]
    found = []
    for (_, heading), indices in entry_flows(result).items():
        own = [flows[i] for i in indices]
        times_ns: Iterable[float | None] = [flow["completion_time_ns"] for flow in own]
        if own[0]["kind"] in KINDS_OF_ROWS["exchanges"]:
            times_ns = exchange_times_ns(result, indices)
        lost = [flow["lost_packets"] for flow in own if flow["lost_packets"] is not None]
        found.append(
            {
                "entry": names[indices[0]],
                "kind": own[0]["kind"],
                "direction": heading,
                "flows": len(own),
                "finished_flows": sum(flow["finished_ns"] is not None for flow in own),
                "exchanges": sum(flow["exchanges"] for flow in own),
                "lost_packets": sum(lost) if lost else None,
                **{name: _percentiles(flow[name] for flow in own) for name in columns},
                "completion_time_ns": _percentiles(times_ns),
                "page_load_time_ns": _percentiles(page_load_times_ns(result, indices)),
            }
        )
    return found


def _percentiles(values: Iterable[float | None]) -> dict[str, float] | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    quantiles = np.percentile(known, ENTRY_PERCENTILES)
    return {f"p{p}": float(value) for p, value in zip(ENTRY_PERCENTILES, quantiles, strict=True)}
