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

# The palette's counterparts on a dark page, in the same order: lighter, less saturated.
_DARK_PALETTE: Final = (
    "#6cb2f0",
    "#f2a65a",
    "#5fc79b",
    "#f08a8a",
    "#b9a1ee",
    "#d7b86a",
    "#6fd0d6",
    "#e79ac6",
)
_LIGHT: Final = {
    "page": "#ffffff",
    "shade": "#f3f5f7",
    "ink": INK,
    "muted": MUTED,
    "grid": GRID,
    **{f"c{i}": colour for i, colour in enumerate(PALETTE)},
}
_DARK: Final = {
    "page": "#14181d",
    "shade": "#1e242b",
    "ink": "#e4e8ec",
    "muted": "#a0a9b3",
    "grid": "#333b45",
    **{f"c{i}": colour for i, colour in enumerate(_DARK_PALETTE)},
}


def _variables(colours: dict[str, str]) -> str:
    return "".join(f"--{name}:{value};" for name, value in colours.items())


_CSS: Final = f"""
:root{{color-scheme:light dark;{_variables(_LIGHT)}}}
@media (prefers-color-scheme:dark){{:root{{{_variables(_DARK)}}}}}
@media print{{:root{{color-scheme:light;{_variables(_LIGHT)}}}}}
body{{margin:0 auto;padding:1.5rem;max-width:72rem;background:var(--page);color:var(--ink);
font:15px/1.5 system-ui,"Helvetica Neue",Arial,sans-serif}}
h1{{font-size:1.5rem;line-height:1.25;margin:0 0 .3rem}}
h2{{font-size:1.15rem;margin:2.2rem 0 .5rem}}
p,ul{{max-width:50rem;margin:.5rem 0}}
.facts,figcaption,caption{{color:var(--muted)}}
.facts{{margin:0 0 1rem}}
.notice{{border-left:4px solid var(--c1);background:var(--shade);padding:.5rem .8rem}}
.wide{{overflow-x:auto}}
table{{border-collapse:collapse;margin:.5rem 0 1rem;font-size:.87rem;
font-variant-numeric:tabular-nums}}
caption{{text-align:left;padding:.2rem 0}}
td{{white-space:nowrap}}
th,td{{padding:.22rem .45rem;text-align:right;border-bottom:1px solid var(--grid);
vertical-align:top}}
th{{font-weight:600;background:var(--shade);vertical-align:bottom;max-width:9rem;
overflow-wrap:break-word}}
th small{{display:block;font-weight:400;color:var(--muted)}}
.text{{text-align:left;white-space:normal}}
td:first-child{{min-width:5.2rem}}
tr.first td{{border-top:2px solid var(--muted)}}
td b{{color:var(--c3)}}
table+table{{margin-top:1rem}}
figure{{margin:1rem 0 1.6rem;break-inside:avoid;overflow-x:auto}}
figure svg{{display:block;width:100%;min-width:38rem;height:auto}}
figcaption{{font-size:.9rem;max-width:50rem}}
.files a{{color:var(--c0)}}
details{{margin:.6rem 0}}
summary{{cursor:pointer;font-weight:600}}
pre{{background:var(--shade);padding:.8rem;overflow-x:auto;font-size:.82rem;line-height:1.4}}
h1,p,li,figcaption,summary{{overflow-wrap:anywhere}}
@media (max-width:40rem){{body{{padding:.8rem}}ul{{padding-left:1.2rem}}}}
@page{{margin:12mm}}
@media print{{body{{padding:0;max-width:none;font-size:10pt}}tr,pre{{break-inside:avoid}}
h2,caption{{break-after:avoid}}table,th small,pre,figcaption{{font-size:9pt}}.files{{display:none}}
.wide,figure{{overflow:visible}}figure svg{{min-width:0}}th,td{{padding:.15rem .35rem}}
pre{{white-space:pre-wrap;overflow-wrap:anywhere}}}}
"""

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
    env.globals["css"] = _safe(_CSS)
    env.globals["html_table"] = lambda view: _safe(html_table(view, link=True))
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
    return _safe(
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


def _safe(text: str) -> Markup:
    return Markup(text)
