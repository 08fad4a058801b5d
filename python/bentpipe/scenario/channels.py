"""The servers of channels and the sizes of their downloads.

`channels.toml` has the defaults, `docs/model/channels.md` their sources.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag

from bentpipe.scenario.hosts import Host
from bentpipe.scenario.link import FileName
from bentpipe.scenario.record import PositiveSize, Record, refusal
from bentpipe.scenario.tables import read_table
from bentpipe.units import value_of

MAX_SIZES: Final = 10_000
MAX_SERVERS: Final = 1_000
# What a plan may hold (crates/sim/src/plan).
_LARGEST_BYTES: Final = 2**50
_TABLE: Final = read_table("channels")
DEFAULT_SERVERS: Final = tuple(
    Host(name=f"server-{number}", delay=f"{round_trip_ms / 2:g} ms")
    for number, round_trip_ms in enumerate(_TABLE["servers"]["round_trips_ms"], 1)
)


def _check_size(size: str) -> str:
    if value_of(size) > _LARGEST_BYTES:
        raise refusal(f'read "{size}"; must be at most 2^50 bytes')
    return size


class SizeWeight(Record):
    """A size, and how often it occurs."""

    size: Annotated[PositiveSize, AfterValidator(_check_size)]
    """The size, in application bytes."""
    weight: Annotated[float, Field(gt=0, le=1e12, allow_inf_nan=False)]
    """The weight: a size occurs with its weight over the sum of all weights."""


class SizeFile(Record):
    """A table of sizes in a CSV file."""

    csv: FileName
    """The file, relative to the scenario: a header ``size,weight``, and a row for each size. A size
    is a number of bytes or has a unit."""


_SizeTable = Annotated[
    tuple[SizeWeight, ...], Field(strict=False, min_length=1, max_length=MAX_SIZES)
]
Sizes = Annotated[
    Annotated[_SizeTable, Tag("table")] | Annotated[SizeFile, Tag("file")],
    Discriminator(lambda sizes: "file" if isinstance(sizes, Mapping | Record) else "table"),
]

DEFAULT_SIZES: Final = tuple(
    SizeWeight(size=f"{size} B", weight=weight) for size, weight in _TABLE["sizes"]["weights"]
)


Servers = Annotated[
    Annotated[Literal["world"], Tag("world")]
    | Annotated[
        tuple[Host, ...],
        Field(strict=False, min_length=1, max_length=MAX_SERVERS),
        Tag("hosts"),
    ],
    Discriminator(lambda servers: "world" if isinstance(servers, str) else "hosts"),
]
