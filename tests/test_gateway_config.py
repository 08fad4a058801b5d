"""The configuration of a gateway, and its unit."""

from __future__ import annotations

import pwd
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import Program

from bentpipe.gateway import read_plan

pytestmark = pytest.mark.system

SMALLEST = 'name = "sat"\nlan.interfaces = ["lan0"]\nlink.interfaces = ["sat0"]\n'
ALL = """\
name = "sat"
functions = ["pep"]
user = "nobody"
mark = 1024
route_table = 300

[lan]
interfaces = ["lan0", "lan1.7"]

[link]
interfaces = ["sat0"]

[pep]
buffer = "128 KiB"
notsent_lowat = "16 KiB"
connections = 2000
early_accept = true
connect_limit = "10 s"
idle_limit = "0 s"
keep_alive = "0 s"
threads = 2
workers = 2

[pep.link_tcp]
congestion_control = "reno"
send_buffer = "1 MB"

[pep.except]
networks = ["10.1.0.0/17", "2001:db8::/32", "10.1.128.0/17", "10.1.2.0/24"]
ports = [443, "8000-8099", 22, "8050-9000", 23]

[pep.only]
networks = ["10.0.0.0/8"]
interfaces = ["wg0", "lan0", "wg0"]

[metrics]
listen = "[::1]:9464"
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "sat.toml"
    path.write_text(text)
    return path


def test_a_configuration_becomes_the_plan_of_the_daemon(tmp_path: Path) -> None:
    path = written(tmp_path, ALL)
    plan = read_plan(path)["plan"]
    folder = Path(plan["state_file"]).parent
    assert folder.name == "sat"
    leg: dict[str, Any] = {
        "congestion_control": None,
        "send_buffer_bytes": None,
        "receive_buffer_bytes": None,
        "not_sent_bytes": 16_384,
    }
    link = leg | {"congestion_control": "reno", "send_buffer_bytes": 1_000_000}
    user = pwd.getpwnam("nobody")
    assert plan == {
        "name": "bentpipe-sat",
        "state_file": str(folder / "state.json"),
        "control_file": str(folder / "control"),
        "files": [str(folder / "log"), str(folder / "gateway.json")],
        "user": user.pw_uid,
        "group": user.pw_gid,
        "metrics_listen": "[::1]:9464",
        "pep": {
            "mark": 1_024,
            "route_table": 300,
            "workers": 2,
            "threads": 2,
            "connections": 2_000,
            "buffer_bytes": 131_072,
            "early_accept": True,
            "connect_limit_ns": 10_000_000_000,
            "idle_limit_ns": None,
            "keep_alive_ns": None,
            "except": {
                "networks": ["10.1.0.0/16", "2001:db8::/32"],
                "ports": [[22, 23], [443, 443], [8000, 9000]],
                "interfaces": [],
            },
            "only": {"networks": ["10.0.0.0/8"], "ports": [], "interfaces": ["lan0", "wg0"]},
            "lan": {"interfaces": ["lan0", "lan1.7"], "tcp": leg},
            "link": {"interfaces": ["sat0"], "tcp": link},
        },
        "tunnel": None,
    }


def test_the_defaults_are_those_of_the_page(tmp_path: Path) -> None:
    path = written(tmp_path, SMALLEST)
    plan = read_plan(path)["plan"]
    pep = plan["pep"]
    limits = (pep["connect_limit_ns"], pep["idle_limit_ns"], pep["keep_alive_ns"])
    assert limits == (30 * 10**9, 124 * 60 * 10**9, 600 * 10**9)
    assert (pep["mark"], pep["route_table"], pep["workers"]) == (25_088, 25_113, 1)
    nobody = pwd.getpwnam("nobody").pw_uid
    assert (plan["user"], plan["metrics_listen"], plan["tunnel"]) == (nobody, None, None)


ERRORS = [
    ("name = ", ":1: TOML syntax: string values must be quoted"),
    ("mark = 6\nname = x\n", ":2: TOML syntax: "),
    ('name = "a"\nname = "b"', ':2: TOML syntax: duplicate key "name"; remove one'),
    ("", "is empty; expected the configuration of a gateway (TOML)"),
    ("mark = 256\n", "name: missing; it has no default"),
    ("mark = 99999999999999999999\n", ":1: has an integer beyond 64 bits"),
    (SMALLEST.replace('"sat"', '"a b"', 1), 'name: read "a b"; allowed are up to 32 letters'),
    (SMALLEST.replace('"sat"', "7", 1), "name: read 7; expected text"),
    (
        SMALLEST.replace("lan.inter", "lann.inter"),
        'lann: unknown field; did you mean "lan"? (fields here: name, functions, lan, link',
    ),
    (SMALLEST.replace('["lan0"]', "[]"), "lan.interfaces: is empty; expected at least one entry"),
    (SMALLEST.replace('["lan0"]', '"lan0"'), 'lan.interfaces: read "lan0"; expected a list'),
    (
        SMALLEST.replace('"lan0"', '"a\\" accept"'),
        'lan.interfaces.0: read "a" accept"; expected the name of an interface, such as eth0',
    ),
    (SMALLEST.replace("lan0", "interfaces-16-ab"), "expected the name of an interface"),
    (SMALLEST.replace("lan0", "sat0"), 'read the interface "sat0" twice; each is on one side'),
    (
        SMALLEST + 'functions = ["pepp"]',
        'functions.0: read "pepp"; allowed: pep, tunnel; did you mean "pep',
    ),
    (SMALLEST + "functions = []", "functions: is empty; expected at least one entry"),
    (SMALLEST + 'functions = ["pep", "pep"]', "read pep twice in functions"),
    *(
        (SMALLEST + f"pep.except.ports = [{ports}]", f"{read}; expected a port from 1 to 65535")
        for ports, read in [
            ("0", "pep.except.ports.0: read 0"),
            ("22, 65536", "pep.except.ports.1: read 65536"),
            ('"20-10"', 'read "20-10"'),
            ('"ssh"', 'read "ssh"'),
            *((f'"{text}"', f'read "{text}"') for text in ("1024-", "-22", "+22", "1_000", " 5")),
            ("true", "read true"),
            ("1.5", "read 1.5"),
        ]
    ),
    (
        SMALLEST + 'pep.only.networks = ["10.0.0.1/8"]',
        'pep.only.networks.0: read "10.0.0.1/8"; expected a network, whose host bits are zero; did '
        'you mean "10.0.0.0/8"?',
    ),
    (SMALLEST + f"pep.only.ports = {[7] * 257}", "pep.only.ports: has 257 entries"),
    (SMALLEST + 'pep.only.networks = ["fe80::%lan0/64"]', 'read "fe80::%lan0/64"; expected a net'),
    (SMALLEST + "pep.except_.ports = [22]", "pep.except_: unknown field"),
    (SMALLEST + "pep.only = {}", "pep.only: read no networks, ports or interfaces"),
    (SMALLEST + 'pep.only.interfaces = ["a/b"]', 'pep.only.interfaces.0: read "a/b"; expected'),
    (SMALLEST + "pep.except.ports = 22", "pep.except.ports: read 22; expected a list"),
    (SMALLEST + 'user = "nobdy"', 'user: read "nobdy"; this machine has no such user'),
    (SMALLEST + 'user = "root"', 'user: read "root"; must be a user without privileges'),
    (SMALLEST + "mark = 3", "read mark 3; must be a multiple of 2 for 1 worker, which use the"),
    (SMALLEST + "mark = 6\npep.workers = 2", "read mark 6; must be a multiple of 4 for 2 workers"),
    (SMALLEST + "mark = 0", "mark: read 0; must be at least 2"),
    (SMALLEST + "route_table = 254", "route_table: read 254; must be at least 256"),
    (SMALLEST + "pep.connections = 0", "pep.connections: read 0; must be at least 1"),
    (SMALLEST + "pep.connection = 5", 'pep.connection: unknown field; did you mean "connections"?'),
    (SMALLEST + 'pep.buffer = "64 KB"', 'pep.buffer: read "64 KB"'),
    (SMALLEST + "pep.idle_limit = 5", "pep.idle_limit: read 5"),
    (SMALLEST + "pep.threads = 0", "pep.threads: read 0; must be at least 1"),
    (SMALLEST + "pep.workers = 65", "pep.workers: read 65; must be at most 64"),
    (
        SMALLEST + 'pep.link_tcp.congestion_control = "hybl"',
        'pep.link_tcp.congestion_control: read "hybl"; allowed: reno, newreno, cubic, bbr, hybla, '
        'vegas, westwood; did you mean "hybla"?',
    ),
    (SMALLEST + "pep.lan_tcp.sack = false", "pep.lan_tcp.sack: read false; the kernel has one for"),
    (
        SMALLEST + 'pep.profile = "bsd-1997"',
        'pep.profile: read "bsd-1997"; a daemon has the TCP of',
    ),
    (SMALLEST + "metrics.listen = 9464", "metrics.listen: read 9464; expected text"),
    (SMALLEST + "[metrics]", "metrics.listen: missing; it has no default"),
    *(
        (
            SMALLEST + f'metrics.listen = "{address}"',
            f'metrics.listen: read "{address}"; expected a loopback',
        )
        for address in ("9464", "0.0.0.0:9464", "127.0.0.1:0", "127.0.0.1:65536", "::1:9464", "a:1")
    ),
]


@pytest.mark.parametrize(("text", "said"), ERRORS, ids=[said[:50] for _, said in ERRORS])
@pytest.mark.parametrize("verb", ["up", "check", "unit"])
def test_a_wrong_configuration_is_one_message_a_mistake_and_code_2(
    verb: str, text: str, said: str, tmp_path: Path, bentpipe: Program
) -> None:
    path = written(tmp_path, text)
    called = bentpipe("gateway", verb, path)
    assert (called.code, called.out) == (2, "")
    first = called.err.splitlines()[0]
    assert first.startswith(f"bentpipe: {path}")
    assert said in first


def test_files_that_are_no_configuration_are_refused(tmp_path: Path, bentpipe: Program) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "large").write_bytes(b"#" * 300_000)
    deep = "a = " + "[" * 20_000
    (tmp_path / "deep").write_text(deep)
    for name, said in (
        (".", "is a directory; name a file"),
        ("none", "no such file"),
        ("binary", "is not a text file; expected the configuration of a gateway (TOML) in UTF-8"),
        ("large", "is larger than 262144 bytes; expected the configuration of a gateway"),
        ("deep", "nested"),
    ):
        called = bentpipe("gateway", "check", tmp_path / name)
        assert called.code == 2
        assert said in called.err


def test_every_mistake_is_named_at_once(tmp_path: Path, bentpipe: Program) -> None:
    text = SMALLEST + 'uzer = "nobody"\npep.connections = "many"\npep.buffer = 5\n'
    called = bentpipe("gateway", "check", written(tmp_path, text))
    fields = [line.split(": ")[2] for line in called.err.splitlines()]
    assert sorted(fields) == ["pep.buffer", "pep.connections", "uzer"]


def test_the_unit_starts_what_ends_without_a_trace(tmp_path: Path, bentpipe: Program) -> None:
    """Given a path with characters that systemd expands, expect them escaped."""
    folder = tmp_path / "50% $HOME dir"
    folder.mkdir()
    path = written(folder, SMALLEST)
    called = bentpipe("gateway", "unit", path)
    assert called.code == 0, called.err
    escaped = str(path).replace("%", "%%").replace("$", "$$")
    lines = called.out.splitlines()
    assert f'bentpipe-gate up --foreground "{escaped}"' in called.out
    for name, verb in {"ExecStopPost": "down", "ExecReload": "reload"}.items():
        (line,) = (line for line in lines if line.startswith(f"{name}="))
        assert line.endswith(f'bentpipe-gate {verb} "{escaped}"')
    for line in ("ProtectSystem=strict", "NoNewPrivileges=yes", "RuntimeDirectory=bentpipe/sat"):
        assert line in lines
    if shutil.which("systemd-analyze") is None:
        return
    unit = tmp_path / "bentpipe-sat.service"
    unit.write_text(called.out)
    command = ["systemd-analyze", "verify", "--man=no", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert unit.name not in done.stderr, done.stderr


def test_a_unit_cannot_name_a_path_with_a_quote(tmp_path: Path, bentpipe: Program) -> None:
    folder = tmp_path / 'a"b'
    folder.mkdir()
    called = bentpipe("gateway", "unit", written(folder, SMALLEST))
    assert called.code == 2
    assert "a unit cannot name such a path; move the file" in called.err
