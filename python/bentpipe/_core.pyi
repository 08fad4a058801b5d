"""The extension module, built from crates/py: a plan goes in as JSON, columns come out as bytes."""

from os import PathLike
from typing import Any, Self, TypedDict, final, type_check_only

__all__ = [
    "Lab",
    "MachineError",
    "MemoryLimitError",
    "Monitor",
    "PlanError",
    "ProgramError",
    "RunError",
    "SharedPidNamespace",
    "become_root_of_user_namespace",
    "drop_causes",
    "join",
    "join_user_namespace",
    "measure",
    "memory_estimate",
    "names",
    "run",
    "table_schema",
    "validate",
    "version",
]

class PlanError(ValueError):
    """The plan is not valid."""

    path: tuple[str, ...]
    """The names that lead to the field, empty if the text cannot be read as a plan."""
    reason: str
    """What was found and what is allowed."""

class RunError(RuntimeError):
    """A run violated an invariant: packets were not conserved, or the loop did not advance."""

@final
class Monitor:
    """A handle on a run from another thread."""

    def __init__(self) -> None: ...
    def cancel(self) -> None:
        """Ask the run to stop; it returns what it recorded so far."""

    @property
    def fraction(self) -> float:
        """How far the run is, 0 to 1."""

@type_check_only
class RawRun(TypedDict):
    """What `run` returns; a column is dtype, packed little-endian data, validity (a byte a row).

    The names are those that depend on the plan: of directions and of places.
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

def version() -> str:
    """Return the version of bentpipe."""

def names() -> dict[str, list[str]]:
    """Return the names that number columns refer to in every plan: the index is the number."""

@type_check_only
class ColumnSchema(TypedDict):
    """A column of a result table."""

    name: str
    dtype: str
    unit: str
    meaning: str
    nullable: bool

@type_check_only
class TableSchema(TypedDict):
    """A result table: ``row`` says what one row describes."""

    name: str
    row: str
    columns: list[ColumnSchema]

def table_schema() -> list[TableSchema]:
    """Return the result tables and their columns, in the order in which a run writes them."""

def drop_causes() -> dict[str, str]:
    """Return the causes for which a direction of the link drops packets, with their meanings."""

def validate(plan_json: str) -> None:
    """Check a plan; raise PlanError naming the field."""

@type_check_only
class MemoryEstimate(TypedDict):
    """The memory that a run is expected to take, in bytes by what takes it."""

    fixed: int
    packets: int
    samples: int
    events: int
    exchanges: int

def memory_estimate(plan_json: str) -> MemoryEstimate:
    """Return what a run of a plan is expected to take; all but ``fixed`` are estimates."""

class MemoryLimitError(RuntimeError):
    """The plan's hosts and links alone take more than the limit; the argument is their bytes."""

def run(
    plan_json: str,
    seed: int,
    monitor: Monitor | None = None,
    capture: str | PathLike[str] | None = None,
    memory_limit: int | None = None,
) -> RawRun:
    """Run a plan, with the interpreter lock released.

    Packets are captured into the file ``capture`` (pcapng); OSError if it cannot be written. A run
    that counts more bytes of memory than ``memory_limit`` ends early.
    """

class MachineError(OSError):
    """The machine lacks something, or does not allow it; the message says what helps."""

class ProgramError(OSError):
    """A program could not be started."""

@final
class Lab:
    """A world, an island and a link between them; gone with the object, or with the process."""

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
        """Start a program on a host; return the process to wait for."""

    def serve(self, host: str) -> None:
        """Serve HTTP on port 80 of a host: `/bytes/N` has N bytes."""

    def is_listening(self, host: str, port: int) -> bool:
        """Tell whether a TCP server listens on a port of a host."""

    def setting(self, host: str, name: str) -> str:
        """Return the value of a kernel setting of a host."""

    def connections(self, host: str) -> list[dict[str, Any]]:
        """Return what the kernel of a host knows of its TCP connections, by its own names.

        Empty where it does not tell. ``total_rto`` is None where the kernel does not count.
        """

    def address(self, host: str) -> str:
        """Return the IPv4 address of a host."""

    def now_ns(self) -> int:
        """Return the time since the lab was set up, in ns."""

    def order(self, orders: list[dict[str, Any]]) -> int:
        """Change the running link, by all orders at one moment or none; return when, in ns.

        Keys of an order: ``hop`` from 0, ``direction``, ``rate_bps``, ``delay_ns``,
        ``bit_error_rate``, ``outage_ns``; None for what is to stay.
        """

    def entrance(self, host: str, pids: SharedPidNamespace) -> list[int]:
        """Return new descriptors by which another process can `join` a host."""

    def lead_outside(self) -> int:
        """Prepare the lab for a NAT; return a new descriptor of the world's network."""

    def report(self) -> dict[str, Any]:
        """Return what was measured, a tenth of a second ago at most."""

@final
class SharedPidNamespace:
    """A process namespace for programs that other processes start in a lab; ends with them."""

    def __new__(cls) -> Self: ...

def join(entrance: list[int], arguments: list[str], environment: list[tuple[str, str]]) -> int:
    """Start a program in a lab that another process keeps; return the process to wait for."""

def join_user_namespace(descriptor: int) -> None:
    """Make the process a member of a user namespace; it must have one thread yet."""

def become_root_of_user_namespace() -> None:
    """Make the process root of a user namespace of its own; it must have one thread yet."""

def measure(seconds: float) -> dict[str, Any]:
    """Measure what this machine can do, for about five times `seconds` and five lab starts.

    Keys: ``tcp_bits_per_second``, ``tcp_super_packets_bits_per_second``,
    ``small_packets_per_second``, and for loads ``sparse`` (10,000 packets a second) and ``full``
    (20 Mbit/s): ``min_ns``, ``p50_ns``, ``p99_ns``, ``max_ns`` of the errors of one-way delay,
    ``rate_error`` and ``invalid``.
    """
