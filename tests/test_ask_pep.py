"""The answer of ``bentpipe ask pep``, compared with slow start on paper (docs/model/pep.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import bentpipe
from bentpipe import Answer
from bentpipe.answers import Estimate

ROOT = Path(__file__).parent.parent
MS = 1_000_000
# Two one-way delays of the preset geo.
LINK_MS = 542


def ask(**asked: Any) -> Answer:
    """Answer with one run of each case, without users unless they are asked for."""
    return bentpipe.ask("pep", **{"load": 0.0, "seeds": 1, **asked})


def change(answer: Answer, name: str) -> dict[str, Estimate]:
    found: dict[str, Estimate] = answer.figures["changes"][name]
    return found


def saved_ms(answer: Answer, name: str) -> float:
    """Return by how much a PEP shortens a mean time."""
    found = change(answer, name)
    return (found["plain"].mean - found["pep"].mean) / MS


@pytest.fixture(scope="module")
def usual() -> Answer:
    """The preset geo with servers 80 ms away, without users."""
    return ask()


@pytest.mark.system
def test_servers_at_the_hub_leave_nothing_to_gain() -> None:
    """Given no terrestrial delay and no users, expect the same times and goodputs."""
    answer = ask(terrestrial_ns=0)
    assert answer.figures["helps"] == []
    assert answer.figures["saved_on_paper_ns"] == 0
    for name in ("large", "large_quic", "short", "short_quic"):
        assert change(answer, name)["percent"].mean == pytest.approx(0, abs=1)
    assert "leave a PEP nothing to shorten" in answer.reason


def test_a_short_download_saves_two_round_trips_to_the_server(usual: Answer) -> None:
    """Given 100 kB, 70 segments, expect three rounds of slow start from 10 segments on.

    A download has a handshake, the request with the first round, and two more rounds: four round
    trips of 622 ms without a PEP. With it the two more take 542 ms each, so that 2 x 80 ms are
    saved. QUIC saves nothing.
    """
    assert usual.figures["saved_on_paper_ns"] == 160 * MS
    plain_ms = change(usual, "short")["plain"].mean / MS
    assert plain_ms == pytest.approx(4 * (LINK_MS + 80), abs=60)
    assert saved_ms(usual, "short") == pytest.approx(160, abs=10)
    assert saved_ms(usual, "short_quic") == pytest.approx(0, abs=10)
    assert change(usual, "large_quic")["percent"].mean == pytest.approx(0, abs=0.1)


@pytest.mark.system
def test_the_shorter_of_both_round_trips_is_what_counts() -> None:
    """Given a link of 100 ms and servers 300 ms away, expect the link's 100 ms twice, not 300."""
    answer = ask(settings=["link.*.delay=50ms"], terrestrial_ns=300 * MS)
    assert answer.figures["saved_on_paper_ns"] == 200 * MS
    assert saved_ms(answer, "short") == pytest.approx(200, abs=20)


@pytest.mark.system
def test_a_long_download_gains_its_slow_start_alone() -> None:
    """Given one download for the whole run, expect some 10 rounds of 80 ms of 110 s: below 1 %."""
    settings = ["traffic.large.size=1GB", "traffic.large-quic.size=1GB"]
    answer = ask(settings=settings)
    assert 0 <= change(answer, "large")["percent"].mean < 2


@pytest.mark.system
@pytest.mark.parametrize("gateways", ["hub", "*"])
def test_a_larger_window_over_the_link_saves_a_round(usual: Answer, gateways: str) -> None:
    """Given 30 segments on the leg over the link, expect two rounds of it instead of three.

    What the server sends in its second round, 80 ms later, is acknowledged later by that, so up to
    80 ms of the 542 ms are not saved. Without the PEP the time is unchanged: the setting is not for
    those runs.
    """
    changed = ask(settings=[f"gateways.{gateways}.pep.link_tcp.initial_window=30"])
    assert change(usual, "short")["plain"] == change(changed, "short")["plain"]
    more_ms = saved_ms(changed, "short") - saved_ms(usual, "short")
    assert LINK_MS - 80 <= more_ms <= LINK_MS + 10


@pytest.mark.system
def test_a_link_with_a_pep_is_compared_without_it(usual: Answer) -> None:
    """Given a scenario with a PEP, expect the times of the preset that its link is, in both."""
    of_file = ask(link=str(ROOT / "scenarios" / "geo-pep.yaml"))
    assert change(usual, "short")["plain"] == change(of_file, "short")["plain"]
    assert saved_ms(of_file, "short") == pytest.approx(saved_ms(usual, "short"), abs=1)


@pytest.mark.thorough
@pytest.mark.system
def test_users_keep_the_link_as_busy_as_asked_for() -> None:
    """Given 40 % and a quarter of QUIC, expect both within their intervals."""
    answer = ask(load=0.4, quic_share=0.25, seeds=4)
    busy, share = answer.figures["busy"], answer.figures["splittable_share"]
    assert abs(busy.mean - 0.4) <= 0.05
    assert abs(share.mean - 0.75) <= 0.05 + share.half_width
    assert "large" in answer.figures["changes"]
    assert 0 < change(answer, "total")["plain"].mean < 16e6 * 1448 / 1500


@pytest.mark.system
def test_users_of_quic_alone_have_nothing_that_can_be_split() -> None:
    answer = ask(load=0.2, quic_share=1.0)
    assert answer.figures["splittable_share"].mean == 0
    assert change(answer, "total")["percent"].mean == pytest.approx(0, abs=2)
