"""Chromium without a window, driven by its DevTools protocol over a pipe.

https://chromedevtools.github.io/devtools-protocol/; with ``--remote-debugging-pipe`` the browser
reads JSON messages that end with a zero byte from descriptor 3, and writes its own to 4.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

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
    """A browser with one page, as a context; the profile in ``folder`` must be new."""

    def __init__(self, program: str, folder: Path, options: Sequence[str]) -> None:
        command = [program, *_OPTIONS, f"--user-data-dir={folder}", *options]
        if os.geteuid() == 0:
            # Chromium refuses to start its sandbox as root; all pages are bentpipe's own.
            command.append("--no-sandbox")
        own_read, its_write = _pipe()
        its_read, own_write = _pipe()
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
        self._read, self._write = own_read, own_write
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

    def _pages(self, until_s: float) -> list[dict[str, Any]]:
        targets = self.call("Target.getTargets", {}, until_s)["targetInfos"]
        return [each for each in targets if each["type"] == "page"]

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
        while True:
            reply = self._message(until_s)
            if reply.get("id") == self._last_id:
                break
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
        while not any(each.get("method") == "Page.loadEventFired" for each in self._events):
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
        lines = self._errors.read_text(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
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
