"""Hosts at some distance from their gateway."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from bentpipe import units
from bentpipe.scenario.record import Duration, Rate, Record

MAX_HOSTS: Final = 10_000

Side = Literal["world", "island"]
# What a flow may write instead of a name.
RANDOM: Final = "random"
IN_TURN: Final = "in-turn"


class Host(Record):
    """A host at some distance from its gateway."""

    name: Annotated[str, Field(min_length=1, max_length=100)]
    """What flows call it."""
    delay: Duration = units.duration("0 ms")
    """One-way delay between it and the gateway: half of the round trip."""
    jitter: Duration = units.duration("0 ms")
    """The most that a packet is delayed on top, each way; drawn for each packet, uniformly from
    zero. Packets keep their order."""
    rate: Rate | None = None
    """The rate of its line, in IP bits a second; without one packets take no time on it."""


_Hosts = Annotated[tuple[Host, ...], Field(strict=False, max_length=MAX_HOSTS)]


class Hosts(Record):
    """Hosts with a distance of their own. Flows that name none run right at the gateway."""

    world: _Hosts = ()
    """Behind the hub: servers on the Internet, say."""
    island: _Hosts = ()
    """Behind each terminal."""
