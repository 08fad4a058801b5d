"""The configuration file of a gateway's daemon (TOML), with the names and units of a scenario."""

from __future__ import annotations

import pwd
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from bentpipe import units
from bentpipe.errors import ScenarioError
from bentpipe.gateway.fields import Interface, Loopback, checked_name
from bentpipe.gateway.plan import MARK, ROUTE_TABLE, mark_count
from bentpipe.gateway.tunnel_config import DaemonTunnel
from bentpipe.scenario.document import Document, file_error, file_text
from bentpipe.scenario.gateways import Pep
from bentpipe.scenario.problems import all_problems
from bentpipe.scenario.record import Duration, PositiveDuration, Record, refusal
from bentpipe.text import counted, shown

# The daemon hands over its sockets in one message.
_INTERFACES_MAX: Final = 26
_TOML_LINE: Final = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")

_WORKERS_MAX: Final = 64

FunctionName = Literal["pep", "tunnel"]
_FUNCTIONS: Final[tuple[FunctionName, ...]] = ("pep", "tunnel")


def _user(name: object) -> object:
    if isinstance(name, str):
        try:
            number = pwd.getpwnam(name).pw_uid
        except (KeyError, ValueError):
            raise refusal(f"read {shown(name)}; this machine has no such user") from None
        if number == 0:
            raise refusal(f"read {shown(name)}; must be a user without privileges")
    return name


class Side(Record):
    """One side of the gateway."""

    interfaces: Annotated[tuple[Interface, ...], Field(strict=False, min_length=1)]
    """The interfaces on this side. Connections that are opened on one of them are split."""


class DaemonPep(Pep):
    """The PEP of a scenario, with what only a real one needs."""

    connect_limit: PositiveDuration = units.duration("30 s")
    """How long a server may take to answer. After it, the next SYN of the client starts again."""
    idle_limit: Duration = units.duration("124 min")
    """The longest time without data in either direction, after which a connection is reset; ``0 s``
    for no limit. By default what RFC 5382 (REQ-5) requires of a NAT at least."""
    keep_alive: Duration = units.duration("10 min")
    """The time without data after which a peer is probed (keep-alive), and a connection whose peer
    is gone is reset; ``0 s`` for never."""
    threads: Annotated[int, Field(ge=1, le=256)] | None = None
    """The threads of each worker; by default one for each core, at most 4."""
    workers: Annotated[int, Field(ge=1, le=_WORKERS_MAX)] = 1
    """The processes that relay. Each may have as many open files as one process may."""


class Metrics(Record):
    """The server of metrics, for Prometheus."""

    listen: Loopback
    """The address and the port, on the loopback interface, such as ``127.0.0.1:9464``."""


class GatewayConfig(Record):
    """A gateway on a real router: its interfaces, and its functions in order."""

    name: Annotated[str, BeforeValidator(checked_name)]
    """The name of the gateway."""
    functions: Annotated[tuple[FunctionName, ...], Field(strict=False, min_length=1)] = ("pep",)
    """Its functions: ``pep`` and ``tunnel``, in any order. What a packet passes first is decided by
    the routes and the interfaces."""
    lan: Side | None = None
    """The side of the hosts behind the gateway, for the PEP."""
    link: Side | None = None
    """The side of the link, for the PEP; it may be the device of the tunnel."""
    pep: DaemonPep = Field(default_factory=DaemonPep)
    """The PEP."""
    tunnel: DaemonTunnel | None = None
    """The tunnel."""
    metrics: Metrics | None = None
    """Its server of metrics; none by default."""
    user: Annotated[str, BeforeValidator(_user)] = "nobody"
    """The user as whom traffic is carried."""
    mark: Annotated[int, Field(ge=2, le=2**32 - 2)] = MARK
    """The first mark of packets for the relay: an even number, with 2 workers a multiple of 4, with
    4 of 8 and so on. The numbers up to the next multiple are used, too."""
    route_table: Annotated[int, Field(ge=256, le=2**32 - 1)] = ROUTE_TABLE
    """The number of the routing table for these packets."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        for function in _FUNCTIONS:
            if self.functions.count(function) > 1:
                raise refusal(f"read {function} twice in functions; each is allowed once")
            if function in self.model_fields_set and function not in self.functions:
                raise refusal(f"read settings of {function}, which is not in functions")
        if self.has_tunnel != (self.tunnel is not None):
            raise refusal("read tunnel in functions and no [tunnel]; it has no defaults")
        for side in ("lan", "link"):
            if self.has_pep and getattr(self, side) is None:
                raise refusal(f"read pep in functions and no [{side}]; name its interfaces")
            if not self.has_pep and getattr(self, side) is not None:
                raise refusal(f"read [{side}] without pep in functions; only a PEP has sides")
        self._check_pep()
        return self

    def _check_pep(self) -> None:
        listed = self.interfaces
        for name in listed:
            if listed.count(name) > 1:
                raise refusal(f'read the interface "{name}" twice; each is on one side')
        if len(listed) > _INTERFACES_MAX:
            raise refusal(f"read {len(listed)} interfaces; at most {_INTERFACES_MAX} are allowed")
        multiple = mark_count(self.pep.workers)
        if self.mark % multiple:
            workers = counted(self.pep.workers, "worker")
            raise refusal(
                f"read mark {self.mark}; must be a multiple of {multiple} for {workers}, which "
                "use the marks up to the next one"
            )

    @property
    def has_pep(self) -> bool:
        """Whether it splits TCP connections."""
        return "pep" in self.functions

    @property
    def has_tunnel(self) -> bool:
        """Whether it has a tunnel."""
        return "tunnel" in self.functions

    @property
    def interfaces(self) -> list[str]:
        """The interfaces of the PEP, on both sides."""
        sides = (self.lan, self.link)
        return [name for side in sides if side is not None for name in side.interfaces]

    def user_and_group(self) -> tuple[int, int]:
        """Return the numbers of the user, and of its group."""
        found = pwd.getpwnam(self.user)
        return found.pw_uid, found.pw_gid


def read_config(path: Path) -> tuple[GatewayConfig, Document]:
    """Return the configuration in a TOML file, and the document for messages about its fields.

    Raises:
        ScenarioError: it cannot be read, is not TOML, or is no configuration; the message names the
            file, the line or the field, what was read and what is allowed.
    """
    document = _document(path)
    try:
        return _validate(document), document
    except ValidationError as error:
        raise ScenarioError(*all_problems(error, document, _validate)) from None


def _validate(document: Document) -> GatewayConfig:
    return GatewayConfig.model_validate(document.data)


def _document(path: Path) -> Document:
    source = str(path)
    try:
        data = tomllib.loads(file_text(path, "the configuration of a gateway (TOML)"))
    except tomllib.TOMLDecodeError as error:
        text = str(error)
        found = _TOML_LINE.search(text)
        line = int(found[1]) if found and found[1] else None
        raise file_error(source, f"TOML syntax: {_TOML_LINE.sub('', text)}", line) from None
    except RecursionError:
        raise file_error(source, "is nested too deeply") from None
    return Document(data=data, source=source)


def described(config: GatewayConfig) -> dict[str, Any]:
    """Return what messages and the status say of a configuration."""
    found: dict[str, Any] = {"name": config.name, "functions": list(config.functions)}
    if config.lan is not None and config.link is not None:
        found["lan"], found["link"] = list(config.lan.interfaces), list(config.link.interfaces)
        found["connections"] = config.pep.connections
    if config.tunnel is not None:
        found["device"] = config.tunnel.device
        found["peers"] = [peer.name for peer in config.tunnel.peers]
    return found
