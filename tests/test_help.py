"""What --help shows, and what the completion of shells offers."""

from __future__ import annotations

import io
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import typer
from conftest import ROOT, Program
from test_docs import blocks

from bentpipe import Result
from bentpipe.cli.app import app, main
from bentpipe.scenario import FRAMINGS, PRESETS

HEADINGS = [
    "Write and run scenarios:",
    "Answer a question:",
    "Run programs in a lab, behind a link in real time:",
    "Put functions on a real gateway:",
    "Reproduce a study:",
    "Check:",
]


def commands_below(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the words that lead to each command and group."""
    yield path
    for name in group.list_commands(None) if hasattr(group, "list_commands") else ():
        yield from commands_below(group.get_command(None, name), (*path, name))


Completed = Callable[..., list[str]]
COMMANDS = list(commands_below(typer.main.get_command(app)))
# A program of its own, with its own tests of completion and help.
PROGRAM = ("gateway",)


@pytest.fixture(autouse=True)
def columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the terminal 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")


def examples_of(help_text: str) -> list[str]:
    """Return the examples at the end of a help text."""
    _, _, after = help_text.partition("\n  Example")
    return [line.strip() for line in after.splitlines()[1:] if line.strip()]


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(words, marks=[pytest.mark.system] * (words == PROGRAM), id=" ".join(words))
        for words in COMMANDS
    ],
)
def test_help_fits_80_columns_and_has_one_or_two_examples(
    words: tuple[str, ...], bentpipe: Program
) -> None:
    called = bentpipe(*words, "--help")
    assert (called.code, called.err) == (0, "")
    assert max(map(len, called.out.splitlines())) <= 80
    # Of sub-commands, whose summary was shortened.
    assert not any(line.endswith("...") for line in called.out.splitlines()[1:])
    examples = examples_of(called.out)
    assert 1 <= len(examples) <= 3
    assert all(each.startswith(" ".join(["bentpipe", *words])) for each in examples)


def test_verbs_are_in_groups_and_each_summary_is_a_line_of_its_own(bentpipe: Program) -> None:
    lines = bentpipe("--help").out.splitlines()
    assert [line for line in lines if line in HEADINGS] == HEADINGS
    rows = lines[lines.index(HEADINGS[0]) : lines.index("  Examples:")]
    verbs = [row.split()[0] for row in rows if row and row not in HEADINGS]
    assert verbs == [words[0] for words in COMMANDS if len(words) == 1]
    answer = rows.index("Answer a question:")
    assert rows[answer + 1].split()[0] == "ask"


@pytest.mark.parametrize(
    "verb",
    [
        pytest.param(words[0], marks=[pytest.mark.system] * (words == PROGRAM))
        for words in COMMANDS
        if len(words) == 1
    ],
)
def test_the_summary_of_a_verb_begins_its_own_help(verb: str, bentpipe: Program) -> None:
    """The list of verbs has the summaries, so that --help need not import them."""
    (row,) = (line for line in bentpipe("--help").out.splitlines() if line.startswith(f"  {verb} "))
    summary = row.split(maxsplit=1)[1]
    own = " ".join(bentpipe(verb, "--help").out.split("\n\n", 2)[1].split())
    assert own.startswith(summary)


@pytest.mark.system
def test_help_imports_no_module_of_a_verb() -> None:
    program = (
        "import sys\nfrom bentpipe.cli.app import main\nmain(['--help'])\n"
        "print(sorted(name for name in sys.modules if name.startswith('bentpipe.cli.')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    own = ["app", "lazy", "streams"]
    assert done.stdout.splitlines()[-1] == str([f"bentpipe.cli.{name}" for name in own])


IN_REAL_TIME = {"exec", "lab", "gateway"}


def help_of(*words: str) -> str:
    """Return a help text, while tests are collected."""
    with redirect_stdout(io.StringIO()) as printed:
        assert main([*words, "--help"]) == 0
    return printed.getvalue()


def commands_of_docs() -> set[str]:
    """Return the commands that `test_docs` runs."""
    return {line for block in blocks("sh") for line in block.text.splitlines()}


EXAMPLES = sorted(
    {each for words in COMMANDS if words != PROGRAM for each in examples_of(help_of(*words))}
)


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_options_of_examples_exist(example: str) -> None:
    """Also those of examples that need a lab: they are parsed, and not run."""
    program, *words = shlex.split(example.partition(" > ")[0])
    assert program == "bentpipe"
    command: Any = typer.main.get_command(app)
    while hasattr(command, "get_command"):
        command = command.get_command(None, words.pop(0))
    assert command.make_context(program, words).params is not None


@pytest.mark.thorough
@pytest.mark.parametrize(
    "example",
    [
        each
        for each in EXAMPLES
        # What runs in real time needs a lab or a router; studies and measurements take minutes.
        if each.split()[1] not in IN_REAL_TIME
        if each.split()[1] != "study"
        if "--measure" not in each
        # It runs until Ctrl-C: see test_dashboard_server.py.
        if each.split()[1] != "serve"
        if each not in commands_of_docs()
    ],
)
@pytest.mark.system
def test_examples_work(
    example: str,
    tmp_path: Path,
    small_result: Result,
    bentpipe: Program,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("scenarios").symlink_to(ROOT / "scenarios")
    if "results/" in example and "--out results" not in example:
        small_result.save(tmp_path / "results" / "geo")
    # What an answer says is tested elsewhere; here its options are.
    seeds = " --seeds 1" if re.match("bentpipe ask (?!preset)", example) else ""
    if " > " not in example:
        # In this process, which saves the start of another.
        called = bentpipe(*shlex.split(example + seeds)[1:])
        assert called.code == 0, called.err
        return
    done = subprocess.run(
        ["sh", "-c", example.replace("bentpipe", f"{sys.executable} -m bentpipe", 1)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


# --- completion ---------------------------------------------------------------------------------


@pytest.fixture
def completed(bentpipe: Program, monkeypatch: pytest.MonkeyPatch) -> Completed:
    """Return what bash offers for the last word."""

    def offered(*words: str) -> list[str]:
        monkeypatch.chdir(ROOT)
        monkeypatch.setenv("_BENTPIPE_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", " ".join(["bentpipe", *words]))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        called = bentpipe()
        assert called.err == ""
        return called.out.split()

    return offered


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("r",), ["run", "report"]),
        (("run", "--engine", ""), ["simulate", "emulate"]),
        (("run", "scenarios/geo-b"), ["scenarios/geo-bulk.yaml"]),
        (("check", "scenarios/geo-b"), ["scenarios/geo-bulk.yaml"]),
        (("exec", "--link", "g"), ["geo"]),
        (("exec", "--link", "scenarios/geo-b"), ["scenarios/geo-bulk.yaml"]),
        (("lab", "st"), ["status"]),
        pytest.param(("gateway", "st"), ["status"], marks=pytest.mark.system),
        pytest.param(("gateway", "status", "--w"), ["--watch"], marks=pytest.mark.system),
        pytest.param(
            ("gateway", "unit", "crates/gate/Cargo.t"),
            ["crates/gate/Cargo.toml"],
            marks=pytest.mark.system,
        ),
        (("show", "presets", ""), list(PRESETS)),
        (("show", "framings", "aal"), ["aal5", "aal5-sonet"]),
        (("study", "j"), ["jpl"]),
        (("study", "jpl", "--engine", "e"), ["emulate"]),
    ],
    ids=str,
)
def test_choices_are_completed(
    words: tuple[str, ...], expected: list[str], completed: Completed
) -> None:
    assert completed(*words) == expected


def test_choices_are_shown(bentpipe: Program) -> None:
    assert "--engine <simulate|emulate>" in bentpipe("run", "--help").out
    assert f"--link {'|'.join(PRESETS)}|FILE" in bentpipe("exec", "--help").out
    assert f"[{'|'.join(PRESETS)}]" in bentpipe("show", "presets", "--help").out
    assert "|".join(FRAMINGS) in bentpipe("show", "framings", "--help").out
