"""The client of web pages in real time: Chromium without a window.

It is run as ``python -m bentpipe.live.browser JSON``, on the near side of the link. It prints a
line when the browser is ready, and starts on SIGUSR1. Its first connection to the server bypasses
the link: it tells the server which pages are loaded. Each page has a host name of its own, so that
the browser opens new connections and finds nothing in its caches. When all pages are loaded, at an
error or when it is interrupted, it prints a `FlowReport`.

The browser is driven through its DevTools protocol over a pipe,
https://chromedevtools.github.io/devtools-protocol/: with ``--remote-debugging-pipe`` it reads JSON
messages that end with a zero byte from descriptor 3, and writes its own to 4.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
from base64 import b64encode
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

from bentpipe._core import Stream
from bentpipe.live.exchanges import new_socket, run_until_interrupted
from bentpipe.live.flow_report import FlowReport, Row
from bentpipe.live.page_server import FIRST_DOCUMENT, look_up
from bentpipe.units import NS_PER_MS

# Debian's name, and those of other distributions.
PROGRAMS: Final = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
# Nothing but the page may use the link, and no feature may ask somebody else.
_OPTIONS: Final = (
    "--headless",
    "--remote-debugging-pipe",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--disable-extensions",
    "--disable-component-update",
    "--disable-background-networking",
    "--disable-domain-reliability",
    "--disable-features=OptimizationHints,MediaRouter,Translate,HttpsUpgrades",
    "--metrics-recording-only",
    "--password-store=basic",
)
START_TIMEOUT_S: Final = 60.0
_END: Final = b"\0"
_FIRST_FREE_DESCRIPTOR: Final = 10
_LINE_MAX: Final = 300
# unix(7): sun_path has 108 bytes, with a zero byte at the end.
_SOCKET_PATH_MAX: Final = 107
_SOCKET_CHARACTERS: Final = len("/org.chromium.Chromium.123456/SingletonSocket")
_PIECE_BYTES: Final = 1 << 16
_END_TIMEOUT_S: Final = 1.0
_POLL_S: Final = 0.01


def installed_browser() -> str | None:
    """Return the path of Chromium; None if it is not installed."""
    return next((path for name in PROGRAMS if (path := shutil.which(name)) is not None), None)


class BrowserError(Exception):
    """The browser refused a command, ended, or did not load a page as a whole."""


class Browser:
    """A context manager: a browser with one page. The profile in ``folder`` must be new."""

    def __init__(self, program: str, folder: Path, options: Sequence[str]) -> None:
        command = [program, *_OPTIONS, f"--user-data-dir={folder}", *options]
        if os.geteuid() == 0:
            # Chromium refuses to start its sandbox as root; all pages are bentpipe's own.
            command.append("--no-sandbox")
        self._read, its_write = _pipe()
        its_read, self._write = _pipe()
        environment = {**os.environ, "HOME": str(folder), "TMPDIR": _temporary(folder)}
        self._errors = folder / "stderr.txt"
        with self._errors.open("w") as errors:
            self._process = os.posix_spawn(
                program,
                [*command, "about:blank"],
                environment,
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, errors.fileno(), 1),
                    (os.POSIX_SPAWN_DUP2, errors.fileno(), 2),
                    (os.POSIX_SPAWN_DUP2, its_read, 3),
                    (os.POSIX_SPAWN_DUP2, its_write, 4),
                ],
                setpgroup=0,
                setsigmask=(),
            )
        os.close(its_read)
        os.close(its_write)
        self._unread = b""
        self._events: list[dict[str, Any]] = []
        self._last_id = 0
        self._session: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the browser: it ends by itself when the pipe is closed."""
        os.close(self._write)
        os.close(self._read)
        until_s = time.monotonic() + _END_TIMEOUT_S
        while os.waitpid(self._process, os.WNOHANG)[0] == 0:
            if time.monotonic() > until_s:
                self._kill()
            time.sleep(_POLL_S)
        # Helper processes may still write to the profile.
        self._kill()

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process, signal.SIGKILL)

    def attach(self) -> None:
        """Open a session with the page, once the browser has started.

        Raises:
            BrowserError: it does not start.
        """
        until_s = time.monotonic() + START_TIMEOUT_S
        while not (pages := self._pages(until_s)):
            time.sleep(_POLL_S)
        target = {"targetId": pages[0]["targetId"], "flatten": True}
        self._session = self.call("Target.attachToTarget", target, until_s)["sessionId"]
        self.call("Page.enable", {}, until_s)
        self.call("Page.setLifecycleEventsEnabled", {"enabled": True}, until_s)

    def _pages(self, until_s: float) -> list[dict[str, Any]]:
        targets = self.call("Target.getTargets", {}, until_s)["targetInfos"]
        return [target for target in targets if target["type"] == "page"]

    def call(
        self, method: str, parameters: dict[str, Any], until_s: float | None = None
    ) -> dict[str, Any]:
        """Call a method; return its result.

        Raises:
            BrowserError: the browser refused the command, ended, or did not answer by ``until_s``
                on the monotonic clock.
        """
        self._last_id += 1
        message: dict[str, Any] = {"id": self._last_id, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        try:
            os.write(self._write, json.dumps(message).encode() + _END)
        except BrokenPipeError:
            raise self._has_ended() from None
        while (reply := self._message(until_s)).get("id") != self._last_id:
            self._events.append(reply)
        if "error" in reply:
            raise BrowserError(f"{method}: {reply['error']['message']}")
        result: dict[str, Any] = reply["result"]
        return result

    def load(self, url: str) -> None:
        """Load a page, up to the end of its load event.

        Raises:
            BrowserError: it cannot be loaded, or the browser ended.
        """
        self._events.clear()
        reply = self.call("Page.navigate", {"url": url})
        if "errorText" in reply:
            raise BrowserError(reply["errorText"])
        # Another document, such as about:blank, has a load event, too.
        loaded = {"name": "load", **{key: reply[key] for key in ("frameId", "loaderId")}}
        while not any(
            event.get("method") == "Page.lifecycleEvent"
            and loaded.items() <= event["params"].items()
            for event in self._events
        ):
            self._events.append(self._message(None))

    def _message(self, until_s: float | None) -> dict[str, Any]:
        while _END not in self._unread:
            left_s = None if until_s is None else max(0.0, until_s - time.monotonic())
            if not select.select([self._read], [], [], left_s)[0]:
                raise BrowserError("Chromium does not answer")
            piece = os.read(self._read, _PIECE_BYTES)
            if not piece:
                raise self._has_ended()
            self._unread += piece
        text, _, self._unread = self._unread.partition(_END)
        message: dict[str, Any] = json.loads(text)
        return message

    def _has_ended(self) -> BrowserError:
        """Return the error of a browser that ended, with the last line that it printed."""
        last = self._errors.read_text(errors="replace").strip().rpartition("\n")[2].strip()
        return BrowserError(f"Chromium has ended{': ' if last else ''}{last[:_LINE_MAX]}")


def _temporary(folder: Path) -> str:
    """Return where the browser makes a folder for its socket, with a path that is short enough."""
    path = str(folder.parent)
    return path if len(path) + _SOCKET_CHARACTERS <= _SOCKET_PATH_MAX else "/tmp"


def _pipe() -> tuple[int, int]:
    """Return a pipe whose descriptors are none of those that the browser gets."""
    ends = os.pipe()
    read, write = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE_DESCRIPTOR) for end in ends)
    for end in ends:
        os.close(end)
    return read, write


# --- the client ---------------------------------------------------------------------------------

_DOMAIN: Final = "bentpipe.test"
_OK: Final = 200
# A browser keeps the times of 250 resources by default (Resource Timing, section 4.2).
_KEEP_TIMES: Final = "performance.setResourceTimingBufferSize(1e6)"
_TIMES: Final = """(() => {
    const [page] = performance.getEntriesByType("navigation");
    const resources = performance.getEntriesByType("resource");
    return JSON.stringify({
        ...page.toJSON(),
        timeOrigin: performance.timeOrigin,
        statuses: [page, ...resources].map(each => [each.name, each.responseStatus]),
    });
})()"""

# Columns of `pages`, and their names in Navigation Timing. A page is finished at its load event.
_MOMENTS: Final = {
    "resolved_ns": None,
    "established_ns": "connectEnd",
    "first_byte_ns": "responseStart",
    "document_ns": "responseEnd",
    "finished_ns": "loadEventStart",
}

# The first page of a browser takes longer, for instance for fonts; a user's has loaded some.
_FIRST_PAGE: Final = "data:text/html;base64," + b64encode(FIRST_DOCUMENT).decode()


class Client:
    """Loads pages one after the other, and waits between them."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._think = Stream(settings["seed"], f"flow.{settings['name']}.think")
        self._pages: list[Row] = []
        self._error: str | None = None

    def run(self, profile: Path) -> int:
        """Load the pages of the flow, or until SIGINT, and print the report; return the exit code.

        The folder ``profile`` must be empty.
        """
        settings = self._settings
        with new_socket(settings) as control:
            control.connect((settings["address"], settings["port"]))
            options = options_of(settings["address"], control.makefile().readline().strip())
            with Browser(settings["browser"], profile, options) as browser:
                # The end of the browser does not delay the report.
                return run_until_interrupted(
                    partial(self._load_all, browser, control),
                    lambda: FlowReport(error=self._error, pages=self._pages),
                )

    def _load_all(self, browser: Browser, control: socket.socket) -> None:
        workload = self._settings["workload"]
        try:
            browser.attach()
            browser.call("Page.addScriptToEvaluateOnNewDocument", {"source": _KEEP_TIMES})
            browser.load(_FIRST_PAGE)
            print(flush=True)
            signal.sigwait({signal.SIGUSR1})
            while workload["pages"] is None or len(self._pages) < workload["pages"]:
                if self._pages:
                    time.sleep(self._think.draw(json.dumps(workload["think_ns"])) / 1e9)
                self.load(browser)
                control.sendall(b"%d\n" % (len(self._pages) - 1))
        except (BrowserError, OSError) as error:
            where = f"page {len(self._pages) - 1}: " if self._pages else ""
            self._error = f"{where}{error}"

    def load(self, browser: Browser) -> None:
        """Load the next page, and keep its times.

        Raises:
            BrowserError: it cannot be loaded, or its document or an object is not there.
        """
        number, workload = len(self._pages), self._settings["workload"]
        start_ns = time.monotonic_ns()
        page: Row = {"start_ns": start_ns, **dict.fromkeys(_MOMENTS)}
        self._pages.append(page)
        if workload["dns"]:
            look_up(self._settings["address"], self._settings["port"], number)
            start_ns = page["resolved_ns"] = time.monotonic_ns()
        scheme = "http" if workload["tls"] is None else "https"
        url = f"{scheme}://page-{number}.{_DOMAIN}:{self._settings['port']}/{number}/"
        browser.load(url)
        asked = {"expression": _TIMES, "returnByValue": True}
        times = json.loads(browser.call("Runtime.evaluate", asked)["result"]["value"])
        for name, status in times["statuses"]:
            if status != _OK:
                reason = f": HTTP status {status}" if status else ""
                raise BrowserError(f"{name} was not loaded{reason}")
        # The time origin (High Resolution Time, section 4) is later than the click, and the browser
        # may open connections before it. It is on the real-time clock.
        origin_ns = round(times["timeOrigin"] * NS_PER_MS) - (time.time_ns() - time.monotonic_ns())
        page |= {
            moment: max(start_ns, origin_ns + round(times[name] * NS_PER_MS))
            for moment, name in _MOMENTS.items()
            if name is not None
        }


def options_of(address: str, key_sha256: str) -> list[str]:
    """Return the options that map the host names of pages to the server, and trust its key."""
    trusted = [f"--ignore-certificate-errors-spki-list={key_sha256}"] if key_sha256 else []
    return [f"--host-resolver-rules=MAP *.{_DOMAIN} {address},MAP * ~NOTFOUND", *trusted]


def main(settings: dict[str, Any]) -> int:
    """Load the pages and print the report; return the exit code."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    # Processes of the browser may still write while the folder is removed.
    with tempfile.TemporaryDirectory(prefix="bentpipe-", ignore_cleanup_errors=True) as profile:
        return Client(settings).run(Path(profile))


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
