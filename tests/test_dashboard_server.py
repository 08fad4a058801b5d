"""`bentpipe serve` as a server: who may ask it, what it refuses, how it begins and ends."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import pytest
from conftest import Program, User, default_signals, in_process, needs_lab
from starlette.testclient import TestClient

from bentpipe import Result
from bentpipe.dashboard import app, server
from bentpipe.dashboard.app import create_app, lab_sample
from bentpipe.live.link_state import DeliveredRates

TOKEN: Final = "a-token-of-43-characters-as-that-of-serve-is"
COOKIE: Final = "bentpipe-8000"
TIMEOUT_S: Final = 30


def guarded(
    root: Path, *, token: str | None = None, hosts: frozenset[str] = server.LOOPBACK_NAMES
) -> server.Guard:
    return server.Guard(
        create_app(root), hosts=hosts, any_address=token is not None, token=token, cookie=COOKIE
    )


@contextmanager
def browser(app: Any, host: str = "127.0.0.1:8000") -> Iterator[TestClient]:
    with TestClient(app, base_url=f"http://{host}", follow_redirects=False) as client:
        yield client


# --- methods, hosts, headers --------------------------------------------------------------------


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_only_get_is_allowed(tmp_path: Path, method: str) -> None:
    with browser(guarded(tmp_path)) as client:
        reply = client.request(method, "/")
        assert (reply.status_code, reply.headers["allow"]) == (405, "GET, HEAD")
        assert client.head("/").status_code == 200


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("127.0.0.1:8000", True),
        ("localhost:8000", True),
        # Through ssh -L, the port is another one.
        ("LOCALHOST:9000", True),
        ("[::1]:8000", True),
        ("evil.example", False),
        ("evil.example:8000", False),
        ("127.0.0.1.evil.example:8000", False),
        ("localhost.evil.example", False),
        ("192.0.2.1:8000", False),
        ("", False),
    ],
)
def test_a_name_that_is_made_to_resolve_to_this_machine_is_refused(
    tmp_path: Path, host: str, allowed: bool
) -> None:
    with browser(guarded(tmp_path)) as client:
        reply = client.get("/", headers={"Host": host})
    assert reply.status_code == (200 if allowed else 421)
    assert ("Results" in reply.text) is allowed


def test_an_address_is_no_name_that_others_can_make_resolve(tmp_path: Path) -> None:
    """Given a server for other machines, expect its addresses to be hosts, and no other name."""
    with browser(guarded(tmp_path, token=TOKEN)) as client:
        client.cookies.set(COOKIE, TOKEN)
        for host, status in (("192.0.2.1:8000", 200), ("[2001:db8::1]", 200), ("a.example", 421)):
            assert client.get("/", headers={"Host": host}).status_code == status


def test_each_reply_confines_the_page(tmp_path: Path) -> None:
    with browser(guarded(tmp_path)) as client:
        for path in ("/", "/static/charts.js", "/nothing", "/data/chart/x/y"):
            headers = client.get(path).headers
            assert headers["content-security-policy"].startswith("default-src 'self';")
            assert "unsafe" not in headers["content-security-policy"]
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["x-frame-options"] == "DENY"
            assert headers["referrer-policy"] == "no-referrer"
            assert headers["cross-origin-resource-policy"] == "same-origin"
            assert "access-control-allow-origin" not in headers


# --- the token ----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/list", "/static/list.js", "/events/list", "/lab/sat"])
def test_without_the_token_nothing_is_shown(tmp_path: Path, path: str) -> None:
    with browser(guarded(tmp_path, token=TOKEN)) as client:
        for given in ("", "?token=", f"?token={TOKEN[:-1]}", f"?token={TOKEN}x", "?token=%ff"):
            reply = client.get(path + given)
            assert (reply.status_code, "set-cookie" in reply.headers) == (401, False)
        client.cookies.set(COOKIE, "wrong")
        assert client.get(path).status_code == 401
        client.cookies.set(COOKIE, TOKEN)
        client.cookies.set("bentpipe-9000", TOKEN)
        assert client.get("/").status_code == 200


def test_the_token_of_the_url_becomes_a_cookie(tmp_path: Path) -> None:
    """Expect a redirect to the address without the token, and a cookie that no script reads."""
    with browser(guarded(tmp_path, token=TOKEN)) as client:
        reply = client.get(f"/list?token={TOKEN}&a=b")
        assert (reply.status_code, reply.headers["location"]) == (303, "/list?a=b")
        cookie = reply.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert client.get("/list").status_code == 200
        elsewhere = client.get(f"http://127.0.0.1:8000//evil.example/?token={TOKEN}")
        assert elsewhere.headers["location"] == "/evil.example/"


def test_a_server_without_a_token_asks_for_none(tmp_path: Path) -> None:
    with browser(guarded(tmp_path)) as client:
        assert client.get("/?token=x").status_code == 200


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("localhost", "localhost"),
        ("A.Example.:80", "a.example"),
        ("[::1]:80", "::1"),
        ("[::1", "::1"),
        ("", ""),
    ],
)
def test_the_name_in_a_host_header(header: str, name: str) -> None:
    assert server.host_name(header) == name


# --- the program --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reply:
    """A reply that was read to its end; the names of headers are in lower case."""

    status: int
    content: bytes
    headers: Mapping[str, str]


class Server:
    """A `bentpipe serve` in the background."""

    def __init__(
        self,
        *arguments: str | Path,
        command: Any = None,
        signals: Callable[[], None] = default_signals,
        **options: Any,
    ) -> None:
        program = command or [sys.executable, "-m", "bentpipe"]
        self.process = subprocess.Popen(
            [*program, "serve", *(str(each) for each in arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=signals,  # noqa: PLW1509 - the tests have one thread
            **options,
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        if not self.url:
            raise AssertionError(self.process.communicate(timeout=TIMEOUT_S)[1])
        self.port = urlsplit(self.url).port

    def get(self, path: str, **headers: str) -> Reply:
        with self.stream(path, **headers) as reply:
            return Reply(reply.status, reply.read(), dict(reply.getheaders()))

    @contextmanager
    def stream(self, path: str, **headers: str) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)
        with closing(connection):
            connection.request("GET", path, headers=headers)
            with connection.getresponse() as reply:
                yield reply

    def end(self, by: signal.Signals = signal.SIGINT) -> str:
        """Send a signal; return what was written to stderr."""
        self.process.send_signal(by)
        _, err = self.process.communicate(timeout=TIMEOUT_S)
        return str(err)


@contextmanager
def serving(*arguments: str | Path, **options: Any) -> Iterator[Server]:
    server = Server(*arguments, **options)
    try:
        yield server
    finally:
        server.process.kill()
        server.process.communicate()


@pytest.mark.system
def test_it_prints_the_url_and_ctrl_c_ends_it(tmp_path: Path, small_result: Result) -> None:
    """Given an open stream of events, expect the end at once, exit code 130 and no traceback."""
    small_result.save(tmp_path / "run")
    with serving(tmp_path) as server:
        parts = urlsplit(server.url)
        assert (parts.scheme, parts.hostname, parts.query) == ("http", "127.0.0.1", "")
        assert b"/result/run" in server.get("/").content
        with server.stream("/events/list") as stream:
            assert stream.readline() == b"event: list\n"
            err = server.end()
    assert server.process.returncode == 130
    assert err == f"bentpipe: shows the results in {tmp_path}; press Ctrl-C to end it\n"


def ignore_interrupts() -> None:
    """Set the signals of a background job of a shell without job control."""
    default_signals()
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@pytest.mark.thorough
@pytest.mark.system
def test_an_ignored_interrupt_does_not_end_it(tmp_path: Path) -> None:
    """Given a background job of a script, expect SIGINT to change nothing, and SIGTERM to end it.

    Ctrl-C in the foreground job reaches it, too.
    """
    with serving(tmp_path, signals=ignore_interrupts) as server:
        # The first reply is after the handlers of the server are installed.
        assert server.get("/").status == 200
        server.process.send_signal(signal.SIGINT)
        for _ in range(5):
            assert server.get("/").status == 200
        server.end(signal.SIGTERM)
    assert server.process.returncode == -signal.SIGTERM


@pytest.mark.system
def test_it_shows_no_traceback_to_the_browser_and_one_to_its_user(
    tmp_path: Path, small_result: Result
) -> None:
    small_result.save(tmp_path / "run")
    with serving(tmp_path) as server:
        reply = server.get("/", Host="evil.example")
        assert (reply.status, reply.content.count(b"\n")) == (421, 1)
        # A request that is no HTTP, and one with a huge header.
        for text in (b"\x16\x03\x01\r\n\r\n", b"GET / HTTP/1.1\r\nA: " + b"x" * 200_000):
            address = ("127.0.0.1", server.port)
            with (
                socket.create_connection(address, timeout=TIMEOUT_S) as sent,
                suppress(ConnectionError),
            ):
                sent.sendall(text)
                assert b"Traceback" not in sent.recv(65_536)
        assert server.get("/").status == 200
        assert "Traceback" not in server.end()


@pytest.mark.system
def test_an_ordinary_user_serves_in_the_background(user: User, small_result: Result) -> None:
    """Given no privileges, no terminal and no home, expect a page; SIGTERM ends it."""
    root = user.folder / "results"
    root.mkdir(mode=0o755)
    small_result.save(root / "run")
    subprocess.run(["chmod", "-R", "a+rX", str(root)], check=True)
    with serving(root, command=user.command, env=user.environment) as server:
        assert b"/result/run" in server.get("/").content
        assert server.get("/data/chart/queues/run").status == 200
        server.end(signal.SIGTERM)
    assert server.process.returncode == -signal.SIGTERM


@pytest.mark.thorough
@pytest.mark.system
def test_another_host_asks_for_a_token(tmp_path: Path) -> None:
    with serving(tmp_path, "--host", "0.0.0.0") as server:
        token = parse_qs(urlsplit(server.url).query)["token"][0]
        assert len(token) >= 43
        assert server.get("/").status == 401
        reply = server.get(f"/?token={token}")
        assert (reply.status, reply.headers["location"]) == (303, "/")
        cookie = reply.headers["set-cookie"].partition(";")[0]
        assert cookie == f"bentpipe-{server.port}={token}"
        assert server.get("/", Cookie=cookie).status == 200
        assert server.get("/", Cookie=cookie, Host="evil.example").status == 421


@pytest.mark.thorough
@pytest.mark.system
def test_two_servers_have_two_tokens(tmp_path: Path) -> None:
    with serving(tmp_path, "--host", "::") as one, serving(tmp_path, "--host", "::") as other:
        assert urlsplit(one.url).query != urlsplit(other.url).query


def test_a_port_in_use_is_one_message(tmp_path: Path, bentpipe: Program) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        called = bentpipe("serve", tmp_path, "--port", str(port))
    assert (called.code, called.out) == (2, "")
    fix = "name another one, or leave --port out for a free one"
    assert called.err == f"bentpipe: --port: {port} is in use; {fix}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere",), "nowhere: no such folder"),
        (("file",), "file: is a file; name the folder that has the results"),
        ((".", "--host", "192.0.2.1"), "--host: 192.0.2.1: Cannot assign requested address; "),
        ((".", "--host", "no host"), "--host: no host: "),
        ((".", "--host", "a" * 70), "--host: aaaa"),
        ((".", "--port", "65536"), "invalid value for '--port'"),
    ],
)
def test_what_cannot_be_served_is_one_message(
    tmp_path: Path,
    bentpipe: Program,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    called = bentpipe("serve", *arguments)
    assert (called.code, called.out) == (2, "")
    assert called.err.startswith(f"bentpipe: {message}")
    assert called.err.count("\n") == 1


@pytest.mark.parametrize("package", ["starlette", "uvicorn"])
def test_a_missing_package_names_the_extra(
    tmp_path: Path, bentpipe: Program, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    # The import sets the attribute of the package, too.
    monkeypatch.setattr("bentpipe.dashboard", sys.modules["bentpipe.dashboard"])
    for name in [*sys.modules]:
        if name.startswith(("bentpipe.dashboard", package)):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    called = bentpipe("serve", tmp_path)
    assert called.code == 2
    assert called.err == (
        f"bentpipe: serve: {package} is not installed; pip install 'bentpipe[serve]'\n"
    )


@pytest.mark.system
def test_open_opens_the_page_in_a_browser(tmp_path: Path) -> None:
    """The standard library takes the browser from BROWSER."""
    seen = tmp_path / "seen"
    command = f'{sys.executable} -c \'import sys; open("{seen}", "w").write(sys.argv[1])\' %s'
    environment = {**os.environ, "BROWSER": command}
    with serving(tmp_path, "--open", env=environment) as server:
        deadline = time.monotonic() + TIMEOUT_S
        while not (seen.exists() and seen.read_text()) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert seen.read_text() == server.url


# --- events -------------------------------------------------------------------------------------


def events(reply: http.client.HTTPResponse) -> Iterator[tuple[str, Any]]:
    """Yield the events of a stream."""
    name = ""
    for line in reply:
        text = line.decode().strip()
        if text.startswith("event: "):
            name = text.removeprefix("event: ")
        elif text.startswith("data: "):
            yield name, json.loads(text.removeprefix("data: "))


@pytest.mark.system
def test_a_new_result_is_an_event(tmp_path: Path, small_result: Result) -> None:
    with serving(tmp_path) as server:
        with server.stream("/events/list") as stream:
            assert stream.getheader("content-type") == "text/event-stream; charset=utf-8"
            following = events(stream)
            (first, before) = next(following)
            small_result.save(tmp_path / "new")
            (second, after) = next(following)
        assert first == second == "list"
        assert before != after
        assert b"/result/new" in server.get("/list").content


def test_streams_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "STREAMS_MAX", 0)
    with TestClient(create_app(tmp_path)) as client:
        for path in ("/events/list", "/events/lab/sat"):
            reply = client.get(path)
            assert reply.status_code == 503
            assert "too many pages follow this server" in reply.json()["error"]


def status(at_ns: int, delivered_bytes: int) -> dict[str, Any]:
    direction = {
        "delivered_bytes": delivered_bytes,
        "delivered_packets": 10,
        "queue_bytes": 3_000,
        "queue_packets": 2,
        "dropped_packets": {"queue_full": 1},
    }
    report = {
        "at_ns": at_ns,
        "directions": {"forward": direction},
        "lateness": {"p50_ns": 1_000, "p99_ns": 2_000, "max_ns": 3_000},
        "invalid": None,
    }
    change = {"at_ns": 500_000_000, "settings": ["link.forward.rate=1Mbit/s", "link.outage=on"]}
    return {"report": report, "failure": None, "changes": [change]}


def test_a_sample_of_a_lab_has_the_rate_since_the_one_before() -> None:
    """Given 125 kB in the first second and 250 kB in the next one, expect 1 and 2 Mbit/s."""
    rates = DeliveredRates()
    first = lab_sample(status(1_000_000_000, 125_000), rates)
    second = lab_sample(status(2_000_000_000, 375_000), rates)
    assert first["directions"][0]["rate_mbps"] == pytest.approx(1.0)
    assert second["directions"][0]["rate_mbps"] == pytest.approx(2.0)
    assert second["directions"][0]["queue_kb"] == 3.0
    assert second["directions"][0]["lost"] == {"queue_full": 1}
    assert second["late_us"] == {"p50": 1.0, "p99": 2.0, "max": 3.0}
    assert second["changes"] == [
        {"at_s": 0.5, "settings": "link.forward.rate=1Mbit/s link.outage=on"}
    ]
    assert second["verdict"] is None


@needs_lab
def test_a_lab_is_followed_until_it_ends(tmp_path: Path) -> None:
    """Given a lab, expect it in the list, samples of it, a change, and the event of its end."""
    name = f"seen-{os.getpid()}"
    up = [sys.executable, "-m", "bentpipe", "lab", "up", name, "--link", "leo"]
    subprocess.run(up, check=True, capture_output=True)
    try:
        with serving(tmp_path) as server, server.stream(f"/events/lab/{name}") as stream:
            assert f'href="/lab/{name}"'.encode() in server.get("/").content
            assert f"<h1>Lab {name}</h1>".encode() in server.get(f"/lab/{name}").content
            following = events(stream)
            kind, sample = next(following)
            assert (kind, sample["changes"]) == ("sample", [])
            assert [each["name"] for each in sample["directions"]] == ["forward", "return"]
            assert in_process("lab", "set", name, "link.forward.rate=1Mbit/s").returncode == 0
            changed = next(each for _, each in following if each["changes"])
            assert changed["changes"][0]["settings"] == "link.forward.rate=1Mbit/s"
            assert changed["at_s"] > sample["at_s"]
            end = threading.Thread(target=in_process, args=("lab", "down", name))
            end.start()
            assert [kind for kind, _ in following][-1] == "ended"
            end.join()
            assert server.get(f"/lab/{name}").status == 404
    finally:
        in_process("lab", "down", name)
