"""Queues in which classes share the rate: what is promised, lent and refused."""

from __future__ import annotations

from typing import Any

import pytest

from bentpipe import simulate
from bentpipe.errors import ScenarioError, UsageError
from bentpipe.live.changes import link_changes
from bentpipe.plan.plan import Plan
from bentpipe.results import check_thresholds
from bentpipe.results.result import Result
from bentpipe.scenario.schema import Scenario

# 1,028 bytes of IP, without framing.
PAYLOAD, PACKET_BITS = "1000 B", 8_224
SECONDS = 20
# What a class may lack or have too much: three packets in the time of the run.
NEARLY_BPS = 3 * PACKET_BITS / SECONDS


def scenario(
    classes: list[dict[str, Any]], rates_mbps: list[float | None], **link: Any
) -> dict[str, Any]:
    """Return a link of 4 Mbit/s on which each class sends packets at its rate, or none."""
    queue = {"discipline": "shared_rate", "limit": "50 packets", "classes": classes}
    flow = {"kind": "constant_rate", "direction": "forward", "payload": PAYLOAD}
    return {
        "link": {
            "forward": {"rate": "4 Mbit/s", "delay": "10 ms", "queue": queue} | link,
            "return": {"rate": "4 Mbit/s", "delay": "10 ms"},
        },
        "traffic": [
            {**flow, "name": f"of-{number}", "rate": f"{rate} Mbit/s", "priority": number}
            for number, rate in enumerate(rates_mbps)
            if rate is not None
        ],
        "duration": f"{SECONDS} s",
    }


def rates_bps(result: Result, column: str = "rate_bps") -> list[float]:
    """Return a rate of each class of the forward direction."""
    return result.classes[column].to_list()


def test_a_reserved_rate_is_kept_and_the_rest_is_shared_by_weight() -> None:
    """Given 512 kbit/s and a quarter of the other 3,488, expect 1,384 in all for the first."""
    classes: list[dict[str, Any]] = [{"reserved": "512 kbit/s"}, {"weight": 3}]
    result = simulate(scenario(classes, [5, 5]))
    assert rates_bps(result) == pytest.approx([1_384e3, 2_616e3], abs=NEARLY_BPS)
    assert rates_bps(result, "borrowed_bps") == pytest.approx([872e3, 2_616e3], abs=NEARLY_BPS)
    assert rates_bps(result, "lent_bps") == [pytest.approx(0, abs=NEARLY_BPS), None]


def test_a_reserved_rate_that_is_not_used_is_lent() -> None:
    result = simulate(scenario([{"reserved": "512 kbit/s"}, {}], [None, 5]))
    assert rates_bps(result) == pytest.approx([0, 4e6], abs=NEARLY_BPS)
    assert rates_bps(result, "lent_bps") == [512e3, None]


def test_a_conforming_class_waits_for_one_packet() -> None:
    """Given 400 of 512 kbit/s, expect no loss, and no wait of more than a packet, 2.06 ms."""
    result = simulate(scenario([{"reserved": "512 kbit/s"}, {}], [0.4, 8]))
    promised, other = result.classes.to_dicts()
    assert (promised["class"], promised["direction"]) == ("forward-0", "forward")
    assert promised["dropped_packets"] == 0
    assert promised["queue_delay_p99_ns"] <= 1.002 * PACKET_BITS / 4e6 * 1e9
    assert other["loss_percent"] > 50


def test_a_ceiling_holds_on_an_idle_link() -> None:
    result = simulate(scenario([{"ceiling": "1 Mbit/s"}, {}], [5, None]))
    assert rates_bps(result) == pytest.approx([1e6, 0], abs=NEARLY_BPS)


def test_reserved_rates_share_a_link_that_is_slower_for_a_while() -> None:
    """Given half of what is reserved for the whole run, expect both classes to get their halves."""
    classes = [{"reserved": "1 Mbit/s"}, {"reserved": "3 Mbit/s"}, {}]
    steps = [{"at": "0 s", "value": "4 Mbit/s"}, {"at": "1 ms", "value": "2 Mbit/s"}]
    result = simulate(scenario(classes, [5, 5, 5], rate=steps))
    first, second, rest = rates_bps(result)
    assert first + second == pytest.approx(2e6, rel=0.01)
    assert second == pytest.approx(3 * first, rel=0.05)
    assert rest <= NEARLY_BPS


def test_a_class_may_have_a_managed_queue() -> None:
    """Given a flood, expect a wait of some 5 ms with CoDel, and of 50 packets without."""
    codel = {"discipline": "codel", "limit": "50 packets", "target": "5 ms", "interval": "100 ms"}
    waits_ms = [
        simulate(scenario([{"queue": queue}, {}], [2.2, 2.2])).classes["queue_delay_p50_ns"][0]
        / 1e6
        for queue in (codel, {"limit": "50 packets"})
    ]
    # 50 packets at half of the link.
    assert waits_ms[1] == pytest.approx(50 * PACKET_BITS / 2e6 * 1e3, rel=0.05)
    assert waits_ms[0] < waits_ms[1] / 3


def test_a_threshold_names_a_class() -> None:
    asked = scenario([{"reserved": "512 kbit/s"}, {}], [0.4, 8])
    limits = ["classes.forward-0.loss_percent <= 0 %", "classes.forward-1.loss_percent <= 0 %"]
    checks = check_thresholds(simulate(asked), limits)
    assert [check.to_json()["passed"] for check in checks] == [True, False]
    with pytest.raises(ScenarioError, match="forward-0, forward-1"):
        Plan.resolve(
            Scenario.from_dict(asked | {"thresholds": ["classes.forward-2.rate_bps >= 1 bit/s"]})
        )


def test_a_link_without_classes_has_no_rows() -> None:
    asked = scenario([{}], [1])
    del asked["link"]["forward"]["queue"]
    assert simulate(asked).classes.height == 0


def test_codel_of_a_class_is_judged_by_the_round_trip() -> None:
    asked = scenario([{"queue": {"discipline": "codel"}}, {}], [1], delay="270 ms")
    asked["link"]["return"]["delay"] = "270 ms"
    warnings = Plan.resolve(Scenario.from_dict(asked)).warnings
    assert ["an interval of 100 ms" in each.message for each in warnings] == [True]


def test_a_running_queue_keeps_its_classes_with_another_limit() -> None:
    """Given queues with classes, expect another limit to be possible, and another number not."""
    shared = scenario([{"reserved": "1 Mbit/s"}, {}], [1])
    strict = scenario([], [1], queue={"discipline": "strict_priority", "classes": 3})
    for asked in (shared, strict):
        plan = Plan.resolve(Scenario.from_dict(asked)).data
        (change,) = link_changes(["link.forward.queue.limit=9 packets"], [plan])
        before = plan["directions"][0]["queue"]
        assert change["queue"] == {**before, "limit": {"unit": "packets", "value": 9}}
        with pytest.raises(UsageError, match="as many classes from the start"):
            link_changes(["link.forward.queue.discipline=strict_priority"], [plan])
