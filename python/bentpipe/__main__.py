"""`python -m bentpipe` is the same program as `bentpipe`."""

import gc
from typing import NoReturn

# Imported modules are never garbage, and looking for some among them takes about 5 ms.
gc.disable()

from bentpipe.cli import main  # noqa: E402 - imported without garbage collection
from bentpipe.cli.streams import exit_process, open_streams  # noqa: E402

gc.freeze()
gc.enable()


def program() -> NoReturn:
    """Run the command line of this process, and end the process."""
    open_streams()
    exit_process(main)


if __name__ == "__main__":
    program()
