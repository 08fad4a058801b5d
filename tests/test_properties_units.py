"""Properties of quantities: exact values, round trips, and refusals with a message."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import given, strategies as st
from properties import attempt, examples

from bentpipe import units
from bentpipe.errors import UnitError

# A reader of each kind of quantity, and some of its units in base units.
KINDS: dict[str, tuple[Callable[[object], units.Quantity], dict[str, int]]] = {
    "rate": (units.rate, {"bit/s": 1, "kbit/s": 1000, "MB/s": 8 * 10**6}),
    "duration": (units.duration, {"ns": 1, "ms": 10**6, "h": 3600 * 10**9}),
    "size": (units.size, {"B": 1, "kB": 1000, "GiB": 2**30}),
    "limit": (units.queue_limit, {"packets": 1, "bdp": 10**6, "us": 1000}),
    "threshold": (units.threshold, {"packets": 1, "KiB": 1024}),
}
FORMATTED: dict[str, tuple[Callable[[object], int], Callable[[float], str]]] = {
    "rate": (units.parse_rate, units.format_rate),
    "duration": (units.parse_duration, units.format_duration),
    "size": (units.parse_size, units.format_size),
}
kinds = pytest.mark.parametrize("kind", sorted(KINDS))
ANY_TEXT = st.text(max_size=80) | st.from_regex(
    re.compile(r"\s*[+-]?\d{0,22}\.?\d{0,12}([eE][+-]?\d{1,12})?\s*[a-zA-Zµμ/.]{0,8}\s*"),
    fullmatch=True,
)
ANYTHING = st.one_of(
    ANY_TEXT,
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.binary(max_size=4),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
)


@kinds
@given(data=st.data(), spaces=st.tuples(*[st.sampled_from(["", " ", "  "])] * 3))
@examples(60)
def test_an_integer_in_any_unit_is_read_exactly(
    kind: str, data: st.DataObject, spaces: tuple[str, str, str]
) -> None:
    read, per = KINDS[kind]
    unit = data.draw(st.sampled_from(sorted(per)))
    number = data.draw(st.integers(0, units.LARGEST // per[unit]))
    text = f"{spaces[0]}{number}{spaces[1]}{unit}{spaces[2]}"
    assert read(text).value == number * per[unit]


@pytest.mark.system
@kinds
@given(text=ANY_TEXT)
@examples(60)
def test_a_text_is_read_as_the_decimal_fraction_that_it_shows_or_refused(
    kind: str, text: str
) -> None:
    read, per = KINDS[kind]
    found = attempt(UnitError, lambda: read(text))
    if isinstance(found, UnitError):
        assert str(found).startswith("read ")
        return
    value = found.value
    number, unit = re.fullmatch(r"([-+.\deE]+?)\s*([^\d\s.].*)", text.strip()).groups()  # type: ignore[union-attr]
    if unit in per:
        assert value == Fraction(number) * per[unit]
    assert 0 <= value <= units.LARGEST


@kinds
@given(value=ANYTHING)
@examples(60)
def test_anything_is_read_or_refused_with_what_was_read(kind: str, value: object) -> None:
    found = attempt(UnitError, lambda: KINDS[kind][0](value))
    assert not isinstance(found, UnitError) or str(found).startswith("read ")


@pytest.mark.parametrize("kind", sorted(FORMATTED))
@given(value=st.integers(0, units.LARGEST))
@examples(60)
def test_a_formatted_quantity_is_read_back_to_four_digits(kind: str, value: int) -> None:
    """Four digits are off by at most half a unit of the fourth, 1 in 2,000 of the value."""
    read, form = FORMATTED[kind]
    text = form(value)
    again = Fraction(text.split()[0]) * read(f"1 {text.split()[1]}")
    assert abs(again - value) <= Fraction(value, 2000) + 1
    assert form(float(again)) == text, "a formatted value does not change again"


@given(value=st.integers(0, 9999), unit=st.sampled_from(["packets", "kB", "ms", "bdp", "cells"]))
@examples(40)
def test_a_quantity_survives_copies_and_prints_as_written(value: int, unit: str) -> None:
    text = f"{value} {unit}"
    written = units.queue_limit(text)
    for again in (copy.deepcopy(written), pickle.loads(pickle.dumps(written))):
        assert (str(again), again.value) == (text, written.value)
