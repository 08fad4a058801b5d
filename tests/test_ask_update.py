"""``bentpipe ask update``, compared with what follows on paper."""

from __future__ import annotations

import math

import pytest

from bentpipe import ask
from bentpipe.answers.traffic import elapsed_h
from bentpipe.answers.update import WAYS

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


@pytest.mark.system
def test_the_lowest_class_gets_what_users_leave() -> None:
    """Given users who keep 16 Mbit/s 60 % busy, expect 6.4 Mbit/s, less headers and starts.

    The class of the users gives eight downloads more than that, at the cost of the pages.
    """
    answer = ask("update", "geo", sites=200, seeds=2, threads=1)
    shared, lowest, night = answer.figures["ways"]
    left_bps = 0.4 * 16e6
    assert 0.85 * left_bps < lowest["update_bps"].mean < 1.02 * left_bps
    assert shared["update_bps"].mean > 1.2 * left_bps
    assert shared["page_p50_ns"].mean > 1.5 * lowest["page_p50_ns"].mean
    # 200 copies of 500 MB are 800 Gbit. A night of six hours at 0.9 of 16 Mbit/s carries 311.
    assert [way["way"] for way in answer.figures["ways"]] == [*WAYS]
    assert 48 < night["hours"] < 48 + 24
    assert answer.figures["once_hours"] == pytest.approx(4e9 / left_bps / 3600)
    assert answer.lines[0].startswith(f"{lowest['hours']:.1f} h in the lowest class: ")
