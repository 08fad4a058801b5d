"""What this machine has: programs, capabilities, and what its kernel says of its network."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bentpipe.errors import MachineError, UsageError

# The program of the daemon, which is inside this package.
PROGRAM: Final = "bentpipe-gate"
# What its lines begin with, and the last one of a daemon that fails.
_SAYS: Final = f"{PROGRAM}: "
_FAILS: Final = f"{_SAYS}error: "
FIX: Final = "; to fix it: "
# The user and the group nobody, which every Linux has.
NOBODY: Final = 65_534
# The open files of a worker, as `descriptors` of daemon/plan.rs: for each connection a socket on
# either side, for each thread two, and besides them pipes and sockets of its own.
_FILES_PER_CONNECTION: Final = 2
_FILES_PER_THREAD: Final = 2
_OTHER_FILES: Final = 1_024
# Marks and tables up to 255 are common in hand-written rules, and docker, cilium, tailscale and
# wg-quick use others than these. The mark is a multiple of 128, for up to 64 workers.
MARK: Final = 25_088
ROUTE_TABLE: Final = 25_113
# The TUN device of a tunnel, and its UDP port.
DEVICE: Final = "bp0"
PORT: Final = 51_871
# As `daemon/tunnel_plan.rs`.
PEERS_MAX: Final = 64
_SYSTEM_FOLDERS: Final = ("/usr/local/sbin", "/usr/sbin", "/sbin")
_PROC: Final = Path("/proc/sys")
# capabilities(7), by the numbers of linux/capability.h.
_CAPABILITIES: Final = {
    "CAP_SETGID": 6,
    "CAP_SETUID": 7,
    "CAP_NET_ADMIN": 12,
    "CAP_NET_RAW": 13,
    "CAP_SYS_ADMIN": 21,
}
_TIMEOUT_S: Final = 20.0
# The Debian packages of the programs.
PACKAGES: Final = {"nft": "nftables", "ip": "iproute2"}


@dataclass(frozen=True)
class Check:
    """The result of one check: ``found`` is a sentence, ``fix`` the remedy if it is not ``ok``.

    One that is not ``needed`` is advice.
    """

    name: str
    ok: bool
    found: str
    fix: str = ""
    needed: bool = True

    @property
    def passes(self) -> bool:
        """Whether it is passed, or advice."""
        return self.ok or not self.needed


def mark_count(workers: int) -> int:
    """Return how many marks of SYNs a daemon has; the first is a multiple of this power of two.

    It uses two more after them.
    """
    return 2 << (workers - 1).bit_length()


def passed(name: str, finding: str) -> Check:
    """Return a check that is passed."""
    return Check(name, ok=True, found=finding)


def failed(name: str, finding: str, fix: str) -> Check:
    """Return a check that is not passed, and its remedy."""
    return Check(name, ok=False, found=finding, fix=fix)


def advised(name: str, finding: str, fix: str) -> Check:
    """Return advice: what works without it works better with it."""
    return Check(name, ok=False, found=finding, fix=fix, needed=False)


def require(checks: Iterable[Check]) -> None:
    """Check that all checks are passed.

    Raises:
        MachineError: one line for each that is not.
    """
    lines = [
        f"{check.name}: {check.found.rstrip('.')}{FIX}{check.fix}"
        for check in checks
        if not check.passes
    ]
    if lines:
        raise MachineError("\n".join(lines))


def find_binary(folder: Path = Path(__file__).parent) -> Path:
    """Return the path of the program.

    Raises:
        MachineError: this installation was made without it.
    """
    path = folder / PROGRAM
    if not path.is_file():
        raise MachineError(
            f"{path}: no such file: this installation has no daemon for gateways; to fix it: "
            "install a wheel of `make wheel`, or run make .venv/.installed in the checkout"
        )
    if not os.access(path, os.X_OK):
        raise MachineError(f"{path}: cannot be executed; to fix it: chmod 755 {path}")
    return path


def open_files(connections: int, *, threads: int) -> int:
    """Return the largest number of open files of a worker with so many connections."""
    return _FILES_PER_CONNECTION * connections + _FILES_PER_THREAD * threads + _OTHER_FILES


def connections_within(files: int, *, threads: int) -> int:
    """Return the largest number of connections with which a worker has no more open files."""
    return max(files - open_files(0, threads=threads), 0) // _FILES_PER_CONNECTION


def user_folder(name: str) -> Path:
    """Return where this user's daemons have a folder of this name, which need not exist."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    # su(1) and sudo(8) may leave the folder of another user, which cannot be accessed.
    with suppress(OSError):
        if runtime and Path(runtime).is_dir():
            return Path(runtime) / name
    return Path(tempfile.gettempdir()) / f"{name}-{os.geteuid()}"


def search_path() -> str:
    """Return the PATH with the folders of system programs, which that of a user may lack."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return os.pathsep.join(
        [*folders, *(folder for folder in _SYSTEM_FOLDERS if folder not in folders)]
    )


def program(name: str) -> str | None:
    """Return the path of a program, or None if it is not installed."""
    return shutil.which(name, path=search_path())


def require_program(name: str) -> str:
    """Return the path of ``nft`` or ``ip``.

    Raises:
        MachineError: it is not installed.
    """
    path = program(name)
    if path is None:
        raise MachineError(f"{name} is not installed; to fix it: apt install {PACKAGES[name]}")
    return path


def missing_capabilities(*names: str) -> list[str]:
    """Return which capabilities this process lacks."""
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    effective = next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff:"))
    return [name for name in names if not int(effective, 16) >> _CAPABILITIES[name] & 1]


def parent(process: int) -> int:
    """Return the process id of a parent; 0 if the process has ended."""
    with suppress(OSError, ValueError, IndexError):
        stat = Path(f"/proc/{process}/stat").read_text(encoding="ascii", errors="replace")
        # proc_pid_stat(5): the name of the program, in parentheses, may have spaces.
        return int(stat.rpartition(")")[2].split()[1])
    return 0


def children(process: int) -> list[int]:
    """Return the process ids of the children of a process."""
    running = (int(folder.name) for folder in Path("/proc").glob("[0-9]*"))
    return [candidate for candidate in running if parent(candidate) == process]


def sysctl(name: str) -> str | None:
    """Return a setting such as ``net.ipv4.ip_forward``; None if the kernel has none."""
    # The name of an interface may have dots: there they are slashes, as sysctl(8) prints them.
    parts = name.translate(str.maketrans("./", "/."))
    try:
        return (_PROC / parts).read_text(encoding="ascii").strip()
    except OSError:
        return None


def interface_setting(name: str, setting: str) -> int:
    """Return the IPv4 setting of an interface: its own or that of ``all``, whichever is larger."""
    names = ("all", name.replace(".", "/"))
    return max(int(sysctl(f"net.ipv4.conf.{interface}.{setting}") or 0) for interface in names)


def refused_by_nft(rules: str) -> str | None:
    """Return why nft and the kernel do not take rules, which are only checked; None if they do."""
    done = _run("nft", "--check", "--file", "-", given=rules)
    return None if done.returncode == 0 else _printed(done)[0]


def nft_ruleset() -> list[Mapping[str, Any]]:
    """Return the objects of all tables of nftables: tables, chains, rules and so on.

    Raises:
        MachineError: nft cannot list them.
    """
    ruleset = _json("nft", "--json", "list", "ruleset")
    return ruleset["nftables"] if isinstance(ruleset, dict) else []


def links() -> dict[str, Mapping[str, Any]]:
    """Return the interfaces by name."""
    return {link["ifname"]: link for link in _json("ip", "-json", "link", "show")}


def routes(version: int, table: str = "main") -> list[Mapping[str, Any]]:
    """Return the routes of a table for IPv4 (4) or IPv6 (6); none of a table that is not there."""
    done = _run("ip", "-json", f"-{version}", "route", "show", "table", table)
    return json.loads(done.stdout.strip() or "[]") if done.returncode == 0 else []


def routing_rules(version: int) -> list[Mapping[str, Any]]:
    """Return the rules that choose a routing table."""
    rules: list[Mapping[str, Any]] = _json("ip", "-json", f"-{version}", "rule", "show")
    return rules


def devices(route: Mapping[str, Any]) -> Iterator[str]:
    """Yield the interfaces that a route uses: several if it has several next hops."""
    for nexthop in route.get("nexthops") or [route]:
        if "dev" in nexthop:
            yield nexthop["dev"]


def run_daemon(verb: str, plan: Mapping[str, Any], *within: str) -> tuple[int, str]:
    """Run ``bentpipe-gate check`` or ``remove``; return its code and the last line it printed.

    ``within`` is a program that runs it, with its arguments.

    Raises:
        MachineError: it is not installed, or does not end.
    """
    done = _completed([*within, str(find_binary()), verb], json.dumps(plan))
    return done.returncode, said(_printed(done)[-1])


def said(line: str) -> str:
    """Return what a line of the daemon says."""
    return line.removeprefix(_FAILS).removeprefix(_SAYS)


def why_ended(printed: Sequence[str]) -> str:
    """Return why a daemon that printed these lines has ended, if not as asked."""
    return said(printed[-1]) if printed and printed[-1].startswith(_FAILS) else "it was killed"


def make_key(path: Path) -> str:
    """Write a new private key to a file that does not exist; return its public key.

    Raises:
        UsageError: the file exists or cannot be written.
        MachineError: this installation has no daemon.
    """
    done = _completed([str(find_binary()), "keygen", str(path)], "")
    if done.returncode != 0:
        raise UsageError(said(_printed(done)[-1]))
    return done.stdout.strip()


def _json(*command: str) -> Any:
    done = _run(*command)
    if done.returncode != 0:
        text = f"{' '.join(command)}: {_printed(done)[0]}"
        raise MachineError(f"{text}; to fix it: run it as root, and update {command[0]}")
    return json.loads(done.stdout.strip() or "[]")


def _printed(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return the lines of standard error, at least one."""
    return done.stderr.strip().splitlines() or [f"it ended with code {done.returncode}"]


def _run(name: str, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    return _completed([require_program(name), *arguments], given)


def _completed(command: Sequence[str], given: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            input=given,
            capture_output=True,
            text=True,
            errors="replace",
            env=os.environ | {"PATH": search_path()},
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise MachineError(
            f"{' '.join(command)}: has not ended after {_TIMEOUT_S:g} s; to fix it: try again when "
            "the machine is less busy"
        ) from None
