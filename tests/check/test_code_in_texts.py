"""Programs that tests hold as texts import names that exist: some run in `make test-all` alone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module

from conftest import ROOT

IMPORT = re.compile(r"^ *from (bentpipe[\w.]*) import ([\w, ]+)$", re.MULTILINE)


def imports_in_texts() -> Iterator[tuple[str, str, str]]:
    """Yield the place of each text that imports, the module and a name."""
    for path in sorted([*ROOT.glob("tests/*.py"), *ROOT.glob("benches/*.py")]):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                for module, names in IMPORT.findall(node.value):
                    for name in names.split(","):
                        place = f"{path.relative_to(ROOT)}:{node.lineno}"
                        yield place, module, name.split(" as ")[0].strip()


def test_programs_in_texts_import_names_that_exist() -> None:
    found = [*imports_in_texts()]
    assert len(found) > 10
    missing = [each for each in found if not exists(*each[1:])]
    assert not missing


def exists(module: str, name: str) -> bool:
    """Return whether a module has a name, which may be a module itself."""
    if hasattr(import_module(module), name):
        return True
    try:
        import_module(f"{module}.{name}")
    except ImportError:
        return False
    return True
