"""Fields of a scenario as integers of a plan, each of which knows the field that it comes from.

The type of a field has its unit (`bentpipe.scenario.record.Unit`), whose name ends that of the
plan's field: ``rto_min``, a duration, becomes ``rto_min_ns``. A field without a unit keeps its
name. Errors are those of a scenario whose parts do not fit together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar, get_args

from bentpipe.scenario.document import FieldPath
from bentpipe.scenario.record import Draw, Record, Unit
from bentpipe.text import shown
from bentpipe.units import Quantity

P = ParamSpec("P")
T = TypeVar("T")


@dataclass
class PlanningError(Exception):
    """The parts of a scenario do not fit together; ``path`` is the field to change."""

    path: FieldPath
    message: str


def wrong(path: FieldPath, written: object, message: str) -> PlanningError:
    """Return the error of a value that is written: what was read, and what is allowed."""
    return PlanningError(path, f"read {shown(written)}; {message}")


class PlanningErrors:
    """Collects the errors of parts that are resolved independently of each other."""

    def __init__(self) -> None:
        self.found: list[PlanningError] = []

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Return the result of a function; if it raises a `PlanningError`, keep that."""
        try:
            return function(*args, **kwargs)
        except PlanningError as error:
            if error not in self.found:
                self.found.append(error)
            return None


class Part(dict[str, Any]):
    """A mapping of a plan, and the fields of the scenario that its values come from.

    ``path`` is the field of the part as a whole. ``origins`` are the fields of single values, by
    name; values without one come from ``path``.
    """

    def __init__(
        self,
        # `dataclasses.asdict` makes a copy from pairs alone.
        values: Mapping[str, Any] | Iterable[tuple[str, Any]],
        path: FieldPath = (),
        origins: Mapping[str, FieldPath] = MappingProxyType({}),
    ) -> None:
        super().__init__(values)
        self.path = path
        self.origins = dict(origins)

    def rename(self, old: str, new: str) -> None:
        """Rename a value."""
        self[new] = self.pop(old)
        self.origins[new] = self.origins.pop(old)

    def default(self, name: str, value: Any) -> None:
        """Set a value that is None."""
        if self[name] is None:
            self[name] = value

    def select(self, added: Mapping[str, Any], *names: str, **renamed: str) -> Part:
        """Return some of the values, ``renamed`` (``new="old"``) or not, after ``added`` ones."""
        chosen = {name: name for name in names} | renamed
        values = {**added, **{new: self[old] for new, old in chosen.items()}}
        return Part(values, self.path, {new: self.origins[old] for new, old in chosen.items()})

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle the values alone: origins are for errors, before the plan is used."""
        return dict, (dict(self),)


def part(path: FieldPath, values: Mapping[str, Any], **fields: str) -> Part:
    """Return a part of a plan: ``fields`` are the fields below ``path`` of values, by name."""
    return Part(values, path, {name: (*path, field) for name, field in fields.items()})


@cache
def _fields(record: type[Record]) -> dict[str, tuple[str, bool]]:
    """Return the name in a plan of each field, and whether its value is drawn."""
    fields = {}
    for name, field in record.model_fields.items():
        types = list(_types((field.annotation, *field.metadata)))
        suffix = next(
            (annotation.suffix for annotation in types if isinstance(annotation, Unit)), ""
        )
        is_drawn = any(
            isinstance(annotation, type) and issubclass(annotation, Draw) for annotation in types
        )
        fields[name] = (name if name.endswith(suffix) else f"{name}{suffix}", is_drawn)
    return fields


def _types(types: Iterable[Any]) -> Iterator[Any]:
    """Return types, and those that they are made of, with the metadata of annotated ones."""
    for annotation in types:
        yield annotation
        yield from _types(get_args(annotation))


def field_name(record: type[Record], name: str) -> str:
    """Return the field of a record that has a name in a plan."""
    return next(field for field, (lowered, _) in _fields(record).items() if lowered == name)


def origins_of(record: Record, path: FieldPath) -> dict[str, FieldPath]:
    """Return the fields of a record, which is at ``path``, by their names in a plan."""
    return {name: (*path, field) for field, (name, _) in _fields(type(record)).items()}


def lower(record: Record, path: FieldPath, *, leave_out: Collection[str] = ()) -> Part:
    """Return the fields of a record, which is at ``path`` of the scenario, as a part of a plan.

    A quantity becomes an integer in its unit, and a draw the parameters of its distribution. Fields
    in ``leave_out`` are not in the part.

    Raises:
        PlanningError: the maximum of a draw is smaller than its minimum or median.
    """
    values: dict[str, Any] = {}
    for field, (name, is_drawn) in _fields(type(record)).items():
        if field not in leave_out:
            value = getattr(record, field)
            values[name] = draw(value, (*path, field)) if is_drawn else _value(value)
    return Part(values, path, origins_of(record, path))


def draw(written: Any, path: FieldPath) -> Part:
    """Return what a field of the scenario draws, or its constant value.

    Raises:
        PlanningError: the maximum is smaller than the minimum or the median.
    """
    if not isinstance(written, Draw):
        return Part({"kind": "constant", "value": _value(written)}, path)
    kind, parameters = written.distribution
    path = (*path, kind)
    if not isinstance(parameters, Record):
        return Part({"kind": kind, "mean": _value(parameters)}, path)
    fields = {name: getattr(parameters, name) for name in type(parameters).model_fields}
    values = {name: _value(field) for name, field in fields.items()}
    low, noun = ("min", "minimum") if "min" in values else ("median", "median")
    if values["max"] < values[low]:
        least = f"must be at least {shown(fields[low])}, the {noun}"
        raise wrong((*path, "max"), fields["max"], least)
    return Part({"kind": kind, **values}, path, {name: (*path, name) for name in fields})


def origin(data: Any, parts: Sequence[str]) -> FieldPath:
    """Return the field of the scenario that a value of a plan comes from.

    ``parts`` are the path of the value in ``data``. It is the field of the smallest part that has
    one, and empty if none has.
    """
    path: FieldPath = ()
    for name in parts:
        if isinstance(data, list):
            data = data[int(name)]
            path = data.path if isinstance(data, Part) else path
        elif isinstance(data, dict):
            if isinstance(data, Part):
                path = data.origins.get(name, data.path)
            data = data.get(name)
    return path


def _value(written: Any) -> Any:
    if isinstance(written, Quantity):
        return written.value
    return list(written) if isinstance(written, tuple) else written
