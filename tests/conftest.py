"""What the Python tests share: the program called in process, and one small scenario."""

from __future__ import annotations

import functools
import gc
import io
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from html import escape
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import as_nobody
import matplotlib.font_manager  # noqa: F401 - it starts a process to find fonts, once
import pytest
from late import REPEATER, Repeater, add_option, pytest_runtest_makereport
from properties import load_tables, use_same_examples
from unit import refusing_what_is_not_unit
from wording import Wording

from bentpipe import Result, simulate
from bentpipe.cli import gateway
from bentpipe.cli.app import main
from bentpipe.live import sockets

if TYPE_CHECKING:
    from chromium import Proxy
    from matplotlib.figure import Figure
    from playwright.sync_api import Browser

# Pytest finds hooks by their names.
__all__ = ["pytest_runtest_makereport"]

ROOT = Path(__file__).parent.parent
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
# The changes for tests of a result whose charts do not matter: each takes 0.1 s.
PLAIN: dict[str, Any] = {"sample_interval": None, "packet_events": False}


# Two terminals with PEPs, an aggregator and a processor at each end, exchanges, web pages, a queue
# that drops early and one that shares the rate: a row for every table, and more than one place. The
# aggregators wait for a class that nothing has, since what is in frames is on no stream of a
# capture.
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
        "return": {
            "rate": "1 Mbit/s",
            "delay": "20 ms",
            "queue": {"discipline": "shared_rate", "classes": [{"reserved": "512 kbit/s"}]},
        },
    },
    "gateways": {
        "hub": {
            "aggregator": {"classes": [1]},
            "processor": {"packets_per_second": 800, "buffer": "8 packets"},
        },
        "terminal": {"pep": {}, "aggregator": {"classes": [1]}, "processor": {}},
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
        {
            "name": "reader",
            "kind": "web_page",
            "direction": "forward",
            "pages": 3,
            "think": "100 ms",
            "objects": {"exponential": 5},
            "document": "4 kB",
            "object": {"exponential": "6 kB"},
            "http": "1.1",
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


def _without_progress(printed: str) -> str:
    """Leave out the lines that a command of more than ten seconds prints, as on a busy machine."""
    return re.sub(r"^bentpipe: .*: \d+%, about .* left\n", "", printed, flags=re.MULTILINE)


def _run_in_place(executable: str, arguments: Sequence[str]) -> None:
    """Run a program, and end with its exit code, in place of the process of the tests."""
    done = subprocess.run(
        list(arguments), executable=executable, capture_output=True, text=True, check=False
    )
    sys.stdout.write(done.stdout)
    sys.stderr.write(done.stderr)
    raise SystemExit(done.returncode)


gateway.become = _run_in_place  # type: ignore[assignment]


@pytest.fixture
def bentpipe(capsys: pytest.CaptureFixture[str]) -> Program:
    """Call the program in process: ``bentpipe("run", "file.yaml")``."""

    def call(*arguments: str | Path) -> Called:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return Called(code, printed.out, _without_progress(printed.err))

    return call


def in_process(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Call the program in this process: most of the work of a new one is to import modules."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(arguments)
    shown = _without_progress(err.getvalue())
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), shown)


@pytest.fixture
def wording(request: pytest.FixtureRequest) -> Wording:
    """Compare messages with ``wording.txt``."""
    return Wording(update=bool(request.config.getoption("--update-wording")))


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the points of charts into reports instead of drawings, which take longer than runs."""
    html = import_module("bentpipe.report.html")

    def svg_file(figure: Figure, _name: str) -> str:
        return f"<svg><desc>{escape(html.csv_of_figure(figure))}</desc></svg>"

    monkeypatch.setattr(html, "svg_file", svg_file)
    monkeypatch.setattr(html, "png_file", lambda _: b"")


@pytest.fixture(scope="session")
def small_result() -> Result:
    """The result of the small scenario, simulated once."""
    return simulate(SMALL)


@pytest.fixture(scope="session")
def plain_result() -> Result:
    """The result of the small scenario without samples and events: its report has one chart."""
    return simulate(SMALL | PLAIN)


@pytest.fixture(scope="session")
def every_result() -> Result:
    """The result of the scenario with a row in every table, simulated once."""
    return simulate(EVERY)


@pytest.fixture(scope="session")
def proxy() -> Iterator[Proxy]:
    """The proxy of the browser, which refuses everything."""
    from chromium import Proxy  # noqa: PLC0415 - few sessions have a browser

    found = Proxy()
    yield found
    found.close()


@pytest.fixture(scope="session")
def browser(proxy: Proxy) -> Iterator[Browser]:
    """Debian's Chromium, one for all tests."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415

    with (
        # Chromium leaves files behind; the path of its socket has at most 107 bytes (unix(7)).
        tempfile.TemporaryDirectory(
            prefix="chromium-",
            dir=os.environ["PYTEST_DEBUG_TEMPROOT"],
            ignore_cleanup_errors=True,
        ) as folder,
        mock.patch.dict(os.environ, {"TMPDIR": folder}),
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"),
            args=["--no-sandbox"] if os.geteuid() == 0 else [],
            proxy={"server": f"http://127.0.0.1:{proxy.port}", "bypass": "127.0.0.1"},
        )
        yield browser
        browser.close()


# The Debian package of a program that has another name.
_PACKAGES = {
    "ip": "iproute2",
    "nft": "nftables",
    "ping": "iputils-ping",
    "setpriv": "util-linux",
    "setsid": "util-linux",
    "tc": "iproute2",
    "unshare": "util-linux",
}


def not_installed(program: str) -> str:
    """Return why a test is skipped that needs a program, and how to install it."""
    return f"{program} is not installed (apt-get install {_PACKAGES.get(program, program)})"


def needs(program: str) -> pytest.MarkDecorator:
    """Skip a test where a program is missing."""
    return pytest.mark.skipif(shutil.which(program) is None, reason=not_installed(program))


# A test that runs labs.
needs_lab = pytest.mark.lab
# A test that measures labs. It runs alone, since load makes labs late.
measures = pytest.mark.real_time


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that runs labs where there can be none; pause before one that was late."""
    if item.get_closest_marker("hypothesis"):
        load_tables()
    item.config.stash[REPEATER].wait(item)
    is_lab = any(item.get_closest_marker(mark) for mark in ("lab", "real_time"))
    if is_lab and (reason := why_no_lab()):
        pytest.skip(f"no labs here: {reason}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Hold unit tests to what they may do."""
    with refusing_what_is_not_unit(item):
        yield


_REMOVAL_TIMEOUT_S = 10.0


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of this project's tests."""
    add_option(parser)
    parser.addoption(
        "--update-wording",
        action="store_true",
        help="Write the messages of tests into wording.txt instead of comparing them.",
    )


def pytest_collection_finish() -> None:
    """Leave what was collected out of garbage collections, a sixth of the time of unit tests."""
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


def pytest_configure(config: pytest.Config) -> None:
    """Keep temporary files and labs apart from the user's, and let Ctrl-C interrupt.

    A shell starts a background job with SIGINT ignored: Python then leaves it so, and so would be
    every program that a test starts.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    use_same_examples()
    config.stash[REPEATER] = Repeater()
    # It starts a process for the name of the processor, once; the manifest of a result has it.
    platform.platform()
    # A pipe has the width of the defaults.
    os.environ.pop("COLUMNS", None)
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    own = Path(tempfile.mkdtemp(prefix="bentpipe-tests-"))
    # The user nobody has a folder below that of temporary files.
    own.chmod(0o711)
    for variable, mode in (("TMPDIR", 0o711), ("XDG_RUNTIME_DIR", 0o700)):
        (own / variable).mkdir(mode=mode)
        os.environ[variable] = str(own / variable)
    tempfile.tempdir = os.environ["TMPDIR"]


def pytest_unconfigure() -> None:
    """Remove the folders of `pytest_configure`."""
    shutil.rmtree(Path(os.environ["TMPDIR"]).parent, ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Fail if a test leaves a temporary file or a lab; end such a lab."""
    yield
    # Processes that a test interrupted may still end.
    temporary, until_s = Path(os.environ["TMPDIR"]), time.monotonic() + _REMOVAL_TIMEOUT_S
    while any(temporary.iterdir()) and time.monotonic() < until_s:
        time.sleep(0.1)
    # With what folders hold, which tells whose they are.
    left = [str(path.relative_to(temporary)) for path in temporary.rglob("*")]
    for lab in sockets.names():
        subprocess.run([sys.executable, "-m", "bentpipe", "lab", "down", lab], check=False)
        left.append(f"the lab {lab}")
    assert not left, f"left by tests: {', '.join(sorted(left))}"


def default_signals() -> None:
    """Give a new process the signals of a shell in the foreground, also under nohup(1).

    What is ignored stays ignored in each program that is started, and dash cannot trap it then.
    """
    for each in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(each, signal.SIG_DFL)


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
    top = as_nobody.prepare()
    command = as_nobody.command(top) if os.geteuid() == 0 else [sys.executable]
    environment = as_nobody.environment(top)
    if os.geteuid() != 0:
        kept = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH")
        environment |= {name: os.environ.get(name, "") for name in kept}
    yield User([*command, "-m", "bentpipe"], environment, top / "tmp")
    shutil.rmtree(top)


_TRY_LAB = """
from bentpipe import Lab
from bentpipe.errors import MachineError
try:
    Lab("leo").close()
except MachineError as error:
    print(error)
"""


@functools.cache
def why_no_lab() -> str:
    """Return why there can be no lab here, nothing if there can.

    Only what the machine lacks is a reason to skip: a program that fails in another way is to fail
    its tests.
    """
    command = [sys.executable, "-c", _TRY_LAB]
    tried = subprocess.run(command, capture_output=True, text=True, check=False)
    assert tried.returncode == 0, tried.stderr
    return tried.stdout.strip()
