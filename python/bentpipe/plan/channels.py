"""Channels resolved into the plan: their servers, and the sizes of their downloads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Final

from bentpipe.errors import UnitError
from bentpipe.plan.errors import PlanningError
from bentpipe.plan.series_files import LONGEST_NUMBER, NUMBER, SeriesError, line_error, text_lines
from bentpipe.plan.tcp import tcp_plan
from bentpipe.plan.types import DownloadChannelPlan, WorkloadPlan
from bentpipe.scenario.channels import MAX_SIZES, SizeFile, Sizes
from bentpipe.scenario.document import FieldPath
from bentpipe.scenario.traffic import Channels
from bentpipe.units import parse_size, value_of

_HEADER: Final = ("size", "weight")
_LONGEST_INTEGER: Final = 20
# What a plan may hold (crates/sim/src/plan).
_LARGEST_BYTES: Final = 2**50
_LARGEST_WEIGHT: Final = Decimal(10) ** 12
# Weights are integers in the plan, with this many digits more than the scenario has integers.
_FRACTION_DIGITS: Final = 6


def channel(flow: Channels, servers: list[int], path: FieldPath) -> Callable[[int], WorkloadPlan]:
    """Return the workload of a channel.

    Raises:
        PlanningError: the file of the sizes is wrong, or the MSS is larger than a packet.
    """
    tcp = tcp_plan(flow, path)
    sizes = _sizes(flow.sizes, (*path, "sizes"))

    def plan(_: int) -> DownloadChannelPlan:
        return {
            "kind": "channel",
            "servers": servers,
            "sizes": sizes,
            "connections": flow.connections,
            "server_jitter_ns": value_of(flow.server_jitter),
            "client_jitter_ns": value_of(flow.client_jitter),
            "server": tcp.copy(),
            "client": tcp.copy(),
        }

    return plan


def _sizes(written: Sizes, path: FieldPath) -> list[list[int]]:
    """Return pairs of a size in bytes and its weight as an integer."""
    if isinstance(written, SizeFile):
        try:
            return _integers(_read(written.csv))
        except SeriesError as error:
            raise PlanningError((*path, "csv"), error.message) from None
    rows: list[tuple[int, Decimal]] = []
    for number, row in enumerate(written):
        size_bytes = value_of(row.size)
        if size_bytes > _LARGEST_BYTES:
            message = f'read "{row.size}"; must be at most 2^50 bytes'
            raise PlanningError((*path, number, "size"), message)
        rows.append((size_bytes, Decimal(repr(row.weight))))
    return _integers(rows)


def _integers(rows: Iterable[tuple[int, Decimal]]) -> list[list[int]]:
    """Return the rows with integer weights: exact up to `_FRACTION_DIGITS` digits of a fraction."""
    rows = list(rows)
    if all(weight == weight.to_integral_value() for _, weight in rows):
        return [[size_bytes, int(weight)] for size_bytes, weight in rows]
    scaled = [(size, round(weight.scaleb(_FRACTION_DIGITS))) for size, weight in rows]
    return [[size_bytes, max(1, weight)] for size_bytes, weight in scaled]


def _read(path: str) -> list[tuple[int, Decimal]]:
    """Read a table of sizes and weights.

    Raises:
        SeriesError: the file cannot be read as such a table.
    """
    lines = [
        (number, [cell.strip() for cell in text.split(",")])
        for number, text in enumerate(text_lines(path), 1)
        if text.strip() and not text.lstrip().startswith("#")
    ]
    if not lines:
        raise SeriesError(f"{path}: has no rows; expected the header size,weight")
    (first, header), *rows = lines
    if tuple(header) != _HEADER:
        raise line_error(path, first, ",".join(header), "expected the header size,weight")
    if not rows:
        raise SeriesError(f"{path}: has no rows; expected a row for each size after the header")
    if len(rows) > MAX_SIZES:
        raise SeriesError(f"{path}: has {len(rows)} rows; at most {MAX_SIZES} are allowed")
    found: dict[int, tuple[int, Decimal]] = {}
    for line, cells in rows:
        if len(cells) != len(_HEADER):
            raise line_error(path, line, ",".join(cells), "expected a size and a weight")
        size_bytes = _size(path, line, cells[0])
        if size_bytes in found:
            reason = f"line {found[size_bytes][0]} has the same size; add their weights"
            raise line_error(path, line, cells[0], reason, "size")
        found[size_bytes] = (line, _weight(path, line, cells[1]))
    return [(size_bytes, weight) for size_bytes, (_, weight) in found.items()]


def _size(path: str, line: int, text: str) -> int:
    """Return a size in bytes: a plain integer, or a number with a unit."""
    if text.isascii() and text.isdecimal() and len(text) <= _LONGEST_INTEGER:
        size_bytes = int(text)
    else:
        try:
            size_bytes = parse_size(text)
        except UnitError as error:
            message = f'{path}:{line}: column "size": {error} (a plain integer is in bytes)'
            raise SeriesError(message) from None
    if not 1 <= size_bytes <= _LARGEST_BYTES:
        raise line_error(path, line, text, "must be from 1 to 2^50 bytes", "size")
    return size_bytes


def _weight(path: str, line: int, text: str) -> Decimal:
    if not NUMBER.fullmatch(text) or len(text) > LONGEST_NUMBER:
        raise line_error(path, line, text, "a weight is a plain number", "weight")
    weight = Decimal(text)
    if not 0 < weight <= _LARGEST_WEIGHT:
        raise line_error(path, line, text, "must be above 0 and at most 1e12", "weight")
    return weight
