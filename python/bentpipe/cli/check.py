"""The verb ``check``: scenario files without running them, or what this machine can run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib import import_module, metadata
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from bentpipe import live, plan, scenario, simulation
from bentpipe.cli import options
from bentpipe.cli.link_status import late_by
from bentpipe.cli.options import argument, complete_scenarios, flag, note, print_json
from bentpipe.errors import BentpipeError, ScenarioError, UsageError
from bentpipe.live.machine import FIX, Check, require
from bentpipe.plan.presets import link_plan
from bentpipe.text import counted

OLDEST_PYTHON: Final = (3, 11)

# Programs of the Debian packages of the same names, and what needs them.
_PROGRAMS: Final = {
    "iperf3": "run --engine emulate and study linux run it, and it is the world's server",
    "tshark": "it shows captures on the terminal",
    "slirp4netns": "labs with --internet run it",
    "chromium": "run --engine emulate loads web pages with it",
}

# Packages with a module that is not named after the package ("_" for "-").
_MODULES: Final = {"ruamel-yaml": "ruamel.yaml"}

# In a process of its own: a process cannot leave its user namespace.
_TRY_A_LAB: Final = """
import sys
from bentpipe.errors import BentpipeError
from bentpipe.live.local_lab import LocalLab
from bentpipe.live.capacity import gain_privileges
from bentpipe.plan.presets import link_plan
try:
    how = gain_privileges()
    with LocalLab(plans=[link_plan("leo")]):
        print(how)
except BentpipeError as error:
    print(error)
    sys.exit(error.exit_code)
"""
# Rust adds the number of a kernel's error to its text.
_ERROR_NUMBER: Final = re.compile(r" \(os error \d+\)")


def check(
    scenario_files: Annotated[
        list[Path] | None,
        argument(
            "SCENARIO",
            "Scenario files (YAML), or - for standard input; without any, check this machine.",
            complete_scenarios,
        ),
    ] = None,
    settings: options.Settings = None,
    measure: Annotated[
        bool, flag("--measure", "Measure the capacity of labs, and store it (20 s).")
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Check scenario files without running them, or this machine.

    All problems of files are reported; the exit code is 2 if a file has one. With --json, print
    the problems, the warnings and the complete plan of each file. Without a file, check Python, the
    packages, and what labs need; the exit code is 3 if simulations cannot run.
    """
    if not scenario_files:
        if settings:
            raise UsageError("--set: overrides values of scenario files; name one")
        _check_machine(measure=measure, as_json=as_json)
        return
    if measure:
        raise UsageError("--measure: measures this machine; leave out the scenario files")
    if [str(file) for file in scenario_files].count("-") > 1:
        raise UsageError("-: standard input can be read only once")
    answers = [_check_file(file, settings or (), as_json=as_json) for file in scenario_files]
    valid = all(answer["valid"] for answer in answers)
    if as_json:
        print_json({"valid": valid, "files": answers})
    if not valid:
        raise typer.Exit(ScenarioError.exit_code)


# --- files ---------------------------------------------------------------------------------------


def _check_file(file: Path, settings: Sequence[str], *, as_json: bool) -> dict[str, Any]:
    """Check a file, print what was found, and return it as plain data."""
    answer: dict[str, Any] = {"file": scenario.STDIN if str(file) == "-" else str(file)}
    answer |= {"valid": False, "problems": [], "warnings": [], "plan": None}
    try:
        resolved = plan.Plan.resolve(scenario.Scenario.load(file, settings))
    except ScenarioError as error:
        for problem in error.problems:
            note(str(problem))
        text = f"not valid, {counted(len(error.problems), 'problem')}"
        if _is_link(file, settings, error):
            text = "no scenario, since it lacks traffic; ask, exec and lab take it as --link"
        answer["problems"] = [asdict(problem) for problem in error.problems]
    else:
        for warning in resolved.warnings:
            note(f"{answer['file']}: warning: {warning}")
        text = f"valid, {counted(len(resolved.data['flows']), 'flow')}"
        if resolved.warnings:
            text += f", {counted(len(resolved.warnings), 'warning')}"
        warnings = [asdict(warning) for warning in resolved.warnings]
        answer |= {"valid": True, "warnings": warnings, "plan": resolved.data}
    if not as_json:
        print(f"{answer['file']}: {text}")
    return answer


def _is_link(file: Path, settings: Sequence[str], error: ScenarioError) -> bool:
    """Return whether a file lacks nothing but traffic, which commands with a link do not need."""
    if {problem.field for problem in error.problems} - {"traffic", "duration"} or str(file) == "-":
        return False
    with suppress(BentpipeError):
        return bool(link_plan(str(file), settings))
    return False


# --- the machine ---------------------------------------------------------------------------------


def _check_machine(*, measure: bool, as_json: bool) -> None:
    checks = examine(Path.cwd())
    capacity = live.measure_capacity() if measure else None
    if as_json:
        ok = all(check.passes for check in checks)
        print_json({"ok": ok, "checks": [asdict(c) for c in checks], "measured": capacity})
    else:
        _print_checks(checks)
        if capacity is not None:
            print("\n".join(_capacity_lines(capacity)))
    require(checks)


def _print_checks(checks: Sequence[Check]) -> None:
    """Print checks in a table, those that fail with their remedy; on a terminal its lines fit.

    Of those with a dash, other things work without what they need.
    """
    width = max(len(check.name) for check in checks)
    is_terminal = sys.stdout.isatty() or "COLUMNS" in os.environ
    line = textwrap.TextWrapper(
        width=shutil.get_terminal_size().columns if is_terminal else sys.maxsize,
        subsequent_indent=" " * (width + 6),
        replace_whitespace=False,
        break_long_words=False,
        break_on_hyphens=False,
    )
    for check in checks:
        mark = "ok " if check.ok else "NO " if check.needed else "-  "
        print(line.fill(f"{mark} {check.name:{width}}  {check.found}"))
        if not check.ok:
            print(line.fill(f"{line.subsequent_indent}To fix it: {check.fix}"))


def examine(folder: Path) -> list[Check]:
    """Check Python, the extension, dependencies, cores, ``folder``, and what labs need."""
    cores = simulation.cores()
    return [
        _python(),
        _extension(),
        *_dependencies(),
        Check("cores", ok=True, found=f"Simulations use {cores} of {os.cpu_count()} cores."),
        _writable(folder),
        _labs(),
        *(_program(name, use) for name, use in _PROGRAMS.items()),
    ]


def _python() -> Check:
    wanted = ".".join(str(part) for part in OLDEST_PYTHON)
    return Check(
        name="python",
        ok=sys.version_info >= OLDEST_PYTHON,
        found=f"Python {sys.version.split()[0]} runs bentpipe, which needs {wanted} or newer.",
        fix=f"install Python {wanted} or newer and bentpipe into it",
    )


def _extension() -> Check:
    name = "bentpipe._core"
    try:
        version = import_module(name).version()
    except ImportError as error:
        finding = f"The Rust extension cannot be loaded: {error}."
        fix = "build it: pip install . in the source tree, or maturin develop --release"
        return Check(name=name, ok=False, found=finding, fix=fix)
    return Check(name=name, ok=True, found=f"The Rust extension {version} works.")


def _dependencies() -> list[Check]:
    try:
        requirements = metadata.requires("bentpipe") or []
    except metadata.PackageNotFoundError:
        finding, fix = "It runs from its source and is not installed.", "pip install ."
        return [Check(name="bentpipe", ok=False, found=finding, fix=fix)]
    return [_dependency(text) for text in requirements if "extra ==" not in text]


def _dependency(requirement: str) -> Check:
    """Check a requirement such as ``polars>=2.1``."""
    named = re.match(r"([A-Za-z0-9._-]+)(?:\[.*\])?(?:>=([0-9.]+))?", requirement)
    assert named is not None, "a requirement starts with a name"
    name, wanted = named[1], named[2]
    ok = False
    try:
        version = metadata.version(name)
        import_module(_MODULES.get(name, name.replace("-", "_")))
    except metadata.PackageNotFoundError:
        finding = "It is not installed."
    except ImportError as error:
        finding = f"It is installed and cannot be loaded: {error}."
    else:
        ok = wanted is None or _numbers(version) >= _numbers(wanted)
        finding = f"Version {version} {'works' if ok else f'is older than {wanted}'}."
    return Check(name=name, ok=ok, found=finding, fix=f'pip install "{requirement}"')


def _numbers(version: str) -> tuple[int, ...]:
    """Return the release of a version, such as (2, 1) of "2.1.0rc1"."""
    release = re.match(r"\d+(\.\d+)*", version)
    numbers = [int(part) for part in release[0].split(".")] if release else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def _writable(folder: Path) -> Check:
    fix = "change to a writable folder, or name one by --out"
    try:
        with tempfile.TemporaryFile(dir=folder):
            return Check(name="folder", ok=True, found=f"{folder} is writable.", fix=fix)
    except OSError as error:
        finding = f"{folder} is not writable: {error.strerror}."
        return Check(name="folder", ok=False, found=finding, fix=fix)


def _labs() -> Check:
    """Check that a lab can be set up, and with which privileges."""
    command = [sys.executable, "-c", _TRY_A_LAB]
    fix = "report it with what bentpipe exec --link leo -- true prints"
    try:
        tried = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        reason = f"{sys.executable} cannot be started: {error.strerror}"
        return _no_labs(reason, "install Python where every user may execute it")
    said = tried.stdout.strip()
    if tried.returncode == 0:
        return Check(name="labs", ok=True, found=f"Labs work, {said}.", needed=False)
    if not said:
        return _no_labs("setting one up failed with an internal error", fix)
    reason, _, remedy = _ERROR_NUMBER.sub("", said).partition(FIX)
    return _no_labs(reason, remedy or fix)


def _no_labs(reason: str, fix: str) -> Check:
    finding = f"Labs do not work, simulations do: {reason}."
    return Check(name="labs", ok=False, found=finding, fix=fix, needed=False)


def _program(name: str, use: str) -> Check:
    path = shutil.which(name)
    finding = f"It is not installed: {use}." if path is None else f"{path} is installed."
    fix = f"apt-get install {name}"
    return Check(name=name, ok=path is not None, found=finding, fix=fix, needed=False)


def _capacity_lines(capacity: dict[str, Any]) -> list[str]:
    lines = [
        f"one TCP flow    {capacity['tcp_bits_per_second'] / 1e9:.2f} Gbit/s",
        f"super-packets   {capacity['tcp_super_packets_bits_per_second'] / 1e9:.2f} Gbit/s, "
        "one TCP flow",
        f"small packets   {capacity['small_packets_per_second']:,.0f} a second, of 64 bytes",
    ]
    for name, text in {"sparse": "10,000 packets/s", "full": "20 Mbit/s, full"}.items():
        lines.append(f"{text:16}delay error {late_by(capacity[name])}")
    return lines
