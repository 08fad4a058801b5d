"""Headless Chromium for tests: a proxy that sees its requests, and what a chart has drawn."""

from __future__ import annotations

import re
import socket
import threading
from typing import Final

from playwright.sync_api import FloatRect, Locator, Page, expect

# Of a machine that does other work; pages answer within a fraction of a second.
TIMEOUT_MS: Final = 30_000
# Chromium asks its maker for updates, whatever the page and the options. The proxy refuses that.
OF_CHROMIUM: Final = re.compile(rb"\w+ (http://)?[\w-]+\.google(apis)?\.com[:/]")
# Of a chart: how many points are not the page's.
DRAWN: Final = """canvas => {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    const colours = {};
    for (let i = 0; i < data.length; i += 4) {
        if (data[i + 3] < 255) continue;
        const key = `${data[i]},${data[i + 1]},${data[i + 2]}`;
        colours[key] = (colours[key] ?? 0) + 1;
    }
    return colours;
}"""


class Proxy:
    """A proxy that refuses everything, and keeps what the pages asked it for."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.asked: list[bytes] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                request = connection.recv(4096)
            # A connection without a request asks for nothing.
            if request and not OF_CHROMIUM.match(request):
                self.asked.append(request)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def wait_for_charts(page: Page) -> None:
    expect(page.locator(".plot .facts")).to_have_count(0, timeout=TIMEOUT_MS)
    count = page.locator("figure.chart").count()
    expect(page.locator("figure.chart canvas")).to_have_count(count, timeout=TIMEOUT_MS)


def box_of(part: Locator) -> FloatRect:
    """Scroll to a part of the page; return where it is."""
    part.scroll_into_view_if_needed()
    box = part.bounding_box()
    assert box is not None
    return box


def drawn(page: Page, chart: str) -> dict[str, int]:
    """Return how many points of a chart have each colour."""
    found: dict[str, int] = page.locator(f"[data-chart={chart}] canvas").evaluate(DRAWN)
    return found
