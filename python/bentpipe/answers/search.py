"""The largest count that passes, by runs of some counts."""

from __future__ import annotations

from collections.abc import Callable


def largest(
    passes: Callable[[int], bool], *, guess: int, limit: int, tolerance: float = 0.0
) -> int:
    """Return the largest count from 1 to ``limit`` that passes, or 0 if 1 does not.

    It is exact if no count passes above one that fails. The search doubles or halves from
    ``guess`` until it has one count of each kind, and bisects between them, until they are no
    further apart than ``tolerance`` times the larger one.
    """
    low, high = 0, limit + 1
    count = min(max(guess, 1), limit)
    while high - low > max(1, int(tolerance * high)):
        if passes(count):
            low = count
        else:
            high = count
        if high == limit + 1:
            count = min(2 * low, limit)
        elif low == 0:
            count = max(high // 2, 1)
        else:
            count = (low + high) // 2
    return low
