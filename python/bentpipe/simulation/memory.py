"""The memory limit of runs: its default, and the messages about it.

The simulator counts the memory of a run itself (``crates/sim/src/memory.rs``), so the same plan,
seed and limit stop at the same event everywhere. Only the default limit depends on the machine.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bentpipe import _core
from bentpipe.errors import UsageError
from bentpipe.units import format_size, parse_size

if TYPE_CHECKING:
    from bentpipe.plan.plan import Plan
    from bentpipe.results.result import Result

# The other half is for the rest of this process and for other programs.
_SHARE: Final = 0.5
# Used where neither the machine nor its control groups report the available memory.
_FALLBACK_BYTES: Final = 4_000_000_000

_LARGEST_SHOWN_BYTES: Final = 10**15

_limit_bytes: ContextVar[int | None] = ContextVar("memory_limit", default=None)

# What takes memory, and how to change a scenario so that it takes less.
_ADVICE: Final = {
    "fixed": ("its hosts and links", "have fewer terminals or flows (count)"),
    "packets": (
        "packets in queues and in flight",
        "limit the queue (link.forward.queue.limit, link.return.queue.limit), or lower rate, "
        "delay, or the buffers of TCP",
    ),
    "samples": ("samples", "lengthen sample_interval or shorten duration"),
    "events": ("packet events", "set packet_events: false, or shorten duration"),
    "exchanges": ("exchanges and pages", "shorten duration, or have fewer of them"),
}


def read_limit(text: str | None) -> int | None:
    """Return the value of ``--memory-limit`` in bytes.

    Raises:
        UsageError: it is not a size above zero.
    """
    if text is None:
        return None
    limit = parse_size(text)
    if limit == 0:
        raise UsageError(f'--memory-limit: read "{text}": must be above zero')
    return limit


@contextmanager
def limiting(limit_bytes: int | None) -> Iterator[None]:
    """Limit the runs in this block that have no limit of their own; None: half of the memory."""
    token = _limit_bytes.set(limit_bytes)
    try:
        yield
    finally:
        _limit_bytes.reset(token)


def limit_for(workers: int, limit_bytes: int | None = None) -> int:
    """Return the limit of each of ``workers`` concurrent runs, which share ``limit_bytes``."""
    shared = limit_bytes or _limit_bytes.get() or default_limit()
    return max(shared // max(workers, 1), 1)


def default_limit() -> int:
    """Return half of the memory that is available to this process, in bytes."""
    available = [amount for amount in (_of_machine(), *_of_groups()) if amount is not None]
    return int(_SHARE * min(available)) if available else _FALLBACK_BYTES


def _of_machine() -> int | None:
    with suppress(OSError, ValueError):
        meminfo = Path("/proc/meminfo").read_text(encoding="ascii")
        if available := re.search(r"^MemAvailable: *(\d+) kB$", meminfo, re.MULTILINE):
            return 1024 * int(available[1])
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return None


def _of_groups() -> Iterator[int]:
    """Yield the memory that the control groups of this process, and their parents, leave.

    Version 2 has the limit in memory.max; version 1 in memory.limit_in_bytes, below a mount of its
    own. The kernel reclaims inactive file pages, so that they do not count as used.
    """
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, names = Path("/sys/fs/cgroup"), ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            root = Path("/sys/fs/cgroup/memory")
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        group = root / path.strip("/")
        for folder in (group, *group.parents):
            if folder.is_relative_to(root) and (left := _left(folder, *names)) is not None:
                yield left


def _left(folder: Path, limit_name: str, used_name: str) -> int | None:
    try:
        limit = int((folder / limit_name).read_text(encoding="ascii"))  # "max" is no number
        used = int((folder / used_name).read_text(encoding="ascii"))
        stat = (folder / "memory.stat").read_text(encoding="ascii").splitlines()
        cached = sum(int(line.split()[1]) for line in stat if line.startswith("inactive_file "))
    except (OSError, ValueError, IndexError):
        return None
    return max(limit - max(used - cached, 0), 0)


def memory_warning(plan: Plan, limit_bytes: int | None) -> str | None:
    """Return a warning if a run is expected to reach its memory limit."""
    limit = limit_for(1, limit_bytes)
    total = sum(_core.memory_estimate(plan.text).values())  # type: ignore[arg-type]
    if total <= limit:
        return None
    return (
        f"may take up to {_size(total)} of memory; its limit is {_size(limit)}, at which it "
        f"stops with the results up to then. {advice(plan.text)}"
    )


def memory_message(plan: Plan, result: Result) -> str:
    """Return why a run of a plan ended at its memory limit, and how to change the scenario."""
    return f"the run {result.stop_reason}. {advice(plan.text)}"


def advice(plan_json: str) -> str:
    """Return what is expected to take most memory in a run of a plan, and how to reduce it."""
    parts: dict[str, Any] = dict(_core.memory_estimate(plan_json))
    what, how = _ADVICE[max(_ADVICE, key=lambda name: int(parts[name]))]
    return f"Most is for {what}: {how}; or raise --memory-limit (memory_limit in Python)"


def too_large(fixed_bytes: int, limit_bytes: int) -> str:
    """Return the message for hosts and links that alone take more than the limit."""
    what, how = _ADVICE["fixed"]
    return (
        f"needs {_size(fixed_bytes)} of memory for {what} alone; the limit is "
        f"{_size(limit_bytes)}: {how}, or raise --memory-limit (memory_limit in Python)"
    )


def _size(size_bytes: int) -> str:
    return format_size(size_bytes) if size_bytes < _LARGEST_SHOWN_BYTES else "more than 1000 TB"
