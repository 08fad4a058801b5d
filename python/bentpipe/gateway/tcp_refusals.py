"""TCP settings that a run with the kernel's TCP cannot have, and why: see `kernel_tcp`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

from bentpipe.gateway.kernel_tcp import KERNEL_TCP, KernelSetting, setting_text
from bentpipe.plan.hosts import host_plan
from bentpipe.plan.lower import field_name
from bentpipe.scenario.document import FieldPath
from bentpipe.scenario.gateways import Pep
from bentpipe.scenario.tcp import PROFILES, Tcp
from bentpipe.text import shown
from bentpipe.units import TCP_IP_BYTES, value_of

# setsockopt(2) takes an int, and the kernel doubles it (socket(7), SO_SNDBUF).
_SOCKET_BUFFER_BYTES_MAX: Final = (2**31 - 1) // 2
_U32_MAX: Final = 2**32 - 1
_FIXED: Final = KernelSetting()


def refused_tcp(
    user: Literal["flow", "leg"],
    tcp: Mapping[str, Any],
    first: Mapping[str, Any],
    mtu_bytes: int = 1_500,
) -> Iterator[tuple[str, str]]:
    """Yield the settings that a flow or a leg in a lab cannot have: the field, and the reason.

    ``tcp`` is that of the plan, and ``first`` that of the first flow or leg of its host.
    """
    same = Tcp(congestion_control=tcp["congestion_control"])
    mss = {"mss_bytes": mtu_bytes - TCP_IP_BYTES}
    kernel: Mapping[str, Any] = {**host_plan("linux", same, ()), **mss}
    for name, value in tcp.items():
        scope = getattr(KERNEL_TCP.get(name, _FIXED), user)
        if scope == "connection":
            continue
        is_of_host = scope == "host"
        allowed = (first if is_of_host else kernel)[name]
        if value != allowed:
            read, text = setting_text(name, value), setting_text(name, allowed)
            one, fixed = f"has one for all {user}s, {text}", f"'s is {text} and cannot be set"
            reason = f"the kernel {one}" if is_of_host else f"the kernel{fixed}"
            yield field_name(Tcp, name), f"is {read}; {reason}"


def refused_settings(pep: Pep) -> Iterator[tuple[FieldPath, str]]:
    """Yield the settings that a PEP on a router cannot have: the path in it, and the reason."""
    if pep.profile != "linux":
        text = "a daemon has the TCP of its kernel: leave it out"
        yield ("profile",), f"read {shown(pep.profile)}; {text}"
    if pep.notsent_lowat is not None and value_of(pep.notsent_lowat) > _U32_MAX:
        yield ("notsent_lowat",), f"read {shown(pep.notsent_lowat)}; must be at most {_U32_MAX} B"
    for name, tcp in (("lan_tcp", pep.lan_tcp), ("link_tcp", pep.link_tcp)):
        for field, text in _refused_leg(tcp):
            yield (name, field), text


def receive_buffer_bytes(tcp: Tcp) -> int | None:
    """Return the size to set, which the kernel doubles; None to let the kernel tune it."""
    if tcp.receive_buffer is None and tcp.receive_buffer_counts is None:
        return None
    whole = tcp.over(PROFILES["linux"])
    size_bytes = value_of(whole.receive_buffer)
    return size_bytes if whole.receive_buffer_counts == "window" else max(size_bytes // 2, 1)


def _refused_leg(tcp: Tcp) -> Iterator[tuple[str, str]]:
    settings = {field_name(Tcp, name): setting for name, setting in KERNEL_TCP.items()}
    for field in Tcp.model_fields:
        read, kernels = getattr(tcp, field), getattr(PROFILES["linux"], field)
        if field == "receive_buffer_initial" and receive_buffer_bytes(tcp) is not None:
            kernels = tcp.over(PROFILES["linux"]).receive_buffer
        if read is None or _same(read, kernels):
            continue
        if field == "hystart" and tcp.congestion_control not in (None, "cubic"):
            # Only cubic has it.
            continue
        setting = settings.get(field, _FIXED)
        if setting.gateway != "connection":
            yield field, f"read {shown(read)}; {_reason(field, setting, read, kernels)}"
        elif field.endswith("_buffer") and value_of(read) > _SOCKET_BUFFER_BYTES_MAX:
            limit = f"must be at most {_SOCKET_BUFFER_BYTES_MAX} B (socket(7))"
            yield field, f"read {shown(read)}; {limit}"


def _reason(field: str, setting: KernelSetting, read: Any, kernels: Any) -> str:
    if field == "receive_buffer_initial":
        return "a socket with a buffer of its own does not tune it: leave it out"
    if setting.sysctls:
        sysctls = f"net.ipv4.{' and '.join(setting.sysctls)}"
        return f"the kernel has one for all connections: leave it out, and set {sysctls} by sysctl"
    if setting.route:
        value = value_of(read) if field == "mss" else str(read).replace(" ", "")
        change = f"ip route change DESTINATION ... {setting.route} {value}"
        return f"the kernel has one for each route: leave it out, and run {change}"
    return f"the kernel's is {shown(kernels)} and cannot be set for a connection: leave it out"


def _same(read: Any, kernels: Any) -> bool:
    if isinstance(read, str) and hasattr(read, "value"):
        return kernels is not None and value_of(read) == value_of(kernels)
    return bool(read == kernels)
