"""Become a program in a user namespace: ``python -m bentpipe.lab.as_owner DESCRIPTOR COMMAND...``.

A process of its own, because only a process with one thread may join a user namespace (setns(2)).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from bentpipe import _core


def main(arguments: Sequence[str]) -> NoReturn:
    """Join the user namespace and execute the program."""
    descriptor, *command = arguments
    try:
        _core.join_user_namespace(int(descriptor))
        os.execv(command[0], command)
    except (_core.MachineError, OSError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(sys.argv[1:])
