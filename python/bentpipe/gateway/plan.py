"""The plan of the daemon `bentpipe-gate`: the PEP of a scenario, and where it is installed.

The daemon has the TCP of its kernel. Settings that the kernel has for single connections are in
the plan; a setting that it does not have is refused, unless it is what the kernel does anyway: the
profile ``linux``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypedDict

from bentpipe.errors import Problem, ScenarioError
from bentpipe.gateway.machine import kernel_congestion_control
from bentpipe.gateway.tunnel_plan import DaemonTunnelPlan
from bentpipe.scenario.document import FieldPath, dotted
from bentpipe.scenario.gateways import Pep
from bentpipe.scenario.profiles import PROFILES
from bentpipe.scenario.tcp import Tcp
from bentpipe.text import shown
from bentpipe.units import value_of

# Marks and tables up to 255 are common in hand-written rules, and docker, cilium, tailscale and
# wg-quick use others than these. The mark is a multiple of 128, for up to 64 workers.
MARK: Final = 25_088
ROUTE_TABLE: Final = 25_113
# The user and the group nobody, which every Linux has.
NOBODY: Final = 65_534
# setsockopt(2) takes an int, and the kernel doubles it (socket(7), SO_SNDBUF).
_SOCKET_BUFFER_BYTES_MAX: Final = (2**31 - 1) // 2
_U32_MAX: Final = 2**32 - 1
# The open files of a worker, as `descriptors` of daemon/plan.rs: for each connection a socket on
# either side, for each thread two, and besides them pipes and sockets of its own.
_FILES_PER_CONNECTION: Final = 2
_FILES_PER_THREAD: Final = 2
_OTHER_FILES: Final = 1_024
# What a socket has of its own. Sizes of the receive buffer are one setting of a socket.
_OF_THE_SOCKET: Final = frozenset(
    {"congestion_control", "send_buffer", "receive_buffer", "receive_buffer_counts"}
)
# ip-sysctl.rst: one setting for all connections of a network namespace.
_SYSCTLS: Final = {
    "sack": "net.ipv4.tcp_sack",
    "timestamps": "net.ipv4.tcp_timestamps",
    "window_scaling": "net.ipv4.tcp_window_scaling",
    "ecn": "net.ipv4.tcp_ecn",
    "rack_tlp": "net.ipv4.tcp_recovery and tcp_early_retrans",
}
# ip-route(8): a setting of all connections that take a route.
_OF_THE_ROUTE: Final = {"initial_window": "initcwnd", "mss": "advmss", "rto_min": "rto_min"}


class LegPlan(TypedDict):
    """The TCP of the legs on one side; None is what the machine has."""

    congestion_control: str | None
    send_buffer_bytes: int | None
    receive_buffer_bytes: int | None
    not_sent_bytes: int | None


class SidePlan(TypedDict):
    """One side of the gateway: connections that are opened on its interfaces are split."""

    interfaces: list[str]
    tcp: LegPlan


class PepPlan(TypedDict):
    """What the daemon reads of a PEP: `daemon/pep_plan.rs` describes each field."""

    mark: int
    route_table: int
    workers: int
    threads: int
    connections: int
    buffer_bytes: int
    early_accept: bool
    connect_limit_ns: int
    idle_limit_ns: int | None
    keep_alive_ns: int | None
    lan: SidePlan
    link: SidePlan


class GatePlan(TypedDict):
    """What the daemon reads, complete: `daemon/plan.rs` describes each field."""

    name: str
    state_file: str
    files: list[str]
    user: int
    group: int
    metrics_listen: str | None
    pep: PepPlan | None
    tunnel: DaemonTunnelPlan | None


@dataclass(frozen=True, kw_only=True)
class Installation:
    """Where a PEP runs: what a simulated one does not need.

    It splits connections that are opened on the interfaces of ``lan`` and of ``link``. See
    `mark_count` for the marks from ``mark`` on. Times are in nanoseconds; an ``idle_limit_ns`` of
    None is no limit, a ``keep_alive_ns`` of None sends no probes.
    """

    lan: Sequence[str]
    link: Sequence[str]
    mark: int
    route_table: int
    workers: int
    threads: int
    connect_limit_ns: int
    idle_limit_ns: int | None
    keep_alive_ns: int | None


def mark_count(workers: int) -> int:
    """Return how many marks a daemon uses; the first one is a multiple of this power of two."""
    return 2 << (workers - 1).bit_length()


def open_files(connections: int, *, threads: int) -> int:
    """Return the largest number of open files of a worker with so many connections."""
    return _FILES_PER_CONNECTION * connections + _FILES_PER_THREAD * threads + _OTHER_FILES


def connections_within(files: int, *, threads: int) -> int:
    """Return the largest number of connections with which a worker has no more open files."""
    return max(files - open_files(0, threads=threads), 0) // _FILES_PER_CONNECTION


def pep_plan(pep: Pep, installation: Installation) -> PepPlan:
    """Return the daemon's plan of a PEP.

    Raises:
        ScenarioError: the PEP has settings that the kernel does not have.
    """
    refused = list(refused_settings(pep))
    if refused:
        raise ScenarioError(
            *(Problem(source="pep", field=dotted(path), message=text) for path, text in refused)
        )
    return {
        "mark": installation.mark,
        "route_table": installation.route_table,
        "workers": installation.workers,
        "threads": installation.threads,
        "connections": pep.connections,
        "buffer_bytes": value_of(pep.buffer),
        "early_accept": pep.early_accept,
        "connect_limit_ns": installation.connect_limit_ns,
        "idle_limit_ns": installation.idle_limit_ns,
        "keep_alive_ns": installation.keep_alive_ns,
        "lan": {"interfaces": list(installation.lan), "tcp": _leg(pep, pep.lan_tcp)},
        "link": {"interfaces": list(installation.link), "tcp": _leg(pep, pep.link_tcp)},
    }


def refused_settings(pep: Pep) -> Iterator[tuple[FieldPath, str]]:
    """Yield the settings that a daemon cannot have: the path in the PEP, and the reason."""
    if pep.profile != "linux":
        text = "a daemon has the TCP of its kernel: leave it out"
        yield ("profile",), f"read {shown(pep.profile)}; {text}"
    if pep.notsent_lowat is not None and value_of(pep.notsent_lowat) > _U32_MAX:
        yield ("notsent_lowat",), f"read {shown(pep.notsent_lowat)}; must be at most {_U32_MAX} B"
    for name, tcp in (("lan_tcp", pep.lan_tcp), ("link_tcp", pep.link_tcp)):
        for field, text in _refused_tcp(tcp):
            yield (name, field), text


def _refused_tcp(tcp: Tcp) -> Iterator[tuple[str, str]]:
    for field in Tcp.model_fields:
        read, kernels = getattr(tcp, field), getattr(PROFILES["linux"], field)
        if field == "receive_buffer_initial" and _receive_buffer_bytes(tcp) is not None:
            kernels = tcp.over(PROFILES["linux"]).receive_buffer
        if read is None or _same(read, kernels):
            continue
        if field == "hystart" and tcp.congestion_control not in (None, "cubic"):
            # Only cubic has it.
            continue
        if field not in _OF_THE_SOCKET:
            yield field, f"read {shown(read)}; {_reason(field, read, kernels)}"
        elif field.endswith("_buffer") and value_of(read) > _SOCKET_BUFFER_BYTES_MAX:
            limit = f"must be at most {_SOCKET_BUFFER_BYTES_MAX} B (socket(7))"
            yield field, f"read {shown(read)}; {limit}"


def _reason(field: str, read: Any, kernels: Any) -> str:
    if field in _SYSCTLS:
        one = "the kernel has one for all connections"
        return f"{one}: leave it out, and set {_SYSCTLS[field]} by sysctl"
    if field in _OF_THE_ROUTE:
        value = value_of(read) if field == "mss" else str(read).replace(" ", "")
        change = f"ip route change DESTINATION ... {_OF_THE_ROUTE[field]} {value}"
        return f"the kernel has one for each route: leave it out, and run {change}"
    if field == "receive_buffer_initial":
        return "a socket with a buffer of its own does not tune it: leave it out"
    return f"the kernel's is {shown(kernels)} and cannot be set for a connection: leave it out"


def _same(read: Any, kernels: Any) -> bool:
    if isinstance(read, str) and hasattr(read, "value"):
        return kernels is not None and value_of(read) == value_of(kernels)
    return bool(read == kernels)


def _leg(pep: Pep, tcp: Tcp) -> LegPlan:
    lowat, name = pep.notsent_lowat, tcp.congestion_control
    return {
        "congestion_control": None if name is None else kernel_congestion_control(name),
        # The kernel doubles the size for its own overhead, as the model expects.
        "send_buffer_bytes": None if tcp.send_buffer is None else value_of(tcp.send_buffer),
        "receive_buffer_bytes": _receive_buffer_bytes(tcp),
        "not_sent_bytes": None if lowat is None else value_of(lowat),
    }


def _receive_buffer_bytes(tcp: Tcp) -> int | None:
    """Return the size to set, which the kernel doubles; None to let the kernel tune it."""
    if tcp.receive_buffer is None and tcp.receive_buffer_counts is None:
        return None
    whole = tcp.over(PROFILES["linux"])
    size_bytes = value_of(whole.receive_buffer)
    return size_bytes if whole.receive_buffer_counts == "window" else max(size_bytes // 2, 1)
