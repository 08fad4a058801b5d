"""Draw docs/images/jpl.svg, the picture of the README: `make picture`."""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib as mpl

from bentpipe.report import STYLE
from bentpipe.studies.base.work import Work
from bentpipe.studies.jpl.study import BSD, BSD_SMALL, curves, run


def draw(path: Path, runs: int | None = None) -> None:
    """Run the JPL study and draw its table: channel utilization over delay and bit error rate."""
    compared = run(Work("jpl", runs=runs)).comparisons
    with mpl.rc_context({**STYLE, "svg.hashsalt": "bentpipe jpl"}):
        figure = curves(compared[BSD], compared[BSD_SMALL])
        figure.savefig(path, format="svg", facecolor="white", metadata={"Date": None})


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
