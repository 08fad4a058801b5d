"""The framework of studies: intervals, agreement, summaries by provenance, inputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bentpipe.results import Column, Interval
from bentpipe.results.views import html_table
from bentpipe.studies.base.comparison import (
    Agreement,
    Comparison,
    Row,
    Samples,
    Tolerance,
    estimate,
    mean_error,
)
from bentpipe.studies.base.inputs import Input, Provenance, read_inputs, read_scenario
from bentpipe.studies.base.tables import (
    errors_text,
    margin_text,
    mean_text,
    number,
    row_text,
    view,
)

POINTS = Tolerance(1.0, "points", "for the test")
PERCENT = Tolerance(10.0, "%", "for the test")
STUDIES = ("jpl", "snip", "hermes", "osu", "auckland", "linux")


def row(
    published: float, *values: float, provenance: str = "predicted", exact: bool = False
) -> Row:
    return Row(
        labels={"cell": f"{published:g}"},
        unit="%",
        published=published,
        simulated=Samples(values, exact),
        provenance=Provenance(provenance),
        tolerance=POINTS,
    )


# --- samples ------------------------------------------------------------------------------------


def test_the_interval_of_a_mean_is_student_s() -> None:
    """1, 2, 3: s = 1, so 2 plus and minus t(2) / sqrt(3) = 4.3027 / 1.7321."""
    interval = Samples((1.0, 2.0, 3.0)).interval
    assert interval is not None
    half = 4.302653 / math.sqrt(3)
    assert (interval.low, interval.high) == pytest.approx((2 - half, 2 + half))


def test_a_deterministic_cell_is_exact_and_one_run_has_no_interval() -> None:
    exact, single = Samples((5.0,), exact=True), Samples((5.0,))
    assert (exact.mean, exact.interval, exact.to_json("x")["x_exact"]) == (5.0, None, True)
    assert (single.mean, single.interval, single.to_json("x")["x_exact"]) == (5.0, None, False)
    assert (Samples().mean, Samples().interval) == (None, None)


def test_the_bootstrap_of_a_mean_is_near_student_s() -> None:
    """Given 100 normal values, expect the two intervals within a fifth of a standard error."""
    samples = Samples(tuple(np.random.default_rng(3).normal(10, 1, 100)))
    found = estimate([samples], lambda means: means.mean(axis=-1))
    assert found is not None
    assert found.interval is not None
    assert samples.interval is not None
    assert found.value == pytest.approx(samples.mean)
    assert found.interval.low == pytest.approx(samples.interval.low, abs=0.02)
    assert found.interval.high == pytest.approx(samples.interval.high, abs=0.02)


def test_a_bootstrap_needs_five_runs_and_something_random() -> None:
    def mean(means: np.ndarray) -> np.ndarray:
        return np.asarray(means.mean(axis=-1))

    for samples in (Samples((1.0, 2.0, 3.0, 4.0)), Samples((1.0,), exact=True)):
        found = estimate([samples], mean)
        assert found is not None
        assert found.interval is None
    assert estimate([], mean) is None


# --- comparison ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("published", "values", "expected"),
    [
        (10.0, (9.0, 10.0, 11.0), "within_interval"),
        (20.0, (9.0, 30.0), "within_interval"),
        (10.0, (10.5, 10.5, 10.6), "within_tolerance"),
        (10.0, (11.5, 11.5, 11.6), "outside"),
        (10.0, (), None),
    ],
)
def test_agreement(published: float, values: tuple[float, ...], expected: str | None) -> None:
    assert row(published, *values).agreement == expected


def test_a_bound_is_kept_or_missed() -> None:
    low = replace(row(10.0, 5.0, exact=True), bound="at_most")
    high = replace(row(10.0, 15.0, exact=True), bound="at_most")
    assert (low.agreement, high.agreement) == (Agreement.WITHIN_TOLERANCE, Agreement.OUTSIDE)
    assert replace(low, bound="at_least").agreement is Agreement.OUTSIDE
    assert replace(high, bound="at_least").agreement is Agreement.WITHIN_TOLERANCE


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.3076, "1.308"), (395.246, "395.2"), (2000.49, "2,000"), (12345.6, "12,350"), (6.0, "6")],
)
def test_four_significant_digits(value: float, text: str) -> None:
    assert number(value, None) == text


def test_a_mean_has_an_interval_in_brackets_where_the_digits_show_one() -> None:
    """1, 2, 3: 2 plus and minus 2.48; three equal values have no width."""
    assert mean_text(Samples((1.0, 2.0, 3.0)), 1) == "2.0 [-0.5 to 4.5]"
    assert mean_text(Samples((1.0, 1.0, 1.0)), 1) == mean_text(Samples((1.0,), exact=True), 1)
    assert (mean_text(Samples((1.0,)), 1), mean_text(Samples())) == ("1.0", "-")


def test_errors_are_in_points_or_in_percent_of_the_published_value() -> None:
    """Given 11 for 20: 9 points, or 45 %, below."""
    made = row(20.0, 10.0, 12.0)
    assert made.error == pytest.approx(-9)
    percent = replace(made, tolerance=PERCENT)
    assert percent.error == pytest.approx(-45)
    interval = percent.error_interval
    assert interval is not None
    # s = sqrt(2), t(1) = 12.706: 11 plus and minus 12.706.
    assert (interval.low, interval.high) == pytest.approx((-108.53, 18.53), abs=0.01)


def test_headlines_count_predicted_and_calibrated_rows_apart_and_no_others() -> None:
    rows = (
        row(1.0, 1.5, exact=True),
        row(2.0, 5.0, provenance="calibrated", exact=True),
        row(3.0, 300.0, provenance="fitted", exact=True),
        row(4.0, 400.0, provenance="stated", exact=True),
    )
    summary = Comparison(rows).summary()
    found = summary["by_provenance"]
    assert found["predicted"]["mean_absolute_error"] == pytest.approx(0.5)
    assert found["calibrated"]["mean_absolute_error"] == pytest.approx(3.0)
    assert found["calibrated"]["outside"] == 1
    assert found["fitted"] == found["stated"] == {"rows": 1}


def test_a_bound_counts_in_the_agreement_and_not_in_the_mean_error() -> None:
    kept = replace(row(10.0, 5.0, exact=True), bound="at_most")
    found = Comparison((row(1.0, 1.5, exact=True), kept)).summary()["by_provenance"]["predicted"]
    assert (found["rows"], found["within_tolerance"]) == (2, 2)
    assert found["mean_absolute_error"] == found["max_absolute_error"] == 0.5
    (only,) = Comparison((kept,)).summary()["by_provenance"].values()
    assert only["mean_absolute_error"] is None
    assert errors_text([kept]) == "1 rows; 1 within tolerance."
    assert errors_text([row(1.0, 1.5, exact=True), kept]) == (
        "mean absolute error 0.50 points over 1 rows, largest 0.50 points; bounds: 1; "
        "2 within tolerance."
    )


def test_a_row_without_a_published_value_is_listed_only() -> None:
    listed = replace(row(1.0, 1.5, 1.6), published=None)
    assert (listed.error, listed.error_interval, listed.agreement) == (None, None, None)
    assert listed.to_json()["simulated"] == pytest.approx(1.55)
    summary = Comparison((listed, row(1.0, 1.5, exact=True))).summary()
    assert (summary["rows"], summary["by_provenance"]["predicted"]["rows"]) == (2, 1)


def test_a_row_in_words_has_its_title_its_bound_and_its_digits() -> None:
    missed = replace(row(10.0, 3.0, exact=True), bound="at_least", title="a cell")
    assert missed.name == "a cell"
    assert row_text(missed, 1) == "published at least 10 %, simulated 3.0, error -7.0 points"


def test_a_mean_in_words_has_half_of_its_interval() -> None:
    """1, 2, 3: 2 plus and minus 4.303 / 1.732."""
    assert margin_text(Samples((1.0, 2.0, 3.0))) == "2.00 \u00b12.48"
    assert (margin_text(Samples((2.0,))), margin_text(Samples())) == ("2.00", "-")


def test_the_mean_absolute_error_has_the_interval_of_its_runs() -> None:
    """Two cells 3 above and below: the mean absolute error is 3 and the signed one 0."""
    spread = (-0.2, -0.1, 0.0, 0.1, 0.2)
    rows = [row(10.0, *(13 + x for x in spread)), row(20.0, *(17 + x for x in spread))]
    absolute, signed = mean_error(rows), mean_error(rows, absolute=False)
    assert absolute is not None
    assert signed is not None
    assert absolute.value == pytest.approx(3.0)
    assert signed.value == pytest.approx(0.0, abs=1e-9)
    for each in (absolute, signed):
        assert each.interval is not None
        assert each.interval.contains(each.value)
        # The standard error of a mean of two means of five: 0.14 / sqrt(10), twice to each side.
        assert each.interval.high - each.interval.low == pytest.approx(4 * 0.0447, rel=0.15)
    assert Interval(1.0, 2.0).contains(1.0)


def test_reports_escape_what_they_are_given() -> None:
    made = replace(row(1.0, 1.5), labels={"cell": "<script>"}, how="a & b")
    shown = (Column("cell", "1 < 2"), Column("how", "how"))
    html = html_table(view("base", "real_time", [made], shown=shown))
    assert "&lt;script&gt;" in html
    assert "a &amp; b" in html
    assert "1 &lt; 2" in html


# --- inputs -------------------------------------------------------------------------------------

# Fields of a scenario that are not inputs of the model.
NO_INPUTS = ("name", "sample_interval", *(f"traffic.*.{x}" for x in ("name", "kind", "direction")))


def paths(value: Any, path: str = "") -> list[str]:
    """Return the paths of all values of a scenario."""
    if not isinstance(value, dict | list):
        return [path]
    parts = value.items() if isinstance(value, dict) else enumerate(value)
    return [each for name, part in parts for each in paths(part, f"{path}.{name}".lstrip("."))]


def is_listed(path: str, inputs: Sequence[Input]) -> bool:
    names = (*NO_INPUTS, *(each.name for each in inputs))
    return any(fnmatchcase(path, each) or fnmatchcase(path, f"{each}.*") for each in names)


@pytest.mark.parametrize("name", STUDIES)
def test_every_value_of_a_study_s_scenario_is_an_input_with_provenance(name: str) -> None:
    scenario = read_scenario(name)
    inputs = read_inputs(name, scenario, {"channels": "1", "queues": "1 kB"})
    assert [path for path in paths(scenario) if not is_listed(path, inputs)] == []
    for each in inputs:
        assert each.value
        assert each.source
        assert each.provenance is not Provenance.PREDICTED


def test_an_input_without_a_value_is_an_error(tmp_path: Path) -> None:
    folder = str(tmp_path)
    (tmp_path / "inputs.csv").write_text(
        "input,value,engine,provenance,source\n"
        "link.*.rate,,,stated,text\n"
        "other,1 kB,emulate,stated,text\n",
        encoding="utf-8",
    )
    (found,) = read_inputs(folder, {"link": {"forward": {"rate": "2 Mbit/s"}}})
    assert (found.value, found.unit) == ("2", "Mbit/s")
    with pytest.raises(KeyError):
        read_inputs(folder, {"link": {"forward": {"delay": "0 s"}}})
