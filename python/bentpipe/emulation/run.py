"""A scenario in real time: real iperf3, the kernel's TCP, and the link of the simulator."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bentpipe.emulation.iperf3 import Flow, end_all, programs
from bentpipe.emulation.kernel import (
    Kernel,
    kernel_of,
    longest_round_trip_ns,
    mtu_bytes,
    refuse,
    window_warnings,
)
from bentpipe.emulation.steps import later, lead_of
from bentpipe.emulation.tcp_info import Watched, note_unsent, watch
from bentpipe.emulation.verdict import verdict
from bentpipe.errors import MachineError, UsageError
from bentpipe.lab.lab import IPERF3_PORT, SIDES, Lab, gain_privileges, refuse_beyond_ceiling
from bentpipe.plan.resolver import resolve
from bentpipe.results.capture import capture_file, what_is_missing
from bentpipe.scenario.hosts import Side
from bentpipe.scenario.schema import LARGEST_SEED, Scenario

if TYPE_CHECKING:
    from bentpipe.results.result import Result

_STEP_S: Final = 0.02
# All is over when no packet moved for so long: several timeouts of a sender that has lost the last.
_QUIET_MIN_NS: Final = 1_000_000_000
_QUIET_ROUND_TRIPS: Final = 4
_NS_PER_S: Final = 1e9
_LOOK_EVERY_NS: Final = 500_000_000
# A sender at a constant rate that had no processor for long is told of.
_MIN_SHARE_SENT: Final = 0.99

Report = dict[str, Any]


@dataclass
class Course:
    """How a run went: the lab's clock at its start and its end, and what was seen on the way.

    ``monotonic_ns`` is the machine's clock at the start.
    """

    started_ns: int = 0
    monotonic_ns: int = 0
    ended_ns: int = 0
    samples: list[Report] = field(default_factory=list)
    watched: dict[int, Watched] = field(default_factory=dict)
    report: Report = field(default_factory=dict)
    completed: bool = False
    interrupted: bool = False


def prepare(scenario: Scenario) -> None:
    """Refuse what cannot be run in real time here, and get the privileges for the rest.

    To be called while the process has one thread, unless it runs as root.

    Raises:
        ScenarioError: the scenario cannot be run in real time.
        MachineError: the machine lacks something.
    """
    plan = resolve(scenario)
    refuse(scenario, plan)
    programs(plan, scenario.seed)
    kernel_of(plan)
    refuse_beyond_ceiling([plan])
    gain_privileges()


def emulate_partly(
    scenario: Scenario,
    *,
    seed: int | None = None,
    progress: Callable[[float], None] | None = None,
    note: Callable[[str], None] | None = None,
    look: Callable[[Report], None] | None = None,
    capture: Path | None = None,
) -> Result:
    """Run a scenario in real time; after Ctrl-C return what was recorded, marked interrupted.

    To be called after `prepare`. ``note`` is told what the user should know, ``look`` is shown the
    lab's report twice a second. ``capture`` names a file that packets are captured into. The
    verdict on the run is in the manifest.

    Raises:
        UsageError: the seed is out of range, or the capture cannot be written.
        MachineError: the machine lacks something.
    """
    if seed is not None and not 0 <= seed <= LARGEST_SEED:
        raise UsageError(f"seed: read {seed}; must be 0 to {LARGEST_SEED}")
    plan = resolve(scenario)
    used_seed = scenario.seed if seed is None else seed
    flows = programs(plan, used_seed)
    kernel = kernel_of(plan)
    tell = note or _nobody
    warnings = window_warnings(scenario, plan)
    for warning in warnings:
        tell(warning)
    started = _now()
    with capture_file(capture) as file:
        course, settings = _run(plan, used_seed, flows, kernel, _onlooker(progress, look), file)
    seen = list(_afterthoughts(flows, course))
    if (lack := what_is_missing(capture, course.report)) is not None:
        seen.append(lack)
    for warning in seen:
        tell(warning)
    from bentpipe.emulation.tables import result_of

    about = {
        "scenario": scenario.to_dict(),
        "plan": plan,
        "seed": used_seed,
        "host": {"python": platform.python_version(), "platform": platform.platform()},
        "started": started,
        "ended": _now(),
        "engine": "emulate",
        "emulation": {
            "kernel": os.uname().release,
            "iperf3": _version_of_iperf3(),
            "settings": settings,
            "congestion_controls": {
                flow.plan["name"]: flow.congestion_control() for flow in flows if flow.is_tcp
            },
            "initial_window_segments": kernel.initial_window,
            **verdict(course.report, course.started_ns),
            "warnings": warnings + seen,
        },
    }
    return result_of(about, flows, course)


def _nobody(_: str) -> None:
    pass


Onlooker = Callable[[int, int, Report], None]


def _onlooker(
    progress: Callable[[float], None] | None, look: Callable[[Report], None] | None
) -> Onlooker:
    """Return who is told the time of the run, its end, and the report of the lab."""
    next_ns = 0

    def tell(now_ns: int, stop_ns: int, report: Report) -> None:
        nonlocal next_ns
        if progress is not None:
            progress(now_ns / stop_ns)
        if look is not None and now_ns >= next_ns:
            next_ns = now_ns + _LOOK_EVERY_NS
            look(report)

    return tell


def _afterthoughts(flows: list[Flow], course: Course) -> Iterator[str]:
    """Return what is to be known of flows beside the verdict, which is on the link alone."""
    for flow in flows:
        name = flow.plan["name"]
        if (complaint := flow.complaint()) is not None:
            yield f"{name}: its program failed: {complaint}"
        elif not flow.is_tcp and flow.state == "stopped" and flow.duration_ns is not None:
            rate_bps, payload_bytes = flow.workload["rate_bps"], flow.workload["payload_bytes"]
            due = flow.duration_ns * rate_bps // (8 * 10**9 * payload_bytes)
            sent = course.report["ports"][flow.port][flow.sender]["offered"]["segments"]
            if sent < due * _MIN_SHARE_SENT - 1:
                yield f"{name}: iperf3 sent {sent:,} of {due:,} datagrams; the machine is too slow"


def _run(
    plan: dict[str, Any],
    seed: int,
    flows: list[Flow],
    kernel: Kernel,
    onlooker: Onlooker,
    capture: Path | None,
) -> tuple[Course, dict[Side, dict[str, str]]]:
    course = Course()
    lead_ns = lead_of(plan)
    with Lab(
        plans=[later(plan, lead_ns)],
        seed=seed,
        mtu_bytes=mtu_bytes(plan),
        settings=(kernel.settings, kernel.settings),
        control_ports=(IPERF3_PORT, IPERF3_PORT + len(flows) - 1),
        capture=capture,
    ) as lab:
        settings = _read_back(lab, kernel)
        try:
            if kernel.initial_window is not None:
                _set_initial_window(lab, kernel.initial_window)
            for flow in flows:
                flow.listen(lab)
            while not lab.report()["ports"]:
                time.sleep(_STEP_S)
            _begin(lab, course, lead_ns)
            course.completed = _watch(lab, plan, flows, course, onlooker)
        except KeyboardInterrupt:
            course.interrupted = True
        if course.started_ns:
            watch(lab, flows, lab.report(), course.started_ns, course.watched)
        # First the link, so that nothing moves after the end, whatever programs still do.
        lab.stop()
        course.report = lab.report()
        course.ended_ns = course.ended_ns or course.report["at_ns"]
        course.started_ns = course.started_ns or course.ended_ns
        end_all(flows)
    return course, settings


def _begin(lab: Lab, course: Course, lead_ns: int) -> None:
    """Start the clock of the run, ``lead_ns`` after that of the lab or, if that is 0, now.

    Raises:
        MachineError: the set-up took longer than that.
    """
    left_ns = lead_ns - lab.now_ns()
    if lead_ns and left_ns < 0:
        raise MachineError(
            f"the set-up took {-left_ns / _NS_PER_S:.1f} s longer than there was before the link's "
            "first step; run it again when the machine is quiet"
        )
    time.sleep(max(0, left_ns) / _NS_PER_S)
    course.monotonic_ns, now_ns = time.monotonic_ns(), lab.now_ns()
    course.started_ns = lead_ns or now_ns
    course.monotonic_ns -= now_ns - course.started_ns


def _watch(
    lab: Lab,
    plan: dict[str, Any],
    flows: list[Flow],
    course: Course,
    onlooker: Onlooker,
) -> bool:
    """Start and stop flows in their time until all is over. Whether that was before the end."""
    stop_ns: int = plan["stop_ns"]
    quiet_ns = max(_QUIET_MIN_NS, _QUIET_ROUND_TRIPS * longest_round_trip_ns(plan))
    sampling = _Sampling(plan["sample_interval_ns"], course)
    while (now_ns := lab.now_ns() - course.started_ns) < stop_ns:
        report = lab.report()
        if sampling.take(report):
            watch(lab, flows, report, course.started_ns, course.watched)
        next_ns = stop_ns
        for flow in flows:
            was = flow.state
            next_ns = min(next_ns, _attend(lab, flow, report, now_ns, course.started_ns))
            if flow.workload["kind"] == "bulk" and (was, flow.state) == ("running", "stopped"):
                note_unsent(lab, flow, report, course.watched)
        if all(flow.state in ("stopped", "over") for flow in flows):
            last_ns = _last_packet_ns(report)
            if all(flow.state == "over" for flow in flows):
                return True
            if course.started_ns + now_ns - last_ns > quiet_ns:
                course.ended_ns = last_ns
                return True
        onlooker(now_ns, stop_ns, report)
        left_s = (min(next_ns, stop_ns) + course.started_ns - lab.now_ns()) / _NS_PER_S
        time.sleep(max(0.0, min(_STEP_S, left_s)))
    return False


def _attend(lab: Lab, flow: Flow, report: Report, now_ns: int, origin_ns: int) -> int:
    """Do what is due for a flow; return when something will be, from the start of the run."""
    if flow.state == "waiting":
        planned_ns = int(flow.plan["start_ns"])
        if now_ns < planned_ns:
            return planned_ns
        flow.start(lab)
    flow.look()
    start_ns = flow_start_ns(flow, report)
    if flow.state == "running" and flow.duration_ns is not None and start_ns is not None:
        stop_ns = start_ns - origin_ns + flow.duration_ns
        if now_ns < stop_ns:
            return stop_ns
        flow.stop_sending()
    return sys.maxsize


def flow_start_ns(flow: Flow, report: Report) -> int | None:
    """Return when the flow's first packet came to the link, on the lab's clock."""
    sides = report["ports"][flow.port]
    side = flow.client if flow.is_tcp else flow.sender
    first_ns: int | None = sides[side]["offered"]["first_ns"]
    return first_ns


def _last_packet_ns(report: Report) -> int:
    tallies: list[int | None] = [
        carried[place]["last_ns"]
        for sides in report["ports"].values()
        for carried in sides.values()
        for place in ("offered", "delivered")
    ]
    return max((last_ns for last_ns in tallies if last_ns is not None), default=0)


class _Sampling:
    """Keeps a report for each sample interval."""

    def __init__(self, interval_ns: int | None, course: Course) -> None:
        self._interval_ns = interval_ns
        self._course = course
        self._due_ns = 0

    def take(self, report: Report) -> bool:
        """Keep a report if it is due. Whether it was."""
        if self._interval_ns is None:
            return False
        at_ns = report["at_ns"] - self._course.started_ns
        if at_ns < self._due_ns:
            return False
        self._course.samples.append(report)
        # From the grid, so that late reports do not add up; a tenth early is in time, since
        # reports come every 100 ms at best.
        periods = (at_ns + self._interval_ns // 10) // self._interval_ns + 1
        self._due_ns = periods * self._interval_ns - self._interval_ns // 10
        return True


def _read_back(lab: Lab, kernel: Kernel) -> dict[Side, dict[str, str]]:
    return {side: {name: lab.setting(side, name) for name in kernel.settings} for side in SIDES}


def _set_initial_window(lab: Lab, segments: int) -> None:
    """Give the route between the hosts the first congestion window, as ip-route(8) does.

    Raises:
        MachineError: there is no such program, or it fails.
    """
    program = shutil.which("ip") or shutil.which("ip", path="/usr/sbin:/sbin")
    if program is None:
        raise MachineError(
            "an initial window other than 10 is a property of routes, and there is no ip(8) to "
            "set it; install iproute2"
        )
    for host in lab.hosts():
        own = lab.address(host)
        network = f"{own.rpartition('.')[0]}.0/24"
        window = ["initcwnd", str(segments)]
        route = [network, "dev", "link", "proto", "kernel", "scope", "link", "src", own, *window]
        process = lab.spawn(host, [program, "route", "change", *route])
        _, status = os.waitpid(process, 0)
        if os.waitstatus_to_exitcode(status) != 0:
            raise MachineError(f"ip route change {' '.join(route)} failed; leave the window at 10")


def _version_of_iperf3() -> str:
    iperf3 = shutil.which("iperf3")
    if iperf3 is None:
        return ""
    done = subprocess.run([iperf3, "--version"], capture_output=True, text=True, check=False)
    return done.stdout.partition("\n")[0].strip()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
