"""The layers of the Python package: imports, their time, and public names."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "python" / "bentpipe"
MODULES = sorted(PACKAGE.rglob("*.py"))
MODULE_LINES_MAX = 600


def relative(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def imports(tree: ast.AST) -> list[tuple[str, list[str]]]:
    """Return the module of each import of the package, and the names imported from it."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("bentpipe"):
            found.append((node.module or "", [alias.name for alias in node.names]))
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            found += [(name, []) for name in names if name.startswith("bentpipe")]
    return found


def deferred_imports(tree: ast.AST) -> list[str]:
    """Return what functions import."""
    return [
        ast.unparse(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]


def private_imports(tree: ast.AST, own_package: str) -> list[str]:
    """Return the names with a leading underscore that come from another sub-package."""
    return [
        f"{module}.{name}"
        for module, names in imports(tree)
        for name in [*module.split(".")[1:], *names]
        if name.startswith("_")
        # The extension is private to the package as a whole.
        and name != "_core"
        and module.split(".")[1:2] != [own_package]
    ]


def test_each_sub_package_imports_only_lower_ones() -> None:
    """The contracts are in pyproject.toml: layers, and no circle among modules."""
    program = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "0 broken" in done.stdout


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_imports_are_at_the_top_of_a_module(path: Path) -> None:
    assert deferred_imports(ast.parse(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_private_names_stay_in_their_sub_package(path: Path) -> None:
    own = path.relative_to(PACKAGE).parts[0]
    assert private_imports(ast.parse(path.read_text(encoding="utf-8")), own) == []


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_modules_have_at_most_600_lines(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MODULE_LINES_MAX


def test_the_tests_would_see_a_deferred_or_a_private_import() -> None:
    source = "def f():\n    from bentpipe.plan.link import _rate\n"
    assert deferred_imports(ast.parse(source)) == ["from bentpipe.plan.link import _rate"]
    assert private_imports(ast.parse(source), "lab") == ["bentpipe.plan.link._rate"]
    assert private_imports(ast.parse(source), "plan") == []
