"""Answers on calls, lectures and images, and what they suggest."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bentpipe import Scenario, answers, ask, simulate
from bentpipe.answers import QUESTIONS
from bentpipe.answers.catalog import class_of
from bentpipe.answers.question import Assumption
from bentpipe.answers.queues import fq_codel, with_classes
from bentpipe.answers.remedies import Goal, all_met, better_commands, is_better
from bentpipe.answers.runs import Experiment, Measurements, Samples
from bentpipe.answers.usable import Usable

# Others start after the last second, so that nothing but the outage delays packets of the call.
OUTAGE = ["link.*.outage=[{at: 5 s, for: 400 ms}]", "duration=10s"]
SILENT = {
    "usable": ["traffic.lecture.start=9.9s", "traffic.image.start=9.9s"],
    "buffer": ["traffic.transfer.start=9.9s"],
    "users": ["traffic.reader.start=9.9s", "traffic.video.start=9.9s"],
}
FIGURES = {"usable": "mos", "buffer": "call_mos", "users": "mos_p5"}
QUEUE = "link.forward.queue={discipline: fq_codel, target: 27.1 ms, interval: 542 ms}"


def measured(**figures: float) -> Measurements:
    """Return figures that are the same in two runs."""
    return Measurements({name: np.array([value, value]) for name, value in figures.items()})


# --- the quality of calls -------------------------------------------------------------------------


@pytest.mark.parametrize("question", FIGURES)
def test_the_same_call_has_the_same_mos_in_a_run_and_in_each_answer(question: str) -> None:
    """Given an outage of 400 ms in 10 s both ways, expect the MOS of the call alone.

    Packets are sent every 20 ms at another phase, so their number that is late differs by one.
    """
    # That of users starts when they are in a steady state.
    voice = {"kind": "voice", "start": "2 s" if question == "users" else "0 s"}
    call = {"link": {"preset": "geo"}, "traffic": [voice], "duration": "10 s"}
    alone = simulate(Scenario.from_dict(call, OUTAGE[:1])).flows["mos"].to_list()
    more: dict[str, Any] = {"downloads": 0} if question == "usable" else {}
    asked: Any = class_of(question)
    settings, experiment = [*OUTAGE, *SILENT[question]], Experiment(seeds=1, threads=1)
    found = asked(settings=settings, experiment=experiment, **more).run_case()
    assert 1.5 < alone[0] < 3.5
    assert found.mean(FIGURES[question]) == pytest.approx(alone[0], abs=0.1)


def test_the_reason_for_a_call_has_its_delay_and_what_its_buffer_loses() -> None:
    """Given no other traffic over GEO, expect 352 ms from mouth to ear: Idd is 20, nothing is late.

    They are 20 ms of speech, 271 ms, 200 bytes at 2 Mbit/s, and 60 ms of buffer.
    """
    answer = ask("usable", "geo", downloads=0, image="10 kB", video="50 kbit/s", seeds=2, threads=1)
    assert answer.figures["mouth_to_ear_ns"].mean / 1e6 == pytest.approx(351.8, abs=2)
    assert "buffer of 60 ms: that takes 20 of 93 from the R-factor. 0.0 %" in answer.reason
    assert "image" not in answer.reason


@pytest.mark.parametrize(
    ("r_factors", "usable"),
    [((59, 63), None), ((59.9, 60.2), None), ((61, 62), True), ((50, 51), False)],
)
def test_a_service_with_its_limit_inside_the_interval_is_not_decided(
    r_factors: tuple[float, ...], usable: bool | None
) -> None:
    found = Measurements(r_factor=np.repeat(r_factors, 5))
    assert Goal("r_factor", 60, more_is_better=True).is_met(found) is usable


def test_verdicts_on_several_services_hold_together() -> None:
    """Given 61 with a half width of 0.38, or 0.52 as one of four, expect 60.55 to be inside of one.

    The standard error is 0.167; Student's t of nine degrees of freedom has 2.26 and 3.11.
    """
    found, goal = Measurements(r_factor=np.repeat((60.5, 61.5), 5)), Goal("r_factor", 60.55, True)
    assert all_met([goal], found) is True
    assert all_met([goal], found, comparisons=4) is None
    assert all_met([goal, Goal("r_factor", 70, True)], found, comparisons=4) is False


# --- suggestions ----------------------------------------------------------------------------------

GOALS = (
    Goal("r_factor", 60, more_is_better=True),
    Goal("stall_percent", 1),
    Goal("loss_percent", 1),
    Goal("page_ns"),
)
BEFORE = {"r_factor": 50.0, "stall_percent": 0.0, "loss_percent": 0.98, "page_ns": 2e9}


@pytest.mark.parametrize(
    ("changes", "better"),
    [
        ({"r_factor": 70}, True),
        ({"page_ns": 1.5e9}, True),
        ({}, False),
        # Less than 5 % of 60, and of 2 s.
        ({"r_factor": 52, "page_ns": 1.91e9}, False),
        ({"r_factor": 70, "page_ns": 2.2e9}, False),
        # From no stalls to 4 % of what is allowed, and to 20 %.
        ({"r_factor": 70, "stall_percent": 0.04}, True),
        ({"r_factor": 70, "stall_percent": 0.2}, False),
        ({"r_factor": 70, "page_ns": np.nan}, False),
        # From 0.98 % to 1.02 %, of which 1 % is allowed.
        ({"r_factor": 70, "loss_percent": 1.02}, False),
    ],
)
def test_a_change_is_better_if_it_gains_and_makes_nothing_worse(
    changes: dict[str, float], better: bool
) -> None:
    assert is_better(GOALS, measured(**BEFORE), measured(**BEFORE | changes)) is better


def test_a_gain_that_may_be_chance_is_no_reason_to_suggest() -> None:
    after = measured(**BEFORE) | {"r_factor": np.array([41.0, 69.0])}
    assert not is_better(GOALS, measured(**BEFORE), Measurements(after))


@pytest.mark.parametrize("image_s", [6.0, 12.0])
def test_a_queue_that_makes_images_slower_is_not_suggested(image_s: float) -> None:
    """Given a call that gains, expect the command if fewer images are late, not if more are.

    It keeps what was asked, the downloads and the image.
    """
    figures = {"lecture_start_up_ns": 3e9, "lecture_stall_percent": 0.0}
    before = measured(r_factor=30, image_late_percent=2, **figures)
    late_percent = 1 if image_s < 10 else 12
    after = measured(r_factor=70, image_late_percent=late_percent, **figures)
    remedy = Assumption("with fq_codel", "its queue", (QUEUE,), is_remedy=True)
    other = Assumption("without downloads", "with them", ("traffic.download.count=1",))
    asked = Usable(downloads=3, image="1 MB")
    command = f"bentpipe ask usable --link geo --set '{QUEUE}' --image '1 MB' --downloads 3"
    expected = [command] if image_s < 8 else []
    assert [*better_commands(asked, before, {remedy: after, other: after})] == expected


@pytest.mark.thorough
@pytest.mark.system
@pytest.mark.parametrize("link", ["geo", "isdn-return"])
def test_what_an_answer_suggests_is_better_when_it_is_asked(link: str) -> None:
    """Given fq_codel where the call is not usable, expect the command only if it is better."""
    asked = Usable(link=link, experiment=Experiment(seeds=3))
    before = asked.ask()
    wires = dict(zip(("forward", "return"), asked.directions, strict=True))
    settings = [
        f"link.{name}.queue={fq_codel(asked.rtt_ns, wires[name])}" for name in asked.limiting
    ]
    after = ask("usable", link, settings=settings, seeds=3)
    means = (
        measured(**{goal.figure: each.figures[goal.figure].mean for goal in Usable.goals})
        for each in (before, after)
    )
    suggested = any("fq_codel" in command for command in before.commands)
    assert suggested == is_better(Usable.goals, *means)


@pytest.mark.system
def test_a_call_on_a_slow_return_gets_a_class_there() -> None:
    """Given a return that acknowledgements fill, expect a class of it for the call's packets.

    Of 80 kbit/s of a call on 128, expect an R of its delay, less than 350 ms, and nothing lost.
    """
    settings = ["link.forward.rate=100Mbit/s", "link.forward.queue.limit=200kB"]
    asked = Usable(link="isdn-return", settings=settings, experiment=Experiment(seeds=2, threads=1))
    answer = asked.ask()
    assert asked.limiting == ("return",)
    assert re.search(r"the return (99|100) %. In the return direction a call takes", answer.reason)
    text = "with the call before the rest on the return link"
    assert text in [effect.assumption for effect in answer.effects]
    others = (f"traffic.{name}.priority=1" for name in ("lecture", "image", "download"))
    first = asked.run_case(with_classes("return", asked.directions[1]), *others)
    assert first.mean("return_r_factor") > 70


def test_images_are_judged_by_those_that_are_late() -> None:
    """Given six images a run, of which one takes 11 s in most runs, expect them not usable.

    The mean over runs of the 95th percentiles is below 10 s.
    """
    asked = Usable()
    runs = [np.array([5.0] * 5 + [11.0 if run < 8 else 5.0]) * 1e9 for run in range(10)]
    figures = dict.fromkeys(("r_factor", "lecture_start_up_ns", "lecture_stall_percent"), 1.0)
    found = measured(**figures, mouth_to_ear_ns=1.0)
    found["image_p95_ns"] = np.array([Samples(each, 0.95) for each in runs])
    found["image_late_percent"] = np.array(
        [Samples(np.where(each > 1e10, 100.0, 0.0)) for each in runs]
    )
    answer = asked.judge({"as asked": found})
    assert answer.figures["usable"]["image"] is False
    assert answer.figures["image_p95_ns"].mean == 11e9


@pytest.mark.system
def test_images_that_did_not_arrive_have_no_time() -> None:
    """Given 20 MB up a return of 512 kbit/s, expect a bound, 313 s on paper, and no effect on it.

    160 Mbit take 312.5 s, and two round trips over GEO 1.08 s; a run has 120 s.
    """
    settings = ["link.forward.rate=4Mbit/s", "link.return.rate=512kbit/s"]
    settings.append("traffic.image.direction=return")
    answer = ask("usable", "geo", image="20 MB", settings=settings, seeds=2, threads=1)
    assert answer.figures["image_cut_percent"].mean == 100
    assert "an unknown time, more than 11" in answer.lines[2]
    assert "100 % had not arrived at the end of a run" in answer.lines[2]
    assert "an image takes 313.6 s at least" in answer.reason
    assert "rate of the return link" in answer.reason
    assert not any("the time of 95 % of the images" in effect.figure for effect in answer.effects)


def test_the_codec_of_the_call_is_named() -> None:
    assert Usable().codec == "G.711"
    assert Usable(settings=["traffic.call.codec=g729"]).codec == "G.729A"


# --- small packets --------------------------------------------------------------------------------


@pytest.mark.system
def test_delay_is_the_reason_where_calls_wait_before_they_are_lost() -> None:
    """Given 2 Mbit/s of return and calls of 80 kbit/s, expect 25, and a wait of the 26th.

    26 calls exceed the rate by 80 kbit/s: packets sent after t wait for 0.04 t, up to 200 ms after
    5 s, which the queue of 542 ms holds. So 99 % of them wait up to 198 ms, and nothing is lost.
    """
    answer = ask("small-packets", "geo", seeds=1, threads=1)
    assert answer.figures["calls"] == 25
    one_more = answer.figures["one_more"]
    assert (one_more["exceeds"], one_more["loss_percent"]) == ("wait_p99_ns", 0)
    assert one_more["wait_p99_ns"] == pytest.approx(198e6, rel=0.03)
    assert "delay is the limit" in answer.reason
    assert "one more loses 0.00 %, but 99 % of its packets wait up to" in answer.lines[0]


@pytest.mark.system
def test_calls_on_a_channel_that_loses_packets_are_refused_for_that() -> None:
    """Given 1 % of loss, expect no call, and the channel as the reason, not a limit of a rate."""
    settings = ["link.forward.loss=1%"]
    answer = ask("small-packets", "leo", settings=settings, seeds=1, threads=1)
    assert answer.figures["calls"] == 0
    assert answer.figures["one_more"]["exceeds"] == "channel_loss_percent"
    assert answer.reason.startswith("the channel loses")


@pytest.mark.system
def test_small_processors_carry_their_rate_over_that_of_a_call() -> None:
    """Given 400 packets/s and calls of 100 both ways, expect 4; with a fifth, 1 of 5 is lost."""
    answer = ask("small-packets", "leo", packets_per_second=400, seeds=1, threads=1)
    assert answer.figures["calls"] == answer.figures["bounds_calls"]["packet processors"] == 4
    assert answer.figures["one_more"]["exceeds"] == "loss_percent"
    assert 15 < answer.figures["one_more"]["loss_percent"] <= 20
    assert "aggregator is one packet for the processor" in answer.reason


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_command_with_settings_was_run_before_it_is_printed(question: str) -> None:
    """Given the words of a question, expect settings of its commands from remedies alone."""
    template = Path(answers.__file__).parent / "templates" / f"{question}.txt.j2"
    commands = template.read_text(encoding="utf-8").split("## commands\n")[1].split("\n## ")[0]
    own = [line for line in commands.splitlines() if "ask_command(q.name" in line]
    assert not any("settings=" in line or "--set" in line for line in own)
