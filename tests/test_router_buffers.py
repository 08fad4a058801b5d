"""Many flows of different round trips share one router: utilization over the buffer's size.

Appenzeller, Keslassy and McKeown, "Sizing Router Buffers" (SIGCOMM 2004), table of the router test:
an OC-3 (155 Mbit/s) with RTT x C = 1,291 packets of 1,500 bytes, so 100 ms in the mean; the buffer
is a multiple of RTT x C / sqrt(flows). With equal round trips flows fall into step, and small
buffers lose more than a real router does; here each flow has a host of its own, with round trips
spread evenly over 50 to 150 ms.
"""

from __future__ import annotations

from math import sqrt
from typing import Any

import pytest

from bentpipe import Scenario, simulate

RATE_BPS = 155_000_000
MEAN_RTT_MS = 100
# Flows, multiple of RTT x C / sqrt(flows), buffer in packets, utilization: of ns-2, of the router.
PUBLISHED = [
    (100, 0.5, 64, 94.7, 94.9),
    (100, 1.0, 129, 99.3, 98.1),
    (100, 2.0, 258, 99.9, 99.8),
    (200, 0.5, 46, 97.0, 98.6),
    (200, 1.0, 91, 99.2, 99.7),
    (200, 2.0, 182, 99.8, 99.8),
    (300, 0.5, 37, 98.6, 99.6),
    (300, 1.0, 74, 99.3, 99.8),
    (300, 2.0, 148, 99.9, 99.8),
    (400, 0.5, 32, 99.2, 99.5),
    (400, 1.0, 64, 99.8, 100.0),
    (400, 2.0, 128, 100.0, 100.0),
]
WARM_UP_S, SECONDS = 20, 60


def scenario(flows: int, buffer_packets: int) -> dict[str, Any]:
    """Return Reno flows of Linux hosts, each from a host of its own, over one drop-tail queue."""
    round_trips_ms = [50 + 100 * (number + 0.5) / flows for number in range(flows)]
    hosts = [
        # The link has 1 ms of each round trip.
        {"name": f"server-{number}", "delay": f"{(rtt_ms - 1) / 2:.6f} ms"}
        for number, rtt_ms in enumerate(round_trips_ms)
    ]
    return {
        "link": {
            "forward": {
                "rate": f"{RATE_BPS} bit/s",
                "delay": "1 ms",
                "framing": "0 B",
                "queue": {"limit": f"{buffer_packets} packets"},
            },
            "return": {"rate": "1 Gbit/s", "delay": "0 ms", "framing": "0 B"},
        },
        "hosts": {"world": hosts},
        "traffic": [
            {
                "kind": "bulk",
                "direction": "forward",
                "duration": f"{SECONDS} s",
                "count": flows,
                "start_spacing": f"{10_000 / flows:g} ms",
                "world_host": "round-robin",
                "tcp": {"congestion_control": "reno", "send_buffer": "8 MiB"},
            }
        ],
        "duration": f"{SECONDS} s",
        "sample_interval": "1 s",
    }


def utilization_percent(flows: int, buffer_packets: int) -> float:
    """Return the share of the link's bits that was used after the warm-up."""
    samples = simulate(Scenario.from_dict(scenario(flows, buffer_packets))).direction_samples
    forward = samples.filter(samples["direction"] == "forward").sort("time_ns")
    late = forward.filter(forward["time_ns"] >= WARM_UP_S * 10**9)
    sent_bits = 8 * (late["sent_bytes"][-1] - late["sent_bytes"][0])
    elapsed_s = (late["time_ns"][-1] - late["time_ns"][0]) / 1e9
    return float(100 * sent_bits / (RATE_BPS * elapsed_s))


def test_the_buffers_are_those_of_the_rule() -> None:
    """RTT x C / sqrt(n), to the packet, from 1,291 packets."""
    for flows, multiple, packets, *_ in PUBLISHED:
        assert packets == pytest.approx(multiple * 1_291 / sqrt(flows), rel=0.01, abs=1)
    product_packets = RATE_BPS * MEAN_RTT_MS / 1e3 / (8 * 1_500)
    assert product_packets == pytest.approx(1_291, rel=0.002)


@pytest.mark.system
@pytest.mark.parametrize(
    ("flows", "multiple", "packets", "simulated", "measured"),
    # The fewest and the most flows bound the others.
    [
        pytest.param(*row, marks=[] if row[0] in {100, 400} else pytest.mark.thorough)
        for row in PUBLISHED
    ],
)
def test_utilization_is_within_two_points_of_both_published_figures(
    flows: int, multiple: float, packets: int, simulated: float, measured: float
) -> None:
    found = utilization_percent(flows, packets)
    assert found == pytest.approx(simulated, abs=2), f"ns-2, {multiple} RTT x C / sqrt(n)"
    assert found == pytest.approx(measured, abs=2), f"router, {multiple} RTT x C / sqrt(n)"
