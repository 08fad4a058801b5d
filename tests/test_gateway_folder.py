"""The folder of a gateway: its lock, its record, and the replies of its daemon."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from bentpipe.errors import MachineError
from bentpipe.gateway import GatewayConfig, daemon, plan_of
from bentpipe.gateway.daemon import GatewayFolder, Record, base_folder, gateway_names


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GatewayFolder:
    monkeypatch.setattr("bentpipe.gateway.daemon.base_folder", lambda: tmp_path / "gateways")
    return GatewayFolder("sat")


def test_a_lock_is_held_by_one_and_inherited(folder: GatewayFolder) -> None:
    """Given a lock, expect no second one, until all descriptors of it are closed."""
    handle = folder.lock()
    copy = os.dup(handle)
    assert folder.is_up()
    with pytest.raises(MachineError, match="gateway sat is up already; to fix it: end it"):
        folder.lock()
    os.close(handle)
    assert folder.is_up()
    os.close(copy)
    assert not folder.is_up()
    os.close(folder.lock())
    assert gateway_names() == ["sat"]
    folder.remove()
    assert gateway_names() == []
    assert not folder.path.parent.exists()


def test_a_lock_on_a_file_that_was_removed_is_taken_again(folder: GatewayFolder) -> None:
    """Given an end while another starts, expect the lock of the file that is there."""
    first = folder.lock()
    folder.record_file.unlink()
    second = folder.lock()
    assert os.fstat(second).st_ino == folder.record_file.stat().st_ino
    os.close(first)
    os.close(second)


def test_a_record_is_read_as_it_was_written(folder: GatewayFolder) -> None:
    record = Record(config="/a", described={"name": "sat"}, plan={}, network=1, started_unix_s=2.5)
    handle = folder.lock()
    assert folder.record() is None
    folder.write_record(record)
    assert folder.record() == record
    shorter = replace(record, described={})
    folder.write_record(shorter)
    assert folder.record() == shorter
    folder.record_file.write_text(json.dumps({"other": 1}))
    assert folder.record() is None
    os.close(handle)


def test_counters_and_the_log_may_be_missing_or_broken(folder: GatewayFolder) -> None:
    assert (folder.counters(), folder.last_line(), folder.processes()) == (None, None, [])
    folder.path.mkdir(parents=True)
    folder.state_file.write_text("{")
    folder.log_file.write_text("\n")
    assert (folder.counters(), folder.last_line()) == (None, None)
    folder.state_file.write_text('{"split_connections": 1}')
    os.utime(folder.state_file, (7, 7))
    folder.log_file.write_text("first\nbentpipe-gate: second\n")
    assert folder.counters() == {"split_connections": 1, "unix_s": 7.0}
    assert folder.last_line() == "second"


def test_the_folder_is_that_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given a root that does not own /run, as in a user namespace, expect a folder of its own."""
    monkeypatch.setattr("bentpipe.gateway.daemon.RUN", tmp_path)
    monkeypatch.setattr("bentpipe.gateway.daemon.os.geteuid", lambda: 1_234)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert base_folder() == tmp_path / "bentpipe-gateways"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "none"))
    monkeypatch.setattr("bentpipe.gateway.machine.tempfile.gettempdir", lambda: "/other")
    assert base_folder() == Path("/other/bentpipe-gateways-1234")


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ({"failed": "nft is missing"}, "gateway sat: nft is missing; to fix it: see"),
        (
            {"refused": "unknown field `only`"},
            "its version differs: unknown field `only`; to fix it: bentpipe gateway down sat, then",
        ),
    ],
)
def test_a_daemon_that_cannot_change_is_no_bad_input(
    reply: dict[str, str], said: str, folder: GatewayFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    sides = {"lan": {"interfaces": ["lan0"]}, "link": {"interfaces": ["sat0"]}}
    config = GatewayConfig.model_validate({"name": "sat", **sides})
    plan = plan_of(config, Path("/none/sat.toml"))
    record = Record(config="/a", described={}, plan=plan, network=1, started_unix_s=2.5)
    handle = folder.lock()
    folder.write_record(record)
    folder.control_file.touch()
    monkeypatch.setattr(daemon, "ask_daemon", lambda *_: reply)
    with pytest.raises(MachineError, match=re.escape(said)):
        daemon.reload_gateway(config, plan)
    assert folder.record() == record
    os.close(handle)
