"""The lab daemon: a process that keeps a lab and serves requests; the lab ends with it."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from bentpipe import _core
from bentpipe.errors import BentpipeError, InternalError, MachineError, UsageError
from bentpipe.live import sockets
from bentpipe.live.child import Child
from bentpipe.live.link_state import (
    OutageEnds,
    largest_plans,
    link_state,
    with_changes,
    with_outages,
)
from bentpipe.live.local_lab import LocalLab

if TYPE_CHECKING:
    from bentpipe.live.child import Parent

# The changes that `status` lists, and the size of the settings of one: a reply has all.
_CHANGES_MAX: Final = 100
_SETTINGS_BYTES_MAX: Final = 16 * 1024
# Clients read their replies immediately, and most replies fit into the socket's buffer.
_REPLY_TIMEOUT_S: Final = 2.0
# The programs of a lab are ended within this time after the link has failed.
_POLL_S: Final = 0.5


@dataclass(kw_only=True)
class LabDaemon:
    """Keeps ``lab`` and serves requests about it.

    ``folder`` is that of its socket. ``links`` describe the plans to users. A daemon that
    ``ends_with_parent`` ends with the process that started it, and its folder is removed.
    """

    name: str
    folder: Path
    links: Sequence[str]
    lab: LocalLab
    ends_with_parent: bool = False
    # The programs of other processes are in it; None once the link has failed.
    _pids: _core.SharedPidNamespace | None = field(init=False, default=None)
    _started_unix_s: float = field(init=False, default=0.0)
    _changes: list[dict[str, Any]] = field(init=False, default_factory=list)
    # How often the link was changed.
    _revision: int = field(init=False, default=0)
    # Those of the hops, as changed.
    _plans: list[Mapping[str, Any]] = field(init=False, default_factory=list)
    _outage_ends: OutageEnds = field(init=False, default_factory=dict)

    def start(self) -> tuple[Child, list[str]]:
        """Start a process that keeps the lab; return it and the names of the hosts.

        Raises:
            BentpipeError: the lab cannot be set up.
        """
        self.lab.check()
        folder = self.folder if self.ends_with_parent else None
        child = Child(self.name, LabDaemon.keep, self, folder=folder)
        try:
            _, hosts = child.receive()
        except BaseException as error:
            child.close()
            if isinstance(error, EOFError):
                text = "the lab ended while it was set up; to fix it: try again"
                raise MachineError(text) from None
            raise
        return child, hosts

    def keep(self, parent: Parent) -> NoReturn:
        """Keep the lab in this process until a request, SIGTERM or its parent ends it."""
        # The lab's threads inherit the mask, so that the main thread receives the signal.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        # The folder of the caller may be removed or unmounted while the lab runs.
        os.chdir("/")
        with self.lab:
            self.lab.start_servers()
            self._plans, self._started_unix_s = list(self.lab.plans), time.time()
            self._pids = _core.SharedPidNamespace()
            listener = sockets.listen(self.name, self.folder)
            try:
                signal.signal(signal.SIGTERM, lambda *_: sys.exit())
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
                if not self.ends_with_parent:
                    parent.detach()
                parent.send("ready", self.lab.hosts())
                self._serve(sockets.Clients(listener))
            finally:
                sockets.remove(self.name, self.folder)

    def _serve(self, clients: sockets.Clients) -> NoReturn:
        """Serve requests until one ends the lab; end the programs if the link fails."""
        while True:
            for connection, request in clients.requests(_POLL_S):
                with connection:
                    connection.settimeout(_REPLY_TIMEOUT_S)
                    # The client may have disconnected, or read too slowly.
                    with suppress(OSError):
                        self._answer(connection, request or {})
            if self.lab.failure is not None:
                # The kernel kills the programs in the namespace.
                self._pids = None

    def _answer(self, connection: socket.socket, request: dict[str, Any]) -> None:
        try:
            match request.get("do"):
                case "status":
                    reply = self._status()
                case "link":
                    self.lab.require_running()
                    reply = {
                        "revision": self._revision,
                        "plans": largest_plans(self._plans),
                        "super_packets": self.lab.has_super_packets,
                    }
                case "set":
                    reply = self._set(request)
                case "enter":
                    self._enter(connection, request.get("host"))
                    return
                case "down":
                    self._end(connection)
                case _:
                    text = "one line of JSON, with do: down, enter, link, set or status"
                    raise UsageError(f"expected a request: {text}")
        except BentpipeError as error:
            reply = sockets.error_reply(error)
        except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
            # A bug in reading a request must not end the lab.
            reply = sockets.error_reply(InternalError(f"internal error: {error!r}"))
        sockets.reply(connection, reply)

    def _end(self, connection: socket.socket) -> NoReturn:
        """End the lab with a last status, whatever fails."""
        try:
            self.lab.stop()
            sockets.remove(self.name, self.folder)
            sockets.reply(connection, self._status())
        finally:
            # The client waits for the end of this process, so nothing else is done before it.
            os._exit(0)

    def _status(self) -> dict[str, Any]:
        report = self.lab.last_report()
        names = report["directions"]
        return {
            "name": self.name,
            "links": list(self.links),
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
