"""Privileges that labs need: those of root, or a user namespace of this process.

In its user namespace the process keeps its user id and has all capabilities. Programs that it
starts in a lab have none, but their user owns the lab's network and may do everything there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from bentpipe import _core
from bentpipe.errors import MachineError

# What namespaces and devices require: capabilities(7), numbered as in linux/capability.h.
_CAPABILITIES: Final = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21}


def gain_privileges() -> str:
    """Move this process into a user namespace, unless it may create namespaces already.

    The process must have one thread (unshare(2), CLONE_NEWUSER), and stays in the user namespace.
    Returns the privileges of the process as text, for `bentpipe doctor`.

    Raises:
        MachineError: the kernel does not allow it.
    """
    missing = _missing_capabilities()
    if not missing:
        return "as root"
    try:
        _core.create_user_namespace()
    except _core.MachineError as error:
        names = " and ".join(missing)
        raise MachineError(f"a lab needs {names}, or a user namespace; {error}") from None
    return "in a user namespace"


def _missing_capabilities() -> list[str]:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("CapEff:"):
            effective = int(line.split()[1], 16)
            return [name for name, bit in _CAPABILITIES.items() if not effective >> bit & 1]
    return list(_CAPABILITIES)
