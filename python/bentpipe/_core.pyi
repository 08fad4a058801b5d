"""The extension module, built from crates/py: takes a plan as JSON, returns columns as bytes."""

from collections.abc import Sequence
from os import PathLike
from typing import Any, Self, TypedDict, final, type_check_only

__all__ = [
    "Channels",
    "Lab",
    "MachineError",
    "MemoryLimitError",
    "Monitor",
    "PlanError",
    "ProgramError",
    "RunError",
    "SharedPidNamespace",
    "Stream",
    "create_user_namespace",
    "drop_causes",
    "join_user_namespace",
    "measure",
    "memory_estimate",
    "names",
    "pack",
    "run",
    "run_packed",
    "spawn_in",
    "table_schema",
    "unpack",
    "validate",
    "version",
    "video_playback",
]

class PlanError(ValueError):
    """The plan is invalid."""

    path: tuple[str, ...]
    """The names that lead to the field, empty if the text cannot be read as a plan."""
    reason: str
    """What was found and what is allowed."""

class RunError(RuntimeError):
    """A run violated an invariant: packets were not conserved, or the loop did not advance."""

@final
class Monitor:
    """Monitor a run from another thread, and cancel it."""

    def __init__(self) -> None: ...
    def cancel(self) -> None:
        """Cancel the run, which returns its partial results."""

    @property
    def fraction(self) -> float:
        """The progress of the run, from 0 to 1."""

@type_check_only
class RawRun(TypedDict):
    """What `run` returns; a column is dtype, packed little-endian data, validity (a byte a row).

    ``names`` has the names that depend on the plan: of directions and of places.
    """

    completed: bool
    interrupted: bool
    end_ns: int
    packet_hops: int
    engine_calls: int
    memory_exhausted: bool
    memory_bytes_max: int
    names: dict[str, list[str]]
    tables: dict[str, dict[str, tuple[str, bytes, bytes | None]]]

@final
class Stream:
    """The random stream of a name in the run with a seed."""

    def __new__(cls, seed: int, name: str) -> Self: ...
    def next_u64(self) -> int:
        """Return 64 uniform bits."""

    def below(self, bound: int) -> int:
        """Return a uniform number from 0 to ``bound`` - 1; ``bound`` must be positive."""

    def draw(self, distribution: str) -> int:
        """Return the next number of a distribution of a plan, as JSON."""

def video_playback(
    media: tuple[int, int, int, int], arrivals_ns: list[int], end_ns: int
) -> list[tuple[str, int | None]]:
    """Return what the viewer of a video has seen at ``end_ns``, columns of ``flows`` by name.

    ``media`` is the duration of the media and of a segment, the buffer and the start-up, in ns;
    ``arrivals_ns`` are the times at which segments were complete. ``next_request_ns`` and
    ``last_frame_ns`` are when these are due, or None. All times are from the start of the flow.
    """

def version() -> str:
    """Return the version of bentpipe."""

def names() -> dict[str, list[str]]:
    """Return the enumerations that columns and plans use; a column holds the index."""

def table_schema() -> list[tuple[str, str, list[tuple[str, str, str, str, bool]]]]:
    """Return the result tables in the order in which a run writes them.

    A table is its name, what one row describes, and its columns in order; a column is its name, its
    type (u8, u32, u64, f64), its unit, its meaning, and whether it can be null.
    """

def drop_causes() -> dict[str, str]:
    """Return the causes for which a direction of the link drops packets, with their meanings."""

def validate(plan_json: str) -> None:
    """Check a plan; raise PlanError naming the field."""

@type_check_only
class MemoryEstimate(TypedDict):
    """The estimated memory of a run, in bytes by purpose."""

    fixed: int
    packets: int
    samples: int
    events: int
    exchanges: int

def memory_estimate(plan_json: str) -> MemoryEstimate:
    """Return the memory of a run of a plan; all but ``fixed`` are estimates."""

class MemoryLimitError(RuntimeError):
    """The plan's hosts and links alone need more than the limit; the argument is the bytes."""

def run(
    plan_json: str,
    seed: int,
    monitor: Monitor | None = None,
    capture: str | PathLike[str] | None = None,
    memory_limit: int | None = None,
) -> RawRun:
    """Run a plan, with the interpreter lock released.

    Packets are captured to the file ``capture`` (pcapng); OSError if it cannot be written. A run
    that exceeds ``memory_limit`` bytes ends early.
    """

def run_packed(
    plan_json: str, seeds: Sequence[int], monitor: Monitor, memory_limit: int
) -> list[bytes]:
    """Run a plan with some seeds, one after the other, with the interpreter lock released.

    Returns their records, up to the first run that fails or does not complete. Raises PlanError.
    """

def pack(
    completed: bool,
    end_ns: int,
    packet_hops: int,
    columns: Sequence[tuple[bytes, bytes | None]],
) -> bytes:
    """Return the record of a run from the values and the validity of its columns."""

def unpack(records: Sequence[bytes]) -> dict[str, dict[str, tuple[str, bytes, bytes | None]]]:
    """Return the tables of many records, with the index of the record as column ``run``.

    The table ``runs`` has a row a record. ValueError if a record is damaged.
    """

class MachineError(OSError):
    """The machine lacks a feature or denies a permission; the message has the fix."""

class ProgramError(OSError):
    """A program could not be started; errno is the kernel's reason."""

@final
class Channels:
    """Running channels; they end with the object."""

    def begin(self, origin_ns: int) -> None:
        """Start the clients of a run that began at this time of the monotonic clock, in ns."""

    def finish(self) -> str:
        """End all channels, and return their reports as JSON; none the second time."""

@final
class Lab:
    """A world and an island with a link between them; ends with the object or the process."""

    def __new__(
        cls,
        plans: list[str],
        seed: int,
        *,
        mtu: int = 1_500,
        settings: tuple[list[tuple[str, str]], list[tuple[str, str]]] | None = None,
        control_ports: tuple[int, int] | None = None,
        capture: str | PathLike[str] | None = None,
        super_packets: bool = False,
        gateways: bool = False,
        host_settings: dict[str, list[tuple[str, str]]] | None = None,
    ) -> Self: ...
    def run(self) -> None:
        """Move packets until `stop` is called, with the interpreter lock released."""

    def stop(self) -> None:
        """End `run`."""

    def hosts(self) -> list[str]:
        """Return the names of the hosts, by address."""

    def spawn(
        self,
        host: str,
        arguments: list[str],
        *,
        environment: list[tuple[str, str]] = ...,
        output: int | None = None,
    ) -> int:
        """Start a program on a host; return its PID, which the caller must wait for."""

    def serve(self, host: str) -> None:
        """Serve HTTP on port 80 of a host: `/bytes/N` is N bytes."""

    def start_channels(self, plan: str, seed: int, settings: str) -> Channels:
        """Open the servers of a plan's channels; plan and settings of the channels are JSON."""

    def is_listening(self, host: str, port: int) -> bool:
        """Tell whether a TCP server is listening on a port of a host."""

    def setting(self, host: str, name: str) -> str:
        """Return the value of a sysctl on a host."""

    def connections(self, host: str) -> list[dict[str, Any]]:
        """Return the TCP connections of a host, with the field names of the kernel.

        Empty where the kernel does not report them; ``total_rto`` is None where it lacks that.
        """

    def address(self, host: str) -> str:
        """Return the IPv4 address of a host."""

    def now_ns(self) -> int:
        """Return the time since the lab was brought up, in ns."""

    def apply_changes(self, changes: str) -> int:
        """Apply changes to the running link, all at the same time or none; return that time in ns.

        Keys of a change: ``hop`` from 0, ``direction``, ``rate_bps``, ``delay_ns``,
        ``bit_error_rate``, ``outage_ns``; None leaves a value unchanged.
        """

    def namespace_fds(self, host: str, pids: SharedPidNamespace) -> list[int]:
        """Return new file descriptors of a host's namespaces, for `spawn_in` in another process."""

    def enable_internet(self) -> int:
        """Prepare the lab for a NAT; return a new file descriptor of the world's network."""

    def report(self) -> dict[str, Any]:
        """Return the latest report, at most a tenth of a second old."""

@final
class SharedPidNamespace:
    """A PID namespace for programs of other processes in a lab; kills them when it ends."""

    def __new__(cls) -> Self: ...

def spawn_in(
    namespace_fds: list[int], arguments: list[str], environment: list[tuple[str, str]]
) -> int:
    """Start a program in a lab of another process; return its PID, to be waited for."""

def join_user_namespace(descriptor: int) -> None:
    """Move the process, which must be single-threaded, into a user namespace."""

def create_user_namespace() -> None:
    """Move the process, which must be single-threaded, into a new user namespace, as its user."""

def measure(seconds: float) -> dict[str, Any]:
    """Measure this machine, for about five times `seconds` and five lab starts.

    Keys: ``tcp_bits_per_second``, ``tcp_super_packets_bits_per_second``,
    ``small_packets_per_second``, and for loads ``sparse`` (10,000 packets a second) and ``full``
    (20 Mbit/s): ``min_ns``, ``p50_ns``, ``p99_ns``, ``max_ns`` of the errors of one-way delay,
    ``rate_error`` and ``invalid``.
    """
