"""What the simulator refuses about a plan, as an error of the scenario's field."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from bentpipe import _core
from bentpipe.plan.errors import PlanningError, PlanningErrors
from bentpipe.plan.tunnels import scenario_path
from bentpipe.scenario.document import FieldPath
from bentpipe.scenario.gateways import FunctionName
from bentpipe.scenario.tcp import Tcp
from bentpipe.scenario.traffic import Flow
from bentpipe.text import shown

if TYPE_CHECKING:
    from bentpipe.plan.plan import Plan

# Plan fields whose name is more than the scenario's name and a unit.
_RENAMED: Final = {
    "stop_ns": "duration",
    "flows": "traffic",
    "buffer_packets": "buffer",
}
_UNIT: Final = re.compile(r"_(ns|bps|bytes|segments)$")
# A scenario writes the TCP settings of both ends once.
_TCP_SIDES: Final = ("sender", "receiver", "server", "client")
# Fields of a direction whose parts a scenario does not name.
_ONE_FIELD: Final = ("limit", "per_flow_limit", "rate_bps", "delay_ns", "framing")


def check_plan(plan: Plan, errors: PlanningErrors) -> None:
    """Let the simulator check a plan; errors are those of the scenario's fields.

    The simulator names the first wrong field. The flows of its entry are left out, and the others
    are checked again.
    """
    numbers = list(range(len(plan.data["flows"])))
    text = plan.text
    while numbers:
        try:
            _core.validate(text)
        except _core.PlanError as error:
            refused = list(error.path)
            if refused[:1] != ["flows"] or len(refused) == 1:
                errors.found.append(in_scenario(refused, error.reason, plan))
                return
            number = numbers[int(refused[1])]
            refused[1] = str(number)
            errors.found.append(in_scenario(refused, error.reason, plan))
            of_entry = plan.entry_of_flow
            numbers = [each for each in numbers if of_entry[each] != of_entry[number]]
            flows = [plan.data["flows"][each] for each in numbers]
            text = json.dumps({**plan.data, "flows": flows})
        else:
            return


def in_scenario(refused: Sequence[str], reason: str, plan: Plan) -> PlanningError:
    """Return the error of the field that a refused field of the plan was resolved from.

    ``refused`` is the path of that field in the plan, empty if the whole plan is refused.
    """
    if not refused:
        return PlanningError((), f"the plan is refused: {reason}")
    path = tuple(_path(refused, plan))
    return PlanningError(path, f"{_as_written(path, plan)}{reason} ({refused[-1]})")


def _path(parts: Sequence[str], plan: Plan) -> Iterator[int | str]:
    first, *rest = parts
    if first == "flows" and rest:
        entry = plan.entry_of_flow[int(rest[0])]
        yield from ("traffic", entry)
        yield from _flow_path(rest[1:], plan.scenario.traffic[entry])
    elif first == "gateways" and rest:
        yield "gateways"
        yield from _gateway_path(rest, plan)
    elif first == "directions" and rest:
        yield "link"
        yield "forward" if rest[0] == "0" else "return"
        yield from _direction_path(rest[1:])
    else:
        yield scenario_name(first)


def _flow_path(parts: Sequence[str], flow: Flow) -> Iterator[str]:
    """Return the path below an entry of ``traffic``."""
    parts = [part for part in parts if part not in {"workload", "media"}]
    if not parts:
        return
    first, *rest = parts
    if first == "amount":
        yield "size" if getattr(flow, "size", None) else "duration"
    elif first in _TCP_SIDES:
        yield "tcp"
        for part in rest:
            yield part if part in Tcp.model_fields else scenario_name(part)
    elif first == "exchanges" and flow.kind == "fetch":
        yield "files"
    elif first == "response_bytes":
        yield from _draw_path("size" if flow.kind == "fetch" else "response", rest, flow)
    elif first in {"document_bytes", "object_bytes", "objects"}:
        yield from _draw_path(scenario_name(first), rest, flow)
    elif first == "think_ns":
        yield from _draw_path("think", rest, flow)
    else:
        yield scenario_name(first)


def _draw_path(field: str, rest: Sequence[str], flow: Flow) -> Iterator[str]:
    yield field
    distribution = getattr(flow, field)
    if isinstance(distribution, str | int) or not rest:
        return
    (name,) = distribution.model_fields_set
    yield name
    if name != "exponential":
        yield scenario_name(rest[0])


def _gateway_path(parts: Sequence[str], plan: Plan) -> Iterator[str]:
    """Return the path below ``gateways``: terminals are equal and written once."""
    name: Literal["hub", "terminal"] = "hub" if parts[0] == "0" else "terminal"
    yield name
    match parts[1:]:
        case ["functions", number, *rest]:
            function: FunctionName = getattr(plan.scenario.gateways, name).in_order()[int(number)][
                0
            ]
            yield function
            for part in scenario_path(rest) if function == "tunnel" else rest:
                yield part if part in Tcp.model_fields else scenario_name(part)


def _direction_path(parts: Sequence[str]) -> Iterator[str]:
    """Return the path below a direction of the link."""
    for position, part in enumerate(parts):
        if part in ("from", "to", "name"):
            return
        if part == "channel":
            yield from _channel_path(parts[position + 1 :])
            return
        yield scenario_name(part)
        if part in _ONE_FIELD:
            return


def _channel_path(parts: Sequence[str]) -> Iterator[str]:
    """Return the path of a channel's field, below the direction."""
    match parts:
        case ["good" | "bad" as state, *rest]:
            yield from ("errors", state, *map(scenario_name, rest))
        case ["steps", *_]:
            yield "errors"
        case _:
            yield "bit_error_rate"


def scenario_name(part: str) -> str:
    """Return the scenario's name of a field of the plan."""
    return _RENAMED.get(part, _UNIT.sub("", part))


def _as_written(path: FieldPath, plan: Plan) -> str:
    value: Any = plan.scenario.to_dict()
    for part in path:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            return ""
    return f"read {shown(value)}; " if isinstance(value, str | int | float) else ""
