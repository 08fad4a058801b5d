"""The web server of a lab (`http://world/bytes/N`), as clients of HTTP/1.0 and HTTP/1.1 use it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import needs, needs_lab

import bentpipe

RTT_S = 0.2
LINK = {"rate": "50 Mbit/s", "delay": "100 ms"}
SCENARIO = {
    "link": {"forward": LINK, "return": LINK},
    "hosts": {"world": [{"name": "far", "delay": "40 ms"}]},
    "traffic": [{"kind": "bulk", "direction": "forward", "size": "1 MB"}],
    "duration": "5 s",
}
# What a server that does not end a connection in time is given up after.
TIMEOUT_S = 10
# Of a client that runs on the island; it prints JSON. `exchange` returns all bytes until the end of
# the connection, as `ab` reads them: None if the server does not end it.
CLIENT = f"""
import http.client, json, socket, time

def exchange(*parts, shut=False):
    with socket.create_connection(("world", 80), timeout={TIMEOUT_S}) as client:
        for part in parts:
            client.sendall(part)
        if shut:
            client.shutdown(socket.SHUT_WR)
        reply = b""
        try:
            while piece := client.recv(65536):
                reply += piece
        except TimeoutError:
            return None
        return reply.decode("latin-1")
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[bentpipe.Lab]:
    with bentpipe.Lab(SCENARIO) as lab:
        yield lab


def on_island(lab: bentpipe.Lab, script: str) -> Any:
    done = lab.run("island", [sys.executable, "-c", CLIENT + script], timeout_s=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@needs_lab
def test_ab_gets_its_pages_and_the_end_of_each_connection(lab: bentpipe.Lab) -> None:
    """Given the requests of `ab` (HTTP/1.0), expect the server to close; with -k, to keep open."""
    ab = "Host: world\\r\\nUser-Agent: ApacheBench/2.3\\r\\nAccept: */*\\r\\n\\r\\n"
    one, kept = on_island(
        lab,
        f"""
request = b"GET /bytes/100000 HTTP/1.0\\r\\n"
one = exchange(request + b"{ab}")
keep = request + b"Connection: Keep-Alive\\r\\n{ab}"
print(json.dumps([one, exchange(keep, keep, request + b"{ab}")]))
""",
    )
    assert one is not None, "the connection did not end"
    head, _, body = one.partition("\r\n\r\n")
    assert head.startswith("HTTP/1.1 200 OK\r\n")
    assert body == "\0" * 100_000
    assert kept.count("Connection: keep-alive\r\n") == 2
    assert kept.count("\0") == 300_000


@needs_lab
def test_a_distant_host_of_the_world_serves_after_its_delay(lab: bentpipe.Lab) -> None:
    length, time_s = on_island(
        lab,
        """
client, began = http.client.HTTPConnection("far", timeout=60), time.monotonic()
client.request("GET", "/bytes/7")
print(json.dumps([len(client.getresponse().read()), time.monotonic() - began]))
""",
    )
    assert length == 7
    # The handshake and the request take a round trip each, 80 ms longer than that to the world.
    assert time_s >= 2 * (RTT_S + 0.08)


@needs_lab
def test_connection_close_ends_the_connection(lab: bentpipe.Lab) -> None:
    reply = on_island(
        lab,
        r"""
request = b"GET /bytes/7 HTTP/1.1\r\nHost: world\r\nConnection: close\r\n\r\n"
print(json.dumps(exchange(request)))
""",
    )
    assert reply is not None, "the connection did not end"
    assert reply.endswith("\r\n\r\n" + "\0" * 7)


@needs_lab
def test_a_kept_connection_serves_pages_heads_and_ranges(lab: bentpipe.Lab) -> None:
    """Given the HTTP client of Python, expect each reply on one connection, an error included."""
    found = on_island(
        lab,
        r"""
client = http.client.HTTPConnection("world", timeout=10)
client.connect()
first = client.sock
def ask(method, path, **fields):
    client.request(method, path, headers=fields)
    reply = client.getresponse()
    names = ("Content-Length", "Content-Range", "Accept-Ranges")
    body = reply.read()
    return [reply.status, len(body), *map(reply.getheader, names), client.sock is first]
print(json.dumps([
    ask("GET", "/"),
    ask("HEAD", "/bytes/5000"),
    ask("GET", "/bytes/5000", Range="bytes=1000-1999"),
    ask("GET", "/bytes/5000", Range="bytes=-10"),
    ask("GET", "/bytes/5000", Range="bytes=5000-"),
    ask("GET", "/none")[:2],
    ask("POST", "/")[0],
    ask("GET", "http://world/bytes/3"),
]))
""",
    )
    *pages, missing, post, whole_uri = found
    assert pages == [
        [200, 100_000, "100000", None, "bytes", True],
        [200, 0, "5000", None, "bytes", True],
        [206, 1_000, "1000", "bytes 1000-1999/5000", "bytes", True],
        [206, 10, "10", "bytes 4990-4999/5000", "bytes", True],
        [416, 26, "26", "bytes */5000", "bytes", True],
    ]
    assert missing[0] == 404
    assert missing[1] > 0
    assert post == 405
    assert whole_uri == [200, 3, "3", None, "bytes", True]


@needs_lab
def test_malformed_requests_are_answered_at_once(lab: bentpipe.Lab) -> None:
    """Given what is no request, expect 400 or what says more, and the end of the connection."""
    found = on_island(
        lab,
        r"""
start = time.monotonic()
replies = [exchange(each) for each in (
    b"GET / HTTP/1.1\r\n\r\n",
    b"GET /\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET / HTTP/1.1\r\nHost: a\r\nA : b\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nA: " + b"x" * 300_000,
)]
silent = exchange(b"GET / HT", shut=True)
print(json.dumps([replies, silent, time.monotonic() - start]))
""",
    )
    replies, silent, seconds = found
    codes = [None if each is None else each[9:12] for each in replies]
    assert codes == ["400", "400", "400", "400", "505", "431"]
    assert silent == ""
    assert seconds < TIMEOUT_S


@needs_lab
@needs("curl")
def test_curl_resumes_a_download_and_asks_for_the_header(lab: bentpipe.Lab, tmp_path: Path) -> None:
    script = (
        f"cd {tmp_path}"
        + """
head -c 4000 /dev/zero >page
curl -s -C - -o page -w '%{http_code} %{size_download} ' http://world/bytes/10000
wc -c <page
curl -s -I -m 10 -w '%{http_code} %{num_connects}\\n' -o header http://world/bytes/9
curl -s -0 -m 10 -o page -w '%{http_code} %{size_download}\\n' http://world/bytes/9
"""
    )
    done = lab.run("island", ["sh", "-c", script], timeout_s=60)
    lines = done.stdout.splitlines()
    assert lines == ["206 6000 10000", "200 1", "200 9"], done.stderr


@needs_lab
def test_a_small_page_takes_one_round_trip(lab: bentpipe.Lab) -> None:
    """Given 200 ms, expect 1,000 bytes after one of them: Nagle's algorithm would add another."""
    times_s = on_island(
        lab,
        r"""
client = http.client.HTTPConnection("world", timeout=10)
client.connect()
times = []
for _ in range(3):
    start = time.monotonic()
    client.request("GET", "/bytes/1000")
    client.getresponse().read()
    times.append(time.monotonic() - start)
print(json.dumps(times))
""",
    )
    assert all(each >= RTT_S for each in times_s)
    assert min(times_s) < 1.5 * RTT_S
