"""Settings: values of a scenario overridden by ``path=value``.

A path has parts with dots between them. A part is the name of a field, or an entry of a list: its
number from 0, or its ``name``. A part in double quotes is always a name, so that a name can have
dots or be a number (like a quoted key of TOML). ``*`` stands for all entries of a list, or all
fields of a mapping, that allow the rest of the path.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, get_args, get_origin

from bentpipe.errors import ScenarioError, ScenarioWarning
from bentpipe.scenario.document import (
    MAX_VALUES,
    Document,
    FieldPath,
    SourceLocation,
    dotted,
    read_value,
)
from bentpipe.scenario.record import TAGS, Record
from bentpipe.text import did_you_mean

_PART: Final = re.compile(r'"(?P<name>[^"]+)"|(?P<plain>[^".=]+)')


@dataclass(frozen=True)
class Setting:
    """A value for what a path names; ``location`` is where it is written, for messages."""

    path: str
    value: Any
    location: SourceLocation


def split_setting(text: str, option: str, example: str) -> tuple[str, str]:
    """Return the path of ``path=value``, as it is written, and the text of the value.

    Raises:
        ScenarioError: there is no ``=`` or no path; the message names the option and an example.
    """
    location = SourceLocation(f"{option} {text}")
    rest = _parts(text, location, f"write it as {example}")[1]
    return text[: len(text) - len(rest) - 1].strip(), rest


def with_settings(
    document: Document, settings: Sequence[str | Setting], record: type[Record]
) -> Document:
    """Return a document of a record (`Scenario`) with values overridden by settings, in order.

    A setting that is a text is ``path=value``, as of ``--set``; the value is YAML. Missing
    mappings along the path are added; the schema checks their names later.

    Raises:
        ScenarioError: a setting has no ``=`` or no path, its value is not YAML, or its path leads
            through a scalar or to an entry that does not exist.
    """
    changed = replace(document, data=_copied(document.data), locations=dict(document.locations))
    warnings: list[ScenarioWarning] = []
    for setting in settings:
        read = _of_option(setting) if isinstance(setting, str) else setting
        warnings += _Change(read, record).apply(changed)
    before = document if settings else None
    return replace(changed, warnings=(*document.warnings, *warnings), before=before)


@dataclass(frozen=True)
class _Part:
    """A part of a path; ``is_name``: it was written in quotes."""

    text: str
    is_name: bool = False

    @property
    def is_wildcard(self) -> bool:
        return self.text == "*" and not self.is_name

    def names(self, number: int, entry: object) -> bool:
        """Return whether it names an entry of a list."""
        if self.is_number:
            return int(self.text) == number
        return self.is_wildcard or self.text == _name_of(entry)

    @property
    def is_number(self) -> bool:
        # int() refuses thousands of digits; a list has at most MAX_VALUES entries.
        is_short = len(self.text) <= len(str(MAX_VALUES))
        return not self.is_name and is_short and self.text.isascii() and self.text.isdigit()


@dataclass(frozen=True)
class _Place:
    """A value of the document, or a missing one, and the records that the schema allows there."""

    path: FieldPath
    data: Any
    records: tuple[type[Record], ...]

    def fields(self) -> dict[str, tuple[type[Record], ...]]:
        """Return the fields of a mapping here, with the records that each can hold."""
        fields: dict[str, tuple[type[Record], ...]] = {}
        for record in self.records:
            if not _contradicts(record, self.data):
                for name, field in record.model_fields.items():
                    key = field.serialization_alias or name
                    is_list = isinstance(self._value(key), list)
                    allowed = (
                        nested for nested, listed in _records(field.annotation) if listed == is_list
                    )
                    fields[key] = (*fields.get(key, ()), *allowed)
        return fields

    def _value(self, key: str) -> Any:
        return self.data.get(key) if isinstance(self.data, Mapping) else None

    def child(self, key: str | int) -> _Place:
        """Return a value inside this one."""
        if isinstance(key, int):
            return _Place((*self.path, key), self.data[key], self.records)
        return _Place((*self.path, key), self._value(key), self.fields().get(key, ()))

    def children(self, part: _Part) -> list[_Place]:
        """Return the values inside this one that a part names and the schema allows."""
        if isinstance(self.data, list):
            entries = enumerate(self.data)
            return [self.child(key) for key, entry in entries if part.names(key, entry)]
        names = self.fields()
        return [self.child(name) for name in names if part.is_wildcard or name == part.text]

    def allows(self, rest: Sequence[_Part]) -> bool:
        """Return whether the schema has fields here whose path is ``rest``."""
        return not rest or any(child.allows(rest[1:]) for child in self.children(rest[0]))


def _of_option(text: str) -> Setting:
    """Read the value of ``--set``."""
    path, rest = split_setting(text, "--set", "path=value, such as link.forward.delay=150ms")
    source = f"--set {text}"
    try:
        return Setting(path, read_value(rest, source), SourceLocation(source))
    except ScenarioError as error:
        problems = (replace(problem, line=None) for problem in error.problems)
        raise ScenarioError(*problems) from None


def _parts(text: str, location: SourceLocation, advice: str) -> tuple[list[_Part], str]:
    """Return the parts of the path before ``=``, and the text after it."""
    text = text.lstrip()
    parts: list[_Part] = []
    end = 0
    while match := _PART.match(text, end):
        name = match["name"]
        parts.append(_Part(match["plain"].strip()) if name is None else _Part(name, True))
        end = match.end() + 1
        if text[match.end() : end] != ".":
            break
    if not match or text[end - 1 : end] != "=" or not all(part.text for part in parts):
        raise location.error(advice)
    return parts, text[end:]


class _Change:
    """The places of a document that one setting changes."""

    def __init__(self, setting: Setting, record: type[Record]) -> None:
        self.record = record
        self.location = setting.location
        self.value = setting.value
        self.parts = _parts(f"{setting.path}=", setting.location, "is not the path of a field")[0]

    def apply(self, document: Document) -> list[ScenarioWarning]:
        """Set the value at each place that the path names; return what was left out."""
        left_out: list[_Place] = []
        places = [_Place((), document.data, (self.record,))]
        for position, part in enumerate(self.parts):
            rest = self.parts[position + 1 :]
            places = [
                child for place in places for child in self._children(place, part, rest, left_out)
            ]
        if not places:
            raise self.location.error(self._nowhere(document))
        for place in places:
            self._write(document, place.path)
        return self._about(places, left_out)

    def _children(
        self, place: _Place, part: _Part, rest: Sequence[_Part], left_out: list[_Place]
    ) -> Iterator[_Place]:
        """Return the places that a part names inside a place."""
        is_list = isinstance(place.data, list)
        is_mapping = place.data is None or isinstance(place.data, Mapping)
        if not part.is_wildcard or not (is_list or is_mapping):
            yield place.child(self._key(place, part))
            return
        if is_mapping and not rest:
            raise self.location.error(f'name a field after "{dotted((*place.path, "*"))}"')
        for child in place.children(part):
            if child.allows(rest):
                yield child
            elif is_list:
                # Fields of a mapping are no alternatives: no warning names them.
                left_out.append(child)

    def _key(self, place: _Place, part: _Part) -> str | int:
        """Return a part as a key of a container, and refuse one that has no place there."""
        container, shown = place.data, dotted(place.path)
        if container is None or isinstance(container, Mapping):
            return part.text
        if not isinstance(container, list):
            raise self.location.error(
                f'{shown} is the value "{container}"; it has no "{part.text}"'
            )
        names = [_name_of(entry) for entry in container]
        if part.is_number or not any(names):
            if not part.is_number or int(part.text) >= len(container):
                entries = f"entries 0 to {len(container) - 1}" if container else "no entries"
                raise self.location.error(f'{shown} is a list with {entries}; read "{part.text}"')
            return int(part.text)
        indices = [number for number, name in enumerate(names) if name == part.text]
        if not indices:
            hint = did_you_mean(part.text, tuple(name for name in names if name))
            message = f'{shown} has no entry "{part.text}"{hint}'
            raise self.location.error(f"{message} (entries: {_listed(enumerate(names))})")
        if len(indices) > 1:
            numbers = " and ".join(str(number) for number in indices)
            message = f'{shown} has several entries "{part.text}"; write a number: {numbers}'
            raise self.location.error(message)
        return indices[0]

    def _write(self, document: Document, path: FieldPath) -> None:
        container: Any = document.data
        for position, key in enumerate(path[:-1]):
            if isinstance(container, dict) and container.get(key) is None:
                container[key] = {}
                document.locations[path[: position + 1]] = self.location
            container = container[key]
        container[path[-1]] = _copied(self.value)
        for old in [old for old in document.locations if old[: len(path)] == path]:
            del document.locations[old]
        document.locations[path] = self.location

    def _nowhere(self, document: Document) -> str:
        first = next(i for i, part in enumerate(self.parts) if part.is_wildcard)
        place = _Place((), document.data, (self.record,))
        for part in self.parts[:first]:
            place = place.child(self._key(place, part))
        places, rest = place.children(self.parts[first]), self.parts[first + 1 :]
        hint = ""
        for part in rest:
            names = {name for inner in places for name in inner.fields()}
            if part.text not in names:
                hint = did_you_mean(part.text, tuple(sorted(names)))
                break
            places = [inner.child(part.text) for inner in places]
        what = "entry" if isinstance(place.data, list) else "field"
        return f'no {what} of {dotted(place.path) or "a scenario"} has "{_joined(rest)}"{hint}'

    def _about(self, places: Sequence[_Place], left_out: Sequence[_Place]) -> list[ScenarioWarning]:
        """Return a warning that names the entries of a list that a wildcard left out."""
        if not left_out:
            return []
        without = _listed((place.path[-1], _name_of(place.data)) for place in left_out)
        depth = len(left_out[0].path)
        rest = _joined(self.parts[depth:])
        count = len({place.path[:depth] for place in places})
        entries = "1 entry" if count == 1 else f"{count} entries"
        message = f"set in {entries}; left out, because they have no {rest}: {without}"
        return [ScenarioWarning(field=_joined(self.parts), message=message)]


def _joined(parts: Sequence[_Part]) -> str:
    return ".".join(part.text for part in parts)


def _listed(entries: Any) -> str:
    """Return the entries of a list, by name, or by number where they have none."""
    return ", ".join(name or str(number) for number, name in entries)


def _name_of(entry: object) -> str | None:
    name = entry.get("name") if isinstance(entry, Mapping) else None
    return name if isinstance(name, str) else None


def _contradicts(record: type[Record], data: object) -> bool:
    """Return whether a mapping says that it is another record."""
    if not isinstance(data, Mapping):
        return False
    for tag in TAGS:
        if tag in record.model_fields and data.get(tag) is not None:
            return data[tag] not in _values(record.model_fields[tag].annotation)
    return False


def _values(annotation: Any) -> list[Any]:
    inner = get_args(annotation)
    return [value for argument in inner for value in (_values(argument) or [argument])]


def _records(annotation: Any, *, in_list: bool = False) -> Iterator[tuple[type[Record], bool]]:
    """Return the records that a field of this type can hold, and whether in a list."""
    if inspect.isclass(annotation) and issubclass(annotation, Record):
        yield annotation, in_list
    for inner in get_args(annotation):
        yield from _records(inner, in_list=in_list or get_origin(annotation) is tuple)


def _copied(data: Any) -> Any:
    """Return a copy in which no two places share a mapping or a list, unlike a deep copy."""
    if isinstance(data, Mapping):
        return {key: _copied(value) for key, value in data.items()}
    return [_copied(entry) for entry in data] if isinstance(data, list | tuple) else data
