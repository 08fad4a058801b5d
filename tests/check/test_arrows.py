"""The arrows between rooms: which crate may use which, and what the inner rooms may not contain."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from sources import ROOT, no_offenders

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


def test_the_arrows_between_crates_are_these() -> None:
    found = {path.name: dependencies(path / "Cargo.toml") for path in (ROOT / "crates").iterdir()}
    assert found == ARROWS


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


def test_core_and_sim_touch_no_clock_thread_socket_or_file() -> None:
    """Test code may ask whether its thread is panicking, say; it is in no run."""
    folders = [ROOT / "crates" / crate / "src" for crate in ("core", "sim")]
    sources = [
        path
        for folder in folders
        for path in folder.rglob("*.rs")
        if "tests" not in path.relative_to(folder).parts
    ]
    assert len(sources) > 100
    no_offenders(
        f"{source.relative_to(ROOT)}: {match.group()}"
        for source in sources
        for line in source.read_text().splitlines()
        for match in IMPURE.finditer(line.split("//")[0])
    )


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
