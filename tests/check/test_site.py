"""The documentation site: complete, without broken links, and readable without a network."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from conftest import ROOT

import bentpipe

# Attributes by which a browser loads a resource; `a` and `link rel=canonical` load nothing.
LOADS = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
# Port 9 is discard (RFC 863): a connection to it is refused immediately.
NO_NETWORK = {
    "http_proxy": "http://127.0.0.1:9",
    "https_proxy": "http://127.0.0.1:9",
    "NO_MKDOCS_2_WARNING": "1",
}


@dataclass
class Html(HTMLParser):
    """The anchors, links and resources of one page."""

    path: Path
    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    resources: list[str] = field(default_factory=list)
    classes: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.classes.update(given.get("class", "").split())
        self.anchors.update(given[name] for name in ("id", "name") if given.get(name))
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        elif given.get(LOADS.get(tag, "")):
            self.resources.append(given[LOADS[tag]])


def build(tree: Path, site: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(site)],
        cwd=tree,
        env=os.environ | NO_NETWORK,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site as `make docs` does."""
    folder = tmp_path_factory.mktemp("site").resolve()
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Html]:
    return {path: Html(path) for path in sorted(site.rglob("*.html"))}


def test_every_page_of_the_tree_is_on_the_site(pages: dict[Path, Html], site: Path) -> None:
    docs = ROOT / "docs"
    expected = {str(page.relative_to(docs).with_suffix(".html")) for page in docs.rglob("*.md")}
    expected |= {"index.html", "api.html", "CONTRIBUTING.html", "CHANGELOG.html"}
    assert expected <= {str(path.relative_to(site)) for path in pages}


def test_the_api_reference_has_every_public_name(pages: dict[Path, Html], site: Path) -> None:
    names = {f"bentpipe.{name}" for name in dir(bentpipe) if name != "__version__"}
    assert names - pages[site / "api.html"].anchors == set()


def test_links_and_resources_of_the_site_exist(pages: dict[Path, Html], site: Path) -> None:
    broken = []
    for path, page in pages.items():
        if path.name == "404.html":  # served for any address, so its links start with /
            continue
        for target in page.links + page.resources:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            file = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchor = unquote(parts.fragment)
            missing = not file.is_file() or (file.suffix == ".html" and file not in pages)
            if missing or (anchor and anchor not in pages[file].anchors):
                broken.append(f"{path.relative_to(site)}: {target}")
    assert broken == []


def test_external_links_are_well_formed(pages: dict[Path, Html]) -> None:
    external = {link for page in pages.values() for link in page.links if urlsplit(link).scheme}
    assert len(external) > 5
    for link in external:
        parts = urlsplit(link)
        assert parts.scheme in {"http", "https"}, link
        assert re.fullmatch(r"[a-z0-9-]+(\.[a-z0-9-]+)+", parts.netloc), link


def test_a_browser_loads_nothing_from_the_network(pages: dict[Path, Html], site: Path) -> None:
    for page in pages.values():
        for resource in page.resources:
            assert urlsplit(resource).scheme in {"", "data"}, f"{page.path.name}: {resource}"
        # The theme would load a script from unpkg.com for a diagram.
        assert "mermaid" not in page.classes, page.path.name
    for style in site.rglob("*.css"):
        text = style.read_text(encoding="utf-8")
        loaded = re.findall(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//[^\s\"')]+", text)
        assert loaded == [], style.name


def test_broken_links_fail_the_build(tmp_path: Path) -> None:
    """Given links to no page and no anchor, in each kind of page, expect each to be named."""
    for name in ("python", "scenarios", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    (tmp_path / "README.md").write_text("# Start\n\n[lost](docs/no-page.md)\n")
    (tmp_path / "docs/results-format.md").write_text(
        "# Format\n\n[lost](model/link.md#no-anchor)\n"
    )
    cell = {
        "cell_type": "markdown",
        "metadata": {},
        "source": ["# Cells\n\n", "[lost](no-file.yaml)"],
    }
    (tmp_path / "docs/cells.ipynb").write_text(json.dumps({"cells": [cell]}))
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode == 1
    for target in ("no-page.md", "model/link.md#no-anchor", "no-file.yaml"):
        assert f"'{target}'" in done.stderr, done.stderr


def notebook(*outputs: dict[str, object]) -> dict[str, object]:
    cell = {"cell_type": "code", "source": ["1 + 1\n", "2 + 2"], "outputs": list(outputs)}
    return {"cells": [{"cell_type": "markdown", "source": ["# Sums"]}, cell]}


def test_a_notebook_is_a_page_with_its_outputs() -> None:
    """Given stored outputs, expect the richest form of each that needs no script."""
    page = runpy.run_path(str(ROOT / "docs/hooks.py"))["notebook_page"]
    shown = page(
        notebook(
            {"output_type": "stream", "name": "stdout", "text": ["two\n"]},
            {"output_type": "execute_result", "data": {"text/plain": ["4"]}},
            {"output_type": "display_data", "data": {"text/html": ["<b>\n\n8</b>"]}},
            {"output_type": "display_data", "data": {"image/png": "AAAA\n", "text/plain": ["x"]}},
        )
    )
    assert shown.split("\n\n") == [
        "# Sums",
        "````python\n1 + 1\n2 + 2\n````",
        "````text\ntwo\n````",
        "````text\n4\n````",
        "<div><b>\n8</b></div>",
        '<img alt="output of the cell" src="data:image/png;base64,AAAA">',
    ]
    with pytest.raises(ValueError, match="ZeroDivisionError: by zero"):
        page(notebook({"output_type": "error", "ename": "ZeroDivisionError", "evalue": "by zero"}))
