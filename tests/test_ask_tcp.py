"""Answers on TCP transfers and their queue, compared with what follows on paper."""

from __future__ import annotations

import pytest

from bentpipe.answers.traffic import fq_codel


@pytest.mark.parametrize(
    ("rtt_ms", "queue"),
    [
        (542, "{discipline: fq_codel, target: 27.1 ms, interval: 542 ms}"),
        (26, "{discipline: fq_codel, target: 5 ms, interval: 100 ms}"),
    ],
)
def test_codel_gets_an_interval_for_the_round_trip_of_the_link(rtt_ms: int, queue: str) -> None:
    """RFC 8289, sections 4.3 and 4.4: the interval is a round trip, the target 5 % of it."""
    assert fq_codel(rtt_ms * 10**6) == queue
