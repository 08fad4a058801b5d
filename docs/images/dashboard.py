"""Redraw the picture of docs/how-to/look-at-results.md: ``python docs/images/dashboard.py FILE``.

It needs Debian's chromium. The file is WebP.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import threading
from io import BytesIO
from pathlib import Path
from queue import Queue

from PIL import Image
from playwright.sync_api import sync_playwright

import bentpipe
from bentpipe.dashboard import serve

SIZE = {"width": 1280, "height": 960}
QUALITY = 80


def main(target: Path) -> None:
    """Run an example, serve it, and take a picture of its page."""
    with tempfile.TemporaryDirectory() as folder:
        scenario = Path("scenarios/leo-two-flows.yaml")
        bentpipe.simulate(scenario).save(Path(folder) / "leo")
        urls: Queue[str] = Queue()
        options = {"ready": urls.put}
        threading.Thread(target=serve, args=(folder,), kwargs=options, daemon=True).start()
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=shutil.which("chromium"), args=["--no-sandbox"]
            )
            page = browser.new_page(viewport=SIZE)  # type: ignore[arg-type]
            page.goto(f"{urls.get()}result/leo")
            page.wait_for_selector("[data-chart=drops] canvas")
            picture = page.screenshot()
            browser.close()
    Image.open(BytesIO(picture)).save(target, "WEBP", quality=QUALITY, method=6)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
