"""`python -m bentpipe` is the same program as `bentpipe`."""

import gc
import signal
from typing import NoReturn

# Ctrl-C during the imports ends the process at once, without a traceback. It stays ignored in a
# background job.
_interrupt = signal.getsignal(signal.SIGINT)
if _interrupt is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

# Imported modules are never garbage, and looking for some among them takes about 5 ms.
gc.disable()

from bentpipe.cli import main  # noqa: E402 - imported without garbage collection
from bentpipe.cli.streams import exit_process, open_streams  # noqa: E402

gc.freeze()
gc.enable()
signal.signal(signal.SIGINT, _interrupt)


def program() -> NoReturn:
    """Run the command line of this process, and end the process."""
    open_streams()
    exit_process(main)


if __name__ == "__main__":
    program()
