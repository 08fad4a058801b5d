"""What bentpipe refuses to do, with the page that explains it: ``refusals.csv`` is the only list.

A row is for a kind of traffic, or for a program in a lab and one of its words: ``kind``,
``program`` and ``argument`` are regular expressions of a whole word.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import chain, takewhile
from pathlib import Path
from typing import Final

from bentpipe.text import csv_rows


@dataclass(frozen=True)
class Refusal:
    """A row of the list: the reason with the fix, and the page, a file with an anchor."""

    name: str
    kind: str
    program: str
    argument: str
    reason: str
    page: str

    def __str__(self) -> str:
        return f"{self.reason}; see {self.page}"


@cache
def refusals() -> tuple[Refusal, ...]:
    """Return the list."""
    return tuple(Refusal(**row) for row in csv_rows(Path(__file__).with_suffix(".csv")))


def refused_kind(kind: object) -> Refusal | None:
    """Return the refusal of this kind of traffic; None if the list has none."""
    of_kinds = (refusal for refusal in refusals() if refusal.kind)
    return next((refusal for refusal in of_kinds if re.fullmatch(refusal.kind, str(kind))), None)


_SHELLS: Final = {"sh", "bash", "dash", "ksh", "zsh"}
# The option of a shell before its text, alone or with others, such as -lc.
_IS_TEXT: Final = re.compile("-[a-z]*c")


def refused_program(words: Sequence[str]) -> str | None:
    """Return a message on a program, with its arguments, that does not work in a lab; else None.

    The text of ``sh -c`` and other shells is read as far as it is plain commands.
    """
    program = Path(words[0]).name if words else ""
    if program in _SHELLS:
        place = next((i for i, word in enumerate(words) if _IS_TEXT.fullmatch(word)), len(words))
        texts = map(_commands, words[place + 1 : place + 2])
        return next(filter(None, map(refused_program, chain.from_iterable(texts))), None)
    if program in _LAUNCHERS:
        return refused_program(_launched(program, words[1:]))
    if program == "ssh":
        # A command follows the host, for another shell.
        words = [*words[:1], *takewhile(lambda word: word.startswith("-"), words[1:])]
    of_program = [
        refusal
        for refusal in refusals()
        if refusal.program and re.fullmatch(refusal.program, program)
    ]
    for i, word in enumerate(words):
        for refusal in of_program:
            if re.fullmatch(refusal.argument, word):
                return f"{f'{program} {word}' if i else program}: {refusal}"
    return None


def _commands(text: str) -> Iterator[list[str]]:
    """Yield the commands of a shell's text, without operators and redirections."""
    lexer = shlex.shlex(text.replace("\n", ";"), posix=True, punctuation_chars=True)
    lexer.commenters, lexer.whitespace_split = "", True
    command: list[str] = []
    is_file = False
    # A quote without its end is the shell's to refuse.
    with suppress(ValueError):
        for word in lexer:
            if is_file:
                is_file = False
            elif set(word) <= set("();<>|&"):
                is_file = not {*word}.isdisjoint("<>")
                if not is_file:
                    yield command
                    command = []
            else:
                command.append(word)
    yield command


# Programs that start another one: their options whose value is the next word, and the number of
# their operands before the command, as coreutils, util-linux, findutils and sudo have them.
_LAUNCHERS: Final[dict[str, tuple[str, int]]] = {
    "env": ("-u --unset -C --chdir", 0),
    "nice": ("-n --adjustment", 0),
    "nohup": ("", 0),
    "setsid": ("", 0),
    "stdbuf": ("-i --input -o --output -e --error", 0),
    "sudo": ("-u --user -g --group -h --host -p --prompt -C -D --chdir -R -r -t -T -U", 0),
    "timeout": ("-s --signal -k --kill-after", 1),
    "xargs": ("-a --arg-file -d --delimiter -E -I -L -n --max-args -P --max-procs -s", 0),
}


def _launched(launcher: str, words: Sequence[str]) -> list[str]:
    """Return the command among the words after a program of `_LAUNCHERS`; empty if there is none.

    Words such as ``NAME=VALUE``, for the environment of the command, are no part of it.
    """
    options, operands = _LAUNCHERS[launcher]
    rest = list(words)
    while rest and (rest[0].startswith("-") or "=" in rest[0]):
        word = rest.pop(0)
        if word == "--":
            break
        if word in options.split():
            del rest[:1]
    return rest[operands:]
