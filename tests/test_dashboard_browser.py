"""The pages of `bentpipe serve` in headless Chromium: what a person sees and can do.

Playwright drives Debian's Chromium. Chromium's proxy is a socket of the test, so that a request to
anywhere but this machine would be seen.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from chromium import DRAWN, TIMEOUT_MS, Proxy, box_of, drawn, wait_for_charts
from conftest import ROOT, SMALL, default_signals, in_process, needs, needs_lab
from playwright.sync_api import Browser, Page, expect
from test_dashboard_server import Server, serving
from test_lab import wait_until

from bentpipe import Result, simulate

pytestmark = needs("chromium")

DESKTOP: Final = {"width": 1280, "height": 800}
PHONE: Final = {"width": 390, "height": 844}
# report/style.py: the first colour of lines, in light and dark.
BLUE: Final = "23,105,170"
PALE_BLUE: Final = "108,178,240"
# In the 2 s that the small scenario takes without outages, and twice as long with them.
OUTAGE: Final = {"every": "200 ms", "for": "100 ms"}
# How many pixels of a canvas are shaded: neither empty nor opaque.
SHADED: Final = """canvas => {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    let count = 0;
    for (let i = 3; i < data.length; i += 4) count += data[i] > 60 && data[i] < 100;
    return count;
}"""


@pytest.fixture(scope="module")
def root(
    tmp_path_factory: pytest.TempPathFactory, small_result: Result, every_result: Result
) -> Path:
    root = tmp_path_factory.mktemp("results")
    small_result.save(root / "b-small")
    every_result.save(root / "a/every")
    simulate(SMALL | {"seed": 2, "name": "small, seed 2"}).save(root / "c-other")
    shutil.copytree(root / "b-small", root / "damaged")
    (root / "damaged/flows.parquet").unlink()
    return root


@pytest.fixture(scope="module")
def server(root: Path) -> Iterator[Server]:
    with serving(root) as server:
        yield server


@pytest.fixture
def page(browser: Browser, proxy: Proxy, server: Server) -> Iterator[Page]:
    """A page whose scripts do not fail, and that asks this server alone."""
    context = browser.new_context(base_url=server.url, viewport=DESKTOP)  # type: ignore[arg-type]
    page = context.new_page()
    page.set_default_timeout(TIMEOUT_MS)
    failed: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: failed.extend([message.text] * (message.type == "error")))
    page.on("pageerror", lambda error: failed.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    yield page
    context.close()
    assert failed == []
    assert asked
    assert [url for url in asked if not url.startswith("http://127.0.0.1:")] == []
    assert proxy.asked == []


def shown(page: Page) -> list[str]:
    """Return the folders in the list."""
    return page.locator("#entries tbody tr:visible .c-folder").all_inner_texts()


# --- the list -----------------------------------------------------------------------------------


@pytest.mark.system
def test_the_list_is_sorted_by_a_click_on_a_heading(page: Page) -> None:
    page.goto("/")
    # The newest first; a damaged one has no time.
    expect(page.locator("th[aria-sort=descending]")).to_have_text("ended")
    assert shown(page)[-1] == "damaged"
    heading = page.get_by_role("button", name="folder")
    heading.click()
    assert shown(page) == ["a/every", "b-small", "c-other", "damaged"]
    heading.click()
    assert shown(page) == ["damaged", "c-other", "b-small", "a/every"]
    sorted_by = page.locator("th[aria-sort=descending]")
    expect(sorted_by).to_have_text("folder")
    # The keyboard does the same.
    page.get_by_role("button", name="seed").press("Enter")
    assert shown(page) == ["b-small", "a/every", "c-other", "damaged"]


@pytest.mark.system
def test_the_list_is_filtered_by_words_and_kind(page: Page) -> None:
    page.goto("/")
    count = page.get_by_role("status")
    expect(count).to_have_text("4 results")
    page.get_by_label("Filter", exact=True).fill("SMALL completed")
    assert sorted(shown(page)) == ["b-small", "c-other"]
    expect(count).to_have_text("2 of 4 results")
    page.get_by_label("Filter", exact=True).fill("is missing")
    assert shown(page) == ["damaged"]
    page.get_by_label("Filter", exact=True).fill("")
    page.get_by_label("Kind").select_option("run")
    assert len(shown(page)) == 4


@pytest.mark.system
def test_a_result_appears_in_the_open_page(
    page: Page, root: Path, small_result: Result, every_result: Result
) -> None:
    """Given a filter, an order and a chosen result, expect them to stay as they are."""
    page.goto("/")
    for _ in range(2):
        page.get_by_role("button", name="folder").click()
    page.get_by_label("compare b-small").check()
    page.get_by_label("Filter", exact=True).fill("small")
    every_result.save(root / "new/every")
    small_result.save(root / "new/small")
    new = page.locator(".c-folder", has_text="new/small")
    expect(new).to_be_visible(timeout=TIMEOUT_MS)
    assert shown(page) == ["new/small", "damaged", "c-other", "b-small"]
    assert page.get_by_label("compare b-small").is_checked()
    shutil.rmtree(root / "new")
    expect(new).to_have_count(0, timeout=TIMEOUT_MS)


# --- a run --------------------------------------------------------------------------------------


@pytest.mark.system
def test_the_charts_of_a_run_are_drawn(page: Page) -> None:
    page.goto("/")
    page.get_by_role("link", name="small", exact=True).first.click()
    wait_for_charts(page)
    titles = page.locator("figure.chart figcaption b").all_inner_texts()
    assert titles[:4] == ["Goodput", "Throughput", "Queue", "Congestion window"]
    for name in ("goodput", "queues", "congestion_window", "smoothed_rtt"):
        assert drawn(page, name)[BLUE] > 100, name
    legend = page.locator("[data-chart=queues] .legend")
    expect(legend.locator("tbody tr").first).to_contain_text("forward")


@pytest.mark.system
def test_a_line_is_hidden_and_shown_by_its_name(page: Page) -> None:
    page.goto("/result/b-small")
    wait_for_charts(page)
    chart = page.locator("[data-chart=throughput]")
    name = chart.get_by_role("button", name="forward")
    before = drawn(page, "throughput")[BLUE]
    name.press("Space")
    expect(name).to_have_attribute("aria-pressed", "false")
    assert drawn(page, "throughput").get(BLUE, 0) < before / 10
    name.click()
    expect(name).to_have_attribute("aria-pressed", "true")
    assert drawn(page, "throughput")[BLUE] == before


@pytest.mark.system
def test_a_drag_zooms_all_charts_and_asks_for_more_points(page: Page) -> None:
    """Given a drag over the middle third, expect that third; after a double-click, all."""
    page.goto("/result/b-small")
    wait_for_charts(page)
    end_s = float(page.locator("#zoom").get_attribute("data-end") or 0)
    over = page.locator("[data-chart=queues] .u-over")
    box = box_of(over)
    third, middle = box["width"] / 3, box["y"] + box["height"] / 2
    with page.expect_response(re.compile("/data/chart/congestion_window/")) as asked:
        page.mouse.move(box["x"] + third, middle)
        page.mouse.down()
        page.mouse.move(box["x"] + 2 * third, middle, steps=5)
        page.mouse.up()
    sent = dict(re.findall(r"(from|to)=([\d.]+)", asked.value.url))
    assert float(sent["from"]) == pytest.approx(end_s / 3, rel=0.02)
    assert float(sent["to"]) == pytest.approx(end_s * 2 / 3, rel=0.02)
    expect(page.get_by_label("from")).to_have_value(re.compile(r"^0\.|^\d"))
    shown_from = float(page.get_by_label("from").input_value())
    assert shown_from == pytest.approx(end_s / 3, rel=0.02)
    with page.expect_response(re.compile("/data/chart/congestion_window/")) as asked:
        over.dblclick()
    assert asked.value.url.endswith(f"from=0&to={page.locator('#zoom').get_attribute('data-end')}")


@pytest.mark.system
def test_the_keyboard_zooms(page: Page) -> None:
    page.goto("/result/b-small")
    wait_for_charts(page)
    end_s = float(page.locator("#zoom").get_attribute("data-end") or 0)
    page.get_by_role("button", name="Zoom in").press("Enter")
    assert float(page.get_by_label("from").input_value()) == pytest.approx(end_s / 4, rel=1e-4)
    assert float(page.get_by_label("to").input_value()) == pytest.approx(end_s * 3 / 4, rel=1e-4)
    page.get_by_label("from").fill("0.5")
    page.get_by_label("to").fill("0.75")
    with page.expect_response(re.compile(r"/data/chart/queues/.*from=0\.5&to=0\.75")):
        page.get_by_label("to").press("Enter")
    page.get_by_role("button", name="Show all").press("Enter")
    assert page.get_by_label("from").input_value() == "0"


@pytest.mark.system
def test_the_pointer_shows_values(page: Page, small_result: Result) -> None:
    """Given the pointer at the end of the windows, expect the value of the sample before it."""
    page.goto("/result/b-small")
    wait_for_charts(page)
    box = box_of(page.locator("[data-chart=congestion_window] .u-over"))
    page.mouse.move(box["x"] + box["width"] / 10, box["y"] + box["height"] / 2)
    cell = page.locator("[data-chart=congestion_window] .legend tbody td:nth-child(2)")
    expect(cell).not_to_have_text("-")
    windows = {f"{size / 1e3:.4g}" for size in small_result.flow_samples["cwnd_bytes"]}
    assert cell.inner_text() in windows
    # The other charts show theirs at the same time.
    expect(
        page.locator("[data-chart=smoothed_rtt] .legend tbody td:nth-child(2)")
    ).not_to_have_text("-")


@pytest.mark.system
def test_outages_are_shaded_and_in_the_legend(page: Page, root: Path) -> None:
    """Given half of the time without a link, expect half of the plot in another colour."""
    link = {way: SMALL["link"][way] | {"outage": OUTAGE} for way in ("forward", "return")}
    simulate(SMALL | {"link": link}).save(root / "outages")
    page.goto("/result/outages")
    wait_for_charts(page)
    expect(page.locator("[data-chart=queues] .legend tr.outage")).to_have_text("outage")
    box = page.locator("[data-chart=queues] .u-over").bounding_box()
    assert box is not None
    # The page is white: --muted (report/style.py) with an opacity of 0x4d / 0xff is translucent.
    shaded = page.locator("[data-chart=queues] canvas").evaluate(SHADED)
    assert 0.4 < shaded / (box["width"] * box["height"]) < 0.55
    shutil.rmtree(root / "outages")


@pytest.mark.system
def test_a_damaged_result_says_why(page: Page) -> None:
    page.goto("/")
    page.locator("tr.damaged a").click()
    expect(page.locator(".notice")).to_have_text(
        "This result is damaged: flows.parquet: is missing."
    )


# --- comparison ---------------------------------------------------------------------------------


@pytest.mark.system
def test_two_runs_are_chosen_and_compared(page: Page) -> None:
    page.goto("/")
    button = page.get_by_role("button", name="Compare")
    expect(button).to_be_disabled()
    page.get_by_label("compare b-small").check()
    page.get_by_label("compare c-other").check()
    expect(button).to_be_enabled()
    page.get_by_label("compare c-other").uncheck()
    expect(button).to_be_disabled()
    page.get_by_label("compare c-other").check()
    button.click()
    wait_for_charts(page)
    assert page.locator("dl.pair dt").all_inner_texts() == ["A", "B"]
    expect(page.locator("table", has_text="B - A").first).to_contain_text("goodput")
    names = page.locator("[data-chart=congestion_window] .legend button").all_inner_texts()
    assert names == ["A: bulk-1 (forward)", "B: bulk-1 (forward)"]
    assert drawn(page, "congestion_window")[BLUE] > 100


# --- sweeps -------------------------------------------------------------------------------------


def sweep(root: Path, *arguments: str) -> list[str]:
    """Return the arguments that write a sweep with two varied fields to the folder ``sweep``."""
    scenario = SMALL | {"packet_events": False}
    (root / "scenario.yaml").write_text(json.dumps(scenario))
    varied = ["link.forward.delay=10ms,100ms,300ms", "traffic.0.tcp.congestion_control=cubic,bbr"]
    options = [each for field in varied for each in ("--vary", field)]
    return [
        "sweep",
        str(root / "scenario.yaml"),
        *options,
        "--out",
        str(root / "sweep"),
        *arguments,
    ]


@pytest.mark.system
def test_a_sweep_is_drawn_with_bands_and_what_is_chosen(page: Page, tmp_path: Path) -> None:
    """Given goodput over delay, then utilization over congestion control, expect each drawn."""
    assert in_process(*sweep(tmp_path, "--seeds", "4")).returncode == 0
    with serving(tmp_path) as own:
        page.goto(f"{own.url}result/sweep")
        title = page.locator("figcaption b")
        expect(title).to_have_text("goodput, application bits [Mbit/s] over link.forward.delay.")
        legend = page.locator(".legend button")
        assert legend.all_inner_texts() == ["cubic", "bbr"]
        expect(page.locator("#points tbody tr")).to_have_count(6)
        colours: dict[str, int] = page.locator("canvas").evaluate(DRAWN)
        assert colours[BLUE] > 100
        page.locator("select[name=metric]").select_option("directions.utilization")
        expect(title).to_have_text("utilization, busy time / run [%] over link.forward.delay.")
        page.locator("select[name=x]").select_option("traffic.0.tcp.congestion_control")
        expect(legend).to_have_count(1)
        page.locator("select[name=by]").select_option("link.forward.delay")
        expect(legend).to_have_text(["10ms", "100ms", "300ms"])
        # The address leads to the same chart.
        page.goto(page.url)
        expect(legend).to_have_text(["10ms", "100ms", "300ms"])
        expect(title).to_have_text(
            "utilization, busy time / run [%] over traffic.0.tcp.congestion_control."
        )


@pytest.mark.system
def test_a_sweep_is_followed_while_it_runs(page: Page, tmp_path: Path) -> None:
    """Given an open list, then a sweep, expect its progress, and its chart after Ctrl-C."""
    with serving(tmp_path) as own:
        page.goto(own.url)
        process = subprocess.Popen(
            [sys.executable, "-m", "bentpipe", *sweep(tmp_path, "--seeds", "15000")],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=default_signals,  # noqa: PLW1509 - Chromium is another process
        )
        try:
            expect(page.locator(".c-kind", has_text="sweep")).to_be_visible(timeout=TIMEOUT_MS)
            page.get_by_role("link", name="small").click()
            progress = page.locator("#running [role=status]")
            expect(progress).to_have_text(
                re.compile(r"^[\d,]+ of 90,000 runs have ended, [\d,.]+ runs/s, \d+ (s|min) left$"),
                timeout=TIMEOUT_MS,
            )
            process.send_signal(signal.SIGINT)
            expect(page.locator(".notice").first).to_contain_text(
                "The sweep was interrupted.", timeout=TIMEOUT_MS
            )
            wait_for_charts(page)
        finally:
            process.kill()
            process.wait()


# --- a lab --------------------------------------------------------------------------------------


@needs_lab
@needs("ping")
def test_a_lab_is_followed_while_it_runs(page: Page) -> None:
    """Given an open list, then a lab, traffic and a change, expect each on the page."""
    name = f"page-{os.getpid()}"
    program = [sys.executable, "-m", "bentpipe", "lab"]
    page.goto("/")
    subprocess.run([*program, "up", name, "--link", "leo"], check=True, capture_output=True)
    try:
        page.get_by_role("link", name=name).click()
        rows = page.locator("#directions tbody tr")
        expect(rows).to_have_count(2, timeout=TIMEOUT_MS)
        fetch = ["exec", name, "--", "ping", "-c", "3", "-i", "0.2", "world"]
        done = subprocess.run([*program, *fetch], check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        expect(rows.first.locator("td").nth(4)).not_to_have_text("0", timeout=TIMEOUT_MS)
        assert in_process("lab", "set", name, "link.forward.rate=1Mbit/s").returncode == 0
        changes = page.locator("#changes")
        expect(changes).to_contain_text("link.forward.rate=1Mbit/s", timeout=TIMEOUT_MS)
        expect(page.locator("[data-live=rate_mbps] .plot")).to_have_attribute(
            "data-points", re.compile(r"^([3-9]|\d\d+)$"), timeout=TIMEOUT_MS
        )
    finally:
        in_process("lab", "down", name)
    expect(page.get_by_role("status")).to_have_text("the lab has ended", timeout=TIMEOUT_MS)


# --- every page ---------------------------------------------------------------------------------

PATHS: Final = [
    "/",
    "/result/b-small",
    "/result/a/every",
    "/result/damaged",
    "/compare?result=b-small&result=c-other",
    "/nothing",
]


@pytest.mark.system
@pytest.mark.parametrize("path", PATHS)
def test_no_page_is_wider_than_the_window(page: Page, path: str) -> None:
    """Given a page opened on a phone, expect that, and when its window has that of a desktop."""
    for size in (PHONE, DESKTOP):
        page.set_viewport_size(size)  # type: ignore[arg-type]
        if size == PHONE:
            _visit(page, path)
        widths = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert widths[0] <= widths[1] == size["width"]


def _visit(page: Page, path: str) -> None:
    if path == "/nothing":
        # The console tells of every reply that is an error.
        reply = page.request.get(path)
        assert reply.status == 404
        page.goto("/result/damaged")
        return
    page.goto(path)
    wait_for_charts(page)


@pytest.mark.system
@pytest.mark.parametrize("path", PATHS[:-1])
def test_every_control_has_a_name_and_every_page_one_heading(page: Page, path: str) -> None:
    """Given the tree that screen readers get, expect a name for each control and picture."""
    _visit(page, path)
    tree = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")
    found = [
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in tree["nodes"]
        if not node.get("ignored")
    ]
    controls = {"button", "link", "checkbox", "combobox", "searchbox", "spinbutton", "image", "img"}
    assert [role for role, name in found if role in controls and not name.strip()] == []
    assert page.locator("h1").count() == 1
    assert page.locator("main").count() == page.locator("nav[aria-label]").count() == 1
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"


@pytest.mark.system
def test_dark_mode_changes_page_and_charts(page: Page) -> None:
    page.goto("/result/b-small")
    wait_for_charts(page)
    background = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(background) == "rgb(255, 255, 255)"
    assert BLUE in drawn(page, "queues")
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(background) == "rgb(20, 24, 29)"
    # The page redraws its charts some time after its style has changed.
    wait_until(lambda: PALE_BLUE in drawn(page, "queues"), "the chart has the colours of before")
    assert BLUE not in drawn(page, "queues")


@pytest.mark.system
def test_no_request_leaves_the_machine_even_if_a_page_tries(
    browser: Browser, server: Server, proxy: Proxy
) -> None:
    """Given a picture, a request and scripts in the page, expect its policy to stop each."""
    context = browser.new_context(base_url=server.url)
    page = context.new_page()
    page.goto("/")
    tried = page.evaluate(
        """async () => {
            const stopped = [];
            document.addEventListener(
                "securitypolicyviolation", (event) => stopped.push(event.effectiveDirective));
            document.body.append(Object.assign(new Image(), { src: "http://192.0.2.1/a.png" }));
            await fetch("http://192.0.2.1/").catch(() => {});
            const inline = document.createElement("script");
            inline.textContent = "window.ran = true";
            document.body.append(inline);
            const other = document.createElement("script");
            other.src = "http://192.0.2.1/a.js";
            document.body.append(other);
            await new Promise((resolve) => setTimeout(resolve, 500));
            return [stopped.sort(), window.ran ?? false];
        }"""
    )
    context.close()
    assert tried == [["connect-src", "img-src", "script-src-elem", "script-src-elem"], False]
    assert proxy.asked == []


@pytest.mark.system
def test_the_proxy_of_these_tests_would_see_a_request(browser: Browser) -> None:
    """Given a page without a policy, expect its request to another address at the proxy."""
    seen = Proxy()
    context = browser.new_context(proxy={"server": f"http://127.0.0.1:{seen.port}"})
    page = context.new_page()
    page.goto("data:text/html,<title>page</title>")
    page.evaluate("fetch('http://192.0.2.1/').catch(() => {})")
    context.close()
    seen.close()
    assert seen.asked[0].startswith(b"GET http://192.0.2.1/")


def test_the_picture_of_the_docs_is_small() -> None:
    size = (ROOT / "docs/images/dashboard.webp").stat().st_size
    assert 10_000 < size < 150_000
