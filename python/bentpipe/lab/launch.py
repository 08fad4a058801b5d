"""Start the process of a lab daemon."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict

from bentpipe.errors import MachineError
from bentpipe.lab import sockets
from bentpipe.lab.daemon import LabConfig


def start_daemon(config: LabConfig) -> tuple[subprocess.Popen[str], list[str]]:
    """Start a lab daemon; return its process and the names of the hosts once the lab is set up.

    It has no terminal and a session of its own, so that Ctrl-C and the end of the terminal do not
    reach it.

    Raises:
        BentpipeError: the lab cannot be set up.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "bentpipe.lab.daemon", config.name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        with process.stdout as output:
            # One that has ended already replies nothing.
            with suppress(BrokenPipeError):
                process.stdin.write(json.dumps(asdict(config)) + "\n")
                process.stdin.flush()
            content = sockets.parsed(output.readline().encode())
        if content is None:
            raise MachineError("the lab ended while it was set up; to fix it: try again")
        sockets.raise_error_of(content)
    except BaseException:
        process.kill()
        process.stdin.close()
        process.wait()
        raise
    return process, [str(host) for host in content["hosts"]]
