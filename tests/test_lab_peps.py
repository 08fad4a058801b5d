"""PEPs in labs: the daemon splits real connections; skipped without namespaces."""

from __future__ import annotations

import json
import math
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from conftest import Program, User, measures, needs, needs_lab, not_installed
from late import until_on_time
from test_lab import wait_until
from test_live import machine, processes

import bentpipe
from bentpipe import Plan, Result, simulate
from bentpipe.errors import InvalidRunError, MachineError, ScenarioError
from bentpipe.live import gateways
from bentpipe.live.gateways import gateway_hosts, most_connections, pep_settings
from bentpipe.live.local_lab import LocalLab
from bentpipe.live.machine import program
from bentpipe.live.run import check_plan
from bentpipe.results.measures import finished_times_ns

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "scenarios" / "geo-pep.yaml"
MS = 1_000_000
EXIT_MACHINE = 3

# A daemon changes the addresses of no packet: the server prints the client's.
SERVER = """
import socket
listening = socket.create_server(("", 7000))
while True:
    connection, client = listening.accept()
    connection.sendall(client[0].encode())
    connection.close()
"""

LINK: dict[str, Any] = {
    "forward": {"rate": "20 Mbit/s", "delay": "20 ms"},
    "return": {"rate": "20 Mbit/s", "delay": "20 ms"},
}


def scenario(gateways: dict[str, Any], **others: Any) -> dict[str, Any]:
    """A download of a file from a server 20 ms behind the hub."""
    return {
        "name": "file",
        "link": LINK,
        "hosts": {"world": [{"name": "server", "delay": "20 ms", "rate": "100 Mbit/s"}]},
        "gateways": gateways,
        "traffic": [
            {"kind": "fetch", "direction": "forward", "size": "300 kB", "world_host": "server"}
        ],
        "duration": "20 s",
        **others,
    }


def statistics(report: dict[str, Any], pep: str) -> dict[str, int]:
    found: dict[str, int] = report["functions"][pep]["statistics"]
    return found


def needs_programs() -> pytest.MarkDecorator:
    """Skip a test that lacks its client, or `ip` for initial windows."""
    missing = (name for name in ("ip", "curl") if program(name) is None)
    first = next(missing, None)
    return pytest.mark.skipif(first is not None, reason=not_installed(first or ""))


# --- programs in labs ---------------------------------------------------------------------------


@needs_lab
@pytest.mark.unprivileged
@needs_programs()
def test_connections_of_programs_are_split_and_keep_their_addresses() -> None:
    """Given PEPs at both ends, expect the server to see the client's address, and a download.

    A closed port is refused, by both: at the client after a round trip of 80 ms.
    """
    both: dict[str, Any] = {"hub": {"pep": {}}, "terminal": {"pep": {}}}
    with bentpipe.Lab(scenario(both)) as lab:
        assert lab.hosts == ("world", "island", "server", "hub", "terminal-1")
        server = lab.spawn("server", [sys.executable, "-c", SERVER])
        fetch = ["curl", "-s", "-o", "/dev/null", "-w", "%{size_download}"]
        assert lab.run("island", [*fetch, "http://world/bytes/1000000"]).stdout == "1000000"
        asked = ["curl", "-s", "--http0.9", "--retry", "9", "--retry-connrefused"]
        seen = lab.run("island", [*asked, "http://server:7000/"])
        own = lab.run("island", ["hostname", "-I"]).stdout.split()
        assert seen.stdout in own, seen
        refused = lab.run("island", [*fetch, "http://server:7001/"])
        assert refused.returncode == 7, "curl(1): failed to connect to host"

        def are_counted(pep: str) -> bool:
            counted = statistics(lab.report(), pep)
            return counted["split_connections"] >= 3 and counted["refused_connections"] == 1

        for name in ("hub-pep", "terminal-1-pep"):
            wait_until(partial(are_counted, name), f"{name} does not count all connections")
        server.kill()
        server.wait()


@needs_lab
@needs_programs()
def test_a_pep_that_accepts_early_resets_instead_of_refusing() -> None:
    with bentpipe.Lab(scenario({"hub": {"pep": {"early_accept": True}}})) as lab:
        fetch = ["curl", "-s", "-o", "/dev/null", "-w", "%{size_download}"]
        assert lab.run("island", [*fetch, "http://world/bytes/1000"]).stdout == "1000"
        reset = lab.run("island", [*fetch, "http://server:9/"])
        assert reset.returncode == 56, "curl(1): failure in receiving network data"


@pytest.mark.thorough
@needs_lab
@needs_programs()
def test_a_user_without_privileges_can_use_peps(user: User) -> None:
    before, mark = machine(), f"bentpipe-pep-{os.getpid()}"
    user.environment["MARK"] = mark
    fetch = "curl -s -o /dev/null -w %{http_code} http://world/bytes/1000; curl -s http://world:81/"
    report = user.folder / "report.json"
    ran = user(
        *("exec", "--link", "scenarios/geo-pep.yaml", "--statistics", report),
        *("--", "sh", "-c", fetch),
    )
    assert ran.returncode == 7, ran.stderr
    assert ran.stdout == "200"
    counted = statistics(json.loads(report.read_text()), "hub-pep")
    report.unlink()
    # A connection that the server refused was split, too.
    assert (counted["split_connections"], counted["refused_connections"]) == (2, 1)
    wait_until(lambda: processes(mark) == [], "something outlived the lab")
    assert machine() == before


# Takes SIGINT as a shell with a command that goes on would, and then uses the link.
INTERRUPTED = """
import signal, urllib.request
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
print("ready", flush=True)
signal.sigwait([signal.SIGINT])
print(len(urllib.request.urlopen("http://server/bytes/1000", timeout=15).read()))
"""


@needs_lab
def test_ctrl_c_ends_the_program_alone(tmp_path: Path) -> None:
    """Given Ctrl-C and a program that goes on, expect its gateways to go on with it.

    A terminal signals all processes of its foreground process group.
    """
    both: dict[str, Any] = {"pep": {}, "tunnel": {"redundancy": "10 %"}}
    link, report = tmp_path / "link.json", tmp_path / "report.json"
    link.write_text(json.dumps(scenario({"hub": both, "terminal": both})))
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "bentpipe", "exec", "--link", link, "--statistics", report),
            *("--", sys.executable, "-c", INTERRUPTED),
        ],
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        os.killpg(process.pid, signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    assert stdout == "1000\n", stderr
    assert "has ended" not in stderr
    assert process.returncode == 0, stderr
    counted = json.loads(report.read_text())
    assert statistics(counted, "hub-pep")["split_connections"] == 1


@needs_lab
@needs_programs()
def test_a_capture_has_the_packets_of_both_legs(tmp_path: Path) -> None:
    """Given a PEP at the hub, expect the interfaces of the link and of the server, and no PEP."""
    link, capture = tmp_path / "link.json", tmp_path / "packets.pcapng"
    link.write_text(json.dumps(scenario({"hub": {"pep": {}}})))
    command = ["curl", "-s", "--http0.9", "--connect-timeout", "5", "http://server:9/"]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "bentpipe", "exec", "--link", str(link)),
            *("--capture", str(capture), "--", *command),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 7, done.stderr
    names = capture.read_bytes()
    for name in (b"forward.queue", b"return.delivered", b"server.queue"):
        assert name in names
    assert b"pep" not in names


# --- runs ---------------------------------------------------------------------------------------


def emulated(given: dict[str, Any]) -> Result:
    """Run a scenario in real time, also if packets were late."""
    try:
        return bentpipe.emulate(given)
    except InvalidRunError as error:
        result: Result = error.result
        return result


def why_invalid(result: Result) -> str | None:
    return result.invalid


def why_disturbed(result: Result) -> str | None:
    """Say what a machine did to a transfer that no link disturbs: it fits into the queues."""
    if result.invalid is not None:
        return result.invalid
    retransmitted = sum(result.flows["retransmitted_segments"])
    return f"{retransmitted} segments were retransmitted" if retransmitted else None


def time_ms(result: Result) -> float:
    """Return the time of the only exchange."""
    (time_ns,) = finished_times_ns(result, "exchanges")
    return float(time_ns) / MS


def download(*, pep: bool) -> dict[str, Any]:
    """2 MB at 20 Mbit/s and 79 ms each way from a server with a terrestrial RTT of 160 ms."""
    given = bentpipe.Scenario.load(EXAMPLE).to_dict()
    forward = {"rate": "20 Mbit/s", "queue": {"limit": "5 MB"}}
    given["link"] = {"preset": "meo", "forward": forward}
    given["hosts"]["world"][0]["delay"] = "80 ms"
    tcp = {"receive_buffer": "16 MiB", "send_buffer": "16 MiB"}
    fetch = {"kind": "fetch", "direction": "forward", "size": "2 MB", "world_host": "server"}
    given["traffic"] = [{**fetch, "files": 1, "tcp": tcp}]
    given["gateways"] = {"hub": {"pep": {"lan_tcp": tcp, "link_tcp": tcp}}} if pep else {}
    return given


@measures
@needs_programs()
def test_a_pep_saves_what_the_simulator_predicts() -> None:
    """Expect the download to finish sooner by what the simulator predicts, within 10 %.

    The file fits into the queues: no link loses a segment. On a busy machine some runs take a round
    trip longer, with or without 18 retransmitted segments. None is shorter for it, so the shortest
    of up to three counts.
    """
    given = [download(pep=pep) for pep in (False, True)]
    plain, split = (time_ms(simulate(each)) for each in given)
    assert plain - split > 300
    saved = pytest.approx(plain - split, rel=0.1)
    best_ms = [math.inf, math.inf]
    for _ in range(3):
        for number, each in enumerate(given):
            result = until_on_time(partial(emulated, each), why_disturbed)
            best_ms[number] = min(best_ms[number], time_ms(result))
            if each["gateways"]:
                assert_one_connection_was_split(result)
    print(f"simulator: {plain:.0f} ms, with a PEP {split:.0f} ms; kernel: {best_ms} ms")
    assert best_ms[0] - best_ms[1] == saved


def assert_one_connection_was_split(result: Result) -> None:
    """Expect one split connection, whose leg at the sender ends at the hub, as simulated."""
    assert result.flows["delivered_bytes"].to_list() == [2_000_000]
    (hub,) = result.functions
    assert hub["function"] == "hub-pep"
    assert (hub["split_connections"], hub["unsplit_connections"]) == (1, 0)
    assert result.flows["rtt_min_ns"][0] == pytest.approx(160 * MS, rel=0.1)
    names = [place["function"] for place in simulate(download(pep=True)).functions]
    assert [place["function"] for place in result.functions] == names


def two_priorities() -> dict[str, Any]:
    """Two downloads of different priority at 8 Mbit/s and 100 ms, split at the hub."""
    queue = {"discipline": "strict_priority", "classes": 2, "limit": "1 bdp"}
    forward = {"rate": "8 Mbit/s", "delay": "100 ms", "queue": queue}
    flow = {"kind": "bulk", "direction": "forward", "size": "50 MB", "world_host": "server"}
    return {
        **scenario({"hub": {"pep": {}}}),
        "link": {"forward": forward, "return": {"rate": "8 Mbit/s", "delay": "100 ms"}},
        "traffic": [{**flow, "name": f"class {each}", "priority": each} for each in (0, 1)],
        "duration": "5 s",
    }


@measures
@needs_programs()
def test_a_pep_keeps_the_priority_of_a_flow() -> None:
    """Expect of each flow what the simulator has, within 10 %: the second has what the first left.

    That is its slow start alone, until the first flow has filled the link. The servers mark their
    data only once the connection is there, so the SYN does not tell the class.
    """
    simulated = simulate(two_priorities()).flows["delivered_bytes"].to_list()
    assert simulated[0] > 20 * simulated[1]
    result = until_on_time(partial(emulated, two_priorities()), why_invalid)
    delivered = result.flows["delivered_bytes"].to_list()
    print(f"simulator: {simulated} B; kernel: {delivered} B")
    assert delivered == pytest.approx(simulated, rel=0.1)


@pytest.mark.thorough
@needs_lab
@needs_programs()
@pytest.mark.parametrize(
    ("function", "killed", "reason"),
    [
        ("pep", "bentpipe-gate", "the PEP of hub has ended (it was killed)"),
        ("pep", "/proc/self/exe\0worker", "the worker of the PEP of hub has ended or hung"),
        ("tunnel", "/proc/self/exe\0worker", "the worker of the tunnel of hub has ended or hung"),
    ],
)
def test_a_run_with_a_killed_daemon_is_invalid(
    monkeypatch: pytest.MonkeyPatch, function: str, killed: str, reason: str
) -> None:
    """Given a part that is killed while files are fetched, expect the reason, and the results."""
    mark = f"bentpipe-killed-{os.getpid()}"
    monkeypatch.setenv("MARK", mark)

    def running(program: str) -> list[int]:
        found = []
        for process in processes(mark):
            with suppress(OSError):
                if program in Path(f"/proc/{process}/cmdline").read_text():
                    found.append(int(process))
        return found

    def kill() -> None:
        # The programs of flows start when the daemons are ready.
        wait_until(lambda: running("bentpipe.live.exchanges"), "no flow starts")
        for process in running(killed):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    with ThreadPoolExecutor() as threads:
        killing = threads.submit(kill)
        gateways: dict[str, Any] = {"hub": {"pep": {}}}
        if function == "tunnel":
            gateways = {end: {"tunnel": {"redundancy": "10 %"}} for end in ("hub", "terminal")}
        result = emulated(scenario(gateways, duration="6 s"))
        killing.result()
    assert result.invalid is not None
    assert reason in result.invalid
    assert result.state == "invalid"


# --- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pep", "field", "why"),
    [
        ({"link_tcp": {"mss": "1000 B"}}, "link_tcp.mss", "the kernel's is 1.46 kB and cannot be"),
        ({"lan_tcp": {"prr": False}}, "lan_tcp.prr", "the kernel's is true and cannot be set"),
        (
            {"link_tcp": {"receive_buffer": "1 MiB"}},
            "link_tcp.receive_buffer",
            "the kernel has one for all legs",
        ),
        ({"profile": "bsd-1997"}, "lan_tcp.prr", "cannot be set"),
    ],
)
def test_what_the_daemon_cannot_do_is_refused(pep: dict[str, Any], field: str, why: str) -> None:
    with pytest.raises(ScenarioError) as raised:
        check_plan(Plan.resolve(scenario({"hub": {"pep": pep}})))
    message = str(raised.value)
    assert f"gateways.hub.pep.{field}" in message
    assert why in message


def test_a_pep_without_its_programs_names_the_fix(
    bentpipe: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given no ip, which changes initial windows, expect exit code 3 and the package."""
    monkeypatch.setattr(
        shutil, "which", lambda name, **_: None if name == "ip" else f"/usr/bin/{name}"
    )
    window = "gateways.hub.pep.link_tcp.initial_window=32"
    ran = bentpipe("run", "--engine", "emulate", EXAMPLE, "--set", window)
    assert ran.code == EXIT_MACHINE
    assert "apt install iproute2" in ran.err


def test_the_settings_of_legs_are_those_of_the_gateway() -> None:
    """Given a send buffer of 1 MiB, expect twice that for its memory, as socket(7) doubles it."""
    tcp = {"send_buffer": "1 MiB"}
    gateways = {"terminal": {"pep": {"lan_tcp": tcp, "link_tcp": tcp}}}
    plan = Plan.resolve(scenario(gateways)).data
    (settings,) = pep_settings([plan]).values()
    assert re.split(r"\s", dict(settings)["net.ipv4.tcp_wmem"])[-1] == str(2 << 20)
    (terminal,) = gateway_hosts([plan])
    assert terminal.place("pep") == "terminal-1-pep"
    (terminal,) = gateway_hosts([plan, plan])
    assert terminal.place("pep") == "2.terminal-1-pep"


@pytest.mark.parametrize(
    ("files", "connections"),
    [(resource.RLIM_INFINITY, 10_000), (21_026, 10_000), (4_096, 1_535), (1_024, 1)],
)
def test_the_connections_are_within_the_limit_of_open_files(
    files: int, connections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expect half of what the limit leaves besides the 1,026 files of a daemon with one thread."""
    monkeypatch.setattr("resource.getrlimit", lambda _: (256, files))
    assert most_connections({"connections": 10_000}) == connections


@needs_lab
@needs_programs()
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for a lab of a process with threads")
def test_a_daemon_that_does_not_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given a daemon that prints a line and ends, expect that line, and no lab."""
    monkeypatch.setattr(gateways, "_gate_plan", lambda *_: {})
    plan = Plan.resolve(scenario({"hub": {"pep": {}}})).data
    expected = "the PEP of hub does not start: .*missing field"
    with pytest.raises(MachineError, match=expected), LocalLab(plans=[plan]):
        pass


@needs_lab
@needs_programs()
@needs("ethtool")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for a lab of a process with threads")
@pytest.mark.parametrize(("gateways", "state"), [({}, "off"), ({"hub": {"pep": {}}}, "on")])
def test_a_lab_with_a_pep_exchanges_super_packets(
    gateways: dict[str, Any], state: str, tmp_path: Path
) -> None:
    """Expect the device of the world to take segments of 64 KiB where a PEP takes bursts."""
    found = tmp_path / "features"
    with LocalLab(plans=[Plan.resolve(scenario(gateways)).data]) as lab:
        process = lab.spawn("world", ["/bin/sh", "-c", f"ethtool -k link > {found}"])
        assert os.waitpid(process, 0)[1] == 0
    assert f"\ntcp-segmentation-offload: {state}\n" in found.read_text()


@needs_programs()
def test_the_capacity_of_a_lab_with_a_pep_is_that_of_super_packets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a rate beyond the capacity for single packets, expect it to be allowed with a PEP."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kept = tmp_path / "bentpipe" / "capacity.json"
    kept.parent.mkdir()
    kept.write_text('{"tcp_bits_per_second": 1e5, "tcp_super_packets_bits_per_second": 6e9}')
    with_pep = Plan.resolve(scenario({"hub": {"pep": {}}}))
    check_plan(with_pep)
    LocalLab(plans=[with_pep.data]).check()
    with pytest.raises(MachineError, match=r"Mbit/s is above"):
        check_plan(Plan.resolve(scenario({})))


@pytest.mark.system
def test_nothing_of_a_pep_is_imported_for_a_lab_without_one() -> None:
    """Expect a lab of a preset to start without the classes of scenarios."""
    code = "import sys; from bentpipe.live import local_lab; print('pydantic' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
