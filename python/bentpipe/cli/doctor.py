"""What `bentpipe doctor` looks at: whether this machine has what bentpipe needs."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final

OLDEST_PYTHON: Final = (3, 11)

# Programs that labs can use, by the Debian package that has them.
_PROGRAMS: Final = {"iperf3": "iperf3", "tshark": "tshark", "slirp4netns": "slirp4netns"}

# A lab is made by a process of its own: becoming root of a user namespace cannot be taken back.
_TRY_A_LAB: Final = """
from bentpipe.lab.lab import Lab, gain_privileges
from bentpipe.plan.presets import link_plan
how = gain_privileges()
with Lab(plans=[link_plan("leo")]):
    print(how)
"""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing looked at; ``fix`` says what to do when it is not ``ok``.

    What is not ``needed`` serves the link in real time alone: simulations do without.
    """

    name: str
    ok: bool
    found: str
    fix: str = ""
    needed: bool = True


def examine(folder: Path) -> list[Check]:
    """Look at Python, the extension, dependencies, cores, ``folder``, and what labs need."""
    return [
        _python(),
        _extension(),
        *_dependencies(),
        _cores(),
        _writable(folder),
        _labs(),
        *(_program(name, package) for name, package in _PROGRAMS.items()),
    ]


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
        # `lazy-loader` is the module `lazy_loader`; `ruamel-yaml` is `ruamel.yaml`.
        separator = "." if name.startswith("ruamel") else "_"
        importlib.import_module(name.replace("-", separator))
        found, ok = metadata.version(name), True
    except (ImportError, metadata.PackageNotFoundError) as error:
        found, ok = str(error), False
    return Check(name=name, ok=ok, found=found, fix=f'pip install "{requirement}"')


def _cores() -> Check:
    from bentpipe.simulation.many import cores

    return Check(name="cores", ok=True, found=f"{cores()} of {os.cpu_count()}")


def _writable(folder: Path) -> Check:
    fix = "change to a folder that you can write, or give --out one"
    try:
        with tempfile.TemporaryFile(dir=folder):
            return Check(name="folder", ok=True, found=f"{folder} is writable", fix=fix)
    except OSError as error:
        return Check(name="folder", ok=False, found=f"{folder}: {error.strerror}", fix=fix)


def _labs() -> Check:
    """Make a lab and say how it could be made."""
    tried = subprocess.run(
        [sys.executable, "-c", _TRY_A_LAB], capture_output=True, text=True, check=False
    )
    if tried.returncode == 0:
        return Check(name="labs", ok=True, found=tried.stdout.strip(), needed=False)
    lines = tried.stderr.strip().splitlines() or ["it ended without a word"]
    said = lines[-1].removeprefix("bentpipe.errors.MachineError: ")
    found, _, fix = said.partition("; to fix it: ")
    fix = fix or "see the lines above"
    return Check(name="labs", ok=False, found=found, fix=fix, needed=False)


def _program(name: str, package: str) -> Check:
    path = shutil.which(name)
    fix = f"apt install {package}"
    return Check(name=name, ok=path is not None, found=path or "missing", fix=fix, needed=False)


def measured_lines(ceiling: dict[str, Any]) -> list[str]:
    """Return what was measured, in lines for a person."""
    lines = [
        f"one TCP flow    {ceiling['tcp_bits_per_second'] / 1e9:.2f} Gbit/s",
        f"super-packets   {ceiling['tcp_super_packets_bits_per_second'] / 1e9:.2f} Gbit/s, "
        "one TCP flow",
        f"small packets   {ceiling['small_packets_per_second']:,.0f} a second, of 64 bytes",
    ]
    for name, text in {"sparse": "10,000 packets/s", "full": "20 Mbit/s, full"}.items():
        errors = ceiling[name]
        lines.append(
            f"{text:16}delay off by {errors['p50_ns'] / 1e3:,.0f} µs (median), "
            f"{errors['p99_ns'] / 1e3:,.0f} µs (p99), {errors['max_ns'] / 1e3:,.0f} µs (max)"
        )
    return lines
