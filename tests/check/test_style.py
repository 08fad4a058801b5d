"""Style: sizes of files and functions, leftovers, undeclared files, and standard terms."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from sources import ROOT, no_offenders, relative, tracked

FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70
BINDING_LINES_MAX = 700

# Each word is spelled with a class of one letter, so that this file does not hold it.
LEFTOVERS = re.compile(
    r"\b(TOD[O]|FIXM[E]|XX[X]|todo[!]|unimplemented[!]|NotImplementedErro[r]|dbg[!])"
)
# Where somebody's machine keeps things.
FOREIGN_PATHS = re.compile(r"(^|[^\w.$~/-])/(home|root|work|tmp/\w|Users)/")

# Each term, and the standard one. A class of one letter keeps this file from holding the term
# itself. Terms that are also plain English are looked for as names only.
TERMS = {
    r"[F]ollows|[W]hom": "StackVariant",
    r"[b]efriend": "reno_friendly",
    r"[s]urvives_partial_acks": "newreno",
    r"[r]epeated_to": "recover",
    r"[a]nswer_is_early": "rearm_rto",
    r"[t]ake_news": "take_delivered",
    r"[h]ear_(data|ack)": "on_data, on_ack",
    r"[h]ears_of_next": "needs_dequeue_events",
    r"[O]nTheWay": "InTransit",
    r"[h]asten": "decrease_key",
    r"[Kk]eeper": "lab daemon",
    r"[b]ury": "reap",
    r"[o]wn_views": "mount_private_proc_and_sys",
    r"[l]ead_outside": "enable_internet",
    r"[l]ay_over": "bind_mount_text",
    r"[P]ATIENCE": "TIMEOUT",
    r"_[a]fterthoughts": "post_run_warnings",
    r"[c]omplaints?": "error_message",
    r"[r]ivals": "competing_flows",
    r"[j]oint_goodput_bps": "aggregate_goodput_bps",
    r"[o]utside_bytes": "inter_frame_bytes",
    r"(beside|vs) measured": "published vs. measured",
    r"[l]inks in a row": "links in series",
    r"[d]raws? chance": "is stochastic",
    r"[s]egments sent again": "retransmitted segments",
    r"[n]obody listens": "no server is listening",
    r"[a] promise of": "an invariant of",
    r"[w]hole number belongs": "expected an integer",
    r"(short|long) way": "fast path, slow path",
    r"[i]n that of one that is no more": "reusing a freed allocation",
}
NAMES = (
    r"[L]oad|[R]oom|[T]ail|[H]ead|[M]aker|[O]rder|[C]ourses|[F]ollowed|[E]ntrance|[E]xit|[H]ands|[C]ommons|[P]lace|[J]oin|[C]ourse|"
    r"[C]onversations|[c]alm|[h]ear|[b]orn|[l]aw|[l]east|[m]ost|[s]ettled|[r]eminder"
)
DEFINED = re.compile(
    rf"\b(struct|enum|trait|type|class|fn|def|mod|const|static)\s+({NAMES})\b"
    rf"|^\s*(pub )?({NAMES}): [A-Za-z]"
)


def before_tests(text: str) -> list[str]:
    """Return the lines of a Rust file up to its unit tests."""
    return text.split("#[cfg(test)]\nmod tests {", maxsplit=1)[0].splitlines()


def long_functions(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                yield f"{relative(path)}: {node.name} has {lines} lines"


def test_files_and_functions_are_short() -> None:
    """A file with more lines is two or three things. Clippy measures functions of Rust."""
    long_files = [
        f"{relative(path)}: {lines} lines"
        for path in tracked(".rs", ".py")
        if (lines := len(before_tests(path.read_text(encoding="utf-8")))) > FILE_LINES_MAX
    ]
    no_offenders([*long_files, *(line for path in tracked(".py") for line in long_functions(path))])
    assert f"too-many-lines-threshold = {FUNCTION_LINES_MAX}" in (ROOT / "clippy.toml").read_text()
    assert 'too_many_lines = "warn"' in (ROOT / "Cargo.toml").read_text()


def test_the_binding_is_thin() -> None:
    lines = sum(len(path.read_text().splitlines()) for path in (ROOT / "crates/py").rglob("*.rs"))
    assert lines < BINDING_LINES_MAX


def numbered(*endings: str) -> Iterator[tuple[Path, str, str]]:
    """Yield each line of the files with these endings, with its place."""
    for path in tracked(*endings):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            yield path, f"{relative(path)}:{number}", line


def test_nothing_is_left_over() -> None:
    no_offenders(
        f"{place}: {line.strip()}"
        for _, place, line in numbered(".rs", ".py", ".md", ".toml", ".yaml")
        if LEFTOVERS.search(line) or FOREIGN_PATHS.search(line)
    )


def test_names_and_prose_use_standard_terms() -> None:
    any_term = re.compile("|".join(rf"\b({term})\b" for term in TERMS))

    def better(path: Path, line: str) -> Iterator[str]:
        is_code = path.suffix in {".rs", ".py", ".pyi"}
        if is_code and DEFINED.search(line):
            yield "a name with a standard term"
        if any_term.search(line):
            for term, standard in TERMS.items():
                if re.search(rf"\b({term})\b", line):
                    yield standard

    no_offenders(
        f"{place}: {standard}: {line.strip()}"
        for path, place, line in numbered(
            ".rs", ".py", ".pyi", ".md", ".yaml", ".toml", ".j2", ".csv"
        )
        if path.name != Path(__file__).name
        for standard in better(path, line)
    )


def test_the_checks_would_see_an_offender() -> None:
    assert LEFTOVERS.search("# TO" + "DO: finish")
    assert LEFTOVERS.search("    unimple" + "mented!()")
    assert FOREIGN_PATHS.search("see /ho" + "me/somebody/notes")
    assert DEFINED.search("pub struct Ro" + "om {")
    assert DEFINED.search("    lea" + "st: u64,")
    assert not DEFINED.search("at most: one")
    assert any(re.search(rf"\b({term})\b", "the kee" + "per of a lab") for term in TERMS)


def is_target_folder(folder: Path) -> bool:
    """Return whether Cargo compiles every file of this folder by itself, declared or not."""
    return folder.name in {"tests", "benches"} and (folder.parent / "Cargo.toml").is_file()


def is_declared(path: Path) -> bool:
    """Return whether a module declares a Rust file."""
    is_folder = path.name == "mod.rs"
    name = path.parent.name if is_folder else path.stem
    parent = path.parent.parent if is_folder else path.parent
    candidates = [parent / "mod.rs", parent / "lib.rs", parent / "main.rs"]
    candidates.append(parent.with_suffix(".rs"))
    if is_target_folder(parent):
        # A target of several files names a module of several targets by its path.
        candidates += [*parent.glob("*.rs"), *parent.glob("*/main.rs")]
    return any(
        re.search(rf"\bmod {name}\b", other.read_text()) for other in candidates if other.is_file()
    )


def test_every_rust_file_is_declared_by_a_module() -> None:
    no_offenders(
        relative(path)
        for path in tracked(".rs")
        if path.name not in {"lib.rs", "main.rs"}
        and not is_target_folder(path.parent)
        and not is_declared(path)
    )


def test_clippy_bans_have_their_reasons() -> None:
    lines = (ROOT / "clippy.toml").read_text().splitlines()
    bans = [line for line in lines if "path =" in line]
    assert len(bans) > 10
    no_offenders(ban for ban in bans if "reason =" not in ban)


def test_every_engine_has_a_model_page() -> None:
    pages = {path.stem for path in (ROOT / "docs/model").glob("*.md")}
    no_offenders({"framing", "link", "processor", "queues", "simulator", "tcp"} - pages)
