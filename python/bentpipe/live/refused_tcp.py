"""The TCP settings that a flow or a leg in a lab cannot have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

from bentpipe.live.kernel_tcp import KERNEL_TCP, KernelSetting, setting_text
from bentpipe.plan.hosts import host_plan
from bentpipe.plan.lower import field_name
from bentpipe.scenario.tcp import Tcp
from bentpipe.units import TCP_IP_BYTES

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
