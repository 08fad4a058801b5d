"""Change the settings of a running tunnel: what `bentpipe gateway reload` does."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from bentpipe.errors import MachineError, UsageError
from bentpipe.gateway.config import GatewayConfig, described
from bentpipe.gateway.plan import GatePlan
from bentpipe.gateway.state import GatewayFolder
from bentpipe.plan.lower import origin

_TIMEOUT_S: Final = 5.0
_REPLY_BYTES_MAX: Final = 64 * 1024
_CHANGEABLE: Final = (
    "redundancy, redundancy_max, window, window_max, titration, delay, threshold, hold_time, "
    "hold_buffer, rate, classes, packet_size, uncoded_first and congestion_signal"
)


def reload_gateway(config: GatewayConfig, plan: GatePlan) -> None:
    """Pass the settings of a plan to the running daemon of the same name.

    Raises:
        UsageError: the plan differs in what a running daemon cannot change; nothing is changed.
        MachineError: the daemon does not answer.
    """
    folder = GatewayFolder(config.name)
    record = folder.record()
    if record is None or not folder.is_up():
        raise MachineError(
            f"gateway {config.name} is not up; to fix it: start it with bentpipe gateway up"
        )
    if record.plan.get("tunnel") is None:
        raise UsageError(
            f"gateway {config.name} has no tunnel, whose settings alone can be reloaded; to fix "
            f"it: bentpipe gateway down {config.name}, then up"
        )
    reply = _ask(folder.control_file, plan)
    if reply == "changed":
        folder.write_record(
            replace(record, plan=dict(plan), described=described(config)),
        )
        return
    if "differs" in reply:
        names = ", ".join(dict.fromkeys(_config_name(plan, path) for path in reply["differs"]))
        raise UsageError(
            f"{record.config}: a running gateway cannot change {names}; nothing was changed. It "
            f"can change {_CHANGEABLE} of its tunnel; to fix it: bentpipe gateway down "
            f"{config.name}, then up"
        )
    raise UsageError(f"{record.config}: {reply['refused']}")


def _ask(path: Path, plan: GatePlan) -> Any:
    message = json.dumps(plan).encode()
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
            client.settimeout(_TIMEOUT_S)
            client.connect(str(path))
            client.send(message)
            reply = client.recv(_REPLY_BYTES_MAX)
        return json.loads(reply)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise MachineError(
            f"{path}: the daemon does not answer: {reason}; to fix it: try again, as the user who "
            "has started the gateway"
        ) from None


def _config_name(plan: GatePlan, path: str) -> str:
    """Return the name in the configuration of a path in the plan."""
    parts = path.split(".")
    if parts[:2] == ["tunnel", "settings"]:
        parts = [str(field) for field in origin(plan, parts)]
    elif parts[:2] == ["tunnel", "listen_address"] or parts[:2] == ["tunnel", "listen_port"]:
        parts = ["tunnel", "listen"]
    return ".".join(part.removesuffix("_bytes").removesuffix("_ns") for part in parts)
