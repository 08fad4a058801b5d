"""The notebook of the docs runs from top to bottom, and shows what it shows in the tree."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

pytestmark = pytest.mark.system

NOTEBOOK = Path(__file__).parent.parent / "docs" / "notebook.ipynb"


def read_notebook() -> Any:
    return nbformat.read(NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]


def texts(cell: Any) -> list[str]:
    """Return the text of each output of a cell; figures differ by fonts and are left out."""
    shown = (out.get("text") or out.get("data", {}).get("text/plain", "") for out in cell.outputs)
    return [text for text in shown if not text.startswith("<Figure")]


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_notebook_shows_what_it_gives() -> None:
    """Given the stored notebook, run anew, expect its outputs; only the real run may differ."""
    stored, run = read_notebook(), read_notebook()
    # A cell that fails raises CellExecutionError.
    NotebookClient(run, timeout=300, kernel_name="python3").execute()
    *simulated, emulated = [cell for cell in run.cells if cell.cell_type == "code"]
    *expected, _ = [cell for cell in stored.cells if cell.cell_type == "code"]
    assert [texts(cell) for cell in simulated] == [texts(cell) for cell in expected]
    assert (
        sum("image/png" in out.get("data", {}) for cell in simulated for out in cell.outputs) == 1
    )
    (said,) = texts(emulated)
    found = re.search(r"simulated ([\d.]+) Mbit/s\nemulated  ([\d.]+) Mbit/s", said)
    if found is None:
        assert said.startswith(("not possible here: ", "the machine was too busy: "))
    else:
        simulated_mbps, emulated_mbps = map(float, found.groups())
        assert abs(emulated_mbps / simulated_mbps - 1) < 0.1
