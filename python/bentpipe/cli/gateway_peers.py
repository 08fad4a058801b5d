"""The peers of a gateway's tunnel as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from bentpipe.units import NS_PER_S, format_duration, format_size

_BILLION: Final = 10**9
_MILLION: Final = 10**6


def tunnel_lines(counters: Mapping[str, Any]) -> list[str]:
    """Return the lines of a tunnel in the status of a gateway."""
    lines = []
    for peer in counters.get("peers", []):
        lines += _peer_lines(peer)
    for name, text in (
        ("unroutable_packets", "packets to no peer"),
        ("too_big_packets", "packets above the MTU"),
        ("refused_datagrams", "datagrams refused"),
        ("unsent_datagrams", "datagrams not sent"),
    ):
        if counters.get(name):
            lines.append(f"{text:28}{counters[name]:,}")
    return lines


def _peer_lines(peer: Mapping[str, Any]) -> list[str]:
    endpoint = peer["endpoint"] or "no address yet"
    # By the second: it is of no use to know it better.
    age_ns = peer["session_age_ns"]
    age = None if age_ns is None else age_ns // NS_PER_S * NS_PER_S
    session = "no session" if age is None else f"session of {format_duration(age)}"
    rows = {
        f"peer {peer['name']}": f"{endpoint}, {session}",
        "  sent": _carried(peer, "sent"),
        "  received": _carried(peer, "received"),
        "  dropped": f"{peer['dropped_packets']:,} packets without a session, "
        f"{peer['refused_packets']:,} refused",
        "  loss before decoding": f"{peer['loss_ppb'] * 100 / _BILLION:.2f} % on the way there",
        "  recovered here": f"{peer['sources_recovered']:,} of "
        f"{peer['sources_recovered'] + peer['sources_lost']:,} lost symbols",
        "  redundancy": f"{peer['redundancy_ppm'] * 100 / _MILLION:.1f} %, "
        f"{peer['repairs_sent']:,} repair symbols",
    }
    return [f"{name:28}{text}" for name, text in rows.items()]


def _carried(peer: Mapping[str, Any], direction: str) -> str:
    packets, size = peer[f"{direction}_packets"], peer[f"{direction}_bytes"]
    return f"{packets:,} packets, {format_size(size)}"
