"""Every command in the README and the docs is executed here, as printed."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import Program, not_installed, why_no_lab
from test_dashboard_server import browser

from bentpipe.answers import QUESTIONS
from bentpipe.dashboard.app import create_app
from bentpipe.results.tables import TABLES

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "ARCHITECTURE.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
# It takes 43 s, and `test_study_real_time.py` runs it.
RUN_ELSEWHERE = "bentpipe study jpl --engine emulate --cells 0:0 --json"
IN_REAL_TIME = {"exec", "lab"}
EXIT_INVALID = 4
# `exec --strict` exits so.
EXIT_FAILED = 125
# Commands are programs, and some examples take seconds.
pytestmark = pytest.mark.system
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# What these commands print is the same in every run; a block of text below them has some of it.
REPEATABLE = {"run", "ask", "compare"}
SHOWN = re.compile(r"\n\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    page: Path
    language: str
    text: str
    shown: str = ""

    @property
    def commands(self) -> list[list[str]]:
        return [words for line in self.text.splitlines() if (words := shlex.split(line, True))]

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}: {self.text.splitlines()[0]}"


def blocks(language: str) -> list[Block]:
    found = []
    for page in PAGES:
        text = page.read_text()
        for match in BLOCK.finditer(text):
            if match.group(1) == language:
                below = SHOWN.match(text, match.end())
                shown = below.group(1) if below else ""
                found.append(Block(page, language, match.group(2), shown))
    return found


def shown_of(block: Block) -> str:
    """Return what a page shows of the output of the commands of a block, if that is repeatable."""
    verbs = {words[1] for words in block.commands if words[0] == "bentpipe"}
    return "" if "emulate" in block.text or not verbs <= REPEATABLE else block.shown


def missing_lines(shown: str, printed: str) -> list[str]:
    """Return the lines of a page that are not printed in that order; "..." stands for any text."""
    missing, rest = [], [line.rstrip() for line in printed.splitlines()]
    for line in shown.splitlines():
        start = line.removesuffix("...").rstrip()
        if not start:
            continue
        lines = rest if line == start else [each[: len(start)] for each in rest]
        if start in lines:
            rest = rest[lines.index(start) + 1 :]
        else:
            missing.append(line)
    return missing


@pytest.fixture
def workshop(tmp_path: Path) -> Path:
    """A folder with the example scenarios, as a reader in a checkout has them."""
    (tmp_path / "scenarios").symlink_to(ROOT / "scenarios")
    return tmp_path


def programs_of(block: Block) -> set[str]:
    """Return the programs of others that the commands of a block run."""
    words = {word for each in shlex.split(block.text, comments=True) for word in each.split()}
    needed = words & {"curl", "iperf3", "ping", "tshark"}
    if "emulate" in words or "study linux" in block.text:
        needed.add("chromium" if "scenarios/web-pages-one-user.yaml" in words else "iperf3")
    if "--internet" in words:
        needed.add("slirp4netns")
    return needed


def test_there_are_commands_to_run() -> None:
    assert len(blocks("sh")) >= 5
    assert blocks("python")


def question_of(words: list[str]) -> str:
    """Return a question as it is asked, whatever file its answer is written to."""
    is_file = [each in {"--report", "--out"} for each in ["", *words]]
    return " ".join(word for i, word in enumerate(words) if not is_file[i] and not is_file[i + 1])


def test_pages_show_the_answers_to_their_questions() -> None:
    """Given `bentpipe ask` in the README or a how-to page, expect its output below it once."""
    pages = [block for block in blocks("sh") if "model" not in block.page.parts]
    asked = [
        (question_of(words), bool(shown_of(block)))
        for block in pages
        for words in block.commands
        if words[1] == "ask"
    ]
    shown = [question for question, is_shown in asked if is_shown]
    assert {question for question, _ in asked} == {*shown}
    assert len(shown) == len({*shown}) >= 5


def test_the_page_of_questions_says_when_not_to_believe_each() -> None:
    page = (ROOT / "docs/how-to/ask-a-question.md").read_text()
    parts = re.split(r"^(?:## .*|\*\*([\w-]+)\*\*: )", page, flags=re.MULTILINE)[1:]
    sections = {name: text for name, text in zip(parts[::2], parts[1::2], strict=True) if name}
    assert {*sections} == {*QUESTIONS}
    for name, text in sections.items():
        for part in ("It assumes", "It compares", "Do not believe it"):
            assert " ".join(text.split()).count(f"*{part}*") == 1, f"{name}: {part}"


@pytest.mark.parametrize(
    ("shown", "missing"),
    [
        ("a 1.5\n...\nb 2", []),
        ("a ...\n\nb 2", []),
        ("a 1.6\nb 2", ["a 1.6"]),
        ("a 1\nb 2", ["a 1"]),
        ("b 2\na 1.5", ["a 1.5"]),
    ],
)
def test_another_number_on_a_page_is_found(shown: str, missing: list[str]) -> None:
    assert missing_lines(shown, "a 1.5\nb 2\n") == missing


# Whole studies, sweeps of many runs, and clusters.
SLOW = (
    "study snip",
    "study hermes",
    "web-pages-one-user",
    "--dask",
    "LocalCluster",
    "lossy-c",
    "--sets",
    "ask pep",
    "ask coding",
    "ask buffer --link geo",
    "ask users",
    "ask update",
)


def examples(language: str) -> list[Any]:
    """Return the blocks of a language; those that take long run where there is time."""
    return [
        pytest.param(block, marks=pytest.mark.thorough, id=str(block))
        if any(word in block.text for word in SLOW)
        else pytest.param(block, id=str(block))
        for block in blocks(language)
    ]


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("block", examples("sh"))
def test_shell_commands_work(
    block: Block, workshop: Path, bentpipe: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(workshop)
    monkeypatch.setenv("COLUMNS", "80")
    # A late run is as good here as a valid one.
    monkeypatch.setattr("bentpipe.live.pool.MAX_ATTEMPTS", 1)
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    # Before the first command: one that is left out would leave a lab of the first ones behind.
    for program in sorted(programs_of(block)):
        if shutil.which(program) is None:
            pytest.skip(not_installed(program))
    shown, printed, was_late = shown_of(block), "", False
    for line in block.text.splitlines():
        words = shlex.split(line, comments=True)
        if not words or line == RUN_ELSEWHERE:
            continue
        if words[0] == "make":
            # These set up a whole machine; that they exist is checked here, that they work by
            # whoever runs this test.
            assert {word for word in words[1:] if "=" not in word} <= set(targets), line
            continue
        assert words[0] in {"bentpipe", "tshark"}, f"not a command of ours: {line}"
        if words[1] == "serve":
            # In this process: the program would run until Ctrl-C.
            with browser(create_app(workshop / words[2])) as client:
                assert client.get("/").status_code == 200
            continue
        in_real_time = words[1] in IN_REAL_TIME or "emulate" in words
        if in_real_time and (reason := why_no_lab()):
            pytest.skip(f"no labs here: {reason}")
        if words[0] == "bentpipe" and (not in_real_time or words[1] == "sweep"):
            # Without text below it, what an answer says is tested elsewhere.
            if words[1] == "ask" and not shown and not {"preset", "--seeds"} & {*words}:
                words += ["--seeds", "1"]
            # In this process, which saves the start of another.
            called = bentpipe(*words[1:])
            invalid = in_real_time and called.code == EXIT_INVALID
            # If all runs were late there is nothing to compare.
            nothing = was_late and "has no complete run" in called.err
            was_late |= invalid
            assert called.code == 0 or invalid or nothing, f"{line}\n{called.out}{called.err}"
            printed += called.out
            continue
        done = subprocess.run(
            words,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        # Where the machine is busy the link may be late, which is no fault of the page.
        invalid = in_real_time and (
            done.returncode == EXIT_INVALID
            or (done.returncode == EXIT_FAILED and "the run is invalid" in done.stderr)
        )
        assert done.returncode == 0 or invalid, f"{line}\n{done.stdout}{done.stderr}"
    assert missing_lines(shown, printed) == []


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("block", examples("python"))
def test_python_examples_work(
    block: Block, workshop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(workshop)
    exec(compile(block.text, str(block.page), "exec"), {"__name__": "__main__"})


def test_scenarios_in_the_docs_are_valid(bentpipe: Program, tmp_path: Path) -> None:
    files = []
    for number, block in enumerate(blocks("yaml")):
        file = tmp_path / f"{number}-{block.page.stem}.yaml"
        file.write_text(block.text)
        files.append(file)
    called = bentpipe("check", *files)
    assert called.code == 0, called.err


def test_the_format_page_names_every_table() -> None:
    page = (ROOT / "docs/results-format.md").read_text()
    for name, table in TABLES.items():
        assert f"## {name}\n\nOne row is {table.row}." in page


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_source_files_named_in_the_docs_exist() -> None:
    """Given `driver.rs` or `crates/core/src/graph.rs` on a page, expect such a file in the tree."""
    folders = ("crates", "python", "tests", "benches", "docs", "fuzz")
    files = [
        f"/{path.relative_to(ROOT)}" for each in folders for path in (ROOT / each).rglob("*.*")
    ]
    # A decision is a record of its date.
    pages = [page for page in PAGES if page.parent.name != "decisions"]
    named = [
        (page.name, name)
        for page in pages
        for name in re.findall(r"`([\w./-]+\.(?:rs|py))`", BLOCK.sub("", page.read_text()))
    ]
    assert len(named) > 50
    lost = [name for name in named if not any(file.endswith(f"/{name[1]}") for file in files)]
    assert lost == []
