"""YAML text as plain data, with the line of each value for error messages.

ruamel.yaml composes the nodes (YAML 1.2); this module builds the data from them. It refuses
constructs that hide mistakes or attack parsers: duplicate keys, tags other than those of the core
schema, keys that are not text, several documents, aliases that expand beyond `MAX_VALUES` or
`MAX_CHARACTERS` or contain themselves, YAML 1.1, and files over `LARGEST_FILE_BYTES`. It also
refuses fields and entries with nothing after them, which YAML reads as null: they are what an unset
variable leaves of a template. A null is written as ``null`` or ``~``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from bentpipe.errors import Problem, ScenarioError, ScenarioWarning
from bentpipe.text import NO_VALUE, no_such, shown

# Far more than a person writes; the pure-Python scanner reads about 200 kB a second.
LARGEST_FILE_BYTES: Final = 256 * 1024
# Fields and entries, with aliases expanded: an alias bomb has billions.
MAX_VALUES: Final = 100_000
# Of their texts and keys, with aliases expanded: each use of one is a copy.
MAX_CHARACTERS: Final = 4 * LARGEST_FILE_BYTES

STDIN: Final = "<stdin>"
_CONTENT: Final = "a scenario (YAML)"

_CORE: Final = "tag:yaml.org,2002:"
# ruamel tells dates from text; as values they are text here.
_SCALARS: Final = {
    f"{_CORE}{tag}": "text" if tag in ("str", "timestamp") else tag
    for tag in ("null", "bool", "int", "float", "str", "timestamp")
}
# What may be before a document: empty lines, comments and directives.
_HEAD: Final = re.compile(r"\ufeff?(?:[ \t]*(?:#[^\n]*)?\n|%[^\n]*\n)*")
_YAML_1_1: Final = re.compile(r"^\ufeff?%YAML[ \t]+0*1\.0*1\b", re.MULTILINE)
_NULLS: Final = {"null": None, "~": None}
_BOOLEANS: Final = {"true": True, "false": False}

FieldPath = tuple[str | int, ...]


@dataclass(frozen=True)
class SourceLocation:
    """Where a value is written: a file and a line, or a ``--set`` option without a line."""

    source: str
    line: int | None = None

    def problem(self, message: str, path: FieldPath = ()) -> Problem:
        """Return a problem of what is written here, the field of ``path``."""
        return Problem(source=self.source, line=self.line, field=dotted(path), message=message)

    def error(self, message: str, path: FieldPath = ()) -> ScenarioError:
        """Return the error of what is written here, the field of ``path``."""
        return ScenarioError(self.problem(message, path))


@dataclass(frozen=True)
class Document:
    """Plain data (mappings, lists and scalars), and where each value is written.

    ``warnings`` are about how settings were applied, and ``before`` is the document without the
    latest ones, which may have another one before it.
    """

    data: dict[str, Any]
    source: str
    locations: dict[FieldPath, SourceLocation] = field(default_factory=dict)
    warnings: tuple[ScenarioWarning, ...] = ()
    before: Document | None = None

    @cached_property
    def changes(self) -> dict[str, Any]:
        """The values that settings have changed, by path; None where they removed one.

        The name and the seed, which each result has, and thresholds of options are no settings.
        """
        first: Document = self
        while first.before is not None:
            first = first.before
        return {path: new for path, (_, new) in differing(first.data, self.data).items()}

    def location(self, path: FieldPath) -> SourceLocation:
        """Return where ``path`` is written, or the nearest value that contains it."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.locations:
                return self.locations[path[:length]]
        return SourceLocation(self.source)

    def problem(self, path: FieldPath, message: str) -> Problem:
        """Return a Problem that points at ``path``."""
        return self.location(path).problem(message, path)


def dotted(path: FieldPath) -> str:
    """Return a path as text: ``("traffic", 0, "size")`` gives ``"traffic.0.size"``."""
    return ".".join(str(part) for part in path)


def differing(*documents: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """Return by path the values that differ, one for each document: None where it has no value.

    Name and seed of a scenario do not count.
    """
    written = [_values(data, ()) for data in documents]
    by_path = {
        path: tuple(fields.get(path) for fields in written) for data in written for path in data
    }
    return {
        path: values
        for path, values in by_path.items()
        if path not in {"name", "seed"} and any(value != values[0] for value in values)
    }


def _values(data: Any, path: FieldPath) -> dict[str, Any]:
    """Return the scalars of plain data by path."""
    if isinstance(data, Mapping | list):
        items = data.items() if isinstance(data, Mapping) else enumerate(data)
        return {
            name: value
            for key, inner in items
            for name, value in _values(inner, (*path, key)).items()
        }
    return {dotted(path): data}


def read_file(path: Path) -> Document:
    """Read YAML that holds a mapping from a file, or from standard input for ``-``.

    Raises:
        ScenarioError: it cannot be read, is not text, is not YAML, or is not a mapping.
    """
    if str(path) != "-":
        return read_text(file_text(path, _CONTENT), str(path))
    try:
        content = sys.stdin.buffer.read(LARGEST_FILE_BYTES + 1)
    except (AttributeError, OSError):
        # Python has no standard input where it is closed.
        raise file_error(STDIN, "cannot be read; name a file") from None
    return read_text(_decoded(content, STDIN, _CONTENT, LARGEST_FILE_BYTES), STDIN)


def file_text(path: Path, content: str, largest_bytes: int = LARGEST_FILE_BYTES) -> str:
    """Return the text of a file; ``content`` says in errors what it should have.

    Raises:
        ScenarioError: the file cannot be read, is over ``largest_bytes``, or is not text.
    """
    source = str(path)
    try:
        with path.open("rb") as file:
            read = file.read(largest_bytes + 1)
    except FileNotFoundError:
        raise file_error(source, no_such("file", path)) from None
    except IsADirectoryError:
        raise file_error(source, "is a directory; name a file") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise file_error(source, f"cannot be read: {reason}") from None
    return _decoded(read, source, content, largest_bytes)


def _decoded(read: bytes, source: str, content: str, largest_bytes: int) -> str:
    if len(read) > largest_bytes:
        raise file_error(source, f"is larger than {largest_bytes} bytes; expected {content}")
    try:
        text = read.decode("utf-8")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise file_error(source, f"is not a text file; expected {content} in UTF-8")
    return text


def read_text(text: str, source: str) -> Document:
    """Read YAML text that holds a mapping; ``source`` names it in errors.

    Raises:
        ScenarioError: the text is not YAML as this module reads it, or not a mapping.
    """
    data, locations = _build(text, source)
    if data is None:
        raise file_error(source, "is empty; a scenario has at least link, traffic and duration")
    if not isinstance(data, dict):
        kind = "a list" if isinstance(data, list) else f'"{data}"'
        raise file_error(
            source, f"read {kind} at the top; a scenario is a mapping (name: value)", 1
        )
    return Document(data=data, source=source, locations=locations)


def read_value(text: str, source: str) -> Any:
    """Read a value from YAML text; ``source`` names it in errors.

    Raises:
        ScenarioError: the text is not YAML as this module reads it, or has no value.
    """
    data, locations = _build(text, source)
    if not locations:
        raise file_error(source, NO_VALUE)
    return data


def _build(text: str, source: str) -> tuple[Any, dict[FieldPath, SourceLocation]]:
    """Return the data of a YAML text, and where each value is written."""
    builder = _Builder(source)
    try:
        return builder.build(_compose(text, source), ()), builder.locations
    except RecursionError:
        raise file_error(source, "is nested too deeply, or contains itself") from None


def _compose(text: str, source: str) -> Node | None:
    head = _HEAD.match(text.replace("\r\n", "\n").replace("\r", "\n"))
    if head and (directive := _YAML_1_1.search(head[0])):
        here = head[0].count("\n", 0, directive.start()) + 1
        message = (
            "read %YAML 1.1, in which no is false and 010 is 8; remove the directive: "
            "the text is read as YAML 1.2"
        )
        raise file_error(source, message, here)
    try:
        return YAML(typ="safe", pure=True).compose(text)  # type: ignore[no-any-return]
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = " ".join(part for part in (error.context, error.problem) if part)
        line = None if mark is None else mark.line + 1
        raise file_error(source, f"YAML syntax: {reason}", line) from None
    except YAMLError as error:
        raise file_error(source, f"YAML syntax: {str(error).splitlines()[0]}") from None
    except (ArithmeticError, AssertionError, LookupError, ValueError):
        # Of an escape beyond U+10FFFF, and of a directive.
        message = "an escaped character (\\U) or a version (%YAML) that does not exist"
        raise file_error(source, f"YAML syntax: {message}") from None


class _Builder:
    """Builds plain data from nodes, counts the values and notes their locations."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.locations: dict[FieldPath, SourceLocation] = {}
        self._values = self._characters = 0

    def build(self, node: Node | None, path: FieldPath) -> Any:
        if node is None:
            return None
        here = self._location(node)
        # An alias is built at each use, so that its expansion is counted.
        self._values += 1
        if self._values > MAX_VALUES:
            raise file_error(self.source, f"has more than {MAX_VALUES} values (aliases expanded)")
        # A value below a key has the line of the key, which is set already.
        self.locations.setdefault(path, here)
        tag = str(node.tag)
        if isinstance(node, MappingNode) and tag == f"{_CORE}map":
            return self._mapping(node, path)
        if isinstance(node, SequenceNode) and tag == f"{_CORE}seq":
            return [self.build(item, (*path, i)) for i, item in enumerate(node.value)]
        if not isinstance(node, ScalarNode) or tag not in _SCALARS:
            raise here.error(f'tag "{tag}" is not allowed; write plain YAML', path)
        kind, text = _SCALARS[tag], node.value
        self._count(text)
        if kind == "null" and not text:
            # The mark of an empty value may be on the next line; its key is on its own.
            raise self.locations[path].error(NO_VALUE, path)
        if kind == "text":
            return self._text(text, path, here)
        try:
            return _READERS[kind](text)
        except (ValueError, KeyError):
            raise here.error(f"read {shown(text)}; cannot be read as {kind}", path) from None

    def _location(self, node: Node) -> SourceLocation:
        return SourceLocation(self.source, node.start_mark.line + 1)

    def _mapping(self, node: MappingNode, path: FieldPath) -> dict[str, Any]:
        built: dict[str, Any] = {}
        for key_node, value_node in node.value:
            here = self._location(key_node)
            if not isinstance(key_node, ScalarNode) or str(key_node.tag) != f"{_CORE}str":
                read = getattr(key_node, "value", "")
                raise here.error(f'read the key "{read}"; field names are text', path)
            self._count(str(key_node.value))
            key = self._text(str(key_node.value), path, here)
            if key in built:
                line = self.locations[*path, key].line
                raise here.error(f'duplicate field "{key}"; line {line} has it already', path)
            self.locations[*path, key] = here
            built[key] = self.build(value_node, (*path, key))
        return built

    def _count(self, text: str) -> None:
        self._characters += len(text)
        if self._characters > MAX_CHARACTERS:
            message = f"has more than {MAX_CHARACTERS:,} characters (aliases expanded)"
            raise file_error(self.source, message)

    def _text(self, text: str, path: FieldPath, here: SourceLocation) -> str:
        """Return a text; JSON escapes a character beyond U+FFFF as two surrogates (RFC 8259, 7)."""
        try:
            return text.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            message = "read a text with half of a surrogate pair; write the character itself"
            raise here.error(message, path) from None


def _integer(text: str) -> int:
    based = text.lstrip("+-")[:2].lower() in ("0x", "0o")
    return int(text, 0) if based else int(text)


def _float(text: str) -> float:
    plain = text.replace("_", "").lower()
    return float(plain.replace(".inf", "inf").replace(".nan", "nan"))


_READERS: Final[Mapping[str, Callable[[str], Any]]] = {
    "null": lambda text: _NULLS[text.lower()],
    "bool": lambda text: _BOOLEANS[text.lower()],
    "int": _integer,
    "float": _float,
}


def file_error(source: str, message: str, line: int | None = None) -> ScenarioError:
    """Return the error of a whole file, or of a line of it."""
    return SourceLocation(source, line).error(message)
