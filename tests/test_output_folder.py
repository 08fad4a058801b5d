"""Result folders: one writer at a time, replaced as a whole or not at all, equal for equal runs."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import PLAIN, ROOT, SMALL, Program, User

from bentpipe import Result
from bentpipe.cli.app import main
from bentpipe.errors import UsageError
from bentpipe.results.files import read_execution, read_file, read_manifest, read_unchanged
from bentpipe.results.output import Origin, OutputFolder, write_folder

DUPLEX = ROOT / "scenarios" / "snip-duplex.yaml"
SEARCH = ("search", DUPLEX, "--no-drop", "--sizes", "1400", "--resolution", "10%")
STUDY = ("study", "jpl", "--seeds", "1")


@pytest.fixture
def small_file(tmp_path: Path) -> Path:
    """The small scenario as a file."""
    file = tmp_path / "small.json"
    file.write_text(json.dumps(SMALL | PLAIN), encoding="utf-8")
    return file


def write_generation(out: Path | OutputFolder, generation: int, **more: str) -> Path:
    """Write a result whose files all have its number."""
    texts = {name: str(generation) for name in ("a.csv", "report.html", *more)}
    manifest = {"bentpipe_version": "0", "study": "moon", "generation": generation}
    return write_folder(out, kind="study", manifest=manifest, files=texts)


def read_generation(out: Path) -> int:
    """Return the number of a result, if all of its files have it."""

    def read() -> int:
        manifest = read_manifest(out)
        assert set(manifest["files"]) >= {"a.csv", "execution.json", "report.html"}
        for name in manifest["files"]:
            text = read_file(out, name, Path.read_text)
            assert text == str(manifest["generation"]) or name.endswith(".json")
        return int(manifest["generation"])

    return read_unchanged(out, read)


# --- equal runs, and what is replaced -----------------------------------------------------------


def contents(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


@pytest.mark.system
@pytest.mark.parametrize(
    "verb", ["run", "search", pytest.param("study", marks=pytest.mark.thorough)]
)
def test_equal_runs_give_equal_folders(
    verb: str, bentpipe: Program, small_file: Path, tmp_path: Path
) -> None:
    """Given another memory limit for the second run, expect execution.json alone to differ."""
    sampled = ("run", small_file, "--set", "sample_interval=100 ms")
    arguments = {"run": sampled, "search": SEARCH, "study": STUDY}[verb]
    first, again = tmp_path / "first", tmp_path / "again"
    assert bentpipe(*arguments, "--out", first).code == 0
    assert bentpipe(*arguments, "--memory-limit", "1GB", "--out", again).code == 0
    one, other = contents(first), contents(again)
    assert json.loads(one.pop("execution.json"))["ended"]
    assert json.loads(other.pop("execution.json"))["host"]["python"]
    assert one == other
    assert len(one) >= 4
    names = {name.partition("/")[0] for name in (*one, "execution.json")}
    assert sorted(names) == read_manifest(first)["files"]


@pytest.mark.system
def test_what_is_replaced_is_told(bentpipe: Program, small_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    wrote = f"bentpipe: wrote {out} (report.html shows it)\n"
    assert bentpipe("run", small_file, "--out", out).err == wrote
    ended = read_execution(out)["ended"]
    shown = f"{ended[:10]} {ended[11:16]} UTC"
    called = bentpipe("run", small_file, "--seed", "2", "--out", out)
    replaced = f'bentpipe: replaced the result of "small" (seed 1, {shown})\n'
    assert (called.code, called.err) == (0, replaced + wrote)
    assert Result.load(out).manifest["seed"] == 2


@pytest.mark.thorough
@pytest.mark.system
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (SEARCH, 'the result of a search of "UDP both ways through routing gateways" (seed 1, '),
        (STUDY, "the result of the study jpl (2"),
    ],
)
def test_each_verb_tells_what_it_replaces(
    arguments: tuple[str, ...], words: str, bentpipe: Program, tmp_path: Path
) -> None:
    assert "replaced" not in bentpipe(*arguments, "--out", tmp_path / "out").err
    assert f"bentpipe: replaced {words}" in bentpipe(*arguments, "--out", tmp_path / "out").err


@pytest.mark.parametrize(
    ("before", "after", "is_same"),
    [
        (Origin("moon", "/a/moon.yaml"), Origin("moon", "/a/moon.yaml"), True),
        # Another checkout of the same file; a new title of the same file; a result from Python.
        (Origin("moon", "/a/moon.yaml"), Origin("moon", "/b/moon.yaml"), True),
        (Origin("moon", "/a/moon.yaml"), Origin("the moon", "/a/moon.yaml"), True),
        (Origin("moon"), Origin("moon", "/a/moon.yaml"), True),
        # A copy of a file that has kept its title, and another scenario.
        (Origin("moon", "/a/moon.yaml"), Origin("moon", "/a/mars.yaml"), False),
        (Origin("moon", "/a/moon.yaml"), Origin("mars", "/b/moon.yaml"), False),
        (Origin("moon"), Origin("mars"), False),
        # Without titles only the path tells files apart.
        (Origin("", "/a/scenario.yaml"), Origin("", "/a/scenario.yaml"), True),
        (Origin("", "/a/scenario.yaml"), Origin("", "/b/scenario.yaml"), False),
        (Origin(""), Origin(""), False),
    ],
)
def test_the_result_of_something_else_is_replaced_on_request_only(
    before: Origin, after: Origin, is_same: bool, tmp_path: Path
) -> None:
    with OutputFolder(tmp_path, kind="study") as output:
        output.claim(before)
        write_generation(output, 1)
    with OutputFolder(tmp_path, kind="study") as output:
        if not is_same:
            with pytest.raises(UsageError, match=r"has the result of .* with --replace"):
                output.claim(after)
        assert read_generation(tmp_path) == 1
        output.claim(after, replace=not is_same)
        write_generation(output, 2)
    assert read_generation(tmp_path) == 2
    assert read_execution(tmp_path).get("scenario_file", "") == after.file


@pytest.mark.usefixtures("undrawn")
def test_a_run_does_not_replace_the_result_of_another_scenario(
    bentpipe: Program, small_file: Path, tmp_path: Path
) -> None:
    """Given the result of one file, expect the run of another to be refused before it starts."""
    out = tmp_path / "out"
    assert bentpipe("run", small_file, "--out", out).code == 0
    other = small_file.with_name("other.json")
    other.write_text(json.dumps(SMALL | PLAIN | {"seed": 5}), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("bentpipe._core.run", lambda *_: pytest.fail("a run was made"))
        called = bentpipe("run", other, "--out", out)
    assert (called.code, called.out) == (2, "")
    assert f"{out}: has the result of" in called.err
    assert f"from {small_file}; name another folder, or replace it with --replace" in called.err
    assert Result.load(out).manifest["seed"] == 1
    assert bentpipe("run", small_file, "--set", "traffic.0.size=9kB", "--out", out).code == 0
    assert bentpipe("run", other, "--replace", "--out", out).code == 0
    assert Result.load(out).manifest["seed"] == 5


def test_files_of_the_user_stay_and_those_of_the_old_result_go(tmp_path: Path) -> None:
    """Given a manifest that also names files elsewhere, expect these untouched."""
    out = write_generation(tmp_path / "out", 1, **{"b.csv": ""})
    outside = tmp_path / "thesis.tex"
    for file in (outside, out / "notes.txt"):
        file.write_text("years", encoding="utf-8")
    manifest = read_manifest(out)
    manifest["files"] += ["../thesis.tex", str(outside), ".."]
    (out / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    write_generation(out, 2)
    names = ["a.csv", "execution.json", "manifest.json", "notes.txt", "report.html"]
    assert sorted(contents(out)) == names
    assert outside.is_file()


@pytest.mark.system
def test_a_run_that_reaches_its_duration_is_completed(bentpipe: Program, tmp_path: Path) -> None:
    """Given traffic for longer than the run, expect one word for its state everywhere."""
    file = tmp_path / "short.json"
    file.write_text(json.dumps(SMALL | PLAIN | {"duration": "1 s"}), encoding="utf-8")
    called = bentpipe("run", file, "--out", tmp_path / "out")
    assert called.code == 0
    assert called.out.startswith("small: seed 1, completed at 1 s, ")
    result = Result.load(tmp_path / "out")
    assert (result.state, result.manifest["traffic_ended"]) == ("completed", False)
    assert repr(result) == "<Result 'small': 2 flows, completed at 1 s>"
    summary = json.loads(bentpipe("run", file, "--json").out)
    assert (summary["state"], summary["traffic_ended"]) == ("completed", False)
    assert "completed at 1 s of simulated time" in (tmp_path / "out" / "report.html").read_text()


# --- one writer ---------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["run", "search", "study"])
def test_a_second_writer_is_refused_before_it_runs(
    verb: str, bentpipe: Program, small_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = {"run": ("run", small_file), "search": SEARCH, "study": STUDY}[verb]
    monkeypatch.setattr("bentpipe._core.run", lambda *_: pytest.fail("a run was made"))
    out = tmp_path / "out"
    with OutputFolder(out, kind=verb):
        called = bentpipe(*arguments, "--out", out)
    message = "another run writes its result to this folder; wait until it has ended, or name"
    assert (called.code, called.out) == (2, "")
    assert called.err == f"bentpipe: {out}: {message} another folder\n"
    # Nothing was written to the folder.
    assert not out.exists()


def test_in_python_the_second_writer_is_refused_too(tmp_path: Path) -> None:
    write_generation(tmp_path, 1)
    with OutputFolder(tmp_path, kind="study") as output:
        with pytest.raises(UsageError, match="another run writes"):
            write_generation(tmp_path, 2)
        write_generation(output, 3)
    assert read_generation(tmp_path) == 3


HOLD = """
import sys
from pathlib import Path
from bentpipe.results.output import OutputFolder
with OutputFolder(Path(sys.argv[1]), kind="study"):
    print("locked", flush=True)
    sys.stdin.read()
"""


@pytest.mark.system
def test_the_lock_ends_with_a_killed_process(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(UsageError, match="another run writes"):
            write_generation(tmp_path, 1)
        holder.send_signal(signal.SIGKILL)
    assert sorted(contents_of_part(tmp_path)) == ["lock"]
    write_generation(tmp_path, 2)
    assert read_generation(tmp_path) == 2
    assert contents_of_part(tmp_path) == []


def contents_of_part(folder: Path) -> list[str]:
    part = folder / ".part"
    return [path.name for path in part.iterdir()] if part.exists() else []


def test_without_locks_the_last_writer_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a filesystem without flock(2), expect two writers, and no mixture."""

    def no_locks(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with OutputFolder(tmp_path, kind="study") as first:
        with OutputFolder(tmp_path, kind="study") as second:
            write_generation(second, 2, **{"b.csv": ""})
        assert read_generation(tmp_path) == 2
        write_generation(first, 1)
    assert read_generation(tmp_path) == 1
    assert sorted(contents(tmp_path)) == ["a.csv", "execution.json", "manifest.json", "report.html"]


def test_a_reader_repeats_what_was_replaced_meanwhile(tmp_path: Path) -> None:
    """Given a new result between manifest and data, expect the new one."""
    write_generation(tmp_path, 1)
    seen: list[int] = []

    def read() -> tuple[int, str]:
        generation = read_manifest(tmp_path)["generation"]
        if not seen:
            write_generation(tmp_path, 2)
        seen.append(generation)
        return generation, (tmp_path / "a.csv").read_text()

    assert read_unchanged(tmp_path, read) == (2, "2")
    assert seen == [1, 2]


# --- killed at any point ------------------------------------------------------------------------

# The process kills itself before the n-th change of the filesystem (sys.audit events). The events
# of shutil are those of os.
KILLED = """
import os, signal, sys
from pathlib import Path
from bentpipe.results.output import (write_folder)
out, left, at = Path(sys.argv[1]), int(sys.argv[2]), 0
CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate"}
def count(event, arguments):
    global at
    if event in CHANGES or (event == "open" and str(arguments[0]).startswith(str(out))):
        if at == left:
            os.kill(os.getpid(), signal.SIGKILL)
        at += 1
sys.addaudithook(count)
manifest = {"bentpipe_version": "0", "study": "moon", "generation": 2}
write_folder(out, kind="study", manifest=manifest, files={"a.csv": "2", "report.html": "2"})
"""


@pytest.mark.thorough
@pytest.mark.system
def test_a_writer_killed_at_any_point_leaves_the_old_or_the_new_result(tmp_path: Path) -> None:
    found = []
    for changes in range(200):
        out = write_generation(tmp_path / str(changes), 1, **{"b.csv": ""})
        command = [sys.executable, "-c", KILLED, str(out), str(changes)]
        done = subprocess.run(command, check=False)
        found.append(read_generation(out))
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL
        # The next writer completes or removes what the killed one has left.
        with OutputFolder(out, kind="study"):
            pass
        assert not (out / ".part").exists()
        assert read_generation(out) == found[-1]
        assert sorted(contents(out)) == read_manifest(out)["files"]
    # The change of one rename, after the old result was kept at several points.
    assert found == sorted(found)
    assert found.count(1) > 10
    assert found.count(2) > 5


# --- folders of all kinds -----------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.system
def test_an_empty_folder_a_symbolic_link_and_the_working_directory(
    small_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty, link, dangling = (tmp_path / name for name in ("empty", "link", "dangling"))
    empty.mkdir()
    link.symlink_to(empty)
    dangling.symlink_to(tmp_path / "new")
    inode = empty.stat().st_ino
    for seed, out in enumerate((empty, link, dangling, dangling, Path())):
        monkeypatch.chdir(empty)
        assert main(["run", str(small_file), "--out", str(out), "--seed", str(seed)]) == 0
        assert Result.load(out).manifest["seed"] == seed
    assert Result.load(empty).manifest["seed"] == 4
    assert (tmp_path / "new" / "manifest.json").is_file()
    assert link.is_symlink()
    # A shell in the folder, or a mount of it, still has the same one.
    assert empty.stat().st_ino == inode


def test_a_failed_run_leaves_no_folder(tmp_path: Path, small_result: Result) -> None:
    with pytest.raises(ZeroDivisionError), OutputFolder(tmp_path / "out", kind="run"):
        _ = 1 / 0
    broken = Result({**small_result.manifest, "seed": object()}, small_result.tables)
    with pytest.raises(TypeError):
        broken.save(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_save_keeps_the_old_result(tmp_path: Path, small_result: Result) -> None:
    small_result.save(tmp_path)
    before = contents(tmp_path)
    broken = Result({**small_result.manifest, "seed": object()}, small_result.tables)
    with pytest.raises(TypeError):
        broken.save(tmp_path)
    assert contents(tmp_path) == before


@pytest.mark.thorough
@pytest.mark.system
def test_an_ordinary_user_needs_only_the_folder(user: User) -> None:
    """Given a parent that cannot be written, expect a result; else one message."""
    scenario = user.folder / "small.json"
    scenario.write_text(json.dumps(SMALL | PLAIN), encoding="utf-8")
    scenario.chmod(0o644)
    parent = user.folder / "parent"
    out, closed, hidden = parent / "out", parent / "closed", parent / "hidden"
    for folder, mode in ((parent, 0o755), (out, 0o777), (closed, 0o555), (hidden, 0)):
        folder.mkdir()
        folder.chmod(mode)
    parent.chmod(0o555)
    try:
        for words in ("wrote", "replaced"):
            ran = user("run", scenario, "--out", out)
            assert (ran.returncode, words in ran.stderr) == (0, True), ran.stderr
        assert Result.load(out).state == "completed"
        for refused in (closed, parent / "new", hidden / "new"):
            ran = user("run", scenario, "--out", refused)
            assert (ran.returncode, ran.stdout) == (2, "")
            assert ran.stderr.startswith(f"bentpipe: {refused}: cannot be written: ")
            assert len(ran.stderr.splitlines()) == 1
    finally:
        parent.chmod(0o755)
        hidden.chmod(0o755)
    assert stat.S_IMODE((out / "flows.parquet").stat().st_mode) & stat.S_IRUSR


@pytest.mark.thorough
@pytest.mark.system
def test_report_replaces_its_file_as_a_whole(
    bentpipe: Program, plain_result: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a disk that is full when the report is written, expect the old one."""
    folder = plain_result.save(tmp_path / "out")
    assert bentpipe("report", folder).code == 0
    before = (folder / "report.html").read_bytes()

    def full(*_: Any, **__: Any) -> int:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(Path, "write_bytes", full)
    called = bentpipe("report", folder)
    assert (called.code, called.out) == (2, "")
    message = f"{folder / 'charts/attribution.png'}: cannot be written: No space left on device"
    assert called.err == f"bentpipe: {message}\n"
    assert (folder / "report.html").read_bytes() == before
    assert not list(folder.glob("*.part"))
