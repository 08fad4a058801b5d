"""The E-model (ITU-T G.107) and the codecs, compared with published values."""

from __future__ import annotations

from itertools import pairwise

import pytest

from bentpipe.results import voice
from bentpipe.scenario.tables import CODECS, Codec

G711 = CODECS["g711"]


def quality(ms: float, codec: Codec = G711, **options: float) -> voice.Quality:
    return voice.quality(ms, codec, **options)  # type: ignore[arg-type]


def test_the_defaults_of_g_107_give_its_rating_of_93_2_and_a_mos_of_4_41() -> None:
    """G.107, section 7.7 and annex B: with all defaults R = 93.2, MOS 4.41."""
    found = quality(0)
    assert round(found.r_factor, 1) == 93.2
    assert round(found.mos, 2) == 4.41


def test_93_36_of_papers_is_the_default_without_listener_echo() -> None:
    """Ro - Is = 93.36; the listener echo of the defaults takes 0.15 of it."""
    found = quality(0)
    assert round(found.ro, 2) == 94.77
    assert round(found.ro - found.simultaneous, 2) == 93.36
    assert round(found.echo, 2) == 0.15


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
    assert round(quality(delay_ms).idd, 2) == idd


def test_delays_of_g_114_have_its_ratings() -> None:
    """G.114, figure 1: users are very satisfied to some 200 ms; 400 ms is near R = 70."""
    assert quality(200).r_factor > 90
    assert 80 < quality(270).r_factor < 84
    assert 68 < quality(400).r_factor < 71


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


def test_the_burst_ratio_is_that_of_the_mean_lengths() -> None:
    """10 of 100 lost, independent losses have bursts of 1 / 0.9 = 1.11 packets."""
    assert voice.burst_ratio_of(100, 10, 9) == pytest.approx(1.0)
    assert voice.burst_ratio_of(100, 10, 2) == pytest.approx(4.5)
    assert voice.burst_ratio_of(100, 0, 0) == 1.0
    assert voice.burst_ratio_of(100, 100, 1) == 1.0
    # Bursts after the last packet received are not counted.
    assert voice.burst_ratio_of(100, 10, 0) == 1.0


def test_echo_impairs_once_its_path_has_delay() -> None:
    """With TELR 65 dB and an echo path of 250 ms, Idte is some 4 and R falls as much."""
    echo = voice.Parameters(t=250, tr=500)
    without = quality(250)
    found = voice.quality(250, G711, parameters=echo)
    assert found.idd == without.idd
    assert 4 < without.r_factor - found.r_factor < 6


def test_the_advantage_of_access_adds_to_the_rating() -> None:
    found = voice.quality(0, G711, parameters=voice.Parameters(advantage=20))
    assert found.r_factor == pytest.approx(quality(0).r_factor + 20)
    assert found.mos == 4.5


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
