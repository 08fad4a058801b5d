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
from typing import Any, Final, Generic, Literal, Self, TypeVar

from bentpipe.errors import UnitError, UsageError
from bentpipe.text import nearest, shown

# The plan holds unsigned 64-bit integers; half of their range keeps a sum of two of them in range.
LARGEST: Final = 2**63 - 1
NS_PER_S: Final = 10**9
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

_PERCENTAGE: Final = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*%\s*", re.ASCII)
_SI: Final[dict[str, int]] = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY: Final = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30}

_NS_PER: Final[dict[str, int]] = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,
    "ms": 10**6,
    "s": NS_PER_S,
    "min": 60 * NS_PER_S,
    "h": 3600 * NS_PER_S,
}
_BYTES_PER: Final = {f"{prefix}B": factor for prefix, factor in (_SI | _BINARY).items()}
_BPS_PER: Final[dict[str, int]] = (
    {f"{prefix}bit/s": factor for prefix, factor in _SI.items()}
    | {f"{prefix}bps": factor for prefix, factor in _SI.items()}
    | {f"{prefix}B/s": 8 * factor for prefix, factor in (_SI | _BINARY).items()}
)
_PACKETS_PER: Final[dict[str, int]] = {"packet": 1, "packets": 1, "pkt": 1}
# A cell as ATM counts it: 5 bytes of header and 48 of payload (ITU-T I.361).
_LINK_BYTES_PER: Final[dict[str, int]] = {"cell": 53, "cells": 53}
# A share of the bandwidth-delay product is in millionths until the link is known.
BDP_SCALE: Final = 10**6
_BDP_PER: Final[dict[str, int]] = {"bdp": BDP_SCALE}


LimitUnit = Literal["bytes", "link_bytes", "packets", "time_ns", "bdp_millionths", "unlimited"]


@dataclass(frozen=True)
class QueueLimit:
    """A queue limit: ``value`` counts ``unit`` and is None for ``unlimited``.

    ``bdp_millionths`` is a share of the bandwidth-delay product, which depends on the link.
    """

    unit: LimitUnit
    value: int | None


V = TypeVar("V", int, QueueLimit)


class Quantity(str, Generic[V]):
    """A quantity as it was written, and its value in the base unit of its kind.

    It equals and prints as its text.
    """

    __slots__ = ("value",)
    value: V

    def __new__(cls, text: str, value: V) -> Self:
        """Keep a text with the value that was read from it."""
        made = super().__new__(cls, text)
        made.value = value
        return made

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, handler: Callable[[type], Any]) -> Any:
        """Let pydantic write defaults into the JSON Schema as text."""
        return handler(str)

    def __getnewargs__(self) -> tuple[str, V]:  # type: ignore[override]
        return str(self), self.value


@dataclass(frozen=True)
class Kind:
    """A kind of quantity: its name, its units, those to show first, and those to format with."""

    noun: str
    base: str
    units: Mapping[str, int]
    shown: tuple[str, ...]
    example: str
    scales: tuple[tuple[str, float], ...] = ()

    @property
    def pattern(self) -> str:
        """The regular expression of quantities of this kind, for the JSON Schema."""
        written = "|".join(re.escape(unit) for unit in self.units)
        return rf"^\s*(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?\s*({written})\s*$"

    def parse(self, text: object) -> int:
        """Return the value of a text in the base unit.

        Raises:
            UnitError: not of this kind, negative, not an integer in its base unit, or over 2^63-1.
        """
        return _parse(text, self)[0]

    def read(self, text: object) -> Quantity[int]:
        """Parse a quantity and keep its text."""
        return Quantity(str(text), self.parse(text))

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
    _BPS_PER,
    ("bit/s", "kbit/s", "Mbit/s", "Gbit/s", "kB/s", "MB/s"),
    "16 Mbit/s",
    (("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3), ("bit/s", 1.0)),
)
DURATION: Final = Kind(
    "a time",
    "ns",
    _NS_PER,
    ("ns", "us", "ms", "s", "min", "h"),
    "275 ms",
    (("s", 1e9), ("ms", 1e6), ("us", 1e3), ("ns", 1.0)),
)
SIZE: Final = Kind(
    "a size",
    "byte",
    _BYTES_PER,
    ("B", "kB", "MB", "GB", "KiB", "MiB", "GiB"),
    "120 kB",
    (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0)),
)
QUEUE_LIMIT: Final = Kind(
    "a queue limit",
    "byte, packet, cell or ns",
    _BYTES_PER | _PACKETS_PER | _LINK_BYTES_PER | _NS_PER | _BDP_PER,
    ("B", "kB", "KiB", "packets", "cells", "ms", "bdp"),
    "120 kB",
)
THRESHOLD: Final = Kind(
    "a threshold",
    "packet or byte",
    _PACKETS_PER | _BYTES_PER,
    ("packets", "B", "kB", "KiB"),
    "5 packets",
)
PACKETS: Final = Kind("a packet count", "packet", _PACKETS_PER, ("packets", "packet"), "50 packets")

# "16 Mbit/s" is 16,000,000 bit/s, "275 ms" is 275,000,000 ns, "64 KiB" is 65,536 bytes.
rate, duration, size, packets = RATE.read, DURATION.read, SIZE.read, PACKETS.read
parse_rate, parse_duration, parse_size = RATE.parse, DURATION.parse, SIZE.parse
# With four digits: 16000000 gives "16 Mbit/s". Sizes are in powers of 1000.
format_rate, format_duration, format_size = RATE.format, DURATION.format, SIZE.format


def queue_limit(text: object) -> Quantity[QueueLimit]:
    """Read a queue limit: a size, packets, cells, a time, ``"0.5 bdp"`` or ``"unlimited"``.

    Raises:
        UnitError: none of these, or negative, not an integer in its base unit, or over 2^63-1.
    """
    if text == "unlimited":
        return Quantity("unlimited", QueueLimit("unlimited", None))
    value, unit = _parse(text, QUEUE_LIMIT)
    units: dict[LimitUnit, Mapping[str, int]] = {
        "bytes": _BYTES_PER,
        "packets": _PACKETS_PER,
        "link_bytes": _LINK_BYTES_PER,
        "time_ns": _NS_PER,
        "bdp_millionths": _BDP_PER,
    }
    name = next(name for name, known in units.items() if unit in known)
    return Quantity(str(text), QueueLimit(name, value))


def threshold(text: object) -> Quantity[QueueLimit]:
    """Read a threshold of a queue: ``"5 packets"``, or a size in bytes.

    Raises:
        UnitError: neither of these, or negative, not an integer in its base unit, or over 2^63-1.
    """
    value, unit = _parse(text, THRESHOLD)
    return Quantity(str(text), QueueLimit("packets" if unit in _PACKETS_PER else "bytes", value))


def value_of(quantity: str | None) -> int:
    """Return the value of a checked rate, time, size or packet count, in its base unit."""
    assert isinstance(quantity, Quantity), f"{quantity} was not checked"
    assert isinstance(quantity.value, int), f"{quantity} is a queue limit"
    return quantity.value


def limit_of(quantity: str) -> QueueLimit:
    """Return the value of a checked queue limit or threshold."""
    assert isinstance(quantity, Quantity), f"{quantity} was not checked"
    assert isinstance(quantity.value, QueueLimit), f"{quantity} is no queue limit"
    return quantity.value


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
    match = _PERCENTAGE.fullmatch(text)
    if match is None:
        raise UsageError(f'{name}: read "{text}"; expected a percentage, such as "0.5%"')
    return float(match[1]) / 100


def _parse(text: object, kind: Kind) -> tuple[int, str]:
    """Return the value in the base unit, and the unit that was written."""
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        name = "nothing" if text is None else type(text).__name__
        raise UnitError(f"read {name}: {_what(kind)}")
    if isinstance(text, str) and len(text) > _LONGEST_TEXT:
        raise UnitError(f"read a text of {len(text)} characters: {_what(kind)}")
    read, match = f"read {shown(text)}", _QUANTITY.fullmatch(str(text))
    if match is None:
        raise UnitError(f"{read}: {_what(kind)}")
    number, unit = match["number"], match["unit"]
    if unit not in kind.units:
        raise UnitError(f"{read}: {_unit_advice(number, unit, kind)}")
    if abs(int(match["exponent"] or 0)) > _LARGEST_EXPONENT:
        raise UnitError(f"{read}: the exponent is beyond {_LARGEST_EXPONENT}")
    value = Fraction(number) * kind.units[unit]
    if value < 0:
        raise UnitError(f"{read}: must not be negative")
    if value.denominator != 1:
        finest = "millionth of a bdp" if unit == "bdp" else kind.base
        raise UnitError(f"{read}: not an integer in its finest unit ({finest})")
    if value > LARGEST:
        raise UnitError(f"{read}: beyond 64 bits; the largest is {LARGEST} {kind.base}")
    return value.numerator, unit


def _what(kind: Kind) -> str:
    return f'{kind.noun} is a number and a unit, such as "{kind.example}"'


def _unit_advice(number: str, unit: str, kind: Kind) -> str:
    if not unit:
        choices = _either(f"{number} {each}" for each in kind.shown[:3])
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
    meant = tuple(each for each in _FOLDED.get(folded, ()) if each in kind.units)
    same = tuple(each for each in kind.shown if each.lower() == folded)
    close = nearest(unit, kind.shown)
    return meant or same or ((close,) if close else ())


def _folded_spellings() -> dict[str, tuple[str, ...]]:
    """Map refused spellings, in lower case and without spaces, to their possible units."""
    readings: dict[str, tuple[str, ...]] = {
        "b": ("B",),
        "b/s": ("bit/s", "B/s"),
        "kbs": ("kbit/s", "kB/s"),
    }
    for prefix in ("k", "M", "G"):
        binary = f"{prefix.upper()}i"
        lower = prefix.lower()
        bits, octets = f"{prefix}bit/s", f"{prefix}B/s"
        readings[lower] = (bits, octets, f"{prefix}B", f"{binary}B")
        readings[f"{lower}b"] = (f"{prefix}B", f"{binary}B", bits, octets)
        for spelling in ("bps", "b/s"):
            readings[f"{lower}{spelling}"] = (bits, octets)
        for spelling in ("bit", "bits", "bits/s", "bitps", "bit/sec", "bits/sec"):
            readings[f"{lower}{spelling}"] = (bits,)
        for spelling in ("byte", "bytes"):
            readings[f"{lower}{spelling}"] = (f"{prefix}B",)
        readings[f"{lower}bytes/s"] = (octets,)
    readings |= dict.fromkeys(("sec", "secs", "second", "seconds"), ("s",))
    readings |= dict.fromkeys(("msec", "millisecond", "milliseconds"), ("ms",))
    readings |= dict.fromkeys(("usec", "microsecond", "microseconds", "μs"), ("us",))
    readings |= dict.fromkeys(("mins", "minute", "minutes"), ("min",))
    readings |= dict.fromkeys(("hr", "hrs", "hour", "hours"), ("h",))
    readings |= dict.fromkeys(("byte", "bytes", "octet", "octets"), ("B",))
    readings |= dict.fromkeys(("p", "pkts", "pack"), ("packets",))
    readings["m"] = ("ms", "min", *readings["m"])
    return readings


_FOLDED: Final = _folded_spellings()


def _either(choices: Iterable[str]) -> str:
    *first, last = [f'"{choice}"' for choice in choices]
    return f"{', '.join(first)} or {last}" if first else last


def _digits(value: float) -> str:
    rounded = float(f"{value:.4g}")
    return f"{rounded:.0f}" if rounded == int(rounded) else f"{rounded:.4g}"
