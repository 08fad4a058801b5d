"""The verb ``doctor``: check what this machine can run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from importlib import import_module, metadata
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from bentpipe import lab, simulation
from bentpipe.cli.link_status import microseconds
from bentpipe.cli.options import AsJson, print_json
from bentpipe.errors import MachineError

OLDEST_PYTHON: Final = (3, 11)

# Programs that labs use, and their Debian packages.
_PROGRAMS: Final = {"iperf3": "iperf3", "tshark": "tshark", "slirp4netns": "slirp4netns"}

# Packages with a module that is not named after the package ("_" for "-").
_MODULES: Final = {"ruamel-yaml": "ruamel.yaml"}

# In a process of its own: a process cannot leave its user namespace.
_TRY_A_LAB: Final = """
from bentpipe.lab.local import LocalLab
from bentpipe.lab.privileges import gain_privileges
from bentpipe.plan.presets import link_plan
how = gain_privileges()
with LocalLab(plans=[link_plan("leo")]):
    print(how)
"""


@dataclass(frozen=True, kw_only=True)
class Check:
    """The result of one check; ``fix`` is the remedy if it is not ``ok``.

    A check that is not ``needed`` is for labs only; simulations run without it.
    """

    name: str
    ok: bool
    found: str
    fix: str = ""
    needed: bool = True


def doctor(
    as_json: AsJson = False,
    measure: Annotated[
        bool,
        typer.Option("--measure", help="Measure the capacity of labs, and store it (20 s)."),
    ] = False,
) -> None:
    """Check what this machine can run."""
    checks = examine(Path.cwd())
    capacity = lab.measure_capacity() if measure else None
    if as_json:
        ok = all(check.ok or not check.needed for check in checks)
        print_json({"ok": ok, "checks": [asdict(c) for c in checks], "measured": capacity})
    else:
        width = max(len(check.name) for check in checks)
        for check in checks:
            mark = "ok " if check.ok else "NO " if check.needed else "-  "
            advice = "" if check.ok or check.needed else f" (labs only; {check.fix})"
            print(f"{mark} {check.name:{width}}  {check.found}{advice}")
        if capacity is not None:
            print("\n".join(_capacity_lines(capacity)))
    missing = [check for check in checks if check.needed and not check.ok]
    if missing:
        lines = [f"{check.name}: {check.found}; to fix it: {check.fix}" for check in missing]
        raise MachineError("\n".join(lines))


def examine(folder: Path) -> list[Check]:
    """Check Python, the extension, dependencies, cores, ``folder``, and what labs need."""
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
        version = import_module("bentpipe._core").version()
    except ImportError as error:
        return Check(name="bentpipe._core", ok=False, found=str(error), fix=fix)
    return Check(name="bentpipe._core", ok=True, found=version, fix=fix)


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
        import_module(_MODULES.get(name, name.replace("-", "_")))
        found, ok = metadata.version(name), True
    except (ImportError, metadata.PackageNotFoundError) as error:
        found, ok = str(error), False
    return Check(name=name, ok=ok, found=found, fix=f'pip install "{requirement}"')


def _cores() -> Check:
    return Check(name="cores", ok=True, found=f"{simulation.cores()} of {os.cpu_count()}")


def _writable(folder: Path) -> Check:
    fix = "change to a writable folder, or name one by --out"
    try:
        with tempfile.TemporaryFile(dir=folder):
            return Check(name="folder", ok=True, found=f"{folder} is writable", fix=fix)
    except OSError as error:
        return Check(name="folder", ok=False, found=f"{folder}: {error.strerror}", fix=fix)


def _labs() -> Check:
    """Check that a lab can be set up, and with which privileges."""
    tried = subprocess.run(
        [sys.executable, "-c", _TRY_A_LAB], capture_output=True, text=True, check=False
    )
    if tried.returncode == 0:
        return Check(name="labs", ok=True, found=tried.stdout.strip(), needed=False)
    lines = tried.stderr.strip().splitlines() or ["it printed nothing"]
    message = lines[-1].removeprefix("bentpipe.errors.MachineError: ")
    found, _, fix = message.partition("; to fix it: ")
    fix = fix or "see the lines above"
    return Check(name="labs", ok=False, found=found, fix=fix, needed=False)


def _program(name: str, package: str) -> Check:
    path = shutil.which(name)
    fix = f"apt install {package}"
    return Check(name=name, ok=path is not None, found=path or "missing", fix=fix, needed=False)


def _capacity_lines(capacity: dict[str, Any]) -> list[str]:
    """Return the measured capacity as text."""
    lines = [
        f"one TCP flow    {capacity['tcp_bits_per_second'] / 1e9:.2f} Gbit/s",
        f"super-packets   {capacity['tcp_super_packets_bits_per_second'] / 1e9:.2f} Gbit/s, "
        "one TCP flow",
        f"small packets   {capacity['small_packets_per_second']:,.0f} a second, of 64 bytes",
    ]
    for name, text in {"sparse": "10,000 packets/s", "full": "20 Mbit/s, full"}.items():
        p50, p99, worst = (
            microseconds(capacity[name][each]) for each in ("p50_ns", "p99_ns", "max_ns")
        )
        lines.append(f"{text:16}delay error {p50} (median), {p99} (p99), {worst} (max)")
    return lines
