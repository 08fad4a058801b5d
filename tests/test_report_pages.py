"""Reports and pages in headless Chromium: nothing is cut on a phone, a screen or A4."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from chromium import TIMEOUT_MS, wait_for_charts
from conftest import ROOT, SMALL, Program, needs
from playwright.sync_api import Browser, Page
from test_dashboard_server import Server, serving

from bentpipe import compare, simulate
from bentpipe.cli.app import main
from bentpipe.report.comparison import comparison_report
from bentpipe.report.run import run_report

pytestmark = [needs("chromium"), pytest.mark.system]

PHONE: Final = {"width": 390, "height": 844}
SCREEN: Final = {"width": 1280, "height": 900}
# 210 mm less two margins of 12 mm, in CSS pixels of 1/96 inch.
A4: Final = {"width": 703, "height": 1032}
VOICE: Final[dict[str, Any]] = {
    "name": "Two calls",
    "link": {"preset": "geo"},
    "traffic": [{"name": "call", "kind": "voice", "count": 2, "duration": "10 s"}],
    "duration": "20 s",
    "sample_interval": "100 ms",
}
TERMINALS: Final[dict[str, Any]] = {
    "name": "Thirty terminals",
    "link": {
        "terminals": 30,
        "forward": {"rate": "20 Mbit/s", "delay": "270 ms"},
        "return": {"rate": "2 Mbit/s", "delay": "270 ms"},
    },
    "gateways": {
        "hub": {"functions": ["processor", "pep", "aggregator"]},
        "terminal": {"functions": ["processor", "aggregator"]},
    },
    "traffic": [
        {"kind": "bulk", "direction": "forward", "size": "50 kB", "terminal": "all"},
        {"name": "call", "kind": "voice", "terminal": "all", "duration": "3 s"},
    ],
    "duration": "10 s",
    "sample_interval": "100 ms",
}
# The elements that a reader cannot reach: beyond the edge of the page, and in no box that scrolls.
CUT: Final = """() => {
    const width = document.documentElement.clientWidth;
    const scrolls = element => {
        for (let box = element.parentElement; box !== document.body; box = box.parentElement) {
            if (["auto", "scroll"].includes(getComputedStyle(box).overflowX)) return true;
        }
        return false;
    };
    const cut = [...document.querySelectorAll("body *")].filter(element => {
        const { left, right, width: own } = element.getBoundingClientRect();
        // What is for the keyboard is outside until it has the focus.
        if (own === 0 || element.closest(".skip, .hidden")) return false;
        return (right > width + 1 || left < -1) && !scrolls(element);
    });
    const page = document.documentElement.scrollWidth > width ? ["the page"] : [];
    return [...page, ...cut.map(element => element.outerHTML.slice(0, 80))];
}"""
# The tables wider than the page, and the texts below 9 pt, 12 pixels.
UNPRINTABLE: Final = """() => {
    const found = [];
    for (const table of document.querySelectorAll("table, figure > svg, pre")) {
        const width = table.getBoundingClientRect().width;
        if (width > document.body.clientWidth + 0.5) found.push(`${width}: ${table.textContent}`);
    }
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
        const element = texts.currentNode.parentElement;
        const text = texts.currentNode.textContent.trim();
        if (text === "" || element.getClientRects().length === 0) continue;
        let size = parseFloat(getComputedStyle(element).fontSize);
        if (element.closest("svg")) {
            const matrix = element.getScreenCTM();
            size *= Math.hypot(matrix.a, matrix.b);
        }
        if (size < 11.99) found.push(`${size}: ${text}`);
    }
    return found;
}"""


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of reports as HTML."""
    folder = tmp_path_factory.mktemp("reports")
    small = SMALL | {"packet_events": False}
    texts = {
        "voice": run_report(simulate(VOICE)),
        "terminals": run_report(simulate(TERMINALS)),
        "comparison": comparison_report(compare(small, small | {"seed": 2}, seeds=5)),
    }
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    assert main(["study", "jpl", "--seeds", "1", "--out", str(folder / "study")]) == 0
    (folder / "study" / "report.html").rename(folder / "study.html")
    return folder


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(TIMEOUT_MS)
    yield page
    context.close()


def assert_nothing_is_cut(page: Page) -> None:
    for size in (PHONE, SCREEN):
        page.set_viewport_size(size)  # type: ignore[arg-type]
        assert page.evaluate(CUT) == []


def assert_printable(page: Page) -> None:
    page.emulate_media(media="print")
    page.set_viewport_size(A4)  # type: ignore[arg-type]
    assert page.evaluate(UNPRINTABLE) == []


@pytest.mark.parametrize("name", ["voice", "terminals", "comparison", "study"])
def test_a_report_fits_phones_screens_and_paper(name: str, reports: Path, page: Page) -> None:
    page.goto((reports / f"{name}.html").as_uri())
    assert_nothing_is_cut(page)
    assert_printable(page)


def test_the_page_of_a_sweep_fits(page: Page, bentpipe: Program, tmp_path: Path) -> None:
    scenario = ROOT / "scenarios" / "geo-bulk.yaml"
    vary = ("--vary", "link.forward.delay=10ms,250ms", "--vary", "traffic.0.size=100kB,1MB")
    assert bentpipe("sweep", scenario, *vary, "--out", tmp_path / "sweep").code == 0
    server: Server
    with serving(tmp_path) as server:
        page.goto(f"{server.url}/result/sweep")
        wait_for_charts(page)
        assert_nothing_is_cut(page)
        assert_printable(page)
