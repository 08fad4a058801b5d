"""The limit of a unit test: what it computes counts, what it imports does not."""

from __future__ import annotations

import importlib
import runpy
from pathlib import Path
from unittest import mock

import pytest
import unit


def test_only_work_outside_imports_counts(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given 0.1 s of work and a limit of half that, expect it to pass as an import alone."""
    work = tmp_path / "slow_to_import.py"
    loop = "while process_time() < end_s: ..."
    work.write_text(f"from time import process_time\nend_s = process_time() + 0.1\n{loop}\n")
    monkeypatch.syspath_prepend(tmp_path)
    with mock.patch.object(unit, "CPU_S_MAX", 0.05):
        with unit.refusing_what_is_not_unit(request.node):
            importlib.import_module(work.stem)
        with (
            pytest.raises(pytest.fail.Exception, match=r"takes 0\.1 s of processor time"),
            unit.refusing_what_is_not_unit(request.node),
        ):
            runpy.run_path(str(work))
