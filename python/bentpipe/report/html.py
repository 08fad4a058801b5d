"""Self-contained HTML pages: no scripts, no requests, light and dark, printable.

Figures are inline SVG. Their colours, those of `bentpipe.report.plots`, are CSS variables, so that
they follow the page from light to dark. The pages are jinja2 templates in ``templates/``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from html import escape, unescape
from io import BytesIO, StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import matplotlib as mpl
import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.collections import PathCollection, PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from bentpipe.errors import UsageError
from bentpipe.report.style import GRID, INK, MUTED, PALETTE, STYLE
from bentpipe.results.files import REPORT, csv_text, is_stream, write_file, writing
from bentpipe.results.views import View, csv_table, file_stem, html_table, latex_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CHARTS: Final = "charts"
# Some 1,000 pixels wide: a column of a paper in print, or a slide.
_PNG_DPI: Final = 120
# Of 255 bytes that a file may have.
_NAME_MAX: Final = 60
# As `html_table` writes it.
_TABLE_LINK: Final = re.compile(r'<a download="([^"]+)" href="data:[^,"]*,([^"]*)"')


class Exports:
    """The files of the figures of a page, by path, as they are drawn: ``FOLDER/NAME.svg``, ..."""

    def __init__(self, folder: str = CHARTS) -> None:
        self.files: dict[str, str | bytes] = {}
        self._folder = folder

    def add(self, figure: Figure, name: str, svg: str, csv: str | None) -> list[tuple[str, str]]:
        """Add a figure whose SVG is known; return the kind and the path of each of its files."""
        stem = re.sub(r"[^\w.]+", "-", name).strip("-.")[:_NAME_MAX]
        path = f"{self._folder}/{stem}"
        if f"{path}.svg" in self.files:
            # The names differ in characters that no file has.
            path += f"-{len(self.files)}"
        files: dict[str, str | bytes] = {
            "PNG": png_file(figure),
            "SVG": svg,
            "CSV": csv_of_figure(figure) if csv is None else csv,
        }
        paths = {kind: f"{path}.{kind.lower()}" for kind in files}
        self.files |= {paths[kind]: content for kind, content in files.items()}
        return list(paths.items())


def write_report(path: str | Path, render: Callable[[Exports | None], str]) -> Path:
    """Write a page, and its figures to a folder beside it; return the path of the page.

    The folder is ``charts`` beside ``report.html``, and ``NAME-charts`` beside ``NAME.html``. A
    device such as /dev/stdout has none. Figures of an earlier page, which it links, are removed.

    Raises:
        UsageError: a file cannot be written; an existing page is then unchanged.
    """
    file = Path(path)
    folder = CHARTS if file.name == REPORT else f"{file.stem}-{CHARTS}"
    exports = None if is_stream(file) else Exports(folder)
    earlier = _linked_figures(file, folder) if exports else set()
    text = render(exports)
    if exports is not None and exports.files:
        with writing(file):
            (file.parent / folder).mkdir(exist_ok=True)
        for name, content in exports.files.items():
            write_file(file.parent / name, content)
    write_file(file, text)
    for name in earlier.difference(exports.files if exports else ()):
        with writing(file.parent / name):
            (file.parent / name).unlink(missing_ok=True)
    return file


def _linked_figures(page: Path, folder: str) -> set[str]:
    """Return the files of figures in a folder that a page links as `_show_figure` does."""
    try:
        text = page.read_text(encoding="utf-8")
    except (OSError, UnicodeError):
        return set()
    link = rf'<a href="({re.escape(escape(folder))}/[^/"]+\.(?:png|svg|csv))">(?:PNG|SVG|CSV)</a>'
    return set(map(unescape, re.findall(link, text)))


def write_tables(views: Iterable[View], folder: Path) -> None:
    """Write tables to a folder, which is created if missing: ``NAME.csv`` and ``NAME.tex`` of each.

    The names are those of the titles; equal ones are numbered. Tables without rows have no files.

    Raises:
        UsageError: the folder cannot be created, or a file cannot be written.
    """
    for_files = [(file_stem(view), view) for view in views if view.rows]
    _write_numbered(folder, ((f"{stem}.csv", csv_table(view)) for stem, view in for_files))
    _write_numbered(folder, ((f"{stem}.tex", latex_table(view)) for stem, view in for_files))


def write_page_tables(page: Path, folder: Path) -> None:
    """Write the tables of a page to a folder: those that it links as CSV and LaTeX.

    Raises:
        UsageError: as `write_tables`, or the page cannot be read.
    """
    try:
        text = page.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise UsageError(f"{page}: cannot be read: {error}") from None
    _write_numbered(folder, ((name, unquote(data)) for name, data in _TABLE_LINK.findall(text)))


def _write_numbered(folder: Path, files: Iterable[tuple[str, str]]) -> None:
    """Write files to a folder; those of the same name get numbers."""
    with writing(folder):
        folder.mkdir(exist_ok=True)
    names = Counter[str]()
    for name, content in files:
        names[name] += 1
        stem, dot, suffix = name.rpartition(".")
        number = f"-{names[name]}" if names[name] > 1 else ""
        write_file(folder / f"{stem}{number}{dot}{suffix}", content)


def svg_file(figure: Figure, name: str) -> str:
    """Return a figure as the text of an SVG file."""
    buffer = StringIO()
    # A fixed salt and no date: the same figure gives the same bytes. `Figure.savefig` draws twice.
    with mpl.rc_context({**STYLE, "svg.hashsalt": f"bentpipe {name}"}):
        FigureCanvasSVG(figure).print_svg(  # type: ignore[no-untyped-call]
            buffer, metadata={"Date": None}
        )
    return buffer.getvalue()


def png_file(figure: Figure) -> bytes:
    """Return a figure that was drawn before as a PNG file."""
    buffer = BytesIO()
    layout = figure.get_layout_engine()
    # The layout is known, and takes longer than the drawing.
    figure.set_layout_engine("none")
    figure.set_dpi(_PNG_DPI)
    with mpl.rc_context(STYLE):
        FigureCanvasAgg(figure).print_png(buffer)  # type: ignore[no-untyped-call]
    figure.set_layout_engine(layout)
    return buffer.getvalue()


# --- any figure as CSV ---------------------------------------------------------------------------


def csv_of_figure(figure: Figure) -> str:
    """Return the points that a figure shows: ``low`` and ``high`` are bounds of a band.

    A panel is named by its title or its axes.
    """
    rows = []
    for axes in figure.axes:
        panel = axes.get_title(loc="left") or axes.get_title() or axes.get_ylabel()
        names = axes.get_xlabel(), axes.get_ylabel()
        rows += [(panel, *names, *row) for row in _points_of(axes)]
    header = ("panel", "x axis", "y axis", "series", "x", "y", "low", "high")
    return csv_text(header, rows)


def _points_of(axes: Axes) -> Iterator[tuple[Any, ...]]:
    """Yield name, x, y and bounds of each point of lines, bars and marks."""
    bounds = [_bounds(area) for area in axes.collections if isinstance(area, PolyCollection)]
    for line in axes.lines:
        x, y = (np.asarray(coordinates, dtype=float).tolist() for coordinates in line.get_data())
        bands = [limits for colour, limits in bounds if colour == to_rgb(line.get_color())]
        limits = next((band for band in bands if band.keys() >= {*map(_key, x)}), {})
        for at, value in zip(x, y, strict=True):
            yield (_name(line), at, value, *limits.get(_key(at), (None, None)))
    for marks in axes.collections:
        if isinstance(marks, PathCollection):
            for at, value in np.asarray(marks.get_offsets(), dtype=float).tolist():
                yield _name(marks), at, value, None, None
    for bars in axes.containers:
        for bar in bars:
            if hasattr(bar, "get_bbox"):
                yield _name(bars), *_of_bar(axes, bar.get_bbox())


def _of_bar(axes: Axes, box: Any) -> tuple[Any, ...]:
    """Return the middle of a bar, with the name at it if the axis has one, and its bounds."""
    # The ticks of numbers are known after a drawing only, and are no names.
    ticks = zip(axes.get_yticks(), axes.get_yticklabels(), strict=False)
    names = {_key(at): label.get_text() for at, label in ticks}
    middle = (box.y0 + box.y1) / 2
    return names.get(_key(middle), middle), box.x1 - box.x0, box.x0, box.x1


def _bounds(area: PolyCollection) -> tuple[Any, dict[float, tuple[float, float]]]:
    """Return the colour of a filled area, and its lowest and highest point at each x."""
    limits: dict[float, tuple[float, float]] = {}
    for path in area.get_paths():
        for x, y in np.asarray(path.vertices, dtype=float).tolist():
            low, high = limits.get(_key(x), (y, y))
            limits[_key(x)] = min(low, y), max(high, y)
    colours: Any = area.get_facecolor()
    return (to_rgb(colours[0]) if len(colours) else None), limits


def _key(x: float) -> float:
    return float(f"{x:.9g}")


def _name(artist: Any) -> str:
    label = str(artist.get_label())
    return "" if label.startswith("_") else label


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
