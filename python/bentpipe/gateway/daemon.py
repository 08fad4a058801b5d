"""The daemon of a gateway: its files, its start and its end, and changes to its tunnel.

The folder of a gateway has

- ``gateway.json``: its record. Whoever starts a daemon locks it (flock(2)), and the processes of
  the daemon inherit the lock: while one of them runs, the gateway is up.
- ``state.json``: its counters, which the daemon writes every 0.75 s.
- ``log``: what the daemon has printed, if it runs in the background.
- ``control``: a socket of the daemon, for `reload_gateway`.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Set as AbstractSet
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from bentpipe import plan as plans
from bentpipe.errors import MachineError, UsageError
from bentpipe.gateway import machine
from bentpipe.gateway.checks import examine
from bentpipe.gateway.machine import PROGRAM, find_binary, require, user_folder

if TYPE_CHECKING:
    from bentpipe.gateway.config import GatePlan, GatewayConfig

RUN: Final = Path("/run")
_LOG_BYTES_MAX: Final = 64 * 1024
# Others take the lock for a moment to see whether the gateway is up.
_LOCK_TIMEOUT_S: Final = 0.2
_POLL_S: Final = 0.01


@dataclass(frozen=True, kw_only=True)
class Record:
    """What is written down when a gateway is started, to end it later.

    ``described`` is what the status says of its configuration. ``network`` is the number of the
    network namespace.
    """

    config: str
    described: dict[str, Any]
    plan: dict[str, Any]
    network: int
    started_unix_s: float


def base_folder() -> Path:
    """Return the folder of all gateways: ``/run/bentpipe`` for root, else one of the user's."""
    # In a user namespace, root may not own /run.
    if os.geteuid() == 0 and RUN.stat().st_uid == 0:
        return RUN / "bentpipe"
    return user_folder("bentpipe-gateways")


def network_namespace() -> int:
    """Return the number of the network namespace of this process."""
    return Path("/proc/self/ns/net").stat().st_ino


class GatewayFolder:
    """The folder of one gateway, which need not exist."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.path = base_folder() / name
        self.record_file = self.path / "gateway.json"
        self.state_file = self.path / "state.json"
        self.log_file = self.path / "log"
        self.control_file = self.path / "control"

    def lock(self) -> int:
        """Make the folder and lock it; return the descriptor that holds the lock.

        Raises:
            MachineError: the gateway is up, or is being started or ended, or the folder cannot be
                written.
        """
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            while True:
                # Read-only: a process without privileges inherits it.
                handle = os.open(
                    self.record_file, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
                )
                if _locked(handle, self.record_file):
                    return handle
                os.close(handle)
        except OSError as error:
            raise self._unwritable(error) from None

    def is_up(self) -> bool:
        """Return whether a process has the gateway."""
        try:
            handle = os.open(self.record_file, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(handle)
        return False

    def exists(self) -> bool:
        """Return whether a gateway has been started here and not been ended."""
        return self.record_file.is_file()

    def record(self) -> Record | None:
        """Return the record, or None if there is none, or none that can be read."""
        try:
            return Record(**json.loads(self.record_file.read_bytes()))
        except (OSError, ValueError, TypeError):
            return None

    def write_record(self, record: Record) -> None:
        """Write the record into the locked file.

        Raises:
            MachineError: it cannot be written, for instance because the disk is full.
        """
        try:
            # Not replaced by a new file: this one is locked. Others may read it meanwhile, so
            # nothing of a longer one is left behind it.
            with self.record_file.open("r+b") as file:
                text = json.dumps(asdict(record)).encode()
                file.write(text.ljust(self.record_file.stat().st_size))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise self._unwritable(error) from None

    def counters(self) -> dict[str, Any] | None:
        """Return the latest counters, with the time of theirs, or None before the first ones."""
        try:
            with self.state_file.open("rb") as file:
                return {**json.load(file), "unix_s": os.fstat(file.fileno()).st_mtime}
        except (OSError, ValueError, TypeError):
            return None

    def last_line(self) -> str | None:
        """Return what the last line of the daemon's log says."""
        printed = self._printed()
        return machine.said(printed[-1]) if printed else None

    def why_ended(self) -> str:
        """Return why the daemon has ended, which was not ended by `gateway down`."""
        return machine.why_ended(self._printed())

    def _printed(self) -> list[str]:
        try:
            with self.log_file.open("rb") as file:
                file.seek(max(self.log_file.stat().st_size - _LOG_BYTES_MAX, 0))
                return file.read().decode(errors="replace").strip().splitlines()
        except OSError:
            return []

    def remove(self) -> None:
        """Remove the files, and folders that are empty then."""
        part = Path(f"{self.state_file}.part")
        # The record last: a gateway without one does not exist.
        files = (self.state_file, part, self.log_file, self.control_file, self.record_file)
        for file in files:
            with suppress(OSError):
                file.unlink()
        for folder in (self.path, self.path.parent):
            # A service manager may keep the folder.
            with suppress(OSError):
                folder.rmdir()

    def processes(self) -> list[int]:
        """Return the process ids of the daemon: those that hold the lock."""
        try:
            lock = self.record_file.stat()
        except OSError:
            return []
        entries = Path("/proc").glob("[0-9]*")
        return sorted(int(entry.name) for entry in entries if _is_daemon(entry, lock))

    def _unwritable(self, error: OSError) -> MachineError:
        place = error.filename or self.path
        return MachineError(
            f"{place}: {error.strerror}; to fix it: run it as root, and see that "
            f"{base_folder().parent} has space and can be written"
        )


def gateway_names() -> list[str]:
    """Return the names of the gateways that were started and not ended, sorted."""
    with suppress(OSError):
        names = sorted(path.name for path in base_folder().iterdir())
        return [name for name in names if GatewayFolder(name).exists()]
    return []


@contextmanager
def held(folder: GatewayFolder) -> Iterator[int]:
    """Hold the lock of a gateway in this process."""
    handle = folder.lock()
    try:
        yield handle
    finally:
        os.close(handle)


def _locked(handle: int, path: Path) -> bool:
    """Lock an open file; False if another file has taken its path meanwhile."""
    deadline = time.monotonic() + _LOCK_TIMEOUT_S
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(handle)
                name = path.parent.name
                raise MachineError(
                    f"gateway {name} is up already; to fix it: end it with bentpipe gateway down "
                    f"{name}, or choose another name"
                ) from None
            time.sleep(_POLL_S)
    opened = os.fstat(handle)
    try:
        current = path.stat()
    except FileNotFoundError:
        return False
    return os.path.samestat(current, opened)


def _is_daemon(process: Path, lock: os.stat_result) -> bool:
    """Return whether a process, a folder of /proc, is a daemon that holds a lock."""
    with suppress(OSError):
        # The file of a running program may have been replaced.
        name = (process / "exe").readlink().name.removesuffix(" (deleted)")
        for entry in (process / "fd").iterdir() if name == PROGRAM else ():
            with suppress(OSError):
                if os.path.samestat(entry.stat(), lock):
                    return True
    return False


# --- start and end --------------------------------------------------------------------------------

# A daemon is ready within 0.1 s on an idle machine.
_START_TIMEOUT_S: Final = 20.0
_END_TIMEOUT_S: Final = 10.0
# It holds the processes of a killed daemon until they end; the worker notices within a second.
_KILL_TIMEOUT_S: Final = 5.0
_REPLY_TIMEOUT_S: Final = 5.0
_REPLY_BYTES_MAX: Final = 64 * 1024
_CHANGEABLE: Final = (
    "redundancy, redundancy_max, window, window_max, titration, delay, threshold, hold_time, "
    "hold_buffer, rate, classes, packet_size, uncoded_first and congestion_signal"
)


def start(config: GatewayConfig, plan: GatePlan, path: Path) -> int:
    """Start a daemon in the background; return its process id once it carries traffic.

    It has no terminal and a session of its own, so that Ctrl-C and the end of the terminal do not
    reach it. ``path`` is the file of the configuration.

    Raises:
        MachineError: what keeps it from starting, with the fix. Nothing of it is left; networks
            that a killed gateway of this name has left closed remain closed.
    """
    folder = GatewayFolder(config.name)
    with held(folder) as lock, _prepared(folder, config, plan, path) as kept:
        try:
            return _spawn(folder, plan, lock)
        except BaseException:
            _remove_rules(_except_networks(plan, kept))
            raise


def become(config: GatewayConfig, plan: GatePlan, path: Path) -> NoReturn:
    """Become the daemon: this process runs it, on its own standard error.

    Raises:
        MachineError: what keeps it from starting, with the fix. Nothing of it is left.
    """
    folder = GatewayFolder(config.name)
    lock = folder.lock()
    with _prepared(folder, config, plan, path):
        output, given = os.pipe()
        os.write(given, json.dumps(plan).encode())
        os.close(given)
        os.dup2(output, 0)
        os.set_inheritable(lock, True)
        os.chdir("/")
        binary = str(find_binary())
        os.execve(binary, [PROGRAM], os.environ)


def stop(name: str) -> dict[str, Any] | None:
    """End a gateway and remove all of it; return its last counters.

    Raises:
        MachineError: a part cannot be removed.
    """
    folder = GatewayFolder(name)
    record, counters = folder.record(), folder.counters()
    _end(folder)
    # Nobody starts it meanwhile.
    with held(folder):
        if record is not None:
            _remove_leftovers(record)
        folder.remove()
    return counters


@contextmanager
def _prepared(
    folder: GatewayFolder, config: GatewayConfig, plan: GatePlan, path: Path
) -> Iterator[set[str]]:
    """Remove what a killed daemon has left, check the machine, and write the record.

    Yields the networks that the killed daemon has closed and the new one takes over. After an
    error, also in the block, the folder is removed; or, if there are such networks, it has the
    record of the killed daemon again, with which `stop` opens them.
    """
    left, kept = folder.record(), set[str]()
    if left is not None:
        if left.network == network_namespace():
            kept = closed_networks(left.plan) & closed_networks(plan)
        _remove_leftovers(left, kept)
    try:
        require(examine(config, plan))
        folder.write_record(
            Record(
                config=str(path.absolute()),
                described=config.described(),
                plan=plan,
                network=network_namespace(),
                started_unix_s=time.time(),
            )
        )
        yield kept
    except BaseException:
        if left is not None and kept:
            folder.write_record(left)
        else:
            folder.remove()
        raise


def _spawn(folder: GatewayFolder, plan: GatePlan, lock: int) -> int:
    try:
        log = folder.log_file.open("wb")
    except OSError as error:
        raise MachineError(f"{folder.log_file}: {error.strerror}; to fix it: free space") from None
    with log:
        process = subprocess.Popen(
            [str(find_binary())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=log,
            cwd="/",
            start_new_session=True,
            pass_fds=[lock],
        )
    try:
        assert process.stdin is not None
        with process.stdin as given, suppress(BrokenPipeError):
            given.write(json.dumps(plan).encode())
        if first_counters(folder, lambda: process.poll() is not None) is None:
            ended = f"{PROGRAM} ended with code {process.returncode}"
            raise MachineError(folder.last_line() or ended)
    except BaseException:
        process.kill()
        process.wait()
        raise
    # Not waited for: it outlives this process.
    process.returncode = 0
    return process.pid


def first_counters(folder: GatewayFolder, has_ended: Callable[[], bool]) -> dict[str, Any] | None:
    """Wait until a daemon that is being started has written its counters, and return them.

    None if it has ended before.

    Raises:
        MachineError: it has not after 20 s.
    """
    deadline = time.monotonic() + _START_TIMEOUT_S
    while (counters := folder.counters()) is None and not has_ended():
        if time.monotonic() > deadline:
            raise MachineError(
                f"{PROGRAM} is not ready after {_START_TIMEOUT_S:.0f} s; to fix it: try again, and "
                "report it"
            )
        time.sleep(_POLL_S)
    return counters


def _end(folder: GatewayFolder) -> None:
    """End the processes of a gateway, if there are any."""
    for sent, timeout_s in ((signal.SIGTERM, _END_TIMEOUT_S), (signal.SIGKILL, _KILL_TIMEOUT_S)):
        deadline = time.monotonic() + timeout_s
        signalled = set[int]()
        while folder.is_up():
            processes = folder.processes()
            for pid in processes:
                # The worker ends with the privileged part, which is its parent.
                is_worker = sent == signal.SIGTERM and machine.parent(pid) in processes
                if not is_worker and pid not in signalled:
                    signalled.add(pid)
                    with suppress(ProcessLookupError):
                        os.kill(pid, sent)
            if time.monotonic() > deadline:
                break
            time.sleep(_POLL_S)
        else:
            return
    raise MachineError(
        f"gateway {folder.name} does not end; to fix it: kill process "
        f"{', '.join(map(str, folder.processes())) or 'of bentpipe gateway up'} and try again"
    )


def closed_networks(plan: Mapping[str, Any]) -> set[str]:
    """Return the networks for which packets are refused while the tunnel of a plan is gone."""
    tunnel = plan.get("tunnel") or {}
    peers = tunnel["peers"] if tunnel.get("fail") == "closed" else []
    return {network for peer in peers for network in peer["networks"]}


def _except_networks(plan: GatePlan, kept: AbstractSet[str]) -> GatePlan:
    """Return a plan without some networks of its tunnel, whose routes stay when it is removed."""
    if not kept:
        return plan
    peers = [
        peer | {"networks": [network for network in peer["networks"] if network not in kept]}
        for peer in plan["tunnel"]["peers"]
    ]
    return plan | {"tunnel": plan["tunnel"] | {"peers": peers}}


def _remove_leftovers(record: Record, kept: AbstractSet[str] = frozenset()) -> None:
    """Remove the rules and routes of a daemon that could not, in its network namespace.

    The ``kept`` networks of its tunnel stay closed.
    """
    plan = _except_networks(record.plan, kept)
    if record.network == network_namespace():
        _remove_rules(plan)
        return
    path = _namespace_path(record.network)
    # A namespace that is gone has no rules.
    if path is not None:
        _remove_rules(plan, "nsenter", f"--net={path}", "--")


def _remove_rules(plan: GatePlan, *within: str) -> None:
    code, said = machine.run_daemon("remove", plan, *within)
    if code != 0:
        raise MachineError(f"removing rules: {said}; to fix it: run it as root")


def _namespace_path(number: int) -> Path | None:
    """Return a path of a network namespace by its number; None if it is gone."""
    processes = Path("/proc").glob("[0-9]*")
    for path in (*Path("/run/netns").glob("*"), *(process / "ns/net" for process in processes)):
        with suppress(OSError):
            if path.stat().st_ino == number:
                return path
    return None


# --- reload ---------------------------------------------------------------------------------------


def reload_gateway(config: GatewayConfig, plan: GatePlan) -> None:
    """Pass the settings of a plan to the running daemon of the same name.

    Threads that are not written are those of the running daemon.

    Raises:
        UsageError: the plan differs in what a running daemon cannot change; nothing is changed.
        MachineError: the daemon does not answer, or fails.
    """
    folder = GatewayFolder(config.name)
    record = folder.record()
    if record is None or not folder.is_up():
        raise MachineError(
            f"gateway {config.name} is not up; to fix it: start it with bentpipe gateway up"
        )
    again = f"to fix it: bentpipe gateway down {config.name}, then up"
    if not folder.control_file.exists():
        raise MachineError(
            f"{folder.control_file}: gateway {config.name} has no such socket: its version cannot "
            f"change; {again}"
        )
    if plan["pep"] is not None and record.plan["pep"] is not None and config.pep.threads is None:
        plan = plan | {"pep": plan["pep"] | {"threads": record.plan["pep"]["threads"]}}
    reply = ask_daemon(folder.control_file, plan)
    if reply == "changed":
        folder.write_record(replace(record, plan=plan, described=config.described()))
        return
    if "differs" in reply:
        names = ", ".join(dict.fromkeys(_config_name(plan, path) for path in reply["differs"]))
        raise UsageError(
            f"{record.config}: a running gateway cannot change {names}; nothing was changed. It "
            f"can change except and only of its PEP, and {_CHANGEABLE} of its tunnel; {again}"
        )
    if "failed" in reply:
        raise MachineError(
            f"gateway {config.name}: {reply['failed']}; to fix it: see bentpipe gateway status "
            f"{config.name}, and try again"
        )
    # The configuration was checked, so it is a daemon of another version.
    raise MachineError(f"gateway {config.name}: its version differs: {reply['refused']}; {again}")


def ask_daemon(path: Path, plan: Mapping[str, Any]) -> Any:
    """Send a plan to the socket of a daemon; return its reply.

    The daemon waits 100 ms for the plan of a client. A busy machine may not run this process for as
    long; then it asks again. A daemon that has the plan already changes nothing.

    Raises:
        MachineError: the daemon does not answer.
    """
    message = json.dumps(plan).encode()
    end_s = time.monotonic() + _REPLY_TIMEOUT_S
    try:
        while True:
            with suppress(BrokenPipeError, ConnectionResetError):
                return json.loads(_exchange(path, message))
            if time.monotonic() > end_s:
                return json.loads(_exchange(path, message))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise MachineError(
            f"{path}: the daemon does not answer: {reason}; to fix it: try again, as the user who "
            "has started the gateway"
        ) from None


def _exchange(path: Path, message: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        client.settimeout(_REPLY_TIMEOUT_S)
        client.connect(str(path))
        client.send(message)
        return client.recv(_REPLY_BYTES_MAX)


def _config_name(plan: Mapping[str, Any], path: str) -> str:
    """Return the name in the configuration of a path in the plan."""
    parts = path.split(".")
    if parts[:2] == ["tunnel", "settings"]:
        parts = [str(field) for field in plans.origin(plan, parts)]
    elif parts[0] == "tunnel" and parts[1:2] in (["listen_address"], ["listen_port"]):
        parts = ["tunnel", "listen"]
    return ".".join(part.removesuffix("_bytes").removesuffix("_ns") for part in parts)
