"""`python -m bentpipe` is the same program as `bentpipe`."""

import atexit
import gc
import os
import sys
from typing import NoReturn


def program() -> NoReturn:
    """Run the command line of this process, and end the process.

    It does not return, because the interpreter takes some 40 ms to finalize the loaded modules, and
    whoever runs a program by ``exec`` waits for that.
    """
    # Modules stay. To look for garbage among what they are made of takes some 5 ms.
    gc.disable()
    from bentpipe.cli.app import main

    gc.freeze()
    gc.enable()
    code = main()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        # The interpreter reports it as it always does.
        sys.exit(code)
    atexit._run_exitfuncs()  # noqa: SLF001 - temporary folders are removed there
    os._exit(code)


if __name__ == "__main__":
    program()
