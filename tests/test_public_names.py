"""The public names of the package, where they live, and the stub of the extension."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tomllib
from importlib import import_module, metadata, resources
from pathlib import Path

import pytest
from conftest import ROOT

import bentpipe
from bentpipe import _core

PACKAGE = ROOT / "python" / "bentpipe"


def test_every_public_name_can_be_imported() -> None:
    names = dir(bentpipe)
    assert len(names) > 50
    for name in names:
        assert getattr(bentpipe, name) is not None


@pytest.mark.parametrize("stub", sorted(PACKAGE.glob("**/__init__.pyi")), ids=str)
def test_a_stub_is_the_list_of_lazy_names(stub: Path) -> None:
    """Given a package with a stub, expect each of its names to be there, and a lazy package."""
    parts = stub.relative_to(PACKAGE.parent).parent.parts
    package = import_module(".".join(parts))
    tree = ast.parse(stub.read_text(encoding="utf-8"))
    imported = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    names = {alias.name for node in imported for alias in node.names}
    assert names
    assert names <= set(dir(package))
    for name in names:
        assert getattr(package, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"simulat$"):
        _ = bentpipe.simulat  # type: ignore[attr-defined]


def test_there_is_one_version() -> None:
    cargo = tomllib.loads((ROOT / "Cargo.toml").read_text(encoding="utf-8"))
    stated = cargo["workspace"]["package"]["version"]
    assert bentpipe.__version__ == metadata.version("bentpipe") == stated


def test_the_package_is_typed() -> None:
    assert resources.files("bentpipe").joinpath("py.typed").is_file()


@pytest.mark.parametrize("added", ["", "def f() -> int: ..."], ids=["stub", "other stub"])
def test_the_stub_is_the_extension(tmp_path: Path, added: str) -> None:
    """Names, signatures and base classes of the stub are those of the compiled module.

    Both are checked alone: in its package, mypy would first read the whole of that.
    """
    (tmp_path / Path(_core.__file__).name).symlink_to(_core.__file__)
    stub = (PACKAGE / "_core.pyi").read_text(encoding="utf-8")
    (tmp_path / "_core.pyi").write_text(stub + added, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "mypy.stubtest", "_core"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=os.environ | {"MYPYPATH": ".", "PYTHONPATH": "."},
    )
    assert done.returncode == bool(added), done.stdout
    found = "_core.f is not present at runtime" if added else "Success: no issues found in 1 module"
    assert found in done.stdout


def test_help_and_version_do_not_wait_for_heavy_modules() -> None:
    """Start-up is quick because of what is not imported; a time would measure the machine."""
    heavy = {"numpy", "polars", "pydantic", "matplotlib", "ruamel", "bentpipe.studies"}
    program = (
        "import sys\n"
        "from bentpipe.cli.app import main\n"
        "codes = [main([option]) for option in ('--version', '--help')]\n"
        f"print(codes, sorted({heavy!r} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[0, 0] []"


def test_programs_in_labs_do_not_wait_for_modules_that_they_do_not_use() -> None:
    """Given `exec` on presets, and `lab exec`, expect nothing heavy, and no other verb's module."""
    heavy = {
        "numpy",
        "polars",
        "pydantic",
        "matplotlib",
        "ruamel",
        "rich",
        "bentpipe.scenario.schema",
    }
    others = {f"bentpipe.cli.{verb}" for verb in ("lab", "search", "study", "validate_model")}
    program = (
        "import sys\n"
        "from bentpipe.cli import exec as exec_verb\n"
        "from bentpipe.lab import sockets\n"
        "from bentpipe.cli.app import main\n"
        # Up to where a lab would be set up, or called.
        "exec_verb._run_with_capture = lambda job: sys.exit(len(job.plans))\n"
        "sockets.connect = lambda *_: sys.exit(3)\n"
        "given = ['exec', '--link', 'geo', '--link', 'leo', '--host', 'world', '--watch', 'true']\n"
        f"print(main(given), sorted({heavy | others!r} & set(sys.modules)))\n"
        f"print(main(['lab', 'exec', 'sat', 'true']), sorted({heavy!r} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["2 []", "3 []"], done.stderr


def test_no_python_file_is_over_600_lines() -> None:
    sources = sorted(Path(PACKAGE).rglob("*.py"))
    assert len(sources) > 10
    assert [s.name for s in sources if len(s.read_text(encoding="utf-8").splitlines()) > 600] == []
