"""What labs need of this machine: privileges, and capacity for the rate of a link; its errors.

The privileges are those of root, or a user namespace of this process, in which it keeps its user id
and has all capabilities. Programs that it starts in a lab have none, but their user owns the lab's
network and may do everything there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from bentpipe import _core
from bentpipe.errors import MachineError, UsageError
from bentpipe.live import machine
from bentpipe.plan.presets import series_values

# What namespaces and devices require.
_CAPABILITIES: Final = ("CAP_NET_ADMIN", "CAP_SYS_ADMIN")


def gain_privileges() -> str:
    """Move this process into a user namespace, unless it may create namespaces already.

    The process must have one thread (unshare(2), CLONE_NEWUSER), and stays in the user namespace.
    Returns the privileges of the process as text, for `bentpipe check`.

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


@contextmanager
def errors_of_core() -> Iterator[None]:
    """Raise errors of the extension as those of bentpipe: what the machine, or a plan, lacks.

    Raises:
        MachineError: the machine lacks something, or does not allow it.
        UsageError: the plan or a change cannot be run in real time.
    """
    try:
        yield
    except _core.MachineError as error:
        raise MachineError(str(error)) from None
    except _core.PlanError as error:
        raise UsageError(str(error)) from None


def measure_capacity(seconds: float = 3.0) -> dict[str, Any]:
    """Measure the rates that labs can carry on this machine; store and return them.

    ``seconds`` is the duration of each measurement. `refuse_beyond_capacity` reads the stored file.

    Raises:
        MachineError: labs do not work here, or the measurement cannot be stored.
    """
    gain_privileges()
    with errors_of_core():
        measured = _core.measure(seconds)
    path = _capacity_file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(measured, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise MachineError(f"{path}: {error.strerror}; set XDG_CACHE_HOME") from None
    return measured


def refuse_beyond_capacity(
    plans: Sequence[Mapping[str, Any]], *, super_packets: bool = False
) -> None:
    """Refuse links faster than the measured capacity; without a measurement allow every rate.

    Raises:
        MachineError: naming the rate, the capacity and the remedy.
    """
    key = "tcp_super_packets_bits_per_second" if super_packets else "tcp_bits_per_second"
    try:
        capacity_bps = float(json.loads(_capacity_file().read_text(encoding="utf-8"))[key])
    except (OSError, ValueError, KeyError):
        return
    for plan in plans:
        for direction in plan["directions"]:
            rate_bps = max(series_values(direction["rate_bps"]))
            if rate_bps > capacity_bps:
                raise MachineError(
                    f"the link's rate of {rate_bps / 1e6:,.0f} Mbit/s is above the measured "
                    f"capacity of this machine, {capacity_bps / 1e6:,.0f} Mbit/s; to fix it: "
                    "choose a lower rate, or measure again by bentpipe check --measure"
                )


def _capacity_file() -> Path:
    # expanduser(3) returns the path unchanged for a user without a home; no such file exists.
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111
    return Path(cache) / "bentpipe" / "capacity.json"
