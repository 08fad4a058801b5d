"""Videos in scenarios: start-up times and stalls in every result, simulated and in real time."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Program, measures
from hypothesis import given, strategies as st
from test_emulate import emulated

from bentpipe import Plan, Result, Scenario, Sweep, compare, search, simulate
from bentpipe.errors import ScenarioError
from bentpipe.live.exchanges import exchanges_of, playback, segment_bytes
from bentpipe.results import check_thresholds
from bentpipe.results.run_views import flow_views
from bentpipe.results.views import records
from bentpipe.scenario import Video

S = 10**9
EXIT_USAGE, EXIT_THRESHOLD = 2, 99


def scenario(*videos: dict[str, Any], duration: str = "40 s", **link: Any) -> Any:
    """Return videos on a link of 20 Mbit/s and a round trip of 100 ms without loss."""
    hop = {"rate": "20 Mbit/s", "delay": "50 ms", "queue": {"limit": "10 MB"}}
    both = {"forward": hop | link, "return": hop}
    traffic = [{"kind": "video", "direction": "forward", "rate": "3 Mbit/s"} | v for v in videos]
    return Scenario.from_dict({"link": both, "traffic": traffic, "duration": duration})


def flow_of(result: Result) -> dict[str, Any]:
    """Return the only flow."""
    (flow,) = result.flows.to_dicts()
    return flow


def slow(duration: str = "100 s") -> Any:
    """Return 12 s of media of 3 Mbit/s on a link of 2 Mbit/s."""
    return scenario({"name": "film", "duration": "12 s"}, rate="2 Mbit/s", duration=duration)


# --- traffic ------------------------------------------------------------------------------------


def test_a_video_has_the_media_of_the_scenario() -> None:
    """Given no duration, expect media from the start to the end of the run, and the defaults."""
    workload = Plan.resolve(scenario({"start": "10 s"})).data["flows"][0]["workload"]
    assert workload["kind"] == "video"
    assert workload["media"] == {
        "rate_bps": 3_000_000,
        "duration_ns": 30 * S,
        "segment_ns": 4 * S,
        "buffer_ns": 30 * S,
        "start_up_ns": 4 * S,
    }
    assert workload["request_bytes"] == 400
    video = Video(direction="forward", rate="1 Mbit/s", start_up="9 s")
    assert video.model_dump(exclude_unset=True) == {
        "kind": "video",
        "direction": "forward",
        "rate": "1 Mbit/s",
        "start_up": "9 s",
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"buffer": "7 s", "start_up": "5 s"},
            'traffic.0.buffer: read "7 s"; must be at least 8 s',
        ),
        ({"buffer": "3 s"}, 'traffic.0.buffer: read "3 s"; must be at least 4 s'),
        ({"segment": "0 s"}, "traffic.0.segment"),
        ({"rate": "0 bit/s"}, "traffic.0.rate"),
        ({"direction": "both"}, "traffic.0.direction"),
        ({"tcp": {"mss": "1 B"}}, "traffic.0.tcp.mss"),
    ],
)
def test_an_impossible_player_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        Plan.resolve(scenario(change))
    assert message in str(caught.value)


def test_media_longer_than_the_run_gives_a_warning() -> None:
    """Given 40 s of media in a run of 40 s, expect a warning: it starts two round trips later."""

    def warned(video: dict[str, Any]) -> list[str]:
        data = scenario(video).model_dump(exclude_unset=True)
        return [str(each) for each in Plan.resolve(data).warnings]

    (warning,) = warned({"duration": "40 s"})
    assert warning.startswith('traffic.0.duration: read "40 s"; lasts 40.2 s')
    assert not warned({"duration": "39 s"})
    assert not warned({})


# --- results ------------------------------------------------------------------------------------


def test_a_fast_link_plays_without_stalls() -> None:
    """Given 20 s of media on a link with 6 times its rate, expect no stall.

    The flow ends with the last frame: start-up and media.
    """
    result = simulate(scenario({"duration": "20 s"}))
    flow = flow_of(result)
    assert (flow["stalls"], flow["stalled_ns"], flow["stall_ratio_percent"]) == (0, 0, 0.0)
    assert flow["played_ns"] == 20 * S
    assert flow["exchanges"] == 5
    assert flow["delivered_bytes"] == 20 * 3_000_000 // 8
    assert result.manifest["end_ns"] == flow["start_up_time_ns"] + 20 * S


def test_a_slow_link_stalls_for_the_missing_time() -> None:
    """Given segments of 4 s that take 6.27 s on the link, expect two stalls of 2.27 s.

    A segment is 1.5 MB; with timestamps 1,448 bytes of payload take 1,500 on the link. A request
    takes a round trip of 100 ms.
    """
    flow = flow_of(simulate(slow()))
    takes_s = 0.1 + 1.5e6 * 8 * 1_500 / 1_448 / 2e6
    assert flow["stalls"] == 2
    assert flow["stalled_ns"] / S == pytest.approx(2 * (takes_s - 4), rel=0.02)
    ratio = flow["stalled_ns"] / (flow["stalled_ns"] + 12 * S)
    assert flow["stall_ratio_percent"] == pytest.approx(100 * ratio)


def test_a_video_that_has_not_started_stalls_all_the_time() -> None:
    """Given a run that ends before the first segment, expect no start-up time and 100 %.

    For thresholds the start-up time is infinite: a mean over other videos would hide it.
    """
    result = simulate(slow("4 s"))
    flow = flow_of(result)
    assert (flow["start_up_time_ns"], flow["played_ns"]) == (None, 0)
    assert flow["stall_ratio_percent"] == 100.0
    checks = check_thresholds(
        result, ["flows.start_up_time_ns.max <= 1 h", "flows.film.stall_ratio_percent <= 99 %"]
    )
    assert [check.passed for check in checks] == [False, False]


def test_other_flows_have_no_figures_of_videos() -> None:
    bulk = {"kind": "bulk", "direction": "forward", "size": "10 kB"}
    data = {"link": {"preset": "geo"}, "traffic": [bulk], "duration": "9 s"}
    flow = flow_of(simulate(Scenario.from_dict(data)))
    names = ("start_up_time_ns", "stalls", "stalled_ns", "played_ns", "stall_ratio_percent")
    assert [flow[name] for name in names] == [None] * 5


def test_figures_are_those_of_the_exchanges() -> None:
    """Given the times of segments in a result, expect a replay of the player to give its figures.

    Runs in real time compute theirs so. Each request is sent when the player has room.
    """
    for data in (slow(), scenario({"duration": "30 s", "buffer": "8 s"})):
        result = simulate(data)
        flow, rows = flow_of(result), result.exchanges.to_dicts()
        workload: Any = result.plan["flows"][0]["workload"]
        media = workload["media"]
        assert exchanges_of(workload) == len(rows)
        sizes = [segment_bytes(media, number) for number in range(len(rows))]
        assert sizes == [row["response_bytes"] for row in rows]
        seen = playback(media, rows, result.manifest["end_ns"])
        for name in ("start_up_time_ns", "stalls", "stalled_ns", "played_ns"):
            assert flow[name] == seen[name], name
        for number, (row, after) in enumerate(pairwise(rows), 1):
            due = playback(media, rows[:number], row["finished_ns"])
            assert after["start_ns"] == due["next_request_ns"]
        last = playback(media, rows, rows[-1]["finished_ns"])
        assert last["last_frame_ns"] == result.manifest["end_ns"]


@given(st.lists(st.integers(0, 10 * S), min_size=1, max_size=12), st.integers(0, 60 * S))
def test_start_up_stalls_and_media_add_up_to_the_time(takes: list[int], more: int) -> None:
    """Given segments that take any time, expect the parts of the time until the end to add up."""
    media = {
        "rate_bps": 1,
        "duration_ns": 4 * S * len(takes),
        "segment_ns": 4 * S,
        "buffer_ns": 12 * S,
        "start_up_ns": 8 * S,
    }
    rows: list[dict[str, int | None]] = []
    due: int | None = 3 * S
    for take in takes:
        assert due is not None
        rows.append({"start_ns": due, "finished_ns": due + take})
        due = playback(media, rows, due + take)["next_request_ns"]
    assert due is None
    arrived = rows[-1]["finished_ns"] or 0
    end_ns = min(arrived + more, playback(media, rows, arrived)["last_frame_ns"] or 0)
    seen = playback(media, rows, end_ns)
    parts = (seen["start_up_time_ns"], seen["stalled_ns"], seen["played_ns"])
    assert sum(part or 0 for part in parts) == end_ns - 3 * S


def test_tables_show_videos() -> None:
    """Given one video, expect its row; given thirteen, expect percentiles over them."""
    single = flow_views(simulate(slow()))
    assert [table.title.split(" ")[0] for table in single] == ["TCP", "Videos"]
    (row,) = records(single[1])
    assert (row["name"], row["direction"], row["stalls"]) == ("film", "forward", 2)
    assert (row["played_ns"], row["exchanges"]) == (12 * S, 3)
    many = flow_views(simulate(scenario({"name": "tv", "count": 13}, duration="20 s")))
    assert many[-1].title == "Videos by entry of traffic"
    assert many[-1].rows[0][:4] == ["tv", "forward", "p5", 13]


def test_a_threshold_and_a_comparison_use_the_figures(bentpipe: Program) -> None:
    """Given a limit of 5 % for stalls, expect code 99; given more media at first, code 0."""
    file = ROOT / "scenarios" / "video.yaml"
    threshold = ["--threshold", "flows.lecture.stall_ratio_percent <= 5 %", "--json"]
    failed = bentpipe("run", str(file), *threshold)
    assert failed.code == EXIT_THRESHOLD
    longer = ["--set", 'traffic.lecture.start_up="12 s"']
    passed = bentpipe("run", str(file), *longer, *threshold)
    assert passed.code == 0
    flow = json.loads(passed.out)["flows"][0]
    assert (flow["stalls"], flow["stall_ratio_percent"]) == (0, 0.0)
    video = {"name": "film", "duration": "12 s"}
    longer_start = scenario(video | {"start_up": "12 s"}, rate="2 Mbit/s", duration="100 s")
    found = compare(slow(), longer_start, metrics=None, seeds=2)
    changes = {str(each.metric): each.estimate.difference for each in found.differences}
    # Two segments more before the first frame: 12.5 s instead of two stalls of 2.27 s.
    assert changes["flows.film.start_up_time_ns.mean"] / S == pytest.approx(12.5, rel=0.02)
    assert changes["flows.film.stall_ratio_percent.mean"] < -20


def test_as_many_videos_fit_as_the_rate_carries() -> None:
    """Given 20 Mbit/s, expect 6 videos of 3 Mbit/s without stalls: with headers 18.6 Mbit/s.

    Seven need 21.8 Mbit/s: after the media of the start-up they stall for 8 % of the time.
    """
    tv = {"name": "tv", "duration": "240 s", "start_jitter": "4 s"}
    made = scenario(tv, duration="260 s")
    limit = "flows.tv.stall_ratio_percent.max <= 1 %"
    (found,) = search(made, thresholds=[limit], seeds=1, bound=16).limits
    assert (found.passes, found.fails, found.converged) == (6, 7, True)


def test_a_sweep_has_the_figures_of_videos(tmp_path: Path, bentpipe: Program) -> None:
    """Given two start-ups, expect the mean figures of each cell, and them in the table."""
    file, out = tmp_path / "scenario.json", tmp_path / "sweep"
    file.write_text(json.dumps(slow().model_dump(exclude_unset=True)))
    done = bentpipe(
        *("sweep", str(file), "--vary", "traffic.film.start_up=4 s,12 s"),
        *("--seeds", "2", "--out", str(out)),
    )
    assert done.code == 0
    assert "stall ratio" in done.out
    cells = Sweep.load(out).cells
    ratios = cells["stall_ratio_percent"].to_list()
    assert ratios == [pytest.approx(100 * 4.54 / 16.54, rel=0.02), 0.0]
    assert cells["start_up_time_ns"].is_sorted()


# --- in real time -------------------------------------------------------------------------------

REAL_LINK = {
    "forward": {"rate": "20 Mbit/s", "delay": "25 ms", "queue": {"limit": "1 MB"}},
    "return": {"rate": "4 Mbit/s", "delay": "25 ms", "queue": {"limit": "1 MB"}},
}


def real(media: str, **forward: Any) -> dict[str, Any]:
    """Return 3.5 s of media in segments of 1 s, of which the player holds 2 s."""
    video = {
        "kind": "video",
        "direction": "forward",
        "rate": media,
        "duration": "3500 ms",
        "segment": "1 s",
        "start_up": "1 s",
        "buffer": "2 s",
    }
    link = REAL_LINK | {"forward": REAL_LINK["forward"] | forward}
    return {"link": link, "traffic": [video], "duration": "15 s"}


@measures
@pytest.mark.parametrize(
    ("data", "stalls"),
    [
        (real("2 Mbit/s"), 0),
        pytest.param(real("3 Mbit/s", rate="2 Mbit/s"), 2, marks=pytest.mark.thorough),
    ],
)
def test_a_player_in_real_time_is_that_of_the_simulator(
    data: dict[str, Any], stalls: int, tmp_path: Path
) -> None:
    """Given a link that is fast enough and one that is not, expect the figures of the simulator.

    A segment that takes 1.6 s stalls the player for 0.6 s; the last one, of 0.5 s, does not.
    Start-up and stalls are within 30 ms and a tenth: the kernel's TCP is not the simulator's.
    """
    run = emulated(data, tmp_path).result
    expected = simulate(Scenario.from_dict(data))
    own, other = flow_of(run), flow_of(expected)
    assert (own["stalls"], other["stalls"]) == (stalls, stalls)
    assert own["played_ns"] == other["played_ns"] == 3_500_000_000
    assert own["exchanges"] == other["exchanges"] == 4
    for name in ("start_up_time_ns", "stalled_ns"):
        assert own[name] == pytest.approx(other[name], rel=0.1, abs=30e6), name
    rows = run.exchanges.to_dicts()
    assert [row["response_bytes"] for row in rows] == expected.exchanges["response_bytes"].to_list()
    # The run lasts until the last frame, and until its programs have ended.
    shown_ns = own["start_ns"] + own["start_up_time_ns"] + own["stalled_ns"] + own["played_ns"]
    assert -20e6 < run.manifest["end_ns"] - shown_ns < 1e9
