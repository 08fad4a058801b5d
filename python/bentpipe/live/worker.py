"""The child process of an emulated run.

A lab needs a process that may create a user namespace, so one with a single thread, and its
real-time clock is disturbed by other work of the same process. The child reads the plan, pickled,
from standard input, runs it and saves the result; it prints an error on standard error.
"""

from __future__ import annotations

import pickle
import sys

# By way of the package: what starts threads must be imported after `prepare`.
from bentpipe import live
from bentpipe.errors import BentpipeError


def main() -> int:
    """Run the plan of the request; return the exit code."""
    plan, seed, out, capture = pickle.load(sys.stdin.buffer)
    try:
        live.prepare(plan)
        live.run_emulation(plan, seed=seed, capture=capture).save(out)
    except BentpipeError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
