"""The process that keeps a lab which stays: it has no terminal, and the lab ends with it."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn

from bentpipe import _core
from bentpipe.errors import BentpipeError, MachineError, UsageError
from bentpipe.lab import sockets as _labs
from bentpipe.lab.changes import orders_of
from bentpipe.lab.clients import Clients
from bentpipe.lab.lab import Lab, gain_privileges

# What a status tells of the past.
_ORDERS_KEPT: Final = 100
# A client reads its answer at once, and most answers fit into the socket's buffer anyway.
_ANSWER_SECONDS: Final = 2.0
# A link that has failed is noticed within this.
_LOOK_SECONDS: Final = 0.5
_WORD_BYTES_MAX: Final = 64 * 1024


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The lab that is to be kept."""

    name: str
    # Of sockets, as the user finds it who asks for the lab.
    folder: Path
    plans: Sequence[dict[str, Any]]
    links: Sequence[str]
    seed: int
    gateways: bool = False
    internet: bool = False


def keep_in_background(wanted: Wanted) -> tuple[int, list[str]]:
    """Set a lab up in a process of its own; return that process and the hosts once the lab is up.

    To be called while the process has one thread.

    Raises:
        BentpipeError: whatever kept the lab from being set up.
    """
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        _become_keeper(writing, wanted)
    os.close(writing)
    word = bytearray()
    while b"\n" not in word and (part := os.read(reading, _WORD_BYTES_MAX)):
        word += part
    os.close(reading)
    said = _labs.parsed(bytes(word))
    if said is None:
        raise MachineError("the lab ended while it was set up; to fix it: try again")
    if "error" in said:
        raise _labs.AnsweredError(str(said["error"]), int(said["exit_code"]))
    return process, [str(host) for host in said["hosts"]]


def _become_keeper(writing: int, wanted: Wanted) -> NoReturn:
    """Detach from everything but the pipe on which the maker waits, and keep the lab."""
    code = 1
    try:
        os.setsid()
        os.chdir("/")
        nowhere = os.open(os.devnull, os.O_RDWR)
        for standard in range(3):
            os.dup2(nowhere, standard)
        # What a shell or a test harness left open would stay open as long as the lab.
        os.closerange(3, writing)
        os.closerange(writing + 1, os.sysconf("SC_OPEN_MAX"))
        code = _keep(writing, wanted)
    finally:
        # Nothing of the process that this is a copy of may run here.
        os._exit(code)


def _keep(writing: int, wanted: Wanted) -> int:
    name, plans = wanted.name, wanted.plans
    with os.fdopen(writing, "wb", buffering=0) as pipe:
        try:
            gain_privileges()
            # Threads of the lab leave these to this one.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
            with Lab(
                plans=plans,
                seed=wanted.seed,
                gateways=wanted.gateways,
                internet=wanted.internet,
            ) as lab:
                lab.serve_world()
                keeper = Keeper(
                    name=name,
                    folder=wanted.folder,
                    links=list(wanted.links),
                    lab=lab,
                    hops=len(plans),
                )
                listener = _labs.listen(name, wanted.folder)
                try:
                    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
                    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
                    pipe.write(_said({"hosts": lab.hosts()}))
                    pipe.close()
                    keeper.serve(listener)
                finally:
                    _labs.forget(name, wanted.folder)
        except SystemExit:
            return 0
        except BentpipeError as error:
            pipe.write(_said({"error": str(error), "exit_code": error.exit_code}))
            return error.exit_code


def _said(content: dict[str, Any]) -> bytes:
    return json.dumps(content).encode() + b"\n"


@dataclass(kw_only=True)
class Keeper:
    """Answers what is asked of a lab."""

    name: str
    folder: Path
    links: list[str]
    lab: Lab
    hops: int
    # Programs are in it; None once the link has failed.
    _pids: _core.SharedPidNamespace | None = field(
        init=False, default_factory=_core.SharedPidNamespace
    )
    _since: float = field(init=False, default_factory=time.time)
    _orders: list[dict[str, Any]] = field(init=False, default_factory=list)

    def serve(self, listener: socket.socket) -> NoReturn:
        """Answer requests until one is to end the lab; end programs if the link fails."""
        clients = Clients(listener)
        while True:
            for connection, request in clients.requests(_LOOK_SECONDS):
                with connection:
                    connection.settimeout(_ANSWER_SECONDS)
                    # A client that is gone, or too slow, is not our error.
                    with suppress(OSError):
                        self._serve(connection, request)
            if self.lab.failure is not None:
                # All that is in it is killed with it.
                self._pids = None

    def _serve(self, connection: socket.socket, request: dict[str, Any] | None) -> None:
        """Answer one request."""
        try:
            if request is None:
                raise UsageError("this is no request")
            self._answer(connection, request)
        except BentpipeError as error:
            _labs.answer(connection, {"error": str(error), "exit_code": error.exit_code})
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            # A mistake of ours in reading a request is not to end the lab.
            _labs.answer(connection, {"error": f"internal error: {error!r}", "exit_code": 1})

    def _answer(self, connection: socket.socket, request: dict[str, Any]) -> None:
        what = request.get("do")
        if what == "status":
            _labs.answer(connection, self._status())
        elif what == "set":
            _labs.answer(connection, self._set(request.get("settings")))
        elif what == "enter":
            self._enter(connection, request.get("host"))
        elif what == "down":
            self._end(connection)
        else:
            raise UsageError("do: allowed are down, enter, set and status")

    def _end(self, connection: socket.socket) -> NoReturn:
        """End the lab, with a last status, whatever fails on the way."""
        try:
            self.lab.stop()
            _labs.forget(self.name, self.folder)
            _labs.answer(connection, self._status())
        finally:
            # Who asked waits for the process to end: here, so that nothing else is done first.
            os._exit(0)

    def _status(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "links": self.links,
            "process": os.getpid(),
            "since": self._since,
            "orders": self._orders,
            "failure": self.lab.failure,
            "report": self.lab.last_report(),
        }

    def _set(self, settings: object) -> dict[str, Any]:
        if not isinstance(settings, list) or not all(isinstance(text, str) for text in settings):
            raise UsageError("settings: must be a list of texts")
        self.lab.require_running()
        at_ns = self.lab.order(orders_of(settings, self.hops))
        order = {"at_ns": at_ns, "settings": settings}
        self._orders = [*self._orders[-_ORDERS_KEPT + 1 :], order]
        return order

    def _enter(self, connection: socket.socket, host: object) -> None:
        """Hand over what a process needs to start programs on a host."""
        if not isinstance(host, str):
            raise UsageError("host: must be a name")
        self.lab.require_host(host)
        self.lab.require_running()
        assert self._pids is not None, "it is there while the link runs"
        descriptors: list[int] = []
        try:
            descriptors += self.lab.entrance(host, self._pids)
            descriptors.append(os.open("/proc/self/ns/user", os.O_RDONLY))
            _labs.answer(connection, {"host": host}, descriptors)
        except OSError as error:
            raise MachineError(
                f"the lab cannot be entered: {error.strerror}; to fix it: close connections to it, "
                "or set it up with a higher limit of open files (ulimit -n)"
            ) from None
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
