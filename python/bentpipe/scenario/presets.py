"""Named links, each with a public source of its parameters.

Delays are propagation times through the satellite and down again (bent pipe), both ground stations
at the same elevation. With the Earth's radius R = 6371 km, altitude h and elevation e, the slant
range is d = sqrt((R sin e)^2 + h^2 + 2 R h) - R sin e, and the one-way delay is 2 d / c with
c = 299,792.458 km/s. Rates and queues are our own round figures, unless the source states them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A named link; ``link`` is plain data, as in a scenario file."""

    name: str
    title: str
    source: str
    link: Mapping[str, Any]


def _direction(rate: str, delay: str) -> dict[str, Any]:
    # With a buffer of one bandwidth-delay product, a loss-based flow fills the link.
    return {"rate": rate, "delay": delay, "queue": {"limit": "1 bdp"}}


def _epochs(rates_mbps: list[str]) -> dict[str, Any]:
    """Return a direction of ``leo-handover`` with these rates, one an epoch."""
    delays_ms = (18, 13, 23, 15, 21, 10, 26, 17)
    return {
        "rate": {"every": "15 s", "values": [f"{rate} Mbit/s" for rate in rates_mbps]},
        "delay": {"every": "15 s", "values": [f"{delay} ms" for delay in delays_ms]},
        "jitter": "14 ms",
        "outage": {"every": "15 s", "for": "40 ms"},
        "loss": "0.5 %",
        "queue": {"limit": "1 bdp"},
    }


_ALL: Final = (
    Preset(
        name="geo",
        title="Geostationary satellite, one hop",
        source=(
            "3GPP TR 38.821, table 4.2-2: the largest round-trip propagation delay of a "
            "transparent GEO payload, at 10 degrees of elevation, is 541.46 ms. Arithmetic: "
            "h = 35,786 km and e = 10 degrees give d = 40,581 km and 2 d / c = 270.7 ms, here "
            "271 ms one way. RFC 2488, section 2, gives the range: 239.6 ms with the satellite "
            "overhead to 279.0 ms at the edge of view. Rates: our own."
        ),
        link={
            "forward": _direction("16 Mbit/s", "271 ms"),
            "return": _direction("2 Mbit/s", "271 ms"),
        },
    ),
    Preset(
        name="meo",
        title="Medium Earth orbit at 8,062 km, one hop",
        source=(
            "The O3b constellation, 8,062 km above the equator (Aviation Week on the launch of "
            "25 June 2013). Arithmetic: h = 8,062 km and e = 10 degrees give d = 11,892 km and "
            "2 d / c = 79.3 ms, here 79 ms one way; overhead it is 53.8 ms. Rates: our own."
        ),
        link={
            "forward": _direction("50 Mbit/s", "79 ms"),
            "return": _direction("10 Mbit/s", "79 ms"),
        },
    ),
    Preset(
        name="leo",
        title="Low Earth orbit at 600 km, one hop",
        source=(
            "3GPP TR 38.821, table 4.2-2: the largest round-trip propagation delay of a "
            "transparent LEO payload at 600 km, at 10 degrees of elevation, is 25.77 ms. "
            "Arithmetic: h = 600 km and e = 10 degrees give d = 1,932 km and 2 d / c = 12.9 ms, "
            "here 13 ms one way; overhead it is 4.0 ms. The delay is constant: the satellite's "
            "pass is not modelled. Rates: our own."
        ),
        link={
            "forward": _direction("100 Mbit/s", "13 ms"),
            "return": _direction("20 Mbit/s", "13 ms"),
        },
    ),
    Preset(
        name="leo-handover",
        title="Low Earth orbit with a handover every 15 s, from measurements of Starlink",
        source=(
            "Handover every 15 s, with a latency spike of 30 to 50 ms, here an outage of 40 ms; "
            "1 to 2 % loss that is not congestion, here 0.5 % in each direction; RTTs that differ "
            "by 6.7 ms on average from one to the next: G. Huston, A transport protocol's view of "
            "Starlink, APNIC blog, 17 May 2024. Arithmetic: jitter uniform up to J in both "
            "directions differs by 7/15 J on average, so J = 14 ms. RTT of 40, 50 and 60 ms at the "
            "25th, 50th and 75th percentile: F. Michel et al., A first look at Starlink "
            "performance, IMC 2022, measured in Belgium in early 2022; the delays here make these "
            "with the mean jitter of both directions. Rates from 10 to 370 Mbit/s (Huston, 2024); "
            "the steps within that range, and those of the return, are our own."
        ),
        link={
            "forward": _epochs(
                ["150", "90", "200", "120", "60", "180", "110", "160"],
            ),
            "return": _epochs(["15", "9", "20", "12", "8", "18", "11", "16"]),
        },
    ),
    Preset(
        name="isdn-return",
        title="DVB carrier over a geostationary satellite, return over ISDN",
        source=(
            "Crudele and Cinque, HERMES / IperSpace measurements, 1999: forward a shared 4 Mbit/s "
            "DVB carrier over a GEO satellite, return over bonded ISDN at 128 kbit/s, round trip a "
            "little under 400 ms. The split of the round trip is our own: 252 ms for the satellite "
            "hop (h = 35,786 km and e = 40 degrees give d = 37,778 km and 2 d / c = 252.0 ms) and "
            "138 ms for ISDN and the terrestrial network, 390 ms in all."
        ),
        link={
            "forward": _direction("4 Mbit/s", "252 ms"),
            "return": _direction("128 kbit/s", "138 ms"),
        },
    ),
)

PRESETS: Final[Mapping[str, Preset]] = {preset.name: preset for preset in _ALL}
