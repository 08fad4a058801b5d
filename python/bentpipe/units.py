"""Quantities as they are written, and the integers of the plan; the range of seeds.

A quantity is a number and a unit: ``16 Mbit/s``, ``275 ms``, ``120 kB``. The prefixes k, M, G and T
are powers of 1000; Ki, Mi and Gi are powers of 1024. ``B`` is a byte and ``bit`` is a bit. Case
counts. Ambiguous spellings (``KB``, ``mbps``, ``Mb/s``, ``16 M``, a bare number) are refused with a
suggestion.

Numbers are read exactly, as decimal fractions: a quantity that is not an integer in its base unit
(nanosecond, byte, bit/s) is refused too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Final, Literal, Self

from bentpipe.errors import UnitError, UsageError
from bentpipe.text import csv_rows, nearest, shown

# The plan holds unsigned 64-bit integers; half of their range keeps a sum of two of them in range.
LARGEST: Final = 2**63 - 1
NS_PER_S: Final = 10**9
NS_PER_MS: Final = 10**6
NS_PER_US: Final = 10**3
BITS_PER_BYTE: Final = 8
# Headers of IPv4 with TCP or UDP, without options: the MSS is what remains of a packet (RFC 9293,
# section 3.7.1). Then the timestamps option with its padding (RFC 7323, appendix A).
TCP_IP_BYTES: Final = 40
UDP_IP_BYTES: Final = 28
TIMESTAMPS_BYTES: Final = 12
# The simulator takes an unsigned 64-bit integer.
LARGEST_SEED: Final = 2**64 - 1

# Ten digits and a small exponent write any quantity of a link; the bounds prevent a number with a
# billion digits, such as "1e999999999 s".
_LONGEST_TEXT: Final = 64
_LARGEST_EXPONENT: Final = 30

_QUANTITY: Final = re.compile(
    r"\s*(?P<number>[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE](?P<exponent>[+-]?\d+))?)\s*(?P<unit>.*?)\s*",
    re.DOTALL | re.ASCII,
)

PERCENTAGE: Final = re.compile(r"^\s*(\d+(\.\d*)?|\.\d+)\s*%\s*$", re.ASCII)
_SI: Final[dict[str, int]] = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY: Final = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30}

# A share of the bandwidth-delay product is in millionths until the link is known.
BDP_SCALE: Final = 10**6

BaseUnit = Literal[
    "bps", "time_ns", "bytes", "packets", "link_bytes", "bdp_millionths", "unlimited"
]

_FACTORS: Final[Mapping[BaseUnit, Mapping[str, int]]] = {
    "bps": {f"{prefix}bit/s": factor for prefix, factor in _SI.items()}
    | {f"{prefix}bps": factor for prefix, factor in _SI.items()}
    | {f"{prefix}B/s": 8 * factor for prefix, factor in (_SI | _BINARY).items()},
    "time_ns": {
        "ns": 1,
        "us": 10**3,
        "µs": 10**3,
        "ms": 10**6,
        "s": NS_PER_S,
        "min": 60 * NS_PER_S,
        "h": 3600 * NS_PER_S,
    },
    "bytes": {f"{prefix}B": factor for prefix, factor in (_SI | _BINARY).items()},
    "packets": {"packet": 1, "packets": 1, "pkt": 1},
    # A cell as ATM counts it: 5 bytes of header and 48 of payload (ITU-T I.361).
    "link_bytes": {"cell": 53, "cells": 53},
    "bdp_millionths": {"bdp": BDP_SCALE},
}


class Quantity(str):
    """A quantity as it was written, with its value in a base unit.

    It equals and prints as its text. The value of a queue limit that is ``unlimited`` is 0.
    """

    __slots__ = ("unit", "value")
    unit: BaseUnit
    value: int

    def __new__(cls, text: str, value: int, unit: BaseUnit) -> Self:
        """Keep a text with the value that was read from it."""
        made = super().__new__(cls, text)
        made.value, made.unit = value, unit
        return made

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, handler: Callable[[type], Any]) -> Any:
        """Let pydantic write defaults into the JSON Schema as text."""
        return handler(str)

    def __getnewargs__(self) -> tuple[str, int, BaseUnit]:  # type: ignore[override]
        return str(self), self.value, self.unit


@dataclass(frozen=True)
class Kind:
    """A kind of quantity: its name, its units, those to show first, and those to format with."""

    noun: str
    base: str
    bases: tuple[BaseUnit, ...]
    shown: tuple[str, ...]
    example: str
    scales: tuple[tuple[str, float], ...] = ()

    @cached_property
    def units(self) -> Mapping[str, tuple[int, BaseUnit]]:
        """The factor of each unit, and the base unit that it is of."""
        return {
            unit: (factor, base) for base in self.bases for unit, factor in _FACTORS[base].items()
        }

    @property
    def pattern(self) -> str:
        """The regular expression of quantities of this kind, for the JSON Schema."""
        written = "|".join(re.escape(unit) for unit in self.units)
        return rf"^\s*(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?\s*({written})\s*$"

    def parse(self, text: object) -> int:
        """Return the value of a text in the base unit; see `read`."""
        return self.read(text).value

    def read(self, text: object) -> Quantity:
        """Parse a quantity and keep its text.

        Raises:
            UnitError: not of this kind, negative, not an integer in its base unit, or over 2^63-1.
        """
        if isinstance(text, bool) or not isinstance(text, str | int | float):
            name = "nothing" if text is None else type(text).__name__
            raise UnitError(f"read {name}: {_what(self)}")
        if isinstance(text, str) and len(text) > _LONGEST_TEXT:
            raise UnitError(f"read a text of {len(text)} characters: {_what(self)}")
        read, match = f"read {shown(text)}", _QUANTITY.fullmatch(str(text))
        if match is None:
            raise UnitError(f"{read}: {_what(self)}")
        number, unit = match["number"], match["unit"]
        if unit not in self.units:
            raise UnitError(f"{read}: {_unit_advice(number, unit, self)}")
        if abs(int(match["exponent"] or 0)) > _LARGEST_EXPONENT:
            raise UnitError(f"{read}: the exponent is beyond {_LARGEST_EXPONENT}")
        factor, base = self.units[unit]
        value = Fraction(number) * factor
        if value < 0:
            raise UnitError(f"{read}: must not be negative")
        if value.denominator != 1:
            finest = "millionth of a bdp" if unit == "bdp" else self.base
            raise UnitError(f"{read}: not an integer in its finest unit ({finest})")
        if value > LARGEST:
            raise UnitError(f"{read}: beyond 64 bits; the largest is {LARGEST} {self.base}")
        return Quantity(str(text), value.numerator, base)

    def format(self, value: float) -> str:
        """Format a value in the base unit with four digits."""
        for unit, scale in self.scales[:-1]:
            # Round to four digits first: 999999.9 bit/s is "1 Mbit/s", not "1000 kbit/s".
            if abs(float(f"{value:.4g}")) >= scale:
                return f"{_digits(value / scale)} {unit}"
        return f"{_digits(value)} {self.scales[-1][0]}"


RATE: Final = Kind(
    "a rate",
    "bit/s",
    ("bps",),
    ("bit/s", "kbit/s", "Mbit/s", "Gbit/s", "kB/s", "MB/s"),
    "16 Mbit/s",
    (("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3), ("bit/s", 1.0)),
)
DURATION: Final = Kind(
    "a time",
    "ns",
    ("time_ns",),
    ("ns", "us", "ms", "s", "min", "h"),
    "275 ms",
    (("s", 1e9), ("ms", 1e6), ("us", 1e3), ("ns", 1.0)),
)
SIZE: Final = Kind(
    "a size",
    "byte",
    ("bytes",),
    ("B", "kB", "MB", "GB", "KiB", "MiB", "GiB"),
    "120 kB",
    (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0)),
)
QUEUE_LIMIT: Final = Kind(
    "a queue limit",
    "byte, packet, cell or ns",
    ("bytes", "packets", "link_bytes", "time_ns", "bdp_millionths"),
    ("B", "kB", "KiB", "packets", "cells", "ms", "bdp"),
    "120 kB",
)
THRESHOLD: Final = Kind(
    "a threshold",
    "packet or byte",
    ("packets", "bytes"),
    ("packets", "B", "kB", "KiB"),
    "5 packets",
)
PACKETS: Final = Kind("a packet count", "packet", ("packets",), ("packets", "packet"), "50 packets")

# "16 Mbit/s" is 16,000,000 bit/s, "275 ms" is 275,000,000 ns, "64 KiB" is 65,536 bytes.
rate, duration, size = RATE.read, DURATION.read, SIZE.read
packets, threshold = PACKETS.read, THRESHOLD.read
parse_rate, parse_duration, parse_size = RATE.parse, DURATION.parse, SIZE.parse
# With four digits: 16000000 gives "16 Mbit/s". Sizes are in powers of 1000.
format_rate, format_duration, format_size = RATE.format, DURATION.format, SIZE.format


def queue_limit(text: object) -> Quantity:
    """Read a queue limit: a size, packets, cells, a time, ``"0.5 bdp"`` or ``"unlimited"``.

    Raises:
        UnitError: none of these, or negative, not an integer in its base unit, or over 2^63-1.
    """
    return Quantity("unlimited", 0, "unlimited") if text == "unlimited" else QUEUE_LIMIT.read(text)


def checked(quantity: str | None) -> Quantity:
    """Return a quantity of a record, which its field checked, with its value."""
    assert isinstance(quantity, Quantity), f"{quantity} was not checked"
    return quantity


def value_of(quantity: str | None) -> int:
    """Return the value of a checked quantity, in its base unit."""
    return checked(quantity).value


def check_seed(seed: int | None, name: str = "seed") -> None:
    """Check that a seed is 0 to 2^64-1; None stands for the seed of the scenario.

    Raises:
        UsageError: the seed is out of range; the message begins with ``name``.
    """
    if seed is not None and not 0 <= seed <= LARGEST_SEED:
        raise UsageError(f"{name}: read {seed}; must be 0 to {LARGEST_SEED}")


def fraction(text: str, name: str) -> float:
    """Return a percentage such as ``0.5%`` as a fraction.

    Raises:
        UsageError: it is no percentage; the message begins with ``name``.
    """
    match = PERCENTAGE.match(text)
    if match is None:
        raise UsageError(f'{name}: read "{text}"; expected a percentage, such as "0.5%"')
    return float(match[1]) / 100


def _what(kind: Kind) -> str:
    return f'{kind.noun} is a number and a unit, such as "{kind.example}"'


def _unit_advice(number: str, unit: str, kind: Kind) -> str:
    if not unit:
        choices = _either(f"{number} {spelling}" for spelling in kind.shown[:4])
        return f"the unit is missing; write {choices}"
    if not unit[0].isalpha():
        return f"{_what(kind)}, without separators in the number"
    noun, allowed = kind.noun.removeprefix("a "), ", ".join(kind.shown)
    if any(unit in other.units for other in (RATE, DURATION, QUEUE_LIMIT)):
        return f'"{unit}" is not a unit of {noun}; units of {noun}: {allowed}'
    candidates = _readings(unit, kind)
    problem = f'"{unit}" can be read in two ways' if len(candidates) > 1 else f'no unit "{unit}"'
    if candidates:
        return f"{problem}; write {_either(f'{number} {c}' for c in candidates)} (units: {allowed})"
    return f"{problem}; units of {noun}: {allowed}"


def _readings(unit: str, kind: Kind) -> tuple[str, ...]:
    """Return the allowed units that may be meant by a refused spelling, best first."""
    folded = unit.replace(" ", "").lower()
    meant = tuple(spelling for spelling in _spellings().get(folded, ()) if spelling in kind.units)
    same = tuple(spelling for spelling in kind.shown if spelling.lower() == folded)
    close = nearest(unit, kind.shown)
    return meant or same or ((close,) if close else ())


@cache
def _spellings() -> Mapping[str, tuple[str, ...]]:
    """Return the units that refused spellings may stand for."""
    rows = csv_rows(Path(__file__).parent / "spellings.csv")
    return {row["spelling"]: tuple(row["units"].split()) for row in rows}


def _either(choices: Iterable[str]) -> str:
    *first, last = [f'"{choice}"' for choice in choices]
    return f"{', '.join(first)} or {last}" if first else last


def _digits(value: float) -> str:
    rounded = float(f"{value:.4g}")
    return f"{rounded:.0f}" if rounded == int(rounded) else f"{rounded:.4g}"
