"""The tunnel in the configuration of a gateway: its plan, its mistakes, its unit."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from conftest import Program

from bentpipe.gateway import read_plan

pytestmark = pytest.mark.system

KEY = "mS+Bmio9RMLzbfkF3rtv7VzqAjPAdPAqKVszVrImPVh1IngW"
OTHER_KEY = "pI99PpQ3qmElyATo8854mEuxKpM03UhyudTlOhEfHlKe2bB+"
PEER = f"""\
[[tunnel.peers]]
name = "terminal"
public_key = "{KEY}"
networks = ["10.3.0.0/24"]
"""
SMALLEST = f"""\
name = "hub"
functions = ["tunnel"]
[tunnel]
addresses = ["10.99.0.1/24"]
private_key = "hub.key"
titration = "immediate"
{PEER}"""
ALL = f"""\
name = "hub"
functions = ["tunnel", "pep"]
lan.interfaces = ["lan0"]
link.interfaces = ["bp7"]

[tunnel]
device = "bp7"
addresses = ["10.99.0.1/24", "fd99::1/64"]
listen = "[::]:4000"
private_key = "/etc/bentpipe/key"
outer_mtu = 1400
round_trip = "500 ms"
packet_overhead = "20 B"
redundancy = "10 %"
window = 64
rate = "16 Mbit/s"
queue = "120 kB"

[[tunnel.peers]]
name = "terminal"
public_key = "{KEY}"
endpoint = "terminal.example.org:4001"
networks = ["10.3.0.0/24", "fd03::/64"]
keepalive = "20 s"
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "hub.toml"
    path.write_text(text)
    return path


def plan(folder: Path, text: str) -> Any:
    return read_plan(written(folder, text))["plan"]


def test_a_configuration_becomes_the_plan_of_the_daemon(tmp_path: Path) -> None:
    """Given both functions, expect hold times from the round trip and a threshold of the queue."""
    made = plan(tmp_path, ALL)
    assert made["pep"]["link"]["interfaces"] == ["bp7"]
    assert made["tunnel"] == {
        "device": "bp7",
        "addresses": ["10.99.0.1/24", "fd99::1/64"],
        "listen_address": "::",
        "listen_port": 4_000,
        "private_key": "/etc/bentpipe/key",
        "outer_mtu_bytes": 1_400,
        "fail": "closed",
        "peers": [
            {
                "name": "terminal",
                "public_key": KEY,
                "endpoint": "terminal.example.org:4001",
                "keepalive_ns": 20_000_000_000,
                "networks": ["10.3.0.0/24", "fd03::/64"],
            }
        ],
        "settings": {
            "classifier": {"packet_size_bytes": 100, "classes": None, "young_bytes": 0},
            "redundancy": {"kind": "fixed", "redundancy_ppm": 100_000, "window_symbols": 64},
            "overflow": None,
            "titration": {
                "kind": "titrated",
                "threshold_bytes": 12_000,
                "hold_time_ns": 500_000_000,
            },
            "hold_bytes": 100_000,
            "queue": {
                "rate_bps": 16_000_000,
                "capacity_bytes": 120_000,
                "packet_overhead_bytes": 20,
            },
            "memory_symbols": 1_024,
            "symbol_size_bytes": 1_432,
            "density": 15,
            "feedback_interval_ns": 100_000_000,
            "delivery": {"kind": "ordered", "hold_time_ns": 100_000_000, "pace_bps": None},
            "congestion_signal": {"kind": "hidden"},
        },
    }


def test_a_tunnel_alone_has_no_sides_and_its_defaults(tmp_path: Path) -> None:
    made = plan(tmp_path, SMALLEST)
    tunnel = made["tunnel"]
    assert made["pep"] is None
    assert (tunnel["device"], tunnel["listen_address"], tunnel["listen_port"]) == (
        "bp0",
        None,
        51_871,
    )
    assert tunnel["private_key"] == str(tmp_path / "hub.key")
    assert (tunnel["outer_mtu_bytes"], tunnel["peers"][0]["endpoint"]) == (None, None)


def changed(old: str, new: str) -> str:
    assert old in SMALLEST
    return SMALLEST.replace(old, new)


def private_key() -> str:
    """Return the text of a private key: its bytes, and the beginning of a digest."""
    key = bytes(range(32))
    checksum = hashlib.sha256(b"bentpipe private key" + key).digest()[:4]
    return base64.b64encode(key + checksum).decode()


def test_networks_and_addresses_may_lack_a_prefix(tmp_path: Path) -> None:
    """Given hosts and a mask, expect networks and addresses with prefixes."""
    text = SMALLEST.replace('"10.3.0.0/24"', '"10.3.0.5", "10.4.0.0/255.255.0.0"')
    made = plan(tmp_path, text.replace('"10.99.0.1/24"', '"10.99.0.1"'))["tunnel"]
    assert made["peers"][0]["networks"] == ["10.3.0.5/32", "10.4.0.0/16"]
    assert made["addresses"] == ["10.99.0.1/32"]


ERRORS = [
    (changed('["tunnel"]', '["pep"]'), "read settings of tunnel, which is not in functions"),
    (changed('["tunnel"]', '["tunnel", "tunnel"]'), "read tunnel twice in functions"),
    ('name = "hub"\nfunctions = ["tunnel"]\n', "read tunnel in functions and no [tunnel]"),
    (changed('["tunnel"]', '["tunnel", "pep"]'), "read pep in functions and no [lan]; name its"),
    (changed("[tunnel]\n", 'lan.interfaces = ["a"]\n[tunnel]\n'), "read [lan] without pep in"),
    (
        changed('titration = "immediate"', ""),
        "tunnel: read titration titrated without rate; a gateway cannot see the link: write its",
    ),
    (
        changed('titration = "immediate"', 'rate = "1 Mbit/s"'),
        "tunnel: read titration titrated without queue",
    ),
    (changed('"10.99.0.1/24"', '"10.99.0.300"'), 'tunnel.addresses.0: read "10.99.0.300"; expect'),
    (
        changed('"10.99.0.1/24"', '"fe80::1%lan0/64"'),
        'tunnel.addresses.0: read "fe80::1%lan0/64"; exp',
    ),
    (changed('["10.99.0.1/24"]', "[]"), "tunnel.addresses: is empty"),
    (
        changed('"10.3.0.0/24"', '"10.3.0.1/24"'),
        'tunnel.peers.0.networks.0: read "10.3.0.1/24"; expected a network, whose '
        'host bits are zero; did you mean "10.3.0.0/24"?',
    ),
    (changed("[tunnel]\n", "[tunnel]\nlisten = 0\n"), "tunnel.listen: read 0; expected a port"),
    (
        changed("[tunnel]\n", '[tunnel]\nlisten = "hub:5"\n'),
        'tunnel.listen: read "hub:5"; expected a port from 1 to 65535, or an address with one',
    ),
    (changed("[tunnel]\n", '[tunnel]\ndevice = "a/b"\n'), 'tunnel.device: read "a/b"; expected'),
    (changed("[tunnel]\n", "[tunnel]\nouter_mtu = 575\n"), "tunnel.outer_mtu: read 575; must be"),
    (changed('name = "terminal"', 'name = "a b"'), "tunnel.peers.0.name: read"),
    (changed(KEY, KEY[1:]), "tunnel.peers.0.public_key: read a text of 47 characters; expected"),
    (
        changed(KEY, KEY.replace("mS", "nS")),
        f'public_key: read "{KEY.replace("mS", "nS")}"; its checksum is wrong: a character differs',
    ),
    (
        changed(PEER, PEER + 'keepalive = "1 us"\n'),
        "tunnel.peers.0: read keepalive 1 us; at least 1 s, such as 25 s",
    ),
    (
        changed(PEER, PEER + PEER.replace('"terminal"', '"other"').replace("10.3", "10.4")),
        "tunnel: read the same public_key at terminal and other; each gateway has the key that",
    ),
    (changed(KEY, private_key()), "public_key: read a private key; expected the public key that"),
    (
        changed(PEER, PEER + 'endpoint = "terminal"\n'),
        'tunnel.peers.0.endpoint: read "terminal"; expected a name or an address with a port',
    ),
    (changed(PEER, PEER + PEER), "tunnel: read two peers named terminal"),
    (
        changed(PEER, PEER + PEER.replace("terminal", "other").replace(KEY, OTHER_KEY)),
        "tunnel: read the network 10.3.0.0/24 at terminal and other; it is behind one peer",
    ),
    (
        changed('titration = "immediate"', 'titration = "immediate"\nfeedback_interval = "none"'),
        'tunnel.redundancy: read "adaptive"; the other end reports no loss',
    ),
    (changed('"immediate"', '"immediat"'), 'tunnel.titration: read "immediat"; allowed: '),
    (
        changed("[tunnel]\n", '[tunnel]\nfail = "opn"\n'),
        'tunnel.fail: read "opn"; allowed: closed, open',
    ),
]


@pytest.mark.parametrize(("text", "said"), ERRORS, ids=[said[:50] for _, said in ERRORS])
def test_a_wrong_tunnel_is_one_message_and_code_2(
    text: str, said: str, tmp_path: Path, bentpipe: Program
) -> None:
    path = written(tmp_path, text)
    called = bentpipe("gateway", "check", path)
    assert (called.code, called.out) == (2, "")
    first = called.err.splitlines()[0]
    assert first.startswith(f"bentpipe: {path}")
    assert said in first


def test_a_key_is_written_once_and_is_its_owners(tmp_path: Path, bentpipe: Program) -> None:
    """Given no file, expect a private key in it, and its public key printed; then a refusal."""
    path = tmp_path / "key"
    called = bentpipe("gateway", "keygen", path)
    assert (called.code, called.err, len(called.out)) == (0, "", 49)
    private = path.read_text()
    assert (path.stat().st_mode & 0o777, len(private), private != called.out) == (0o600, 49, True)
    again = bentpipe("gateway", "keygen", path)
    assert (again.code, again.out, path.read_text()) == (2, "", private)
    assert again.err == (
        f"bentpipe: {path}: it exists, and is never overwritten; to fix it: another name, or "
        "remove it\n"
    )
    other = tmp_path / "other"
    read = json.loads(bentpipe("gateway", "keygen", other, "--json").out)
    assert (read["private_key"], len(read["public_key"])) == (str(other), 48)
    nowhere = bentpipe("gateway", "keygen", tmp_path / "none" / "key")
    assert nowhere.code == 2
    assert "No such file or directory" in nowhere.err


def test_the_unit_of_a_closed_tunnel_opens_nothing_after_a_kill(
    tmp_path: Path, bentpipe: Program
) -> None:
    """Given a tunnel that fails closed, or open, expect `down` after a kill in the second alone."""
    closed = bentpipe("gateway", "unit", written(tmp_path, SMALLEST)).out
    assert "ExecStopPost=" not in closed
    assert "\nRuntimeDirectoryPreserve=yes\n" in closed
    text = changed("[tunnel]\n", '[tunnel]\nfail = "open"\n')
    fails_open = bentpipe("gateway", "unit", written(tmp_path, text)).out
    assert "\nExecStopPost=-" in fails_open
    assert "RuntimeDirectoryPreserve" not in fails_open


def test_the_unit_may_use_the_device_and_reload(tmp_path: Path, bentpipe: Program) -> None:
    path = written(tmp_path, SMALLEST)
    lines = bentpipe("gateway", "unit", path).out.splitlines()
    for line in ("DevicePolicy=closed", "DeviceAllow=/dev/net/tun rw", "NoNewPrivileges=yes"):
        assert line in lines
    assert not any(line.startswith(("PrivateDevices", "LimitNOFILE")) for line in lines)
    (reload,) = (line for line in lines if line.startswith("ExecReload="))
    assert reload.endswith(f"bentpipe-gate reload {path}")
    both = bentpipe("gateway", "unit", written(tmp_path, ALL)).out
    assert "LimitNOFILE=" in both
    assert "PrivateDevices" not in both
