"""The traffic of a scenario: hosts' TCP, and one record a kind of flow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal, Self

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    WithJsonSchema,
    model_validator,
)

from bentpipe import units
from bentpipe.scenario.link import MAX_TERMINALS, DirectionName
from bentpipe.scenario.record import (
    Count,
    Duration,
    PositiveDuration,
    PositiveSize,
    Rate,
    Record,
    Segments,
    known_kind,
    refusal,
)
from bentpipe.text import shown

# A run keeps a few kB of state a flow; ten thousand of them still fit any machine.
MAX_FLOWS: Final = 10_000
# 65,535 bytes of IP packet less 20 of IPv4 and 20 of TCP header.
LARGEST_MSS: Final = 65_495
# 65,535 bytes of IP packet less 20 of IPv4 and 8 of UDP header.
LARGEST_PAYLOAD: Final = 65_507

ProfileName = Literal["bsd-1997", "linux"]
CongestionControl = Literal["reno", "newreno", "cubic", "bbr", "hybla", "vegas", "westwood"]


def _terminal(value: object) -> object:
    numbered = isinstance(value, int) and not isinstance(value, bool)
    if value != "all" and not (numbered and 1 <= value <= MAX_TERMINALS):  # type: ignore[operator]
        raise refusal(
            f"read {shown(value)}; expected the number of a terminal, 1 to {MAX_TERMINALS}, "
            'or "all"'
        )
    return value


_terminal_schema = WithJsonSchema(
    {"anyOf": [{"type": "integer", "minimum": 1, "maximum": MAX_TERMINALS}, {"const": "all"}]}
)
Terminal = Annotated[int | Literal["all"], BeforeValidator(_terminal), _terminal_schema]


class Tcp(Record):
    """Settings of a TCP host, laid over those of its profile."""

    mss: PositiveSize | None = None
    """The MSS option, 88 to 65495 bytes; timestamps take 12 bytes of it from each segment."""
    initial_window: Segments | None = None
    """The first congestion window, in segments."""
    congestion_control: CongestionControl | None = None
    """``reno``, ``newreno``, ``cubic``, ``bbr`` (version 1, which paces), ``hybla``, ``vegas`` or
    ``westwood`` (Westwood+). ``bbr``, ``hybla`` and ``vegas`` have their own growth: ``hystart``
    does not apply to them, and to ``bbr`` neither do ``prr``, ``avoidance_counting`` and
    ``slow_start_segments_per_ack``."""
    sack: bool | None = None
    """Selective acknowledgements (RFC 2018, loss recovery by RFC 6675)."""
    timestamps: bool | None = None
    """The timestamps option (RFC 7323): 12 bytes in each segment, an RTT sample from each ACK."""
    window_scaling: bool | None = None
    """The window scale option (RFC 7323). Without it the window is at most 65,535 bytes, whatever
    the receive buffer."""
    send_buffer: PositiveSize | None = None
    """The maximum number of bytes that the sender holds unacknowledged."""
    receive_buffer: PositiveSize | None = None
    """The largest receive buffer: the window itself, or memory of which the window is a share; see
    ``receive_buffer_counts`` and ``window_scaling``."""
    receive_buffer_initial: PositiveSize | None = None
    """The receive buffer at first; the receiver tunes it up to ``receive_buffer`` as data arrive.
    When neither the profile nor the scenario gives it, it is ``receive_buffer`` at once."""
    receive_buffer_counts: Literal["window", "memory"] | None = None
    """What the sizes of the receive buffer count: ``window``, the bytes advertised, or ``memory``,
    as Linux's ``tcp_rmem``. Half of the memory is window at first; then as much as payload is of
    the memory that a segment takes: 1448 of 2304 bytes in a packet of 1500."""
    delayed_ack_segments: Segments | None = None
    """The receiver acknowledges at the latest every so many full segments; 1 acknowledges each."""
    delayed_ack_timeout: Duration | None = None
    """How long the receiver keeps back an acknowledgement."""
    quick_ack_segments: Segments | None = None
    """The first so many segments of a connection are acknowledged at once."""
    rto_initial: PositiveDuration | None = None
    """The retransmission timeout before the first RTT sample (RFC 6298)."""
    rto_min: PositiveDuration | None = None
    """The smallest retransmission timeout."""
    rto_min_bounds: Literal["timeout", "variance"] | None = None
    """What ``rto_min`` bounds: the whole ``timeout`` (RFC 6298), or its ``variance`` term alone, so
    that the timeout is at least the smoothed RTT and ``rto_min`` (Linux)."""
    rto_max: PositiveDuration | None = None
    """The largest retransmission timeout, after backing off."""
    clock_granularity: PositiveDuration | None = None
    """The tick of the host's retransmission timer."""
    slow_start_segments_per_ack: Segments | None = None
    """The limit of growth per ACK in slow start, in segments (the L of RFC 3465)."""
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
    """Leave slow start when the RTT grows: HyStart++ (RFC 9406), or Linux's HyStart with ``stack:
    linux``. With ``stack: linux`` the default is true for ``cubic`` only."""
    ecn: bool | None = None
    """Explicit congestion notification (RFC 3168), both ends: data are ECN-capable, so that a queue
    with ``ecn`` marks them instead of dropping them, and the sender reduces its window for a mark
    as for a loss. ``bbr`` does not react."""
    stack: Literal["rfc", "linux"] | None = None
    """Which rules apply where Linux differs from the RFCs: CUBIC's growth, HyStart, the window that
    a reduction starts from, what is sent in recovery, and when the retransmission timer
    restarts."""


class _Draw(Record):
    """A distribution that values are drawn from; exactly one of its fields is written."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1, "maxProperties": 1})

    @model_validator(mode="after")
    def _one_distribution(self) -> Self:
        names = tuple(type(self).model_fields)
        written = [name for name in names if getattr(self, name) is not None]
        if len(written) != 1:
            found = " and ".join(written) or "no distribution"
            raise refusal(f"read {found}; expected exactly one of: {', '.join(names)}")
        return self


class ParetoSize(Record):
    """Sizes with a heavy tail, from ``min`` to ``max`` (bounded Pareto distribution)."""

    min: PositiveSize
    """The smallest."""
    shape: Annotated[float, Field(ge=0.01, le=100, allow_inf_nan=False)]
    """How steep the tail is: without its end, ``x`` is passed with chance
    ``(min / x) ** shape``."""
    max: PositiveSize
    """The largest."""


class LognormalSize(Record):
    """Sizes whose logarithm is normal, up to ``max``."""

    median: PositiveSize
    """Half of them are smaller."""
    sigma: Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)]
    """The standard deviation of the natural logarithm."""
    max: PositiveSize
    """The largest: what is above counts as this."""


class SizeDraw(_Draw):
    """A size drawn anew for each exchange."""

    exponential: PositiveSize | None = None
    """Exponential, with this mean."""
    pareto: ParetoSize | None = None
    """Pareto."""
    lognormal: LognormalSize | None = None
    """Log-normal."""


class ParetoTime(Record):
    """Times with a heavy tail, from ``min`` to ``max`` (bounded Pareto distribution)."""

    min: PositiveDuration
    """The shortest."""
    shape: Annotated[float, Field(ge=0.01, le=100, allow_inf_nan=False)]
    """How steep the tail is: without its end, ``x`` is passed with chance
    ``(min / x) ** shape``."""
    max: PositiveDuration
    """The longest."""


class LognormalTime(Record):
    """Times whose logarithm is normal, up to ``max``."""

    median: PositiveDuration
    """Half of them are shorter."""
    sigma: Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)]
    """The standard deviation of the natural logarithm."""
    max: PositiveDuration
    """The longest: what is above counts as this."""


class TimeDraw(_Draw):
    """A time drawn anew for each exchange."""

    exponential: PositiveDuration | None = None
    """Exponential, with this mean."""
    pareto: ParetoTime | None = None
    """Pareto."""
    lognormal: LognormalTime | None = None
    """Log-normal."""


def _fixed_or_drawn(value: object) -> str:
    return "drawn" if isinstance(value, Mapping | Record) else "fixed"


SizeOrDraw = Annotated[
    Annotated[PositiveSize, Tag("fixed")] | Annotated[SizeDraw, Tag("drawn")],
    Discriminator(_fixed_or_drawn),
]
TimeOrDraw = Annotated[
    Annotated[Duration, Tag("fixed")] | Annotated[TimeDraw, Tag("drawn")],
    Discriminator(_fixed_or_drawn),
]


class _Entry(Record):
    """What all entries of ``traffic`` have."""

    name: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    """The name in results, by default the kind and a number. When the entry is several flows, each
    has its terminal, its number or its direction after the name."""
    start: Duration = units.duration("0 s")
    """When the first of these flows starts, from the start of the run."""
    priority: Annotated[int, Field(ge=0, le=255)] = 0
    """The class of its packets in a ``strict_priority`` queue; 0 is served first."""
    island_host: str | None = None
    """The host of ``hosts.island`` that it runs on: a name, ``random`` (drawn for each flow, by
    the seed), or ``in-turn``. By default one right at the terminal's gateway."""

    @model_validator(mode="after")
    def _write_kind(self) -> Self:
        # The kind tells flows apart in a file, so it counts as written where Python implied it.
        self.model_fields_set.add("kind")
        return self


class _Flow(_Entry):
    """What all kinds have that are flows between the hub and one terminal."""

    terminal: Terminal = 1
    """The terminal at its one end: a number from 1, or ``all`` for a copy at each."""
    count: Annotated[int, Field(ge=1, le=MAX_FLOWS)] = 1
    """How many flows like this one there are (at each terminal)."""
    start_spacing: Duration = units.duration("0 s")
    """How long after each of these flows the next one starts."""
    world_host: str | None = None
    """The host of ``hosts.world`` that it runs on: a name, ``random`` (drawn for each flow, by the
    seed), or ``in-turn``. By default one right at the hub's gateway."""


class _TcpFlow(_Flow):
    """What all kinds have that use TCP."""

    profile: ProfileName = "linux"
    """The host profile of both ends: ``bsd-1997`` or ``linux``."""
    tcp: Tcp = Field(default_factory=Tcp)
    """What differs from the profile, at both ends."""


class Bulk(_TcpFlow):
    """A TCP connection that sends as fast as it may, for a ``size`` or for a ``duration``."""

    kind: Literal["bulk"] = "bulk"
    """``bulk``."""
    direction: DirectionName
    """Where the data go; acknowledgements go the other way."""
    size: PositiveSize | None = None
    """How many application bytes to send; excludes ``duration``."""
    duration: PositiveDuration | None = None
    """How long to send, from the start of the flow; excludes ``size``."""

    @model_validator(mode="after")
    def _one_amount(self) -> Self:
        if (self.size is None) == (self.duration is None):
            found = "neither size nor duration" if self.size is None else "both size and duration"
            raise refusal(f"read {found}; a bulk flow has exactly one of them")
        return self


class ConstantRate(_Flow):
    """UDP datagrams of one size at even intervals."""

    kind: Literal["constant_rate"] = "constant_rate"
    """``constant_rate``."""
    direction: DirectionName | Literal["both"]
    """Where the datagrams go; ``both`` is a flow each way at once, as with ``iperf -d``."""
    rate: Rate
    """UDP payload bits per second, as ``iperf -b`` counts them."""
    payload: PositiveSize
    """Payload bytes of each datagram, at most 65507; the IP packet has 28 bytes more."""
    duration: PositiveDuration | None = None
    """How long to send, from the start of the flow; by default to the end of the run."""


class RequestResponse(_TcpFlow):
    """Requests and responses, one after the other, over one TCP connection."""

    kind: Literal["request_response"] = "request_response"
    """``request_response``."""
    direction: DirectionName
    """Where the responses go; requests go the other way."""
    request: PositiveSize
    """Application bytes of each request."""
    response: SizeOrDraw
    """Application bytes of each response: a size, or a distribution to draw it from."""
    think: TimeOrDraw = units.duration("0 s")
    """From the end of a response to the next request: a time, or a distribution to draw it from."""
    exchanges: Count | None = None
    """How many requests; by default as many as the run has time for."""


class Fetch(_TcpFlow):
    """Files fetched one after the other, each over a TCP connection of its own."""

    kind: Literal["fetch"] = "fetch"
    """``fetch``."""
    direction: DirectionName
    """Where the files go; requests go the other way."""
    # A GET with a handful of headers fits in one segment; the round figure is ours.
    request: PositiveSize = units.size("350 B")
    """Application bytes of each request."""
    size: SizeOrDraw
    """Application bytes of each file: a size, or a distribution to draw it from."""
    think: TimeOrDraw = units.duration("0 s")
    """From the end of a file to the next request: a time, or a distribution to draw it from."""
    files: Count | None = None
    """How many files; by default as many as the run has time for."""


class Conference(_Entry):
    """A conference over UDP by way of a reflector at the hub.

    Each participant sends to the reflector, and it sends each datagram on to all the others. The
    participants are at the terminals from number 1 on.
    """

    kind: Literal["conference"] = "conference"
    """``conference``."""
    participants: Annotated[int, Field(ge=2, le=MAX_FLOWS)]
    """How many take part, each at a terminal of its own."""
    rate: Rate
    """UDP payload bits per second that each participant sends."""
    payload: PositiveSize
    """Payload bytes of each datagram, at most 65507; the IP packet has 28 bytes more."""
    duration: PositiveDuration | None = None
    """How long it lasts; by default to the end of the run."""


FLOWS: Final[Mapping[str, type[_Entry]]] = {
    "bulk": Bulk,
    "constant_rate": ConstantRate,
    "request_response": RequestResponse,
    "fetch": Fetch,
    "conference": Conference,
}

Flow = Annotated[
    Bulk | ConstantRate | RequestResponse | Fetch | Conference,
    Discriminator("kind"),
    known_kind("kind", FLOWS),
]
