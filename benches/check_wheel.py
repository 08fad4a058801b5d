"""Check a wheel: its contents, and the demo in an empty environment that has only CPython.

Usage: `python benches/check_wheel.py WHEEL`. It makes a virtual environment in a temporary
folder, installs the wheel with `pip`, and runs `bentpipe study jpl`. The only program on the PATH
is `python3`, so neither Rust nor a C compiler can be used. It prints the time of each step and the
installed size of each package.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
EXTENSION: Final = "bentpipe/_core.abi3.so"
DAEMON: Final = "bentpipe/gateway/bentpipe-gate"
COMPILED: Final = (EXTENSION, DAEMON)
EXECUTABLE: Final = 0o111
# A block of `st_blocks` (stat(2)).
BLOCK_BYTES: Final = 512
SMALLEST_MB: Final = 1.0
# manylinux2014. maturin checks the extension.
OLDEST_GLIBC: Final = (2, 17)
# Without a plan it ends with code 3 and says so: it was loaded.
RUN_DAEMON: Final = """
import subprocess
from bentpipe.gateway import find_binary
done = subprocess.run([find_binary(), "plan", "remove"], input=b"", capture_output=True)
assert b"the plan" in done.stderr, done
"""


def check_contents(wheel: Path) -> None:
    """Compare the files of the wheel with those of the package that git tracks."""
    if "-manylinux" not in wheel.name:
        sys.exit(f"{wheel.name}: not a manylinux wheel")
    command = ["git", "ls-files", "python/bentpipe"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    expected = {line.removeprefix("python/") for line in listed.stdout.splitlines()} | {*COMPILED}
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
    found = {name for name in names if ".dist-info/" not in name}
    if found != expected:
        missing, extra = sorted(expected - found), sorted(found - expected)
        sys.exit(f"{wheel.name}: missing: {missing}; superfluous: {extra}")
    with zipfile.ZipFile(wheel) as archive:
        compiled = {name: archive.read(name) for name in COMPILED}
        mode = archive.getinfo(DAEMON).external_attr >> 16
    for name, content in compiled.items():
        if str(Path.home()).encode() in content:
            sys.exit(f"{name}: it names folders of the machine that built it")
    if mode & EXECUTABLE != EXECUTABLE:
        sys.exit(f"{DAEMON}: it is not executable")
    newest = max(map(_version, re.findall(rb"GLIBC_([0-9.]+)", compiled[DAEMON])))
    if newest > OLDEST_GLIBC:
        sys.exit(f"{DAEMON}: it needs glibc {newest}")
    if not any(name.endswith(".dist-info/licenses/LICENSE") for name in names):
        sys.exit(f"{wheel.name}: the licence is missing")
    print(f"{wheel.name}: {len(names)} files, {wheel.stat().st_size / 1e6:.1f} MB")


def _version(text: bytes) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(b"."))


def run_demo(wheel: Path, folder: Path) -> None:
    """Install the wheel into an empty environment, and run the demo."""
    programs = folder / "bin"
    programs.mkdir()
    (programs / "python3").symlink_to(sys.executable)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment = inherited | {"PATH": str(programs)}
    environment.pop("VIRTUAL_ENV", None)
    installed = folder / "environment"
    program = installed / "bin" / "bentpipe"
    report = folder / "jpl"
    steps: dict[str, list[str | Path]] = {
        "make the environment": [programs / "python3", "-m", "venv", installed],
        "install the wheel": [installed / "bin" / "pip", "install", "--quiet", wheel.resolve()],
        "print the version": [program, "--version"],
        "run the daemon": [installed / "bin" / "python", "-c", RUN_DAEMON],
        "run the demo": [program, "study", "jpl", "--out", report],
    }
    started, cpu_before = time.monotonic(), _children_cpu_seconds()
    for name, command in steps.items():
        begun = time.monotonic()
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            sys.exit(f"{name}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        print(f"{time.monotonic() - begun:8.1f} s  {name}")
    total, cpu = time.monotonic() - started, _children_cpu_seconds() - cpu_before
    print(f"{total:8.1f} s  in all, {cpu:.1f} s of them CPU time")
    if not (report / "report.html").stat().st_size:
        sys.exit("the report is empty")
    print_sizes(installed)


def _children_cpu_seconds() -> float:
    times = os.times()
    return times.children_user + times.children_system


def print_sizes(environment: Path) -> None:
    """Print the size on disk of each installed package."""
    (packages,) = environment.glob("lib/python*/site-packages")
    sizes = {
        each.metadata["Name"]: sum(
            _disk_mb(Path(str(each.locate_file(f)))) for f in each.files or ()
        )
        for each in metadata.distributions(path=[str(packages)])
    }
    for tool in ("pip", "setuptools"):
        sizes.pop(tool, None)
    for name, size in sorted(sizes.items(), key=lambda item: -item[1]):
        if size >= SMALLEST_MB:
            print(f"{size:8.1f} MB  {name}")
    rest = sum(size for size in sizes.values() if size < SMALLEST_MB)
    print(f"{rest:8.1f} MB  packages below {SMALLEST_MB:.0f} MB")
    print(f"{sum(sizes.values()):8.1f} MB  in all")


def _disk_mb(file: Path) -> float:
    try:
        return file.stat().st_blocks * BLOCK_BYTES / 1e6
    except FileNotFoundError:
        return 0


def main(arguments: list[str]) -> None:
    """Check the wheel that the command line names."""
    if len(arguments) != 1:
        sys.exit("usage: python benches/check_wheel.py WHEEL")
    wheel = Path(arguments[0])
    check_contents(wheel)
    with tempfile.TemporaryDirectory() as folder:
        run_demo(wheel, Path(folder))


if __name__ == "__main__":
    main(sys.argv[1:])
