"""The answer of ``bentpipe ask pep``, compared with slow start on paper (docs/model/pep.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bentpipe
from bentpipe import Answer
from bentpipe.answers import Estimate
from bentpipe.answers.answer import words
from bentpipe.answers.pep import Pep
from bentpipe.answers.runs import Measurements

ROOT = Path(__file__).parent.parent
MS = 1_000_000
# Two one-way delays of the preset geo.
LINK_MS = 542
# A PEP whose slow start is that of the paper: its window doubles once a round trip.
CONTROL = "gateways.*.pep.link_tcp.congestion_control=cubic"
PEP = "pep_cubic"
TITLES = Pep().titles
TOTAL, LARGE, SHORT, NOT_SPLIT, SHORT_QUIC = TITLES


def ask(*, settings: Any = (), **asked: Any) -> Answer:
    """Answer with one run of each case, without users unless they are asked for."""
    settings = [CONTROL, *settings]
    return bentpipe.ask("pep", settings=settings, **{"load": 0.0, "seeds": 1, **asked})


def change(answer: Answer, figure: str, case: str = PEP) -> dict[str, Estimate]:
    pair = (case, "plain")
    (changes,) = (
        each for each in answer.figures["changes"] if (each["case"], each["compared_with"]) == pair
    )
    found: dict[str, Estimate] = changes[figure]
    return found


def saved_ms(answer: Answer, figure: str) -> float:
    """Return by how much a PEP shortens a mean time."""
    found = change(answer, figure)
    return (found["before"].mean - found["after"].mean) / MS


# --- headline -------------------------------------------------------------------------------------

FIGURES = [*TITLES, "busy", "splittable_share"]


def judged(*, noise: float = 1.0, seeds: int = 10, **gains: dict[str, float]) -> Answer:
    """Return the answer of figures whose means differ from 100 by so many percent, by variant."""
    rng, asked = np.random.default_rng(1), Pep()
    asked.loads = [12]

    def runs(percents: dict[str, float]) -> Measurements:
        return Measurements(
            {
                name: 100 + percents.get(name, 0.0) + noise * rng.standard_normal(seeds)
                for name in FIGURES
            }
        )

    found: Any = {(12, name): runs(gains.get(name, {})) for name in asked.variants}
    found |= {("as asked", name): found[12, name] for name in ("plain", "pep_bbr")}
    found |= {("near servers", name): runs({}) for name in ("plain", "pep_bbr")}
    answer = asked.judge(found)
    return bentpipe.Answer(
        figures=answer.figures, facts=answer.facts, **words("pep", asked.facts(answer))
    )


def test_a_headline_names_a_loss_of_what_is_not_split() -> None:
    """Given times of -20 % and goodput that is not split of -18 %, expect both in the first line.

    It said nothing of traffic that is not split, and of no loss.
    """
    line = judged(pep_hybla={SHORT: -20, NOT_SPLIT: -18}).lines[0]
    gains, losses = line.split("loses (")
    assert gains.startswith("A PEP with hybla gains (time of a short download -19")
    assert losses.startswith("goodput of a large one not split -1")
    assert line.endswith("it does better than BBR at the hosts, but not for all")


def test_a_loss_without_a_gain_is_said() -> None:
    line = judged(pep_hybla={NOT_SPLIT: -18}, pep_bbr={NOT_SPLIT: -30}).lines[0]
    assert line.startswith("No gain of 5 % or more is shown for a PEP or for BBR at the hosts: ")
    assert "a PEP with hybla loses (goodput of a large one not split -1" in line


@pytest.mark.parametrize("split", [-20.0, -10.0, 0.0])
def test_a_remedy_without_a_box_that_is_as_good_is_the_headline(split: float) -> None:
    """Given times of -20 % by BBR at the hosts, and no better ones by a PEP, expect the former."""
    answer = judged(hosts={SHORT: -20}, pep_bbr={SHORT: split})
    assert answer.figures["advice"] == "remedy"
    assert answer.lines[0].startswith("BBR at the hosts gains (time of a short download -")
    assert answer.lines[0].endswith("does no better" if split else "shows no gain")


def test_a_pep_has_to_beat_the_remedy_without_a_box() -> None:
    """Given times of -20 % by BBR at the hosts and of -40 % by a PEP, expect the PEP."""
    answer = judged(hosts={SHORT: -20}, pep_bbr={SHORT: -40})
    assert answer.figures["advice"] == "box"
    assert answer.lines[0].startswith("A PEP with bbr gains (time of a short download -")
    assert answer.lines[0].endswith("it does better than BBR at the hosts")


def test_what_is_not_decided_is_said_with_the_runs_that_would() -> None:
    """Given a noise of 20 %, expect no claim, the runs that would decide, and a command."""
    answer = judged(noise=8, pep_bbr={SHORT: -12})
    assert answer.figures["advice"] == "none"
    assert answer.lines[0] == "No gain of 5 % or more is shown for a PEP or for BBR at the hosts"
    assert "leaves goodput of all users" in answer.lines[1]
    assert " runs would decide)" in answer.lines[1]
    shown = [command for command in answer.commands if "--seeds" in command]
    assert len(shown) == 1
    assert 10 < int(shown[0].split("--seeds ")[1]) <= 100


def test_one_run_decides_nothing() -> None:
    line = judged(seeds=1, pep_bbr={SHORT: -40}).lines[0]
    assert line.startswith("One run has no interval, so nothing is decided: ")


def test_intervals_of_a_headline_hold_together() -> None:
    """Given five figures, three variants and two PEPs beside BBR, expect Bonferroni's 25."""
    answer = judged()
    changes = [each for verdict in answer.facts["compared"].values() for each in verdict.changes]
    assert len(changes) == 25
    one = changes[0].percent
    before, after = (Measurements({"x": np.array([1.0, 2, 4])}) for _ in range(2))
    after["x"] = np.array([2.0, 3, 3])
    together, alone = (before.change("x", after, count).half_width for count in (25, 1))
    assert together is not None
    assert alone is not None
    assert together > alone
    assert one.runs == 10


# --- variants -------------------------------------------------------------------------------------


def control_of(plan: Any) -> str:
    (split,) = (each for each in plan.data["gateways"][0]["functions"] if each["kind"] == "pep")
    found: str = split["link_tcp"]["congestion_control"]
    return found


def test_peps_have_the_congestion_control_of_products() -> None:
    """Given nothing else, expect Hybla as in PEPsal, and BBR; the plain link has CUBIC."""
    asked = Pep()
    assert [*asked.variants] == ["plain", "hosts", "pep_hybla", "pep_bbr"]
    for name in asked.boxes:
        plan = asked.plan(functions=asked.variants[name].functions)
        assert f"pep_{control_of(plan)}" == name
    hosts = asked.plan(*asked.variants["hosts"].settings)
    for flow in hosts.data["flows"]:
        assert flow["workload"]["server"]["congestion_control"] == "bbr"
        assert flow["workload"]["server"]["send_buffer_bytes"] == 64 * 2**20


@pytest.mark.parametrize(
    "setting",
    [
        "gateways.hub.pep.link_tcp.congestion_control=westwood",
        "gateways.hub.pep.link_tcp={congestion_control: westwood}",
    ],
)
def test_a_congestion_control_that_is_set_is_that_of_the_only_pep(setting: str) -> None:
    asked = Pep(settings=[setting])
    assert asked.boxes == ["pep_westwood"]
    assert asked.variants["pep_westwood"].name == "a PEP with westwood"


def test_other_settings_of_a_pep_leave_its_congestion_control() -> None:
    asked = Pep(settings=["gateways.hub.pep.link_tcp.initial_window=30"])
    assert asked.boxes == ["pep_hybla", "pep_bbr"]


def test_the_pep_of_a_file_keeps_its_congestion_control(tmp_path: Path) -> None:
    text = (ROOT / "scenarios" / "geo-pep.yaml").read_text(encoding="utf-8")
    legs = "functions: [pep]\n    pep: {link_tcp: {congestion_control: vegas}}"
    file = tmp_path / "pep.yaml"
    file.write_text(text.replace("functions: [pep]", legs), encoding="utf-8")
    assert Pep(link=str(file)).boxes == ["pep_vegas"]


@pytest.mark.parametrize(
    ("rate", "seconds"), [("1Mbit/s", 120), ("16Mbit/s", 120), ("1Gbit/s", 40)]
)
def test_a_fast_link_takes_shorter_runs(rate: str, seconds: int) -> None:
    """Given 240 MB at the link rate, expect 120 s at 16 Mbit/s, and no less than 40 s."""
    asked = Pep(settings=[f"link.forward.rate={rate}"])
    assert asked.base.data["stop_ns"] == seconds * 1_000_000_000


# --- runs -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def usual() -> Answer:
    """The preset geo with servers 80 ms away, without users."""
    return ask()


@pytest.mark.system
def test_servers_at_the_hub_leave_nothing_to_gain() -> None:
    """Given no terrestrial delay and no users, expect the same times and goodputs."""
    answer = ask(terrestrial_ns=0)
    assert answer.figures["advice"] == "none"
    assert answer.figures["saved_on_paper_ns"] == 0
    for figure in (LARGE, NOT_SPLIT, SHORT, SHORT_QUIC):
        assert change(answer, figure)["percent"].mean == pytest.approx(0, abs=1)
    assert "leave a PEP nothing to shorten" in answer.reason


def test_a_short_download_saves_two_round_trips_to_the_server(usual: Answer) -> None:
    """Given 100 kB, 70 segments, expect three rounds of slow start from 10 segments on.

    A download has a handshake, the request with the first round, and two more rounds: four round
    trips of 622 ms without a PEP. With it the two more take 542 ms each, so that 2 x 80 ms are
    saved. QUIC saves nothing.
    """
    assert usual.figures["saved_on_paper_ns"] == 160 * MS
    plain_ms = change(usual, SHORT)["before"].mean / MS
    assert plain_ms == pytest.approx(4 * (LINK_MS + 80), abs=60)
    assert saved_ms(usual, SHORT) == pytest.approx(160, abs=10)
    assert saved_ms(usual, SHORT_QUIC) == pytest.approx(0, abs=10)
    assert change(usual, NOT_SPLIT)["percent"].mean == pytest.approx(0, abs=0.1)


@pytest.mark.thorough
@pytest.mark.system
def test_the_shorter_of_both_round_trips_is_what_counts() -> None:
    """Given a link of 100 ms and servers 300 ms away, expect the link's 100 ms twice, not 300."""
    answer = ask(settings=["link.*.delay=50ms"], terrestrial_ns=300 * MS)
    assert answer.figures["saved_on_paper_ns"] == 200 * MS
    assert saved_ms(answer, SHORT) == pytest.approx(200, abs=20)


@pytest.mark.system
def test_a_long_download_gains_its_slow_start_alone() -> None:
    """Given one download for the whole run, expect some 10 rounds of 80 ms of 110 s: below 1 %."""
    settings = ["traffic.large.size=1GB", "traffic.large-quic.size=1GB"]
    answer = ask(settings=settings)
    assert 0 <= change(answer, LARGE)["percent"].mean < 2


@pytest.mark.system
def test_a_later_download_is_measured_from_its_own_start() -> None:
    """Given one download over an idle link that starts after 10 or 40 s, expect nearly the same.

    Of the 70 or 40 s that are left, slow start takes some 3 s.
    """
    whole = ["duration=80s", *(f"traffic.{name}.size=1GB" for name in ("large", "large-quic"))]
    late = [f"traffic.{name}.start=40s" for name in ("large", "large-quic")]
    first, second = (
        change(ask(settings=settings), LARGE)["before"].mean for settings in (whole, whole + late)
    )
    assert second == pytest.approx(first, rel=0.1)


@pytest.mark.thorough
@pytest.mark.system
@pytest.mark.parametrize("gateways", ["hub", "*"])
def test_a_larger_window_over_the_link_saves_a_round(usual: Answer, gateways: str) -> None:
    """Given 30 segments on the leg over the link, expect two rounds of it instead of three.

    What the server sends in its second round, 80 ms later, is acknowledged later by that, so up to
    80 ms of the 542 ms are not saved. Without the PEP the time is unchanged: the setting is not for
    those runs.
    """
    changed = ask(settings=[f"gateways.{gateways}.pep.link_tcp.initial_window=30"])
    assert change(usual, SHORT)["before"] == change(changed, SHORT)["before"]
    more_ms = saved_ms(changed, SHORT) - saved_ms(usual, SHORT)
    assert LINK_MS - 80 <= more_ms <= LINK_MS + 10


@pytest.mark.system
def test_a_link_with_a_pep_is_compared_without_it(usual: Answer) -> None:
    """Given a scenario with a PEP, expect the times of the preset that its link is, in both."""
    of_file = ask(link=str(ROOT / "scenarios" / "geo-pep.yaml"))
    assert change(usual, SHORT)["before"] == change(of_file, SHORT)["before"]
    assert saved_ms(of_file, SHORT) == pytest.approx(saved_ms(usual, SHORT), abs=1)


@pytest.mark.thorough
@pytest.mark.system
def test_users_keep_the_link_as_busy_as_asked_for() -> None:
    """Given 40 % and a quarter of QUIC, expect both within their intervals."""
    answer = ask(load=0.4, quic_share=0.25, seeds=4)
    plain = answer.facts["found"][answer.figures["best"]["channels"], "plain"]
    busy, share = plain.of("busy"), plain.of("splittable_share")
    assert abs(busy.mean - 0.4) <= 0.05
    assert abs(share.mean - 0.75) <= 0.05 + (share.half_width or 0)
    assert change(answer, LARGE)["percent"].runs == 4
    assert 0 < change(answer, TOTAL)["before"].mean < 16e6 * 1448 / 1500


@pytest.mark.thorough
@pytest.mark.system
def test_users_of_quic_alone_have_nothing_that_can_be_split() -> None:
    answer = ask(load=0.2, quic_share=1.0)
    plain = answer.facts["found"][answer.figures["best"]["channels"], "plain"]
    assert plain.mean("splittable_share") == 0
    assert change(answer, TOTAL)["percent"].mean == pytest.approx(0, abs=2)


@pytest.mark.system
def test_goodput_is_over_the_duration_that_is_set() -> None:
    """Given runs of 30 s instead of 120, expect goodput near the link rate, not a quarter of it."""
    answer = ask(settings=["duration=30s", "traffic.large.size=1GB"])
    assert change(answer, LARGE)["before"].mean > 0.5 * 16e6
