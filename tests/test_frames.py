"""Frames of results: suggestions for wrong names, and pandas."""

from __future__ import annotations

import copy
import pickle
import sys

import polars as pl
import pytest
from conftest import SMALL

import bentpipe
from bentpipe import Result, Sweep
from bentpipe.errors import UsageError
from bentpipe.results.tables import Frame

INSTALL = "pandas is not installed (pip install 'bentpipe[pandas]')"


@pytest.fixture(scope="module")
def sweep() -> Sweep:
    """Two seeds of the small scenario."""
    return bentpipe.sweep(SMALL, seeds=2)


# --- wrong names --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "wrong", "right"),
    [
        ("flows", "goodput", "goodput_bps"),
        ("flows", "Name", "name"),
        ("directions", "utilisation", "utilization"),
        ("flow_samples", "cwnd", "cwnd_bytes"),
        ("direction_samples", "time", "time_ns"),
        ("exchanges", "time", "time_ns"),
        ("processors", "busy", "busy_ns"),
        ("events", "places", "place"),
    ],
)
def test_a_wrong_column_suggests_the_right_one(
    table: str, wrong: str, right: str, every_result: Result
) -> None:
    frame = getattr(every_result, table)
    assert right in frame.columns
    for key in (wrong, [right, wrong], (0, wrong), (slice(1), [wrong])):
        with pytest.raises(pl.exceptions.ColumnNotFoundError) as caught:
            frame[key]
        assert str(caught.value).startswith(f'column: read "{wrong}"; allowed: ')
        assert str(caught.value).endswith(f'did you mean "{right}"?')


def test_a_wrong_column_of_a_sweep_suggests_the_right_one(sweep: Sweep) -> None:
    with pytest.raises(pl.exceptions.ColumnNotFoundError, match='mean "goodput_bps"'):
        sweep.flows["goodput"]
    with pytest.raises(pl.exceptions.ColumnNotFoundError, match='mean "utilization"'):
        sweep.directions["utilisation"]


def test_a_frame_is_a_polars_frame_otherwise(small_result: Result) -> None:
    flows = small_result.flows
    assert flows["name"].to_list() == ["bulk-1", "call"]
    assert flows[0, "kind"] == "bulk"
    assert flows[["name", "flow"]].shape == (2, 2)
    assert flows[1:].height == 1
    again = pickle.loads(pickle.dumps(flows))
    assert isinstance(again, Frame)
    assert again.equals(flows)


def test_wrong_tables_and_attributes_suggest_the_right_ones(small_result: Result) -> None:
    with pytest.raises(KeyError, match='did you mean "flows"'):
        small_result.tables["flow"]
    assert "flow" not in small_result.tables
    for wrong, right in {"flow": "flows", "goodput": "goodput_bps", "svae": "save"}.items():
        with pytest.raises(AttributeError, match=f"no attribute '{wrong}'; did you mean '{right}'"):
            getattr(small_result, wrong)
    assert not hasattr(small_result, "_repr_latex_")
    for other in (copy.deepcopy(small_result), pickle.loads(pickle.dumps(small_result))):
        assert other.flows.equals(small_result.flows)
        with pytest.raises(KeyError, match='did you mean "flows"'):
            other.tables["flow"]


# --- pandas -------------------------------------------------------------------------------------


@pytest.mark.system
def test_results_are_frames_of_pandas(every_result: Result, sweep: Sweep) -> None:
    """Given nulls, expect NaN; given texts, expect texts; otherwise the same values and types."""
    pandas = pytest.importorskip("pandas", reason=INSTALL)
    flows = every_result.to_pandas()
    assert isinstance(flows, pandas.DataFrame)
    assert list(flows.columns) == every_result.flows.columns
    assert flows["name"].tolist() == ["bulk-1", "bulk-2", "web", "reader"]
    assert flows["goodput_bps"].tolist() == every_result.goodput_bps.tolist()
    assert str(flows["delivered_bytes"].dtype) == "uint64"
    medians = flows["exchange_time_median_ns"]
    assert medians.isna().tolist() == [True, True, False, True]
    events = every_result.to_pandas("events")
    assert events["place"].tolist() == every_result.events["place"].to_list()
    assert len(sweep.to_pandas()) == 4
    utilization = sweep.to_pandas("directions").groupby("direction")["utilization"].mean()
    assert utilization["forward"] == pytest.approx(
        sweep.directions.filter(direction="forward")["utilization"].mean()
    )
    # A frame of its own: writing to it does not change the result.
    flows.loc[0, "delivered_bytes"] = 0
    assert every_result.flows["delivered_bytes"][0] > 0


def test_without_pandas_the_error_names_the_extra(
    small_result: Result, sweep: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    for made in (small_result, sweep):
        with pytest.raises(UsageError, match=r"pip install 'bentpipe\[pandas\]'"):
            made.to_pandas()


def test_a_wrong_table_is_refused(small_result: Result, sweep: Sweep) -> None:
    for made in (small_result, sweep):
        with pytest.raises(UsageError, match='did you mean "directions"'):
            made.to_pandas("direction")
