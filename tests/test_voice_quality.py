"""The E-model (ITU-T G.107) and the codecs, compared with published values."""

from __future__ import annotations

from itertools import pairwise
from math import log10, sqrt

import pytest

from bentpipe.results import voice
from bentpipe.results.voice import quality
from bentpipe.scenario.tables import CODECS, Codec

G711 = CODECS["g711"]


def test_the_defaults_of_g_107_give_its_rating_of_93_2_and_a_mos_of_4_41() -> None:
    """G.107, section 7.7 and annex B: with all defaults R = 93.2, MOS 4.41."""
    found = quality(0, G711)
    assert round(found.r_factor, 1) == 93.2
    assert round(found.mos, 2) == 4.41


def test_the_best_rating_is_that_of_the_equations_with_the_defaults_of_table_1() -> None:
    """Ro - Is = 93.36, from which papers start; the listener echo takes 0.15 of it.

    SLR 8, RLR 2, STMR 15, LSTR 18, Ds 3, TELR 65, WEPL 110, QDU 1, Nc -70, Nfor -64, Ps = Pr = 35.
    Without delay, the echo of the talker (Idte) is 0.
    """
    olr = 8 + 2
    sidetone = 35 + 10 * log10(1 + 10 ** ((10 - 18) / 10))
    send = 35 - 8 - 3 - 100 + 0.004 * (35 - olr - 3 - 14) ** 2
    receive = 2 - 121 + sidetone + 0.008 * (sidetone - 35) ** 2
    no = 10 * log10(sum(10 ** (noise / 10) for noise in (-70, send, receive, -64 + 2)))
    ro = 15 - 1.5 * (8 + no)
    xolr = olr + 0.2 * (64 + no - 2)
    loudness = 20 * ((1 + (xolr / 8) ** 8) ** (1 / 8) - xolr / 8)
    stmro = -10 * log10(10**-1.5 + 10**-6.5)
    roots = ((12, 13, 6, 8), (-28, -1, 19.4, 35), (-13, 3, 33, 13))
    sides = (k * (1 + ((stmro - at) / over) ** n) ** (1 / n) for k, at, over, n in roots)
    g = 1.07 + 0.258 * 37 + 0.0602 * 37**2
    powers = (ro - 100) / 15 + 46 / 8.4 - g / 9, 46 / 30 - g / 40
    simultaneous = loudness + sum(sides) + 29 + 15 * log10(1 + sum(10**y for y in powers))
    half = (ro - 10.5 * (110 + 7)) / 2
    echo = half + sqrt(half**2 + 169)
    assert [round(each, 2) for each in (ro, ro - simultaneous, echo)] == [94.77, 93.36, 0.15]
    assert pytest.approx(ro - simultaneous - echo, abs=1e-9) == voice.BEST_R


@pytest.mark.parametrize(
    ("r_factor", "mos"),
    [(90, 4.34), (80, 4.03), (70, 3.60), (60, 3.10), (50, 2.58), (0, 1.0), (-9, 1), (100, 4.5)],
)
def test_the_mapping_to_mos_is_table_b_1(r_factor: float, mos: float) -> None:
    """G.107, table B.1, whose 4.03 is 4.024; 1 up to R = 0 and 4.5 from R = 100 on."""
    assert voice.mos_of(r_factor) == pytest.approx(mos, abs=0.0065)


def test_mos_never_falls_below_one() -> None:
    """The polynomial of annex B is below 1 for R under 6.5."""
    scores = [voice.mos_of(r / 10) for r in range(-10, 1001)]
    assert min(scores) == 1.0
    assert all(low <= high for low, high in pairwise(scores))


@pytest.mark.parametrize(
    ("delay_ms", "idd"),
    # By hand from equation 7-28: X = 0, 0.585, 1, 1.322, 2 and 2.585.
    [(0, 0), (100, 0), (150, 0.16), (200, 3.04), (250, 8.92), (400, 24.07), (600, 35.25)],
)
def test_pure_delay_impairs_as_in_equation_7_28(delay_ms: float, idd: float) -> None:
    assert round(voice.delay_impairment(delay_ms), 2) == idd


def test_delays_of_g_114_have_its_ratings() -> None:
    """G.114, figure 1: users are very satisfied to some 200 ms; 400 ms is near R = 70."""
    assert quality(200, G711).r_factor > 90
    assert 80 < quality(270, G711).r_factor < 84
    assert 68 < quality(400, G711).r_factor < 71


@pytest.mark.parametrize(
    ("codec", "loss", "ie_eff"),
    # G.113, table I.4, in equation 7-29: Ie + (95 - Ie) Ppl / (Ppl + Bpl).
    [
        ("g711", 0, 0.0),
        ("g711", 1, 95 / 26.1),
        ("g711", 5, 95 * 5 / 30.1),
        ("g729", 0, 11.0),
        ("g729", 1, 11 + 84 / 20),
        ("g729", 3, 11 + 84 * 3 / 22),
    ],
)
def test_loss_impairs_by_the_table_of_g_113(codec: str, loss: float, ie_eff: float) -> None:
    assert voice.loss_impairment(CODECS[codec], loss) == pytest.approx(ie_eff)  # type: ignore[index]


def test_bursts_of_loss_impair_more_than_independent_losses() -> None:
    """Ie,eff with BurstR 2 at 4 %: 95 * 4 / (4 / 2 + 25.1), by hand 14.02 instead of 13.06."""
    assert round(voice.loss_impairment(G711, 4), 2) == 13.06
    assert round(voice.loss_impairment(G711, 4, 2.0), 2) == 14.02


@pytest.mark.parametrize("codec", CODECS.values(), ids=list(CODECS))
def test_no_loss_impairs_more_than_complete_loss(codec: Codec) -> None:
    """Given 90 % lost in one burst of 900 packets, BurstR 90, expect 95, not 327 with G.711."""
    burst_ratio = voice.burst_ratio_of(1_000, 900, 1)
    assert burst_ratio == pytest.approx(90)
    found = quality(0, codec, loss_percent=90, burst_ratio=burst_ratio)
    assert (found.loss_impairment, found.r_factor, found.mos) == (95.0, 0.0, 1.0)


def test_the_burst_ratio_is_that_of_the_mean_lengths() -> None:
    """10 of 100 lost, independent losses have bursts of 1 / 0.9 = 1.11 packets."""
    assert voice.burst_ratio_of(100, 10, 9) == pytest.approx(1.0)
    assert voice.burst_ratio_of(100, 10, 2) == pytest.approx(4.5)
    assert voice.burst_ratio_of(100, 0, 0) == 1.0
    assert voice.burst_ratio_of(100, 100, 1) == 1.0
    # Bursts after the last packet received are not counted.
    assert voice.burst_ratio_of(100, 10, 0) == 1.0


@pytest.mark.parametrize(
    ("name", "payload", "rate", "delay"),
    # 20 ms of speech and 12 bytes of RTP.
    [("g711", 172, 68_800, 20), ("g729", 32, 12_800, 25), ("opus", 92, 36_800, 26.5)],
)
def test_codecs_send_fifty_packets_a_second(
    name: str, payload: int, rate: int, delay: float
) -> None:
    codec = CODECS[name]  # type: ignore[index]
    assert (codec.payload_bytes, codec.udp_rate_bps, codec.coding_delay_ms) == (
        payload,
        rate,
        delay,
    )
    assert codec.udp_rate_bps * 20 == codec.payload_bytes * 8_000
