"""The uplink of a lab to the Internet; skipped without labs or slirp4netns."""

from __future__ import annotations

import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from conftest import needs, needs_lab
from test_lab import wait_until
from test_live import BENTPIPE, bentpipe, machine, processes

pytestmark = pytest.mark.system


@pytest.fixture
def server() -> Iterator[str]:
    """A web server of this machine, by an address that is not its loopback's."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as looking:
        with suppress(OSError):
            # Nothing is sent: this asks the kernel which address it would send from.
            looking.connect(("192.0.2.1", 9))
        address = looking.getsockname()[0]
    if address in {"0.0.0.0", "127.0.0.1"}:
        pytest.skip("needs an address that is not the loopback's: connect a network")

    class Hello(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"hello from the Internet")

        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer((address, 0), Hello) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://{address}:{running.server_port}/"
        running.shutdown()
        thread.join()


GET = """
import sys, time, urllib.request
start = time.monotonic()
print(urllib.request.urlopen(sys.argv[1], timeout=20).read().decode(), time.monotonic() - start)
"""


@needs_lab
@pytest.mark.unprivileged
@needs("slirp4netns")
def test_the_island_reaches_the_uplink_over_the_link(server: str) -> None:
    """Given MEO with 79 ms each way, expect an answer after two round trips, at 158 ms, or more."""
    before = machine()
    for side, min_seconds in [("island", 2 * 0.158), ("world", 0.0)]:
        ran = bentpipe(
            *("exec", "--link", "meo", "--internet", "--host", side, "--"),
            *(sys.executable, "-c", GET, server),
        )
        assert ran.returncode == 0, ran.stderr
        words, seconds = ran.stdout.rsplit(" ", 1)
        assert words == "hello from the Internet"
        assert float(seconds) >= min_seconds
    assert machine() == before


@needs_lab
@needs("slirp4netns")
@needs("ip")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for ip netns")
def test_the_machine_keeps_its_named_network_namespaces() -> None:
    """Given a namespace of `ip netns`, a shared mount, expect it to outlive an uplink's sandbox."""
    name = f"bpt{os.getpid()}-kept"
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        ran = bentpipe("exec", "--link", "leo", "--internet", "--", "true")
        assert ran.returncode == 0, ran.stderr
        subprocess.run(["ip", "netns", "exec", name, "true"], check=True)
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)


@needs_lab
def test_there_is_no_uplink_by_default(server: str) -> None:
    ran = bentpipe("exec", "--link", "leo", "--", sys.executable, "-c", GET, server)
    assert ran.returncode == 1
    assert "Network is unreachable" in ran.stderr


@needs_lab
@needs("slirp4netns")
def test_the_uplink_ends_with_a_killed_daemon(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("MARK", mark := f"bentpipe-uplink-{os.getpid()}")
    assert bentpipe("lab", "up", "out", "--link", "leo", "--internet").returncode == 0
    ran = bentpipe("lab", "exec", "out", "--", sys.executable, "-c", GET, server)
    assert ran.stdout.startswith("hello from the Internet"), ran.stderr
    (row,) = json.loads(bentpipe("lab", "list", "--json").stdout)
    assert row["links"] == ["leo", "--internet"]
    os.kill(row["process"], signal.SIGKILL)
    monkeypatch.delenv("MARK")
    wait_until(lambda: processes(mark) == [], "the uplink outlived its lab")


@pytest.mark.parametrize(
    "words",
    [
        "exec --link leo --internet -- true",
        "exec --link leo --internet",
        "lab up name --link leo --internet",
    ],
)
def test_without_the_program_the_message_names_its_package(words: str, tmp_path: Path) -> None:
    ran = subprocess.run(
        [*BENTPIPE, *words.split()],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PATH": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)},
    )
    assert ran.returncode == (3 if words.startswith("lab up") else 125), ran.stderr
    assert ran.stderr == (
        "bentpipe: --internet needs slirp4netns, which is not installed; "
        "to fix it: apt install slirp4netns\n"
    )
