"""Run one program in a lab: ``python -m bentpipe.lab.enter HOST DESCRIPTOR,... COMMAND...``.

A process of its own, because only a process with one thread may join a user namespace (setns(2)).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from bentpipe.errors import BentpipeError
from bentpipe.lab.programs import exit_status, start_in_lab, wait_for_program

# As env(1) exits when it fails itself.
_EXIT_FAILED: Final = 125


def main(arguments: Sequence[str]) -> int:
    """Run the program; return its exit status."""
    host, descriptors, *command = arguments
    try:
        process = start_in_lab([int(text) for text in descriptors.split(",")], command, host)
    except BentpipeError as error:
        print(f"bentpipe: {error}", file=sys.stderr)
        return _EXIT_FAILED
    return exit_status(wait_for_program(process))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
