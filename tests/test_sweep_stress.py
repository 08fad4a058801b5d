"""Sweeps under stress: kills at random times, Ctrl-C, and a full disk.

``BENTPIPE_STRESS`` times as many kills; by hand, 5 times and more.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from itertools import count
from pathlib import Path

import pytest
from conftest import default_signals, needs
from late import until_on_time
from test_sweep_folder import tree

from bentpipe import Sweep
from bentpipe.cli.app import main
from bentpipe.sweeps.journal import Journal

pytestmark = pytest.mark.system

KILLS = 10 * int(os.environ.get("BENTPIPE_STRESS", "1"))

SCENARIO = """\
link:
  forward: {rate: 8 Mbit/s, delay: 20 ms, bit_error_rate: 1e-6}
  return: {rate: 1 Mbit/s, delay: 20 ms}
traffic:
  - {kind: bulk, direction: forward, size: 1 MB}
  - {kind: constant_rate, direction: return, rate: 64 kbit/s, payload: 160 B, duration: 2 s}
duration: 20 s
"""
OPTIONS = ["--vary", "link.forward.delay=20ms,300ms", "--vary", "traffic.0.size=1MB,3MB"]

SWEEP = """
import sys
from bentpipe.cli.app import main
# What takes long to load.
import bentpipe.cli.sweep, bentpipe.sweeps.run
print("ready", flush=True)
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a scenario, and the sweep of four cells with 60 seeds in ``out``."""
    top = tmp_path_factory.mktemp("undisturbed")
    (top / "scenario.yaml").write_text(SCENARIO)
    assert main(begin(top, top / "out")) == 0
    assert Sweep.load(top / "out").runs.height == 240
    return top


def begin(top: Path, out: Path) -> list[str]:
    return ["sweep", f"{top / 'scenario.yaml'}", *OPTIONS, "--seeds", "60", "--out", str(out)]


def started(arguments: list[str]) -> subprocess.Popen[str]:
    """Start the program, and wait until its modules are loaded."""
    process = subprocess.Popen(
        [sys.executable, "-c", SWEEP, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=default_signals,  # noqa: PLW1509 - no thread is started before
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.thorough
def test_a_killed_sweep_is_resumed_to_the_same_bytes(undisturbed: Path, tmp_path: Path) -> None:
    """Given SIGKILL at random times, also while resuming and writing, expect the same folder."""
    delays = random.Random(7)
    out, folders, kills, rerun = tmp_path / "out-0", 0, 0, 0
    while kills < KILLS or (out / ".part" / "work" / "sweep.json").exists():
        resumes = (out / ".part" / "work" / "sweep.json").exists()
        before = ended(out)
        process = started(["sweep", "--resume", str(out)] if resumes else begin(undisturbed, out))
        if kills < KILLS:
            time.sleep(delays.uniform(0, 0.6))
            process.send_signal(signal.SIGKILL)
        _, errors = process.communicate(timeout=60)
        killed = process.returncode == -signal.SIGKILL
        assert killed or process.returncode == 0, errors
        kills += killed
        # What was in the journal stays there, unless the sweep is complete.
        after = ended(out)
        assert after >= before or not (out / ".part" / "work" / "sweep.json").exists()
        rerun += resumes
        if (out / "manifest.json").exists() and not (out / ".part").exists():
            assert tree(out) == tree(undisturbed / "out")
            folders += 1
            out = tmp_path / f"out-{folders}"
    if out.exists():
        assert main(begin(undisturbed, out)) == 0
        assert tree(out) == tree(undisturbed / "out")
    print(f"{kills} kills, {rerun} resumed, {folders} sweeps complete")


def ended(out: Path) -> int:
    """Return the number of runs in the journal of a folder."""
    journal = out / ".part" / "work" / "journal"
    if not journal.exists():
        return 0
    with Journal(journal) as opened:
        return len(opened)


def test_ctrl_c_says_how_to_go_on(undisturbed: Path, tmp_path: Path) -> None:
    """Given Ctrl-C when some runs are in the journal, expect 130, a data set, and the rest."""
    folders = (tmp_path / f"out-{number}" for number in count())

    def interrupt() -> tuple[Path, str, str, int]:
        out = next(folders)
        process = started([*begin(undisturbed, out), "--threads", "1"])
        journal = out / ".part" / "work" / "journal"
        # Ctrl-C takes back a record that is being added: the second one follows a whole one.
        sizes: set[int] = set()
        while len(sizes - {0}) < 2 and process.poll() is None:
            sizes.add(journal.stat().st_size if journal.exists() else 0)
            time.sleep(0.001)
        process.send_signal(signal.SIGINT)
        return out, *process.communicate(timeout=60), process.returncode

    out, shown, errors, code = until_on_time(
        interrupt, lambda ended: "the sweep ended before Ctrl-C" if ended[-1] == 0 else None
    )
    assert code == 130, errors
    complete = Sweep.load(out).runs.height
    assert f"interrupted; {complete} runs are complete; continue with bentpipe sweep" in errors
    assert f"--resume {out}" in errors
    assert "goodput" in shown
    assert main(["sweep", "--resume", str(out)]) == 0
    assert tree(out) == tree(undisturbed / "out")


# --- a full disk --------------------------------------------------------------------------------

FULL = """
import os, sys
from pathlib import Path
from bentpipe.cli.app import main
disk, begin = Path(sys.argv[1]), sys.argv[2:]
filler, out, full = disk / "filler", disk / "out", 0
for room in range(40_000, 4_000_000, 60_000):
    filler.unlink(missing_ok=True)
    free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
    filler.write_bytes(b"x" * max(0, free - room))
    resumes = (out / ".part" / "work" / "sweep.json").exists()
    code = main(["sweep", "--resume", str(out)] if resumes else begin)
    if code == 0:
        break
    assert code == 2, code
    full += 1
print(code, full)
"""


@pytest.mark.thorough
@needs("unshare")
def test_a_full_disk_keeps_the_runs_that_have_ended(undisturbed: Path, tmp_path: Path) -> None:
    """Given a disk with more room each time, expect one message each time, and then all rows."""
    own = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    unshare = ["unshare", "--mount", *own]
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no labs here: no user namespaces; run as root, or see bentpipe check")
    disk, copy = tmp_path / "disk", tmp_path / "copy"
    disk.mkdir()
    script = 'mount -t tmpfs -o size=5m none "$0" && "$@" && cp -r "$0/out" "$0-copy"'
    python = [sys.executable, "-c", FULL, str(disk), *begin(undisturbed, disk / "out")]
    command = [*unshare, "sh", "-c", script, str(disk), *python]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    code, full = (int(each) for each in done.stdout.splitlines()[-1].split())
    assert (code, full > 1) == (0, True)
    messages = [line for line in done.stderr.splitlines() if "cannot be written" in line]
    assert len(messages) == full
    for line in messages:
        file, _, reason = line.removeprefix("bentpipe: ").partition(": cannot be written: ")
        assert Path(file).is_relative_to(disk / "out"), line
        assert reason.startswith("No space left on"), line
    assert "Traceback" not in done.stderr
    assert tree(copy.with_name("disk-copy")) == tree(undisturbed / "out")
    print(f"{full} times full")
