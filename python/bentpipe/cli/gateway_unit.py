"""A unit for systemd that keeps a gateway."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bentpipe import gateway
from bentpipe.errors import UsageError

if TYPE_CHECKING:
    from bentpipe.gateway.config import GatewayConfig
    from bentpipe.gateway.plan import GatePlan

# Of the privileged part: rules and transparent sockets, raw sockets, the user of the worker, the
# limit of open files, and signals to a worker of another user.
_CAPABILITIES: Final = (
    "CAP_NET_ADMIN",
    "CAP_NET_RAW",
    "CAP_SETUID",
    "CAP_SETGID",
    "CAP_SYS_RESOURCE",
    "CAP_KILL",
)

_UNIT: Final = """\
# Made by bentpipe gateway unit {config}
[Unit]
Description=bentpipe gateway {name} ({functions})
After=network-online.target nftables.service{after}
Wants=network-online.target{wants}
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart={program} gateway up --foreground {config}
{reload}# After it was killed, so that no rule is left. Otherwise nothing is left, and this fails.
ExecStopPost=-{program} gateway down {config}
Restart=on-failure
RestartSec=3
# Bad input stays bad.
RestartPreventExitStatus=2
# The privileged part ends the worker.
KillMode=mixed
RuntimeDirectory=bentpipe/{name}
RuntimeDirectoryMode=0700
{limits}# A restart when memory is short would reset all connections.
OOMScoreAdjust=-500

CapabilityBoundingSet={capabilities}
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=read-only
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
{devices}PrivateTmp=yes
LockPersonality=yes
MemoryDenyWriteExecute=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_NETLINK AF_PACKET AF_UNIX
RestrictNamespaces=net
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
UMask=0077

[Install]
WantedBy=multi-user.target
"""


# PrivateDevices= would hide it.
_TUN_DEVICE: Final = "DevicePolicy=closed\nDeviceAllow=/dev/net/tun rw\n"
_TUN_MODULE: Final = " modprobe@tun.service"


def unit_text(config: GatewayConfig, plan: GatePlan, path: Path) -> str:
    """Return the unit of a gateway; ``path`` is the file of its configuration.

    Raises:
        UsageError: a path cannot be written into a unit.
    """
    program = _quoted(Path(sys.executable).with_name("bentpipe"))
    pep, has_tunnel, quoted = plan["pep"], config.has_tunnel, _quoted(path.absolute())
    # The limit of each process: enough for one worker with all connections.
    files = 0 if pep is None else gateway.open_files(pep["connections"], threads=pep["threads"])
    return _UNIT.format(
        name=config.name,
        functions=", ".join(config.functions),
        program=program,
        config=quoted,
        after=_TUN_MODULE if has_tunnel else "",
        wants=_TUN_MODULE if has_tunnel else "",
        reload=f"ExecReload={program} gateway reload {quoted}\n" if has_tunnel else "",
        limits=f"LimitNOFILE={files}\n" if files else "",
        devices=_TUN_DEVICE if has_tunnel else "PrivateDevices=yes\n",
        capabilities=" ".join(_CAPABILITIES),
    )


def _quoted(path: Path) -> str:
    """Return a path as a word of a command line in a unit (systemd.service(5))."""
    text = str(path)
    if not text.isprintable() or '"' in text or "\\" in text:
        raise UsageError(f"{text}: a unit cannot name such a path; move the file")
    text = text.replace("%", "%%").replace("$", "$$")
    return f'"{text}"' if " " in text else text
