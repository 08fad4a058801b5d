"""Scenarios: what a person writes, in YAML or in Python, with units.

A `Scenario` holds its quantities as text, exactly as they were written ("16 Mbit/s", "275 ms"), and
checks them when it is made. `Scenario.plan` resolves it into the complete integers that the
simulator reads. This module is the only home of defaults: `DEFAULT_DIRECTION`, `PROFILES`, and the
defaults of the classes below.

A field that is left out (or null) takes the value of the preset or the host profile that was named,
and after that the default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from bentpipe import units
from bentpipe._document import Document, read_file, with_settings
from bentpipe.errors import Problem, ScenarioError, UnitError

# A run keeps a few kB of state a flow; ten thousand of them still fit any machine.
MOST_FLOWS: Final = 10_000
LARGEST_SEED: Final = 2**64 - 1
# 65,535 bytes of IP packet less 20 of IPv4 and 20 of TCP header.
LARGEST_MSS: Final = 65_495
# 65,535 bytes of IP packet less 20 of IPv4 and 8 of UDP header.
LARGEST_PAYLOAD: Final = 65_507

DirectionName = Literal["forward", "return"]
PresetName = Literal["geo", "meo", "leo", "isdn-return"]
ProfileName = Literal["bsd-1997", "linux"]
CongestionControl = Literal["reno", "newreno", "cubic"]


def _quantity(parse: Callable[[object], object], *, above_zero: bool = False) -> BeforeValidator:
    def check(text: object) -> object:
        try:
            value = parse(text)
        except UnitError as error:
            raise PydanticCustomError("quantity", "{reason}", {"reason": str(error)}) from None
        if above_zero and value == 0:
            reason = f'read "{text}": must be above zero'
            raise PydanticCustomError("quantity", "{reason}", {"reason": reason})
        return text

    return BeforeValidator(check)


def _text(pattern: str, example: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "pattern": pattern, "examples": [example]})


_rate_text = _text(units.RATE_PATTERN, "16 Mbit/s")
_duration_text = _text(units.DURATION_PATTERN, "275 ms")
_size_text = _text(units.SIZE_PATTERN, "120 kB")
_limit_text = _text(units.QUEUE_LIMIT_PATTERN, "50 packets")

Rate = Annotated[str, _quantity(units.parse_rate, above_zero=True), _rate_text]
RateOrOutage = Annotated[str, _quantity(units.parse_rate), _rate_text]
Duration = Annotated[str, _quantity(units.parse_duration), _duration_text]
LengthOfTime = Annotated[str, _quantity(units.parse_duration, above_zero=True), _duration_text]
Size = Annotated[str, _quantity(units.parse_size), _size_text]
SizeAboveZero = Annotated[str, _quantity(units.parse_size, above_zero=True), _size_text]
Limit = Annotated[str, _quantity(units.parse_queue_limit), _limit_text]
Segments = Annotated[int, Field(ge=0, le=2**32 - 1)]


def _constant_or_steps(value: object) -> str:
    return "steps" if isinstance(value, list | tuple) else "constant"


class _Record(BaseModel):
    """A part of a scenario: frozen, strict about types, with no unknown fields."""

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="forbid",
        validate_by_name=True,
        validate_by_alias=True,
        use_attribute_docstrings=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _know_every_field(cls, data: object) -> object:
        """Refuse unknown fields before all else: a misspelt one would also read as missing."""
        if not isinstance(data, Mapping):
            return data
        fields = cls.model_fields
        allowed = tuple(field.serialization_alias or name for name, field in fields.items())
        for name in data:
            if name not in allowed and name not in fields:
                context = {"name": str(name), "allowed": allowed}
                raise PydanticCustomError("unknown_field", "unknown field", context)
        return data

    def over(self, base: Self) -> Self:
        """Return ``base`` with every field that this record has laid over it."""
        merged: dict[str, Any] = {}
        for name in type(self).model_fields:
            mine, theirs = getattr(self, name), getattr(base, name)
            if isinstance(mine, _Record) and isinstance(theirs, _Record):
                mine = mine.over(theirs)
            merged[name] = theirs if mine is None else mine
        return type(self).model_construct(**merged)


class RateStep(_Record):
    """The rate from a moment on."""

    at: Duration
    """When the step happens, from the start of the run; the first is at ``0 s``."""
    value: RateOrOutage
    """The rate from then on; ``0 bit/s`` is an outage: packets wait in the queue."""


class DelayStep(_Record):
    """The propagation delay from a moment on."""

    at: Duration
    """When the step happens, from the start of the run; the first is at ``0 s``."""
    value: Duration
    """The delay of packets sent from then on."""


# JSON and YAML have lists, not tuples; the records hold tuples so that they stay frozen.
_RateSteps = Annotated[tuple[RateStep, ...], Field(strict=False, min_length=1)]
_DelaySteps = Annotated[tuple[DelayStep, ...], Field(strict=False, min_length=1)]
RateOrSteps = Annotated[
    Annotated[Rate, Tag("constant")] | Annotated[_RateSteps, Tag("steps")],
    Discriminator(_constant_or_steps),
]
DelayOrSteps = Annotated[
    Annotated[Duration, Tag("constant")] | Annotated[_DelaySteps, Tag("steps")],
    Discriminator(_constant_or_steps),
]


class Queue(_Record):
    """The queue in front of a transmitter."""

    discipline: Literal["drop_tail"] | None = None
    """``drop_tail``: a packet that does not fit is dropped."""
    limit: Limit | None = None
    """How much may wait: a size (``120 kB`` of IP packets), ``50 packets``, a time to wait
    (``50 ms``), a share of the bandwidth-delay product (``0.5 bdp``) or ``unlimited``. The packet
    being sent does not wait.

    The bandwidth-delay product is the highest rate of the direction times the sum of the highest
    delays of both directions, rounded down to bytes."""


class Direction(_Record):
    """One direction of a link. ``rate`` and ``delay`` must come from here or from a preset."""

    rate: RateOrSteps | None = None
    """Link bits per second, framing included: ``16 Mbit/s``, or a list of steps."""
    delay: DelayOrSteps | None = None
    """Propagation delay one way: ``275 ms``, or a list of steps."""
    framing: Size | None = None
    """Bytes that the link adds to each IP packet."""
    queue: Queue | None = None
    """The queue in front of the transmitter."""
    bit_error_rate: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    """The chance, 0 to 1, that a bit of a sent packet (framing included) is wrong; errors are
    independent, and a packet with one wrong bit is lost."""


class Link(_Record):
    """One satellite hop: ``forward`` is hub to user, ``return`` is user to hub."""

    preset: PresetName | None = None
    """A named link whose values hold for all that is not written here."""
    forward: Direction = Field(default_factory=Direction)
    """Hub to user."""
    return_: Direction = Field(
        default_factory=Direction, validation_alias="return", serialization_alias="return"
    )
    """User to hub (``return_`` in Python, where ``return`` is a keyword)."""


class Tcp(_Record):
    """Settings of a TCP host, laid over those of its profile."""

    mss: SizeAboveZero | None = None
    """The MSS option, 88 to 65495 bytes; timestamps take 12 bytes of it from each segment."""
    initial_window: Segments | None = None
    """The first congestion window, in segments."""
    congestion_control: CongestionControl | None = None
    """``reno``, ``newreno`` or ``cubic``."""
    sack: bool | None = None
    """Selective acknowledgements (RFC 2018, loss recovery by RFC 6675)."""
    timestamps: bool | None = None
    """The timestamps option (RFC 7323): 12 bytes in each segment, an RTT sample from each ACK."""
    window_scaling: bool | None = None
    """The window scale option (RFC 7323). Without it the window is at most 65,535 bytes, whatever
    the receive buffer."""
    send_buffer: SizeAboveZero | None = None
    """The most bytes that the sender holds unacknowledged."""
    receive_buffer: SizeAboveZero | None = None
    """The largest window that the receiver advertises; see ``window_scaling``."""
    receive_buffer_initial: SizeAboveZero | None = None
    """The window advertised first; the receiver tunes it up to ``receive_buffer`` as data arrive.
    When neither the profile nor the scenario gives it, the window is ``receive_buffer`` at once."""
    delayed_ack_segments: Segments | None = None
    """The receiver acknowledges at the latest every so many full segments; 1 acknowledges each."""
    delayed_ack_timeout: Duration | None = None
    """How long the receiver keeps back an acknowledgement."""
    quick_ack_segments: Segments | None = None
    """The first so many segments of a connection are acknowledged at once."""
    rto_initial: LengthOfTime | None = None
    """The retransmission timeout before the first RTT sample (RFC 6298)."""
    rto_min: LengthOfTime | None = None
    """The smallest retransmission timeout."""
    rto_min_bounds: Literal["timeout", "variance"] | None = None
    """What ``rto_min`` bounds: the whole ``timeout`` (RFC 6298), or its ``variance`` term alone, so
    that the timeout is at least the smoothed RTT and ``rto_min`` (Linux)."""
    rto_max: LengthOfTime | None = None
    """The largest retransmission timeout, after backing off."""
    clock_granularity: LengthOfTime | None = None
    """The tick of the host's retransmission timer."""
    slow_start_segments_per_ack: Segments | None = None
    """The most segments that one ACK adds to the window in slow start (the L of RFC 3465)."""
    avoidance_counting: Literal["bytes", "acks"] | None = None
    """Growth in congestion avoidance: ``bytes`` adds a segment a round; ``acks`` adds mss*mss/cwnd
    for each ACK, which with delayed ACKs is half a segment a round."""
    limited_transmit: bool | None = None
    """A new segment on each of the first two duplicate ACKs (RFC 3042)."""
    rack_tlp: bool | None = None
    """Loss detection by time and tail loss probes (RFC 8985)."""
    prr: bool | None = None
    """Proportional rate reduction in recovery (RFC 6937)."""
    hystart: bool | None = None
    """HyStart++ (RFC 9406): leave slow start when the RTT grows."""


class _Flow(_Record):
    name: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    """The name in results, by default the kind and a number; numbered when ``count`` is above 1."""
    direction: DirectionName
    """Where the data go; acknowledgements go the other way."""
    start: Duration = "0 s"
    """When the first of these flows starts, from the start of the run."""
    count: Annotated[int, Field(ge=1, le=MOST_FLOWS)] = 1
    """How many flows like this one there are."""
    start_spacing: Duration = "0 s"
    """How long after each of these flows the next one starts."""

    @model_validator(mode="after")
    def _write_kind(self) -> Self:
        # The kind tells flows apart in a file, so it counts as written where Python implied it.
        self.model_fields_set.add("kind")
        return self


class Bulk(_Flow):
    """A TCP connection that sends as fast as it may, for a ``size`` or for a ``duration``."""

    kind: Literal["bulk"] = "bulk"
    """``bulk``."""
    size: SizeAboveZero | None = None
    """How many application bytes to send; excludes ``duration``."""
    duration: LengthOfTime | None = None
    """How long to send, from the start of the flow; excludes ``size``."""
    profile: ProfileName = "linux"
    """The host profile of both ends: ``bsd-1997`` or ``linux``."""
    tcp: Tcp = Field(default_factory=Tcp)
    """What differs from the profile, at both ends."""

    @model_validator(mode="after")
    def _one_amount(self) -> Self:
        if (self.size is None) == (self.duration is None):
            found = "neither size nor duration" if self.size is None else "both size and duration"
            reason = f"read {found}; a bulk flow has exactly one of them"
            raise PydanticCustomError("amount", "{reason}", {"reason": reason})
        return self


class ConstantRate(_Flow):
    """UDP datagrams of one size at even intervals."""

    kind: Literal["constant_rate"] = "constant_rate"
    """``constant_rate``."""
    rate: Rate
    """UDP payload bits per second, as ``iperf -b`` counts them."""
    payload: SizeAboveZero
    """Payload bytes of each datagram, at most 65507; the IP packet has 28 bytes more."""
    duration: LengthOfTime | None = None
    """How long to send, from the start of the flow; by default to the end of the run."""


Flow = Annotated[Bulk | ConstantRate, Discriminator("kind")]


class Scenario(_Record):
    """A link, the traffic on it, and how long to watch.

    Built directly, a wrong value raises ``pydantic.ValidationError``; `load` and `from_dict` raise
    `ScenarioError`, which names the file and line as well.
    """

    name: str = ""
    """What this scenario is about, for titles."""
    link: Link
    """The satellite hop."""
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
    framing="0 B",
    queue=Queue(discipline="drop_tail", limit="100 packets"),
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
    ),
    # Linux defaults: tcp_wmem and tcp_rmem caps of 4 MiB and 6 MiB, half of the first 128 KiB of
    # receive memory offered as window (tcp_adv_win_scale 1), IW 10 (RFC 6928), TCP_RTO_MIN 200 ms,
    # TCP_RTO_MAX 120 s, delayed ACKs after TCP_DELACK_MIN.
    "linux": Tcp(
        mss="1460 B",
        initial_window=10,
        congestion_control="cubic",
        sack=True,
        timestamps=True,
        window_scaling=True,
        send_buffer="4 MiB",
        receive_buffer="6 MiB",
        receive_buffer_initial="64 KiB",
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
    ),
}


def load(path: str | Path, *, settings: tuple[str, ...] = ()) -> Scenario:
    """Read a scenario file, with ``path=value`` settings laid over it.

    Raises:
        ScenarioError: naming file, line, field, what was read and what is allowed.
    """
    return _checked(with_settings(read_file(Path(path)), list(settings)))


def from_dict(data: Mapping[str, Any]) -> Scenario:
    """Build a scenario from plain data, as YAML or JSON would give them.

    Raises:
        ScenarioError: naming the field, what was read and what is allowed.
    """
    return _checked(Document(data=dict(data), source="scenario"))


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a scenario file, for editors and other programs."""
    schema = Scenario.model_json_schema(by_alias=True)
    for name, value in DEFAULT_DIRECTION.model_dump(mode="json", exclude_none=True).items():
        if name != "queue":
            schema["$defs"]["Direction"]["properties"][name]["default"] = value
    for name, value in DEFAULT_DIRECTION.model_dump(mode="json")["queue"].items():
        schema["$defs"]["Queue"]["properties"][name]["default"] = value
    for name in ("Bulk", "ConstantRate"):
        schema["$defs"][name]["required"].insert(0, "kind")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _checked(document: Document) -> Scenario:
    """Validate a document, and resolve it once so that its errors can point at lines."""
    from bentpipe._explain import problems_of

    try:
        scenario = Scenario.model_validate(document.data)
    except ValidationError as error:
        raise ScenarioError(*problems_of(error, document)) from None
    _plan_of(scenario, document)
    return scenario


def _plan_of(scenario: Scenario, document: Document) -> dict[str, Any]:
    # The resolver reads the classes and profiles of this module.
    from bentpipe._resolve import PlanningError, resolve

    try:
        return resolve(scenario)
    except PlanningError as error:
        problem: Problem = document.problem(error.path, error.message)
        raise ScenarioError(problem) from None
