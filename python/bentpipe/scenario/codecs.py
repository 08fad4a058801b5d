"""Speech codecs by name: what they send, and how they sound."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

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


_ALL: Final = (
    Codec(
        name="g711",
        title="G.711 with packet loss concealment",
        rate_bps=64_000,
        look_ahead_ms=0,
        impairment=0,
        robustness=25.1,
        source=(
            "ITU-T G.711: 64 kbit/s. ITU-T G.113 (11/2007), table I.4: Ie 0 and Bpl 25.1 with the "
            "concealment of G.711, Appendix I; without it, Bpl is 4.3."
        ),
    ),
    Codec(
        name="g729",
        title="G.729A",
        rate_bps=8_000,
        look_ahead_ms=5,
        impairment=11,
        robustness=19.0,
        source=(
            "ITU-T G.729: 8 kbit/s, frames of 10 ms with a look-ahead of 5 ms. ITU-T G.113 "
            "(11/2007), table I.4: Ie 11 and Bpl 19.0 for G.729A with VAD."
        ),
    ),
    Codec(
        name="opus",
        title="Opus, 32 kbit/s, constant bit rate",
        rate_bps=32_000,
        look_ahead_ms=6.5,
        impairment=0,
        robustness=10.0,
        source=(
            "RFC 6716, section 2.1.1: 28 to 40 kbit/s for full-band speech; section 2: a "
            "look-ahead of at most 6.5 ms beside frames of 20 ms. Ie and Bpl are assumed: G.113 "
            "has none for Opus. Ie 0, since it sounds no worse than G.711; Bpl 10.0 is that of "
            "GSM-EFR in table I.4, without in-band error correction."
        ),
    ),
)

CODECS: Final[Mapping[CodecName, Codec]] = {codec.name: codec for codec in _ALL}
