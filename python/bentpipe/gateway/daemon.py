"""Start and end the daemon of a gateway."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NoReturn

from bentpipe.errors import MachineError
from bentpipe.gateway import machine
from bentpipe.gateway.binary import NAME, find_binary
from bentpipe.gateway.checks import examine, require
from bentpipe.gateway.config import GatewayConfig, described
from bentpipe.gateway.plan import GatePlan, Installation, PepPlan, pep_plan
from bentpipe.gateway.state import GatewayFolder, Record, held, network_namespace
from bentpipe.gateway.tunnel_plan import daemon_tunnel_plan
from bentpipe.units import value_of

# A daemon is ready within 0.1 s on an idle machine.
_START_TIMEOUT_S: Final = 20.0
_END_TIMEOUT_S: Final = 10.0
_POLL_S: Final = 0.02
_THREADS_MAX: Final = 4
# It holds the processes of a killed daemon until they end; the worker notices within a second.
_KILL_TIMEOUT_S: Final = 5.0


def plan_of(config: GatewayConfig, path: Path) -> GatePlan:
    """Return the plan of the daemon; ``path`` is the file of the configuration.

    Raises:
        ScenarioError: the PEP has settings that the kernel does not have.
        PlanningError: settings of the tunnel do not fit together.
    """
    user, group = config.user_and_group()
    folder = GatewayFolder(config.name)
    tunnel = config.tunnel
    return {
        "name": f"bentpipe-{config.name}",
        "state_file": str(folder.state_file),
        "files": [str(file) for file in (folder.log_file, folder.record_file)],
        "user": user,
        "group": group,
        "metrics_listen": None if config.metrics is None else config.metrics.listen,
        "pep": _pep_plan_of(config),
        "tunnel": (
            None if tunnel is None else daemon_tunnel_plan(tunnel, path.parent, folder.control_file)
        ),
    }


def _pep_plan_of(config: GatewayConfig) -> PepPlan | None:
    if config.lan is None or config.link is None:
        return None
    threads = config.pep.threads or min(len(os.sched_getaffinity(0)), _THREADS_MAX)
    installation = Installation(
        lan=config.lan.interfaces,
        link=config.link.interfaces,
        mark=config.mark,
        route_table=config.route_table,
        workers=config.pep.workers,
        threads=threads,
        connect_limit_ns=value_of(config.pep.connect_limit),
        idle_limit_ns=value_of(config.pep.idle_limit) or None,
        keep_alive_ns=value_of(config.pep.keep_alive) or None,
    )
    return pep_plan(config.pep, installation)


def start(config: GatewayConfig, plan: GatePlan, path: Path) -> int:
    """Start a daemon in the background; return its process id once it carries traffic.

    It has no terminal and a session of its own, so that Ctrl-C and the end of the terminal do not
    reach it. ``path`` is the file of the configuration.

    Raises:
        MachineError: what keeps it from starting, with the fix. Nothing of it is left.
    """
    folder = GatewayFolder(config.name)
    with held(folder) as lock:
        _prepare(folder, config, plan, path)
        try:
            return _spawn(folder, plan, lock)
        except BaseException:
            _remove_rules(plan)
            folder.remove()
            raise


def become(config: GatewayConfig, plan: GatePlan, path: Path) -> NoReturn:
    """Become the daemon: this process runs it, on its own standard error.

    Raises:
        MachineError: what keeps it from starting, with the fix. Nothing of it is left.
    """
    folder = GatewayFolder(config.name)
    lock = folder.lock()
    _prepare(folder, config, plan, path)
    try:
        output, given = os.pipe()
        os.write(given, json.dumps(plan).encode())
        os.close(given)
        os.dup2(output, 0)
        os.set_inheritable(lock, True)
        os.chdir("/")
        binary = str(find_binary())
        os.execve(binary, [NAME], os.environ | {"PATH": machine.search_path()})
    except BaseException:
        folder.remove()
        raise


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


def _prepare(folder: GatewayFolder, config: GatewayConfig, plan: GatePlan, path: Path) -> None:
    """Remove what a killed daemon has left, check the machine, and write the record."""
    record = folder.record()
    if record is not None:
        _remove_leftovers(record)
    try:
        require(examine(config, plan))
        folder.write_record(
            Record(
                config=str(path.absolute()),
                described=described(config),
                plan=dict(plan),
                network=network_namespace(),
                started_unix_s=time.time(),
            )
        )
    except BaseException:
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
            env=os.environ | {"PATH": machine.search_path()},
            start_new_session=True,
            pass_fds=[lock],
        )
    try:
        assert process.stdin is not None
        with process.stdin as given, suppress(BrokenPipeError):
            given.write(json.dumps(plan).encode())
        _wait_until_ready(folder, process)
    except BaseException:
        process.kill()
        process.wait()
        raise
    # Not waited for: it outlives this process.
    process.returncode = 0
    return process.pid


def _wait_until_ready(folder: GatewayFolder, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while folder.counters() is None:
        if process.poll() is not None:
            reason = folder.last_words() or f"{NAME} ended with code {process.returncode}"
            raise MachineError(reason)
        if time.monotonic() > deadline:
            raise MachineError(
                f"{NAME} is not ready after {_START_TIMEOUT_S:.0f} s; to fix it: try again, and "
                "report it"
            )
        time.sleep(_POLL_S)


def _end(folder: GatewayFolder) -> None:
    """End the processes of a gateway, if there are any."""
    for sent, timeout_s in ((signal.SIGTERM, _END_TIMEOUT_S), (signal.SIGKILL, _KILL_TIMEOUT_S)):
        deadline = time.monotonic() + timeout_s
        signalled = set[int]()
        while folder.is_up():
            processes = folder.processes()
            # The worker ends with the privileged part, which is its parent.
            for pid in processes if sent == signal.SIGKILL else _privileged(processes):
                if pid not in signalled:
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


def _privileged(processes: list[int]) -> list[int]:
    """Return the processes whose parents are not among them."""
    return [pid for pid in processes if _parent(pid) not in processes]


def _parent(pid: int) -> int:
    with suppress(OSError, ValueError, IndexError):
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        # The name of the program, in parentheses, may have spaces.
        return int(stat.rpartition(")")[2].split()[1])
    return 0


def _remove_leftovers(record: Record) -> None:
    """Remove the rules of a daemon that could not remove them, in its network namespace."""
    if record.network == network_namespace():
        _remove_rules(record.plan)
        return
    path = _namespace_path(record.network)
    # A namespace that is gone has no rules.
    if path is not None:
        _remove_rules(record.plan, "nsenter", f"--net={path}", "--")


def _remove_rules(plan: GatePlan | dict[str, Any], *within: str) -> None:
    code, said = machine.run_daemon("remove", plan, *within)
    if code != 0:
        raise MachineError(f"removing rules: {said}; to fix it: run it as root")


def _namespace_path(number: int) -> Path | None:
    """Return a path of a network namespace by its number; None if it is gone."""
    for entry in Path("/run/netns").glob("*"):
        with suppress(OSError):
            if entry.stat().st_ino == number:
                return entry
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (process / "ns/net").stat().st_ino == number:
                return process / "ns/net"
    return None
