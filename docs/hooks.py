"""Pages of the site that are not Markdown files of `docs`: the README, the API, notebooks.

MkDocs calls the functions named ``on_*`` (https://www.mkdocs.org/dev-guide/plugins/#events).
"""

from __future__ import annotations

import ast
import json
import posixpath
import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
# Pages that GitHub and packagers expect at the root of the tree, and their place on the site.
ROOT_PAGES = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "ARCHITECTURE.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
}
# The target of a Markdown link, unless it is a URL or an anchor on the same page.
LINK_TARGET = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages at the root of the tree, the API reference, and a page for each notebook."""
    for path, uri in ROOT_PAGES.items():
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / path)))
    files.append(File.generated(config, "api.md", content=api_page()))
    for file in list(files):
        if file.src_uri.endswith(".ipynb"):
            page = notebook_page(json.loads(file.content_string))
            files.append(File.generated(config, page_uri(file.src_uri), content=page))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make links that are relative to the file in the tree relative to the page on the site."""
    uri = page.file.src_uri
    source = next((path for path, place in ROOT_PAGES.items() if place == uri), f"docs/{uri}")

    def rewrite(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link.group()))
        place = page_uri(ROOT_PAGES.get(target, target.removeprefix("docs/")))
        if (ROOT / target).is_file() and files.get_file_from_path(place) is None:
            # Not a page: the licence or a scenario, for example.
            files.append(File.generated(config, place, abs_src_path=str(ROOT / target)))
        return posixpath.relpath(place, posixpath.dirname(uri) or ".")

    return LINK_TARGET.sub(rewrite, markdown)


def page_uri(uri: str) -> str:
    """Return the place of the page for a file of the site: a notebook becomes Markdown."""
    path = PurePosixPath(uri)
    return str(path.with_suffix(".md") if path.suffix == ".ipynb" else path)


def api_page() -> str:
    """Return the API reference: a section for each sub-package, an entry for each public name."""
    sections: dict[str, list[str]] = {}
    public = stub_names("bentpipe")
    known = {name for _, name in public}
    for module, name in public:
        # `from . import plots`: a module has a section of its own, with the names of its own stub.
        section = module.partition(".")[0] or name
        sections.setdefault(section, []).append(f"bentpipe.{name}")
        if not module and (ROOT / f"python/bentpipe/{name}/__init__.pyi").is_file():
            own = {each for _, each in stub_names(f"bentpipe/{name}")} - known
            sections[section] += [f"bentpipe.{name}.{each}" for each in own]
    parts = [
        "# API reference",
        "Names are imported from `bentpipe`, those of its modules from these.",
    ]
    for section, names in sorted(sections.items()):
        parts.append(f"## {section.capitalize()}")
        parts += [f"::: {name}" for name in sorted(set(names))]
    return "\n\n".join(parts)


def stub_names(package: str) -> list[tuple[str, str]]:
    """Return the public names of a package from its stub, each after the module that it is from."""
    stub = ast.parse((ROOT / f"python/{package}/__init__.pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    return [(node.module or "", alias.name) for node in imports for alias in node.names]


def notebook_page(notebook: dict[str, Any]) -> str:
    """Return a notebook as Markdown, with the outputs that are stored in it.

    Source: https://nbformat.readthedocs.io/en/latest/format_description.html
    """
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
        elif cell["cell_type"] == "code":
            parts.append(fenced(source, "python"))
            parts += [cell_output(output) for output in cell["outputs"]]
    return "\n\n".join(parts)


def cell_output(output: dict[str, Any]) -> str:
    """Return an output of a code cell: its richest form that a page can show."""
    if output["output_type"] == "error":
        raise ValueError(f"a cell of a notebook failed: {output['ename']}: {output['evalue']}")
    data = output.get("data", {"text/plain": output.get("text", "")})
    if "text/html" in data:
        # A blank line would end the HTML block.
        return re.sub(r"\n\s*\n", "\n", f"<div>{''.join(data['text/html'])}</div>")
    if "image/png" in data:
        encoded = "".join(data["image/png"]).replace("\n", "")
        return f'<img alt="output of the cell" src="data:image/png;base64,{encoded}">'
    return fenced("".join(data["text/plain"]), "text")


def fenced(text: str, language: str) -> str:
    """Return a code block; the text may contain a fence of three."""
    return f"````{language}\n{text.rstrip()}\n````"
