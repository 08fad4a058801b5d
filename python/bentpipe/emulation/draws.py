"""The simulator's random streams and distributions, for the programs of an emulation.

With the same seed and name a stream gives the same numbers as `crates/core/src/rng.rs`, and a
distribution the same draws as `crates/sim/src/workload/draw.rs`, except for the last bit of a
logarithm.
"""

from __future__ import annotations

import math
from typing import Any, Final

_MASK: Final = 2**64 - 1


def _splitmix64(state: int) -> tuple[int, int]:
    """Return the next state and the next number (Blackman and Vigna's splitmix64.c)."""
    state = (state + 0x9E37_79B9_7F4A_7C15) & _MASK
    z = state
    z = ((z ^ (z >> 30)) * 0xBF58_476D_1CE4_E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D0_49BB_1331_11EB) & _MASK
    return state, z ^ (z >> 31)


def _fnv1a(data: bytes) -> int:
    number = 0xCBF2_9CE4_8422_2325
    for byte in data:
        number = ((number ^ byte) * 0x0000_0100_0000_01B3) & _MASK
    return number


class Stream:
    """The random stream of a name in the run with a seed: xoshiro256++."""

    def __init__(self, seed: int, name: str) -> None:
        state = _splitmix64(seed)[1] ^ _fnv1a(name.encode())
        self._state = []
        for _ in range(4):
            state, number = _splitmix64(state)
            self._state.append(number)

    def next_u64(self) -> int:
        """Return 64 uniform bits."""
        s = self._state
        result = (_rotated((s[0] + s[3]) & _MASK, 23) + s[0]) & _MASK
        t = (s[1] << 17) & _MASK
        s[2] ^= s[0]
        s[3] ^= s[1]
        s[1] ^= s[2]
        s[0] ^= s[3]
        s[2] ^= t
        s[3] = _rotated(s[3], 45)
        return result

    def below(self, bound: int) -> int:
        """Return a uniform number from 0 to ``bound`` - 1 (Lemire, 2019)."""
        while True:
            product = self.next_u64() * bound
            if product & _MASK >= (_MASK + 1 - bound) % bound:
                return product >> 64

    def open_unit(self) -> float:
        """Return a uniform number in (0, 1]."""
        return ((self.next_u64() >> 11) + 1) / 2.0**53


def _rotated(word: int, bits: int) -> int:
    return ((word << bits) | (word >> (64 - bits))) & _MASK


def draw(distribution: dict[str, Any], stream: Stream) -> int:
    """Return the next number of a distribution of the plan."""
    kind = distribution["kind"]
    if kind == "constant":
        return int(distribution["value"])
    if kind == "exponential":
        return _rounded(-math.log(stream.open_unit()) * distribution["mean"])
    if kind == "pareto":
        low, high, shape = distribution["min"], distribution["max"], distribution["shape"]
        # Inversion of F(x) = (1 - (min / x)^shape) / (1 - (min / max)^shape).
        rest = 1.0 - stream.open_unit() * (1.0 - math.pow(low / high, shape))
        number = math.inf if rest == 0 else low * math.pow(rest, -1.0 / shape)
        return int(min(max(number, low), high) + 0.5)
    radius = math.sqrt(-2.0 * math.log(stream.open_unit()))
    normal = radius * math.cos(math.tau * stream.open_unit())
    return min(
        _rounded(distribution["median"] * math.exp(distribution["sigma"] * normal)),
        int(distribution["max"]),
    )


def _rounded(number: float) -> int:
    return math.floor(number + 0.5)
