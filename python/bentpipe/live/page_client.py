"""The client of web pages in real time: headless Chromium.

It is run as ``python -m bentpipe.live.page_client JSON``, on the near side of the link. It
prints a line when the browser is ready, and starts on SIGUSR1. Its first connection to the server
bypasses the link: it tells the server which pages are loaded. Each page has a host name of its own,
so that the browser opens new connections and finds nothing in its caches. When all pages are
loaded, or it is interrupted, it prints a report as JSON.

Times are on the machine's monotonic clock, in ns.
"""

from __future__ import annotations

import json
import signal
import socket
import sys
import tempfile
import time
from base64 import b64encode
from pathlib import Path
from typing import Any, Final

from bentpipe._core import Stream
from bentpipe.live.devtools import Browser, BrowserError
from bentpipe.live.page_content import FIRST_DOCUMENT, look_up
from bentpipe.live.sender import new_socket

_NS_PER_MS: Final = 1_000_000
_DOMAIN: Final = "bentpipe.test"
_OK: Final = 200
# A browser keeps the times of 250 resources by default (Resource Timing, section 4.2).
_KEEP_TIMES: Final = "performance.setResourceTimingBufferSize(1e6)"
_TIMES: Final = """(() => {
    const [page] = performance.getEntriesByType("navigation");
    const resources = performance.getEntriesByType("resource");
    return JSON.stringify({
        timeOrigin: performance.timeOrigin,
        connectEnd: page.connectEnd,
        responseStart: page.responseStart,
        responseEnd: page.responseEnd,
        loadEventStart: page.loadEventStart,
        resources: resources.map(each => [each.name, each.responseStatus]),
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

Page = dict[str, int | None]


class Client:
    """Loads pages one after the other, and waits between them."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._think = Stream(settings["seed"], f"flow.{settings['name']}.think")
        self._pages: list[Page] = []
        self.error: str | None = None

    def run(self, profile: Path) -> None:
        """Load the pages of the flow, or until SIGINT, and print the report.

        The folder ``profile`` must be empty.
        """
        settings = self._settings
        with new_socket(settings) as control:
            control.connect((settings["address"], settings["port"]))
            options = _options(settings["address"], control.makefile().readline().strip())
            with Browser(settings["browser"], profile, options) as browser:
                try:
                    self._load_all(browser, control)
                except KeyboardInterrupt:
                    pass
                except (BrowserError, OSError) as error:
                    where = f"page {len(self._pages) - 1}: " if self._pages else ""
                    self.error = f"{where}{error}"
                # The report must be complete even if another SIGINT arrives. It is not delayed by
                # the end of the browser.
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                print(json.dumps(self.report()), flush=True)

    def _load_all(self, browser: Browser, control: socket.socket) -> None:
        workload = self._settings["workload"]
        browser.attach()
        browser.call("Page.addScriptToEvaluateOnNewDocument", {"source": _KEEP_TIMES})
        browser.load(_FIRST_PAGE)
        print(flush=True)
        signal.sigwait({signal.SIGUSR1})
        while workload["pages"] is None or len(self._pages) < workload["pages"]:
            if self._pages:
                time.sleep(self._think.draw(json.dumps(workload["think_ns"])) / 1e9)
            self._load(browser)
            control.sendall(b"%d\n" % (len(self._pages) - 1))

    def _load(self, browser: Browser) -> None:
        number, workload = len(self._pages), self._settings["workload"]
        start_ns = time.monotonic_ns()
        page: Page = {"start_ns": start_ns, **dict.fromkeys(_MOMENTS)}
        self._pages.append(page)
        if workload["dns"]:
            look_up(self._settings["address"], self._settings["port"], number)
            start_ns = page["resolved_ns"] = time.monotonic_ns()
        scheme = "http" if workload["tls"] is None else "https"
        url = f"{scheme}://page-{number}.{_DOMAIN}:{self._settings['port']}/{number}/"
        browser.load(url)
        asked = {"expression": _TIMES, "returnByValue": True}
        times = json.loads(browser.call("Runtime.evaluate", asked)["result"]["value"])
        failed = [name for name, status in times["resources"] if status != _OK]
        if failed:
            raise BrowserError(f"{failed[0]} was not loaded")
        # The time origin (High Resolution Time, section 4) is later than the click, and the browser
        # may open connections before it. It is on the real-time clock.
        origin_ns = round(times["timeOrigin"] * _NS_PER_MS) - (time.time_ns() - time.monotonic_ns())
        page |= {
            moment: max(start_ns, origin_ns + round(times[name] * _NS_PER_MS))
            for moment, name in _MOMENTS.items()
            if name is not None
        }

    def report(self) -> dict[str, Any]:
        """Return the report."""
        report = {"pages": self._pages}
        return report if self.error is None else {**report, "error": self.error}


def _options(address: str, key_sha256: str) -> list[str]:
    """Return the options of the browser: host names are known, and so is the server's key."""
    trusted = [f"--ignore-certificate-errors-spki-list={key_sha256}"] if key_sha256 else []
    return [f"--host-resolver-rules=MAP *.{_DOMAIN} {address},MAP * ~NOTFOUND", *trusted]


def main(settings: dict[str, Any]) -> int:
    """Load the pages and print the report; return the exit code."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    client = Client(settings)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Processes of the browser may still write while the folder is removed.
    with tempfile.TemporaryDirectory(prefix="bentpipe-", ignore_cleanup_errors=True) as profile:
        client.run(Path(profile))
    return 0 if client.error is None else 1


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
