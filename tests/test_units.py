"""Quantities: exact values, refused spellings, and suggestions."""

from __future__ import annotations

import copy
import pickle
import random
from collections.abc import Callable

import pytest

from bentpipe.errors import UnitError
from bentpipe.text import nearest
from bentpipe.units import (
    Quantity,
    duration,
    format_duration,
    format_rate,
    format_size,
    parse_duration,
    parse_rate,
    parse_size,
    queue_limit,
)


@pytest.mark.parametrize(
    ("text", "rate_bps"),
    [
        ("1 bit/s", 1),
        ("16 Mbit/s", 16_000_000),
        ("155.52 Mbit/s", 155_520_000),
        ("16Mbit/s", 16_000_000),
        ("  9.6  kbit/s ", 9_600),
        ("1.5 Mbps", 1_500_000),
        ("1 MB/s", 8_000_000),
        ("1 KiB/s", 8_192),
        ("1e3 kbit/s", 1_000_000),
        ("0 bit/s", 0),
    ],
)
def test_rates_are_read_in_bits_per_second(text: str, rate_bps: int) -> None:
    assert parse_rate(text) == rate_bps


@pytest.mark.parametrize(
    ("text", "time_ns"),
    [
        ("275 ms", 275_000_000),
        ("0.5 s", 500_000_000),
        ("1.5 us", 1_500),
        ("1.5 µs", 1_500),
        ("2 min", 120_000_000_000),
        ("1 h", 3_600_000_000_000),
        ("7 ns", 7),
        # 0.1 has no exact binary fraction; 0.1 s is 100000000 ns all the same.
        ("0.1 s", 100_000_000),
    ],
)
def test_times_are_read_in_nanoseconds(text: str, time_ns: int) -> None:
    assert parse_duration(text) == time_ns


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("160 B", 160),
        ("120 kB", 120_000),
        ("64 KiB", 65_536),
        ("10 MiB", 10 * 1_048_576),
        ("10 MB", 10_000_000),
        ("1.5 GB", 1_500_000_000),
    ],
)
def test_sizes_are_read_in_bytes(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("120 kB", "bytes", 120_000),
        ("50 packets", "packets", 50),
        ("1 packet", "packets", 1),
        ("50 pkt", "packets", 50),
        ("50 ms", "time_ns", 50_000_000),
        ("0.5 bdp", "bdp_millionths", 500_000),
        ("unlimited", "unlimited", 0),
    ],
)
def test_queue_limits_count_bytes_packets_time_or_bdp(text: str, unit: str, value: int) -> None:
    limit = queue_limit(text)
    assert (limit, limit.unit, limit.value) == (text, unit, value)


Parser = Callable[[object], object]


@pytest.mark.parametrize(
    ("parse", "text", "advice"),
    [
        # Read in two ways: both are offered, none is guessed.
        (parse_rate, "16 mbps", ['"16 Mbit/s" or "16 MB/s"']),
        (parse_rate, "16 MBps", ['"16 Mbit/s" or "16 MB/s"']),
        (parse_rate, "16 mb/s", ['"16 Mbit/s" or "16 MB/s"']),
        (parse_rate, "16 Mb/s", ['"16 Mbit/s" or "16 MB/s"']),
        (parse_rate, "16 M", ['"16 Mbit/s" or "16 MB/s"']),
        (parse_size, "120 KB", ['"120 kB" or "120 KiB"']),
        (parse_size, "10 mb", ['"10 MB" or "10 MiB"']),
        (parse_size, "10 M", ['"10 MB" or "10 MiB"']),
        (parse_duration, "5 m", ['"5 ms" or "5 min"']),
        # A wrong spelling of one thing.
        (parse_rate, "16 Kbit/s", ['"16 kbit/s"']),
        (parse_rate, "16 Mbits", ['"16 Mbit/s"']),
        (parse_size, "12 bytes", ['"12 B"']),
        (parse_duration, "3 seconds", ['"3 s"']),
        (parse_duration, "275 MS", ['"275 ms"']),
        (queue_limit, "50 pkts", ['"50 packets"']),
        # No unit, or another kind's.
        (parse_rate, "16", ["unit is missing", '"16 bit/s"', '"16 Mbit/s"']),
        (parse_rate, 16_000_000, ["unit is missing", '"16000000 bit/s"']),
        (parse_size, "10", ["unit is missing", '"10 kB"']),
        (parse_rate, "275 ms", ["units of rate", "Mbit/s"]),
        (parse_size, "1 bdp", ["units of size", "KiB"]),
        # Not a quantity at all.
        (parse_rate, "fast", ['such as "16 Mbit/s"']),
        (parse_rate, None, ["read nothing"]),
        (parse_rate, True, ["read bool"]),
        (parse_rate, "nan Mbit/s", ['such as "16 Mbit/s"']),
        (parse_size, "1,000 B", ["without separators"]),
        (parse_duration, "12:30:45", ["without separators"]),
        (parse_size, "1 B" + " " * 99, ["102 characters"]),
        # Out of range.
        (parse_rate, "-1 Mbit/s", ["must not be negative"]),
        (parse_duration, "-1 s", ["must not be negative"]),
        (parse_duration, "0.5 ns", ["not an integer"]),
        (parse_size, "1.5 B", ["not an integer"]),
        (queue_limit, "1.5 packets", ["not an integer"]),
        (parse_duration, "1e12 s", ["beyond 64 bits"]),
        (parse_duration, "1e999999999 s", ["exponent"]),
    ],
)
def test_a_refusal_suggests_spellings(parse: Parser, text: object, advice: list[str]) -> None:
    with pytest.raises(UnitError) as refusal:
        parse(text)
    for words in advice:
        assert words in str(refusal.value)


def test_suggested_spellings_are_accepted() -> None:
    """Given the suggestions of refusals, expect each to be accepted."""
    followed = 0
    for parse, text in (
        (parse_rate, "16 mbps"),
        (parse_rate, "16 Kbit/s"),
        (parse_size, "120 KB"),
        (parse_duration, "3 seconds"),
        (parse_duration, "5 m"),
    ):
        with pytest.raises(UnitError) as refusal:
            parse(text)
        offered = str(refusal.value).partition("write ")[2].partition(" (units")[0]
        for suggestion in offered.split('"')[1::2]:
            assert parse(suggestion) > 0
            followed += 1
    assert followed == 8


def test_formatted_quantities_have_four_digits_and_a_unit() -> None:
    assert format_rate(16_000_000) == "16 Mbit/s"
    assert format_rate(155_520_000) == "155.5 Mbit/s"
    assert format_rate(999_999.9) == "1 Mbit/s"
    assert format_rate(0) == "0 bit/s"
    assert format_duration(275_000_000) == "275 ms"
    assert format_duration(93_649_760_000) == "93.65 s"
    assert format_duration(999) == "999 ns"
    assert format_size(120_000) == "120 kB"
    assert format_size(1_500) == "1.5 kB"


def test_formatted_quantities_parse_to_four_digits() -> None:
    seed = 20
    rng = random.Random(seed)
    for _ in range(1_000):
        value = rng.randrange(1, 10 ** rng.randrange(2, 13))
        for write, read in (
            (format_rate, parse_rate),
            (format_duration, parse_duration),
            (format_size, parse_size),
        ):
            back = read(write(value))
            assert back == pytest.approx(value, rel=5.1e-4), f"seed {seed}, value {value}"


def test_the_nearest_spelling_ignores_case_and_rejects_distant_words() -> None:
    assert nearest("LINUS", ("bsd-1997", "linux")) == "linux"
    assert nearest("bwd-1997", ("bsd-1997", "linux")) == "bsd-1997"
    assert nearest("solaris", ("bsd-1997", "linux")) is None


def test_a_quantity_is_its_text_and_its_value() -> None:
    """Given a text with a value, expect both of it, and of its copies."""
    delay = duration(" 275 ms")
    assert delay == " 275 ms"
    assert delay.value == 275_000_000
    for same in (copy.deepcopy(delay), pickle.loads(pickle.dumps(delay))):
        assert isinstance(same, Quantity)
        assert (same, same.value, same.unit) == (delay, delay.value, "time_ns")
    with pytest.raises(UnitError, match='"parsec"'):
        duration("3 parsec")
