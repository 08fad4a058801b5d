"""Speech quality of a call by the E-model, ITU-T G.107 (06/2015), and the columns of calls.

R = Ro - Is - Id - Ie,eff + A rates a call from 0 to 100: Ro is the signal-to-noise ratio, Is the
impairments simultaneous with the voice, Id delay and echo, Ie,eff codec and loss, A the advantage
of access. With all defaults R is 93.2. Papers often start from 93.36, which is Ro - Is: it lacks
the listener echo (Idle, 0.15), which the model has even without delay.

Symbols and numbers of equations are those of G.107; ``docs/model/voice-quality.md`` lists them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log10, sqrt
from typing import Any, Final, cast

import polars as pl

from bentpipe.scenario.tables import CODECS, Codec, CodecName

# The largest R, that of the mapping to MOS (annex B).
_MAX_R: Final = 100.0
_MAX_MOS: Final = 4.5
# The impairment of complete loss (equation 7-29).
_COMPLETE_LOSS: Final = 95.0
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


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """The parameters of G.107, table 1, with its defaults.

    ``t`` and ``tr`` are the delays of talker echo and listener echo in ms. They are 0: the echo
    canceller is perfect. Otherwise ``t`` is the mean one-way delay of the echo path and ``tr`` the
    round trip.
    """

    slr: float = 8.0  # send loudness rating, dB
    rlr: float = 2.0  # receive loudness rating, dB
    stmr: float = 15.0  # sidetone masking rating, dB
    lstr: float = 18.0  # listener sidetone rating, dB
    ds: float = 3.0  # D-value of the telephone, send side
    telr: float = 65.0  # talker echo loudness rating, dB
    wepl: float = 110.0  # weighted echo path loss, dB
    t: float = 0.0  # mean one-way delay of the echo path, ms
    tr: float = 0.0  # round-trip delay in a 4-wire loop, ms
    qdu: float = 1.0  # quantization distortion units
    nc: float = -70.0  # circuit noise referred to the 0 dBr point, dBm0p
    nfor: float = -64.0  # noise floor at the receive side, dBmp
    ps: float = 35.0  # room noise at the send side, dB(A)
    pr: float = 35.0  # room noise at the receive side, dB(A)
    # A, the advantage factor; table 4 has up to 20 for access by several satellite hops.
    advantage: float = 0.0
    st: float = 1.0  # delay sensitivity
    mt: float = 100.0  # the minimum perceivable delay, ms


DEFAULTS: Final = Parameters()


@dataclass(frozen=True)
class Quality:
    """The rating of one direction of a call, with its parts.

    ``idd`` is the impairment by pure delay, ``echo`` that by talker and listener echo (Idte and
    Idle), ``ie_eff`` that by the codec and by loss.
    """

    ro: float
    simultaneous: float
    echo: float
    idd: float
    ie_eff: float
    r_factor: float
    mos: float


def quality(
    mouth_to_ear_ms: float,
    codec: Codec,
    *,
    loss_percent: float = 0.0,
    burst_ratio: float = 1.0,
    parameters: Parameters = DEFAULTS,
) -> Quality:
    """Return the quality of speech after this delay, with lost and late packets in percent.

    R is at least 0, also for long bursts of loss, which are beyond what the model was fitted to.
    """
    no, ro = _noise(parameters)
    simultaneous = _overall_loudness(parameters, no) + _sidetone(parameters)
    simultaneous += _quantization(parameters, ro)
    echo = _talker_echo(parameters, no) + _listener_echo(parameters, ro)
    idd = delay_impairment(mouth_to_ear_ms, parameters)
    ie_eff = loss_impairment(codec, loss_percent, burst_ratio)
    r_factor = max(0.0, ro - simultaneous - echo - idd - ie_eff + parameters.advantage)
    return Quality(ro, simultaneous, echo, idd, ie_eff, r_factor, mos_of(r_factor))


def mos_of(r_factor: float) -> float:
    """Return the mean opinion score of a rating, 1 to 4.5 (annex B, equation B-4)."""
    if r_factor >= _MAX_R:
        return _MAX_MOS
    r = max(r_factor, 0.0)
    # Below R = 6.5 the polynomial is less than 1, the worst score.
    return max(1.0, 1 + 0.035 * r + r * (r - 60) * (100 - r) * 7e-6)


def delay_impairment(mouth_to_ear_ms: float, parameters: Parameters = DEFAULTS) -> float:
    """Return Idd, the impairment by pure delay (equations 7-27 and 7-28)."""
    if mouth_to_ear_ms <= parameters.mt:
        return 0.0
    x = log10(mouth_to_ear_ms / parameters.mt) / log10(2)
    power = 6 * parameters.st
    slow: float = (1 + x**power) ** (1 / power)
    fast: float = (1 + (x / 3) ** power) ** (1 / power)
    return 25 * (slow - 3 * fast + 2)


def loss_impairment(codec: Codec, loss_percent: float, burst_ratio: float = 1.0) -> float:
    """Return Ie,eff, the impairment by codec and loss (equation 7-29)."""
    robustness = loss_percent / burst_ratio + codec.robustness
    return codec.impairment + (_COMPLETE_LOSS - codec.impairment) * loss_percent / robustness


def burst_ratio_of(packets: int, lost: int, bursts: int) -> float:
    """Return BurstR, the mean length of bursts of loss over that of independent losses.

    With a loss probability p, independent losses have bursts of 1 / (1 - p) on average (G.107,
    section 7.5). It is 1 without losses, and if all packets are lost.
    """
    if not 0 < lost < packets or not bursts:
        return 1.0
    return lost / bursts * (1 - lost / packets)


def _noise(p: Parameters) -> tuple[float, float]:
    """Return No, the sum of all noise, and Ro (equations 7-2 to 7-7)."""
    olr = p.slr + p.rlr
    room_send = p.ps - p.slr - p.ds - 100 + 0.004 * (p.ps - olr - p.ds - 14) ** 2
    through_sidetone = p.pr + 10 * log10(1 + 10 ** ((10 - p.lstr) / 10))
    room_receive = p.rlr - 121 + through_sidetone + 0.008 * (through_sidetone - 35) ** 2
    noises = (p.nc, room_send, room_receive, p.nfor + p.rlr)
    no = 10 * log10(sum(10 ** (noise / 10) for noise in noises))
    return no, 15 - 1.5 * (p.slr + no)


def _overall_loudness(p: Parameters, no: float) -> float:
    """Return Iolr, too quiet a voice (equations 7-9 and 7-10)."""
    olr = p.slr + p.rlr
    xolr = olr + 0.2 * (64 + no - p.rlr)
    return float(20 * ((1 + (xolr / 8) ** 8) ** (1 / 8) - xolr / 8))


def _sidetone(p: Parameters) -> float:
    """Return Ist, sidetone that is not optimal (equations 7-11 and 7-12)."""
    stmro = -10 * log10(10 ** (-p.stmr / 10) + exp(-p.t / 4) * 10 ** (-p.telr / 10))
    loud = (1 + ((stmro - 13) / 6) ** 8) ** (1 / 8)
    middle = (1 + ((stmro + 1) / 19.4) ** 35) ** (1 / 35)
    quiet = (1 + ((stmro - 3) / 33) ** 13) ** (1 / 13)
    return float(12 * loud - 28 * middle - 13 * quiet + 29)


def _quantization(p: Parameters, ro: float) -> float:
    """Return Iq, quantizing distortion (equations 7-13 to 7-17)."""
    q = 37 - 15 * log10(p.qdu)
    g = 1.07 + 0.258 * q + 0.0602 * q**2
    y = (ro - 100) / 15 + 46 / 8.4 - g / 9
    z = 46 / 30 - g / 40
    return 15 * log10(1 + 10**y + 10**z)


def _talker_echo(p: Parameters, no: float) -> float:
    """Return Idte, with STMR from 9 to 20 dB (equations 7-19 to 7-22)."""
    terv = p.telr - 40 * log10((1 + p.t / 10) / (1 + p.t / 150)) + 6 * exp(-0.3 * p.t**2)
    half = (-1.5 * (no - p.rlr) - (80 + 2.5 * (terv - 14))) / 2
    return float((half + sqrt(half**2 + 100) - 1) * (1 - exp(-p.t)))


def _listener_echo(p: Parameters, ro: float) -> float:
    """Return Idle (equations 7-25 and 7-26)."""
    half = (ro - 10.5 * (p.wepl + 7) * (p.tr + 1) ** -0.25) / 2
    return float(half + sqrt(half**2 + 169))


# --- columns of flows of kind ``voice`` ----------------------------------------------------------


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
