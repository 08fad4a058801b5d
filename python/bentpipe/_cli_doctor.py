"""What `bentpipe doctor` looks at: whether this machine has what bentpipe needs."""

from __future__ import annotations

import importlib
import os
import re
import sys
import tempfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

OLDEST_PYTHON: Final = (3, 11)


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing looked at; ``fix`` says what to do when it is not ``ok``."""

    name: str
    ok: bool
    found: str
    fix: str = ""


def examine(folder: Path) -> list[Check]:
    """Look at Python, the extension, the dependencies, the cores, and access to ``folder``."""
    return [_python(), _extension(), *_dependencies(), _cores(), _writable(folder)]


def _python() -> Check:
    wanted = ".".join(str(part) for part in OLDEST_PYTHON)
    return Check(
        name="python",
        ok=sys.version_info >= OLDEST_PYTHON,
        found=sys.version.split()[0],
        fix=f"install Python {wanted} or newer and bentpipe into it",
    )


def _extension() -> Check:
    fix = "build it: pip install . in the source tree, or maturin develop --release"
    try:
        from bentpipe import _core
    except ImportError as error:
        return Check(name="bentpipe._core", ok=False, found=str(error), fix=fix)
    return Check(name="bentpipe._core", ok=True, found=_core.version(), fix=fix)


def _dependencies() -> list[Check]:
    try:
        requirements = metadata.requires("bentpipe") or []
    except metadata.PackageNotFoundError:
        fix = "install bentpipe: pip install ."
        return [Check(name="bentpipe", ok=False, found="not installed", fix=fix)]
    return [_dependency(text) for text in requirements if "extra ==" not in text]


def _dependency(requirement: str) -> Check:
    """Check a requirement such as ``polars>=2.1``."""
    named = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert named is not None, "a requirement starts with a name"
    name = named[0]
    try:
        # Of our dependencies one has another name than its module: ruamel-yaml, ruamel.yaml.
        importlib.import_module(name.replace("-", "."))
        found, ok = metadata.version(name), True
    except (ImportError, metadata.PackageNotFoundError) as error:
        found, ok = str(error), False
    return Check(name=name, ok=ok, found=found, fix=f'pip install "{requirement}"')


def _cores() -> Check:
    from bentpipe.sweep import cores

    return Check(name="cores", ok=True, found=f"{cores()} of {os.cpu_count()}")


def _writable(folder: Path) -> Check:
    fix = "change to a folder that you can write, or give --out one"
    try:
        with tempfile.TemporaryFile(dir=folder):
            return Check(name="folder", ok=True, found=f"{folder} is writable", fix=fix)
    except OSError as error:
        return Check(name="folder", ok=False, found=f"{folder}: {error.strerror}", fix=fix)
