"""Labs on machines that lack something, and failures; skipped without namespaces."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

import pytest
from conftest import User, needs, needs_lab
from test_lab import a_lab, status, wait_until
from test_live import BENTPIPE, bentpipe, machine, processes

from bentpipe.errors import MachineError
from bentpipe.live import sockets, uplink

pytestmark = pytest.mark.system

EXIT_MACHINE, EXIT_INVALID, EXIT_FAILED = 3, 4, 125

# Deletes the device of the lab.
DELETE = "ip link del dev link; echo deleted; exec sleep 60"


@pytest.fixture(autouse=True)
def own_labs(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the labs of a test apart from those of the user."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("run")))


# -- Any user ----------------------------------------------------------------------------------


@needs_lab
@needs("ip")
@needs("setpriv")
def test_a_user_without_privileges_home_or_session_can_use_labs(user: User) -> None:
    before, mark = machine(), f"bentpipe-user-{os.getpid()}"
    user.environment["MARK"] = mark
    ran = user("exec", "--link", "leo", "--", "sh", "-c", "exit 7")
    assert ran.returncode == 7, ran.stderr
    made = user("lab", "up", "sat", "--link", "leo")
    assert made.returncode == 0, made.stderr
    assert "is up" in made.stderr
    try:
        assert user("lab", "list").stdout.startswith("sat\tleo\t")
        seen = user("lab", "exec", "sat", "--", "cat", "/proc/net/dev")
        assert " link:" in seen.stdout
        assert user("lab", "set", "sat", "link.forward.delay=1ms").returncode == 0
        failed = user("lab", "exec", "sat", "--", "sh", "-c", DELETE)
        assert failed.returncode == EXIT_FAILED
        assert "the link has failed" in failed.stderr
    finally:
        ended = user("lab", "down", "sat")
    assert ended.returncode == 0, ended.stderr
    assert "forward: " in ended.stderr
    assert user("lab", "list").stdout == ""
    assert [path.name for path in user.folder.rglob("*.sock")] == []
    wait_until(lambda: processes(mark) == [], "something outlived the lab")
    assert machine() == before


# -- A link that fails -------------------------------------------------------------------------


def seconds_until_the_end(command: Sequence[str], code: int) -> tuple[float, str]:
    """Run a command that deletes the device; return the time from there to its end, and stderr."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "deleted\n"
        start = time.monotonic()
        _, stderr = running.communicate(timeout=30)
        seconds = time.monotonic() - start
    assert running.returncode == code, stderr
    return seconds, stderr


@needs_lab
@needs("ip")
@pytest.mark.parametrize("side", ["world", "island"])
def test_a_deleted_device_ends_the_program(side: str, tmp_path: Path) -> None:
    """Given a program of 60 s, expect its end with that of the link, and the report."""
    mark, report = f"bentpipe-deleted-{os.getpid()}", tmp_path / "report.json"
    command = ["env", f"MARK={mark}", *BENTPIPE, "exec", "--link", "leo", "--host", side]
    command += ["--statistics", str(report), "--", "sh", "-c", DELETE]
    seconds, stderr = seconds_until_the_end(command, EXIT_FAILED)
    assert "INVALID: the link has failed: the device link was deleted inside the lab" in stderr
    assert seconds < 20, "it was waited for"
    assert json.loads(report.read_text())["invalid"].startswith("the link has failed")
    wait_until(lambda: processes(mark) == [], "a program outlived its link")


@needs_lab
@needs("ip")
def test_a_lab_reports_its_deleted_device_and_ends() -> None:
    mark, deleted = f"bentpipe-deleted-{os.getpid()}", "the device link was deleted inside the lab"
    before = machine()
    with a_lab("sat", "--link", "leo") as daemon:
        run = ["env", f"MARK={mark}", *BENTPIPE, "lab", "exec", "sat"]
        with subprocess.Popen([*run, "--", "sleep", "60"], stderr=subprocess.PIPE) as other:
            # The command, the supervisor of its program, and the program.
            wait_until(lambda: len(processes(mark)) == 3, "it does not start")
            seconds, stderr = seconds_until_the_end([*run, "--", "sh", "-c", DELETE], EXIT_FAILED)
            assert deleted in stderr
            assert seconds < 20, "it was not waited for"
            _, stderr_other = other.communicate(timeout=30)
            assert other.returncode == EXIT_FAILED
            assert deleted in stderr_other.decode()
        assert processes(mark) == []
        assert deleted in bentpipe("lab", "list").stdout
        (row,) = json.loads(bentpipe("lab", "list", "--json").stdout)
        assert deleted in row["failure"]
        assert deleted in status("sat")["report"]["invalid"]
        change = ["set", "sat", "link.forward.delay=1ms"]
        for verb, code in ((["exec", "sat", "--", "true"], EXIT_FAILED), (change, EXIT_INVALID)):
            refused = bentpipe("lab", *verb)
            assert (refused.returncode, deleted in refused.stderr) == (code, True)
        ended = bentpipe("lab", "down", "sat")
        assert (ended.returncode, deleted in ended.stderr) == (0, True)
        wait_until(lambda: not Path(f"/proc/{daemon}").exists(), "it is not gone")
        assert list(sockets.folder().glob("*.sock")) == []
    assert machine() == before


@pytest.mark.thorough
@needs_lab
def test_a_lab_that_does_not_reply_is_killed() -> None:
    """Given a stopped daemon and a program in the lab, expect both to be killed, and a message."""
    mark, before = f"bentpipe-stopped-{os.getpid()}", machine()
    with a_lab("sat", "--link", "leo") as daemon:
        leave = f"MARK={mark} sleep 60 > /dev/null 2>&1 &"
        assert bentpipe("lab", "exec", "sat", "--", "sh", "-c", leave).returncode == 0
        os.kill(daemon, signal.SIGSTOP)
        ended = bentpipe("lab", "down", "sat")
        assert ended.returncode == EXIT_MACHINE
        assert "does not reply" in ended.stderr
        assert "it was killed" in ended.stderr
        wait_until(lambda: not Path(f"/proc/{daemon}").exists(), "it is not gone")
        wait_until(lambda: processes(mark) == [], "a program outlived its lab")
        assert list(sockets.folder().glob("*.sock")) == []
    assert machine() == before


# -- Many connections --------------------------------------------------------------------------

# Opens connections, a few at a time so that the link drops none, and no longer waits for them
# once they are not accepted; says so, and holds them until its input ends.
HOLD = """
import select, socket, sys
count, kind, address = int(sys.argv[1]), sys.argv[2], sys.argv[3]
held, accepted = [], True
while len(held) < count:
    some = []
    for _ in range(20):
        if kind == "unix":
            one = socket.socket(socket.AF_UNIX)
            one.connect(address)
        else:
            one = socket.socket()
            one.setblocking(False)
            one.connect_ex((address, 80))
            some.append(one)
        held.append(one)
    while accepted and some:
        _, ready, _ = select.select([], some, [], 2.0)
        accepted = bool(ready)
        some = [one for one in some if one not in ready]
print("held", flush=True)
sys.stdin.read()
"""
GET = "import urllib.request as u; print(len(u.urlopen('http://world/bytes/7', timeout=50).read()))"


@contextmanager
def held(command: Sequence[str], count: int, kind: str, address: str) -> Iterator[None]:
    """Hold ``count`` connections from three processes, each within its limit of descriptors."""
    script = [sys.executable, "-c", HOLD, str(-(-count // 3)), kind, address]
    with ExitStack() as stack:
        running = [
            stack.enter_context(
                subprocess.Popen(
                    [*command, *script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
                )
            )
            for _ in range(3)
        ]
        for each in running:
            assert opened(each.stdout).readline() == "held\n"
        yield
        for each in running:
            opened(each.stdin).close()


def opened(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


def processor_seconds(process: int) -> float:
    words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    # utime and stime, of proc_pid_stat(5).
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def a_lab_with_few_descriptors() -> Iterator[int]:
    up = shutil.which("sh"), "-c", 'ulimit -n 1024 && exec "$@"', "sh"
    made = subprocess.run(
        [*map(str, up), *BENTPIPE, "lab", "up", "sat", "--link", "leo"],
        capture_output=True,
        text=True,
        check=True,
    )
    try:
        found = re.search(r"kept by process (\d+)", made.stderr)
        assert found is not None
        yield int(found[1])
    finally:
        bentpipe("lab", "down", "sat")


@needs_lab
@pytest.mark.parametrize("count", [1_100, pytest.param(2_000, marks=pytest.mark.thorough)])
def test_a_lab_survives_more_web_clients_than_descriptors(count: int) -> None:
    """Given 1,024 descriptors, expect a lab that stays idle, replies, and serves later."""
    run = [*BENTPIPE, "lab", "exec", "sat", "--"]
    with a_lab_with_few_descriptors() as daemon:
        with held(run, count, "tcp", "world"):
            # SYNs that find no place are retransmitted meanwhile: that is little work.
            before = processor_seconds(daemon)
            time.sleep(2.0)
            assert processor_seconds(daemon) - before < 1.0, "it spins"
            assert status("sat")["process"] == daemon
            assert bentpipe(*run[len(BENTPIPE) :], "true").returncode == 0
        got = bentpipe(*run[len(BENTPIPE) :], sys.executable, "-c", GET)
        assert got.stdout == "7\n", got.stderr


@needs_lab
def test_a_lab_replies_despite_silent_clients() -> None:
    """Given 2,000 silent clients, expect replies to others, then and later."""
    with a_lab_with_few_descriptors() as daemon:
        address = str(sockets.folder() / "sat.sock")
        assert len(address) < 108, "the address of a socket is no longer"
        with held([], 2_000, "unix", address):
            for _ in range(3):
                assert status("sat")["process"] == daemon
            assert bentpipe("lab", "exec", "sat", "--", "true").returncode == 0
        assert status("sat")["process"] == daemon


@needs_lab
def test_a_slow_client_does_not_block_others() -> None:
    """Given a client that sends a byte every 0.2 s, expect replies to others meanwhile."""
    done = threading.Event()

    def send_slowly(slow: socket.socket) -> None:
        with suppress(OSError):
            while not done.wait(0.2):
                slow.sendall(b" ")

    with a_lab("sat", "--link", "leo"), sockets.connect("sat") as slow:
        sending = threading.Thread(target=send_slowly, args=(slow,))
        sending.start()
        try:
            for _ in range(3):
                assert "report" in status("sat")
            # It is not waited for either: its time is over.
            slow.settimeout(20)
            with suppress(ConnectionResetError):
                assert slow.recv(1) == b""
        finally:
            done.set()
            sending.join()


# -- What a machine lacks ----------------------------------------------------------------------


@needs_lab
@needs("unshare")
def test_a_missing_device_is_named_and_not_created() -> None:
    look = 'mount -t tmpfs none /dev/net; "$@"; echo $?; ls -A /dev/net'
    own = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    command = ["unshare", "--mount", *own, "sh", "-c", look, "sh", *BENTPIPE]
    program, lab = ["exec", "--link", "leo", "--", "true"], ["lab", "up", "sat", "--link", "leo"]
    for verb, code in ((program, EXIT_FAILED), (lab, EXIT_MACHINE)):
        ran = subprocess.run([*command, *verb], capture_output=True, text=True, check=False)
        assert ran.stdout == f"{code}\n", "nothing is listed"
        assert ran.stderr.startswith("bentpipe: opening /dev/net/tun: No such file")
        assert "to fix it: as root: modprobe tun; " in ran.stderr
    checked = subprocess.run([*command, "check"], capture_output=True, text=True, check=False)
    assert re.search(
        r"^-   labs +Labs do not work, simulations do: opening /dev/net/tun: No such file or "
        r"directory\.\n +To fix it: as root: modprobe tun",
        checked.stdout,
        re.MULTILINE,
    )


@needs_lab
@needs("setpriv")
def test_missing_privileges_are_named_with_the_fix() -> None:
    """Given neither capabilities nor user namespaces, expect both to be named."""
    forbid = "echo 0 > /proc/sys/user/max_user_namespaces"
    drop = "exec setpriv --bounding-set=-all --inh-caps=-all"
    command = ["unshare", "--user", "--map-root-user", "sh", "-c", f'{forbid}; {drop} "$@"', "sh"]
    ran = subprocess.run(
        [*command, *BENTPIPE, "exec", "--link", "leo", "--", "true"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == EXIT_FAILED
    assert ran.stderr.startswith(
        "bentpipe: a lab needs CAP_NET_ADMIN and CAP_SYS_ADMIN, or a user namespace; "
        "making a user namespace: No space left on device"
    )
    assert "to fix it: run it as root, or allow more user namespaces: sysctl user.max" in ran.stderr


@needs_lab
@needs("setpriv")
def test_root_without_one_capability_uses_a_user_namespace() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to drop capabilities")
    without = ["setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin"]
    command = [*without, *BENTPIPE, "exec", "--link", "leo", "--", "true"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


# A filter by which close_range(2), everywhere number 436, fails as before Linux 5.9; seccomp(2).
WITHOUT_CLOSE_RANGE = """
import ctypes, errno, os, struct, sys
fail, allow = 0x50000 | errno.ENOSYS, 0x7FFF0000
steps = [(0x20, 0, 0, 0), (0x15, 0, 1, 436), (6, 0, 0, fail), (6, 0, 0, allow)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
program = struct.pack("HxxxxxxP", len(steps), ctypes.addressof(code))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program, 0, 0) == 0
assert libc.syscall(436, 900, 900, 0) == -1 and ctypes.get_errno() == errno.ENOSYS
os.execv(sys.argv[1], sys.argv[1:])
"""


@needs_lab
def test_programs_start_where_close_range_fails() -> None:
    """Given a kernel without close_range(2), expect that programs start and exit."""
    command = [sys.executable, "-c", WITHOUT_CLOSE_RANGE, *BENTPIPE]
    run = ["exec", "--link", "leo", "--world", "sleep 60", "--", "sh", "-c", "exit 7"]
    ran = subprocess.run([*command, *run], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 7, ran.stderr
    made = subprocess.run(
        [*command, "lab", "up", "sat", "--link", "leo"],
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert made.returncode == 0
    try:
        assert bentpipe("lab", "exec", "sat", "--", "sh", "-c", "exit 6").returncode == 6
    finally:
        assert bentpipe("lab", "down", "sat").returncode == 0


# Eight threads start programs until the process is killed.
MANY_AT_ONCE = """
import signal, threading
from bentpipe.live.local_lab import LocalLab
from bentpipe.live.capacity import gain_privileges
from bentpipe.plan.presets import link_plan
gain_privileges()
with LocalLab(plans=[link_plan("leo")]) as lab:
    def start():
        while True:
            lab.spawn("island", ["sleep", "60"])
    for _ in range(8):
        threading.Thread(target=start, daemon=True).start()
    print("ready", flush=True)
    signal.pause()
"""


@needs_lab
@pytest.mark.parametrize(
    "times_ms", [(20, 60), pytest.param(range(0, 100, 10), marks=pytest.mark.thorough)]
)
def test_programs_started_concurrently_end_with_their_parent(times_ms: Sequence[int]) -> None:
    mark = f"bentpipe-at-once-{os.getpid()}"
    for milliseconds in times_ms:
        with subprocess.Popen(
            [sys.executable, "-c", MANY_AT_ONCE],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"MARK": mark},
        ) as running:
            assert opened(running.stdout).readline() == "ready\n"
            time.sleep(milliseconds / 1e3)
            running.send_signal(signal.SIGKILL)
    wait_until(lambda: processes(mark) == [], "a program outlived its parent")


# -- The NAT -----------------------------------------------------------------------------------


@needs("unshare")
def test_a_nat_that_does_not_start_is_killed_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a NAT that prints a line and hangs, expect it killed and its line in the error."""
    fake, noted = tmp_path / "slirp4netns", tmp_path / "process"
    fake.write_text(f"#!/bin/sh\necho $$ > {noted}\necho it is odd >&2\nexec sleep 60\n")
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(uplink, "_START_TIMEOUT_S", 2.0)
    # Others start it in the user namespace of the lab, and there is none.
    monkeypatch.setattr("os.geteuid", lambda: 0)
    with pytest.raises(
        MachineError, match=r"does not start within 2 s; its last line is: it is odd; to fix"
    ):
        uplink.open_uplink(socket.socket().detach())
    assert not Path("/proc", noted.read_text().strip()).exists()


def test_an_uplink_without_unshare_names_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given root and a PATH with slirp4netns alone, expect the missing program and the fix."""
    (tmp_path / "slirp4netns").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    with pytest.raises(MachineError, match=r"needs unshare, .*: apt install util-linux"):
        uplink.open_uplink(-1)


@needs_lab
@needs("slirp4netns")
def test_the_nat_is_in_a_sandbox() -> None:
    with a_lab("sat", "--link", "leo", "--internet") as daemon:
        children = Path(f"/proc/{daemon}/task").glob("*/children")
        found = [child for each in children for child in each.read_text().split()]
        nat = [child for child in found if name_of(child) == "slirp4netns"]
        assert len(nat) == 1
        stderr = Path(f"/proc/{nat[0]}/status").read_text()
        # A filter of system calls; proc_pid_status(5).
        assert re.search(r"^Seccomp:\t2$", stderr, re.MULTILINE)
        own, other = (Path(f"/proc/{process}/ns/mnt").readlink() for process in ("self", nat[0]))
        assert own != other


def name_of(process: str) -> str:
    with suppress(OSError):
        return Path(f"/proc/{process}/comm").read_text().strip()
    return ""
