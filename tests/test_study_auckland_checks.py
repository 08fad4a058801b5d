"""The checks of the study auckland, by numbers made for them; its runs are in another module."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bentpipe.studies.auckland import checks
from bentpipe.studies.base.comparison import Measurement
from bentpipe.units import NS_PER_S

CELL = next(cell for cell in checks.cells() if cell.channels)
KEPT = {"transfer_s": {0: 40.0, 20: 110.0, 10: 30.0}, "channels_mbps": {0: 0.0, 20: 1.7, 10: 0.5}}


def outcome(finished_s: float) -> Any:
    """Return a run of 30 s: two channels get 100 kB a second, a transfer from 12 s on 300 kB.

    They are sampled each second, and from 25 s on channels get ten times as much.
    """
    names, number = ["channels-1", "channels-2", "iperf3"], 2
    times = range(31)
    channel = [100_000 * second + 900_000 * max(second - 25, 0) for second in times]
    samples = [
        (second * NS_PER_S, flow, 300_000 * second if flow == number else channel[second])
        for second in times
        for flow in range(3)
    ]
    columns = {
        "finished_ns": np.array([math.nan, math.nan, finished_s * NS_PER_S]),
        **{
            name: np.array(values)
            for name, values in zip(
                ("time_ns", "flow", "delivered_bytes"), zip(*samples, strict=True), strict=True
            )
        },
    }
    flows = [{"name": name, "start_ns": 12 * NS_PER_S * (name == "iperf3")} for name in names]
    plan = SimpleNamespace(data={"flows": flows, "stop_ns": 30 * NS_PER_S})
    job = SimpleNamespace(plan=plan)
    return SimpleNamespace(job=job, column=lambda _, name: columns[name])


def test_figures_are_those_of_the_time_of_the_transfer() -> None:
    """Given a transfer from 12 to 22 s, expect 10 s, and two channels with 0.8 Mbit/s each."""
    assert CELL.figures(outcome(22)) == {"transfer_s": 10.0, "channels_mbps": pytest.approx(1.6)}


def test_a_transfer_that_does_not_end_counts_to_the_end_of_the_run() -> None:
    """Given no end, expect 18 s, and channels with 13 x 0.1 + 5 x 1 MB each in them."""
    found = CELL.figures(outcome(math.nan))
    assert found["transfer_s"] == 18
    assert found["channels_mbps"] == pytest.approx(2 * 8 * (13 * 0.1 + 5 * 1) / 18)


def test_channels_within_less_than_two_samples_have_no_goodput() -> None:
    assert CELL.figures(outcome(12.5)) == {"transfer_s": 0.5, "channels_mbps": 0.0}


def measured(**changed: float | None) -> dict[checks.CheckCell, Measurement]:
    """Return three equal runs of each check, which are kept unless they are changed."""
    return {
        cell: Measurement(
            {
                seed: {name: changed.get(name, KEPT[name][cell.channels]) for name in KEPT}
                for seed in (1, 2, 3)
            }
        )
        for cell in checks.cells()
    }


def test_checks_within_their_bounds_are_not_missed() -> None:
    assert not checks.missed(checks.comparison(measured()))


def test_a_bound_that_is_not_kept_is_missed() -> None:
    """Given 41 s for all, expect those that take 80 s and more to be missed, and no other."""
    names = checks.missed(checks.comparison(measured(transfer_s=41.0)))
    assert len(names) == 1
    assert "40 MB beside 20 channels at least" in names[0]


def test_a_check_that_was_not_run_is_missed() -> None:
    names = checks.missed(checks.comparison(measured(channels_mbps=None)))
    assert len(names) == 1
    assert "20 channels beside 40 MB" in names[0]
