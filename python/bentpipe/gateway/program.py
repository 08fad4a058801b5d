"""The program of gateways, which is inside this package, and what it says of configurations."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from bentpipe.errors import MachineError

PROGRAM: Final = "bentpipe-gate"
# The largest number of peers of a tunnel, and its UDP port, as `config/tunnel.rs`:
# tests/test_gateway_shared.py compares them.
PEERS_MAX: Final = 64
PORT: Final = 51_871
# By this name the program speaks of itself as users of this package call it.
_CALLED: Final = "bentpipe gateway"


def find_binary(folder: Path = Path(__file__).parent) -> Path:
    """Return the path of the program.

    Raises:
        MachineError: this installation was made without it.
    """
    path = folder / PROGRAM
    if not path.is_file():
        raise MachineError(
            f"{path}: no such file: this installation has no daemon for gateways; to fix it: "
            "install a wheel of `make wheel`, or run make .venv/.installed in the checkout"
        )
    if not os.access(path, os.X_OK):
        raise MachineError(f"{path}: cannot be executed; to fix it: chmod 755 {path}")
    return path


def command(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """Return the program and its arguments, the name first, for ``bentpipe gateway ...``.

    Raises:
        MachineError: this installation was made without it.
    """
    return str(find_binary()), [_CALLED, *arguments]


def completions(words: Sequence[str], incomplete: str) -> list[str]:
    """Return what may follow ``bentpipe gateway`` with some words; none without the program."""
    try:
        program, arguments = command(["--", _CALLED.replace(" ", "-"), *words, incomplete])
    except MachineError:
        return []
    # The protocol of clap_complete for bash.
    asked = {
        "COMPLETE": "bash",
        "_CLAP_IFS": "\n",
        "_CLAP_COMPLETE_INDEX": str(len(words) + 1),
        "_CLAP_COMPLETE_COMP_TYPE": "9",
        "_CLAP_COMPLETE_SPACE": "false",
    }
    done = subprocess.run(
        arguments,
        executable=program,
        env=os.environ | asked,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.splitlines()


def read_plan(path: Path | str, text: str | None = None) -> dict[str, Any]:
    """Return the plan of a configuration (``plan``), or its mistakes (``problems``).

    ``text`` is the content of the file if ``path`` is ``/dev/stdin``.

    Raises:
        MachineError: this installation was made without the program.
    """
    read: dict[str, Any] = json.loads(_printed("plan", "read", str(path), given=text))
    return read


def placeholder_keys(names: Sequence[str]) -> list[str]:
    """Return a public key for each name that is valid, and whose private key nobody has.

    Raises:
        MachineError: this installation was made without the program.
    """
    return _printed("plan", "placeholders", "--", *names).split()


def _printed(*arguments: str, given: str | None = None) -> str:
    command = [str(find_binary()), *arguments]
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise MachineError(f"{' '.join(command)}: {done.stderr.strip()}; to fix it: report it")
    return done.stdout
