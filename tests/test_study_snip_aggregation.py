"""The study of the SnIP: its section on packet aggregation, on small settings."""

from __future__ import annotations

from typing import Any

import pytest

from bentpipe import Plan
from bentpipe.simulation.executor import run_jobs
from bentpipe.simulation.run import Job
from bentpipe.simulation.search import no_drop_rate
from bentpipe.studies.base.inputs import read_scenario
from bentpipe.studies.snip.measure import (
    DEFAULTS,
    RESOLUTION,
    Settings,
    aggregated_scenario,
    begins_at,
    load_scenarios,
    loads_of,
    on_paper,
)

pytestmark = pytest.mark.system

MODEM_BPS = 29_520_000
PACKETS_PER_SECOND = 6222


def test_frames_on_paper_by_hand() -> None:
    """1,500 - 28 - (3 + 128) leave 1,341 bytes, or 10 times 2 + 128; PPP and its flag take 9 bytes.

    A frame of 1,459 bytes takes 11,744 bits: 2,513.6 frames a second, which is less than what the
    processor handles. With 86 bytes (a separator of one) 1 + 1,383 // 87 = 16 fit.
    """
    plan: Any = Plan.resolve(
        aggregated_scenario(read_scenario("snip"), DEFAULTS.aggregated_duration)
    ).data
    packets, pps, limit = on_paper(plan, 100)
    assert (packets, limit) == (11, "channel")
    assert pps == pytest.approx(11 * MODEM_BPS / (8 * 1468))
    assert on_paper(plan, 58)[0] == 16
    for gateway in plan["gateways"]:
        gateway["functions"][1]["packets_per_second"] = 1000
    assert on_paper(plan, 100) == (11, 11_000, "packet rate")


@pytest.mark.parametrize("slow", [False, True])
def test_at_100_bytes_the_no_drop_rate_rises_fourfold_as_on_paper(slow: bool) -> None:
    """Limited by the channel, or by a processor of 1,000 frames a second."""
    data = read_scenario("snip")
    if slow:
        for gateway in data["gateways"].values():
            gateway["processor"]["packets_per_second"] = 1000
    scenario = aggregated_scenario(data, DEFAULTS.aggregated_duration)
    (found,) = no_drop_rate(scenario, [100], resolution=RESOLUTION).rates
    _, paper_pps, limit = on_paper(Plan.resolve(scenario).data, 100)
    rate = found.packets_per_second
    assert rate is not None
    assert rate == pytest.approx(paper_pps, rel=0.05)
    assert rate > 4 * (1000 if slow else PACKETS_PER_SECOND)
    assert found.first_loss is not None
    assert found.first_loss.limit == limit


def test_it_pays_from_the_second_packet_within_the_hold_time() -> None:
    """Packets 1 / 45 s = 22.2 ms apart share a frame of 25 ms, by twos; 1 / 30 s apart none does.

    Alone a packet waits for 25 ms; of two, one waits for 25 ms and the other for 2.8.
    """
    scenarios = load_scenarios(read_scenario("snip"), Settings(loads_pps=(30, 45)))
    jobs = [Job(plan=Plan.resolve(each), seed=1) for each in scenarios.values()]
    outcomes = dict(zip(scenarios, run_jobs(jobs), strict=True))
    loads = loads_of(outcomes)
    assert (begins_at(loads, 5), begins_at(loads, 25)) == (None, 45)
    by_load = {(each["hold_ms"], each["offered_pps"]): each for each in loads}
    assert by_load[5, 45]["packets_per_frame"] == 1
    assert by_load[5, 45]["added_delay_ms"] == pytest.approx(5, abs=0.001)
    assert by_load[25, 30]["added_delay_ms"] == pytest.approx(25, abs=0.001)
    assert by_load[25, 45]["packets_per_frame"] == pytest.approx(2, rel=0.01)
    # The larger frame takes longer on the link by less than 0.1 ms.
    assert by_load[25, 45]["added_delay_ms"] == pytest.approx((25 + 25 - 1000 / 45) / 2, abs=0.1)
