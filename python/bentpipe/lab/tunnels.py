"""The tunnels of a lab: both ends of one run as the daemon `bentpipe-gate` on the gateways.

Packets between hosts behind different gateways go through the tunnel. Its own packets, and those
between other addresses, go over the link as they are.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from bentpipe.errors import MachineError, Problem, ScenarioError
from bentpipe.gateway import machine
from bentpipe.gateway.binary import find_binary
from bentpipe.lab.gateways import GatewayHost, gateway_hosts, hosts_behind

if TYPE_CHECKING:
    from bentpipe import _core
    from bentpipe.gateway.tunnel_plan import DaemonTunnelPlan, TunnelPeerPlan

DEVICE: Final = "bp0"
_PORT: Final = 51_871
# As `daemon/tunnel_plan.rs`.
_PEERS_MAX: Final = 64
# Files in a folder that the gateway has of its own: `PRIVATE_FOLDER` of bentpipe-sys.
_KEY_FILE: Final = "/dev/shm/bentpipe-gate.key"
_CONTROL_FILE: Final = "/dev/shm/bentpipe-gate.control"
# The network of the devices, which is none of hosts.
_DEVICES: Final = "10.84.1"
# Sessions begin before the traffic, and last while there is none.
_KEEPALIVE_NS: Final = 25_000_000_000


def refuse_tunnels(plans: Sequence[Mapping[str, Any]]) -> None:
    """Check that daemons can do what the tunnels of plans say.

    Raises:
        ScenarioError: they cannot; the error names every unsupported field.
        MachineError: the machine lacks a program.
    """
    ends = [each for each in gateway_hosts(plans) if each.function("tunnel") is not None]
    if not ends:
        return
    found = {field: text for end in ends for field, text in _refused(end)}
    if found:
        problems = (Problem(source="emulate", field=each, message=found[each]) for each in found)
        raise ScenarioError(*problems)
    find_binary()
    machine.require_program("ip")


def _refused(end: GatewayHost) -> Iterator[tuple[str, str]]:
    path = f"gateways.{end.end}"
    functions = end.plan["gateways"][end.number]["functions"]
    kinds = [function["kind"] for function in functions]
    before = [kind for kind in kinds[: kinds.index("tunnel")] if kind != "pep"]
    if before:
        text = f"read {before[0]} before tunnel; in real time the tunnel is next to the hosts"
        yield f"{path}.functions", f"{text}: put tunnel first, or behind pep only"
    for function in functions:
        given = function.get("classifier", function).get("classes")
        if given is not None:
            text = f"read {given}; classes are not supported in real time: leave it out"
            yield f"{path}.{function['kind']}.classes", text
    for direction in end.plan["directions"]:
        name, queue = direction["name"], direction["queue"]
        if (queue.get("classes") or 1) > 1:
            text = f"read {queue['discipline']} with a tunnel; not supported in real time"
            yield f"link.{name}.queue.discipline", f"{text}: choose another discipline"
        if queue.get("ecn"):
            text = "read true with a tunnel; not supported in real time: leave it out"
            yield f"link.{name}.queue.ecn", text
    terminals = len(end.plan["gateways"]) - 1
    if terminals > _PEERS_MAX:
        yield "link.terminals", f"read {terminals} with a tunnel; at most {_PEERS_MAX} in real time"


def new_key(core: _core.Lab, host: str) -> str:
    """Make a private key in the own folder of a gateway, and return its public key.

    Raises:
        MachineError: the key could not be written.
    """
    output = os.memfd_create("public-key")
    try:
        command = [str(find_binary()), "keygen", _KEY_FILE]
        _, status = os.waitpid(core.spawn(host, command, output=output), 0)
        printed = os.pread(output, 4_096, 0).decode(errors="replace").strip()
    finally:
        os.close(output)
    if os.waitstatus_to_exitcode(status) != 0:
        raise MachineError(f"the tunnel of {host} does not start: {printed}")
    return printed


def tunnel_plan_of(
    core: _core.Lab, end: GatewayHost, public_keys: Mapping[str, str]
) -> DaemonTunnelPlan:
    """Return the daemon's plan of an end of a tunnel.

    ``public_keys`` has those of all gateways by host.
    """
    function = end.function("tunnel")
    assert function is not None
    gateways, hub_is_here = end.plan["gateways"], end.number == 0
    others = range(1, len(gateways)) if hub_is_here else range(1)

    def networks(number: int) -> list[str]:
        hosts = hosts_behind(end.plan, number)
        return [*(f"{core.address(host)}/32" for host in hosts), _device_address(number)]

    def peer(number: int) -> TunnelPeerPlan:
        host = gateways[number]["name"]
        # Terminals reach each other by way of the hub.
        behind = [
            network
            for each in range(len(gateways))
            if each == number or (not hub_is_here and each != end.number)
            for network in networks(each)
        ]
        return {
            "name": host,
            "public_key": public_keys[host],
            "endpoint": f"{core.address(host)}:{_PORT}",
            "keepalive_ns": None if hub_is_here else _KEEPALIVE_NS,
            "networks": behind,
        }

    return {
        "device": DEVICE,
        "addresses": [_device_address(end.number)],
        "listen_address": None,
        "listen_port": _PORT,
        "private_key": _KEY_FILE,
        "outer_mtu_bytes": None,
        "control_file": _CONTROL_FILE,
        "peers": [peer(number) for number in others],
        "settings": {name: value for name, value in function.items() if name != "kind"},
    }


def _device_address(number: int) -> str:
    return f"{_DEVICES}.{1 + number}/32"
