"""The status of a gateway as text."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from bentpipe.cli.lab_watch import watch_lines
from bentpipe.cli.options import note
from bentpipe.errors import MachineError, UsageError
from bentpipe.text import counted
from bentpipe.units import format_duration, format_rate, format_size

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
# The daemon writes its counters once a second.
_UNCHANGED_S: Final = 2.0
_LEGS: Final = {"lan": "legs to the hosts", "link": "legs over the link"}


def status_lines(found: Status, rates: str | None = None) -> list[str]:
    """Return the status of a gateway; ``rates`` are the present rates."""
    counters, minutes = found["counters"], max(time.time() - found["started_unix_s"], 0) / 60
    interfaces = f"{', '.join(found['lan'])} to {', '.join(found['link'])}"
    open_now = counters.get("open_connections", 0)
    lines = [
        f"{found['name']}: {', '.join(found['functions'])}, {interfaces}, up for {minutes:.0f} min",
        f"{'open connections':28}{open_now:,} of {found['connections']:,}",
    ]
    for name, text in _COUNTERS.items():
        if name in counters:
            lines.append(f"{text:28}{counters[name]:,}")
    for name, text in (("to_server_bytes", "to servers"), ("to_client_bytes", "to clients")):
        lines.append(f"{text:28}{format_size(counters.get(name, 0))}")
    lines += [
        f"{text:28}{_leg_text(counters[leg])}" for leg, text in _LEGS.items() if leg in counters
    ]
    if rates is not None:
        lines.append(rates)
    return lines


def _leg_text(leg: Mapping[str, Any]) -> str:
    samples = sum(leg["rtt_counts"])
    rtt = format_duration(leg["rtt_sum_us"] * 1_000 / samples) if samples else "not measured"
    return f"mean RTT {rtt}, {counted(leg['retransmitted_segments'], 'segment')} retransmitted"


def totals_line(counters: Mapping[str, Any]) -> str:
    """Return what a gateway has carried, in one line."""
    bytes_ = [format_size(counters.get(f"to_{end}_bytes", 0)) for end in ("server", "client")]
    connections = counted(counters.get("split_connections", 0), "connection")
    return f"{connections}, {bytes_[0]} to servers, {bytes_[1]} to clients"


def watch_gateway(name: str, ask: Callable[[], Status]) -> None:
    """Show what ``ask`` returns until the gateway has ended; the last status stays."""
    rates = _Rates()

    def lines() -> list[str] | None:
        try:
            found = ask()
        except (MachineError, UsageError):
            return None
        return status_lines(found, rates.line(found["counters"]))

    # An error of the first status is one of the command.
    found = ask()
    watch_lines(status_lines(found, rates.line(found["counters"])), lines)
    note(f"gateway {name} has ended")


class _Rates:
    """The rates between two statuses."""

    def __init__(self) -> None:
        self._counters: Mapping[str, Any] = {}
        self._at_s = 0.0
        self._line: str | None = None

    def line(self, counters: Mapping[str, Any]) -> str | None:
        """Return the rates since the last time that the counters have changed."""
        now_s = time.monotonic()
        if counters == self._counters and now_s - self._at_s < _UNCHANGED_S:
            return self._line
        before, elapsed_s = self._counters, now_s - self._at_s
        self._counters, self._at_s = counters, now_s
        if before:
            bits = [
                8 * (counters.get(name, 0) - before.get(name, 0)) / elapsed_s
                for name in ("to_server_bytes", "to_client_bytes")
            ]
            shown = [format_rate(max(each, 0)) for each in bits]
            self._line = f"{'now':28}{shown[0]} to servers, {shown[1]} to clients"
        return self._line
