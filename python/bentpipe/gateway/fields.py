"""Fields of a gateway's configuration that a scenario does not have: names, addresses, ports."""

from __future__ import annotations

import base64
import hashlib
import re
from ipaddress import ip_address, ip_interface, ip_network
from typing import Annotated, Final

from pydantic import BeforeValidator

from bentpipe.scenario.record import refusal
from bentpipe.text import shown

# It becomes part of the name of a table of nftables, and of a folder.
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}", re.ASCII)
# IFNAMSIZ is 16 with the final zero. Linux allows more characters, quotes among them.
_INTERFACE: Final = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.@+-]{0,14}", re.ASCII)
# It becomes a label of metrics.
_PEER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,31}", re.ASCII)
_HOST: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,252}[A-Za-z0-9])?", re.ASCII)
_PORTS: Final = 1 << 16
# As `tunnel/keys.rs`: a key and the beginning of a digest.
_KEY_BYTES: Final = 32
_KEY_CHARACTERS: Final = 48


def checked_name(name: object) -> object:
    """Return the name if it is a valid one of a gateway, or raise the error of its field."""
    if isinstance(name, str) and _NAME.fullmatch(name) is None:
        raise refusal(
            f'read {shown(name)}; allowed are up to 32 letters, digits, "-" and "_", the first a '
            "letter or a digit"
        )
    return name


def split_port(text: str) -> tuple[str, int] | None:
    """Return the host and the port of ``host:port``, without brackets; None if it is neither."""
    host, _, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    bracketed = host.startswith("[") and host.endswith("]")
    is_port = port.isascii() and port.isdigit() and len(port) < len(str(_PORTS)) + 1
    if not is_port or not 0 < int(port) < _PORTS or bracketed != (":" in bare):
        return None
    return bare, int(port)


def is_address(text: str) -> bool:
    """Return whether a text is an address of IPv4 or IPv6."""
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _interface(name: object) -> object:
    if isinstance(name, str) and (_INTERFACE.fullmatch(name) is None or name in {".", ".."}):
        raise refusal(f"read {shown(name)}; expected the name of an interface, such as eth0")
    return name


def _loopback(text: object) -> object:
    if isinstance(text, str):
        found = split_port(text)
        if found is None or not is_address(found[0]) or not ip_address(found[0]).is_loopback:
            raise refusal(
                f"read {shown(text)}; expected an address of this host with a port, such as "
                '"127.0.0.1:9464" or "[::1]:9464": a proxy can pass it on to others'
            )
    return text


def _endpoint(text: object) -> object:
    if isinstance(text, str):
        found = split_port(text)
        if found is None or not (is_address(found[0]) or _HOST.fullmatch(found[0])):
            raise refusal(
                f"read {shown(text)}; expected a name or an address with a port, such as "
                '"hub.example.org:51871", "192.0.2.1:51871" or "[2001:db8::1]:51871"'
            )
    return text


def _peer_name(name: object) -> object:
    if isinstance(name, str) and _PEER.fullmatch(name) is None:
        raise refusal(
            f'read {shown(name)}; allowed are up to 32 letters, digits, "-", "_" and ".", the '
            "first a letter or a digit"
        )
    return name


def _public_key(text: object) -> object:
    if not isinstance(text, str):
        return text
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


def _address(text: object) -> object:
    if isinstance(text, str):
        try:
            return str(ip_interface(text))
        except ValueError:
            raise refusal(
                f"read {shown(text)}; expected an address with the length of its prefix, such as "
                '"10.99.0.1/24"'
            ) from None
    return text


def _network(text: object) -> object:
    if isinstance(text, str):
        try:
            return str(ip_network(text))
        except ValueError:
            try:
                near = f'; did you mean "{ip_interface(text).network}"?'
            except ValueError:
                near = ""
            raise refusal(
                f'read {shown(text)}; expected a network, such as "10.1.0.0/16"{near}'
            ) from None
    return text


def _listen(value: object) -> object:
    is_port = isinstance(value, int) and not isinstance(value, bool) and 0 < value < _PORTS
    found = split_port(value) if isinstance(value, str) else None
    if is_port or (found is not None and is_address(found[0])):
        return value
    raise refusal(
        f"read {shown(value)}; expected a port from 1 to {_PORTS - 1}, or an address with one, "
        'such as "192.0.2.1:51871"'
    )


Interface = Annotated[str, BeforeValidator(_interface)]
Loopback = Annotated[str, BeforeValidator(_loopback)]
PeerName = Annotated[str, BeforeValidator(_peer_name)]
PublicKey = Annotated[str, BeforeValidator(_public_key)]
Endpoint = Annotated[str, BeforeValidator(_endpoint)]
InterfaceAddress = Annotated[str, BeforeValidator(_address)]
Network = Annotated[str, BeforeValidator(_network)]
Listen = Annotated[int | str, BeforeValidator(_listen)]
