"""Scenarios: what a person writes, in YAML or in Python, with units.

A `Scenario` holds its quantities as text, exactly as they were written ("16 Mbit/s", "275 ms"), and
checks them when it is made. `Scenario.plan` resolves it into the complete integers that the
simulator reads.

Defaults have one home: this module for links and hosts (`DEFAULT_DIRECTION`, `PROFILES`), and the
classes that it gathers here for their own fields. A field that is left out (or null) takes the
value of the preset or the host profile that was named, and after that the default.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field, ValidationError

from bentpipe.errors import Problem, ScenarioError
from bentpipe.scenario.document import Document, read_file, with_settings
from bentpipe.scenario.framing import FramingOptions
from bentpipe.scenario.gateways import (
    BRIDGED_HEADER_BYTES,
    PROCESSOR_RATES,
    Gateway,
    Gateways,
    Processor,
    ProcessorMode,
)
from bentpipe.scenario.hosts import Host, Hosts
from bentpipe.scenario.link import (
    MAX_TERMINALS,
    ChannelState,
    DelayStep,
    DeliveryTrace,
    Direction,
    DirectionName,
    GilbertElliott,
    Link,
    PresetName,
    RateStep,
    TerminalPath,
    TimeSeries,
)
from bentpipe.scenario.queues import (
    QUEUES,
    CoDel,
    DropTail,
    EarlyPacketDiscard,
    FqCoDel,
    PerFlowDropTail,
    Queue,
    Red,
    SelectiveDrop,
    StrictPriority,
)
from bentpipe.scenario.record import LengthOfTime, Record
from bentpipe.scenario.traffic import (
    FLOWS,
    MAX_FLOWS,
    Bulk,
    Conference,
    CongestionControl,
    ConstantRate,
    Fetch,
    Flow,
    LognormalSize,
    LognormalTime,
    ParetoSize,
    ParetoTime,
    ProfileName,
    RequestResponse,
    SizeDraw,
    Tcp,
    TimeDraw,
)

__all__ = [
    "BRIDGED_HEADER_BYTES",
    "DEFAULT_DIRECTION",
    "FLOWS",
    "LARGEST_MSS",
    "LARGEST_PAYLOAD",
    "LARGEST_SEED",
    "MAX_FLOWS",
    "MAX_TERMINALS",
    "PROCESSOR_RATES",
    "PROFILES",
    "QUEUES",
    "Bulk",
    "ChannelState",
    "CoDel",
    "Conference",
    "CongestionControl",
    "ConstantRate",
    "DelayStep",
    "DeliveryTrace",
    "Direction",
    "DirectionName",
    "DropTail",
    "EarlyPacketDiscard",
    "Fetch",
    "Flow",
    "FqCoDel",
    "FramingOptions",
    "Gateway",
    "Gateways",
    "GilbertElliott",
    "Host",
    "Hosts",
    "Link",
    "LognormalSize",
    "LognormalTime",
    "ParetoSize",
    "ParetoTime",
    "PerFlowDropTail",
    "PresetName",
    "Processor",
    "ProcessorMode",
    "ProfileName",
    "Queue",
    "RateStep",
    "Red",
    "RequestResponse",
    "Scenario",
    "SelectiveDrop",
    "SizeDraw",
    "StrictPriority",
    "Tcp",
    "TerminalPath",
    "TimeDraw",
    "TimeSeries",
    "from_dict",
    "json_schema",
    "load",
]

LARGEST_SEED: Final = 2**64 - 1
# 65,535 bytes of IP packet less 20 of IPv4 and 20 of TCP header.
LARGEST_MSS: Final = 65_495
# 65,535 bytes of IP packet less 20 of IPv4 and 8 of UDP header.
LARGEST_PAYLOAD: Final = 65_507


class Scenario(Record):
    """A link, the traffic on it, and how long to watch.

    Built directly, a wrong value raises ``pydantic.ValidationError``; `load` and `from_dict` raise
    `ScenarioError`, which names the file and line as well.
    """

    name: str = ""
    """What this scenario is about, for titles."""
    link: Link
    """The satellite hop."""
    gateways: Gateways = Field(default_factory=Gateways)
    """What stands between the local networks and the link."""
    hosts: Hosts = Field(default_factory=Hosts)
    """Hosts at some distance from their gateway."""
    traffic: Annotated[tuple[Flow, ...], Field(strict=False, min_length=1)]
    """The flows, at least one."""
    duration: LengthOfTime
    """When the run stops, at the latest."""
    sample_interval: LengthOfTime | None = "100 ms"
    """Time between the rows of the time series; null records none."""
    packet_events: bool = False
    """Whether to record each packet's every step (about 40 bytes an event)."""
    seed: Annotated[int, Field(ge=0, le=LARGEST_SEED)] = 1
    """The seed of every random draw. Same plan, seed and version: the same result, to the byte."""

    def plan(self) -> dict[str, Any]:
        """Resolve into the complete plan: ns, bytes and bit/s, every field present.

        Raises:
            ScenarioError: the parts do not fit together (a queue smaller than a packet, say).
        """
        return _plan_of(self, Document(data={}, source="scenario"))

    def to_dict(self) -> dict[str, Any]:
        """Return the scenario as it was written: plain data, without presets and defaults."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)


DEFAULT_DIRECTION: Final = Direction(
    framing="none",
    queue=DropTail(discipline="drop_tail"),
    bit_error_rate=0.0,
)

PROFILES: Final[Mapping[str, Tcp]] = {
    # A 4.4BSD host: 500 ms timer ticks, delayed ACKs every 200 ms, and RFC 2581's L = 1. The large
    # send buffer and the scaled window are what a tester of satellite links set by hand.
    "bsd-1997": Tcp(
        mss="1460 B",
        initial_window=1,
        congestion_control="reno",
        sack=False,
        timestamps=False,
        window_scaling=True,
        send_buffer="4 MiB",
        receive_buffer="256 KiB",
        receive_buffer_counts="window",
        delayed_ack_segments=2,
        delayed_ack_timeout="200 ms",
        quick_ack_segments=0,
        rto_initial="3 s",
        rto_min="1 s",
        rto_min_bounds="timeout",
        rto_max="64 s",
        clock_granularity="500 ms",
        slow_start_segments_per_ack=1,
        avoidance_counting="bytes",
        limited_transmit=False,
        rack_tlp=False,
        prr=False,
        hystart=False,
        ecn=False,
        follows="rfc",
    ),
    # Linux defaults: tcp_wmem's cap of 4 MiB, tcp_rmem's 128 KiB and 6 MiB of memory, IW 10 (RFC
    # 6928), TCP_RTO_MIN 200 ms, TCP_RTO_MAX 120 s, delayed ACKs after TCP_DELACK_MIN.
    "linux": Tcp(
        mss="1460 B",
        initial_window=10,
        congestion_control="cubic",
        sack=True,
        timestamps=True,
        window_scaling=True,
        send_buffer="4 MiB",
        receive_buffer="6 MiB",
        receive_buffer_initial="128 KiB",
        receive_buffer_counts="memory",
        delayed_ack_segments=2,
        delayed_ack_timeout="40 ms",
        quick_ack_segments=16,
        rto_initial="1 s",
        rto_min="200 ms",
        rto_min_bounds="variance",
        rto_max="120 s",
        clock_granularity="1 ms",
        slow_start_segments_per_ack=65_535,
        avoidance_counting="bytes",
        limited_transmit=True,
        rack_tlp=True,
        prr=True,
        hystart=True,
        ecn=False,
        follows="linux",
    ),
}


def load(path: str | Path, *, settings: tuple[str, ...] = ()) -> Scenario:
    """Read a scenario file, with ``path=value`` settings laid over it.

    Raises:
        ScenarioError: naming file, line, field, what was read and what is allowed.
    """
    return checked(with_settings(read_file(Path(path)), list(settings)))


def from_dict(data: Mapping[str, Any]) -> Scenario:
    """Build a scenario from plain data, as YAML or JSON would give them.

    Raises:
        ScenarioError: naming the field, what was read and what is allowed.
    """
    return checked(Document(data=dict(data), source="scenario"))


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a scenario file, for editors and other programs."""
    schema = Scenario.model_json_schema(by_alias=True)
    definitions = schema["$defs"]
    for name, value in DEFAULT_DIRECTION.model_dump(mode="json", exclude={"queue"}).items():
        if value is not None:
            definitions["Direction"]["properties"][name]["default"] = value
    for discipline, queue in QUEUES.items():
        record = definitions[queue.__name__]
        record["properties"]["limit"]["default"] = queue.default_limit
        record["properties"]["discipline"]["default"] = discipline
        if queue is not DropTail:
            record.setdefault("required", []).insert(0, "discipline")
    for flow in FLOWS.values():
        definitions[flow.__name__]["required"].insert(0, "kind")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def checked(document: Document) -> Scenario:
    """Validate a document, and resolve it once so that its errors can point at lines.

    Raises:
        ScenarioError: naming file, line, field, what was read and what is allowed.
    """
    from bentpipe.scenario.problems import problems_of

    try:
        scenario = Scenario.model_validate(_with_paths(document))
    except ValidationError as error:
        raise ScenarioError(*problems_of(error, document)) from None
    _plan_of(scenario, document)
    return scenario


def _with_paths(document: Document) -> dict[str, Any]:
    """Return the data, with the files that its link names found from the folder of the document."""
    folder, link = Path(document.source).parent, document.data.get("link")
    if folder == Path() or not isinstance(link, Mapping):
        return document.data
    link = dict(link)
    for name, direction in link.items():
        if isinstance(direction, Mapping):
            link[name] = {field: _from_folder(folder, value) for field, value in direction.items()}
    return {**document.data, "link": link}


def _from_folder(folder: Path, value: object) -> object:
    """Return a field of a direction, with its file from a folder if it is one that names a file."""
    if not isinstance(value, Mapping):
        return value
    files = {
        key: str(folder / file)
        for key, file in value.items()
        if key in ("trace", "csv") and isinstance(file, str) and file
    }
    return {**value, **files}


def _plan_of(scenario: Scenario, document: Document) -> dict[str, Any]:
    # The resolver reads the classes and profiles of this module.
    from bentpipe.plan.refusals import PlanningError
    from bentpipe.plan.resolve import resolve

    try:
        return resolve(scenario)
    except PlanningError as error:
        problem: Problem = document.problem(error.path, error.message)
        raise ScenarioError(problem) from None
