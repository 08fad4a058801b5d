"""What the Python tests share: the program called in process, and one small scenario."""

from __future__ import annotations

import functools
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bentpipe import Result, simulate
from bentpipe.cli.app import main

ROOT = Path(__file__).parent.parent
EXIT_MACHINE = 3
EXAMPLES = sorted((ROOT / "scenarios").glob("*.yaml"))

# 1 MB at 8 Mbit/s takes one second of sending: long enough for every column, short for a test.
SMALL: dict[str, Any] = {
    "name": "small",
    "link": {
        "forward": {"rate": "8 Mbit/s", "delay": "20 ms", "bit_error_rate": 1e-6},
        "return": {"rate": "1 Mbit/s", "delay": "20 ms"},
    },
    "traffic": [
        {"kind": "bulk", "direction": "forward", "size": "1 MB"},
        {
            "name": "call",
            "kind": "constant_rate",
            "direction": "return",
            "rate": "64 kbit/s",
            "payload": "160 B",
            "duration": "2 s",
        },
    ],
    "duration": "20 s",
    "packet_events": True,
}


# Two terminals, an aggregator and a processor at each end, exchanges, and a queue that drops early:
# a row for every table, and more than one place. The aggregators wait for a class that nothing has,
# since what is in frames is on no stream of a capture.
EVERY: dict[str, Any] = {
    "name": "every",
    "link": {
        "terminals": 2,
        "forward": {
            "rate": "4 Mbit/s",
            "delay": "20 ms",
            "framing": "ethernet",
            "queue": {"discipline": "red", "limit": "60 packets", "weight": 0.1},
        },
        "return": {"rate": "1 Mbit/s", "delay": "20 ms"},
    },
    "gateways": {
        "hub": {
            "aggregator": {"classes": [1]},
            "processor": {"packets_per_second": 800, "buffer": "8 packets"},
        },
        "terminal": {"aggregator": {"classes": [1]}, "processor": {}},
    },
    "traffic": [
        {"kind": "bulk", "direction": "forward", "size": "400 kB", "terminal": "all"},
        {
            "name": "web",
            "kind": "fetch",
            "direction": "forward",
            "size": {"exponential": "20 kB"},
            "think": {"exponential": "100 ms"},
            "files": 6,
            "terminal": 2,
        },
    ],
    "duration": "30 s",
    "packet_events": True,
}


@dataclass(frozen=True)
class Called:
    """What the program returned and printed."""

    code: int
    out: str
    err: str


Program = Callable[..., Called]


@pytest.fixture
def bentpipe(capsys: pytest.CaptureFixture[str]) -> Program:
    """Call the program in process: ``bentpipe("run", "file.yaml")``."""

    def call(*arguments: str | Path) -> Called:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return Called(code, printed.out, printed.err)

    return call


@pytest.fixture(scope="session")
def small_result() -> Result:
    """The result of the small scenario, simulated once."""
    return simulate(SMALL)


@pytest.fixture(scope="session")
def every_result() -> Result:
    """The result of the scenario with a row in every table, simulated once."""
    return simulate(EVERY)


# The Debian package of a program that has another name.
_PACKAGES = {
    "ip": "iproute2",
    "ping": "iputils-ping",
    "setpriv": "util-linux",
    "setsid": "util-linux",
    "unshare": "util-linux",
}


def not_installed(program: str) -> str:
    """Return why a test is skipped that needs a program, and how to install it."""
    return f"{program} is not installed (apt-get install {_PACKAGES.get(program, program)})"


def needs(program: str) -> pytest.MarkDecorator:
    """Skip a test where a program is missing."""
    return pytest.mark.skipif(shutil.which(program) is None, reason=not_installed(program))


# Why a test is skipped for what can be installed or allowed.
_LACKING = re.compile(r"no labs here: |\S+ is not installed")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of machines on which no test of labs may be skipped."""
    parser.addoption(
        "--require-labs",
        action="store_true",
        help="Fail tests that would be skipped for a missing program or the lack of namespaces.",
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail what is skipped for something that is required."""
    report = yield
    skipped = None if call.excinfo is None else call.excinfo.value
    if report.skipped and isinstance(skipped, pytest.skip.Exception):
        why = str(skipped.msg)
        if item.config.getoption("--require-labs") and _LACKING.match(why):
            report.outcome, report.longrepr = "failed", f"--require-labs, but {why}"
    return report


def pytest_configure() -> None:
    """Let Ctrl-C interrupt, as tests of it expect, also in a background job.

    A shell starts such a job with SIGINT ignored: Python then leaves it so, and so would be every
    program that a test starts.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def default_signals() -> None:
    """Give a new process the signals of a shell in the foreground, also under nohup(1).

    What is ignored stays ignored in each program that is started, and dash cannot trap it then.
    """
    for each in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(each, signal.SIG_DFL)


# As root of a mount namespace: what the user nobody may not reach where it is, is where he may; and
# the device is as udev(7) makes it for everybody, also where there is no udev.
_BECOME_NOBODY = """
set -e
for name in python site tree; do mount --rbind "$1" "$0/$name"; shift; done
mknod -m 666 "$0/tun" c 10 200
mount --bind "$0/tun" /dev/net/tun
rm "$0/tun"
exec setpriv --reuid 65534 --regid 65534 --clear-groups "$@"
"""


@dataclass(frozen=True)
class User:
    """How an ordinary user calls bentpipe: without privileges, home or session."""

    command: Sequence[str]
    environment: dict[str, str]
    # Of its temporary files, where it has its sockets.
    folder: Path

    def __call__(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """Call the program."""
        return subprocess.run(
            [*self.command, *(str(argument) for argument in arguments)],
            capture_output=True,
            text=True,
            check=False,
            env=self.environment,
            timeout=60,
        )


@pytest.fixture
def user() -> Iterator[User]:
    """The user nobody if the tests run as root, else whoever runs them."""
    top = Path(tempfile.mkdtemp(prefix="bentpipe-user-"))
    top.chmod(0o755)
    folder = top / "tmp"
    folder.mkdir()
    # The umask does not hold here.
    folder.chmod(0o777)
    gone = {"HOME", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME"}
    environment = {name: value for name, value in os.environ.items() if name not in gone}
    environment["TMPDIR"] = str(folder)
    command = [sys.executable, "-m", "bentpipe"]
    if os.geteuid() == 0:
        for name in ("python", "site", "tree"):
            (top / name).mkdir()
        interpreter = Path(sys.executable).resolve().relative_to(sys.base_prefix)
        environment["PYTHONPATH"] = f"{top / 'tree' / 'python'}:{top / 'site'}"
        command = ["unshare", "--mount", "sh", "-c", _BECOME_NOBODY, str(top)]
        command += [sys.base_prefix, sysconfig.get_path("purelib"), str(ROOT)]
        command += [str(top / "python" / interpreter), "-m", "bentpipe"]
    yield User(command, environment, folder)
    shutil.rmtree(top)


@functools.cache
def why_no_lab() -> str:
    """Return why there can be no lab here, nothing if there can.

    Only what the machine lacks is a reason to skip: a program that fails in another way is to fail
    its tests.
    """
    command = [sys.executable, "-m", "bentpipe", "exec", "--link", "leo", "--", "true"]
    tried = subprocess.run(command, capture_output=True, text=True, check=False)
    return tried.stderr.strip() if tried.returncode == EXIT_MACHINE else ""
