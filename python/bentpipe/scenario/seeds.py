"""The range of random seeds."""

from __future__ import annotations

from typing import Final

from bentpipe.errors import UsageError

# The simulator takes an unsigned 64-bit integer.
LARGEST_SEED: Final = 2**64 - 1


def check_seed(seed: int | None, name: str = "seed") -> None:
    """Check that a seed is 0 to 2^64-1; None stands for the seed of the scenario.

    Raises:
        UsageError: the seed is out of range; the message begins with ``name``.
    """
    if seed is not None and not 0 <= seed <= LARGEST_SEED:
        raise UsageError(f"{name}: read {seed}; must be 0 to {LARGEST_SEED}")
