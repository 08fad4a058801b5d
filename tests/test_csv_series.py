"""CSV series as spreadsheets, loggers and satellite terminals write them: read, or refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import example, given, strategies as st
from properties import attempt, examples
from wording import Wording

from bentpipe import Plan
from bentpipe.errors import ScenarioError
from bentpipe.plan.csv_file import DURATION, RATE, ColumnKind, SourceFile, Steps, Table
from bentpipe.plan.lower import PlanningError

MS = 10**6
S = 10**9


def read(content: str | bytes, kind: ColumnKind | None, column: str | None = None) -> Steps:
    """Return the steps of a column of rates or delays, or of errors without a kind."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "series.csv"
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        table = Table(SourceFile(str(file), ("link", "csv")))
        return table.errors(column)[0] if kind is None else table.values(kind, column)


def refusal(content: str | bytes, kind: ColumnKind = DURATION) -> str:
    with pytest.raises(PlanningError) as refused:
        read(content, kind)
    return refused.value.message.partition("series.csv")[2]


# 275.5 ms from 0 s, 280 ms from 1.5 s.
DELAYS = [(0, 275_500_000), (1_500 * MS, 280 * MS)]


@pytest.mark.parametrize(
    "content",
    [
        "time_s,delay_ms\n0,275.5\n1.5,280\n",
        "time_s;delay_ms\n0;275.5\n1.5;280\n",
        "time_s\tdelay_ms\n0\t275.5\n1.5\t280\n",
        "sep=;\ntime_s;delay_ms\n0;275.5\n1.5;280\n",
        "sep=|\ntime_s|delay_ms\n0|275.5\n1.5|280\n",
        # Decimal commas, of numbers and of values with units.
        "time_s;delay_ms\n0;275,5\n1,5;280\n",
        'time_s,delay_ms\n0,"275,5"\n"1,5",280\n',
        "time;delay\n0 s;275,5 ms\n1,5 s;280 ms\n",
        # Quotes, a byte order mark, lines that end as on Windows or old Macs, trailing separators.
        '"time_s";"delay_ms"\n"0";"275.5"\n"1.5";"280"\n',
        "\ufefftime_s;delay_ms\r\n0;275.5\r\n1.5;280\r\n",
        "time_s,delay_ms\r0,275.5\r1.5,280\r",
        "time_s;delay_ms;;\n0;275.5;;\n;;;\n1.5;280;;\n;;;\n",
        # Dates, and seconds since 1970: the first row is the start of the run.
        "timestamp,delay_ms\n2024-05-01T12:00:00Z,275.5\n2024-05-01T12:00:01.5Z,280\n",
        "time;delay_ms\n2024-05-01 12:00:00;275.5\n2024-05-01 12:00:01,5;280\n",
        "time;delay_ms\n2024-05-01 14:00+02:00;275,5\n2024-05-01 12:00:01.500 UTC;280\n",
        "time_s,delay_ms\n1714564800,275.5\n1714564801.5,280\n",
        "timestamp_ms,delay_ms\n1714564800000,275.5\n1714564801500,280\n",
        "Epoch_s,delay_ms\n1714564800.25,275.5\n1714564801.75,280\n",
        # Gaps: a row without a value, and equal rows, change nothing.
        "time_s,delay_ms\n0,275.5\n1,\n1.5,280\n2,NaN\n",
        "time_s,delay_ms\n0,275.5\n0,275.5\n1.5,null\n1.5,280\n",
    ],
)
def test_a_table_is_read_however_a_program_writes_it(content: str) -> None:
    assert read(content, DURATION) == DELAYS


# As dish_grpc_text.py of starlink-grpc-tools writes bulk_history: the latency is empty while all
# pings are lost.
DISH = """\
datetimestamp_utc,pop_ping_drop_rate,pop_ping_latency_ms,downlink_throughput_bps
2024-05-01T12:00:00,0.0,31.5,1250000.0
2024-05-01T12:00:01,1.0,,0.0
2024-05-01T12:00:02,0.25,40.25,98304.5
"""


def test_the_log_of_a_satellite_terminal_is_read() -> None:
    """Given a second in which all pings are lost, expect the delay before it and a loss of 1."""
    assert read(DISH, DURATION, "pop_ping_latency_ms") == [(0, 31_500_000), (2 * S, 40_250_000)]
    assert read(DISH, None) == [(0, 0.0), (1 * S, 1.0), (2 * S, 0.25)]
    assert read(DISH, RATE, "downlink_throughput_bps") == [(0, 1_250_000), (S, 0), (2 * S, 98_304)]


@pytest.mark.parametrize(
    "column", ["percent_packet_loss", "loss_percent", "rx_loss_pct", "Percentage_loss", "%_loss"]
)
def test_a_column_of_percentages_is_read_as_such(column: str) -> None:
    """Given 1 in a column whose name has percent, expect 1 %."""
    assert read(f"time_s,{column}\n0,0\n10,1\n", None) == [(0, 0.0), (10 * S, 0.01)]


def test_a_table_may_have_many_columns() -> None:
    """Given 20,000 columns, expect to read one within the time of a unit test."""
    names = [f"c{number}_ms" for number in range(20_000)]
    content = f"time_s,{','.join(names)}\n0{',7' * len(names)}\n"
    assert read(content, DURATION, "c9_ms") == [(0, 7 * MS)]


@pytest.mark.parametrize(
    ("seconds", "gap"),
    [
        ([*range(20)], None),
        # Two rows are missing; that is less than a gap.
        ([*range(10), *range(12, 30)], None),
        ([*range(10), *range(13, 30)], "4 s from 9 s on"),
        ([*range(10), *range(3_610, 3_630)], "3601 s from 9 s on"),
        # Rows for changes only.
        ([0, 1, 5, 6, 40, 41, 60, 300, 301, 310, 311, 5_000], None),
    ],
)
def test_a_gap_in_a_recording_is_a_warning(
    seconds: list[int], gap: str | None, tmp_path: Path
) -> None:
    """Given a recording with a hole, expect to be told that a value holds for long."""
    rows = "".join(f"{second},{20 + second % 2}\n" for second in seconds)
    (tmp_path / "path.csv").write_text(f"time_s,delay_ms\n{rows}", encoding="utf-8")
    hop = {"rate": "8 Mbit/s", "delay": "50 ms"}
    link = {"forward": {**hop, "delay": {"csv": str(tmp_path / "path.csv")}}, "return": hop}
    bulk = {"kind": "bulk", "direction": "forward", "size": "10 kB"}
    plan = Plan.resolve({"link": link, "traffic": [bulk], "duration": "9 s"})
    found = [str(each) for each in plan.warnings]
    assert len(found) == (gap is not None)
    for warning in found:
        assert warning.startswith(f"link.forward.delay.csv: has no value for {gap}, where others")


def with_delays(csv: Path, forward: dict[str, Any], back: dict[str, Any]) -> dict[str, Any]:
    """Return a scenario with delays of a file in both directions."""
    link = {
        name: {"rate": "8 Mbit/s", "delay": {"csv": str(csv), **written}}
        for name, written in (("forward", forward), ("return", back))
    }
    bulk = {"kind": "bulk", "direction": "forward", "size": "10 kB"}
    return {"link": link, "traffic": [bulk], "duration": "9 s"}


@pytest.mark.parametrize("written", [{"column": "pop_ping_latency_ms"}, {}], ids=str)
def test_a_measured_round_trip_is_halved_or_a_warning(
    written: dict[str, Any], tmp_path: Path
) -> None:
    """Given the log of a dish with round trips of 31.5 and 40.25 ms, expect half each way."""
    (tmp_path / "dish.csv").write_text(DISH if written else "time_s,rtt_ms\n0,31.5\n2,40.25\n")
    plan = Plan.resolve(with_delays(tmp_path / "dish.csv", written, written))
    (warning,) = map(str, plan.warnings)
    assert warning.startswith('link.forward.delay: column "')
    assert warning.endswith("round trips are longer than it is; write scale: 0.5 in both")
    half = written | {"scale": 0.5}
    plan = Plan.resolve(with_delays(tmp_path / "dish.csv", half, half))
    assert plan.warnings == ()
    expected = [[0, 15_750_000], [2 * S, 20_125_000]]
    assert [each["delay_ns"]["steps"] for each in plan.data["directions"]] == [expected] * 2


def test_a_rate_can_be_scaled_and_errors_cannot(tmp_path: Path) -> None:
    csv = tmp_path / "path.csv"
    csv.write_text("time_s,up_mbps,loss\n0,2,0\n1,0,0.5\n2,1,0\n")
    scenario = with_delays(csv, {}, {})
    hop = {"delay": "5 ms", "rate": {"csv": str(csv), "scale": 3}}
    plan = Plan.resolve(scenario | {"link": {"forward": hop, "return": hop}})
    assert plan.data["directions"][0]["rate_bps"]["steps"] == [
        [0, 6_000_000],
        [S, 0],
        [2 * S, 3_000_000],
    ]
    for scale, message in ((0, "above 0"), (1_001, "at most 1000"), (".inf", "")):
        hop["rate"] = {"csv": str(csv), "scale": scale}
        with pytest.raises(ScenarioError, match=rf"rate\.scale: read .*{message}"):
            Plan.resolve(scenario | {"link": {"forward": hop, "return": hop}})
    csv.write_text("time_s,up_gbps\n0,200\n")
    hop["rate"] = {"csv": str(csv), "scale": 1_000}
    with pytest.raises(ScenarioError, match=r"scale: read 1000\.0; makes .* than 100 Tbit/s"):
        Plan.resolve(scenario | {"link": {"forward": hop, "return": hop}})
    hop |= {"rate": "1 Mbit/s", "errors": {"csv": str(csv), "scale": 2}}
    with pytest.raises(ScenarioError, match=r"errors\.scale: "):
        Plan.resolve(scenario | {"link": {"forward": hop, "return": hop}})


def test_a_missing_header_is_one_error_for_all_fields(tmp_path: Path) -> None:
    """Given a log without its header in both directions, expect one problem that says so."""
    csv = tmp_path / "nohead.csv"
    csv.write_text("2024-05-01T12:00:00Z,1000,31.5\n2024-05-01T12:00:01Z,1000,40.25\n")
    with pytest.raises(ScenarioError) as refused:
        Plan.resolve(with_delays(csv, {}, {}))
    (problem,) = refused.value.problems
    assert "nohead.csv:1: read" in problem.message
    assert "the first line is data; a header is missing" in problem.message


BAD = {
    "comma and point": "time_s;delay_ms\n0;275,5\n1.5;280\n",
    "separators of thousands": "time_s;delay_ms\n0;275\n1;1,234\n",
    "both marks in a number": "time_s;delay_ms\n0;1.234,5\n",
    "two separators of columns": "time_s;delay_ms\n0,275\n",
    "decimal commas between commas": "time_s,delay_ms\n0,275,5\n",
    "open quotes": 'time_s;delay_ms\n0;"275\n',
    "text after quotes": 'time_s;delay_ms\n0;"275"5\n',
    "rows that are not sorted": "time_s,delay_ms\n0,1\n2,1\n1,1\n",
    "newest row first": "time,delay_ms\n2024-05-01 12:00:01,1\n2024-05-01 12:00:00,1\n",
    "a time with two values": "time_s,delay_ms\n0,1\n1,1\n1,2\n",
    "times from a clock": "time_s,delay_ms\n5017.3,1\n5018.3,1\n",
    "seconds since 1970 after others": "time_s,delay_ms\n0,1\n1714564800,1\n",
    "a date of another form": "time,delay_ms\n01.05.2024 12:00,1\n",
    "a date that does not exist": "time,delay_ms\n2024-02-30 12:00:00,1\n",
    "a date without a time": "time,delay_ms\n2024-05-01,1\n",
    "a fraction of a minute": "time,delay_ms\n2024-05-01T12:00.5Z,1\n",
    "time zones in some rows": "time,delay_ms\n2024-05-01 12:00Z,1\n2024-05-01 12:01,1\n",
    "numbers among dates": "time,delay_ms\n2024-05-01 12:00Z,1\n60,1\n",
    "dates among numbers": "time_s,delay_ms\n0,1\n2024-05-01 12:00Z,1\n",
    "no value in the first row": "time_s,delay_ms\n0,\n1,5\n",
    "a row that is too short": "time_s,delay_ms,loss\n0,1,0\n1,,,DISH_UNREACHABLE\n2\n",
    "seconds since 1970 without a unit": "timestamp,delay_ms\n1714564800,1\n",
    "two columns of time": "timestamp,epoch_s,delay_ms\n2024-05-01 12:00Z,1,1\n",
    "two columns of one name": "time_s,delay_ms,delay_ms\n0,1,1\n",
}


def test_what_is_not_clear_is_refused_with_line_and_fix(wording: Wording) -> None:
    found = {case: refusal(content) for case, content in BAD.items()}
    for case, message in found.items():
        line = message.split(":")[1]
        assert line.isdecimal(), f"{case}: {message}"
    wording("bad tables", found)


def test_a_table_in_another_encoding_is_refused() -> None:
    assert "in UTF-8" in refusal("time_s;delay_ms\n0;1\n".encode("utf-16"))
    assert "in UTF-8" in refusal("time_s;Verzögerung_ms\n0;1\n".encode("cp1252"))


# --- properties ---------------------------------------------------------------------------------

_TEXT = st.lists(
    st.sampled_from(
        [
            *",;\t|\"'\r\n\ufeff#=-+.eE%:/ZT\0\xa0µ",
            "\n",
            "\n",
            "0",
            "1",
            "1,5",
            "1.234,5",
            "9" * 70,
            "1e99",
            "nan",
            "null",
            "time_s",
            "timestamp",
            "delay_ms",
            "rate",
            "loss",
            "sep=;",
            "2024-05-01T12:00:00Z",
            "2024-05-01 12:00:00,5+14:00",
            "0001-01-01 00:00+23:59",
            "9999-12-31T23:59:59-23:59",
            "1714564800",
            "16 Mbit/s",
            "275,5 ms",
        ]
    )
    | st.text(max_size=3),
    max_size=30,
).map("".join)
_HEADERS = st.sampled_from(
    ["", "time_s,delay_ms\n", "time;rate;loss\n", "timestamp\tdelay_ms\n", "time_ms;loss\n"]
)


@given(content=st.builds("{}{}".format, _HEADERS, _TEXT) | st.binary(max_size=40))
@example("time,delay_ms\n0001-01-01 00:00+23:59,1\n9999-12-31T23:59:59-23:59,1\n")
@example('time_s;"delay_ms\n0;1\n')
@examples(150)
def test_any_text_is_a_table_or_refused(content: str | bytes) -> None:
    for kind in (DURATION, RATE, None):
        steps = attempt(PlanningError, partial(read, content, kind))
        if isinstance(steps, PlanningError):
            assert "series.csv" in steps.message
            continue
        times = [at_ns for at_ns, _ in steps]
        assert times[0] == 0
        assert times == sorted(set(times))
        assert all(value >= 0 for _, value in steps)


@st.composite
def _tables(draw: st.DrawFn) -> tuple[str, Steps]:
    """Draw a table in one of the forms that are read, and its steps."""
    gaps = draw(st.lists(st.integers(1, 10**10), max_size=6))
    times = [sum(gaps[:n]) for n in range(len(gaps) + 1)]
    values = [draw(st.integers(0, 10**9)) for _ in times]
    separator = draw(st.sampled_from(",;\t"))
    mark = draw(st.sampled_from(".,"))
    is_dated, epoch_s = draw(st.booleans()), draw(st.sampled_from([0, 1_714_564_800]))

    def number(value_ns: int, digits: int) -> str:
        """Write a number exactly; the zero at its end shows that it has no thousands."""
        whole, part = divmod(value_ns, 10**digits)
        text = f"{whole}{mark}{part:0{digits}}0"
        return f'"{text}"' if separator == mark else text

    def stamp(at_ns: int) -> str:
        if not is_dated:
            return number(at_ns + epoch_s * S, 9)
        at = datetime.fromtimestamp(epoch_s, UTC) + timedelta(seconds=at_ns // S)
        text = f"{at:%Y-%m-%dT%H:%M:%S}{mark}{at_ns % S:09}Z"
        return f'"{text}"' if separator == mark else text

    rows = [f"{'timestamp' if is_dated else 'time_s'}{separator}delay_ms"]
    steps = list(zip(times, values, strict=True))
    rows += [f"{stamp(at_ns)}{separator}{number(value, 6)}" for at_ns, value in steps]
    end = draw(st.sampled_from(["\n", "\r\n", "\r"]))
    bom = draw(st.sampled_from(["", "\ufeff"]))
    return bom + end.join(rows) + end, list(steps)


@given(table=_tables())
@examples(100)
def test_every_form_of_a_table_has_the_same_steps(table: tuple[str, Steps]) -> None:
    content, steps = table
    assert read(content, DURATION) == steps
