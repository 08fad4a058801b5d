"""Captures, read by another program: tshark sees what the result counts."""

from __future__ import annotations

import collections
import functools
import re
import resource
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import EVERY, ROOT, SMALL, Program, needs

from bentpipe import Result, Scenario, simulate
from bentpipe.cli.progress import Progress
from bentpipe.errors import UsageError

GEO = ROOT / "scenarios" / "geo-bulk.yaml"
SECTION_HEADER = b"\x0a\x0d\x0d\x0a"
# Kinds of blocks.
INTERFACE, PACKET = 1, 6

needs_tshark = needs("tshark")

# Each kind of loss: in the queue at both ends of it, on the channel, in a processor.
CODEL: dict[str, Any] = SMALL | {
    "link": {
        "forward": {"rate": "4 Mbit/s", "delay": "20 ms", "queue": {"discipline": "codel"}},
        "return": {"rate": "1 Mbit/s", "delay": "20 ms"},
    }
}
FQ_CODEL: dict[str, Any] = SMALL | {
    "link": {
        "forward": {
            "rate": "4 Mbit/s",
            "delay": "20 ms",
            "bit_error_rate": 1e-6,
            "queue": {"discipline": "fq_codel", "limit": "20 packets"},
        },
        "return": {"rate": "1 Mbit/s", "delay": "20 ms"},
    }
}
STOPPED: dict[str, Any] = SMALL | {"duration": "700 ms"}
CONFERENCE: dict[str, Any] = {
    "link": {"terminals": 3, "preset": "leo"},
    "traffic": [
        {
            "kind": "conference",
            "participants": 3,
            "rate": "100 kbit/s",
            "payload": "500 B",
            "duration": "2 s",
        }
    ],
    "duration": "5 s",
}
# A column of drops by cause; `dropped_packets` is their sum.
CAUSE = re.compile(r"dropped_(\w+)_packets")

RUNS: dict[str, dict[str, Any]] = {
    "small": SMALL,
    "every": EVERY,
    "codel": CODEL,
    "fq-codel": FQ_CODEL,
    "stopped": STOPPED,
    "conference": CONFERENCE,
}


Captured = tuple[Result, Path]


@pytest.fixture(scope="session")
def capture_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Captured]:
    """The result and the capture of a run by name, simulated once for all tests."""
    folder = tmp_path_factory.mktemp("captures")

    @functools.cache
    def capture(name: str) -> Captured:
        path = folder / f"{name}.pcapng"
        return simulate(RUNS[name], capture=path), path

    return capture


@pytest.fixture(params=RUNS)
def captured(request: pytest.FixtureRequest, capture_of: Callable[[str], Captured]) -> Captured:
    """A result and its capture, of each run."""
    return capture_of(request.param)


def tshark(path: Path, *arguments: str) -> list[list[str]]:
    """What tshark prints, in lines of fields; it must not complain."""
    command = ["tshark", "-n", "-r", str(path), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    messages = [line for line in done.stderr.splitlines() if "Running as user" not in line]
    assert (done.returncode, messages) == (0, [])
    return [line.split("\t") for line in done.stdout.splitlines()]


def fields(path: Path, *names: str, where: str = "") -> list[list[str]]:
    """These fields of the packets ``where`` a display filter holds."""
    chosen = [word for name in names for word in ("-e", name)]
    only = ("-Y", where) if where else ()
    return tshark(path, *only, "-T", "fields", *chosen)


def blocks(path: Path) -> Iterator[tuple[int, bytes]]:
    """The kind and all bytes of each block of a capture, which must end with a whole one."""
    content = memoryview(path.read_bytes())
    while content:
        length = int.from_bytes(content[4:8], "little")
        assert content[length - 4 : length] == content[4:8]
        yield int.from_bytes(content[:4], "little"), bytes(content[:length])
        content = content[length:]


def select_points(path: Path, *points: str) -> Path:
    """Write a capture of the packets at some interfaces beside that of all."""
    selected = path.with_name("selected.pcapng")
    with selected.open("wb") as file:
        chosen: list[bool] = []
        for kind, block in blocks(path):
            if kind == INTERFACE:
                chosen.append(any(point.encode() in block for point in points))
            if kind != PACKET or chosen[int.from_bytes(block[8:12], "little")]:
                file.write(block)
    return selected


FIELDS = (
    *("frame.interface_name", "frame.comment", "frame.time_epoch", "_ws.malformed"),
    *("_ws.expert.severity", "ip.src", "ip.dst", "ip.checksum.status", "udp.dstport"),
    *("udp.srcport", "udp.length", "tcp.stream", "tcp.seq", "tcp.len", "tcp.checksum.status"),
    *("tcp.flags.syn", "tcp.dstport", "tcp.window_size", "tcp.options.mss_val"),
    *("tcp.options.wscale.shift", "tcp.options.sack_perm", "tcp.options.timestamp.tsval"),
    *("tcp.options.sack_le", "tcp.options.sack_re"),
)


@functools.cache
def packets_of(path: Path, *options: str) -> list[dict[str, str]]:
    """The fields of each packet of a capture, read once: a process of tshark takes long to start.

    Fields that a packet does not have are empty.
    """
    check = ("-o", "ip.check_checksum:TRUE", "-o", "tcp.check_checksum:TRUE")
    chosen = [word for name in FIELDS for word in ("-e", name)]
    rows = tshark(path, *check, *options, "-T", "fields", *chosen)
    return [dict(zip(FIELDS, row, strict=True)) for row in rows]


# --- what tshark sees ---------------------------------------------------------------------------


@pytest.mark.system
@needs_tshark
def test_nothing_is_malformed_and_every_checksum_holds(captured: Captured) -> None:
    packets = packets_of(captured[1])
    assert {each["_ws.malformed"] for each in packets} == {""}
    # Protocols count the errors that they find: 0x800000 and above.
    severities = {word for each in packets for word in each["_ws.expert.severity"].split(",")}
    assert max(int(word or 0) for word in severities) < 0x800000
    assert {each["ip.checksum.status"] for each in packets} == {"1"}
    sent = [float(each["frame.time_epoch"]) for each in packets]
    assert sent == sorted(sent)


@pytest.mark.system
@needs_tshark
def test_checksums_hold_where_all_of_a_segment_is_captured(
    capture_of: Callable[[str], Captured],
) -> None:
    """An acknowledgement has no payload: nothing of it is cut off."""
    _, path = capture_of("small")
    whole = Counter(
        each["tcp.checksum.status"] for each in packets_of(path) if each["tcp.len"] == "0"
    )
    assert whole["1"] == whole.total() > 1000


@pytest.mark.system
@needs_tshark
def test_packets_of_each_interface_are_those_of_the_result(captured: Captured) -> None:
    result, path = captured
    packets = Counter(each["frame.interface_name"] for each in packets_of(path))
    for direction in result.directions.to_dicts():
        name = direction["direction"]
        assert packets[f"{name}.queue"] == direction["received_packets"]
        assert packets[f"{name}.delivered"] == direction["delivered_packets"]
        # When a run is stopped, one packet may have begun and not ended.
        begun = packets[f"{name}.transmitter"] - direction["sent_packets"]
        assert 0 <= begun <= (not result.manifest["traffic_ended"])
    for processor in result.processors.to_dicts():
        name = processor["processor"]
        both = {
            what: processor[f"{what}_lan_packets"] + processor[f"{what}_link_packets"]
            for what in ("received", "forwarded")
        }
        assert packets[f"{name}.queue"] == both["received"]
        assert packets[f"{name}.forwarded"] == both["forwarded"]


@pytest.mark.system
@needs_tshark
def test_drops_have_comments_with_their_cause(captured: Captured) -> None:
    result, path = captured
    found = Counter(
        (each["frame.interface_name"].rpartition(".")[0], each["frame.comment"])
        for each in packets_of(path)
        if each["frame.comment"]
    )
    expected: Counter[tuple[str, str]] = Counter()
    for direction in result.directions.to_dicts():
        name = direction["direction"]
        for column, packets in direction.items():
            if cause := CAUSE.fullmatch(column):
                expected[name, f"dropped: {cause[1]}"] += packets
    for processor in result.processors.to_dicts():
        name = processor["processor"]
        dropped = processor["dropped_lan_packets"] + processor["dropped_link_packets"]
        expected[name, "dropped: processor_overload"] += dropped
    # The sign leaves out causes that did not occur.
    assert found == +expected


def test_the_runs_above_have_drops_of_many_causes(capture_of: Callable[[str], Captured]) -> None:
    causes = set()
    for name in RUNS:
        result, _ = capture_of(name)
        causes |= {
            cause[1]
            for column in result.directions.columns
            if (cause := CAUSE.fullmatch(column)) and result.directions[column].sum() > 0
        }
    assert {"queue_full", "bit_error", "red", "codel"} <= causes
    every, _ = capture_of("every")
    assert every.processors["dropped_lan_packets"].sum() > 0


@pytest.mark.system
@needs_tshark
def test_a_stream_carries_the_bytes_that_the_flow_delivered(captured: Captured) -> None:
    """The bytes of a direction are those of different numbers that arrived whole."""
    result, path = captured
    names = result.manifest["names"]["directions"]
    processors = result.manifest["names"]["places"][len(names) :]
    for number, flow in enumerate(result.plan["flows"]):
        forward = flow["direction"] == "forward"
        conference = flow["workload"]["kind"] == "conference"
        terminal = flow["terminal"]
        # What a participant of a conference is given comes from the hub.
        to_the_island = forward or conference
        point = f"{names[0 if to_the_island else 1 + terminal]}.delivered"
        beyond = f"terminal-{terminal + 1}-processor" if to_the_island else "hub-processor"
        if beyond in processors:
            point = f"{beyond}.forwarded"
        side = "ip.src" if to_the_island else "ip.dst"
        # The world's host of each flow is its own.
        packets = [
            each
            for each in packets_of(path)
            if each["frame.interface_name"] == point and each[side] == f"10.0.0.{number + 1}"
        ]
        assert _bytes(packets) == result.flows["delivered_bytes"][number], flow["name"]


def _bytes(packets: list[dict[str, str]]) -> int:
    total = 0
    arrived: dict[str, set[tuple[int, int]]] = collections.defaultdict(set)
    for each in packets:
        # The flow of web pages is TCP: its lookups of names do not count.
        if each["udp.length"] and "53" not in {each["udp.srcport"], each["udp.dstport"]}:
            total += int(each["udp.length"]) - 8
        if size := int(each["tcp.len"] or 0):
            first = int(each["tcp.seq"])
            arrived[each["tcp.stream"]].add((first, first + size))
    for ranges in arrived.values():
        # In order from the start, as the application gets them.
        next_byte = 1
        for start, end in sorted(ranges):
            if start > next_byte:
                break
            next_byte = max(next_byte, end)
        total += next_byte - 1
    return total


@pytest.mark.system
@needs_tshark
def test_every_connection_is_a_stream(capture_of: Callable[[str], Captured]) -> None:
    """Two transfers, six files over a connection each, and the connections of web pages."""
    result, path = capture_of("every")
    streams = {each["tcp.stream"] for each in packets_of(path)} - {""}
    pages = result.tables["pages"]["connections"]
    assert pages.sum() > pages.len() == 3
    assert len(streams) == 2 + 6 + pages.sum()


@pytest.mark.system
@needs_tshark
def test_each_page_looks_up_a_name(capture_of: Callable[[str], Captured]) -> None:
    """Given three pages, expect three queries of 44 bytes and their answers of 60, by UDP."""
    result, path = capture_of("every")
    found = [
        (each["udp.dstport"] == "53", each["udp.length"])
        for each in packets_of(path)
        if each["udp.length"]
        and each["frame.interface_name"] in {"forward.delivered", "return-1.delivered"}
    ]
    assert sorted(found) == [(False, "68")] * 3 + [(True, "52")] * 3
    assert result.tables["pages"]["resolved_ns"].null_count() == 0


@pytest.mark.system
@needs_tshark
def test_tshark_finds_the_retransmissions_that_are_counted(tmp_path: Path) -> None:
    """At the sender's side of the link. tshark calls some of them out of order, by their time.

    Given a slow start that overshoots by a window, as the RFCs' does there.
    """
    path, settings = tmp_path / "geo.pcapng", ("traffic.0.tcp.stack=rfc", "traffic.0.size=6MB")
    result = simulate(Scenario.load(GEO, settings=settings), capture=path)
    again = fields(
        select_points(path, "forward.queue", "return.delivered"),
        "tcp.seq",
        where="tcp.analysis.retransmission or tcp.analysis.out_of_order",
    )
    counted = result.flows["retransmitted_segments"][0]
    assert counted > 500
    assert len(again) == counted


@pytest.mark.system
@needs_tshark
def test_the_window_of_the_handshake_is_scaled(capture_of: Callable[[str], Captured]) -> None:
    _, path = capture_of("small")
    packets = packets_of(path)
    (syn,) = (
        each
        for each in packets
        if each["frame.interface_name"] == "forward.queue" and each["tcp.flags.syn"] == "1"
    )
    assert syn["tcp.options.mss_val"] == "1460"
    options = ("wscale.shift", "sack_perm", "timestamp.tsval")
    assert all(syn[f"tcp.options.{name}"] for name in options)
    scaled = [
        int(each["tcp.window_size"])
        for each in packets
        if each["tcp.flags.syn"] == "0" and int(each["tcp.dstport"]) >= 49152
    ]
    assert max(scaled) > 65_535
    assert any(each["tcp.options.sack_le"] and each["tcp.options.sack_re"] for each in packets)


# --- the file -----------------------------------------------------------------------------------


def test_the_same_run_gives_the_same_bytes_and_capturing_changes_nothing(tmp_path: Path) -> None:
    paths = [tmp_path / "a.pcapng", tmp_path / "b.pcapng"]
    results = [simulate(EVERY, capture=path) for path in paths]
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert paths[0].read_bytes().startswith(SECTION_HEADER)
    alone = simulate(EVERY)
    assert all(alone.tables[name].equals(table) for name, table in results[0].tables.items())
    assert sorted(tmp_path.iterdir()) == paths


def test_run_captures_and_says_so(bentpipe: Program, tmp_path: Path) -> None:
    path = tmp_path / "geo.pcapng"
    path.write_bytes(b"of yesterday")
    called = bentpipe("run", GEO, "--capture", path, "--set", "traffic.0.size=10kB")
    assert (called.code, called.err) == (0, f"bentpipe: wrote {path}\n")
    assert path.read_bytes().startswith(SECTION_HEADER)
    assert sorted(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("where", ["missing/geo.pcapng", "a-file/geo.pcapng", "."])
def test_a_capture_that_cannot_be_written_is_exit_code_2(
    where: str, bentpipe: Program, tmp_path: Path
) -> None:
    (tmp_path / "a-file").touch()
    called = bentpipe("run", GEO, "--capture", tmp_path / where)
    assert (called.code, called.out) == (2, "")
    assert called.err.startswith(f"bentpipe: {tmp_path / where}: ")
    assert len(called.err.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["a-file"]


def test_a_full_disk_ends_the_run_and_leaves_what_was_there(tmp_path: Path) -> None:
    """Given no more than 10,000 bytes for each file, expect the message and yesterday's capture."""
    path = tmp_path / "geo.pcapng"
    path.write_bytes(b"of yesterday")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Python ignores the signal that comes with the error, SIGXFSZ.
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(UsageError, match=r"geo\.pcapng: cannot be written: File too large"):
            simulate(GEO, capture=path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == b"of yesterday"
    assert list(tmp_path.iterdir()) == [path]


def test_a_bad_scenario_captures_nothing(bentpipe: Program, tmp_path: Path) -> None:
    path = tmp_path / "geo.pcapng"
    called = bentpipe("run", GEO, "--capture", path, "--set", "traffic.0.size=-1")
    assert called.code == 2
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_keeps_what_was_captured(
    bentpipe: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def send_signal(_progress: Progress, done: float) -> None:
        if done > 0:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Progress, "fraction", send_signal)
    path = tmp_path / "slow.pcapng"
    slow = ("--set", "traffic.0.size=100GB", "--set", "duration=100000s")
    called = bentpipe("run", GEO, "--capture", path, *slow)
    assert called.code == 130
    assert called.err.endswith(f"interrupted; what was recorded is in {path}\n")
    assert sorted(tmp_path.iterdir()) == [path]
    kinds = Counter(kind for kind, _ in blocks(path))
    # Those of two directions, and enhanced packets.
    assert kinds[INTERFACE] == 8
    assert kinds[PACKET] > 0
