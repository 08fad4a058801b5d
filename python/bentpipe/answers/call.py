"""The G.711 call that several questions put beside other traffic, and its quality."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from bentpipe.results.voice import Quality, quality
from bentpipe.scenario.codecs import CODECS, Codec

CODEC: Final = CODECS["g711"]
NS_PER_MS: Final = 10**6
UDP_IP_BYTES: Final = 28
# Play-out waits for 99 of 100 packets; the others count as lost.
_LATE_PERCENT: Final = 1.0


def call(direction: str, codec: Codec = CODEC) -> dict[str, Any]:
    """Return the entry ``call`` of traffic: datagrams of a codec, every 20 ms."""
    return {
        "name": "call",
        "kind": "constant_rate",
        "direction": direction,
        "rate": f"{codec.udp_rate_bps} bit/s",
        "payload": f"{codec.payload_bytes} B",
        "start_jitter": "20 ms",
    }


def call_quality(flow: Mapping[str, Any]) -> Quality | None:
    """Return the quality of one direction of the call, a row of `Result.flows`.

    Its play-out is adaptive and ideal: it waits for 99 of 100 packets. Traffic of kind ``voice``
    has a jitter buffer of a fixed delay instead, so delays that vary by more than this cost it
    more. None if no packet arrived.
    """
    late_ns = flow["one_way_delay_p99_ns"]
    if late_ns is None:
        return None
    lost = flow["loss_percent"] or 0.0
    return quality(
        late_ns / NS_PER_MS + CODEC.coding_delay_ms,
        CODEC,
        loss_percent=lost + _LATE_PERCENT * (1 - lost / 100),
    )
