"""The program `bentpipe-gate`, which is inside this package."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from bentpipe.errors import MachineError

NAME: Final = "bentpipe-gate"


def find_binary(folder: Path = Path(__file__).parent) -> Path:
    """Return the path of the program.

    Raises:
        MachineError: this installation was made without it.
    """
    path = folder / NAME
    if not path.is_file():
        raise MachineError(
            f"{path}: no such file: this installation has no daemon for gateways; to fix it: "
            "install a wheel of `make wheel`, or run make .venv/.installed in the checkout"
        )
    if not os.access(path, os.X_OK):
        raise MachineError(f"{path}: cannot be executed; to fix it: chmod 755 {path}")
    return path
