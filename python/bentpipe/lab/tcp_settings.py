"""Kernel settings of a host for the TCP of a plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from bentpipe.errors import MachineError
from bentpipe.gateway.machine import kernel_congestion_control
from bentpipe.units import format_duration, format_size

# tcp(7): half of a buffer is overhead, so the advertised window is half of it (tcp_adv_win_scale 1,
# and initially since Linux 6.6); socket(7) doubles the requested size. A receive buffer that counts
# memory is the kernel's own size.
_MEMORY_PER_BYTE: Final = 2
_LARGEST_MEMORY_BYTES: Final = 2**31 - 1
_AVAILABLE: Final = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
_FIRST_SEND_BUFFER_BYTES: Final = 16_384
# Fields for which the kernel has one setting for all connections of a host.
OF_THE_HOST: Final = (
    "sack",
    "timestamps",
    "window_scaling",
    "ecn",
    "send_buffer_bytes",
    "receive_buffer_bytes",
    "receive_buffer_initial_bytes",
    "receive_buffer_counts",
    "rack_tlp",
)


def tcp_settings(tcp: Mapping[str, Any]) -> dict[str, str]:
    """Return the sysctls of a host whose connections have these TCP settings of a plan."""
    is_memory = tcp["receive_buffer_counts"] == "memory"
    per_byte = 1 if is_memory else _MEMORY_PER_BYTE
    send, receive, receive_first = (
        min(tcp[f"{buffer}_bytes"] * memory, _LARGEST_MEMORY_BYTES)
        for buffer, memory in (
            ("send_buffer", _MEMORY_PER_BYTE),
            ("receive_buffer", per_byte),
            ("receive_buffer_initial", per_byte),
        )
    )
    of_tcp = {
        # Programs set that of each connection on its socket; a default other than those of
        # tcp_allowed_congestion_control is allowed in the initial namespace only. The default has
        # side effects: a connection that began with bbr stays paced.
        "congestion_control": "reno",
        "sack": int(tcp["sack"]),
        "timestamps": int(tcp["timestamps"]),
        "window_scaling": int(tcp["window_scaling"]),
        # ip-sysctl, tcp_ecn. 1: request ECN and accept requests; 0: do neither.
        "ecn": int(tcp["ecn"]),
        "recovery": int(tcp["rack_tlp"]),
        # 3: tail loss probes, with RACK's timer to distinguish reordering from loss.
        "early_retrans": 3 if tcp["rack_tlp"] else 0,
        "adv_win_scale": 1,
        "moderate_rcvbuf": 1,
        "rmem": f"{min(4_096, receive)} {receive_first} {receive}",
        "wmem": f"{min(4_096, send)} {min(_FIRST_SEND_BUFFER_BYTES, send)} {send}",
        # Connections must not inherit metrics of earlier ones.
        "no_metrics_save": 1,
    }
    return {f"net.ipv4.tcp_{name}": str(value) for name, value in of_tcp.items()}


def setting_text(field: str, value: Any) -> str:
    """Return a TCP setting of a plan as a scenario has it."""
    if isinstance(value, bool):
        return str(value).lower()
    if field.endswith("_ns"):
        return format_duration(value)
    return format_size(value) if field.endswith("_bytes") else str(value)


def congestion_control(tcp: Mapping[str, Any]) -> str:
    """Return the kernel's name of a congestion control of the plan."""
    return kernel_congestion_control(tcp["congestion_control"])


def available_congestion_controls() -> list[str]:
    """Return the congestion controls that the running kernel has."""
    try:
        return _AVAILABLE.read_text().split()
    except OSError as error:
        raise MachineError(f"{_AVAILABLE}: cannot be read: {error.strerror}; mount /proc") from None


def require_congestion_controls(tcps: Iterable[Mapping[str, Any]]) -> None:
    """Check that the running kernel has the congestion controls of TCP settings of a plan.

    Raises:
        MachineError: it lacks one.
    """
    available = available_congestion_controls()
    for name in sorted({congestion_control(each) for each in tcps} - set(available)):
        raise MachineError(
            f"the kernel has no congestion control {name} (it has {', '.join(available)}); "
            f"load it as root: modprobe tcp_{name}"
        )
