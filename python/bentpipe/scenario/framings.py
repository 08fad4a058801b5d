"""Link layers by name: how many bits an IP packet of a given size takes on the link.

All link layers share one formula with different parameters (`docs/model/framing.md` derives them)::

    bytes = max(ip + header_bytes, min_bytes), cut into cells if there are any
    bits  = 8 * bytes * expansion, rounded to the nearest + 8 * inter_frame_bytes

Only this module holds the parameters. A plan contains them, and the core computes with them;
`frame_bits` is the same formula in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final, TypeAlias, TypedDict

from bentpipe.text import choice, shown

_Choice: TypeAlias = bool | int | str


class CellPlan(TypedDict):
    """Cells of fixed size, the last one padded."""

    payload_bytes: int
    cell_bytes: int


class FramingPlan(TypedDict):
    """A framing in a plan; ``expansion`` is a fraction."""

    header_bytes: int
    min_bytes: int
    cells: CellPlan | None
    expansion: list[int]
    inter_frame_bytes: int


@dataclass(frozen=True, kw_only=True)
class FramingOption:
    """An option of a link layer."""

    meaning: str
    allowed: tuple[_Choice, ...]
    default: _Choice


@dataclass(frozen=True, kw_only=True)
class FramingPreset:
    """A named link layer; ``plan`` returns the plan of a framing with these options."""

    name: str
    title: str
    source: str
    plan: Callable[[Mapping[str, Any]], FramingPlan]
    options: Mapping[str, FramingOption] = field(default_factory=dict)


def plan_framing(kind: str, options: Mapping[str, object]) -> FramingPlan:
    """Return the plan of a framing; options that are not given have their defaults.

    Raises:
        ValueError: no such framing, no such option of it, or a value that it does not allow.
    """
    preset = FRAMINGS.get(kind)
    if preset is None:
        raise ValueError(f"kind: {choice(kind, tuple(FRAMINGS))}")
    for name, value in options.items():
        option = preset.options.get(name)
        if option is None:
            allowed = ("kind", *preset.options)
            raise ValueError(f'option of framing "{kind}": {choice(name, allowed)}')
        # True == 1 in Python, but the plan of one is not that of the other.
        if not any(type(value) is type(each) and value == each for each in option.allowed):
            listed = ", ".join(map(shown, option.allowed))
            raise ValueError(
                f'framing "{kind}", option "{name}": read {shown(value)}; allowed: {listed}'
            )
    defaults = {name: option.default for name, option in preset.options.items()}
    return preset.plan(defaults | dict(options))


def frame_bits(framing: FramingPlan, ip_bytes: int) -> int:
    """Return the link bits of an IP packet with this framing."""
    size = max(ip_bytes + framing["header_bytes"], framing["min_bytes"])
    cells = framing["cells"]
    if cells is not None:
        size = -(-size // cells["payload_bytes"]) * cells["cell_bytes"]
    numerator, denominator = framing["expansion"]
    rounded = (2 * 8 * size * numerator + denominator) // (2 * denominator)
    return rounded + 8 * framing["inter_frame_bytes"]


def stuffing_expansion(payload: str) -> Fraction:
    """Return the expansion of a payload by HDLC bit stuffing (a zero after five ones).

    Random bits: the mean time to a run of five ones is 2 + 4 + 8 + 16 + 32 = 62 bits, and the run
    restarts at each stuffed zero, so 62 bits become 63. A repeated pattern is counted exactly.
    """
    if payload == "random":
        return Fraction(63, 62)
    data = _PATTERNS[payload]
    # The least significant bit of each byte goes first (HDLC, ISO/IEC 13239).
    bits = [byte >> place & 1 for byte in data for place in range(8)]
    run, stuffed_before = 0, {}
    stuffed = periods = 0
    # A period depends only on the run of ones before it, so the periods soon repeat.
    while run not in stuffed_before:
        stuffed_before[run] = (periods, stuffed)
        for bit in bits:
            run = run + 1 if bit else 0
            if run == _ONES_BEFORE_A_STUFFED_ZERO:
                run, stuffed = 0, stuffed + 1
        periods += 1
    first_period, first_stuffed = stuffed_before[run]
    return 1 + Fraction(stuffed - first_stuffed, (periods - first_period) * len(bits))


_ONES_BEFORE_A_STUFFED_ZERO: Final = 5
_PATTERNS: Final = {
    "zeros": b"\x00",
    "ones": b"\xff",
    # iperf 2 fills its buffer with the digits of the index modulo 10.
    "iperf": b"0123456789",
}

_CELL: Final[CellPlan] = {"payload_bytes": 48, "cell_bytes": 53}
_TS_PACKET: Final[CellPlan] = {"payload_bytes": 184, "cell_bytes": 188}
# The pointer field of a TS packet in which a section or SNDU starts.
_POINTER: Final = 1

# Kbch of the normal FECFRAME (64,800 bits), in bits: EN 302 307-1, table 5a.
_KBCH: Final = {
    "1/4": 16_008,
    "1/3": 21_408,
    "2/5": 25_728,
    "1/2": 32_208,
    "3/5": 38_688,
    "2/3": 43_040,
    "3/4": 48_408,
    "4/5": 51_648,
    "5/6": 53_840,
    "8/9": 57_472,
    "9/10": 58_192,
}
_BASE_BAND_HEADER_BITS: Final = 80


def _numbers(
    header_bytes: int,
    *,
    min_bytes: int = 0,
    cells: CellPlan | None = None,
    expansion: Fraction = Fraction(1),
    inter_frame_bytes: int = 0,
) -> FramingPlan:
    return {
        "header_bytes": header_bytes,
        "min_bytes": min_bytes,
        "cells": None if cells is None else cells.copy(),
        "expansion": [expansion.numerator, expansion.denominator],
        "inter_frame_bytes": inter_frame_bytes,
    }


def _ethernet(inter_frame_bytes: int) -> FramingPlan:
    addresses_and_type, fcs = 14, 4
    return _numbers(addresses_and_type + fcs, min_bytes=64, inter_frame_bytes=inter_frame_bytes)


def _ppp(options: Mapping[str, Any]) -> FramingPlan:
    address, control, protocol = 1, 1, 2
    return _numbers(
        address + control + protocol + options["fcs"] // 8,
        expansion=stuffing_expansion(options["payload"]),
        inter_frame_bytes=1,  # the flag that two frames share
    )


def _aal5(expansion: Fraction) -> FramingPlan:
    llc_snap, trailer = 8, 8
    return _numbers(llc_snap + trailer, cells=_CELL, expansion=expansion)


def _transport_stream(header_bytes: int, *, packing: bool) -> FramingPlan:
    if not packing:
        return _numbers(header_bytes + _POINTER, cells=_TS_PACKET)
    growth = Fraction(_TS_PACKET["cell_bytes"], _TS_PACKET["payload_bytes"])
    return _numbers(header_bytes + _POINTER, expansion=growth)


def _mpe(options: Mapping[str, Any]) -> FramingPlan:
    section_header, llc_snap, crc = 12, 8 if options["llc_snap"] else 0, 4
    return _transport_stream(section_header + llc_snap + crc, packing=options["packing"])


def _ule(options: Mapping[str, Any]) -> FramingPlan:
    base_header, address, crc = 4, 6 if options["address"] else 0, 4
    return _transport_stream(base_header + address + crc, packing=options["packing"])


def _gse(options: Mapping[str, Any]) -> FramingPlan:
    fixed_header, protocol = 2, 2
    frame = _KBCH[options["code_rate"]]
    return _numbers(
        fixed_header + protocol + options["label_bytes"],
        expansion=Fraction(frame, frame - _BASE_BAND_HEADER_BITS),
    )


_PACKING: Final = FramingOption(
    meaning="a packet starts in the TS packet in which the previous one ends, not in a new one",
    allowed=(True, False),
    default=True,
)

_ALL: Final = (
    FramingPreset(
        name="none",
        title="IP packets without framing",
        source="a link whose rate is stated in IP bits",
        plan=lambda _: _numbers(0),
    ),
    FramingPreset(
        name="ethernet",
        title="Ethernet frames",
        source=(
            "IEEE 802.3: two addresses of 6 bytes and a type of 2 (3.2.3 to 3.2.6), a frame check "
            "sequence of 4 (3.2.9), padding to the least frame of 64 bytes (3.2.8, 4.4.2)"
        ),
        plan=lambda _: _ethernet(0),
    ),
    FramingPreset(
        name="ethernet-line",
        title="Ethernet frames with preamble and inter-packet gap",
        source=(
            "IEEE 802.3: as for ethernet, and outside the frame a preamble of 7 bytes (3.2.1), a "
            "start delimiter of 1 (3.2.2) and the least gap of 96 bits (4.4.2)"
        ),
        plan=lambda _: _ethernet(8 + 12),
    ),
    FramingPreset(
        name="ppp",
        title="PPP in HDLC-like framing, bit-synchronous",
        source=(
            "RFC 1661, section 2: protocol field of 2 bytes. RFC 1662, section 3.1: address 1, "
            "control 1, FCS 2 or 4, one flag between two frames; section 5.2: a zero is stuffed "
            "after five ones"
        ),
        options={
            "fcs": FramingOption(
                meaning="bits of the frame check sequence", allowed=(16, 32), default=16
            ),
            "payload": FramingOption(
                meaning="the payload of packets, on which bit stuffing depends",
                allowed=("random", *_PATTERNS),
                default="random",
            ),
        },
        plan=_ppp,
    ),
    FramingPreset(
        name="aal5",
        title="IP over AAL5 in ATM cells",
        source=(
            "RFC 2684, section 5.1: LLC/SNAP header of 8 bytes; ITU-T I.363.5: trailer of 8 bytes, "
            "padding to whole cells; ITU-T I.361: 48 of a cell's 53 bytes are payload"
        ),
        plan=lambda _: _aal5(Fraction(1)),
    ),
    FramingPreset(
        name="aal5-sonet",
        title="IP over AAL5 in ATM cells in an STS-3c",
        source=(
            "as aal5; ITU-T I.432.2: of 155.52 Mbit/s, 149.76 carry cells: 260 of a frame's 270 "
            "columns, the others being section, line and path overhead"
        ),
        plan=lambda _: _aal5(Fraction(270, 260)),
    ),
    FramingPreset(
        name="mpe",
        title="Multiprotocol encapsulation in an MPEG-2 transport stream",
        source=(
            "ETSI EN 301 192, clause 7: datagram_section with a header of 12 bytes and a CRC of 4, "
            "LLC/SNAP of 8 optional; ISO/IEC 13818-1, 2.4.3 and 2.4.4: TS packets of 188 bytes "
            "with a header of 4, and a pointer_field where a section starts"
        ),
        options={
            "llc_snap": FramingOption(
                meaning="an LLC/SNAP header in each section", allowed=(False, True), default=False
            ),
            "packing": _PACKING,
        },
        plan=_mpe,
    ),
    FramingPreset(
        name="ule",
        title="Unidirectional lightweight encapsulation in an MPEG-2 transport stream",
        source=(
            "RFC 4326, section 4: length and type of 4 bytes, destination address of 6 unless "
            "absent, CRC of 4; section 6: payload pointer, padding and packing; ISO/IEC 13818-1, "
            "2.4.3: TS packets of 188 bytes with a header of 4"
        ),
        options={
            "address": FramingOption(
                meaning="a destination address in each packet", allowed=(True, False), default=True
            ),
            "packing": _PACKING,
        },
        plan=_ule,
    ),
    FramingPreset(
        name="gse",
        title="Generic stream encapsulation in DVB-S2 base-band frames",
        source=(
            "ETSI TS 102 606-1, clause 4.2: a whole packet has a header of 2 bytes, a protocol "
            "type of 2 and a label; ETSI EN 302 307-1, 5.1.6: base-band header of 80 bits; "
            "table 5a: bits of a base-band frame (Kbch), normal FECFRAME"
        ),
        options={
            "label_bytes": FramingOption(
                meaning="bytes of the receiver's label", allowed=(0, 3, 6), default=6
            ),
            "code_rate": FramingOption(
                meaning="code of the normal FECFRAME", allowed=tuple(_KBCH), default="1/2"
            ),
        },
        plan=_gse,
    ),
)

FRAMINGS: Final[Mapping[str, FramingPreset]] = {preset.name: preset for preset in _ALL}
