"""Which gateway a command means that names none, and what it says of those that were killed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from conftest import Program

from bentpipe.gateway.daemon import GatewayFolder, Record

Start = Callable[..., None]


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Make gateways that are up, as this process holds their locks, or were killed."""
    monkeypatch.setattr("bentpipe.gateway.daemon.base_folder", lambda: tmp_path / "gateways")
    with ExitStack() as locks:

        def start(*names: str, killed: bool = False) -> None:
            for name in names:
                folder = GatewayFolder(name)
                lock = folder.lock()
                described = {
                    "name": name,
                    "functions": ["pep"],
                    "lan": ["lan0"],
                    "link": ["sat0"],
                    "connections": 100,
                }
                folder.write_record(
                    Record(
                        config=f"/{name}.toml",
                        described=described,
                        plan={},
                        network=1,
                        started_unix_s=0,
                    )
                )
                folder.state_file.write_text('{"pep": {}, "tunnel": null}')
                if killed:
                    os.close(lock)
                else:
                    locks.callback(os.close, lock)

        yield start


def test_the_only_one_that_is_up_needs_no_name(started: Start, bentpipe: Program) -> None:
    """Given one gateway that is up and two that have ended, expect its status and their ends."""
    started("a", "c", killed=True)
    started("b")
    GatewayFolder("a").log_file.write_text("bentpipe-gate: at most 200 connections\n")
    GatewayFolder("c").log_file.write_text("bentpipe-gate: error: out of memory\n")
    ran = bentpipe("gateway", "status")
    assert ran.code == 0
    assert ran.out.startswith("b: pep, lan0 to sat0, up for ")
    ends = {"a": "it was killed", "c": "out of memory"}
    assert ran.err == "".join(
        f"bentpipe: gateway {name} has ended: {reason}; bentpipe gateway down {name} removes what "
        "is left\n"
        for name, reason in ends.items()
    )
    assert bentpipe("gateway", "status", "b").err == ""


def test_the_status_has_its_age_and_seconds(
    started: Start, bentpipe: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given counters of 1.3 s before now, 45 s and 4 min after the start, expect these times."""
    started("b")
    os.utime(GatewayFolder("b").state_file, (43.7, 43.7))
    monkeypatch.setattr("time.time", lambda: 45.0)
    first = bentpipe("gateway", "status").out.splitlines()[0]
    assert first == "b: pep, lan0 to sat0, up for 45 s; counters as of 1.3 s ago"
    monkeypatch.setattr("time.time", lambda: 240.0)
    assert "up for 4 min; " in bentpipe("gateway", "status").out


def test_of_several_that_are_up_one_must_be_named(started: Start, bentpipe: Program) -> None:
    started("a", killed=True)
    started("b", "c")
    ran = bentpipe("gateway", "status")
    assert (ran.code, ran.out) == (2, "")
    assert "several are up; name one of b, c" in ran.err
    assert "bentpipe gateway down a removes what is left" in ran.err


def test_the_only_one_that_was_killed_needs_no_name(started: Start, bentpipe: Program) -> None:
    started("a", killed=True)
    ran = bentpipe("gateway", "status")
    assert ran.code == 3
    assert ran.err.count("\n") == 1
    assert "gateway a has ended: it was killed; connections pass without it; to fix it:" in ran.err


@pytest.mark.parametrize("verb", ["status", "down"])
def test_of_several_that_were_killed_one_must_be_named(
    started: Start, bentpipe: Program, verb: str
) -> None:
    """Given two killed gateways, expect their ends, and that none is counted as up."""
    started("a", "b", killed=True)
    ran = bentpipe("gateway", verb)
    assert ran.code == 2
    assert "none is up; name one of a, b" in ran.err
    assert ran.err.count("has ended: it was killed; bentpipe gateway down") == 2
