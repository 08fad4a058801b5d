"""The tables of this package, with their sources; of them named links and speech codecs.

Delays of links are propagation times through the satellite and down again (bent pipe), both ground
stations at the same elevation. With the Earth's radius R = 6371 km, altitude h and elevation e, the
slant range is d = sqrt((R sin e)^2 + h^2 + 2 R h) - R sin e, and the one-way delay is 2 d / c with
c = 299,792.458 km/s. Rates and queues are our own round figures, unless the source states them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args


def read_table(name: str) -> dict[str, dict[str, Any]]:
    """Return the entries of a table by name."""
    return tomllib.loads((Path(__file__).parent / f"{name}.toml").read_text(encoding="utf-8"))


CodecName = Literal["g711", "g729", "opus"]

# RFC 3550, section 5.1: the fixed header of RTP, which is in the payload of UDP.
RTP_HEADER_BYTES: Final = 12
# RFC 3551, section 4.2: the default packetization interval of audio.
PACKET_INTERVAL_MS: Final = 20


@dataclass(frozen=True, kw_only=True)
class Codec:
    """A speech codec in packets of 20 ms.

    ``impairment`` is Ie, the equipment impairment factor without loss; ``robustness`` is Bpl, the
    packet-loss robustness factor (ITU-T G.113, Appendix I).
    """

    name: CodecName
    title: str
    rate_bps: int
    look_ahead_ms: float
    impairment: float
    robustness: float
    source: str

    @property
    def payload_bytes(self) -> int:
        """Return the UDP payload of a packet: 20 ms of speech and the RTP header."""
        return self.rate_bps * PACKET_INTERVAL_MS // 8_000 + RTP_HEADER_BYTES

    @property
    def udp_rate_bps(self) -> int:
        """Return the bits of UDP payload per second."""
        return self.payload_bytes * 8_000 // PACKET_INTERVAL_MS

    @property
    def coding_delay_ms(self) -> float:
        """Return the delay of the sender: the speech of one packet, and the look-ahead.

        It is the smallest delay of ITU-T G.114, annex A: coding takes no time.
        """
        return PACKET_INTERVAL_MS + self.look_ahead_ms


_TABLE: Final = read_table("codecs")
CODECS: Final[Mapping[CodecName, Codec]] = {
    name: Codec(name=name, **_TABLE[name]) for name in get_args(CodecName)
}


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A named link; ``link`` is plain data, as in a scenario file.

    ``compared`` says how far figures of runs agree with published ones.
    """

    name: str
    title: str
    source: str
    link: Mapping[str, Any]
    compared: str = ""


PRESETS: Final[Mapping[str, Preset]] = {
    name: Preset(name=name, **fields) for name, fields in read_table("presets").items()
}
