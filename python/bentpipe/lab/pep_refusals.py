"""Settings of a PEP that are not possible in real time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from bentpipe.lab.tcp_settings import OF_THE_HOST, setting_text
from bentpipe.plan.lower import field_name
from bentpipe.plan.tcp import host_plan
from bentpipe.scenario.tcp import Tcp

# Settings of each leg; the others are those of the gateway's kernel, which cannot all be set.
_OF_THE_LEG: Final = ("congestion_control", "initial_window_segments")
_TCP_IP_BYTES: Final = 40


def refused_settings(
    path: str, pep: Mapping[str, Any], mtu_bytes: int
) -> Iterator[tuple[str, str]]:
    """Yield the settings that daemon and kernel do not have, by field, and why.

    ``pep`` is that of the plan, and ``path`` its field in the scenario.
    """
    for side in ("lan_tcp", "link_tcp"):
        tcp = pep[side]
        same = Tcp(congestion_control=tcp["congestion_control"])
        kernel = host_plan("linux", same, ())
        for name, value in tcp.items():
            if name in _OF_THE_LEG:
                continue
            read, kernels = setting_text(name, value), setting_text(name, kernel[name])
            setting = field_name(Tcp, name)
            if name == "mss_bytes":
                if value != mtu_bytes - _TCP_IP_BYTES:
                    text = f"is {read}; that of the kernel is {mtu_bytes - _TCP_IP_BYTES} B"
                    yield f"{path}.{side}.{setting}", text
            elif name in OF_THE_HOST:
                if value != pep["lan_tcp"][name]:
                    text = f"is {read}, not that of lan_tcp; the kernel has one for all legs"
                    yield f"{path}.{side}.{setting}", text
            elif value != kernel[name]:
                text = f"is {read}; the kernel's is {kernels} and cannot be set"
                yield f"{path}.{side}.{setting}", text
