"""Means over runs with intervals, and their plots as bands."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import matplotlib as mpl
import numpy as np
import polars as pl
import pytest
from cycler import cycler
from matplotlib.figure import Figure

import bentpipe
import bentpipe.plots
from bentpipe.errors import UsageError
from bentpipe.quantities import quantity, title
from bentpipe.report.style import PALETTE, new_figure
from bentpipe.results import mean_intervals

# Two delays by three seeds, with two flows each.
FLOWS = pl.DataFrame(
    {
        "run": [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5],
        "delay": ["10 ms"] * 6 + ["250 ms"] * 6,
        "delay_ns": [10_000_000] * 6 + [250_000_000] * 6,
        "seed": [1, 1, 2, 2, 3, 3] * 2,
        "name": ["a", "b"] * 6,
        "goodput_bps": [0.0, 2e6, 1e6, 3e6, 5e6, 7e6, 1e6, 1e6, 1e6, 1e6, 1e6, 1e6],
    }
)


def test_flows_of_a_run_are_one_sample() -> None:
    """Given runs with means 1, 2 and 6 Mbit/s, expect t(0.975, 2) = 4.303 times sqrt(7 / 3)."""
    found = mean_intervals(FLOWS, "goodput_bps", "delay_ns")
    assert found.columns == ["delay_ns", "mean", "low", "high", "runs"]
    near, far = found.to_dicts()
    half = 4.303e6 * np.sqrt(7 / 3)
    assert near == {
        "delay_ns": 10_000_000,
        "mean": 3e6,
        "low": pytest.approx(3e6 - half, rel=1e-3),
        "high": pytest.approx(3e6 + half, rel=1e-4),
        "runs": 3,
    }
    assert far == {"delay_ns": 250_000_000, "mean": 1e6, "low": 1e6, "high": 1e6, "runs": 3}


def test_one_run_has_no_interval_and_a_missing_value_is_left_out() -> None:
    frame = FLOWS.filter(pl.col("run") < 2).with_columns(
        pl.when(pl.col("run") == 0).then("goodput_bps").alias("goodput_bps")
    )
    (only,) = mean_intervals(frame, "goodput_bps").to_dicts()
    assert only == {"mean": 1e6, "low": None, "high": None, "runs": 1}


@pytest.mark.parametrize(
    ("column", "by", "message"),
    [
        ("goodput", "delay_ns", 'did you mean "goodput_bps"'),
        ("goodput_bps", "dela", 'did you mean "delay"'),
        ("name", "delay_ns", "name: not a number"),
        ("goodput_bps", "name", "seed 1 is in several runs of one group"),
    ],
)
def test_a_mean_that_makes_no_sense_is_refused(column: str, by: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        mean_intervals(FLOWS, column, by)


def test_a_band_is_the_interval_in_the_units_of_the_columns() -> None:
    """Given two flows, expect a line and a band each, in ms and Mbit/s, in the frame's order."""
    axes = bentpipe.plots.band(FLOWS, "delay_ns", "goodput_bps", by="name")
    assert axes.get_xlabel() == "Delay [ms]"
    assert axes.get_ylabel() == "Goodput, application bits [Mbit/s]"
    assert [line.get_label() for line in axes.lines] == ["a", "b"]
    assert np.asarray(axes.lines[0].get_xdata()).tolist() == [10, 250]
    # Flow a: 0, 1 and 5 Mbit/s, then three times 1.
    assert np.asarray(axes.lines[0].get_ydata()).tolist() == [2, 1]
    (path,) = axes.collections[0].get_paths()
    half = 4.303 * np.sqrt(7 / 3)
    assert path.get_extents().ymax == pytest.approx(2 + half, rel=1e-3)


def test_bands_on_a_common_scale_are_all_visible_and_in_one_unit() -> None:
    """Given a second panel with a tenth of the values, expect Mbit/s there too, and their scale."""
    _figure, (left, right) = new_figure(1, 2, height_in=2)
    bentpipe.plots.band(FLOWS, "delay_ns", "goodput_bps", ax=left)
    lower = FLOWS.with_columns(pl.col("goodput_bps") / 10)
    bentpipe.plots.band(lower, "delay_ns", "goodput_bps", ax=right)
    assert np.asarray(right.lines[0].get_ydata()).tolist() == pytest.approx([0.3, 0.1])
    # The higher band ends at 3 + 4.303 sqrt(7 / 3).
    assert right.get_ylim()[1] > 9


def test_both_scales_have_a_unit_of_their_own() -> None:
    """Given times of seconds over delays of milliseconds, expect s and ms."""
    frame = FLOWS.with_columns(completion_time_ns=pl.col("delay_ns") * 100)
    axes = bentpipe.plots.band(frame, "delay_ns", "completion_time_ns")
    assert (axes.get_xlabel(), axes.get_ylabel()) == (
        "Delay [ms]",
        "Completion time, of a transfer [s]",
    )


def test_a_text_as_axis_is_refused_with_the_column_of_its_numbers() -> None:
    with pytest.raises(UsageError, match=r"delay: not a number.*take delay_ns"):
        bentpipe.plots.band(FLOWS, "delay", "goodput_bps")
    with pytest.raises(UsageError, match="no row has a value"):
        bentpipe.plots.band(FLOWS.clear(), "delay_ns", "goodput_bps")


@pytest.mark.system
@pytest.mark.parametrize("first", ["import bentpipe.plots", "import bentpipe; bentpipe.plots"])
def test_the_plots_are_a_module_and_a_public_name(first: str) -> None:
    program = f"{first}\nimport bentpipe\nfrom bentpipe import plots\n"
    program += "import bentpipe.plots as module\n"
    program += "assert bentpipe.plots is plots is module; print(plots.band.__name__)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("band\n", "")


@pytest.mark.parametrize(
    ("column", "value", "name", "text"),
    [
        ("goodput_bps", 2_500_000, "goodput", "2.5 Mbit/s"),
        ("one_way_delay_p99_ns", 275e6, "one way delay p99", "275 ms"),
        ("loss_percent", 0.125, "loss", "0.125 %"),
        ("lost_packets", 12_345, "lost", "12,345 packets"),
        ("utilization", 0.5, "utilization", "50 %"),
        ("timeouts", 3, "timeouts", "3"),
    ],
)
def test_a_column_has_the_unit_in_its_name(column: str, value: float, name: str, text: str) -> None:
    assert title(column) == name
    assert quantity(column).text(value) == text


def test_bands_on_the_axes_of_a_user_have_their_style() -> None:
    """Given a colour cycle and a size of markers, expect lines, bands and legend with them."""
    colours = ["#123456", "#654321"]
    settings: Any = {"axes.prop_cycle": cycler(color=colours), "lines.markersize": 9}
    with mpl.rc_context(settings | {"legend.title_fontsize": 20}):
        axes = Figure().subplots()
        bentpipe.plots.band(FLOWS, "seed", "goodput_bps", by="delay", ax=axes)
    assert [line.get_color() for line in axes.get_lines()] == colours
    assert {line.get_markersize() for line in axes.get_lines()} == {9}
    legend = axes.get_legend()
    assert legend is not None
    assert legend.get_title().get_fontsize() == 20
    (shown,) = bentpipe.plots.band(FLOWS.head(6), "seed", "goodput_bps").get_lines()
    assert shown.get_color() == PALETTE[0]
