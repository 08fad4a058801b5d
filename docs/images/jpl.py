"""Draw docs/images/jpl.svg, the picture of the README: `make picture`."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl

from bentpipe.report.style import STYLE
from bentpipe.studies.base.comparison import Comparison
from bentpipe.studies.jpl.plots import curves
from bentpipe.studies.jpl.study import run


def draw(path: Path, runs: int | None = None) -> None:
    """Run the JPL study and write its plot."""
    outcome = run(runs=runs)
    main, small = outcome.comparisons[0], outcome.comparisons[1]
    assert isinstance(main, Comparison)
    with mpl.rc_context({**STYLE, "svg.hashsalt": "bentpipe jpl"}):
        curves(main, small).savefig(path, format="svg", facecolor="white", metadata={"Date": None})


if __name__ == "__main__":
    draw(Path(__file__).with_suffix(".svg"))
