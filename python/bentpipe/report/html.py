"""Self-contained HTML pages: no scripts, no requests, light and dark, printable.

Figures are inline SVG. Their colours, those of `bentpipe.report.plots`, are CSS variables, so that
they follow the page from light to dark. The pages are jinja2 templates in ``templates/``.
"""

from __future__ import annotations

import re
from functools import cache
from html import escape
from pathlib import Path
from typing import Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup
from matplotlib.figure import Figure

from bentpipe.report.export import Exports, svg_file
from bentpipe.report.style import GRID, INK, MUTED, PALETTE
from bentpipe.results.views import html_table

_LIGHT: Final = {
    "page": "#ffffff",
    "shade": "#f3f5f7",
    "ink": INK,
    "muted": MUTED,
    "grid": GRID,
    **{f"c{i}": colour for i, colour in enumerate(PALETTE)},
}
# Removed from inline SVG: ids of parts, which repeat among figures, and namespaces, which HTML does
# not need.
_PART_ID: Final = re.compile(r' id="[a-z0-9]+_\d+"')
_NAMESPACE: Final = re.compile(r' xmlns(:xlink)?="[^"]*"')
_FONT: Final = re.compile(r" font-family: [^;\"]*;")
_SIZE: Final = re.compile(r'(<svg[^>]*?) width="[^"]*"| height="[^"]*pt"')


@cache
def environment(*folders: Path) -> Environment:
    """Return the templates of some folders and of this package; they escape what they are given."""
    env = Environment(
        loader=FileSystemLoader([*folders, Path(__file__).parent / "templates"]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    light = "".join(f"--{name}:{colour};" for name, colour in _LIGHT.items())
    env.globals["css"] = Markup(env.get_template("report.css.j2").render(light=light))
    env.globals["html_table"] = lambda view: Markup(html_table(view, link=True))
    env.globals["show_figure"] = _show_figure
    return env


@pass_context
def _show_figure(
    context: Context, drawing: Figure, name: str, caption: str, csv: str | None = None
) -> Markup:
    """Return a figure with its caption, and links to its files if the page has some (`Exports`)."""
    exports: Exports | None = context.get("exports")
    text = svg_file(drawing, name)
    links = [] if exports is None else exports.add(drawing, name, text, csv)
    files = ", ".join(f'<a href="{escape(path)}">{kind}</a>' for kind, path in links)
    saved = f' <span class="files">{files}</span>' if files else ""
    return Markup(
        f"<figure>{_inline(text, name)}<figcaption>{escape(caption)}{saved}</figcaption></figure>"
    )


def _inline(text: str, name: str) -> str:
    """Return an SVG file as a part of a page, its colours as variables of the page."""
    text = text[text.index("<svg") :].replace("fill: #ffffff", "fill: none")
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = _NAMESPACE.sub("", _PART_ID.sub("", text))
    text = _SIZE.sub(lambda match: match.group(1) or "", text, count=2)
    text = text.replace("<svg", f'<svg role="img" aria-label="{escape(name)}"', 1)
    text = _FONT.sub("", text)
    for variable in ("ink", "muted", "grid", *(f"c{i}" for i in range(len(PALETTE)))):
        text = text.replace(_LIGHT[variable], f"var(--{variable})")
    return text.strip()
