"""The answer of ``bentpipe ask coding``: its verdict by numbers made for it, and one real run."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from conftest import Program
from hypothesis import given, strategies as st

from bentpipe import Answer, ask
from bentpipe.answers.answer import words
from bentpipe.answers.coding import Coding
from bentpipe.answers.runs import Measurements, Verdict
from bentpipe.answers.variants import HOSTS, PLAIN, Case
from bentpipe.errors import RunsInterrupted
from bentpipe.results.confidence import t_quantile
from bentpipe.simulation.executor import run_many

PEP, AT_ONCE, TITRATED, ADAPTIVE, PEP_ADAPTIVE = (
    "pep",
    "at_once",
    "titrated",
    "adaptive",
    "pep_adaptive",
)
MEASURES, CODED = Coding().titles, Coding().boxes
# What runs differ by, in percent; its mean is 0.
NOISE = np.array([-1.0, 0.5, 0.0, 1.5, -1.0])


def runs(
    total: float = 0.0, p50: float = 0.0, p95: float = 0.0, *, noise: float = 0.2, seeds: int = 5
) -> Measurements:
    """Return figures of runs whose means differ from 100 by so many percent."""
    means = {"total_bps": total, "transfer_bps": 0.0, "small_p50_ns": p50, "small_p95_ns": p95}
    return Measurements({name: 100 + mean + noise * NOISE[:seeds] for name, mean in means.items()})


# The plain link has a noise of its own, so that differences vary.
PLAIN_RUNS = runs(noise=-0.2)


def compare(before: Measurements, after: Measurements, load: int = 20) -> Verdict:
    found: dict[Case, Measurements] = {(load, PLAIN): before, (load, ADAPTIVE): after}
    return Coding(loads=[load]).verdict(found, load, ADAPTIVE)


def facts(**changed: float) -> dict[str, float]:
    """Return what a reason is made of."""
    return {
        "queue_drops": 100.0,
        "error_losses": 0.0,
        "link_loss_percent": 2.0,
        "queue_empty_percent": 40.0,
        "repairs_received_percent": 90.0,
        "repairs_unsent_percent": 0.0,
        "loss_before_percent": 2.0,
        "loss_after_percent": 1.5,
        "link_bytes_per_byte": 1.05,
        "busy_percent": 50.0,
        "repair_share_percent": 10.0,
        "order_wait_mean_ns": 0.0,
        **changed,
    }


def judged(
    *loads: dict[str, Measurements],
    seeds: int = 5,
    plain: dict[str, float] | None = None,
    coded: dict[str, float] | None = None,
    settings: Sequence[str] = (),
) -> Answer:
    """Return the answer for 20 channels, and 0, from figures of variants.

    Variants that are not given are those of the plain link.
    """
    asked = Coding(loads=[20, 0][: len(loads)], settings=settings)
    found: Any = {}
    for load, cases in zip((20, 0), loads, strict=False):
        for name, variant in asked.variants.items():
            others = (coded if variant.tunnel else plain) or facts()
            figures = {each: np.full(5, value) for each, value in others.items()}
            figures |= cases.get(name, PLAIN_RUNS)
            found[load, name] = Measurements({each: figures[each][:seeds] for each in figures})
    answer = asked.judge(found)
    texts = words("coding", asked.facts(answer))
    return Answer(figures=answer.figures, facts=answer.facts, **texts)


def headline(*loads: dict[str, Measurements]) -> str:
    return judged(*loads).lines[0]


# --- verdict --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        (runs(total=20), "gains"),
        (runs(total=-20), "loses"),
        # Less time is a gain.
        (runs(p50=-20), "gains"),
        (runs(p95=20), "loses"),
        (runs(total=20, p95=20), "mixed"),
        # A lost total is not made up for by small downloads.
        (runs(total=-20, p95=-30), "loses"),
        # Shown, but too small to matter.
        (runs(total=2), "equal"),
        # The mean is above 5 %, the interval is not.
        (runs(total=6), "not decided"),
        # Large, but its interval contains zero.
        (runs(total=20, noise=30), "not decided"),
        (PLAIN_RUNS, "equal"),
        # One run has no interval.
        (runs(total=20, seeds=1), "not decided"),
    ],
)
def test_intervals_decide(figures: Measurements, expected: str) -> None:
    before = Measurements(
        {name: values[: figures[name].size] for name, values in PLAIN_RUNS.items()}
    )
    assert compare(before, figures).kind == expected


def test_the_change_is_that_of_pairs() -> None:
    """Given totals 20 % higher with opposite noise, expect Student's t of the ratio of means.

    It varies by 1 + 1.2 times the noise, of variance 0.04 x 4.5 / 4. A headline chooses from 56
    changes at a load: 4 figures of two remedies, of four codings, and of these beside each remedy.
    """
    change = compare(PLAIN_RUNS, runs(total=20)).changes[0]
    assert change.percent.mean == pytest.approx(20)
    quantile = t_quantile(1 - 0.05 / 112, 4)
    assert change.percent.half_width == pytest.approx(quantile * 2.2 * 0.2 * math.sqrt(4.5 / 4 / 5))


@given(st.floats(-90, 900), st.floats(-90, 900), st.floats(-90, 900))
def test_swapped_gains_and_losses_swap_the_verdict(total: float, p50: float, p95: float) -> None:
    """Given any changes, expect gains and losses to be disjoint, and to be intervals beside 0."""
    found = compare(PLAIN_RUNS, runs(total, p50, p95))
    gains, losses = found.having("gains"), found.having("loses")
    assert all(each.gain.low >= 5 for each in gains)
    assert all(each.gain.high <= -5 for each in losses)
    assert (found.kind == "gains") == (bool(gains) and not losses)


# --- headline -------------------------------------------------------------------------------------

LOSING = {each: runs(total=-30) for each in CODED}


def test_the_variant_with_the_best_total_of_those_that_gain_is_named() -> None:
    cases = {TITRATED: runs(total=10), ADAPTIVE: runs(total=20), AT_ONCE: runs(total=-30)}
    line = headline(cases)
    assert line.startswith(
        "Coding gains at 20 channels; most gains adaptive coding at 20 channels: "
        "total goodput +20.0 % (+1"
    )
    assert line.endswith("; it does better than FQ-CoDel with 1.084 MB (one BDP)")


def test_loads_at_which_nothing_gains_are_named() -> None:
    line = headline({ADAPTIVE: runs(total=20)}, LOSING)
    assert line.endswith(". At 0 channels it gains nothing, and loses")


def test_a_loss_of_all_variants_is_said_first() -> None:
    line = headline(LOSING | {TITRATED: runs(total=-10)})
    assert line.startswith("Coding loses at 20 channels; least titrated coding at 20 channels: to")


def test_no_difference_is_said_so_and_what_is_not_decided_with_the_runs_that_would() -> None:
    assert headline({ADAPTIVE: runs(total=2)}).startswith("No gain or loss of 5 % or more between")
    lines = judged({ADAPTIVE: runs(total=20, noise=30)}).lines
    assert lines[0].startswith("Not decided whether coding gains; most has adaptive coding at 20 ")
    assert any("leaves total goodput (some " in line for line in lines)


def test_a_loss_beside_no_difference_is_said() -> None:
    line = headline({AT_ONCE: runs(total=-30)})
    assert line.startswith("Coding shows no gain: its best is ")
    assert "most loses coding sent at once at 20 channels: total goodput -30.0 %" in line


def test_a_gain_with_a_loss_names_both() -> None:
    line = headline(LOSING | {ADAPTIVE: runs(20, p50=19)})
    assert line.startswith("Coding gains and loses: adaptive coding at 20 channels gains (total ")
    assert "), loses (median time of small downloads +19.0 % (" in line


@pytest.mark.parametrize(
    ("coding", "does"), [(50.0, "does no better in total"), (0.0, "shows no gain")]
)
def test_a_remedy_without_a_box_that_is_as_good_is_the_headline(coding: float, does: str) -> None:
    """Given BBR at the hosts with a total of +50 %, expect it, not coding with the same one."""
    answer = judged({HOSTS: runs(total=50), ADAPTIVE: runs(total=coding)})
    assert answer.figures["advice"] == "remedy"
    assert answer.lines[0].startswith("At 20 channels BBR at the hosts gains (total goodput +50.0")
    assert answer.lines[0].endswith(f"; coding {does}")


def test_the_best_remedy_is_the_headline() -> None:
    """Given FQ-CoDel with +60 %, BBR with +50 % and coding with +40 %, expect FQ-CoDel.

    The line on what needs no box has both.
    """
    cases = {"fq_codel": runs(total=60), HOSTS: runs(total=50), ADAPTIVE: runs(total=40)}
    answer = judged(cases)
    first, second, *_ = answer.lines
    assert first.startswith("At 20 channels FQ-CoDel with 1.084 MB (one BDP) gains (total goodput ")
    assert second.startswith("Without a box, at 20 channels: BBR at the hosts gains (total goodput")
    assert "; coding does no better in total" in first
    assert answer.figures["remedy"] == {"case": "fq_codel", "verdict": "gains"}
    (command,) = (each for each in answer.commands if "fq_codel" in each)
    assert "interval: 542 ms, limit: 1bdp" in command


def test_a_remedy_that_is_alone_is_named_once() -> None:
    """Given a queue with classes, which stays, expect no list of remedies after the headline."""
    classes = ["link.forward.queue={discipline: strict_priority, classes: 2}"]
    first, second, *_ = judged({HOSTS: runs(total=50)}, settings=classes).lines
    assert first.startswith("At 20 channels BBR at the hosts gains (total goodput +50.0")
    assert second.startswith("Compared with BBR at the hosts, ")


def test_coding_has_to_beat_each_remedy() -> None:
    """Given FQ-CoDel that gains little and loses nothing, and BBR with a larger total, expect BBR.

    Coding does better than FQ-CoDel, and not better than BBR, which small downloads pay for.
    """
    hosts = runs(total=60, p95=20)
    answer = judged({"fq_codel": runs(p50=-20), HOSTS: hosts, ADAPTIVE: runs(total=40)})
    assert answer.figures["advice"] == "remedy"
    assert answer.lines[0].startswith("At 20 channels BBR at the hosts gains (total goodput +60.0")


def test_coding_that_loses_the_total_beside_a_remedy_is_not_better() -> None:
    """Given FQ-CoDel with +60 % and long small downloads, and coding with +30 %, expect FQ."""
    answer = judged({"fq_codel": runs(total=60, p95=30), ADAPTIVE: runs(total=30)})
    assert answer.figures["advice"] == "remedy"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ([], ["fq_codel", HOSTS]),
        (["forward.queue.limit=120kB"], ["one_bdp", "fq_codel", HOSTS]),
        (["forward.queue.limit=1.05bdp"], ["fq_codel", HOSTS]),
        (["forward.queue.limit=2bdp"], ["one_bdp", "fq_codel", HOSTS]),
        (["forward.queue.limit=50 packets"], ["one_bdp", "fq_codel", HOSTS]),
        (["forward.queue.limit=unlimited"], ["one_bdp", "fq_codel", HOSTS]),
        (["forward.queue={discipline: fq_codel}"], ["one_bdp", "fq_codel", HOSTS]),
        (["forward.queue={discipline: strict_priority, classes: 2}"], [HOSTS]),
        # Four packets fill such a link.
        (["forward.rate=0.5Mbit/s", "*.delay=5ms", "forward.queue.limit=60kB"], [HOSTS]),
        (["*.delay=0ms", "*.queue.limit=100kB"], [HOSTS]),
    ],
)
def test_another_queue_is_a_remedy(settings: list[str], expected: list[str]) -> None:
    """Given a queue, expect one of a BDP and FQ-CoDel, unless it is that or there is no room."""
    asked = Coding(settings=[f"link.{each}" for each in settings])
    assert [*asked.without_box] == expected


def test_the_queues_of_remedies_have_one_bdp() -> None:
    """Given 16 Mbit/s and 542 ms, expect 1.084 MB for both, and CoDel's times for that."""
    asked = Coding(queue="120kB", settings=["link.forward.loss=1%"])
    plain, sized, managed = (
        asked.case_plan(name, []).data["directions"][0] for name in (PLAIN, "one_bdp", "fq_codel")
    )
    assert plain["queue"]["limit"]["value"] == 120_000
    assert sized["queue"]["discipline"] == "drop_tail"
    for each in (sized["queue"], managed["queue"]):
        assert each["limit"]["value"] == pytest.approx(1_084_000, rel=0.001)
    assert managed["queue"]["discipline"] == "fq_codel"
    assert managed["queue"]["interval_ns"] == pytest.approx(542e6, rel=0.001)
    others = [{**wire, "queue": None} for wire in (plain, sized, managed)]
    assert others[0] == others[1] == others[2]


def test_a_remedy_that_loses_the_total_is_not_the_headline() -> None:
    """Given BBR with small downloads in half the time, and a total of -30 %, expect no advice.

    With seeds 21 to 40 this was the headline of `ask coding --link geo`, with 1 to 20 it was not.
    """
    answer = judged(dict.fromkeys(("fq_codel", HOSTS), runs(total=-30, p50=-50)))
    assert answer.figures["advice"] == "none"
    assert answer.lines[0].startswith("No gain or loss of 5 % or more between coding and the plain")


def test_one_run_decides_nothing() -> None:
    lines = judged({}, seeds=1).lines
    assert lines[0].startswith("One run has no interval, so nothing is decided")


def test_of_gains_with_losses_the_largest_difference_counts() -> None:
    """Given totals of +60 and +50 % with times of +40 and +10 %, expect the second one."""
    answer = judged(LOSING | {AT_ONCE: runs(60, p50=40), ADAPTIVE: runs(50, p50=10)})
    assert answer.figures["best"]["case"] == ADAPTIVE


def test_a_short_queue_is_not_suggested() -> None:
    """Given the link's own queue, expect no command with a shorter one, which loses goodput."""
    assert not any("--queue" in each for each in judged({}).commands)


def test_a_queue_is_named_once_in_the_command() -> None:
    asked = Coding(queue="120kB")
    assert asked.command == "bentpipe ask coding --link geo --set link.forward.queue.limit=120kB"
    assert replace(asked).command == asked.command


# --- reason ---------------------------------------------------------------------------------------


def text(plain: dict[str, float], coded: dict[str, float]) -> str:
    return judged({ADAPTIVE: runs(total=20)}, plain=plain, coded=coded).reason


def test_the_cause_of_losses_is_that_of_nine_tenths() -> None:
    assert "100 % of them dropped by its queue" in text(facts(), facts())
    errors = facts(queue_drops=5, error_losses=95)
    assert "95 % of them by errors of the channel" in text(errors, facts())
    both = text(facts(queue_drops=50, error_losses=50), facts())
    assert "50 % of them dropped by its queue and 50 % lost by errors" in both
    assert "nothing to recover" in text(facts(queue_drops=0), facts())


def test_repair_that_recovers_little_met_bursts() -> None:
    """Given 2 % before and 1.5 % after, expect a quarter; given 0.5 % after, three quarters."""
    assert "It recovers 25 % of the losses: the others come in bursts" in text(facts(), facts())
    assert "It recovers 75 % of the losses." in text(facts(), facts(loss_after_percent=0.5))


def test_repair_that_was_not_sent_recovers_nothing() -> None:
    assert "as most repair was not sent" in text(facts(), facts(repairs_unsent_percent=94))


def test_more_losses_than_without_are_said() -> None:
    grown = text(facts(), facts(loss_before_percent=4))
    assert "There are more of them: 4.00 % of the packets instead of 2.00 %" in grown


def test_overhead_is_of_the_bytes_of_the_link() -> None:
    """Given 1.40 instead of 1.05 bytes a byte, expect a quarter of what the link sends."""
    assert "take 25 % of what the link sends" in text(facts(), facts(link_bytes_per_byte=1.4))


# --- runs -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lossy() -> Answer:
    """GEO with 2 % of the packets lost at random, and no channels."""
    return ask("coding", "geo", settings=["link.forward.loss=2%"], loads=[0], seeds=1)


def case(answer: Answer, variant: str) -> dict[str, Any]:
    (found,) = (each for each in answer.figures["cases"] if each["case"] == variant)
    return dict(found)


@pytest.mark.system
def test_repair_recovers_random_losses(lossy: Answer) -> None:
    """Given 2 % of random loss, expect adaptive coding to recover most and TCP to gain much.

    CUBIC over 542 ms is far below the link rate at 2 %. 10 % of repair is five times the loss.
    """
    assert case(lossy, PLAIN)["link_loss_percent"].mean == pytest.approx(2, abs=0.6)
    for variant in CODED:
        found = case(lossy, variant)
        assert found["loss_after_percent"].mean < found["loss_before_percent"].mean
        assert found["total_bps"].mean > 2 * case(lossy, PLAIN)["total_bps"].mean
    assert "by errors of the channel" in lossy.reason


@pytest.mark.system
def test_random_losses_do_not_slow_down_bbr_at_the_hosts(lossy: Answer) -> None:
    """Given 2 %, expect CUBIC at what one loss in 50 packets leaves, and BBR near the link rate.

    Between two losses CUBIC's window returns from 0.7 W to W in K = (0.75 W)^(1/3) s, on average
    0.925 W. That are 50 packets: 0.925 W K = 50 RTT, so W = 13.6 and the rate 268 kbit/s. Random
    gaps have a few long ones, with more. BBR loses 2 % of the rate, and in PROBE_RTT some 8 %.
    """
    window = (50 * 0.542 / 0.925 / 0.75 ** (1 / 3)) ** (3 / 4)
    cubic_bps = 0.925 * window * 1448 * 8 / 0.542
    assert case(lossy, PLAIN)["transfer_bps"].mean == pytest.approx(cubic_bps, rel=0.5)
    bbr_bps = case(lossy, HOSTS)["transfer_bps"].mean
    assert 0.6 < bbr_bps / (0.98 * 0.92 * 16e6 * 1448 / 1500) < 1.01


@pytest.mark.system
def test_without_losses_coding_costs_its_headers_and_its_repair() -> None:
    """Given a transfer alone, expect 1374 bytes of a packet instead of 1448, and 10 of 11 packets.

    A packet of the tunnel has 68 bytes of headers, and 6 for the packet within, so a segment has
    1500 - 74 - 52. The transfer fills the link but for slow start, and small downloads.
    """
    answer = ask("coding", "geo", loads=[0], seeds=1)
    plain = case(answer, PLAIN)["total_bps"].mean
    for variant, share in ((ADAPTIVE, 1374 / 1448), (AT_ONCE, 1374 / 1448 * 10 / 11)):
        assert case(answer, variant)["total_bps"].mean / plain == pytest.approx(share, abs=0.03)


def test_fixed_repair_is_a_tenth_of_the_symbols(lossy: Answer) -> None:
    """Given 10 % redundancy and few packets uncoded, expect 1 in 11 bytes to be repair."""
    assert case(lossy, AT_ONCE)["repair_share_percent"].mean == pytest.approx(100 / 11, abs=0.5)
    for variant in (PLAIN, PEP):
        assert "repair_share_percent" not in case(lossy, variant)
    assert case(lossy, PEP_ADAPTIVE)["repair_share_percent"].mean > 0


def test_packets_wait_for_their_order_unless_they_need_not(lossy: Answer) -> None:
    assert case(lossy, ADAPTIVE)["order_wait_mean_ns"].mean > 0
    assert case(lossy, "unordered")["order_wait_mean_ns"].mean == 0


@pytest.mark.system
def test_settings_of_a_tunnel_are_for_tunnels(lossy: Answer) -> None:
    """Given a cap of 5 %, expect less repair of adaptive coding, and the same plain link."""
    changed = ask(
        "coding",
        "geo",
        settings=["link.forward.loss=2%", "gateways.hub.tunnel.redundancy_max=5%"],
        loads=[0],
        seeds=1,
    )
    assert case(changed, PLAIN) == case(lossy, PLAIN)
    name = "repair_share_percent"
    assert case(changed, ADAPTIVE)[name].mean < case(lossy, ADAPTIVE)[name].mean


@pytest.mark.system
def test_a_hold_time_is_for_variants_with_order(lossy: Answer) -> None:
    """Given a short hold time, expect other ordered coding, and the same without order."""
    changed = ask(
        "coding",
        "geo",
        settings=["link.forward.loss=2%", "gateways.*.tunnel.order_hold_time=10ms"],
        loads=[0],
        seeds=1,
    )
    assert case(changed, "unordered") == case(lossy, "unordered")
    name = "order_wait_mean_ns"
    assert case(changed, ADAPTIVE)[name].mean < case(lossy, ADAPTIVE)[name].mean


def interrupt_after(batches: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Press Ctrl-C in the runs after so many seeds."""
    done = iter(range(batches))

    def interrupted(*arguments: Any, **options: Any) -> Any:
        if next(done, None) is None:
            raise RunsInterrupted("interrupted")
        return run_many(*arguments, **options)

    monkeypatch.setattr("bentpipe.answers.runs.run_many", interrupted)
    # A batch is a seed.
    monkeypatch.setattr("bentpipe.answers.runs.cores", lambda: 0)


@pytest.mark.system
def test_ctrl_c_keeps_the_seeds_that_are_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given Ctrl-C in the third seed, expect the answer of two; in the first one, none."""
    interrupt_after(2, monkeypatch)
    kept = ask("coding", "geo", loads=[0], seeds=4)
    assert kept.interrupted
    assert kept.to_json()["interrupted"]
    assert case(kept, PLAIN)["total_bps"].runs == 2
    with pytest.raises(RunsInterrupted):
        ask("coding", "geo", loads=[0], seeds=4)


def test_an_interrupted_command_answers_and_exits_with_130(
    bentpipe: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_after(1, monkeypatch)
    shown = bentpipe("ask", "coding", "--load", "0", "--seeds", "3")
    assert shown.code == 130
    assert "One run has no interval" in " ".join(shown.out.split())
    assert "interrupted; the answer is that of the runs that were complete" in shown.err


def test_the_json_has_the_parameters_and_the_runs_of_a_change(lossy: Answer) -> None:
    answer = json.loads(json.dumps(lossy.to_json()))
    assert answer["parameters"]["loads"] == [0]
    (change,) = (
        each
        for each in answer["figures"]["changes"]
        if (each["case"], each["compared_with"]) == (AT_ONCE, PLAIN)
    )
    assert {*MEASURES} < {*change}
    assert change["total_bps"]["percent"]["runs"] == 1
