"""Captures of runs in real time: packets, points and times.

They are read by a parser of this file, which keeps nanoseconds, and by tshark. Skipped where
namespaces cannot be created.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import needs, needs_lab
from test_capture import (
    INTERFACE,
    PACKET,
    blocks,
    needs_tshark,
    packets_of,
    select_points,
    tshark,
)
from test_lab import wait_until

from bentpipe import Result
from bentpipe.results.files import incomplete_message

BENTPIPE = [sys.executable, "-m", "bentpipe"]


def bentpipe(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [*BENTPIPE, *(str(argument) for argument in arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@dataclass(frozen=True)
class Seen:
    """A packet at a point."""

    at_ns: int
    interface: str
    content: bytes
    comment: str


def options(content: bytes) -> dict[int, bytes]:
    found = {}
    while content:
        code, length = (int.from_bytes(content[at : at + 2], "little") for at in (0, 2))
        found[code] = content[4 : 4 + length]
        content = content[4 + (length + 3) // 4 * 4 :]
    return found


def read(path: Path) -> list[Seen]:
    """The packets of a file, in order."""
    names, seen = [], []
    for kind, block in blocks(path):
        body = block[8:-4]
        if kind == INTERFACE:
            names.append(options(body[8:])[2].decode())
        elif kind == PACKET:
            interface, high, low, captured, original = (
                int.from_bytes(body[at : at + 4], "little") for at in range(0, 20, 4)
            )
            assert captured == original, "packets are whole"
            padded = 20 + (captured + 3) // 4 * 4
            comment = options(body[padded:]).get(1, b"").decode()
            content = body[20 : 20 + captured]
            seen.append(Seen(high << 32 | low, names[interface], content, comment))
    return seen


# --- what is in the file ------------------------------------------------------------------------

LINK: dict[str, Any] = {
    "link": {
        "forward": {"rate": "4 Mbit/s", "delay": "20 ms"},
        "return": {
            "rate": "4 Mbit/s",
            "delay": "30 ms",
            "bit_error_rate": 1e-5,
            "queue": {"limit": "20 packets"},
        },
    },
    "gateways": {"hub": {"processor": {"packets_per_second": 5000}}},
}
# 600 datagrams of 1,000 bytes at the IP layer, a millisecond apart: twice what the return carries.
DATAGRAMS, DATAGRAM_BYTES = 600, 1_000
SEND = f"""
import socket, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for number in range({DATAGRAMS}):
    try:
        s.sendto(number.to_bytes(4, "big") + bytes({DATAGRAM_BYTES - 32}), ("world", 9))
    except ConnectionRefusedError:
        pass
    time.sleep(0.001)
time.sleep(0.3)
"""

Captured = tuple[dict[str, Any], Path]


@pytest.fixture(scope="module")
def datagrams(tmp_path_factory: pytest.TempPathFactory) -> Captured:
    """The report and the capture of a stream of datagrams that the link cannot carry."""
    folder = tmp_path_factory.mktemp("live-capture")
    link, report, capture = (folder / name for name in ("link.json", "report.json", "a.pcapng"))
    link.write_text(json.dumps(LINK))
    ran = bentpipe(
        *("exec", "--link", link, "--statistics", report, "--capture", capture, "--"),
        *(sys.executable, "-c", SEND),
    )
    assert ran.returncode == 0, ran.stderr
    assert f"bentpipe: wrote {capture}\n" in ran.stderr
    measured = json.loads(report.read_text())
    assert measured["capture"]["missing_packets"] == 0
    assert sorted(folder.iterdir()) == sorted((link, report, capture))
    return measured, capture


@needs_lab
def test_packets_of_each_interface_are_those_of_the_report(datagrams: Captured) -> None:
    measured, path = datagrams
    seen = read(path)
    assert len(seen) == measured["capture"]["packets"]
    packets = Counter(each.interface for each in seen if not each.comment)
    for name, direction in measured["directions"].items():
        assert packets[f"{name}.delivered"] == direction["delivered_packets"]
        begun = packets[f"{name}.transmitter"] - direction["sent_packets"]
        assert begun == (direction["sending_bytes"] > 0)
        waiting = packets[f"{name}.queue"] - packets[f"{name}.transmitter"]
        assert waiting == direction["queue_packets"]
    # What leaves the island goes through the hub's processor last.
    assert packets["hub-processor.queue"] == packets["hub-processor.forwarded"]
    assert packets["hub-processor.queue"] >= packets["return.delivered"]
    assert [each.at_ns for each in seen] == sorted(each.at_ns for each in seen)


@needs_lab
def test_drops_have_comments_with_their_cause(datagrams: Captured) -> None:
    """Given twice the rate, expect drops by the queue; given 1e-5, 8 % of packets lost."""
    measured, path = datagrams
    found = Counter((each.interface, each.comment) for each in read(path) if each.comment)
    dropped = measured["directions"]["return"]["dropped_packets"]
    # A busy machine sends more slowly than a datagram each millisecond.
    assert dropped["queue_full"] > 0
    assert dropped["bit_error"] > 0
    assert measured["directions"]["forward"]["dropped_packets"] == {}
    assert found == {
        ("return.queue", "dropped: queue_full"): dropped["queue_full"],
        ("return.lost", "dropped: bit_error"): dropped["bit_error"],
    }


@needs_lab
def test_times_are_those_of_the_scenario_to_the_nanosecond(datagrams: Captured) -> None:
    """Given 1,000 bytes at 4 Mbit/s and 30 ms, expect 32 ms from the first bit to the end.

    Expect one packet sent 2 ms after the other, and 200 µs in a processor of 5,000 a second.
    """
    _, path = datagrams
    points: dict[bytes, dict[str, int]] = {}
    for each in read(path):
        if len(each.content) == DATAGRAM_BYTES and each.content[9] == 17:
            points.setdefault(each.content[28:32], {})[each.interface] = each.at_ns
    assert len(points) == DATAGRAMS, "every datagram was seen, and each is another"
    sent = [at for at in points.values() if "return.transmitter" in at]
    delivered = [at for at in sent if "return.delivered" in at]
    assert len(delivered) > DATAGRAMS / 4
    for at in delivered:
        assert at["return.delivered"] - at["return.transmitter"] == 32_000_000
        assert at["hub-processor.queue"] == at["return.delivered"]
        assert at["hub-processor.cpu"] >= at["hub-processor.queue"]
        assert at["hub-processor.forwarded"] - at["hub-processor.cpu"] == 200_000
        # The queue holds 20 packets, and another one is being sent.
        assert 0 <= at["return.transmitter"] - at["return.queue"] <= 21 * 2_000_000
    starts = sorted(at["return.transmitter"] for at in sent)
    assert min(later - start for start, later in itertools.pairwise(starts)) == 2_000_000


@needs_lab
@needs_tshark
def test_tshark_reads_the_same_packets(datagrams: Captured) -> None:
    _, path = datagrams
    found = [
        (
            each["frame.interface_name"],
            each["frame.comment"],
            int(each["frame.time_epoch"].replace(".", "")),
        )
        for each in packets_of(path)
    ]
    assert found == [(each.interface, each.comment, each.at_ns) for each in read(path)]


@needs_lab
@needs_tshark
@needs("curl")
def test_captured_bytes_are_those_of_the_programs(tmp_path: Path) -> None:
    """Given a download over two hops, expect tshark to reassemble the page that curl received.

    The page is that of the island's side; checksums hold at every point. One packet at five points
    cannot be put together to a stream, so that is left out there.
    """
    path, page = tmp_path / "http.pcapng", tmp_path / "page"
    ran = bentpipe(
        *("exec", "--link", "leo", "--link", "leo", "--capture", path, "--"),
        *("curl", "-s", "-o", page, "http://world/bytes/100000"),
    )
    assert ran.returncode == 0, ran.stderr
    assert page.stat().st_size == 100_000
    island = select_points(path, "2.return.queue", "2.forward.delivered")
    exported = ("--export-objects", f"http,{tmp_path / 'objects'}", "-T", "fields")
    names = ("http.request.full_uri", "http.response.code", "_ws.malformed", "_ws.expert.severity")
    shown = tshark(island, *exported, *(word for name in names for word in ("-e", name)))
    asked, answered, malformed, severities = map(set, zip(*shown, strict=True))
    assert (asked, answered) == ({"", "http://world/bytes/100000"}, {"", "200"})
    assert malformed == {""}
    assert max(int(word or 0) for each in severities for word in each.split(",")) < 0x800000
    (found,) = (tmp_path / "objects").iterdir()
    assert found.read_bytes() == page.read_bytes()
    packets = packets_of(path, "-o", "tcp.desegment_tcp_streams:FALSE")
    assert {each["ip.checksum.status"] for each in packets} == {"1"}
    assert {each["tcp.checksum.status"] for each in packets} == {"1"}
    assert not any(each["_ws.malformed"] for each in packets)
    assert {"forward.queue", "2.forward.queue"} <= {
        each["frame.interface_name"] for each in packets
    }


def has_packets(path: Path) -> bool:
    """Return whether a capture that is being written has some ten packets."""
    part = path.with_name(f"{path.name}.part")
    return part.exists() and part.stat().st_size > 10_000


# --- the file -----------------------------------------------------------------------------------


@needs_lab
def test_a_killed_run_does_not_replace_an_existing_file(tmp_path: Path) -> None:
    path = tmp_path / "a.pcapng"
    path.write_bytes(b"of yesterday")
    command = [*BENTPIPE, "exec", "--link", "leo", "--capture", str(path), "--"]
    load = "curl -s -o /dev/null http://world/bytes/100000"
    talk = f"{load}; echo ready; while :; do {load}; done"
    with subprocess.Popen(
        [*command, "sh", "-c", talk], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"ready\n"
        running.kill()
    assert path.read_bytes() == b"of yesterday"


@needs_lab
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_ended_keeps_what_was_captured(sent: signal.Signals, tmp_path: Path) -> None:
    path = tmp_path / "a.pcapng"
    command = [*BENTPIPE, "exec", "--link", "leo", "--capture", str(path), "--"]
    # A signal just before a sleep starts does not end it, so no sleep is long.
    talk = f"{SEND}\nprint('ready', flush=True)\nwhile True: time.sleep(0.1)"
    with subprocess.Popen(
        [*command, sys.executable, "-c", talk], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"ready\n"
        running.send_signal(sent)
        _, stderr = running.communicate(timeout=30)
    assert running.returncode != 0
    assert f"bentpipe: wrote {path}\n".encode() in stderr
    assert Counter(each.interface for each in read(path))["return.delivered"] > 0
    assert list(tmp_path.iterdir()) == [path]


@needs_lab
@pytest.mark.parametrize("where", ["missing/a.pcapng", "a-file/a.pcapng", "."])
def test_a_capture_that_cannot_be_written_is_a_failure_of_exec(where: str, tmp_path: Path) -> None:
    (tmp_path / "a-file").touch()
    ran = bentpipe("exec", "--link", "leo", "--capture", tmp_path / where, "--", "echo", "ran")
    assert (ran.returncode, ran.stdout) == (125, "")
    assert ran.stderr.startswith(f"bentpipe: {tmp_path / where}: ")
    assert len(ran.stderr.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["a-file"]


FETCH = "curl -s -o /dev/null http://world/bytes/2000000; exit 7"


@pytest.mark.thorough
@needs_lab
@pytest.mark.unprivileged
@needs("curl")
@pytest.mark.parametrize(
    ("limit", "error"),
    [
        ('mount -t tmpfs -o size=3m none "$0"', errno.ENOSPC),
        # In units of 512 or 1,024 bytes, as the shell has it; SIGXFSZ is ignored by Python.
        ("ulimit -f 2048", errno.EFBIG),
    ],
)
def test_a_full_disk_keeps_what_was_captured_the_figures_and_the_exit_code(
    limit: str, error: int, tmp_path: Path
) -> None:
    """Given 2 MB over a link and a disk for less, expect the packets that fit."""
    full, kept = tmp_path / "full", tmp_path / "kept"
    full.mkdir()
    script = f'{limit} && {{ "$@"; code=$?; cp -r "$0" "{kept}"; exit $code; }}'
    own = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    command = ["unshare", "--mount", *own, "sh", "-c", script, str(full), *BENTPIPE, "exec"]
    command += ["--link", "leo", "--capture", str(full / "a.pcapng")]
    # On the same disk, which the capture has filled.
    command += ["--statistics", str(full / "report.json"), "--", "sh", "-c", FETCH]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 7, ran.stderr
    assert f"a.pcapng is incomplete: {os.strerror(error)}; it has the first " in ran.stderr
    assert "bentpipe: forward: " in ran.stderr
    assert sorted(path.name for path in kept.iterdir()) == ["a.pcapng", "report.json"]
    report = json.loads((kept / "report.json").read_text())
    assert report["directions"]["forward"]["delivered_bytes"] > 2_000_000
    assert report["capture"]["error_number"] == error
    assert len(read(kept / "a.pcapng")) == report["capture"]["packets"] > 100


@needs_lab
@pytest.mark.parametrize("name", ["a.pcapng", "a.pcapng.part"])
def test_a_capture_does_not_follow_symbolic_links(name: str, tmp_path: Path) -> None:
    """Given a link to another file under either name of the capture, expect that file untouched."""
    path, other = tmp_path / "a.pcapng", tmp_path / "other"
    other.write_text("of another program")
    (tmp_path / name).symlink_to(other)
    ran = bentpipe("exec", "--link", "leo", "--capture", path, "--", "true")
    assert ran.returncode == 0, ran.stderr
    assert other.read_text() == "of another program"
    assert not path.is_symlink()
    assert read(path) == []
    assert sorted(tmp_path.iterdir()) == [path, other]


def test_missing_packets_are_reported() -> None:
    captured = {"packets": 9_000, "missing_packets": 1_000, "error_number": None}
    message = incomplete_message(Path("a.pcapng"), {"capture": captured})
    assert message is not None
    assert message.startswith("a.pcapng lacks 1,000 of 10,000 packets at points: it could not be")
    full = captured | {"error_number": errno.ENOSPC}
    assert incomplete_message(Path("a.pcapng"), {"capture": full}) == (
        "a.pcapng is incomplete: No space left on device; it has the first 9,000 packets at "
        "points; the link was not delayed"
    )
    assert incomplete_message(None, {"capture": None}) is None
    assert incomplete_message(Path("a"), {"capture": captured | {"missing_packets": 0}}) is None


# --- scenarios ----------------------------------------------------------------------------------

CALL: dict[str, Any] = {
    "link": {"preset": "leo", "return": {"bit_error_rate": 1e-5}},
    "traffic": [
        {
            "kind": "constant_rate",
            "direction": "return",
            "rate": "2 Mbit/s",
            "payload": "1000 B",
            "duration": "1 s",
        }
    ],
    "duration": "10 s",
}


@needs_lab
@needs("iperf3")
def test_an_emulated_scenario_is_captured(tmp_path: Path) -> None:
    """Expect the packets of the tables in the file, and iperf3's control connection in neither."""
    scenario, out, path = (tmp_path / name for name in ("call.json", "out", "a.pcapng"))
    scenario.write_text(json.dumps(CALL))
    ran = bentpipe("run", "--engine", "emulate", scenario, "--out", out, "--capture", path)
    assert ran.returncode in {0, 4}, ran.stderr
    assert f"bentpipe: wrote {path}\n" in ran.stderr
    seen = read(path)
    result = Result.load(out)
    captured = result.manifest["emulation"]["capture"]
    assert captured == {"packets": len(seen), "missing_packets": 0, "error_number": None}
    packets = Counter((each.interface, each.comment) for each in seen)
    for row in result.directions.to_dicts():
        name = row["direction"]
        assert packets[f"{name}.delivered", ""] == row["delivered_packets"]
        assert packets[f"{name}.lost", "dropped: bit_error"] == row["dropped_bit_error_packets"]
    assert packets["return.delivered", ""] > 200
    assert {each.content[9] for each in seen} == {17}, "all is UDP"


@pytest.mark.thorough
@needs_lab
@needs("iperf3")
def test_ctrl_c_keeps_what_was_captured_of_a_scenario(tmp_path: Path) -> None:
    scenario, path = tmp_path / "call.json", tmp_path / "a.pcapng"
    longer = CALL["traffic"][0] | {"duration": "60 s"}
    scenario.write_text(json.dumps(CALL | {"traffic": [longer], "duration": "90 s"}))
    command = [*BENTPIPE, "run", "--engine", "emulate", str(scenario), "--capture", str(path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        wait_until(lambda: has_packets(path), "nothing was captured")
        running.send_signal(signal.SIGINT)
        _, stderr = running.communicate(timeout=30)
    assert running.returncode == 130, stderr
    assert f"interrupted; what was recorded is in {path}" in stderr
    assert Counter(each.interface for each in read(path))["return.delivered"] > 0
    assert sorted(tmp_path.iterdir()) == [path, scenario]
