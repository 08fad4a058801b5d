"""The quality of calls: columns of flows of kind ``voice``, by the E-model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

import polars as pl

from bentpipe.results.voice import burst_ratio_of, mos_of, quality
from bentpipe.scenario.codecs import CODECS, CodecName

_NS_PER_MS: Final = 10**6
# What the quality is computed from.
_MEASURED: Final = (
    "expected_segments",
    "lost_packets",
    "late_packets",
    "loss_bursts",
    "play_out_delay_ns",
)
_COLUMNS: Final = (
    "mos",
    "r_factor",
    "delay_impairment",
    "loss_impairment",
    "mouth_to_ear_ns",
    "unplayed_percent",
)
_NONE: Final[dict[str, float | None]] = dict.fromkeys(_COLUMNS)


def call_columns(workloads: Sequence[dict[str, Any]], table: pl.DataFrame) -> list[pl.Series]:
    """Return the columns of calls, for a table of flows with ``lost_packets``.

    ``delay_impairment`` is Idd, ``loss_impairment`` Ie,eff. ``unplayed_percent`` are the packets
    that were lost, or late for the jitter buffer, of those sent. A call of which no packet arrived
    has R 0 and MOS 1. Columns are null for other flows, and for a call that sent nothing.
    """
    calls = [_NONE] * len(workloads)
    if any(workload["kind"] == "voice" for workload in workloads):
        rows = table.select(_MEASURED).to_dicts()
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
    mouth_to_ear_ms = play_out_ns / _NS_PER_MS + codec.coding_delay_ms
    # Runs in real time do not know which packets were lost: losses count as independent.
    burst_ratio = burst_ratio_of(sent, unplayed, row["loss_bursts"] or 0)
    rated = quality(mouth_to_ear_ms, codec, loss_percent=loss_percent, burst_ratio=burst_ratio)
    return {
        "mos": rated.mos,
        "r_factor": rated.r_factor,
        "delay_impairment": rated.idd,
        "loss_impairment": rated.ie_eff,
        "mouth_to_ear_ns": mouth_to_ear_ms * _NS_PER_MS,
        "unplayed_percent": loss_percent,
    }
