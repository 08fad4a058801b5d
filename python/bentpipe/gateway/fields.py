"""What a gateway's configuration accepts: fields that no scenario has, a kernel's TCP settings."""

from __future__ import annotations

import base64
import hashlib
import pwd
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from ipaddress import ip_address, ip_interface, ip_network
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

from bentpipe.gateway.kernel_tcp import KERNEL_TCP, KernelSetting, setting_text
from bentpipe.plan.hosts import host_plan
from bentpipe.plan.lower import field_name
from bentpipe.scenario.document import FieldPath
from bentpipe.scenario.gateways import Pep
from bentpipe.scenario.record import refusal
from bentpipe.scenario.tcp import PROFILES, Tcp
from bentpipe.text import shown
from bentpipe.units import TCP_IP_BYTES, value_of

_PORTS: Final = 1 << 16
_PORT_RANGE: Final = re.compile(r"\d{1,5}(-\d{1,5})?", re.ASCII)
# As `tunnel/keys.rs`: a key and the beginning of a digest.
_KEY_BYTES: Final = 32
_KEY_CHARACTERS: Final = 48
_HOST: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,252}[A-Za-z0-9])?", re.ASCII)


def _text(read: Callable[[str], str], expected: str = "") -> BeforeValidator:
    """Return the check of a text that ``read`` returns as the daemon reads it, or refuses.

    It refuses by a message of its own, or by another ValueError: then one with ``expected``.
    """

    def check(text: object) -> object:
        if not isinstance(text, str):
            return text
        try:
            return read(text)
        except PydanticCustomError:
            raise
        except ValueError:
            raise refusal(f"read {shown(text)}; {expected}") from None

    return BeforeValidator(check)


def _matching(pattern: str, expected: str) -> BeforeValidator:
    def read(text: str) -> str:
        if re.fullmatch(pattern, text, re.ASCII) is None:
            raise ValueError(text)
        return text

    return _text(read, expected)


def split_port(text: str) -> tuple[str, int]:
    """Return the host and the port of ``host:port``, without brackets.

    Raises:
        ValueError: it is something else.
    """
    host, _, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    bracketed = host.startswith("[") and host.endswith("]")
    is_port = port.isascii() and port.isdigit() and len(port) < len(str(_PORTS)) + 1
    if not is_port or not 0 < int(port) < _PORTS or bracketed != (":" in bare):
        raise ValueError(text)
    return bare, int(port)


def port_range(written: int | str) -> list[int]:
    """Return the first and the last port of a port or a range of ports."""
    first, _, last = str(written).partition("-")
    return [int(first), int(last or first)]


def _ports(value: object) -> object:
    with suppress(ValueError):
        is_text = isinstance(value, (int, str)) and not isinstance(value, bool)
        if is_text and _PORT_RANGE.fullmatch(str(value)):
            ports = port_range(str(value))
            if 0 < ports[0] <= ports[1] < _PORTS:
                return value
    raise refusal(
        f"read {shown(value)}; expected a port from 1 to {_PORTS - 1}, or a range of them, such as "
        '"8000-8099"'
    )


def _loopback(text: str) -> str:
    if not ip_address(split_port(text)[0]).is_loopback:
        raise ValueError(text)
    return text


def _endpoint(text: str) -> str:
    host, _ = split_port(text)
    if not _HOST.fullmatch(host):
        ip_address(host)
    return text


def _listen(value: object) -> object:
    with suppress(ValueError):
        if isinstance(value, str):
            ip_address(split_port(value)[0])
            return value
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value < _PORTS:
        return value
    raise refusal(
        f"read {shown(value)}; expected a port from 1 to {_PORTS - 1}, or an address with one, "
        'such as "192.0.2.1:51871"'
    )


def _network(text: str) -> str:
    near = ""
    try:
        network = ip_network(text)
        # No route or rule has the zone of an address.
        if "%" not in text:
            return str(network)
    except ValueError:
        with suppress(ValueError):
            near = f'; did you mean "{ip_interface(text).network}"?'
    raise refusal(f'read {shown(text)}; expected a network, such as "10.1.0.0/16"{near}')


def _interface_address(text: str) -> str:
    if "%" in text:
        raise ValueError(text)
    return str(ip_interface(text))


def _public_key(text: str) -> str:
    try:
        decoded = base64.b64decode(text, validate=True)
    except ValueError:
        decoded = b""
    key, checksum = decoded[:_KEY_BYTES], decoded[_KEY_BYTES:]
    if len(text) != _KEY_CHARACTERS or not decoded:
        raise refusal(
            f"read a text of {len(text)} characters; expected the {_KEY_CHARACTERS} letters, "
            "digits, + and / that bentpipe gateway keygen printed"
        )
    if checksum == _checksum("private", key):
        # Not shown: it is a secret.
        raise refusal("read a private key; expected the public key that keygen printed")
    if checksum != _checksum("public", key):
        raise refusal(f"read {shown(text)}; its checksum is wrong: a character differs")
    return text


def _checksum(kind: str, key: bytes) -> bytes:
    digest = hashlib.sha256(f"bentpipe {kind} key".encode() + key).digest()
    return digest[: _KEY_CHARACTERS // 4 * 3 - _KEY_BYTES]


def placeholder_key(name: str) -> str:
    """Return a public key that is valid, and whose private key nobody has: a hash is the point."""
    key = hashlib.sha256(f"bentpipe placeholder {name}".encode()).digest()
    return base64.b64encode(key + _checksum("public", key)).decode()


def _user(name: str) -> str:
    try:
        number = pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError):
        raise refusal(f"read {shown(name)}; this machine has no such user") from None
    if number == 0:
        raise refusal(f"read {shown(name)}; must be a user without privileges")
    return name


# A name becomes part of that of a table of nftables, and of a folder.
Name = Annotated[
    str,
    _matching(
        "[A-Za-z0-9][A-Za-z0-9_-]{0,31}",
        'allowed are up to 32 letters, digits, "-" and "_", the first a letter or a digit',
    ),
]
# It becomes a label of metrics.
PeerName = Annotated[
    str,
    _matching(
        "[A-Za-z0-9][A-Za-z0-9_.-]{0,31}",
        'allowed are up to 32 letters, digits, "-", "_" and ".", the first a letter or a digit',
    ),
]
# IFNAMSIZ is 16 with the final zero. Linux allows more characters, quotes among them.
Interface = Annotated[
    str,
    _matching(
        r"(?!\.\.?$)[A-Za-z0-9_.][A-Za-z0-9_.@+-]{0,14}",
        "expected the name of an interface, such as eth0",
    ),
]
Loopback = Annotated[
    str,
    _text(
        _loopback,
        'expected an address of this host with a port, such as "127.0.0.1:9464" or "[::1]:9464": '
        "a proxy can pass it on to others",
    ),
]
Endpoint = Annotated[
    str,
    _text(
        _endpoint,
        'expected a name or an address with a port, such as "hub.example.org:51871", '
        '"192.0.2.1:51871" or "[2001:db8::1]:51871"',
    ),
]
InterfaceAddress = Annotated[
    str,
    _text(
        _interface_address,
        'expected an address with the length of its prefix, such as "10.99.0.1/24"',
    ),
]
Network = Annotated[str, _text(_network)]
PublicKey = Annotated[str, _text(_public_key)]
Ports = Annotated[int | str, BeforeValidator(_ports)]
Listen = Annotated[int | str, BeforeValidator(_listen)]
User = Annotated[str, _text(_user)]


# --- TCP settings that are refused ----------------------------------------------------------------

# setsockopt(2) takes an int, and the kernel doubles it (socket(7), SO_SNDBUF).
_SOCKET_BUFFER_BYTES_MAX: Final = (2**31 - 1) // 2
_U32_MAX: Final = 2**32 - 1
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


def refused_settings(pep: Pep) -> Iterator[tuple[FieldPath, str]]:
    """Yield the settings that a PEP on a router cannot have: the path in it, and the reason."""
    if pep.profile != "linux":
        text = "a daemon has the TCP of its kernel: leave it out"
        yield ("profile",), f"read {shown(pep.profile)}; {text}"
    if pep.notsent_lowat is not None and value_of(pep.notsent_lowat) > _U32_MAX:
        yield ("notsent_lowat",), f"read {shown(pep.notsent_lowat)}; must be at most {_U32_MAX} B"
    for name, tcp in (("lan_tcp", pep.lan_tcp), ("link_tcp", pep.link_tcp)):
        for field, text in _refused_leg(tcp):
            yield (name, field), text


def receive_buffer_bytes(tcp: Tcp) -> int | None:
    """Return the size to set, which the kernel doubles; None to let the kernel tune it."""
    if tcp.receive_buffer is None and tcp.receive_buffer_counts is None:
        return None
    whole = tcp.over(PROFILES["linux"])
    size_bytes = value_of(whole.receive_buffer)
    return size_bytes if whole.receive_buffer_counts == "window" else max(size_bytes // 2, 1)


def _refused_leg(tcp: Tcp) -> Iterator[tuple[str, str]]:
    settings = {field_name(Tcp, name): setting for name, setting in KERNEL_TCP.items()}
    for field in Tcp.model_fields:
        read, kernels = getattr(tcp, field), getattr(PROFILES["linux"], field)
        if field == "receive_buffer_initial" and receive_buffer_bytes(tcp) is not None:
            kernels = tcp.over(PROFILES["linux"]).receive_buffer
        if read is None or _same(read, kernels):
            continue
        if field == "hystart" and tcp.congestion_control not in (None, "cubic"):
            # Only cubic has it.
            continue
        setting = settings.get(field, _FIXED)
        if setting.gateway != "connection":
            yield field, f"read {shown(read)}; {_reason(field, setting, read, kernels)}"
        elif field.endswith("_buffer") and value_of(read) > _SOCKET_BUFFER_BYTES_MAX:
            limit = f"must be at most {_SOCKET_BUFFER_BYTES_MAX} B (socket(7))"
            yield field, f"read {shown(read)}; {limit}"


def _reason(field: str, setting: KernelSetting, read: Any, kernels: Any) -> str:
    if field == "receive_buffer_initial":
        return "a socket with a buffer of its own does not tune it: leave it out"
    if setting.sysctls:
        sysctls = f"net.ipv4.{' and '.join(setting.sysctls)}"
        return f"the kernel has one for all connections: leave it out, and set {sysctls} by sysctl"
    if setting.route:
        value = value_of(read) if field == "mss" else str(read).replace(" ", "")
        change = f"ip route change DESTINATION ... {setting.route} {value}"
        return f"the kernel has one for each route: leave it out, and run {change}"
    return f"the kernel's is {shown(kernels)} and cannot be set for a connection: leave it out"


def _same(read: Any, kernels: Any) -> bool:
    if isinstance(read, str) and hasattr(read, "value"):
        return kernels is not None and value_of(read) == value_of(kernels)
    return bool(read == kernels)
