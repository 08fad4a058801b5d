"""The record of a run in real time: the reports of the link, and samples of the kernel's TCP."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bentpipe.emulation.iperf3 import Flow
from bentpipe.emulation.tcp_info import Watched

Report = dict[str, Any]


@dataclass
class RunRecord:
    """The record of a run; ``started_ns`` and ``ended_ns`` are on the clock of the lab.

    ``monotonic_ns`` is the start on the machine's monotonic clock, ``samples`` are the reports of
    the link at the sample interval, and ``watched`` the samples of TCP_INFO by flow.
    """

    started_ns: int = 0
    monotonic_ns: int = 0
    ended_ns: int = 0
    samples: list[Report] = field(default_factory=list)
    watched: dict[int, Watched] = field(default_factory=dict)
    report: Report = field(default_factory=dict)
    completed: bool = False
    interrupted: bool = False

    @property
    def duration_ns(self) -> int:
        """The time from the start of the run to its end."""
        return self.ended_ns - self.started_ns


def flow_start_ns(flow: Flow, report: Report) -> int | None:
    """Return when the flow's first packet arrived at the link, on the clock of the lab."""
    sides = report["ports"][flow.port]
    side = flow.client if flow.is_tcp else flow.sender
    first_ns: int | None = sides[side]["offered"]["first_ns"]
    return first_ns
