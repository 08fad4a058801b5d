"""The load of runs in real time on the processors of this machine."""

from __future__ import annotations

from typing import Final

# A run at this rate takes a whole processor; the programs and timers of a slow one take a quarter.
_RATE_OF_A_PROCESSOR_BPS: Final = 50e6
_MIN_SHARE: Final = 0.25


def processor_share(rate_bps: float) -> float:
    """Return the approximate share of a processor that a run takes, at a link's rate."""
    return min(1.0, _MIN_SHARE + (1 - _MIN_SHARE) * rate_bps / _RATE_OF_A_PROCESSOR_BPS)
