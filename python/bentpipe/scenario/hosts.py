"""Hosts at some distance from their gateway."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from bentpipe import units
from bentpipe.scenario.record import Duration, Rate, Record

MAX_HOSTS: Final = 10_000

Side = Literal["world", "island"]
# The choices that a flow can write instead of a name.
RANDOM: Final = "random"
ROUND_ROBIN: Final = "round-robin"


class Host(Record):
    """A host at some distance from its gateway."""

    name: Annotated[str, Field(min_length=1, max_length=100)]
    """The name that flows refer to."""
    delay: Duration = units.duration("0 ms")
    """One-way delay between it and the gateway: half of the round trip."""
    jitter: Duration = units.duration("0 ms")
    """The largest additional delay of a packet, each way; drawn for each packet, uniformly from
    zero. Packets are not reordered."""
    rate: Rate | None = None
    """The rate of its line, in IP bits per second; without one, sending takes no time."""


_Hosts = Annotated[tuple[Host, ...], Field(strict=False, max_length=MAX_HOSTS)]


class Hosts(Record):
    """Hosts with a delay of their own. Flows that name none run at the gateway, without delay."""

    world: _Hosts = ()
    """Hosts behind the hub, such as servers on the Internet."""
    island: _Hosts = ()
    """Hosts behind each terminal."""
