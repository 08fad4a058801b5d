"""The Python package: imports at the top, private names, and sizes; import-linter checks layers."""

from __future__ import annotations

import ast

from sources import PACKAGE, no_offenders, relative, tracked

MODULES = [path for path in tracked(".py") if path.is_relative_to(PACKAGE)]


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


def test_imports_are_at_the_top_and_private_names_stay_in_their_sub_package() -> None:
    offenders = []
    for path in MODULES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        own = path.relative_to(PACKAGE).parts[0]
        found = [*deferred_imports(tree), *private_imports(tree, own)]
        offenders += [f"{relative(path)}: {each}" for each in found]
    no_offenders(offenders)


def test_the_checks_would_see_a_deferred_or_a_private_import() -> None:
    source = "def f():\n    from bentpipe.plan.link import _rate\n"
    assert deferred_imports(ast.parse(source)) == ["from bentpipe.plan.link import _rate"]
    assert private_imports(ast.parse(source), "lab") == ["bentpipe.plan.link._rate"]
    assert private_imports(ast.parse(source), "plan") == []


def test_python_reaches_rust_through_one_module() -> None:
    """No other extension module of ours is imported."""
    offenders = []
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
                names = [node.module]
            compiled = {name for name in names if name.split(".")[-1] == "_core"}
            offenders += [f"{relative(path)}: {name}" for name in compiled - {"bentpipe._core"}]
    no_offenders(offenders)
