"""What all functions of a gateway have in common."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from bentpipe.scenario.record import Record

QueueClass = Annotated[int, Field(ge=0, le=255)]


class GatewayFunction(Record):
    """The fields of every function of a gateway."""

    needs_peer: ClassVar[bool] = False
    """Whether the other end needs the same function, to reverse this one."""
