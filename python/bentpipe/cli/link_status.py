"""The status of a link as text, from the reports of a lab."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from bentpipe.live.link_state import DeliveredRates
from bentpipe.results.verdict import IDLE_FAULT, bounds_text, invalid_message
from bentpipe.text import CAUSE_TITLES
from bentpipe.units import format_duration, format_rate, format_size

Report = Mapping[str, Any]

_WINDOWS_SHOWN: Final = 6
_CHANGES_SHOWN: Final = 3


def status_lines(status: Mapping[str, Any]) -> list[str]:
    """Return the status of a lab: its link, and what it has carried."""
    report = status["report"]
    title, state = _title_lines(status), _state_lines(status)
    return [*title, *state, *summary_lines(report), *window_lines(report)]


def summary_lines(report: Report) -> list[str]:
    """Return what each direction carried, how late packets were, and the verdict or bounds."""
    lines = [
        f"{name}: {direction['delivered_packets']:,} packets, "
        f"{format_size(direction['delivered_bytes'])} delivered; {_losses(direction)}"
        for name, direction in report["directions"].items()
    ]
    lines.append(
        f"{report['at_ns'] / 1e9:.1f} s; packets were late by {late_by(report['lateness'])}"
    )
    if (message := invalid_message(report)) is not None:
        lines.append(f"INVALID: {message}")
    elif (text := bounds_text(report)) is not None:
        lines.append(text)
    return lines


def _title_lines(status: Mapping[str, Any], changes_max: int = 0) -> list[str]:
    """Return the name of a lab, its links and the last changes; 0 stands for all changes."""
    return [
        f"{status['name']}: {' '.join(status['links'])}",
        *(
            f"{change['at_ns'] / 1e9:.1f} s: {' '.join(change['settings'])}"
            for change in status["changes"][-changes_max:]
        ),
    ]


def _state_lines(status: Mapping[str, Any]) -> list[str]:
    """Return the present rate, delay and queue of each direction of a lab."""
    lines = []
    for name, state in status["link"].items():
        rate = "outage" if state["outage"] else format_rate(state["rate_bps"])
        packets = status["report"]["directions"][name]["queue_packets"]
        lines.append(
            f"{name} now: {rate}, {format_duration(state['delay_ns'])}; "
            f"{packets:,} packets in the queue"
        )
    return lines


def window_lines(report: Report) -> list[str]:
    """Return the lateness and the verdict of the last windows of time of a lab."""
    return [
        f"{report['invalid_windows']:,} of {report['window_count']:,} windows of time are invalid; "
        "the last ones:",
        *(
            f"{window['start_ns'] / 1e9:,.0f} to {window['end_ns'] / 1e9:,.0f} s: "
            f"{window['packets']:,} packets, late by {late_by(window)}"
            + ("" if window["invalid"] is None else f"; INVALID: {window['invalid']}")
            for window in report["windows"][-_WINDOWS_SHOWN:]
        ),
    ]


def _losses(direction: Mapping[str, Any]) -> str:
    dropped = direction["dropped_packets"].items()
    causes = [f"{count:,} {CAUSE_TITLES.get(cause, cause)}" for cause, count in dropped]
    return f"lost: {', '.join(causes)}" if causes else "none lost"


def late_by(late: Mapping[str, Any]) -> str:
    """Return the median, the 99th percentile and the maximum of a lateness as text."""
    p50, p99, worst = (_microseconds(late[name]) for name in ("p50_ns", "p99_ns", "max_ns"))
    return f"{p50} (median), {p99} (p99), {worst} (max)"


class LinkStatus:
    """Rates since the previous report; queue, losses by cause and lateness in total."""

    def __init__(self) -> None:
        self._rates = DeliveredRates()

    def lines(self, report: Report) -> list[str]:
        """Return one line for each direction and one for the lateness."""
        rates_bps = self._rates.update(report)
        lines = [
            f"{name}: {rates_bps[name] / 1e6:,.2f} Mbit/s of IP delivered; queue "
            f"{direction['queue_packets']:,} packets, {_kilobytes(direction)}; {_losses(direction)}"
            for name, direction in report["directions"].items()
        ]
        verdict = _short_verdict(report, "; ")
        if verdict.endswith("INVALID") and report["window_count"] > 1:
            verdict += f" ({report['invalid_windows']:,} of {report['window_count']:,} windows)"
        late = late_by(report["lateness"])
        lines.append(f"{report['at_ns'] / 1e9:,.0f} s; late by {late}{verdict}")
        return lines

    def status_lines(self, status: Mapping[str, Any]) -> list[str]:
        """Return the status of a lab: its last changes, the rates, and the lateness."""
        report = status["report"]
        title = _title_lines(status, _CHANGES_SHOWN)
        return [*title, *self.lines(report), *window_lines(report)]

    def brief(self, report: Report) -> str:
        """Return the same in one line, with the sum of the losses."""
        rates_bps = self._rates.update(report)
        parts = []
        for name, direction in report["directions"].items():
            lost = sum(direction["dropped_packets"].values())
            parts.append(
                f"{name} {rates_bps[name] / 1e6:,.2f} Mbit/s, queue {_kilobytes(direction)}"
                + (f", {lost:,} lost" if lost else "")
            )
        late = f"late {_microseconds(report['lateness']['p99_ns'])} (p99)"
        parts.append(f"{late}{_short_verdict(report, ', ')}")
        return "; ".join(parts)


def _short_verdict(report: Report, before: str) -> str:
    """Return the verdict on a running link: it may have carried nothing yet."""
    if report["invalid"] is None:
        return ""
    return before + ("no packets yet" if report.get("fault") == IDLE_FAULT else "INVALID")


def _kilobytes(direction: Mapping[str, Any]) -> str:
    return f"{direction['queue_bytes'] / 1e3:,.1f} kB"


def _microseconds(nanos: int) -> str:
    """Return a time in whole microseconds as text."""
    return f"{nanos / 1e3:,.0f} µs"
