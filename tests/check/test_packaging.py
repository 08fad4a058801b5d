"""What is installed with bentpipe, and the image for pipelines."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Final

import pytest
from sources import ROOT, tracked

PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CONTAINERFILE: Final = (ROOT / "Containerfile").read_text(encoding="utf-8")
# Decision 6: 332 MB without the bytecode that pip compiles, and room for new versions.
INSTALLED_MB_MAX: Final = 400
# Modules of a dependency that its own documentation tells its users to import.
PART_OF: Final = {"markupsafe": "jinja2", "pydantic-core": "pydantic"}
IN_REAL_TIME: Final = {"exec", "check"}


def normalized(name: str) -> str:
    """Return the name of a package as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def name_of(requirement: str) -> str:
    named = re.match(r"[\w.-]+", requirement)
    assert named is not None
    return normalized(named[0])


def required() -> set[str]:
    return {name_of(each) for each in PROJECT["dependencies"]}


def optional() -> set[str]:
    extras = PROJECT["optional-dependencies"]
    return {name_of(each) for name, listed in extras.items() if name != "dev" for each in listed}


def imported() -> set[str]:
    """Return the packages from which modules of bentpipe import."""
    packages = metadata.packages_distributions()
    found: set[str] = set()
    for path in (ROOT / "python" / "bentpipe").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            found |= {name.partition(".")[0] for name in names}
    # Type checkers alone have _typeshed.
    others = found - set(sys.stdlib_module_names) - {"bentpipe", "_typeshed"}
    return {normalized(packages[each][0]) if each in packages else each for each in others}


def test_every_imported_package_is_required() -> None:
    found = {PART_OF.get(each, each) for each in imported()}
    assert found <= required() | optional()


def test_every_required_package_is_imported() -> None:
    assert required() <= imported()


def test_the_required_packages_are_small() -> None:
    """Expect the size on which decision 6 settled, with all that the dependencies depend on."""
    waiting, sizes = sorted(required()), dict[str, float]()
    while waiting:
        name = waiting.pop()
        if name in sizes:
            continue
        package = metadata.distribution(name)
        sizes[name] = sum(each.size or 0 for each in package.files or ()) / 1e6
        waiting += [
            name_of(each)
            for each in package.requires or ()
            if "extra ==" not in each and not re.search(r"python_version|platform", each)
        ]
    assert len(sizes) > len(required())
    assert sum(sizes.values()) < INSTALLED_MB_MAX, sorted(sizes.items(), key=lambda item: -item[1])


def test_the_image_copies_files_that_git_tracks() -> None:
    files = {str(path.relative_to(ROOT)) for path in tracked("")}
    copied = [
        source
        for line in re.findall(r"^COPY (.*)$", CONTAINERFILE, re.MULTILINE)
        for source in line.split()[:-1]
    ]
    assert "Cargo.lock" in copied
    for source in copied:
        assert source in files or any(file.startswith(f"{source}/") for file in files), source


def test_the_image_holds_every_member_of_the_workspace() -> None:
    """Cargo refuses a workspace without one of its members."""
    cargo = tomllib.loads((ROOT / "Cargo.toml").read_text(encoding="utf-8"))
    for member in cargo["workspace"]["members"]:
        assert re.search(rf"^COPY {member.split('/')[0]} ", CONTAINERFILE, re.MULTILINE), member


def test_the_image_has_a_recent_rust_and_a_user_without_privileges() -> None:
    cargo = tomllib.loads((ROOT / "Cargo.toml").read_text(encoding="utf-8"))
    wanted = [int(part) for part in cargo["workspace"]["package"]["rust-version"].split(".")]
    image = re.search(r"rust:(\d+)\.(\d+)-", CONTAINERFILE)
    assert image is not None
    assert [int(part) for part in image.groups()] >= wanted
    assert re.findall(r"^USER (.*)$", CONTAINERFILE, re.MULTILINE)[-1] not in {"root", "0"}


PAGE: Final = (ROOT / "docs/how-to/use-in-a-pipeline.md").read_text(encoding="utf-8")
COMMANDS: Final = [
    shlex.split(command.partition(" bentpipe ")[2])
    for command in re.findall(r"^\$ podman run (.*)$", PAGE, re.MULTILINE)
]


def test_the_page_has_commands() -> None:
    assert len(COMMANDS) >= 4


@pytest.mark.parametrize(
    "arguments", [each for each in COMMANDS if each[0] not in IN_REAL_TIME], ids=shlex.join
)
def test_commands_for_the_image_work(arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / "scenarios").symlink_to(ROOT / "scenarios")
    command = [sys.executable, "-m", "bentpipe", *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
