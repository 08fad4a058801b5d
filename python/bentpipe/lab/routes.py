"""Routes of the hosts of a lab, changed by ip(8)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from bentpipe.errors import MachineError
from bentpipe.gateway import machine

if TYPE_CHECKING:
    from bentpipe import _core


# The initial window of routes without another (RFC 6928).
DEFAULT_WINDOW_SEGMENTS: Final = 10


def link_route(core: _core.Lab, host: str) -> list[str]:
    """Return the route of a host to the hosts beyond the link, as ip(8) names it."""
    own = core.address(host)
    network = f"{own.rpartition('.')[0]}.0/24"
    return [network, "dev", "link", "proto", "kernel", "scope", "link", "src", own]


def change_route(core: _core.Lab, host: str, route: Sequence[str]) -> None:
    """Change a route of a host: ``initcwnd`` is the initial window of its connections.

    Raises:
        MachineError: ip(8) is not installed, or fails.
    """
    command = [machine.require_program("ip"), "route", "change", *route]
    process = core.spawn(host, command)
    _, status = os.waitpid(process, 0)
    if os.waitstatus_to_exitcode(status) != 0:
        raise MachineError(
            f"ip route change {' '.join(route)} failed; to fix it: leave the initial "
            f"window at {DEFAULT_WINDOW_SEGMENTS} segments"
        )
