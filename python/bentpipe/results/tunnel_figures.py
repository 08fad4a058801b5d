"""Figures of coded tunnels that are derived from their statistics."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

_PLACE: Final = re.compile(r"(?:hub|terminal-(\d+))-tunnel")


def is_tunnel(function: dict[str, Any]) -> bool:
    """Return whether the statistics of a gateway function are those of a tunnel."""
    return _PLACE.fullmatch(function["function"]) is not None


def add_figures(function: dict[str, Any], offered_bytes: Sequence[int]) -> None:
    """Add the derived figures of an end of a tunnel to its statistics; None without packets.

    ``loss_before_percent`` and ``loss_after_percent`` are of the coded packets of the other end:
    those that did not arrive, and those of them that were not recovered. ``redundancy_percent`` is
    repair over coded packets, ``repair_share_percent`` the share of repair in the bytes that were
    offered to the direction away from this end; ``offered_bytes`` has them by direction.
    ``order_wait_mean_ns`` is the mean of all packets that waited for others.
    """
    match = _PLACE.fullmatch(function["function"])
    assert match is not None, f"{function['function']} is no tunnel"
    lost = function["sources_lost_packets"]
    due = function["sources_received_packets"] + lost
    waited = function["order_waited_packets"]
    function |= {
        "loss_before_percent": _percent(lost, due),
        "loss_after_percent": _percent(lost - function["recovered_packets"], due),
        "redundancy_percent": _percent(
            function["repairs_sent_packets"], function["sources_sent_packets"]
        ),
        "repair_share_percent": _percent(
            function["repairs_sent_bytes"], offered_bytes[int(match[1] or 0)]
        ),
        "order_wait_mean_ns": function["order_wait_sum_ns"] / waited if waited else None,
    }


def _percent(part: int, whole: int) -> float | None:
    return 100 * part / whole if whole else None
