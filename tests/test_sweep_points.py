"""What a sweep varies: values and ranges as text, combinations, and sweep files."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from conftest import ROOT
from hypothesis import given, strategies as st

from bentpipe import Scenario, sweeps
from bentpipe.errors import ScenarioError, UsageError
from bentpipe.scenario.document import SourceLocation, read_text
from bentpipe.sweeps.points import Range, axis as axis_of, read_values, split
from bentpipe.sweeps.tables import Keys
from bentpipe.units import parse_duration, parse_rate, parse_size

HERE = SourceLocation("test")


# --- values as text -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("cubic,bbr", ["cubic", "bbr"]),
        ("60 kB, 1 MB", ["60 kB", "1 MB"]),
        ("1,2.5,true,null", [1, 2.5, True, None]),
        # A comma in quotes or brackets belongs to the value.
        ('"a, b",c', ["a, b", "c"]),
        ("{discipline: red, limit: 60 pkt},{limit: 20 pkt}", [
            {"discipline": "red", "limit": "60 pkt"},
            {"limit": "20 pkt"},
        ]),
        ("[1, 2],[3]", [[1, 2], [3]]),
        # Ranges, alone and among values.
        ("lin(1 Mbit/s, 10 Mbit/s, 4)", ["1 Mbit/s", "4 Mbit/s", "7 Mbit/s", "10 Mbit/s"]),
        ("5 ms,lin(10 ms, 20 ms, 3)", ["5 ms", "10 ms", "15 ms", "20 ms"]),
        ("log(1e-8, 1e-5, 4)", [1e-8, 1e-7, 1e-6, 1e-5]),
        ("log(2, 128, 7)", [2, 4, 8, 16, 32, 64, 128]),
        ("lin(0.0, 1.0, 5)", [0.0, 0.25, 0.5, 0.75, 1.0]),
        # Other units: rounded to the base unit, 100 kB 10^(1/3) = 215443.47 B.
        ("log(100 kB, 1 MB, 4)", ["100 kB", "215.443 kB", "464.159 kB", "1 MB"]),
        ("lin(1 s, 2 min, 3)", ["1 s", "60.5 s", "2 min"]),
        # A third of a minute is 20 s, which is no short decimal in minutes.
        ("lin(0 min, 1 min, 4)", ["0 min", "20000000000 ns", "40000000000 ns", "1 min"]),
        ("lin(10 packets, 40 packets, 3)", ["10 packets", "25 packets", "40 packets"]),
        ("lin(0.5 bdp, 2 bdp, 4)", ["0.5 bdp", "1.0 bdp", "1.5 bdp", "2 bdp"]),
    ],
)  # fmt: skip
def test_values_are_yaml_and_ranges(text: str, values: list[Any]) -> None:
    assert read_values(text) == values


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a value is empty"),
        ("1,,2", "a value is empty"),
        ("lin(1, 2)", "expected the number of points"),
        ("lin(1, 2, 3, 4)", r"write lin\(FROM, TO, POINTS\)"),
        ("lin(1, 2, 1)", "must be 2 to"),
        ("lin(1, 2, x)", "expected an integer"),
        ("lin(a, b, 3)", 'read "a"; expected a number'),
        ("lin(1, 2 s, 3)", "read 1; expected a number"),
        ("lin(1 s, 2 kB, 3)", "have different units"),
        ("lin(1, 3, 9)", "not all different"),
        ("lin(1.0, .inf, 3)", "expected a number"),
        ("log(0 s, 1 s, 3)", "must be above zero"),
        ("[1", "YAML syntax"),
    ],
)
def test_wrong_values_are_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_values(text)


ENDS = st.integers(1, 10**12)


@given(
    first=ENDS,
    last=ENDS,
    count=st.integers(2, 50),
    scale=st.sampled_from(["lin", "log"]),
    unit=st.sampled_from([("ns", parse_duration), ("bit/s", parse_rate), ("B", parse_size)]),
)
def test_the_points_of_a_range_are_even_to_the_base_unit(
    first: int, last: int, count: int, scale: Any, unit: Any
) -> None:
    """Given ends and a number of points, expect both ends, and each point within half a unit."""
    name, parse = unit
    try:
        points = Range(f"{first} {name}", f"{last} {name}", scale).points(count)
    except UsageError as error:
        assert "not all different" in str(error)  # noqa: PT017 - the range is too short
        assert abs(last - first) < 50**2 or scale == "log" or first == last
        return
    values = [parse(point) for point in points]
    assert (values[0], values[-1], len(values)) == (first, last, count)
    assert values == sorted(values, reverse=last < first)
    for step, value in enumerate(values):
        share = step / (count - 1)
        exact = first + share * (last - first)
        if scale == "log":
            exact = math.exp((1 - share) * math.log(first) + share * math.log(last))
        assert abs(value - exact) <= 0.5 + 1e-9 * exact


@given(st.lists(st.text(st.characters(exclude_characters="\"'()[]{},")), min_size=1))
def test_splitting_inverts_joining(parts: list[str]) -> None:
    assert split(",".join(parts)) == parts
    assert split(",".join(f'"{part},"' for part in parts)) == [f'"{part},"' for part in parts]


# --- combinations -------------------------------------------------------------------------------

VALUES = st.lists(st.integers(-5, 5), min_size=1, max_size=4, unique=True)


@given(st.lists(VALUES, max_size=4))
def test_a_grid_has_every_combination_once(axes: list[list[int]]) -> None:
    """Given fields with values, expect their product, the last one fastest, by number and all."""
    points = sweeps.Points(axis_of({f"f{i}": values}, [HERE]) for i, values in enumerate(axes))
    assert list(points) == list(itertools.product(*axes))
    assert len(points) == math.prod(map(len, axes))
    again = sweeps.Points.from_json(points.to_json(), "file")
    assert list(again) == list(points)
    keys = Keys(points).of(range(len(points)))
    assert [tuple(row) for row in keys.rows()] == (list(points) if axes else [])


@given(VALUES, st.lists(st.integers(), min_size=4, max_size=4))
def test_zipped_fields_change_together(values: list[int], others: list[int]) -> None:
    axis = axis_of({"a": values, "b": others[: len(values)]}, [HERE, HERE], "zip")
    points = sweeps.Points([axis_of({"c": [1, 2]}, [HERE]), axis])
    assert [row[1:] for row in points] == list(zip(values, others, strict=False)) * 2


@pytest.mark.parametrize("values", [[1, 1], [1, 1.0], [{"a": 1, "b": 2}, {"b": 2, "a": 1}]])
def test_equal_values_are_refused(values: list[Any]) -> None:
    with pytest.raises(ScenarioError, match="twice"):
        axis_of({"x": values}, [HERE])
    assert len(axis_of({"x": [1, True, "1"]}, [HERE]).rows) == 3


# --- sweep files --------------------------------------------------------------------------------

FILE = """\
scenario: geo-bulk.yaml
grid:
  link.forward.queue.limit: [60 kB, 1 MB]
zip:
  - link.forward.rate: 8 Mbit/s, 16 Mbit/s
    link.return.rate: [1 Mbit/s, 2 Mbit/s]
latin_hypercube:
  points: 20
  fields:
    link.forward.bit_error_rate: log(1e-8, 1e-6)
    traffic.0.tcp.congestion_control: [cubic, bbr]
seeds: 3
"""


def parsed(text: str) -> sweeps.Points:
    found = sweeps.parse_sweep_file(read_text(text, "sweep.yaml"))
    assert found is not None
    file, points = found
    assert file.scenario == "geo-bulk.yaml"
    return points


def test_a_file_has_grids_groups_and_samples() -> None:
    points = parsed(FILE)
    assert points.paths == (
        "link.forward.queue.limit",
        "link.forward.rate",
        "link.return.rate",
        "link.forward.bit_error_rate",
        "traffic.0.tcp.congestion_control",
    )
    assert len(points) == 2 * 2 * 20
    sampled = points.axes[-1].rows
    # A Latin hypercube has one point in each of 20 equal intervals of the logarithm.
    shares = [(math.log10(ber) + 8) / 2 for ber, _ in sampled]
    assert sorted(int(share * 20) for share in shares) == list(range(20))
    assert [name for _, name in sampled].count("bbr") == 10
    assert list(parsed(FILE)) == list(points)
    assert list(parsed(FILE.replace("points: 20", "points: 20\n  seed: 2"))) != list(points)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("grid:", "gird:", 'yaml:2: gird: unknown field; did you mean "grid"'),
        ("points: 20", "points: 0", "yaml:8: latin_hypercube.points: read 0; must be at least 1"),
        ("points: 20", "point: 20", "yaml:8: latin_hypercube.point: unknown field"),
        ("[60 kB, 1 MB]", "5", "yaml:3: grid.link.forward.queue.limit: read 5; expected a list"),
        ("[60 kB, 1 MB]", "[]", "yaml:3: link.forward.queue.limit: has no values"),
        ("[cubic, bbr]", "[]", "congestion_control: has no values"),
        ("[60 kB, 1 MB]", "lin(1 kB, 2 kB)", "yaml:3: grid.link.forward.queue.limit: read"),
        ("[1 Mbit/s, 2 Mbit/s]", "[1 Mbit/s]", "yaml:5: zip: needs fields with equal numbers"),
        ("link.return.rate", "link.forward.queue.limit", "yaml:6: .* is varied twice"),
        ("log(1e-8, 1e-6)", "log(0, 1e-6)", "yaml:10: .*: both ends must be above zero"),
        ("log(1e-8, 1e-6)", "log(1e-8, 1 s)", "yaml:10: .*: read 1e-08; expected a number"),
        ("seeds: 3", "seeds: many", "yaml:12: seeds: "),
    ],
)
def test_a_wrong_file_is_refused_by_line_and_field(old: str, new: str, message: str) -> None:
    assert old in FILE
    with pytest.raises(ScenarioError, match=message):
        parsed(FILE.replace(old, new))


def test_a_wrong_value_is_refused_where_it_is_written() -> None:
    """Given a value that the field does not take, expect the line of the sweep file."""
    points = parsed(FILE.replace("60 kB", "60 kBB"))
    base = ROOT / "scenarios" / "geo-bulk.yaml"
    with pytest.raises(ScenarioError, match=r'yaml:3: link.forward.queue.limit: read "60 kBB"'):
        sweeps.Definition.of(Scenario.load(base), points)
