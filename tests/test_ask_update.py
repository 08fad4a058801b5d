"""``bentpipe ask update``, compared with what follows on paper."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest

from bentpipe import Answer, ask, simulate
from bentpipe.answers import Estimate
from bentpipe.answers.answer import words
from bentpipe.answers.catalog import class_of
from bentpipe.answers.runs import Measurements, Samples
from bentpipe.answers.traffic import elapsed_h, elapsed_range_h, page_times
from bentpipe.answers.update import CASES, WAYS, Case, Update

DAY_H, NIGHT_H = 18, 6


def test_an_update_goes_on_from_day_to_day() -> None:
    """Given 1 Mbit/s by day and 4 in the night, expect 151.2 Gbit a day, and then the hours left.

    Of 400 Gbit, 97.6 are left after two days: 64.8 by day, and 32.8 at 4 Mbit/s in the night.
    """
    phases = [(DAY_H, 1e6), (NIGHT_H, 4e6)]
    assert elapsed_h(151.2e9, phases) == pytest.approx(24)
    assert elapsed_h(400e9, phases) == pytest.approx(48 + DAY_H + 32.8e9 / 4e6 / 3600)


def test_an_update_in_the_night_alone_waits_for_the_next_night() -> None:
    """Given 4 Mbit/s for 6 hours a day, 86.4 Gbit, expect 691 Gbit to take 8 days, not 2."""
    phases = [(NIGHT_H, 4e6), (DAY_H, 0)]
    assert elapsed_h(8 * 86.4e9, phases) == pytest.approx(7 * 24 + NIGHT_H)
    assert elapsed_h(86.4e9 / 2, phases) == pytest.approx(NIGHT_H / 2)


def test_an_update_over_a_full_link_never_ends() -> None:
    assert elapsed_h(1.0, [(DAY_H, 0.0), (NIGHT_H, 0.0)]) == math.inf


def test_the_time_of_an_update_has_the_ends_of_its_rates() -> None:
    """Given 2 ± 1 Mbit/s for 12 hours a day and 86.4 Gbit, expect 12 h, 8 h, and 36 h."""
    hours, ends = elapsed_range_h(86.4e9, [(12, Estimate(2e6, 1e6, 5))], 24)
    assert [hours, *ends] == pytest.approx([12, 8, 36])
    assert elapsed_range_h(1.0, [(12, Estimate(1e6, 2e6, 5))], 24)[1][1] == math.inf


@pytest.mark.thorough
@pytest.mark.system
def test_the_lowest_class_gets_what_users_leave() -> None:
    """Given users who keep 16 Mbit/s 60 % busy, expect 6.4 Mbit/s, less headers and starts.

    The class of the users gives eight downloads more than that, at the cost of the pages.
    """
    answer = ask("update", "geo", sites=200, seeds=2, threads=1)
    shared, lowest, night, last = answer.figures["ways"]
    left_bps = 0.4 * 16e6
    assert 0.85 * left_bps < lowest["update_bps"].mean < 1.02 * left_bps
    assert shared["update_bps"].mean > 1.2 * left_bps
    assert shared["page_p50_ns"].mean > 1.5 * lowest["page_p50_ns"].mean
    # 200 copies of 500 MB are 800 Gbit. A night of six hours at 0.9 of 16 Mbit/s carries 311.
    assert [way["way"] for way in answer.figures["ways"]] == [*WAYS]
    assert 48 < night["hours"] < 48 + 24
    assert answer.figures["once_hours"] == pytest.approx(4e9 / left_bps / 3600, rel=0.1)
    # As long as in the class of the users, at no cost.
    assert night["hours"] < last["hours"] < 1.1 * night["hours"]
    assert answer.lines[0].partition(") ")[2].startswith(("in the lowest class: ", last["way"]))


def test_pages_of_readers_alone_count() -> None:
    """Given small pages beside long downloads, expect no time of a download among them.

    In runs of 20 s pages count that start from the 4th to the 16th second.
    """
    page = {"name": "reader", "kind": "request_response", "direction": "forward", "request": "1 B"}
    page |= {"response": "1 kB", "think": "100 ms"}
    fetch = {"name": "update", "kind": "fetch", "direction": "forward", "size": "2 MB", "count": 4}
    link = {"preset": "leo", "forward": {"rate": "8 Mbit/s"}}
    result = simulate({"link": link, "traffic": [page, fetch], "duration": "20 s"})
    rows = result.tables["exchanges"].filter(pl.col("flow") == 0)
    counted = rows.filter(pl.col("start_ns").is_between(4 * 10**9, 16 * 10**9)).height
    found = page_times(result)
    assert found["pages"] == counted > 10
    samples = found["page_p95_ns"]
    assert isinstance(samples, Samples)
    assert samples.values.size == counted


@pytest.mark.parametrize(
    ("queue", "limit"),
    [
        ("{discipline: fq_codel, limit: 50 packets}", "50 packets"),
        ("{limit: 100 ms}", "200000 B"),
        ("{limit: unlimited}", "unlimited"),
    ],
)
def test_a_lower_class_keeps_the_limit_of_the_queue(queue: str, limit: str) -> None:
    """Given 16 Mbit/s, expect 100 ms of it in bytes, since a queue of classes has no time limit."""
    asked = Update(settings=[f"link.forward.queue={queue}"])
    found = f"{{discipline: strict_priority, classes: 2, limit: {limit}}}"
    assert asked.classes == f"link.forward.queue={found}"
    again = Update(settings=[f"link.forward.queue={found}"])
    assert again.plan(again.classes).data["directions"][0] == again.base.data["directions"][0]


def judged(pages_s: dict[Case, float], **parameters: Any) -> Answer:
    """Return the answer to pages of a second but for those of some cases; the words are made.

    The update has 1 Mbit/s by day, and 4 in the night; users keep the link 70 % busy.
    """
    asked = class_of("update").of(parameters, seeds=2)
    assert isinstance(asked, Update)
    asked.users = {"day": 1, "night": 1}
    found = {}
    for case in CASES:
        page_ns = 1e9 * pages_s.get(case, 1.0)
        figures = {"page_p50_ns": page_ns, "page_p95_ns": page_ns, "pages": 9.0, "busy": 0.7}
        figures["update_bps"] = 1e6 if case[0] == "day" else 4e6
        found[case] = Measurements({name: np.array([x, x]) for name, x in figures.items()})
    answer = asked.judge(found)
    return replace(answer, **words("update", asked.facts(answer)))


def test_the_night_counts_in_all_ways() -> None:
    """Given 50 Gbit, expect 18 h of day and 37 % of an hour and a half in the night.

    Pages in the night that are longer are losses of each way that is sent then.
    """
    answer = judged({("night", 0, False): 1.2, ("night", 1, True): 1.0}, sites=50, size="125MB")
    shared, lowest, night, last = answer.figures["ways"]
    assert [way["pages"] for way in (shared, lowest, night)] == ["loses", "equal", "loses"]
    assert shared["pages_at"] == "night"
    assert lowest["hours"] == pytest.approx(50e9 / 1e6 / 3600)
    # It begins with the night, which is long enough.
    assert answer.facts["best"] == last
    assert last["hours"] == pytest.approx(50e9 / 4e6 / 3600)
    slower = judged({("night", 1, True): 1.2}).figures["ways"][1]
    assert (slower["pages"], slower["pages_at"]) == ("loses", "night")
    # Without the update, but in the same queue, they are as slow.
    same = judged({("night", 1, True): 1.2, ("night", None, True): 1.2}).figures["ways"][1]
    assert same["pages"] == "equal"


def test_the_words_are_those_of_what_was_reached() -> None:
    """Given one user who keeps the link 70 % busy, five sites and no page, expect it to be said."""
    none = dict.fromkeys(CASES, math.nan)
    answer = judged(none, sites=5, size="100kB")
    text = "\n".join([*answer.lines, answer.reason])
    assert "none was begun and finished" in text
    assert "nan" not in text
    assert "in their class each of 5 downloads takes" in text
    assert "1 user by day keeps the link 70.0 % busy, 1 user in the night 70.0 %" in text
    assert "one user by day is more than asked for; one user in the night is" in text
    # 4 Mbit by day take 4 s.
    assert answer.lines[0].startswith("4 s in ")
    assert "0.0 h" not in text
