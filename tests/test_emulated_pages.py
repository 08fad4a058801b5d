"""Web pages in real time: the bytes of the server, the browser, and what is refused."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from conftest import Program, User, measures, needs, needs_lab
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from h2.connection import H2Connection
from hyperframe.frame import Frame
from late import until_on_time
from test_emulate import EXIT_INVALID, EXIT_MACHINE, emulated
from test_lab import wait_until
from test_live import processes

from bentpipe import Plan, Result, simulate
from bentpipe.live import browser as browsers, flows
from bentpipe.live.browser import Browser, BrowserError, Client, installed_browser
from bentpipe.live.https import new_certificate
from bentpipe.live.page_server import (
    PORT_OFFSET,
    Pages,
    answer_of,
    head_of,
    look_up,
    query_of,
)
from bentpipe.live.pool import EmulatedRun, EmulationJob

HOST = "127.0.0.1"
DOCUMENT, OBJECT = 30_000, 20_000
MS, S = 10**6, 10**9
RTT_NS = 540 * MS


def web_page(**changed: Any) -> dict[str, Any]:
    """Two pages with sizes that are not random, over GEO."""
    page = {"kind": "web_page", "direction": "forward", "pages": 2, "think": "500 ms"}
    sizes = {"document": f"{DOCUMENT} B", "object": f"{OBJECT} B", "objects": 20}
    data = {"link": {"preset": "geo"}, "traffic": [page | sizes | {"dns": False} | changed]}
    return data | {"duration": "60 s"}


def settings(**changed: Any) -> dict[str, Any]:
    """What the programs of the flow are told, on a free port of this machine."""
    (flow,) = Plan.resolve(web_page(**changed)).data["flows"]
    with socket.create_server((HOST, 0)) as free:
        port = free.getsockname()[1]
    return {
        "name": flow["name"],
        "seed": 1,
        "workload": flow["workload"],
        "address": HOST,
        "traffic_class": 0,
        "port": port,
        "mss_bytes": None,
        "congestion_control": "cubic",
        "interval_s": 0.1,
    }


class Server:
    """The server in a process of its own, and the connection that it treats as control."""

    def __init__(self, told: dict[str, Any]) -> None:
        self.told = told
        command = [sys.executable, "-m", "bentpipe.live.page_server", json.dumps(told)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.control = self.connected()

    def connected(self) -> socket.socket:
        deadline = time.monotonic() + 30
        while True:
            try:
                return socket.create_connection((HOST, self.told["port"]), timeout=30)
            except ConnectionRefusedError:
                assert time.monotonic() < deadline
                time.sleep(0.01)

    def report(self) -> dict[str, Any]:
        self.process.send_signal(signal.SIGINT)
        out, _ = self.process.communicate(timeout=30)
        found: dict[str, Any] = json.loads(out)
        return found


@contextmanager
def serving(told: dict[str, Any]) -> Iterator[Server]:
    server = Server(told)
    try:
        yield server
    finally:
        server.process.kill()
        server.process.communicate()
        server.control.close()


def tls_of(connection: socket.socket, protocol: str) -> ssl.SSLSocket:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols([protocol])
    return context.wrap_socket(connection)


def read(connection: socket.socket, count: int) -> bytes:
    """Read so many bytes."""
    found = b""
    while len(found) < count:
        piece = connection.recv(count - len(found))
        assert piece
        found += piece
    return found


# --- the server ---------------------------------------------------------------------------------


@pytest.mark.system
@pytest.mark.parametrize("tls", ["none", "1.2", "1.3"])
def test_header_and_body_are_as_large_as_drawn(tls: str) -> None:
    """Given HTTP/1.1, expect 30,000 bytes of document and 20,000 of object, and nothing more.

    A page that is loaded ends its connections. The report has what TCP carried: with TLS a
    handshake, and 16 to 29 bytes a record of up to 16 kB, in addition.
    """
    with serving(settings(http="1.1", tls=tls)) as server:
        connection = server.connected()
        if tls != "none":
            connection = tls_of(connection, "http/1.1")
            assert connection.version() == f"TLSv{tls}"
        for path, size in (("/0/", DOCUMENT), ("/0/7", OBJECT)):
            connection.sendall(b"GET %s HTTP/1.1\r\nHost: page-0\r\n\r\n" % path.encode())
            response = read(connection, size)
            head, _, body = response.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 OK")
            assert f"Content-Length: {len(body):010}".encode() in head
            assert b"Cache-Control: no-store" in head
        assert response.count(b"GIF89a") == 1
        server.control.sendall(b"0\n")
        assert connection.recv(1) == b""
        connection.close()
        server.control.close()
        report = server.report()
    assert report["served"] == [{"objects": 20, "connections": 1, "response_bytes": 50_000}]
    sent = report["sent_bytes"]
    if tls == "none":
        assert sent == 50_000
    else:
        assert 50_000 + 2_540 + 5 * 16 < sent < 50_000 + 2_540 + 1_500
    assert sent <= report["acked_bytes"] <= sent + 2


@pytest.mark.system
def test_frames_are_as_large_as_drawn() -> None:
    """Given HTTP/2 and three requests at once, expect frames with 30,000, 20,000 and 20,000 bytes.

    The responses come one after the other, in the order of the requests.
    """
    paths = {1: ("/0/", DOCUMENT), 3: ("/0/0", OBJECT), 5: ("/0/1", OBJECT)}
    with serving(settings(http="2")) as server:
        connection = tls_of(server.connected(), "h2")
        client = H2Connection()
        client.initiate_connection()
        client.increment_flow_control_window(10**6)
        for stream, (path, _) in paths.items():
            about = [(":method", "GET"), (":scheme", "https"), (":authority", "page-0")]
            client.send_headers(stream, [*about, (":path", path)], end_stream=True)
        connection.sendall(client.data_to_send())
        sizes: dict[int, int] = dict.fromkeys(paths, 0)
        order: list[int] = []
        while order.count(5) == 0 or sizes[5] < OBJECT:
            frame, length = Frame.parse_frame_header(memoryview(read(connection, 9)))
            read(connection, length)
            if frame.stream_id:
                sizes[frame.stream_id] += 9 + length
                order.append(frame.stream_id)
        connection.close()
    assert sizes == {stream: size for stream, (_, size) in paths.items()}
    data = [stream for stream in order if order.count(stream) > 1]
    assert sorted(data[-2:]) == [5, 5]


def test_pages_are_those_of_the_simulator() -> None:
    """Given three pages with random objects and sizes, expect the same bytes in both engines."""
    data = web_page(pages=3, objects={"exponential": 20}, http="2")
    del data["traffic"][0]["document"], data["traffic"][0]["object"]
    (flow,) = Plan.resolve(data).data["flows"]
    pages = Pages({"name": flow["name"], "seed": 7, "workload": flow["workload"]})
    found = []
    for number in range(3):
        page = pages.page(number)
        sizes = page.new_connection()
        contents = [page.document(), *(page.next_object(sizes) for _ in range(page.objects))]
        found.append((page.objects, sum(content.size_bytes for content in contents)))
    simulated = simulate(data, seed=7).pages
    assert found == list(zip(simulated["objects"], simulated["response_bytes"], strict=True))


def test_the_document_refers_to_its_objects_at_its_end() -> None:
    """Given 20 objects, expect their images after everything else, so in the last packet.

    Without room for them the document is as large as they need.
    """
    (flow,) = Plan.resolve(web_page()).data["flows"]
    page = Pages({"name": flow["name"], "seed": 1, "workload": flow["workload"]}).page(0)
    images = b"".join(b"<img src=%d>" % number for number in range(20))
    overhead = len(head_of("text/html", 0))
    body = page.document().body(overhead)
    assert body.endswith(b"-->" + images)
    assert len(body) + overhead == DOCUMENT
    assert page.document().body(DOCUMENT).endswith(b"<!---->" + images)


def test_a_lookup_is_as_large_as_simulated() -> None:
    """Given RFC 1035 and RFC 6891, expect 44 bytes of query and 60 of answer with its number."""
    query = query_of(0x1_0203)
    answer = answer_of(query, "10.0.0.1")
    assert (len(query), len(answer)) == (44, 60)
    assert query[:2] == answer[:2] == b"\x02\x03"
    assert bytes([10, 0, 0, 1]) in answer


@pytest.mark.system
def test_the_resolver_answers() -> None:
    """Given a server with a resolver, expect an answer to a query within its timeout."""
    with serving(settings()) as server:
        # The resolver is there once the server takes connections of pages.
        server.connected().close()
        port = server.told["port"] + PORT_OFFSET
        wait_until(lambda: is_bound(port), "the resolver")
        # A message that is no query does not end the server.
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            for short in (b"", b"1"):
                client.sendto(short, (HOST, port))
        began_s = time.monotonic()
        look_up(HOST, server.told["port"], 3)
        assert time.monotonic() - began_s < 5


def is_bound(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return True
    return False


def test_a_certificate_is_as_large_as_two_of_the_web() -> None:
    """Given the simulated handshake with 2,540 bytes of certificates, expect one of that size."""
    made, key_sha256 = new_certificate()
    pem = made[made.index(b"-----BEGIN CERTIFICATE") :]
    assert len(x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER)) == 2_540
    assert new_certificate()[1] != key_sha256


# --- refusals -----------------------------------------------------------------------------------


@pytest.mark.system
def test_a_browser_that_ends_is_an_error(tmp_path: Path) -> None:
    """Given a program that ends at once in place of Chromium, expect an error that says so."""
    program = shutil.which("true")
    assert program is not None
    with Browser(program, tmp_path, []) as browser, pytest.raises(BrowserError, match="has ended"):
        browser.attach()


# A page that is loaded when the file `loaded` exists, between load events of about:blank.
CHROMIUM = """
import json, os, pathlib, time

def send(**message):
    os.write(4, json.dumps(message).encode() + b"\\0")

def loaded(loader):
    send(method="Page.loadEventFired", params={})
    params = {"frameId": "frame", "loaderId": loader, "name": "load", "timestamp": 1}
    send(method="Page.lifecycleEvent", params=params)

results = {
    "Target.getTargets": {"targetInfos": [{"type": "page", "targetId": "page"}]},
    "Target.attachToTarget": {"sessionId": "session"},
    "Page.navigate": {"frameId": "frame", "loaderId": "own"},
}
unread = b""
while piece := os.read(3, 65536):
    *messages, unread = (unread + piece).split(b"\\0")
    for message in map(json.loads, messages):
        is_page = message["method"] == "Page.navigate"
        if is_page:
            loaded("blank")
        send(id=message["id"], result=results.get(message["method"], {}))
        if is_page:
            loaded("blank")
            time.sleep(0.1)
            (pathlib.Path.home() / "loaded").touch()
            loaded("own")
"""


@pytest.mark.system
def test_the_load_event_of_another_document_does_not_end_a_page(tmp_path: Path) -> None:
    """Given load events of about:blank before and after the navigation, expect that of the page."""
    program = tmp_path / "chromium"
    program.write_text(f"#!{sys.executable} -SE\n{CHROMIUM}")
    program.chmod(0o700)
    with Browser(str(program), tmp_path, []) as browser:
        browser.attach()
        browser.load("http://page-0.bentpipe.test/0/")
        assert (tmp_path / "loaded").exists()


@pytest.mark.system
@needs("chromium")
def test_a_document_with_an_error_status_is_no_page(tmp_path: Path) -> None:
    """Given a server without the first page, expect an error for it, and none for the second."""
    program = installed_browser()
    assert program is not None
    for name in ("1", "profile"):
        (tmp_path / name).mkdir()
    # Without an icon of its own, Chromium would ask for one.
    (tmp_path / "1/index.html").write_text("<link rel=icon href=data:,>")
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer((HOST, 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        workload = {"dns": False, "tls": None}
        told = {"name": "page", "seed": 1, "port": server.server_port, "workload": workload}
        client = Client({**told, "address": HOST})
        options = browsers.options_of(HOST, "")
        with Browser(program, tmp_path / "profile", options) as browser:
            browser.attach()
            with pytest.raises(BrowserError, match=r"/0/ was not loaded: HTTP status 404$"):
                client.load(browser)
            client.load(browser)
        server.shutdown()


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"http": "1.1", "connections": 4}, "traffic.0.connections: is 4; Chromium opens 6"),
        ({"http": "2", "tls": "none"}, "traffic.0.tls: read none; Chromium has HTTP/2 over TLS"),
    ],
)
def test_what_chromium_does_not_do_is_refused(
    bentpipe: Program, tmp_path: Path, changed: dict[str, Any], expected: str
) -> None:
    file = tmp_path / "pages.json"
    file.write_text(json.dumps(web_page(**changed)))
    called = bentpipe("run", "--engine", "emulate", file, "--out", tmp_path / "out")
    assert called.code == 2
    assert expected in called.err
    assert not (tmp_path / "out").exists()


def test_classes_of_packets_are_refused(bentpipe: Program, tmp_path: Path) -> None:
    """Given a queue with classes, expect a refusal: the browser's packets have no mark."""
    data = web_page()
    queue = {"discipline": "strict_priority", "limit": "1 bdp"}
    data["link"] |= {"forward": {"rate": "8 Mbit/s", "delay": "270 ms", "queue": queue}}
    data["link"] |= {"return": {"rate": "1 Mbit/s", "delay": "270 ms"}}
    del data["link"]["preset"]
    file = tmp_path / "pages.json"
    file.write_text(json.dumps(data))
    called = bentpipe("run", "--engine", "emulate", file, "--out", tmp_path / "out")
    assert called.code == 2
    assert "Chromium does not mark classes of packets" in called.err


@pytest.mark.parametrize("http", ["1.1", "2"])
def test_a_machine_without_chromium_is_exit_code_3(
    bentpipe: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, http: str
) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    file = tmp_path / "pages.json"
    file.write_text(json.dumps(web_page(http=http)))
    called = bentpipe("run", "--engine", "emulate", file, "--out", tmp_path / "out")
    assert called.code == EXIT_MACHINE
    assert "Chromium, which is not installed; to fix it: apt install chromium" in called.err


def test_tls_without_its_packages_is_exit_code_3(
    bentpipe: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Given Chromium and no h2, expect the command that installs it; without TLS none is needed."""
    spec = importlib.util.find_spec
    monkeypatch.setattr(flows, "installed_browser", lambda: "/usr/bin/chromium")
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == "h2" else spec(name)
    )
    file = tmp_path / "pages.json"
    file.write_text(json.dumps(web_page()))
    called = bentpipe("run", "--engine", "emulate", file, "--out", tmp_path / "out")
    assert called.code == EXIT_MACHINE
    assert "h2 is not installed; pip install 'bentpipe[web]'" in called.err
    plan = Plan.resolve(web_page(http="1.1", tls="none")).data
    assert len(flows.flows_of(plan, 1)) == 1


# --- in real time -------------------------------------------------------------------------------


@measures
@needs("chromium")
@pytest.mark.parametrize(
    ("http", "count"), [pytest.param("1.1", 2, marks=pytest.mark.thorough), ("2", 1)]
)
def test_chromium_loads_pages_as_long_as_simulated(tmp_path: Path, http: str, count: int) -> None:
    """Given pages with 20 objects over GEO by TLS 1.3, expect the round trips of the simulator.

    The lookup takes one, and the document four in both, and then some 10 ms in the browser; less
    than another round trip is allowed for a busy machine. Chromium opens connections before it
    needs them, and Linux fills its first windows faster, which saves up to a round trip; 10 % for
    all other differences.
    """
    data = web_page(http=http, dns=True, pages=count)
    longest_ns = 1.1 * simulate(data).pages["load_time_ns"][0]

    def fastest_ns(result: Result) -> int:
        return int(min(page["load_time_ns"] for page in result.pages.to_dicts()))

    def why_late(result: Result) -> str | None:
        # The link is punctual also where a browser waits for a processor.
        if fastest_ns(result) >= longest_ns and os.getloadavg()[0] > (os.cpu_count() or 1):
            return "other programs slow the browser down"
        return None

    run = until_on_time(lambda: emulated(data, tmp_path).result, why_late)
    (simulated, *_), pages = simulate(data).pages.to_dicts(), run.pages.to_dicts()
    assert run.flows["exchanges"].to_list() == [count]
    assert run.manifest["traffic_ended"]
    assert run.manifest["emulation"]["browser"].startswith("Chromium")
    for page in pages:
        assert page["response_bytes"] == simulated["response_bytes"] == DOCUMENT + 20 * OBJECT
        assert page["objects"] == 20
        assert page["connections"] == simulated["connections"] == {"1.1": 6, "2": 1}[http]
        assert RTT_NS < page["resolved_ns"] - page["start_ns"] < RTT_NS + 400 * MS
        assert page["established_ns"] - page["resolved_ns"] > RTT_NS - 20 * MS
        assert page["established_ns"] < page["first_byte_ns"]
        assert page["first_byte_ns"] <= page["document_ns"] < page["finished_ns"]
        # The lower bound does not depend on how fast the browser is.
        assert page["load_time_ns"] > 0.9 * simulated["load_time_ns"] - RTT_NS
    documents_ns = [page["document_ns"] - page["start_ns"] for page in pages]
    expected_ns = simulated["document_ns"] - simulated["start_ns"]
    assert expected_ns - 50 * MS < min(documents_ns) < expected_ns + 400 * MS
    print(f"load time {fastest_ns(run) / S:.2f} s, simulated at most {longest_ns / S:.2f} s")
    assert fastest_ns(run) < longest_ns
    (flow,) = run.flows.to_dicts()
    tls_bytes = flow["sent_bytes"] - count * (DOCUMENT + 20 * OBJECT)
    assert count * 2_540 < tls_bytes < 0.05 * flow["sent_bytes"]
    assert flow["acked_bytes"] <= flow["delivered_bytes"] <= flow["sent_bytes"]
    assert flow["delivered_bytes"] >= count * (DOCUMENT + 20 * OBJECT)


@pytest.mark.thorough
@needs_lab
@needs("chromium")
def test_an_ordinary_user_loads_pages(user: User) -> None:
    """Given no privileges, expect that Chromium runs in its own sandbox within the lab."""
    file = user.folder / "pages.json"
    file.write_text(json.dumps(web_page(http="1.1", tls="none", objects=3, pages=1)))
    ran = user("run", "--engine", "emulate", "--json", file)
    assert ran.returncode in {0, EXIT_INVALID}, ran.stderr
    (flow,) = json.loads(ran.stdout)["flows"]
    assert flow["exchanges"] == 1
    assert not list(user.folder.glob("*chromium*"))
    assert not list(user.folder.glob("bentpipe-*"))


@needs_lab
@needs("chromium")
def test_a_killed_run_leaves_no_files() -> None:
    """Given a run whose browser has a profile, expect nothing of it after the run is killed."""
    before = set(Path(tempfile.gettempdir()).iterdir())
    job = EmulationJob(Plan.resolve(web_page(pages=None)), 1, max_s=60, expected_s=60)
    task = EmulatedRun(0, job)
    task.start()
    try:
        (own,) = set(Path(tempfile.gettempdir()).iterdir()) - before
        wait_until(lambda: list(own.glob("bentpipe-*/Default")), "the profile of the browser")
    finally:
        task.kill()
    assert not own.exists()
    # One that still ran could make the folder anew.
    assert not processes(str(own))
