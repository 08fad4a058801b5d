"""The status of a gateway as text."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from bentpipe.text import counted
from bentpipe.units import NS_PER_S, format_duration, format_rate, format_size

Status = Mapping[str, Any]

# The counters of the daemon by name, with the words of the status.
_COUNTERS: Final = {
    "split_connections": "connections split",
    "unsplit_connections": "passed without the PEP",
    "refused_connections": "refused by the server",
    "expired_connections": "not answered by the server",
    "reset_connections": "reset by a peer",
    "timed_out_connections": "reset after the idle limit",
}
_TUNNEL_COUNTERS: Final = {
    "unroutable_packets": "packets to no peer",
    "too_big_packets": "packets above the MTU",
    "refused_datagrams": "datagrams refused",
    "unsent_datagrams": "datagrams not sent",
}
# The daemon writes its counters once a second.
_UNCHANGED_S: Final = 2.0
_BILLION: Final = 10**9
_MILLION: Final = 10**6
_LEGS: Final = {"lan": "legs to the hosts", "link": "legs over the link"}


def action_text(found: Mapping[str, Any]) -> str:
    """Return what a gateway does, as the predicate of a sentence."""
    parts = []
    if "lan" in found:
        lan, link = ", ".join(found["lan"]), ", ".join(found["link"])
        most = f"{found['connections']:,} TCP connections"
        parts.append(f"splits at most {most} between {lan} and {link}")
    if "device" in found:
        parts.append(f"carries packets of {found['device']} to {', '.join(found['peers'])}")
    return " and ".join(parts)


def status_lines(found: Status) -> list[str]:
    """Return the status of a gateway."""
    counters, minutes = found["counters"], max(time.time() - found["started_unix_s"], 0) / 60
    ends = []
    if "lan" in found:
        ends.append(f"{', '.join(found['lan'])} to {', '.join(found['link'])}")
    if "device" in found:
        ends.append(f"{found['device']} to {counted(len(found['peers']), 'peer')}")
    functions = ", ".join(found["functions"])
    lines = [f"{found['name']}: {functions}, {', '.join(ends)}, up for {minutes:.0f} min"]
    if "lan" in found:
        lines += _pep_lines(counters.get("pep") or {}, found["connections"])
    if "device" in found:
        lines += _tunnel_lines(counters.get("tunnel") or {})
    return lines


def _lines(rows: Mapping[str, str]) -> list[str]:
    return [f"{name:28}{text}" for name, text in rows.items()]


def _pep_lines(counters: Mapping[str, Any], most: int) -> list[str]:
    counts = {text: f"{counters[name]:,}" for name, text in _COUNTERS.items() if name in counters}
    return _lines(
        {
            "open connections": f"{counters.get('open_connections', 0):,} of {most:,}",
            **counts,
            "to servers": format_size(counters.get("to_server_bytes", 0)),
            "to clients": format_size(counters.get("to_client_bytes", 0)),
            **{text: _leg_text(counters[leg]) for leg, text in _LEGS.items() if leg in counters},
        }
    )


def _leg_text(leg: Mapping[str, Any]) -> str:
    samples = sum(leg["rtt_counts"])
    rtt = format_duration(leg["rtt_sum_us"] * 1_000 / samples) if samples else "not measured"
    return f"mean RTT {rtt}, {counted(leg['retransmitted_segments'], 'segment')} retransmitted"


def _tunnel_lines(counters: Mapping[str, Any]) -> list[str]:
    peers = [line for peer in counters.get("peers", []) for line in _peer_lines(peer)]
    counts = {text: counters.get(name) for name, text in _TUNNEL_COUNTERS.items()}
    return [*peers, *_lines({text: f"{count:,}" for text, count in counts.items() if count})]


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
    return _lines(rows)


def _carried(peer: Mapping[str, Any], direction: str) -> str:
    packets, size = peer[f"{direction}_packets"], peer[f"{direction}_bytes"]
    return f"{packets:,} packets, {format_size(size)}"


def totals_lines(counters: Mapping[str, Any]) -> list[str]:
    """Return what a gateway has carried, in one line for each function."""
    lines = []
    pep, tunnel = counters.get("pep"), counters.get("tunnel")
    if pep:
        bytes_ = [format_size(pep.get(f"to_{end}_bytes", 0)) for end in ("server", "client")]
        connections = counted(pep.get("split_connections", 0), "connection")
        lines.append(f"{connections}, {bytes_[0]} to servers, {bytes_[1]} to clients")
    if tunnel:
        sent, received = (
            format_size(sum(peer[f"{name}_bytes"] for peer in tunnel["peers"]))
            for name in ("sent", "received")
        )
        lines.append(f"{sent} to peers, {received} from peers")
    return lines


class Rates:
    """The rates between two statuses."""

    def __init__(self) -> None:
        self._counters: Mapping[str, Any] = {}
        self._at_s = 0.0
        self._lines: list[str] = []

    def status_lines(self, found: Status) -> list[str]:
        """Return a status, and the rates since the last time that the counters have changed."""
        return [*status_lines(found), *self._rates(found["counters"])]

    def _rates(self, counters: Mapping[str, Any]) -> list[str]:
        now_s = time.monotonic()
        if counters == self._counters and now_s - self._at_s < _UNCHANGED_S:
            return self._lines
        before, elapsed_s = _totals(self._counters), now_s - self._at_s
        self._counters, self._at_s = counters, now_s
        self._lines = [
            f"{label:28}"
            + ", ".join(
                f"{format_rate(max(8 * (bytes_ - was) / elapsed_s, 0))} {word}"
                for (word, bytes_), was in zip(now.items(), before[label].values(), strict=True)
            )
            for label, now in _totals(counters).items()
            if label in before
        ]
        return self._lines


def _totals(counters: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Return the bytes that were carried by direction, by the label of their line."""
    found = {}
    pep = counters.get("pep")
    if pep:
        found["now"] = {
            "to servers": pep.get("to_server_bytes", 0),
            "to clients": pep.get("to_client_bytes", 0),
        }
    for peer in (counters.get("tunnel") or {}).get("peers", []):
        label = f"now, {peer['name']}"
        found[label] = {"sent": peer["sent_bytes"], "received": peer["received_bytes"]}
    return found
