"""The plan of a gateway's daemon, made from the PEP of a scenario."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from routers import why_no_routers

from bentpipe.errors import MachineError
from bentpipe.gateway import (
    GatewayConfig,
    find_binary,
    open_files,
    plan_of,
    refused_settings,
)
from bentpipe.gateway.kernel_tcp import KERNEL_TCP
from bentpipe.gateway.machine import MARK, NOBODY, connections_within, mark_count, search_path
from bentpipe.plan.hosts import host_plan
from bentpipe.scenario.gateways import Pep
from bentpipe.scenario.tcp import Tcp


def pep_plan(**settings: Any) -> dict[str, Any]:
    """Return the plan of a PEP on this machine."""
    sides = {"lan": {"interfaces": ["lan0"]}, "link": {"interfaces": ["sat0"]}}
    pep = {"threads": 1, "idle_limit": "0 s", **settings}
    config = GatewayConfig.model_validate({"name": "sat", **sides, "pep": pep})
    plan: dict[str, Any] = plan_of(config, Path("/none/sat.toml"))["pep"]
    return plan


def refusals(**settings: Any) -> dict[str, str]:
    return {".".join(map(str, path)): text for path, text in refused_settings(Pep(**settings))}


def test_a_pep_without_settings_has_the_tcp_of_the_machine() -> None:
    leg = dict.fromkeys(
        ("congestion_control", "send_buffer_bytes", "receive_buffer_bytes", "not_sent_bytes")
    )
    assert pep_plan() == {
        "mark": 25_088,
        "route_table": 25_113,
        "workers": 1,
        "threads": 1,
        "connections": 10_000,
        "buffer_bytes": 65_536,
        "early_accept": False,
        "connect_limit_ns": 30_000_000_000,
        "idle_limit_ns": None,
        "keep_alive_ns": 600_000_000_000,
        "except": {"networks": [], "ports": []},
        "only": {"networks": [], "ports": []},
        "lan": {"interfaces": ["lan0"], "tcp": leg},
        "link": {"interfaces": ["sat0"], "tcp": leg},
    }


def test_settings_of_a_leg_are_those_of_its_sockets() -> None:
    """Given sizes as a scenario means them, expect those that the kernel doubles.

    It takes half of a buffer for overhead. A size that counts memory is halved, so that the kernel
    has it as written.
    """
    plan = pep_plan(
        notsent_lowat="16 KiB",
        connections=50,
        buffer="100 kB",
        lan_tcp=Tcp(congestion_control="newreno", receive_buffer="1 MB"),
        link_tcp=Tcp(
            congestion_control="hybla",
            send_buffer="2 MB",
            receive_buffer="1 MB",
            receive_buffer_counts="window",
        ),
    )
    assert (plan["connections"], plan["buffer_bytes"]) == (50, 100_000)
    assert plan["lan"]["tcp"] == {
        "congestion_control": "reno",
        "send_buffer_bytes": None,
        "receive_buffer_bytes": 500_000,
        "not_sent_bytes": 16_384,
    }
    assert plan["link"]["tcp"] == {
        "congestion_control": "hybla",
        "send_buffer_bytes": 2_000_000,
        "receive_buffer_bytes": 1_000_000,
        "not_sent_bytes": 16_384,
    }


@pytest.mark.parametrize(
    ("settings", "field", "text"),
    [
        (
            {"profile": "bsd-1997"},
            "profile",
            'read "bsd-1997"; a daemon has the TCP of its kernel: leave it out',
        ),
        (
            {"notsent_lowat": "5 GB"},
            "notsent_lowat",
            'read "5 GB"; must be at most 4294967295 B',
        ),
        (
            {"lan_tcp": {"sack": False}},
            "lan_tcp.sack",
            "read false; the kernel has one for all connections: leave it out, and set "
            "net.ipv4.tcp_sack by sysctl",
        ),
        (
            {"link_tcp": {"initial_window": 30}},
            "link_tcp.initial_window",
            "read 30; the kernel has one for each route: leave it out, and run ip route change "
            "DESTINATION ... initcwnd 30",
        ),
        (
            {"link_tcp": {"mss": "1400 B"}},
            "link_tcp.mss",
            'read "1400 B"; the kernel has one for each route: leave it out, and run ip route '
            "change DESTINATION ... advmss 1400",
        ),
        (
            {"link_tcp": {"rto_min": "300 ms"}},
            "link_tcp.rto_min",
            'read "300 ms"; the kernel has one for each route: leave it out, and run ip route '
            "change DESTINATION ... rto_min 300ms",
        ),
        (
            {"link_tcp": {"delayed_ack_segments": 4}},
            "link_tcp.delayed_ack_segments",
            "read 4; the kernel's is 2 and cannot be set for a connection: leave it out",
        ),
        (
            {"link_tcp": {"receive_buffer_initial": "64 KiB"}},
            "link_tcp.receive_buffer_initial",
            'read "64 KiB"; a socket with a buffer of its own does not tune it: leave it out',
        ),
        (
            {"link_tcp": {"receive_buffer": "1 MB", "receive_buffer_initial": "128 KiB"}},
            "link_tcp.receive_buffer_initial",
            'read "128 KiB"; a socket with a buffer of its own does not tune it: leave it out',
        ),
        (
            {"link_tcp": {"send_buffer": "2 GB"}},
            "link_tcp.send_buffer",
            'read "2 GB"; must be at most 1073741823 B (socket(7))',
        ),
    ],
)
def test_what_the_kernel_does_not_have_is_refused(
    settings: dict[str, Any], field: str, text: str
) -> None:
    assert refusals(**settings) == {field: text}


def test_the_table_of_the_kernel_names_settings_of_a_plan() -> None:
    assert set(KERNEL_TCP) <= set(host_plan("linux", Tcp(), ()))


def test_every_setting_of_a_leg_is_either_one_of_the_socket_or_refused() -> None:
    """Given each field of a leg with a value that is not the kernel's, expect no third way."""
    other: dict[str, Any] = {
        "mss": "1000 B",
        "initial_window": 3,
        "congestion_control": "vegas",
        "send_buffer": "1 MB",
        "receive_buffer": "1 MB",
        "receive_buffer_initial": "1 kB",
        "receive_buffer_counts": "window",
        "delayed_ack_segments": 3,
        "delayed_ack_timeout": "1 ms",
        "quick_ack_segments": 3,
        "rto_initial": "3 s",
        "rto_min": "1 s",
        "rto_min_bounds": "timeout",
        "rto_max": "60 s",
        "clock_granularity": "10 ms",
        "slow_start_segments_per_ack": 2,
        "avoidance_counting": "acks",
        "stack": "rfc",
        "ecn": True,
    }
    without = pep_plan()["link"]
    for field in type(Pep().link_tcp).model_fields:
        settings: Any = {"link_tcp": {field: other.get(field, False)}}
        refused = refusals(**settings)
        if refused:
            assert list(refused) == [f"link_tcp.{field}"]
        else:
            assert pep_plan(**settings)["link"] != without, field


def test_what_the_kernel_does_anyway_may_be_written() -> None:
    legs = {"sack": True, "initial_window": 10, "hystart": True, "rto_min": "0.2 s"}
    assert refusals(profile="linux", lan_tcp=legs, early_accept=True) == {}
    assert refusals(link_tcp={"congestion_control": "reno", "hystart": False}) == {}


@pytest.mark.parametrize(("workers", "marks"), [(1, 2), (2, 4), (3, 8), (4, 8), (5, 16), (64, 128)])
def test_the_default_mark_is_one_for_any_number_of_workers(workers: int, marks: int) -> None:
    """As `marks` of `transparent/rules.rs`."""
    assert mark_count(workers) == marks
    assert MARK % marks == 0


def test_a_worker_has_two_sockets_for_each_connection() -> None:
    """Expect 2 files for each connection, 2 for each thread, and 1,024, as in `daemon/plan.rs`."""
    assert open_files(5_000, threads=4) == 10_000 + 8 + 1_024
    assert connections_within(11_032, threads=4) == 5_000
    assert connections_within(11_031, threads=4) == 4_999
    assert connections_within(256, threads=1) == 0


def test_an_installation_without_the_program_is_told_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match=r"no such file.*; to fix it: install a wheel") as raised:
        find_binary(tmp_path)
    assert raised.value.exit_code == 3
    (tmp_path / "bentpipe-gate").touch(mode=0o644)
    with pytest.raises(MachineError, match="cannot be executed; to fix it: chmod 755"):
        find_binary(tmp_path)


@pytest.mark.system
def test_the_program_reads_the_plan() -> None:
    """Given a plan of Python, expect the program to take it, and to refuse an unknown field.

    It removes what another version has left, whose plan may have other fields.
    """
    reason = why_no_routers()
    if reason is not None:
        pytest.skip(reason)
    command = ["unshare", "--net", str(find_binary())]
    plan = {
        "name": "test",
        "state_file": "/none/state.json",
        "control_file": "/none/control",
        "files": [],
        "user": NOBODY,
        "group": NOBODY,
        "metrics_listen": None,
        "pep": pep_plan(notsent_lowat="16 KiB"),
        "tunnel": None,
    }
    # As `bentpipe gateway` starts it.
    options: Any = {"text": True, "env": os.environ | {"PATH": search_path()}}
    more = {"colour": 1}
    for verb, added, code, said in (
        ("check", {}, 3, "error: "),
        ("check", more, 2, "unknown field `colour`"),
        ("remove", {}, 0, ""),
        ("remove", more, 0, ""),
    ):
        text = json.dumps({**plan, **added})
        done = subprocess.run(
            [*command, verb], input=text, capture_output=True, check=False, **options
        )
        assert done.returncode == code, done.stderr
        assert said in done.stderr
