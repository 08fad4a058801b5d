"""What TCP of the running kernel can be set to in a lab, and how.

A setting belongs to a connection (socket option), to all connections of a route (ip-route(8)), or
to all of a host: a network namespace (sysctl). A setting without an entry cannot be changed: it is
what the kernel does, which is the profile ``linux``. `bentpipe.live.refused_tcp` refuses the rest;
on a router, `crates/gate/src/config/kernel_tcp.rs`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from bentpipe.errors import MachineError
from bentpipe.units import TCP_IP_BYTES, format_duration, format_size

# Who may differ in a setting: each connection, or each host; else nobody.
Scope = Literal["connection", "host", "kernel"]

# tcp(7): half of a buffer is overhead, so the advertised window is half of it (tcp_adv_win_scale 1,
# and initially since Linux 6.6); socket(7) doubles the requested size. A receive buffer that counts
# memory is the kernel's own size.
_MEMORY_PER_BYTE: Final = 2
_LARGEST_MEMORY_BYTES: Final = 2**31 - 1
_FIRST_SEND_BUFFER_BYTES: Final = 16_384
_AVAILABLE: Final = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
# The names of the kernel that a scenario has others for.
_CONGESTION_CONTROLS: Final = {"newreno": "reno"}
# The initial window of routes without another (RFC 6928).
DEFAULT_WINDOW_SEGMENTS: Final = 10


@dataclass(frozen=True, kw_only=True)
class KernelSetting:
    """How Linux has one TCP setting of a plan.

    ``flow`` is the scope of the flows of a run in real time, and ``leg`` that of the legs of a PEP,
    whose connections each have their route. ``sysctls`` have the values for true, 0 is for false;
    those of buffers are computed. ``route`` is the attribute of ip-route(8).
    """

    flow: Scope = "kernel"
    leg: Scope = "kernel"
    sysctls: Mapping[str, int | None] = field(default_factory=dict)
    route: str = ""


def _of_host(**sysctls: int | None) -> KernelSetting:
    return KernelSetting(flow="host", leg="host", sysctls=sysctls)


KERNEL_TCP: Final[Mapping[str, KernelSetting]] = {
    "congestion_control": KernelSetting(flow="connection", leg="connection"),
    "mss_bytes": KernelSetting(flow="connection"),
    "initial_window_segments": KernelSetting(flow="host", leg="connection", route="initcwnd"),
    "sack": _of_host(tcp_sack=1),
    "timestamps": _of_host(tcp_timestamps=1),
    "window_scaling": _of_host(tcp_window_scaling=1),
    # ip-sysctl, tcp_ecn. 1: request ECN and accept requests; 0: do neither.
    "ecn": _of_host(tcp_ecn=1),
    # 3: tail loss probes, with RACK's timer to distinguish reordering from loss.
    "rack_tlp": _of_host(tcp_recovery=1, tcp_early_retrans=3),
    "send_buffer_bytes": _of_host(tcp_wmem=None),
    "receive_buffer_bytes": _of_host(tcp_rmem=None),
    "receive_buffer_initial_bytes": _of_host(tcp_rmem=None),
    "receive_buffer_counts": _of_host(tcp_rmem=None),
}
# What every host has, whatever its TCP settings are.
_OF_EVERY_HOST: Final = {
    # Programs set that of each connection on its socket; a default other than those of
    # tcp_allowed_congestion_control is allowed in the initial namespace only. The default has side
    # effects: a connection that began with bbr stays paced.
    "tcp_congestion_control": "reno",
    "tcp_adv_win_scale": 1,
    "tcp_moderate_rcvbuf": 1,
    # Connections must not inherit metrics of earlier ones.
    "tcp_no_metrics_save": 1,
}


def host_sysctls(tcp: Mapping[str, Any]) -> dict[str, str]:
    """Return the sysctls of a host whose connections have these TCP settings of a plan."""
    values: dict[str, Any] = {
        name: on if tcp[setting] else 0
        for setting, kernel in KERNEL_TCP.items()
        for name, on in kernel.sysctls.items()
        if on is not None
    }
    per_byte = 1 if tcp["receive_buffer_counts"] == "memory" else _MEMORY_PER_BYTE
    send, receive, receive_first = (
        min(tcp[f"{buffer}_bytes"] * memory, _LARGEST_MEMORY_BYTES)
        for buffer, memory in (
            ("send_buffer", _MEMORY_PER_BYTE),
            ("receive_buffer", per_byte),
            ("receive_buffer_initial", per_byte),
        )
    )
    values["tcp_rmem"] = f"{min(4_096, receive)} {receive_first} {receive}"
    values["tcp_wmem"] = f"{min(4_096, send)} {min(_FIRST_SEND_BUFFER_BYTES, send)} {send}"
    return {f"net.ipv4.{name}": str(value) for name, value in (_OF_EVERY_HOST | values).items()}


def socket_options(tcp: Mapping[str, Any], mtu_bytes: int) -> dict[str, Any]:
    """Return what a program sets on its sockets; no MSS if it is the largest that fits."""
    is_largest = tcp["mss_bytes"] == mtu_bytes - TCP_IP_BYTES
    return {
        "mss_bytes": None if is_largest else tcp["mss_bytes"],
        "congestion_control": congestion_control(tcp["congestion_control"]),
    }


def initial_window(tcp: Mapping[str, Any]) -> int | None:
    """Return the initial window of the routes, in segments; None for the kernel's default."""
    window: int = tcp["initial_window_segments"]
    return None if window == DEFAULT_WINDOW_SEGMENTS else window


def setting_text(setting: str, value: Any) -> str:
    """Return a TCP setting of a plan as a scenario has it."""
    if isinstance(value, bool):
        return str(value).lower()
    if setting.endswith("_ns"):
        return format_duration(value)
    return format_size(value) if setting.endswith("_bytes") else str(value)


def congestion_control(name: str) -> str:
    """Return the kernel's name of a congestion control of a scenario."""
    return _CONGESTION_CONTROLS.get(name, name)


def require_congestion_controls(tcps: Iterable[Mapping[str, Any]]) -> None:
    """Check that the running kernel has the congestion controls of TCP settings of a plan.

    Raises:
        MachineError: it lacks one.
    """
    try:
        available = _AVAILABLE.read_text().split()
    except OSError as error:
        raise MachineError(f"{_AVAILABLE}: cannot be read: {error.strerror}; mount /proc") from None
    wanted = {congestion_control(tcp["congestion_control"]) for tcp in tcps}
    for name in sorted(wanted - set(available)):
        raise MachineError(
            f"the kernel has no congestion control {name} (it has {', '.join(available)}); "
            f"load it as root: modprobe tcp_{name}"
        )
