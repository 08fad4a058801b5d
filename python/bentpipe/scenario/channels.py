"""The servers of channels and the sizes of their downloads, with the provenance of the defaults.

`docs/model/channels.md` has the sources.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag

from bentpipe.scenario.hosts import Host
from bentpipe.scenario.link import FileName
from bentpipe.scenario.record import PositiveSize, Record, refusal
from bentpipe.units import value_of

MAX_SIZES: Final = 10_000
MAX_SERVERS: Final = 1_000
# What a plan may hold (crates/sim/src/plan).
_LARGEST_BYTES: Final = 2**50
# Stated: 13 servers, from 0 to 390 ms of round trip, with a mean of 206 ms. Assumed: the delays
# between these bounds.
_ROUND_TRIPS_MS: Final = (0, 30, 60, 125, 160, 190, 220, 260, 280, 300, 320, 343, 390)
DEFAULT_SERVERS: Final = tuple(
    Host(name=f"server-{number}", delay=f"{round_trip_ms / 2:g} ms")
    for number, round_trip_ms in enumerate(_ROUND_TRIPS_MS, 1)
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

# From traces of the Auckland simulator: flows of 235, 591 and 2,120 bytes dominate. Assumed: that
# they are half of all flows. The other half is a heavy tail from 10 kB to 100 MB in steps of half a
# decade, P(X >= x) = 0.5 (x / 10 kB)^-1.05 (assumed; files on the Web have shapes near 1: Crovella
# and Bestavros, IEEE/ACM Transactions on Networking 5(6), 1997). The mean is 26.7 kB.
DEFAULT_SIZES: Final = tuple(
    SizeWeight(size=f"{size} B", weight=weight)
    for size, weight in (
        (235, 200_000),
        (591, 170_000),
        (2_120, 130_000),
        (10_000, 350_731),
        (31_623, 104_707),
        (100_000, 31_259),
        (316_228, 9_332),
        (1_000_000, 2_786),
        (3_162_278, 832),
        (10_000_000, 248),
        (31_622_777, 74),
        (100_000_000, 31),
    )
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
