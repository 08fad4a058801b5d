"""The arrows between rooms: which crate may use which, and what the inner rooms may not contain."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# ARCHITECTURE.md draws these; there are no others.
ARROWS = {
    "gf": set[str](),
    "core": {"bentpipe-gf"},
    "sim": {"bentpipe-core"},
    "sys": {"bentpipe-core"},
    "live": {"bentpipe-core", "bentpipe-sim", "bentpipe-sys"},
    "gate": {"bentpipe-core", "bentpipe-sys"},
    "py": {"bentpipe-core", "bentpipe-live", "bentpipe-sim", "bentpipe-sys"},
}

# The one crate with unsafe code.
UNSAFE_CRATE = "sys"
# Other files with unsafe code, each with its reason.
UNSAFE_FILES = {
    "crates/gf/src/kernel.rs": "calls functions compiled for features that the processor has",
    "crates/gf/src/kernel/lanes.rs": "vector loads without a check of bounds for each",
    "crates/gf/src/kernel/neon.rs": "vector instructions",
    "crates/gf/src/kernel/x86.rs": "vector instructions",
    "crates/gf/src/row.rs": "the bytes of aligned memory",
}
UNSAFE = re.compile(r"\bunsafe\b")

# What would make a run depend on more than its plan and its seed.
IMPURE = re.compile(
    r"std::(time|thread|net|fs|process|env|os)\b|\basync\b|\bawait\b|SystemTime|pyo3|\bunsafe\b"
)


def dependencies(manifest: Path) -> set[str]:
    """The workspace's own crates that a manifest names under `[dependencies]`."""
    names = tomllib.loads(manifest.read_text())["dependencies"]
    return {name for name in names if name.startswith("bentpipe")}


@pytest.mark.parametrize("crate", sorted(ARROWS))
def test_a_crate_depends_on_no_more_than_its_arrows(crate: str) -> None:
    assert dependencies(ROOT / "crates" / crate / "Cargo.toml") == ARROWS[crate]


def test_every_crate_has_its_arrows_here() -> None:
    assert {path.name for path in (ROOT / "crates").iterdir()} == set(ARROWS)


def test_core_has_few_dependencies() -> None:
    names = tomllib.loads((ROOT / "crates/core/Cargo.toml").read_text())["dependencies"]
    assert len(names) <= 3, names


def test_every_kernel_states_why_it_is_safe() -> None:
    """A function or a block that is unsafe has a comment that says why, or on what condition."""
    for path in UNSAFE_FILES:
        lines = (ROOT / path).read_text().splitlines()
        blocks = sum("unsafe {" in line for line in lines)
        reasons = sum("// SAFETY: " in line for line in lines)
        assert 0 < blocks <= reasons, path


@pytest.mark.parametrize("crate", ["core", "sim"])
def test_core_and_sim_touch_no_clock_thread_socket_or_file(crate: str) -> None:
    folder = ROOT / "crates" / crate / "src"
    # Test code may ask whether its thread is panicking, say; it is in no run.
    sources = [
        path for path in folder.rglob("*.rs") if "tests" not in path.relative_to(folder).parts
    ]
    assert sources
    for source in sources:
        code = "\n".join(line.split("//")[0] for line in source.read_text().splitlines())
        found = [match.group() for match in IMPURE.finditer(code)]
        assert not found, f"{source.relative_to(ROOT)} uses {found}"


def test_only_sys_and_kernels_have_unsafe_code() -> None:
    """Neither code nor tests: what needs it has a safe form in that crate."""
    folders = (ROOT / "crates", ROOT / "benches", ROOT / "fuzz")
    sources = [source for folder in folders for source in folder.rglob("*.rs")]
    assert len(sources) > 100
    found = {
        str(source.relative_to(ROOT))
        for source in sources
        for line in source.read_text().splitlines()
        if UNSAFE.search(line.split("//")[0])
    }
    in_crate = {path for path in found if path.startswith(f"crates/{UNSAFE_CRATE}/")}
    assert in_crate
    assert found - in_crate == set(UNSAFE_FILES)


def test_the_test_would_see_a_clock() -> None:
    assert IMPURE.search("let now = std::time::Instant::now();")


def test_python_reaches_rust_through_one_module() -> None:
    """No other extension module of ours is imported."""
    for source in sorted((ROOT / "python").rglob("*.py")):
        for node in ast.walk(ast.parse(source.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
                names = [node.module]
            compiled = [name for name in names if name.split(".")[-1] == "_core"]
            assert set(compiled) <= {"bentpipe._core"}, source
