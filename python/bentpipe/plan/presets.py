"""Plans as data: values read from a plan, and the stored plans of links.

Resolving a scenario loads pydantic and every class of a scenario, which takes longer than
everything else that sets a lab up. `preset_plans.json` holds the plans of presets without
settings; ``python -m bentpipe.plan.presets`` prints its content.
"""

from __future__ import annotations

import functools
import json
from bisect import bisect
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from bentpipe import plan, scenario
from bentpipe.errors import UsageError
from bentpipe.text import choice, nearest, nearest_path


def series_values(series: Mapping[str, Any]) -> list[int]:
    """Return the values of a series, such as a rate, in the order of their times."""
    if series["kind"] == "constant":
        return [series["value"]]
    return [value for _, value in series["steps"]]


def values_over_time(
    stop_ns: int, *several: Mapping[str, Any]
) -> list[tuple[float, tuple[int, ...]]]:
    """Return the values of series at the same time, each with its share of the time of a run."""
    steps = [series.get("steps") or [(0, series["value"])] for series in several]
    starts = sorted({at_ns for of_series in steps for at_ns, _ in of_series if at_ns < stop_ns})
    shares = [(end - at) / stop_ns for at, end in pairwise([*starts, stop_ns])]
    columns = []
    for of_series in steps:
        times = [at_ns for at_ns, _ in of_series]
        columns.append([of_series[bisect(times, at_ns) - 1][1] for at_ns in starts])
    return [*zip(shares, zip(*columns, strict=True), strict=True)]


def classes_of(queue: Mapping[str, Any]) -> int:
    """Return how many classes of packets a queue of a plan distinguishes."""
    classes = queue.get("classes", 1)
    return classes if isinstance(classes, int) else len(classes)


def queues_of(queue: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return a queue of a plan, and those that its classes have of their own."""
    classes = queue.get("classes")
    of_classes = classes if isinstance(classes, list) else []
    return [queue, *(each["queue"] for each in of_classes if each["queue"] is not None)]


def direction_number(flow: Mapping[str, Any]) -> int:
    """Return the number of the direction that carries the data of a flow."""
    return 0 if flow["direction"] == "forward" else 1 + int(flow["terminal"])


_FILE: Final = Path(__file__).with_name("preset_plans.json")
# How long outages, traces and other events of a link repeat in a lab whose scenario has no
# duration; from then on the link stays as it is.
_EVENTS_LAST: Final = "1 h"


def link_plan(link: str | Mapping[str, Any], settings: Sequence[str] = ()) -> dict[str, Any]:
    """Return the plan of a link alone: a preset by name, or that of a scenario file or mapping.

    Raises:
        ScenarioError: naming the field, what was read and what is allowed.
        UsageError: it is neither a preset nor a file.
    """
    stored = preset_plans().get(link) if isinstance(link, str) and not settings else None
    return resolved_plan(link, settings) if stored is None else stored


def resolved_plan(link: str | Mapping[str, Any], settings: Sequence[str] = ()) -> dict[str, Any]:
    """Resolve the plan of a link, as `link_plan` returns it."""
    document = link_document(link)
    return plan.Plan.resolve(scenario.Scenario.from_document(document, settings)).data


def link_document(link: str | Mapping[str, Any]) -> scenario.Document:
    """Return a whole scenario with a link: a preset by name, or that of a scenario file or mapping.

    The file ``-`` is standard input.

    Raises:
        ScenarioError: the file cannot be read.
        UsageError: it is neither a preset nor a file.
    """
    if isinstance(link, Mapping):
        document = scenario.Document(data=dict(link), source="scenario")
    elif link in scenario.PRESETS:
        document = scenario.Document(data={"link": {"preset": link}}, source=link)
    elif link == "-" or (link and Path(link).exists()):
        document = scenario.read_file(Path(link))
    else:
        presets = tuple(scenario.PRESETS)
        # A preset that is near is meant rather than a file.
        file = None if nearest(link, presets) or not link else nearest_path(Path(link))
        hint = f'; did you mean "{file}"?' if file else ""
        raise UsageError(f"link: there is no such file; {choice(link, presets)}{hint}")
    # Programs make the traffic of a lab; these fields only complete the scenario.
    document.data.setdefault("traffic", [{"kind": "bulk", "direction": "forward", "size": "1 B"}])
    document.data.setdefault("duration", _EVENTS_LAST)
    return document


@functools.cache
def preset_plans() -> Mapping[str, dict[str, Any]]:
    """Return the plans of the presets, by name."""
    plans: dict[str, dict[str, Any]] = json.loads(_FILE.read_text(encoding="utf-8"))
    return plans


if __name__ == "__main__":
    # A line a preset: steps would be thousands of lines.
    plans = [f"{json.dumps(name)}: {json.dumps(resolved_plan(name))}" for name in scenario.PRESETS]
    print("{\n" + ",\n".join(plans) + "\n}")
