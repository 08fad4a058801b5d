"""Speech quality of a call by the E-model, ITU-T G.107 (06/2015), and the columns of calls.

R = Ro - Is - Id - Ie,eff + A rates a call from 0 to 100: Ro is the signal-to-noise ratio, Is the
impairments simultaneous with the voice, Id delay and echo, Ie,eff codec and loss, A the advantage
of access. All parameters of table 1 have their defaults, and the echo cancellers are perfect: R is
then 93.2 less the impairments by delay and by loss. Papers often start from 93.36, which is
Ro - Is: it lacks the listener echo (Idle, 0.15), which the model has even without delay.

Symbols and numbers of equations are those of G.107; ``docs/model/voice-quality.md`` lists them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from math import log10
from typing import Any, Final, cast

import polars as pl

from bentpipe.scenario.tables import CODECS, Codec, CodecName
from bentpipe.units import NS_PER_MS

# Ro - Is - Idte - Idle with the defaults of table 1; `tests/test_voice_quality.py` derives it.
BEST_R: Final = 93.20620772327571
# The minimum perceivable delay, mT of table 1.
_MIN_DELAY_MS: Final = 100.0
# The largest R, that of the mapping to MOS (annex B).
_MAX_R: Final = 100.0
_MAX_MOS: Final = 4.5
# The impairment of complete loss (equation 7-29).
_COMPLETE_LOSS: Final = 95.0
# What the quality is computed from, beside the play-out delay.
COUNTED: Final = ("expected_segments", "lost_packets", "late_packets", "loss_bursts")


@dataclass(frozen=True)
class Quality:
    """The rating of one direction of a call: R and MOS, less the impairments by delay and loss."""

    r_factor: float
    mos: float
    delay_impairment: float
    loss_impairment: float


_COLUMNS: Final = (
    *(field.name for field in fields(Quality)),
    "mouth_to_ear_ns",
    "unplayed_percent",
)
_NONE: Final[dict[str, float | None]] = dict.fromkeys(_COLUMNS)


def quality(
    mouth_to_ear_ms: float, codec: Codec, *, loss_percent: float = 0.0, burst_ratio: float = 1.0
) -> Quality:
    """Return the quality of speech after this delay, with lost and late packets in percent.

    R is at least 0, also for long bursts of loss, which are beyond what the model was fitted to.
    """
    by_delay = delay_impairment(mouth_to_ear_ms)
    by_loss = loss_impairment(codec, loss_percent, burst_ratio)
    r_factor = max(0.0, BEST_R - by_delay - by_loss)
    return Quality(r_factor, mos_of(r_factor), by_delay, by_loss)


def mos_of(r_factor: float) -> float:
    """Return the mean opinion score of a rating, 1 to 4.5 (annex B, equation B-4)."""
    if r_factor >= _MAX_R:
        return _MAX_MOS
    r = max(r_factor, 0.0)
    # Below R = 6.5 the polynomial is less than 1, the worst score.
    return max(1.0, 1 + 0.035 * r + r * (r - 60) * (100 - r) * 7e-6)


def delay_impairment(mouth_to_ear_ms: float) -> float:
    """Return Idd, the impairment by pure delay (equations 7-27 and 7-28 with sT = 1)."""
    if mouth_to_ear_ms <= _MIN_DELAY_MS:
        return 0.0
    x = log10(mouth_to_ear_ms / _MIN_DELAY_MS) / log10(2)
    slow: float = (1 + x**6) ** (1 / 6)
    fast: float = (1 + (x / 3) ** 6) ** (1 / 6)
    return 25 * (slow - 3 * fast + 2)


def loss_impairment(codec: Codec, loss_percent: float, burst_ratio: float = 1.0) -> float:
    """Return Ie,eff, the impairment by codec and loss (equation 7-29), at most 95.

    With BurstR 1 it stays below 95, the impairment of complete loss; with long bursts of loss it
    would exceed that.
    """
    robustness = loss_percent / burst_ratio + codec.robustness
    share = min(1.0, loss_percent / robustness)
    return codec.impairment + (_COMPLETE_LOSS - codec.impairment) * share


def burst_ratio_of(packets: int, lost: int, bursts: int) -> float:
    """Return BurstR, the mean length of bursts of loss over that of independent losses.

    With a loss probability p, independent losses have bursts of 1 / (1 - p) on average (G.107,
    section 7.5). It is 1 without losses, and if all packets are lost.
    """
    if not 0 < lost < packets or not bursts:
        return 1.0
    return lost / bursts * (1 - lost / packets)


# --- columns of flows of kind ``voice`` ----------------------------------------------------------


def call_columns(workloads: Sequence[dict[str, Any]], table: pl.DataFrame) -> list[pl.Series]:
    """Return the columns of calls, for a table of flows with ``lost_packets``.

    ``delay_impairment`` is Idd, ``loss_impairment`` Ie,eff. ``unplayed_percent`` are the packets
    that were lost, or late for the jitter buffer, of those sent. A call of which no packet arrived
    has R 0 and MOS 1. Columns are null for other flows, and for a call that sent nothing.
    """
    calls = [_NONE] * len(workloads)
    if any(workload["kind"] == "voice" for workload in workloads):
        rows = table.select(*COUNTED, "play_out_delay_ns").to_dicts()
        for i, workload in enumerate(workloads):
            if workload["kind"] == "voice":
                calls[i] = call_quality(workload, rows[i])
    return [pl.Series(name, [call[name] for call in calls], dtype=pl.Float64) for name in _COLUMNS]


def call_quality(workload: dict[str, Any], row: dict[str, Any]) -> dict[str, float | None]:
    """Return the columns of a call from its counts, of the whole call or of a part of it."""
    sent, play_out_ns = row["expected_segments"], row["play_out_delay_ns"]
    if not sent:
        return _NONE
    if play_out_ns is None:
        return _NONE | {"mos": mos_of(0), "r_factor": 0.0, "unplayed_percent": 100.0}
    codec = CODECS[cast("CodecName", workload["codec"])]
    unplayed = min((row["lost_packets"] or 0) + (row["late_packets"] or 0), sent)
    loss_percent = 100 * unplayed / sent
    mouth_to_ear_ms = play_out_ns / NS_PER_MS + codec.coding_delay_ms
    # Runs in real time do not know which packets were lost: losses count as independent.
    burst_ratio = burst_ratio_of(sent, unplayed, row["loss_bursts"] or 0)
    rated = quality(mouth_to_ear_ms, codec, loss_percent=loss_percent, burst_ratio=burst_ratio)
    return asdict(rated) | {
        "mouth_to_ear_ns": mouth_to_ear_ms * NS_PER_MS,
        "unplayed_percent": loss_percent,
    }
