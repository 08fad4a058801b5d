"""Speech codecs by name: what they send, and how they sound (`codecs.toml`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

from bentpipe.scenario.tables import read_table

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
