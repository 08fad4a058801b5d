"""Privileges that labs need: those of root, or a user namespace of this process.

In its user namespace the process keeps its user id and has all capabilities. Programs that it
starts in a lab have none, but their user owns the lab's network and may do everything there.
"""

from __future__ import annotations

from typing import Final

from bentpipe import _core
from bentpipe.errors import MachineError
from bentpipe.gateway import machine

# What namespaces and devices require.
_CAPABILITIES: Final = ("CAP_NET_ADMIN", "CAP_SYS_ADMIN")


def gain_privileges() -> str:
    """Move this process into a user namespace, unless it may create namespaces already.

    The process must have one thread (unshare(2), CLONE_NEWUSER), and stays in the user namespace.
    Returns the privileges of the process as text, for `bentpipe doctor`.

    Raises:
        MachineError: the kernel does not allow it.
    """
    missing = machine.missing_capabilities(*_CAPABILITIES)
    if not missing:
        return "as root"
    try:
        _core.create_user_namespace()
    except _core.MachineError as error:
        names = " and ".join(missing)
        raise MachineError(f"a lab needs {names}, or a user namespace; {error}") from None
    return "in a user namespace"
