"""Hosts at some distance from their gateway, their TCP, and the host that each flow runs on."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from bentpipe.plan.lower import Part, PlanningError, PlanningErrors, lower, wrong
from bentpipe.scenario.document import FieldPath
from bentpipe.scenario.tcp import (
    MAX_HOSTS,
    MAX_MSS_BYTES,
    MAX_SERVERS,
    PROFILES,
    RANDOM,
    ROUND_ROBIN,
    Host,
    ProfileName,
    Side,
    Tcp,
)
from bentpipe.units import TIMESTAMPS_BYTES

if TYPE_CHECKING:
    from bentpipe.scenario.schema import Scenario


# What the memory of a received segment has beside its payload.
_HEADROOM_BYTES: Final = 52 + 64
_CACHE_LINE_BYTES: Final = 64
_SHARED_INFO_BYTES: Final = 320
_SK_BUFF_BYTES: Final = 256


class HostPlans:
    """The hosts of a plan, and the host of each flow of a scenario."""

    def __init__(self, scenario: Scenario, errors: PlanningErrors) -> None:
        """Number the hosts of all gateways.

        It is an error if two hosts have one name, or if there are too many.
        """
        self.plans: list[Part] = []
        self._first: dict[tuple[Side, int], int] = {}
        self._names: dict[Side, list[str]] = {}
        # The hosts of the servers of each entry of channels, by its number.
        self.servers: dict[int, list[int]] = {}
        terminals = scenario.link.terminals
        sides: dict[Side, range] = {"world": range(1), "island": range(1, 1 + terminals)}
        for side, gateways in sides.items():
            hosts: tuple[Host, ...] = getattr(scenario.hosts, side)
            self._names[side] = [host.name for host in hosts]
            taken = set(self._names.get("world", ())) if side == "island" else set()
            errors.call(_check_names, hosts, taken, ("hosts", side), (RANDOM, ROUND_ROBIN))
            for gateway in gateways:
                self._first[side, gateway] = len(self.plans)
                suffix = f"-{gateway}" if side == "island" and terminals > 1 else ""
                self.plans += _plans(hosts, ("hosts", side), gateway, suffix)
            if side == "world":
                self._add_servers(scenario, errors)
        if len(self.plans) > MAX_HOSTS:
            message = f"make {len(self.plans)} hosts with all terminals; at most {MAX_HOSTS}"
            errors.found.append(PlanningError(("hosts",), f"{message} are allowed"))

    def _add_servers(self, scenario: Scenario, errors: PlanningErrors) -> None:
        """Number the servers of channels after ``hosts.world``; equal lists are shared."""
        known: dict[tuple[Host, ...], list[int]] = {}
        for number, entry in enumerate(scenario.traffic):
            if entry.kind != "channels":
                continue
            path = ("traffic", number, "servers")
            if entry.servers == "world":
                count = len(self._names["world"])
                if not 1 <= count <= MAX_SERVERS:
                    listed = f"more than {MAX_SERVERS} hosts" if count else "no host"
                    errors.found.append(wrong(path, "world", f"hosts.world lists {listed}"))
                self.servers[number] = list(range(count))
                continue
            if entry.servers not in known:
                names = {plan["name"] for plan in self.plans}
                errors.call(_check_names, entry.servers, names, path, (), _SHARED_SERVERS)
                first = len(self.plans)
                known[entry.servers] = list(range(first, first + len(entry.servers)))
                self.plans += _plans(entry.servers, path)
            self.servers[number] = known[entry.servers]

    def check(self, side: Side, written: str | None, path: FieldPath) -> None:
        """Check the host that an entry of ``traffic`` names.

        Raises:
            PlanningError: no host of that side has the name, that side has no host, or a random
                host could be a server of channels.
        """
        names = self._names[side]
        field = (*path, f"{side}_host")
        count = sum(plan["gateway"] == 0 for plan in self.plans)
        if side == "world" and written == RANDOM and names and count > len(names):
            message = (
                "the servers of channels would be drawn, too: list them in hosts.world and write"
            )
            raise wrong(field, RANDOM, f"{message} servers: world there")
        if written is None or (names and written in (*names, RANDOM, ROUND_ROBIN)):
            return
        message = f"hosts.{side} lists no host"
        if names:
            hosts = f"a host of hosts.{side} ({', '.join(names[:5])})"
            message = f'expected {hosts}, "{RANDOM}" or "{ROUND_ROBIN}"'
        raise wrong(field, written, message)

    def chosen(
        self, side: Side, written: str | None, place: tuple[int, int]
    ) -> dict[str, Any] | None:
        """Return the host of a flow that `check` accepts; ``place``: its number and terminal."""
        if written is None:
            return None
        if written == RANDOM:
            return {"kind": "random"}
        number, terminal = place
        names = self._names[side]
        on_side = number % len(names) if written == ROUND_ROBIN else names.index(written)
        first = self._first[side, 0 if side == "world" else 1 + terminal]
        return {"kind": "named", "host": first + on_side}


# The end of a message.
_SHARED_SERVERS: Final = " (to share servers, list them in hosts.world and write servers: world)"


def _check_names(
    hosts: Iterable[Host],
    taken: set[str],
    path: FieldPath,
    choices: Collection[str],
    advice: str = "",
) -> None:
    """Check that the name of no host is taken, or a choice that flows have."""
    for number, host in enumerate(hosts):
        field = (*path, number, "name")
        if host.name in choices:
            raise wrong(field, host.name, "flows use this word for a choice")
        if host.name in taken:
            raise wrong(field, host.name, f"another host has that name{advice}")
        taken.add(host.name)


def _plans(
    hosts: Iterable[Host], path: FieldPath, gateway: int = 0, suffix: str = ""
) -> list[Part]:
    """Return the plans of hosts behind a gateway; ``path`` is the field of their list."""
    plans = [lower(host, (*path, number)) for number, host in enumerate(hosts)]
    for plan in plans:
        plan |= {"name": f"{plan['name']}{suffix}", "gateway": gateway}
    return plans


def host_plan(profile: ProfileName, written: Tcp, path: FieldPath) -> Part:
    """Return the plan of a TCP host with ``written`` settings, whose field is ``path``.

    Raises:
        PlanningError: the MSS is larger than a packet.
    """
    tcp = written.over(PROFILES[profile])
    plan = lower(tcp, path)
    if plan["mss_bytes"] > MAX_MSS_BYTES:
        limit = f"must be at most {MAX_MSS_BYTES} B (one IP packet)"
        raise wrong((*path, "mss"), tcp.mss, limit)
    if written.hystart is None and tcp.stack == "linux":
        # As in Linux, with CUBIC only.
        plan["hystart"] = tcp.congestion_control == "cubic"
    if tcp.receive_buffer_initial is None:
        plan["receive_buffer_initial_bytes"] = plan["receive_buffer_bytes"]
    elif written.receive_buffer_initial is None:
        # A maximum from the scenario also bounds the initial size from the profile.
        plan["receive_buffer_initial_bytes"] = min(
            plan["receive_buffer_initial_bytes"], plan["receive_buffer_bytes"]
        )
    return plan


def windows_bytes(tcp: Mapping[str, Any]) -> dict[str, int]:
    """Return the windows that limit the bytes in flight, by the field of TCP settings of a plan.

    If the receive buffer counts memory, the share of it that is window is that of the payload in
    the memory of a full segment (`crates/core/src/tcp/receive_buffer.rs`, docs/model/tcp.md).
    """
    window: int = tcp["receive_buffer_bytes"]
    if tcp["receive_buffer_counts"] == "memory":
        payload: int = tcp["mss_bytes"] - (TIMESTAMPS_BYTES if tcp["timestamps"] else 0)
        data = -(-(payload + _HEADROOM_BYTES) // _CACHE_LINE_BYTES) * _CACHE_LINE_BYTES
        memory = (1 << (data + _SHARED_INFO_BYTES - 1).bit_length()) + _SK_BUFF_BYTES
        window = window * (256 * payload // memory) // 256
    windows = {"receive_buffer": window, "send_buffer": tcp["send_buffer_bytes"]}
    return windows if tcp["window_scaling"] else {**windows, "window_scaling: false": 65_535}
