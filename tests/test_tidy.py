"""Style checks: sizes of files and functions, leftovers, unused files."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70
BINDING_LINES_MAX = 700

# Each word is spelled with a class of one letter, so that this file does not hold it.
LEFTOVERS = re.compile(
    r"\b(TOD[O]|FIXM[E]|XX[X]|todo[!]|unimplemented[!]|NotImplementedErro[r]|dbg[!])"
)
# Where somebody's machine keeps things.
FOREIGN_PATHS = re.compile(r"(^|[^\w.$~/-])/(home|root|work|tmp/\w|Users)/")


def tracked(*endings: str) -> list[Path]:
    """Files that git tracks or would track, by ending."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    paths = [ROOT / line for line in listed.stdout.splitlines()]
    return [path for path in paths if path.is_file() and path.name.endswith(endings)]


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


SOURCES = tracked(".rs", ".py")


def before_tests(text: str) -> list[str]:
    """The lines of a Rust file up to its unit tests."""
    return text.split("#[cfg(test)]\nmod tests {", maxsplit=1)[0].splitlines()


def test_there_is_something_to_check() -> None:
    assert len(SOURCES) > 50


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_files_are_short(path: Path) -> None:
    lines = len(before_tests(path.read_text()))
    assert lines <= FILE_LINES_MAX, f"{lines} lines: which two or three things is it?"


@pytest.mark.parametrize("path", tracked(".py"), ids=relative)
def test_python_functions_are_short(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            assert lines <= FUNCTION_LINES_MAX, f"{node.name}: {lines} lines"


def test_rust_functions_are_held_short_by_the_linter() -> None:
    """Clippy's `too_many_lines` is an error in `make check`; its threshold is ours."""
    assert f"too-many-lines-threshold = {FUNCTION_LINES_MAX}" in (ROOT / "clippy.toml").read_text()
    assert 'too_many_lines = "warn"' in (ROOT / "Cargo.toml").read_text()


def test_the_binding_is_thin() -> None:
    lines = sum(len(path.read_text().splitlines()) for path in (ROOT / "crates/py").rglob("*.rs"))
    assert lines < BINDING_LINES_MAX


@pytest.mark.parametrize(
    "path",
    tracked(".rs", ".py", ".md", ".toml", ".yaml"),
    ids=relative,
)
def test_nothing_is_left_over(path: Path) -> None:
    text = path.read_text()
    assert not LEFTOVERS.search(text)
    for line in text.splitlines():
        assert not FOREIGN_PATHS.search(line), line


def is_target_folder(folder: Path) -> bool:
    """Whether Cargo compiles every file of this folder by itself, declared or not."""
    return folder.name in {"tests", "benches"} and (folder.parent / "Cargo.toml").is_file()


def test_the_test_would_see_a_leftover() -> None:
    assert LEFTOVERS.search("# TO" + "DO: finish")
    assert LEFTOVERS.search("    unimple" + "mented!()")
    assert FOREIGN_PATHS.search("see /ho" + "me/somebody/notes")


def test_every_rust_file_is_declared_by_a_module() -> None:
    for path in tracked(".rs"):
        if path.name in {"lib.rs", "main.rs"} or is_target_folder(path.parent):
            continue
        is_folder = path.name == "mod.rs"
        name = path.parent.name if is_folder else path.stem
        parent = path.parent.parent if is_folder else path.parent
        candidates = [parent / "mod.rs", parent / "lib.rs", parent / "main.rs"]
        candidates.append(parent.with_suffix(".rs"))
        if is_target_folder(parent):
            # A target of several files names a module of several targets by its path.
            candidates += [*parent.glob("*.rs"), *parent.glob("*/main.rs")]
        declared = any(
            re.search(rf"\bmod {name}\b", other.read_text())
            for other in candidates
            if other.is_file()
        )
        assert declared, f"no module declares {relative(path)}"


def test_clippy_bans_carry_their_reasons() -> None:
    lines = (ROOT / "clippy.toml").read_text().splitlines()
    bans = [line for line in lines if "path =" in line]
    assert len(bans) > 10
    assert all("reason =" in ban for ban in bans)


def test_every_engine_has_a_model_page() -> None:
    pages = {path.stem for path in (ROOT / "docs/model").glob("*.md")}
    assert {"framing", "link", "processor", "queues", "simulator", "tcp"} <= pages
