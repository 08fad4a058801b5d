"""`python -m bentpipe` is the same program as `bentpipe`."""

import atexit
import gc
import os
import sys
from typing import NoReturn

# Imported modules are never garbage, and looking for some among them takes about 5 ms.
gc.disable()

from bentpipe.cli import main  # noqa: E402 - imported without garbage collection

gc.freeze()
gc.enable()


def program() -> NoReturn:
    """Run the command line of this process, and end the process.

    It does not return: the interpreter takes some 40 ms to finalize the loaded modules, which would
    delay the end of each ``exec``.
    """
    code = main()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        # The interpreter reports the error at exit.
        sys.exit(code)
    atexit._run_exitfuncs()  # noqa: SLF001 - removes temporary folders
    os._exit(code)


if __name__ == "__main__":
    program()
