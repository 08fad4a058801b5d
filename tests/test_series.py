"""Time-varying rates, delays and errors, from files and two-state channels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from conftest import Program

from bentpipe import Plan, Scenario, simulate
from bentpipe.errors import ScenarioError

MS = 10**6
S = 10**9

BULK = {"kind": "bulk", "direction": "forward", "size": "100 kB"}


def plan(duration: str = "1 s", **forward: Any) -> dict[str, Any]:
    """Return the plan of the forward direction of a link of 8 Mbit/s and 50 ms."""
    hop = {"rate": "8 Mbit/s", "delay": "50 ms"}
    link = {"forward": {**hop, **forward}, "return": hop}
    whole = Plan.resolve(
        Scenario.from_dict({"link": link, "traffic": [BULK], "duration": duration})
    ).data
    return dict(whole["directions"][0])


def refusal(**forward: Any) -> str:
    """Return the error of a forward direction."""
    with pytest.raises(ScenarioError) as refused:
        plan(**forward)
    return str(refused.value)


def written(folder: Path, name: str, *lines: str) -> str:
    """Write a file with these lines and return its path."""
    path = folder / name
    path.write_text("".join(f"{line}\n" for line in lines))
    return str(path)


# --- delivery traces ----------------------------------------------------------------------------


def test_a_trace_of_a_delivery_each_millisecond_is_twelve_megabits(tmp_path: Path) -> None:
    """mm-link(1): lines 0, 1, 2, ... are 12 Mbit/s, 1500 bytes a millisecond.

    The trace ends at 100 ms, so that the line 0 is one delivery more in the first bin of each loop.
    """
    trace = written(tmp_path, "12", *(str(stamp) for stamp in range(1, 101)))
    rate = plan(rate={"trace": trace, "bin": "10 ms"})["rate_bps"]
    assert rate == {"kind": "steps", "steps": [[0, 12_000_000]]}
    more = written(tmp_path, "12-more", *(str(stamp) for stamp in range(101)))
    rate = plan(rate={"trace": more, "bin": "50 ms"}, duration="200 ms")["rate_bps"]
    # 51 deliveries in 50 ms, then 50.
    expected = [[0, 12_240_000], [50 * MS, 12_000_000], [100 * MS, 12_240_000]]
    assert rate["steps"][:3] == expected


def test_bins_without_deliveries_are_outages_and_the_trace_repeats(tmp_path: Path) -> None:
    """Given 1, 2, 3 and 25 ms in bins of 10 ms: 3 deliveries, none, and 1 in the last 5 ms.

    3 * 12,000 bits in 10 ms are 3.6 Mbit/s, 12,000 in 5 ms are 2.4. From 25 ms on it starts again.
    The run ends at 40 ms, in the outage from 35 to 45: the steps go on until deliveries follow.
    """
    trace = written(tmp_path, "gaps", "1", "2", "3", "25")
    rate = plan(rate={"trace": trace, "bin": "10 ms"}, duration="40 ms")["rate_bps"]
    assert rate["steps"] == [
        [0, 3_600_000],
        [10 * MS, 0],
        [20 * MS, 2_400_000],
        [25 * MS, 3_600_000],
        [35 * MS, 0],
        [45 * MS, 2_400_000],
    ]


def test_steps_include_the_whole_trace(tmp_path: Path) -> None:
    """A lab continues after the duration of its scenario, with the last rate."""
    trace = written(tmp_path, "long", "1", "2", "5000")
    steps = plan(rate={"trace": trace, "bin": "1 s"}, duration="1 ms")["rate_bps"]["steps"]
    assert steps == [[0, 24_000], [1 * S, 0], [4 * S, 12_000], [5 * S, 24_000]]


def test_a_run_delivers_the_packets_of_its_trace(tmp_path: Path) -> None:
    """Given 11 deliveries in each second and datagrams of 1500 bytes that overload the link.

    Expect 11 of them a second: 110 in 10 s, but for the one that is being sent.
    """
    stamps = [str(10 * number) for number in range(1, 11)]
    trace = written(tmp_path, "bursts", *stamps, "1000")
    hop = {"rate": "8 Mbit/s", "delay": "0 s"}
    forward = {"rate": {"trace": trace, "bin": "100 ms"}, "delay": "0 s"}
    datagrams = {
        "kind": "constant_rate",
        "direction": "forward",
        "rate": "2 Mbit/s",
        "payload": "1472 B",
        "duration": "10 s",
    }
    result = simulate(
        {"link": {"forward": forward, "return": hop}, "traffic": [datagrams], "duration": "10 s"}
    )
    row = result.directions.filter(pl.col("direction") == "forward").row(0, named=True)
    assert row["delivered_packets"] == pytest.approx(110, abs=1)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["1", "two", "3"], (':2: read "two"', "expected an integer (milliseconds)")),
        (["1", "", "3"], (':2: read ""', "expected an integer")),
        (["1.5"], (':1: read "1.5"', "expected an integer")),
        (["-1"], (':1: read "-1"', "expected an integer")),
        (["1", "5", "4"], (':3: read "4"', "must not be before 5")),
        (["9" * 15], (":1: read", "at most 100 days")),
        (["9" * 30], (":1: read", "expected an integer")),
        (["0", "0"], ("ends at 0 ms",)),
        ([], ("is empty",)),
    ],
)
def test_a_bad_trace_names_its_line(
    tmp_path: Path, lines: list[str], words: tuple[str, ...]
) -> None:
    trace = written(tmp_path, "bad", *lines)
    message = refusal(rate={"trace": trace})
    assert "link.forward.rate.trace" in message
    for word in (trace, *words):
        assert word in message


def test_a_trace_has_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = written(tmp_path, "alternating", *(str(stamp) for stamp in range(2, 1002, 4)))
    monkeypatch.setattr("bentpipe.plan.series.MAX_STEPS", 400)
    message = refusal(rate={"trace": trace, "bin": "2 ms"})
    assert "link.forward.rate.bin" in message
    assert "more than 400 steps" in message
    assert "at least 1 ms" in refusal(rate={"trace": trace, "bin": "999 us"})
    monkeypatch.setattr("bentpipe.plan.csv_file.LARGEST_FILE_BYTES", 100)
    assert "is larger than 100 bytes" in refusal(rate={"trace": trace})


def test_a_file_must_be_a_text_file(tmp_path: Path) -> None:
    assert "no such file" in refusal(rate={"trace": str(tmp_path / "absent")})
    assert "is a directory" in refusal(delay={"csv": str(tmp_path)})
    binary = tmp_path / "binary"
    binary.write_bytes(b"time_s,rate_mbps\n0,\xff\n")
    assert "is not a text file" in refusal(rate={"csv": str(binary)})


# --- CSV time series ----------------------------------------------------------------------------


def test_a_unit_is_in_the_header_or_in_each_cell(tmp_path: Path) -> None:
    plain = written(tmp_path, "a.csv", "time_s,rate_mbps,delay_ms", "0,16,275", "1.5,0.5,280.25")
    cells = written(
        tmp_path,
        "b.csv",
        "# measured",
        "time, rate, delay",
        "",
        *(
            "0 s, 16 Mbit/s, 275 ms",
            "1500 ms, 500 kbit/s, 280250 us",
        ),
    )
    for path in (plain, cells):
        direction = plan(rate={"csv": path}, delay={"csv": path})
        rate_steps = [[0, 16_000_000], [1_500 * MS, 500_000]]
        assert direction["rate_bps"] == {"kind": "steps", "steps": rate_steps}
        assert direction["delay_ns"]["steps"] == [[0, 275 * MS], [1_500 * MS, 280_250_000]]


def test_a_column_is_chosen_by_name(tmp_path: Path) -> None:
    path = written(tmp_path, "two.csv", "time_ms,down_mbps,up_kbps", "0,20,512", "10,0.0000004,3")
    steps = plan(rate={"csv": path, "column": "up_kbps"})["rate_bps"]["steps"]
    assert steps == [[0, 512_000], [10 * MS, 3_000]]
    message = refusal(rate={"csv": path})
    assert (
        f"{path}:1: several columns match; name the column (there are: down_mbps, up_kbps)"
        in message
    )
    message = refusal(rate={"csv": path, "column": "up_kbs"})
    assert "link.forward.rate.column" in message
    assert 'did you mean "up_kbps"?' in message
    assert "no column name matches" in refusal(delay={"csv": path})
    # 0.4 bit/s is rounded to an integer, and a rate must not end at zero.
    message = refusal(rate={"csv": path, "column": "down_mbps"})
    assert "must end above zero" in message


def test_losses_are_shares_percentages_or_bit_error_rates(tmp_path: Path) -> None:
    path = written(
        tmp_path, "loss.csv", "time_s,loss,loss_percent,bit_error_rate", "0,0,2.5,1e-7", "3,1,0,0"
    )

    def steps(column: str) -> list[tuple[int, float, float]]:
        channel = plan(errors={"csv": path, "column": column})["channel"]
        assert channel["kind"] == "error_series"
        return [tuple(step.values()) for step in channel["steps"]]

    assert steps("loss") == [(0, 0.0, 0.0), (3 * S, 0.0, 1.0)]
    assert steps("loss_percent") == [(0, 0.0, 0.025), (3 * S, 0.0, 0.0)]
    assert steps("bit_error_rate") == [(0, 1e-7, 0.0), (3 * S, 0.0, 0.0)]
    assert "allowed: loss, loss_rate" in refusal(
        errors={"csv": written(tmp_path, "other.csv", "time_s,rain", "0,1"), "column": "rain"}
    )


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["time_s,rate_mbps", "0,fast"], (':2: column "rate_mbps": read "fast"', "plain number")),
        (["time_s,rate_mbps", "0,nan"], ('read "nan"', "the first row needs a value")),
        (["time_s,rate_mbps", "0,1e999"], ('read "1e999"', "plain number")),
        (["time_s,rate_mbps", "0,1e99"], ('read "1e99"', "at most 100 Tbit/s")),
        (["time_s,rate_mbps", "0," + "9" * 70], (":2:", "plain number")),
        (["time_s,rate_mbps", "0,-1"], ('read "-1"', "must not be negative")),
        (["time_s,rate_mbps", "0,1", "2"], (':3: read "2"', "a row must have 2 values")),
        (["time_s,rate_mbps", "1,1"], (':2: read "1"', "the first time must be 0")),
        (["time_s,rate_mbps", "0,1", "2,1", "2,3"], (':4: read "2"', "after the row above")),
        (["time_s,rate_mbps", "0,1", "1e9,1"], (':3: column "time_s"', "at most 100 days")),
        (
            ["time_s,rate", "0,16"],
            (':2: column "rate": read "16"', "the unit is missing", "rate_mbps"),
        ),
        (["rate_mbps", "1"], (':1: read "rate_mbps"', "one column is time")),
        (["time_s,rate_mbps,rate_mbps", "0,1,1"], ("two columns have this name",)),
        (["time_s,rate_mbps"], ("has no rows",)),
        ([], ("has no rows",)),
        (["time_s,rate_mbps", "0,0", "1,0"], ("0 bit/s in every step",)),
    ],
)
def test_a_bad_table_names_its_line(
    tmp_path: Path, lines: list[str], words: tuple[str, ...]
) -> None:
    message = refusal(rate={"csv": written(tmp_path, "bad.csv", *lines)})
    assert "link.forward.rate" in message
    for word in words:
        assert word in message


def test_a_loss_is_a_share(tmp_path: Path) -> None:
    path = written(tmp_path, "loss.csv", "time_s,loss", "0,1.5")
    assert 'read "1.5"; must be at most 1' in refusal(errors={"csv": path})
    path = written(tmp_path, "percent.csv", "time_s,loss_percent", "0,101")
    assert 'read "101"; must be at most 100' in refusal(errors={"csv": path})


# --- file names ---------------------------------------------------------------------------------

SCENARIO = """\
link:
  preset: geo
  forward:
    rate: {csv: series/rate.csv}
traffic:
  - {kind: bulk, direction: forward, size: 10 kB}
duration: 10 s
"""


def test_file_names_are_relative_to_the_scenario(tmp_path: Path) -> None:
    (tmp_path / "series").mkdir()
    written(tmp_path / "series", "rate.csv", "time_s,rate_mbps", "0,4")
    file = tmp_path / "scenario.yaml"
    file.write_text(SCENARIO)
    scenario = Scenario.load(file)
    expected = [[0, 4_000_000]]
    for same in (scenario, Scenario.from_dict(scenario.to_dict())):
        rate: Any = Plan.resolve(same).data["directions"][0]["rate_bps"]
        assert rate["steps"] == expected


def test_the_command_names_both_files_and_runs_nothing(tmp_path: Path, bentpipe: Program) -> None:
    (tmp_path / "series").mkdir()
    written(tmp_path / "series", "rate.csv", "time_s,rate_mbps", "0,4", "1,four")
    file = tmp_path / "scenario.yaml"
    file.write_text(SCENARIO)
    called = bentpipe("run", str(file), "--out", str(tmp_path / "result"))
    assert called.code == 2
    assert f"{file}:4: link.forward.rate.csv: " in called.err
    assert f'{tmp_path}/series/rate.csv:3: column "rate_mbps": read "four"' in called.err
    assert not (tmp_path / "result").exists()


# --- two states ---------------------------------------------------------------------------------

GOOD = {"bit_error_rate": 1e-9, "mean_duration": "10 s"}
BAD = {"bit_error_rate": 1e-4, "mean_duration": "200 ms"}


def test_two_states_resolve() -> None:
    errors = {"model": "gilbert_elliott", "good": GOOD, "bad": {**BAD, "loss_rate": 0.25}}
    assert plan(errors=errors)["channel"] == {
        "kind": "gilbert_elliott",
        "good": {"bit_error_rate": 1e-9, "loss_rate": 0.0, "mean_duration_ns": 10 * S},
        "bad": {"bit_error_rate": 1e-4, "loss_rate": 0.25, "mean_duration_ns": 200 * MS},
    }


def test_bad_states_are_refused_with_a_reason() -> None:
    model = {"model": "gilbert_elliott", "good": GOOD, "bad": BAD}
    assert 'did you mean "gilbert_elliott"?' in refusal(errors={**model, "model": "gilbert"})
    assert "link.forward.errors.model: missing" in refusal(errors={"good": GOOD, "bad": BAD})
    missing = refusal(errors={**model, "bad": {"loss_rate": 0.1}})
    assert "link.forward.errors.bad.mean_duration: missing" in missing
    above = refusal(errors={**model, "bad": {**BAD, "loss_rate": 1.5}})
    assert "link.forward.errors.bad.loss_rate: read 1.5; must be at most 1" in above
    short = refusal(errors={**model, "bad": {**BAD, "mean_duration": "1 us"}})
    assert "link.forward.errors.bad.mean_duration" in short
    assert "write one of them" in refusal(errors=model, bit_error_rate=1e-6)
    often = {"loss_rate": 0.1, "mean_duration": "10 us"}
    many = refusal(errors={**model, "good": often, "bad": often}, duration="2000 s")
    assert "changes its state more than" in many


def test_a_run_loses_packets_as_the_states_say() -> None:
    """Given states of 90 ms and 10 ms in the mean, of which the bad one loses half of all.

    Expect a loss of 5 % of 60,000 datagrams in 600 s.
    The share of bad time varies by sqrt(0.09 * 2 * 9 ms / 600 s) = 0.00164, half of which is lost;
    with the binomial sqrt(0.05 / 60,000) = 0.0009 that is 0.0012. Four of them: 0.0049.
    """
    errors = {
        "model": "gilbert_elliott",
        "good": {"mean_duration": "90 ms"},
        "bad": {"loss_rate": 0.5, "mean_duration": "10 ms"},
    }
    hop = {"rate": "8 Mbit/s", "delay": "50 ms"}
    datagrams = {
        "kind": "constant_rate",
        "direction": "forward",
        "rate": "80 kbit/s",
        "payload": "100 B",
        "duration": "600 s",
    }
    scenario = {
        "link": {"forward": {**hop, "errors": errors}, "return": hop},
        "traffic": [datagrams],
        "duration": "601 s",
    }
    first, again = simulate(scenario), simulate(scenario)
    row = first.directions.filter(pl.col("direction") == "forward").row(0, named=True)
    assert row["dropped_bit_error_packets"] / 60_000 == pytest.approx(0.05, abs=0.0049)
    assert first.directions.equals(again.directions)


def test_packets_in_an_interval_of_full_loss_are_lost(tmp_path: Path) -> None:
    """Given 100 datagrams a second and all lost from 2 s until 4.5 s, expect 250 lost."""
    path = written(tmp_path, "blocked.csv", "time_s,loss", "0,0", "2,1", "4.5,0")
    hop = {"rate": "8 Mbit/s", "delay": "50 ms"}
    datagrams = {
        "kind": "constant_rate",
        "direction": "forward",
        "rate": "80 kbit/s",
        "payload": "100 B",
        "duration": "10 s",
    }
    link = {"forward": {**hop, "errors": {"csv": path}}, "return": hop}
    result = simulate({"link": link, "traffic": [datagrams], "duration": "11 s"})
    row = result.directions.filter(pl.col("direction") == "forward").row(0, named=True)
    assert row["dropped_bit_error_packets"] == pytest.approx(250, abs=1)
