"""Stubs: those of packages list the lazy names, that of the extension has its signatures."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

from sources import PACKAGE, no_offenders

from bentpipe import _core


def test_the_stub_of_a_package_is_the_list_of_its_lazy_names() -> None:
    """Given a package with a stub, expect each of its names to be there, and a lazy package."""
    offenders = []
    stubs = sorted(PACKAGE.glob("**/__init__.pyi"))
    assert len(stubs) > 5
    for stub in stubs:
        name = ".".join(stub.relative_to(PACKAGE.parent).parent.parts)
        package = import_module(name)
        tree = ast.parse(stub.read_text(encoding="utf-8"))
        imported = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
        names = {alias.name for node in imported for alias in node.names}
        lost = names - set(dir(package)) or {each for each in names if not hasattr(package, each)}
        offenders += [f"{name}.{each}" for each in lost] if names else [f"{name}: no names"]
    no_offenders(offenders)


def stubtest(folder: Path, added: str) -> subprocess.CompletedProcess[str]:
    """Compare the extension and a stub alone: mypy would read all of a package."""
    folder.mkdir()
    (folder / Path(_core.__file__).name).symlink_to(_core.__file__)
    stub = (PACKAGE / "_core.pyi").read_text(encoding="utf-8")
    (folder / "_core.pyi").write_text(stub + added, encoding="utf-8")
    return subprocess.run(
        [sys.executable, "-m", "mypy.stubtest", "_core"],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=os.environ | {"MYPYPATH": ".", "PYTHONPATH": "."},
    )


def test_the_stub_is_the_extension(tmp_path: Path) -> None:
    """Names, signatures and base classes of the stub are those of the compiled module."""
    same = stubtest(tmp_path / "same", "")
    assert "Success: no issues found in 1 module" in same.stdout, same.stdout
    other = stubtest(tmp_path / "other", "def f() -> int: ...")
    assert "_core.f is not present at runtime" in other.stdout, other.stdout
