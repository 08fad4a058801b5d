"""The lab daemon: a process that keeps a lab and serves requests; the lab ends with it.

`start_daemon` starts it as ``python -m bentpipe.live.daemon NAME`` with its configuration, a
`LabConfig` as JSON, on standard input. It prints one line of JSON, ``hosts`` or ``error``, once the
lab is set up.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn

from bentpipe import _core
from bentpipe.errors import BentpipeError, InternalError, MachineError, UsageError
from bentpipe.live import sockets
from bentpipe.live.capacity import gain_privileges
from bentpipe.live.link_state import (
    OutageEnds,
    largest_plans,
    link_state,
    with_changes,
    with_outages,
)
from bentpipe.live.local_lab import LocalLab

# The changes that `status` lists, and the size of the settings of one: a reply has all.
_CHANGES_MAX: Final = 100
_SETTINGS_BYTES_MAX: Final = 16 * 1024
# Clients read their replies immediately, and most replies fit into the socket's buffer.
_REPLY_TIMEOUT_S: Final = 2.0
# The programs of a lab are ended within this time after the link has failed.
_POLL_S: Final = 0.5


@dataclass(frozen=True, kw_only=True)
class LabConfig:
    """The lab that a daemon keeps.

    ``folder`` is that of its socket. ``links`` describe the plans to users. A lab that
    ``ends_with_parent`` ends with the process that started the daemon, and its folder is removed.
    """

    name: str
    folder: str
    plans: Sequence[Mapping[str, Any]]
    links: Sequence[str]
    seed: int
    gateways: bool = False
    internet: bool = False
    ends_with_parent: bool = False

    def lab(self) -> LocalLab:
        """Return the lab, which is not set up."""
        return LocalLab(
            plans=self.plans, seed=self.seed, gateways=self.gateways, internet=self.internet
        )


def start_daemon(config: LabConfig) -> tuple[subprocess.Popen[str], list[str]]:
    """Start a lab daemon; return its process and the names of the hosts once the lab is set up.

    It has no terminal and a session of its own, so that Ctrl-C and the end of the terminal do not
    reach it.

    Raises:
        BentpipeError: the lab cannot be set up.
    """
    config.lab().check()
    process = subprocess.Popen(
        [sys.executable, "-m", "bentpipe.live.daemon", config.name],
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


@dataclass(kw_only=True)
class LabDaemon:
    """Serves requests about a running lab."""

    config: LabConfig
    lab: LocalLab
    # The programs of other processes are in it; None once the link has failed.
    _pids: _core.SharedPidNamespace | None = field(
        init=False, default_factory=_core.SharedPidNamespace
    )
    _started_unix_s: float = field(init=False, default_factory=time.time)
    _changes: list[dict[str, Any]] = field(init=False, default_factory=list)
    # How often the link was changed.
    _revision: int = field(init=False, default=0)
    # Those of the hops, as changed.
    _plans: list[Mapping[str, Any]] = field(init=False)
    _outage_ends: OutageEnds = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._plans = list(self.config.plans)

    def serve(self, listener: socket.socket) -> NoReturn:
        """Serve requests until one ends the lab; end the programs if the link fails."""
        clients = sockets.Clients(listener)
        while True:
            for connection, request in clients.requests(_POLL_S):
                with connection:
                    connection.settimeout(_REPLY_TIMEOUT_S)
                    # The client may have disconnected, or read too slowly.
                    with suppress(OSError):
                        self._serve(connection, request or {})
            if self.lab.failure is not None:
                # The kernel kills the programs in the namespace.
                self._pids = None

    def _serve(self, connection: socket.socket, request: dict[str, Any]) -> None:
        try:
            match request.get("do"):
                case "status":
                    sockets.reply(connection, self._status())
                case "link":
                    self.lab.require_running()
                    plans = largest_plans(self._plans)
                    sockets.reply(connection, {"revision": self._revision, "plans": plans})
                case "set":
                    sockets.reply(connection, self._set(request))
                case "enter":
                    self._enter(connection, request.get("host"))
                case "down":
                    self._end(connection)
                case _:
                    text = "one line of JSON, with do: down, enter, link, set or status"
                    raise UsageError(f"expected a request: {text}")
        except BentpipeError as error:
            sockets.reply(connection, sockets.error_reply(error))
        except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
            # A bug in reading a request must not end the lab.
            refusal = InternalError(f"internal error: {error!r}")
            sockets.reply(connection, sockets.error_reply(refusal))

    def _end(self, connection: socket.socket) -> NoReturn:
        """End the lab with a last status, whatever fails."""
        try:
            self.lab.stop()
            sockets.remove(self.config.name, Path(self.config.folder))
            sockets.reply(connection, self._status())
        finally:
            # The client waits for the end of this process, so nothing else is done before it.
            os._exit(0)

    def _status(self) -> dict[str, Any]:
        report = self.lab.last_report()
        names = report["directions"]
        return {
            "name": self.config.name,
            "links": list(self.config.links),
            "process": os.getpid(),
            "started_unix_s": self._started_unix_s,
            "changes": self._changes,
            "failure": self.lab.failure,
            "link": link_state(self._plans, self._outage_ends, names, report["at_ns"]),
            "report": report,
        }

    def _set(self, request: dict[str, Any]) -> dict[str, Any]:
        """Apply changes to the link of the client's ``revision``; to another one, none.

        ``changes`` are checked by the link, ``settings`` are the text of them for the status.
        """
        settings, revision = request.get("settings"), request.get("revision")
        if not isinstance(settings, list) or not all(isinstance(text, str) for text in settings):
            raise UsageError("settings: expected a list of strings")
        if len(json.dumps(settings)) > _SETTINGS_BYTES_MAX:
            raise UsageError(f"settings: at most {_SETTINGS_BYTES_MAX:,} bytes are allowed at once")
        if not isinstance(revision, int):
            raise UsageError("revision: expected an integer")
        self.lab.require_running()
        if revision != self._revision:
            return {"revision": self._revision}
        changes: Any = request.get("changes")
        at_ns = self.lab.apply(changes)
        self._plans = with_changes(self._plans, changes)
        self._outage_ends = with_outages(self._outage_ends, changes, at_ns)
        self._revision += 1
        change = {"at_ns": at_ns, "settings": settings}
        self._changes = [*self._changes[-_CHANGES_MAX + 1 :], change]
        return change

    def _enter(self, connection: socket.socket, host: object) -> None:
        """Pass the descriptors with which a process starts programs on a host."""
        if not isinstance(host, str):
            raise UsageError("host: expected a name")
        self.lab.require_host(host)
        self.lab.require_running()
        assert self._pids is not None, "it exists while the link runs"
        descriptors: list[int] = []
        try:
            descriptors += self.lab.core.namespace_fds(host, self._pids)
            descriptors.append(os.open("/proc/self/ns/user", os.O_RDONLY))
            sockets.reply(connection, {"host": host}, descriptors)
        except OSError as error:
            raise MachineError(
                f"the lab cannot be entered: {error.strerror}; to fix it: close connections to it, "
                "or set it up with a higher limit of open files (ulimit -n)"
            ) from None
        finally:
            for descriptor in descriptors:
                os.close(descriptor)


def main() -> int:
    """Keep the lab that standard input describes; return the exit code."""
    # The lab's threads inherit the mask, so that the main thread receives the signal.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    config = LabConfig(**json.loads(sys.stdin.readline()))
    # The folder of the caller may be removed or unmounted while the lab runs.
    os.chdir("/")
    try:
        _keep(config)
    except SystemExit:
        return 0
    except BentpipeError as error:
        print(json.dumps(sockets.error_reply(error)), flush=True)
        return error.exit_code


def _keep(config: LabConfig) -> NoReturn:
    folder = Path(config.folder)
    gain_privileges()
    with config.lab() as lab:
        lab.start_servers()
        daemon = LabDaemon(config=config, lab=lab)
        listener = sockets.listen(config.name, folder)
        try:
            signal.signal(signal.SIGTERM, lambda *_: sys.exit())
            if config.ends_with_parent:
                end = threading.Thread(target=_end_with_parent, args=(config.folder,), daemon=True)
                end.start()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            print(json.dumps({"hosts": lab.hosts()}), flush=True)
            # Nobody reads more than this line.
            with Path(os.devnull).open("wb") as devnull:
                os.dup2(devnull.fileno(), sys.stdout.fileno())
            daemon.serve(listener)
        finally:
            sockets.remove(config.name, folder)


def _end_with_parent(folder: str) -> None:
    """End this process when its parent closes standard input, or ends."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    shutil.rmtree(folder, ignore_errors=True)
    # The kernel ends the lab faster than its destructors.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
