"""Scenarios in real time compared with the simulator and with arithmetic, and refusals.

Figures of runs that were late do not count, so they are not compared.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pytest
from conftest import ROOT, Program, measures, needs, needs_lab
from late import until_on_time
from test_lab import wait_until
from test_live import processes

from bentpipe import Plan, Result, simulate
from bentpipe._core import Stream
from bentpipe.live import kernel_tcp, requirements
from bentpipe.live.flow_report import FlowReport
from bentpipe.live.requirements import delayed_plan, lead_time_ns
from bentpipe.plan.hosts import windows_bytes
from bentpipe.plots import congestion_window, goodput
from bentpipe.results.tables import DROP_CAUSES, TABLES

GEO = ROOT / "scenarios" / "geo-bulk.yaml"
BENTPIPE = [sys.executable, "-m", "bentpipe"]
EXIT_MACHINE = 3
EXIT_INVALID = 4

LINK = {
    "forward": {"rate": "20 Mbit/s", "delay": "13 ms", "queue": {"limit": "1 bdp"}},
    "return": {"rate": "4 Mbit/s", "delay": "13 ms", "queue": {"limit": "1 bdp"}},
}


def scenario(*flows: dict[str, Any], duration: str, **link: Any) -> dict[str, Any]:
    """A link like that of a LEO satellite, and flows on it."""
    return {"link": LINK | link, "traffic": list(flows), "duration": duration}


class Emulated:
    """A run in a child process: exit code, messages and result."""

    def __init__(self, data: dict[str, Any], folder: Path) -> None:
        file, out = folder / "scenario.json", folder / "result"
        file.write_text(json.dumps(data))
        command = [*BENTPIPE, "run", "--engine", "emulate", str(file), "--out", str(out)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr
        assert self.code in (0, EXIT_INVALID), self.err
        self.folder = out
        self.result = Result.load(out)


def emulated(data: dict[str, Any], folder: Path, *, valid: bool = True) -> Emulated:
    """Run a scenario, again if packets were late and the test needs a ``valid`` run."""

    def run() -> Emulated:
        return Emulated(data, Path(tempfile.mkdtemp(dir=folder)))

    return until_on_time(run, lambda each: each.result.invalid) if valid else run()


# --- against the simulator ----------------------------------------------------------------------


@measures
@pytest.mark.smoke
@needs("iperf3")
def test_a_bulk_flow_is_as_fast_as_in_the_simulator(tmp_path: Path) -> None:
    """Given 3 s of CUBIC at 20 Mbit/s, expect at least 85 % of what 1,448 of 1,500 bytes leave.

    The simulator's goodput and delays are within a tenth. Packets are conserved, and report and
    figures are drawn.
    """
    bulk = {"kind": "bulk", "direction": "forward", "duration": "3 s"}
    data = scenario(bulk, duration="3500 ms")
    run = emulated(data, tmp_path)
    (flow,), (expected,) = run.result.flows.to_dicts(), simulate(data).flows.to_dicts()
    assert flow["goodput_bps"] >= 0.85 * 20e6 * 1_448 / 1_500
    assert flow["goodput_bps"] == pytest.approx(expected["goodput_bps"], rel=0.1)
    name = "one_way_delay_mean_ns"
    assert flow[name] == pytest.approx(expected[name], rel=0.1)
    # No round trip is shorter than twice the delay and a packet each way: 26 ms and 0.7 ms.
    assert flow["rtt_min_ns"] > 26e6
    assert 13e6 <= flow["established_ns"] - flow["start_ns"] <= 60e6
    assert run.result.manifest["emulation"]["congestion_controls"] == {"bulk-1": "cubic"}
    assert run.result.manifest["emulation"]["kernel_dropped_packets"] == 0
    for row in run.result.directions.to_dicts():
        for unit in ("packets", "bytes"):
            dropped = sum(row[f"dropped_{cause}_{unit}"] for cause in DROP_CAUSES)
            left = row[f"delivered_{unit}"] + dropped + row[f"held_{unit}"]
            assert row[f"received_{unit}"] == left
    for name in set(TABLES) - {"events"}:
        columns = [column.name for column in TABLES[name].columns]
        assert run.result.tables[name].columns == columns
    assert len(run.result.flow_samples) > 20
    # The kernel's own account, at both ends at one moment: what is acknowledged has arrived.
    assert flow["acked_bytes"] == flow["delivered_bytes"]
    assert flow["timeouts"] == 0
    for sample in run.result.flow_samples.to_dicts():
        assert sample["cwnd_bytes"] % 1_448 == 0
        assert sample["acked_bytes"] <= sample["delivered_bytes"] + 37
    assert len(run.result.direction_samples) > 40
    assert congestion_window(run.result).lines
    assert goodput(run.result).lines
    assert "Run in real time" in (run.folder / "report.html").read_text()
    assert "In real time, Linux" in run.out


@pytest.mark.thorough
@measures
@needs("iperf3")
def test_steps_of_the_link_are_on_the_clock_of_the_run(tmp_path: Path) -> None:
    """Given an outage from 1 to 2 s, expect bytes until 1 s, and none from then until 2 s.

    The link runs while the programs start, some 0.3 s: that is no part of the run. What was sent
    by 1 s is there 10 ms later.
    """
    bulk = {"kind": "bulk", "direction": "forward", "duration": "3 s"}
    rate = [
        {"at": "0 s", "value": "8 Mbit/s"},
        {"at": "1 s", "value": "0 bit/s"},
        {"at": "2 s", "value": "8 Mbit/s"},
    ]
    data = scenario(bulk, duration="3 s", forward={"rate": rate, "delay": "10 ms"})

    def delivered() -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        run = emulated(data, Path(tempfile.mkdtemp(dir=tmp_path)), valid=False)
        samples = run.result.flow_samples.drop_nulls("delivered_bytes")
        times_s, sizes = samples["time_ns"].to_numpy() / 1e9, samples["delivered_bytes"].to_numpy()
        return sizes, sizes[(times_s > 1.1) & (times_s < 1.95)]

    sizes, during = until_on_time(
        delivered, lambda found: "there are no samples" if len(found[1]) < 2 else None
    )
    # 0.5 s at 8 Mbit/s are 500 kB.
    assert during[0] > 250_000
    assert during[-1] == during[0]
    assert sizes[-1] - during[-1] > 250_000


def forward_rate_steps(plan: Mapping[str, Any]) -> list[list[int]]:
    """Return the steps, of ns and bit/s, that the plan's forward rate takes."""
    forward = next(each for each in plan["directions"] if each["name"] == "forward")
    steps: list[list[int]] = forward["rate_bps"]["steps"]
    return steps


def test_steps_are_delayed_by_the_lead_time() -> None:
    """Given rates from 0 s and from 5 s and a lead time of 2 s, expect 0 s and 7 s."""
    bulk = {"kind": "bulk", "direction": "forward", "duration": "3 s"}
    data = scenario(bulk, duration="3 s")
    plain = Plan.resolve(data).data
    assert lead_time_ns(plain) == 0
    assert delayed_plan(plain, 2 * 10**9) == plain
    rate = [{"at": "0 s", "value": "8 Mbit/s"}, {"at": "5 s", "value": "4 Mbit/s"}]
    stepped = scenario(bulk, duration="3 s", forward={"rate": rate, "delay": "10 ms"})
    plan = Plan.resolve(stepped).data
    assert lead_time_ns(plan) >= 10**9
    assert forward_rate_steps(delayed_plan(plan, 2 * 10**9)) == [
        [0, 8_000_000],
        [7 * 10**9, 4_000_000],
    ]
    assert forward_rate_steps(plan)[1][0] == 5 * 10**9


@measures
@needs("iperf3")
def test_exchanges_equal_those_of_the_simulator(tmp_path: Path) -> None:
    """Given files one after the other and requests on one connection, expect the same exchanges.

    The sizes are drawn from the same stream. Each takes as long as in the simulator within 10 ms
    and a tenth, of 37 to 150 ms; one in twenty may be off, as programs wait for a processor.
    """
    files = {
        "kind": "fetch",
        "direction": "forward",
        "size": {"pareto": {"min": "20 kB", "shape": 1.2, "max": "1 MB"}},
        "think": {"exponential": "50 ms"},
        "files": 10,
    }
    requests = {
        "kind": "request_response",
        "direction": "return",
        "request": "100 B",
        "response": "5 kB",
        "think": "20 ms",
        "exchanges": 10,
    }
    data = scenario(files, requests, duration="6 s")
    run = emulated(data, tmp_path).result
    expected = simulate(data)
    assert run.flows["exchanges"].to_list() == [10, 10]
    assert run.manifest["traffic_ended"]
    far = 0
    for flow in (0, 1):
        rows, others = (
            result.exchanges.filter(pl.col("flow") == flow).sort("exchange").to_dicts()
            for result in (run, expected)
        )
        for row, other in zip(rows, others, strict=True):
            assert row["response_bytes"] == other["response_bytes"]
            assert row["start_ns"] <= (row["established_ns"] or row["start_ns"])
            assert row["start_ns"] < row["first_byte_ns"] <= row["finished_ns"]
            assert (row["established_ns"] is None) == (other["established_ns"] is None)
            far += abs(row["time_ns"] - other["time_ns"]) > 10e6 + 0.1 * other["time_ns"]
    assert far <= 1


@pytest.mark.parametrize(
    "distribution",
    [
        {"exponential": "20 kB"},
        {"pareto": {"min": "4 kB", "shape": 1.2, "max": "1 MB"}},
        {"lognormal": {"median": "10 kB", "sigma": 1.0, "max": "60 kB"}},
    ],
)
def test_draws_equal_those_of_the_simulator(distribution: dict[str, Any]) -> None:
    files = {
        "name": "f",
        "kind": "fetch",
        "direction": "forward",
        "size": distribution,
        "files": 40,
    }
    data = scenario(files, duration="60 s")
    workload: Any = Plan.resolve(data).data["flows"][0]["workload"]
    stream, sizes = Stream(2**63 + 5, "flow.f.responses"), json.dumps(workload["response_bytes"])
    simulated = simulate(data, seed=2**63 + 5).exchanges["response_bytes"].to_list()
    assert [max(1, stream.draw(sizes)) for _ in simulated] == simulated
    assert len(set(simulated)) > 20


@measures
@needs("iperf3")
def test_kernel_settings_windows_and_sizes(tmp_path: Path) -> None:
    """Given 100 kB through a window of 30 kB, expect all of it, the settings, and a warning.

    The socket buffers are twice the windows (tcp(7)); rate x RTT is 20 Mbit/s x 26 ms = 65,000 B.
    At 30 kB a round trip the transfer takes at least three of them.
    """
    tcp = {
        "sack": False,
        "timestamps": False,
        "initial_window": 4,
        "receive_buffer": "30 kB",
        "receive_buffer_counts": "window",
    }
    bulk = {"kind": "bulk", "direction": "forward", "size": "100 kB", "tcp": tcp}
    run = emulated(scenario(bulk, duration="4 s"), tmp_path, valid=False)
    about = run.result.manifest["emulation"]
    for side in ("world", "island"):
        settings = about["settings"][side]
        assert settings["net.ipv4.tcp_rmem"] == "4096 60000 60000"
        assert (settings["net.ipv4.tcp_sack"], settings["net.ipv4.tcp_timestamps"]) == ("0", "0")
        assert settings["net.ipv4.tcp_no_metrics_save"] == "1"
    assert about["initial_window_segments"] == 4
    warning = "traffic.0: the largest window is 30,000 B (receive_buffer), below rate x RTT"
    assert warning in run.err
    assert "65,000 B" in run.err
    (flow,) = run.result.flows.to_dicts()
    assert flow["delivered_bytes"] == 100_000
    assert flow["finished_ns"] - flow["start_ns"] >= 3 * 26e6
    assert run.result.manifest["traffic_ended"]
    assert run.result.manifest["end_ns"] < 3e9


# --- against arithmetic -------------------------------------------------------------------------


@measures
@pytest.mark.smoke
@needs("iperf3")
def test_datagrams_are_lost_by_bit_errors_only(tmp_path: Path) -> None:
    """Given 2 s of datagrams of 1,000 B each way, one with bit errors, expect losses there only."""

    def flow(direction: str, rate: str) -> dict[str, Any]:
        kind = {"kind": "constant_rate", "payload": "1000 B", "duration": "2 s"}
        return kind | {"direction": direction, "rate": rate}

    forward = LINK["forward"] | {"bit_error_rate": 1e-5}
    flows = (flow("forward", "8 Mbit/s"), flow("return", "800 kbit/s"))
    result = emulated(scenario(*flows, duration="4 s", forward=forward), tmp_path).result
    (lossy, whole), (row, *_) = result.flows.to_dicts(), result.directions.to_dicts()
    assert_losses_are_binomial(lossy, row)
    assert_samples_end_with_the_flow(result.datagram_samples, lossy)
    # A sender that a busy machine kept waiting has sent fewer, which is none of the link's doing.
    assert whole["delivered_bytes"] == whole["sent_bytes"]
    assert 180_000 <= whole["delivered_bytes"] <= 202_000
    assert whole["goodput_bps"] == pytest.approx(4 * whole["delivered_bytes"], rel=0.011)
    # 13 ms, and 2.06 ms of sending; packets of a sender that waited come in a burst.
    assert 15.05e6 <= whole["one_way_delay_mean_ns"] < 17e6


def assert_losses_are_binomial(flow: dict[str, Any], row: dict[str, Any]) -> None:
    """Given packets of 1,028 bytes at a bit error rate of 1e-5, expect a binomial loss.

    A packet is lost with chance 1 - (1 - 1e-5)^8224 = 7.9 %; the bounds are those of the middle
    99 % of the binomial distribution.
    """
    chance = -math.expm1(8_224 * math.log1p(-1e-5))
    low, high = binomial_interval(row["sent_packets"], chance)
    assert row["sent_packets"] > 1_500
    assert low <= row["dropped_bit_error_packets"] <= high
    # A sender that was kept waiting makes up for it in a burst, which may fill the queue. iperf3
    # says hello in a packet that is of no flow, to each of two servers.
    dropped = row["dropped_bit_error_packets"] + row["dropped_queue_full_packets"]
    assert 0 <= dropped - (flow["sent_segments"] - flow["received_segments"]) <= 2
    assert flow["delivered_bytes"] == 1_000 * flow["received_segments"]


def assert_samples_end_with_the_flow(samples: pl.DataFrame, flow: dict[str, Any]) -> None:
    """Expect the last sample at most one interval before the end of the run."""
    (*_, last) = samples.filter(pl.col("flow") == 0).to_dicts()
    for name in ("expected_segments", "received_segments", "delivered_bytes", "lost_packets"):
        assert 0.9 * flow[name] <= last[name] <= flow[name]
    assert last["one_way_delay_sum_ns"] > last["received_segments"] * 10e6


def binomial_interval(draws: int, chance: float) -> tuple[int, int]:
    """The middle 99 % of a binomial distribution."""
    log_chances = (
        math.lgamma(draws + 1)
        - math.lgamma(k + 1)
        - math.lgamma(draws - k + 1)
        + k * math.log(chance)
        + (draws - k) * math.log1p(-chance)
        for k in range(draws + 1)
    )
    below, low = 0.0, None
    for k, log_chance in enumerate(log_chances):
        below += math.exp(log_chance)
        if low is None and below > 0.005:
            low = k
        if below >= 0.995:
            return low or 0, k
    raise AssertionError("a distribution adds up to one")


# --- how runs end -------------------------------------------------------------------------------


@needs_lab
@needs("iperf3")
def test_a_run_in_which_no_packet_left_the_link_is_invalid(tmp_path: Path) -> None:
    """Given an outage from the start to the end, expect exit code 4: nothing can be judged."""
    outage = {"outage": [{"at": "0 s", "for": "60 s"}]}
    both = {name: LINK[name] | outage for name in ("forward", "return")}
    flow = {"kind": "bulk", "direction": "forward", "size": "10 kB"}
    run = emulated(scenario(flow, duration="1 s", **both), tmp_path, valid=False)
    assert run.code == EXIT_INVALID
    assert run.result.manifest["emulation"]["fault"] == "idle"
    assert "INVALID: no packet has left the link" in run.err


@needs_lab
@needs("iperf3")
def test_ctrl_c_keeps_what_was_recorded(tmp_path: Path) -> None:
    bulk = {"kind": "bulk", "direction": "return", "duration": "60 s"}
    file, out = tmp_path / "scenario.json", tmp_path / "result"
    file.write_text(json.dumps(scenario(bulk, duration="60 s")))
    command = [*BENTPIPE, "run", "--engine", "emulate", str(file), "--out", str(out)]
    mark = f"bentpipe-ctrl-c-{os.getpid()}"
    environment = {**os.environ, "MARK": mark}

    def is_sending() -> bool:
        # A program may end while it is looked at.
        with suppress(OSError):
            lines = [Path(f"/proc/{each}/cmdline").read_text() for each in processes(mark)]
            return any("--client" in line for line in lines)
        return False

    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        wait_until(is_sending, "the flow does not start")
        # No file tells how much has been recorded: bytes arrive within two round trips.
        time.sleep(1.0)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert f"interrupted; what was recorded is in {out}" in err
    result = Result.load(out)
    assert result.interrupted
    assert 0 < result.manifest["end_ns"] < 60e9
    assert result.flows["delivered_bytes"].sum() > 0


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch, small_result: Result) -> Iterator[None]:
    """Emulated runs that are invalid because packets were late."""
    quantiles = dict.fromkeys(("p50_ns", "p90_ns", "p99_ns", "p999_ns", "max_ns"), 20_000_000)
    lateness = {"packets": 7, **quantiles}
    about = {
        "kernel": "6.1",
        "iperf3": "iperf 3.12",
        "lateness": lateness,
        "wait": lateness,
        "invalid": "lateness p99 is 0.02 s but must not exceed 0.001 s",
        "warnings": [],
    }
    manifest = {**small_result.manifest, "engine": "emulate", "emulation": about}
    result = Result(manifest, small_result.tables)
    monkeypatch.setattr("bentpipe.live.check_plan", lambda _: None)
    monkeypatch.setattr("bentpipe.live.run_plan", lambda *_, **__: result)
    return iter(())


@pytest.mark.system
@pytest.mark.usefixtures("late")
def test_an_invalid_run_is_exit_code_4_and_is_kept(bentpipe: Program, tmp_path: Path) -> None:
    called = bentpipe("run", "--engine", "emulate", GEO, "--out", tmp_path / "kept")
    assert called.code == EXIT_INVALID
    words = "INVALID: lateness p99 is 0.02 s but must not exceed 0.001 s"
    assert words in called.out
    assert words in called.err
    assert Result.load(tmp_path / "kept").invalid
    assert words in (tmp_path / "kept" / "report.html").read_text()


# --- what is refused ----------------------------------------------------------------------------


def test_the_engine_is_simulate_unless_told(bentpipe: Program) -> None:
    assert bentpipe("run", GEO, "--json") == bentpipe("run", GEO, "--json", "--engine", "simulate")
    called = bentpipe("run", GEO, "--engine", "emulat")
    assert (called.code, called.out) == (2, "")
    assert 'read "emulat"; allowed: simulate, emulate; did you mean "emulate"?' in called.err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["packet_events=true"], "packet_events: are not recorded in real time"),
        (["traffic.0.count=65"], "traffic: has 65 flows; in real time at most 64"),
        (
            ["traffic.0.tcp.clock_granularity=500ms"],
            "traffic.0.tcp.clock_granularity: is 500 ms; the kernel's is 1 ms and cannot be set",
        ),
        (["traffic.0.tcp.quick_ack_segments=0"], "traffic.0.tcp.quick_ack_segments: is 0;"),
        (["traffic.0.tcp.hystart=false"], "traffic.0.tcp.hystart: is false; the kernel's is true"),
    ],
)
def test_what_the_kernel_cannot_do_is_refused(
    changes: list[str], message: str, bentpipe: Program
) -> None:
    settings = [word for change in changes for word in ("--set", change)]
    called = bentpipe("run", "--engine", "emulate", GEO, *settings)
    assert (called.code, called.out) == (2, "")
    assert f"bentpipe: emulate: {message}" in called.err


def test_everything_is_refused_at_once(bentpipe: Program, tmp_path: Path) -> None:
    datagrams = {
        "kind": "constant_rate",
        "direction": "forward",
        "rate": "8 kbit/s",
        "payload": "15 B",
    }
    bulk = {"kind": "bulk", "direction": "forward", "size": "1 MB"}
    other = {**bulk, "tcp": {"sack": False}}
    web = {"kind": "conference", "participants": 2, "rate": "8 kbit/s", "payload": "100 B"}
    data = scenario(datagrams, bulk, other, web, duration="5 s", terminals=2)
    file = tmp_path / "scenario.json"
    file.write_text(json.dumps(data))
    called = bentpipe("run", "--engine", "emulate", file)
    assert called.code == 2
    assert [line.split(": ")[2] for line in called.err.splitlines()] == [
        "link.terminals",
        "traffic.0.payload",
        "traffic.2.tcp.sack",
        "traffic.3.kind",
    ]


def test_a_receive_buffer_that_counts_memory_is_the_kernel_s_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Given Linux's tcp_rmem, expect it unchanged: of 6 MiB, 160/256 are the window.

    A window is given as twice the memory, as it is half of that at first.
    """
    (tmp_path / "available").write_text("cubic")
    monkeypatch.setattr(kernel_tcp, "_AVAILABLE", tmp_path / "available")
    bulk = {"kind": "bulk", "direction": "forward", "size": "1 MB"}
    for counts, memory, window in (
        ("memory", "4096 131072 6291456", 3_932_160),
        ("window", "4096 262144 12582912", 6_291_456),
    ):
        flow = {**bulk, "tcp": {"receive_buffer_counts": counts}}
        plan = Plan.resolve(scenario(flow, duration="1 s")).data
        assert requirements.kernel_of(plan).settings["net.ipv4.tcp_rmem"] == memory
        tcp = requirements.tcp_of(plan["flows"][0])
        assert tcp is not None
        assert windows_bytes(tcp)["receive_buffer"] == window


def test_a_missing_congestion_control_is_exit_code_3(
    bentpipe: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "available").write_text("reno bbr\n")
    monkeypatch.setattr(kernel_tcp, "_AVAILABLE", tmp_path / "available")
    monkeypatch.setattr("bentpipe.live.run.flows_of", lambda *_: [])
    called = bentpipe("run", "--engine", "emulate", GEO)
    assert (called.code, called.out) == (EXIT_MACHINE, "")
    assert "has no congestion control cubic (it has reno, bbr)" in called.err
    assert "modprobe tcp_cubic" in called.err


def test_a_machine_without_iperf3_is_exit_code_3(
    bentpipe: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    called = bentpipe("run", "--engine", "emulate", GEO)
    assert called.code == EXIT_MACHINE
    assert "iperf3 is not installed; to fix it: apt install iperf3" in called.err


def test_a_link_above_the_capacity_is_refused(
    bentpipe: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Given 16 Mbit/s and a measured capacity of 4 Mbit/s, expect exit code 3."""
    (tmp_path / "bentpipe").mkdir()
    (tmp_path / "bentpipe" / "capacity.json").write_text('{"tcp_bits_per_second": 4e6}')
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("bentpipe.live.run.flows_of", lambda *_: [])
    monkeypatch.setattr("bentpipe.live.run.kernel_of", lambda _: None)
    called = bentpipe("run", "--engine", "emulate", GEO)
    assert (called.code, called.out) == (EXIT_MACHINE, "")
    assert (
        "the link's rate of 16 Mbit/s is above the measured capacity of this machine" in called.err
    )


def test_intervals_of_iperf3_may_lack_their_sum_or_their_streams() -> None:
    """Given an interval without a sum, and one without streams, expect what the others have."""
    first = {"end": 1.0, "bytes": 700, "snd_cwnd": 14_480, "rtt": 40_000}
    last = {"end": 2.5, "bytes": 300, "snd_cwnd": 28_960, "rtt": 41_000}
    intervals = [{"streams": [first]}, {"streams": []}, {"streams": [last], "sum": {"end": 2.5}}]
    sender = {"end": {"sum_sent": {"bytes": 1_000}}, "intervals": intervals}
    receiver = {"end": {"sum_received": {"bytes": 1_000, "end": 2.5}}, "intervals": intervals}
    report = FlowReport.read_iperf3(sender, receiver)
    assert [sample["time_ns"] for sample in report.samples] == [1_000_000_000, 2_500_000_000]
    assert report.progress == [(0, 0), (1_000_000_000, 700), (2_500_000_000, 1_000)]
