"""The program of gateways, and what labs know of it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from bentpipe.errors import MachineError
from bentpipe.gateway import command, find_binary, placeholder_keys
from bentpipe.live.kernel_tcp import KERNEL_TCP
from bentpipe.live.machine import MARK, connections_within, open_files
from bentpipe.plan.hosts import host_plan
from bentpipe.scenario.tcp import Tcp


def test_the_table_of_the_kernel_names_settings_of_a_plan() -> None:
    assert set(KERNEL_TCP) <= set(host_plan("linux", Tcp(), ()))


def test_the_mark_of_labs_is_one_for_any_number_of_workers() -> None:
    """As `marks` of `transparent/rules.rs`: 128 for 64 workers."""
    assert MARK % 128 == 0


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
def test_placeholders_differ_and_are_those_of_their_names() -> None:
    first, second = placeholder_keys(["hub", "terminal"])
    assert len(first) == len(second) == 48
    assert first != second
    assert placeholder_keys(["terminal"]) == [second]


@pytest.mark.system
def test_the_program_names_itself_as_it_was_called(tmp_path: Path) -> None:
    """Given the program alone, and within this package, expect the names of each."""
    config = tmp_path / "none.toml"
    for arguments, start in (
        (["bentpipe-gate", "unit", str(config)], "bentpipe-gate: "),
        (command(["unit", str(config)])[1], "bentpipe: "),
    ):
        done = subprocess.run(
            arguments, executable=find_binary(), capture_output=True, text=True, check=False
        )
        assert done.returncode == 2
        assert done.stderr == f"{start}{config}: no such file\n"


@pytest.mark.system
def test_bash_has_completions_of_the_program_alone() -> None:
    done = subprocess.run(
        [find_binary()],
        env=os.environ | {"COMPLETE": "bash"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "complete " in done.stdout
