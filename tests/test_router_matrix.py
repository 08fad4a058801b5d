"""Connections over routers as they are, without and with a PEP; see ``router``."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from conftest import ROOT
from router import servers
from router.cases import all_cases
from router.matrix import (
    ALWAYS,
    SOMETIMES,
    Cell,
    Outcome,
    against_known,
    gateway,
    journeys_of,
    known_failures,
    run_case,
    write_files,
)
from router.network import PUBLIC, new_network, separate_sequence_numbers
from router.table import markdown, summary, write
from routers import Routers, why_no_routers

CASES = all_cases()
NONE = CASES["none"]
PAGE = ROOT / "docs/model/gateway-routers.md"
# Beside other tests, 1,000 connections at once are late; those of labs run one after the other.
ALONE = {"burst": pytest.mark.lab}
CONNECTIONS = 8
# The clock of Linux's sequence numbers advances by 2^24 in 1.07 s.
NEAR = 1 << 25


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is uploaded."""
    if (reason := why_no_routers()) is not None:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("router")
    write_files(folder)
    return folder


def check(outcome: Outcome) -> None:
    """Fail for a case that is wrong without a PEP, and for what is not as known with it."""
    if outcome.impossible:
        pytest.skip(f"the kernel has no {outcome.case.name}: {outcome.impossible}")
    assert outcome.unexpected() == {}
    assert against_known(outcome, known_failures()) == []


@pytest.mark.system
def test_a_router_without_rules_carries_what_it_carried(files: Path) -> None:
    names = ["download", "upload", "inbound", "dialogue", "refused port", "reset"]
    outcome = run_case(NONE, files, names=names)
    check(outcome)
    assert outcome.split > 0


@pytest.mark.system
@pytest.mark.thorough
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=ALONE[name]) if name in ALONE else name for name in CASES]
)
def test_each_router_carries_what_it_carried_or_is_refused(name: str, files: Path) -> None:
    """Given a router with rules and paths, expect each journey to end as without a PEP.

    Those that are known to end otherwise must do so, until they are removed from the list.
    """
    check(run_case(CASES[name], files, large=True))


# --- both legs have initial sequence numbers of their own -----------------------------------------


@pytest.mark.system
@pytest.mark.parametrize("are_separate", [False, True])
def test_hosts_have_sequence_numbers_of_their_own(tmp_path: Path, *, are_separate: bool) -> None:
    """Given hosts in namespaces of one kernel, expect both legs to start nearly alike.

    With addresses of their own, expect that only by chance, of 1 in 64.
    """
    with new_network(NONE) as routers:
        if are_separate:
            separate_sequence_numbers(routers)
        with gateway(routers, NONE, tmp_path) as (_, refusal):
            assert refusal is None
            near = sum(
                is_near
                for address in PUBLIC["server"]
                for is_near in near_sequence_numbers(routers, address)
            )
    numbers = 2 * len(PUBLIC["server"]) * CONNECTIONS
    assert near < numbers / 4 if are_separate else near == numbers


def near_sequence_numbers(routers: Routers, address: str) -> list[bool]:
    """Return, for each connection and direction, whether both legs start nearly alike."""
    with ExitStack() as opened:
        legs = [opened.enter_context(first_numbers(routers, name)) for name in ("lan0", "sat0")]
        opened.enter_context(servers.serving(routers, "server"))
        for _ in range(CONNECTIONS):
            with routers.within("client"):
                socket.create_connection((address, servers.ACCEPT_PORT), 10).close()
    lan, link = legs
    both = lan.keys() & link.keys()
    assert len(both) == 2 * CONNECTIONS
    return [(lan[key] - link[key] + NEAR) % 2**32 < 2 * NEAR for key in both]


@contextmanager
def first_numbers(routers: Routers, interface: str) -> Iterator[dict[bytes, int]]:
    """Collect the sequence numbers of SYNs and SYN-ACKs on an interface of ``a``, by ports."""
    found: dict[bytes, int] = {}
    with routers.within("a"):
        tap = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x0003))
    tap.bind((interface, 0x0003))
    tap.settimeout(0.1)
    ends = threading.Event()

    def collect() -> None:
        while True:
            try:
                packet = tap.recv(2_048)
            except TimeoutError:
                # On a busy machine what passed before the end may still be unread.
                if ends.is_set():
                    return
                continue
            is_v6 = packet[0] >> 4 == 6
            segment = packet[40:] if is_v6 else packet[4 * (packet[0] & 15) :]
            # TCP, and the flag SYN.
            if packet[6 if is_v6 else 9] == 6 and segment[13] & 2:
                found.setdefault(segment[:4], struct.unpack("!I", segment[4:8])[0])

    thread = threading.Thread(target=collect)
    thread.start()
    try:
        yield found
    finally:
        ends.set()
        thread.join()
        tap.close()


# --- the list of known failures, and the tables ---------------------------------------------------


def outcome_of(**endings: tuple[str, str]) -> Outcome:
    """Return an outcome for IPv4, of journeys as they ended without and with a PEP."""
    outcome = Outcome(NONE)
    for name, (without, with_pep) in endings.items():
        cell = Cell(NONE.name, 4, name)
        outcome.without[cell], outcome.with_pep[cell] = without, with_pep
    return outcome


def test_the_list_names_journeys_that_exist() -> None:
    known = known_failures()
    for cell, kind in known.items():
        names = [*journeys_of(CASES[cell.case], large=True), "daemon"]
        assert cell.journey in names
        assert kind in {ALWAYS, SOMETIMES}
        assert cell.version in {4, 6}


def test_a_new_failure_and_a_repaired_one_are_told() -> None:
    """Given outcomes and a list, expect a line for each journey that is not as listed."""
    cell = Cell(NONE.name, 4, "download")
    broken, well = outcome_of(download=("ok", "stalled")), outcome_of(download=("ok", "ok"))
    assert against_known(broken, {cell: ALWAYS}) == []
    assert against_known(broken, {cell: SOMETIMES}) == []
    assert against_known(well, {}) == []
    assert len(against_known(broken, {})) == 1
    assert len(against_known(well, {cell: ALWAYS})) == 1
    # One that fails at times must fail in none of its case to be removed.
    assert len(against_known(well, {cell: SOMETIMES})) == 1
    both = outcome_of(download=("ok", "ok"), upload=("ok", "reset"))
    listed = {cell: SOMETIMES, Cell(NONE.name, 4, "upload"): ALWAYS}
    assert against_known(both, listed) == []
    # Journeys that were not made say nothing.
    assert against_known(well, {Cell(NONE.name, 4, "upload"): ALWAYS}) == []
    well.refusal, well.with_pep = "no", {}
    assert len(against_known(well, {cell: ALWAYS})) == 1


def test_a_case_that_is_wrong_without_a_pep_is_told() -> None:
    outcome = outcome_of(download=("stalled", "stalled"))
    assert outcome.unexpected() == {Cell(NONE.name, 4, "download"): "stalled"}
    assert outcome.differing() == set()


def test_the_table_shows_both_endings_where_they_differ() -> None:
    outcome = outcome_of(download=("ok", "stalled"), upload=("ok", "ok"))
    outcome.with_pep[Cell(NONE.name, 4, "daemon")] = "up"
    lines = markdown([outcome]).splitlines()
    assert lines[2] == "| none | no rules |"
    assert lines[4:7] == [
        "| IPv4 | download | upload | others |",
        "| --- | --- | --- | --- |",
        "| none | ok / **stalled** | ok | daemon up |",
    ]
    assert summary([outcome]) == "2 journeys in 1 cases; 1 differ with a PEP; 0 cases pass"


def test_the_page_describes_every_case(tmp_path: Path) -> None:
    text = PAGE.read_text(encoding="utf-8")
    for case in CASES.values():
        assert f"| {case.name} | {case.about} |" in text
    copy = tmp_path / PAGE.name
    copy.write_text(text)
    for _ in range(2):
        write("the tables\n", copy)
    assert copy.read_text().count("the tables") == 1
    assert copy.read_text().splitlines()[0] == text.splitlines()[0]
