"""Result folders under stress: pairs of runs, full disks and kills.

``BENTPIPE_STRESS`` times as many of each; by hand, 10 times.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import SMALL, needs

from bentpipe import Result, simulate
from bentpipe.errors import UsageError

pytestmark = pytest.mark.system

COUNT = 10 * int(os.environ.get("BENTPIPE_STRESS", "1"))
SCENARIO = {**SMALL, "packet_events": False}
SEEDS = (1, 2, 3)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of three seeds, and the scenario as a file."""
    top = tmp_path_factory.mktemp("saved")
    (top / "small.json").write_text(json.dumps(SCENARIO), encoding="utf-8")
    for seed in SEEDS:
        simulate(SCENARIO, seed=seed).save(top / str(seed))
    return top


def checked_seed(out: Path, saved: Path) -> int:
    """Return the seed of a result, if it is that of a run with this seed, to the last row."""
    result = Result.load(out)
    seed = int(result.manifest["seed"])
    expected = Result.load(saved / str(seed))
    assert result.manifest == expected.manifest
    assert all(table.equals(expected.tables[name]) for name, table in result.tables.items())
    return seed


# --- pairs --------------------------------------------------------------------------------------

RUN = """
import sys
from bentpipe.cli.app import main
sys.stdout = sys.stderr
for line in sys.stdin:
    code = main(["run", *line.split()])
    print(code, file=sys.__stdout__, flush=True)
"""


@contextmanager
def runner(errors: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that runs a scenario for each line that it reads."""
    pipe = subprocess.PIPE
    with errors.open("w") as file:
        command = [sys.executable, "-c", RUN]
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=file, text=True) as process:
            yield process
            assert process.stdin is not None
            process.stdin.close()


@pytest.mark.thorough
def test_of_two_runs_at_the_same_time_one_wins_as_a_whole(saved: Path, tmp_path: Path) -> None:
    """Given a result of seed 3 before every second pair, expect seed 1 or 2 after each."""
    codes: Counter[tuple[int, ...]] = Counter()
    with runner(tmp_path / "first.err") as first, runner(tmp_path / "second.err") as second:
        for pair in range(COUNT):
            out = tmp_path / f"pair-{pair}"
            if pair % 2:
                Result.load(saved / "3").save(out)
            ended = []
            for seed, process in ((1, first), (2, second)):
                assert process.stdin is not None
                process.stdin.write(f"{saved / 'small.json'} --seed {seed} --out {out}\n")
                process.stdin.flush()
            # A reader meanwhile finds a result, or none yet.
            try:
                assert checked_seed(out, saved) in SEEDS
            except UsageError:
                assert pair % 2 == 0
            for process in (first, second):
                assert process.stdout is not None
                ended.append(int(process.stdout.readline()))
            codes[tuple(sorted(ended))] += 1
            winner = checked_seed(out, saved)
            assert ended[winner - 1] == 0, (ended, winner)
            assert f"seed {winner}, completed at" in (out / "report.html").read_text()
            assert sorted(path.name for path in out.iterdir()) == files_of(out)
    # One was refused, or came after the other had ended.
    assert set(codes) <= {(0, 2), (0, 0)}
    refused = [
        line
        for name in ("first.err", "second.err")
        for line in (tmp_path / name).read_text().splitlines()
        if "another run writes its result" in line
    ]
    assert len(refused) == codes[0, 2]
    print(f"{COUNT} pairs: {codes[0, 2]} refused, {codes[0, 0]} one after the other")


def files_of(out: Path) -> list[str]:
    found: list[str] = json.loads((out / "manifest.json").read_text())["files"]
    return found


# --- full disks ---------------------------------------------------------------------------------

FULL = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[4])
from bentpipe import Result
from bentpipe.errors import UsageError
from test_output_stress import checked_seed, files_of
disk, saved, count = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
new = Result.load(saved / "2")
filler, written, kept = disk / "filler", 0, 0
for number in range(count):
    # The mount point itself, a folder with an earlier result, and a new one.
    out = (disk / "out", disk / "new")[number % 2]
    if number % 2 == 0:
        Result.load(saved / "1").save(out)
    free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
    room = number * 160_000 // count
    filler.write_bytes(b"x" * max(0, free - room))
    try:
        new.save(out)
        written += 1
        assert checked_seed(out, saved) == 2
    except UsageError as error:
        kept += 1
        assert str(error).startswith(f"{out}: cannot be written: No space left on device"), error
        assert "\\n" not in str(error)
        if number % 2 == 0:
            assert "it still has the result of" in str(error), error
            assert checked_seed(out, saved) == 1
        else:
            assert not out.exists()
    if out.exists():
        assert sorted(path.name for path in out.iterdir()) == files_of(out)
        for path in out.iterdir():
            path.unlink()
        out.rmdir()
    filler.unlink()
print(written, kept)
"""


@pytest.mark.thorough
@needs("unshare")
def test_a_full_disk_leaves_the_old_result_or_none(saved: Path, tmp_path: Path) -> None:
    """Given a disk with room for none of the new result, and more each time, until all fits."""
    own = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    unshare = ["unshare", "--mount", *own]
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no labs here: no user namespaces; run as root, or see bentpipe check")
    script = 'mount -t tmpfs -o size=500k none "$0" && exec "$@"'
    python = [sys.executable, "-c", FULL, str(tmp_path), str(saved), str(COUNT)]
    command = [*unshare, "sh", "-c", script, str(tmp_path), *python, str(Path(__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    written, kept = (int(each) for each in done.stdout.split())
    assert (written + kept, written > 0, kept > 0) == (COUNT, True, True)
    print(f"{COUNT} disks: {kept} full, {written} with enough room")


# --- kills --------------------------------------------------------------------------------------

SAVE = """
import sys
from pathlib import Path
from bentpipe import Result
out, saved = Path(sys.argv[1]), Path(sys.argv[2])
results = [Result.load(saved / seed) for seed in "12"]
print("ready", flush=True)
while True:
    for result in results:
        result.save(out)
"""


@pytest.mark.thorough
def test_a_killed_writer_leaves_a_whole_result(saved: Path, tmp_path: Path) -> None:
    """Given SIGKILL at random times while results are replaced, expect one of them each time."""
    out = Result.load(saved / "3").save(tmp_path / "out")
    delays = random.Random(1)
    leftovers = 0
    seeds: Counter[int] = Counter()
    for _ in range(COUNT):
        command = [sys.executable, "-c", SAVE, str(out), str(saved)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
            time.sleep(delays.uniform(0, 0.2))
            # While results are replaced, which may take a reader too long, and after the kill.
            try:
                assert checked_seed(out, saved) in SEEDS
            except UsageError as error:
                if "is being replaced all the time" not in str(error):
                    raise
            finally:
                writer.send_signal(signal.SIGKILL)
        seeds[checked_seed(out, saved)] += 1
        leftovers += (out / ".part").exists()
    Result.load(saved / "3").save(out)
    assert checked_seed(out, saved) == 3
    assert not (out / ".part").exists()
    print(f"{COUNT} kills: {leftovers} while writing, results of seeds {dict(seeds)}")
