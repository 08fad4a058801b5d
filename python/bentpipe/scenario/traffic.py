"""The traffic of a scenario: one record a kind of flow."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Final, Generic, Literal, TypeVar, get_args

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, WithJsonSchema

from bentpipe import units
from bentpipe.scenario.link import MAX_TERMINALS, DirectionName, FileName
from bentpipe.scenario.record import (
    ByForm,
    Count,
    Draw,
    Duration,
    NonEmptyListOf,
    PositiveDuration,
    PositiveSize,
    QueueClass,
    Rate,
    Record,
    known_kind,
    refusal,
)
from bentpipe.scenario.tables import CodecName, read_table
from bentpipe.scenario.tcp import MAX_SERVERS, Host, ProfileName, Tcp
from bentpipe.text import shown
from bentpipe.units import value_of

# The state of a flow takes a few kB; ten thousand flows fit any machine.
MAX_FLOWS: Final = 10_000
# More than any page has; a client keeps the state of every request.
MAX_OBJECTS: Final = 10_000
# 65,535 bytes of IP packet less 20 of IPv4 and 8 of UDP header.
MAX_PAYLOAD_BYTES: Final = 65_507


MAX_SIZES: Final = 10_000
# What a plan may hold (crates/sim/src/plan).
_LARGEST_BYTES: Final = 2**50
# The defaults of channels; `docs/model/channels.md` has the sources.
_TABLE: Final = read_table("channels")
DEFAULT_SERVERS: Final = tuple(
    Host(name=f"server-{number}", delay=f"{round_trip_ms / 2:g} ms")
    for number, round_trip_ms in enumerate(_TABLE["servers"]["round_trips_ms"], 1)
)


def _check_size(size: str) -> str:
    if value_of(size) > _LARGEST_BYTES:
        raise refusal(f'read "{size}"; must be at most 2^50 bytes')
    return size


class SizeWeight(Record):
    """A size, and how often it occurs."""

    size: Annotated[PositiveSize, AfterValidator(_check_size)]
    """The size, in application bytes."""
    weight: Annotated[float, Field(gt=0, le=1e12, allow_inf_nan=False)]
    """The weight: a size occurs with its weight over the sum of all weights."""


class SizeFile(Record):
    """A table of sizes in a CSV file."""

    csv: FileName
    """The file, relative to the scenario: a header ``size,weight``, and a row for each size. A size
    is a number of bytes or has a unit."""


Sizes = Annotated[
    Annotated[NonEmptyListOf[SizeWeight], Field(max_length=MAX_SIZES)] | SizeFile, ByForm()
]

DEFAULT_SIZES: Final = tuple(
    SizeWeight(size=f"{size} B", weight=weight) for size, weight in _TABLE["sizes"]["weights"]
)


Servers = Annotated[
    Literal["world"] | Annotated[NonEmptyListOf[Host], Field(max_length=MAX_SERVERS)],
    ByForm("list"),
]


Terminals = Literal["all", "spread"]


def _terminal(value: object) -> object:
    numbered = isinstance(value, int) and not isinstance(value, bool)
    is_word = value in get_args(Terminals)
    if not is_word and not (numbered and 1 <= value <= MAX_TERMINALS):  # type: ignore[operator]
        raise refusal(
            f"read {shown(value)}; expected the number of a terminal, 1 to {MAX_TERMINALS}, "
            'or "all" or "spread"'
        )
    return value


_terminal_schema = WithJsonSchema(
    {
        "anyOf": [
            {"type": "integer", "minimum": 1, "maximum": MAX_TERMINALS},
            {"enum": [*get_args(Terminals)]},
        ]
    }
)
Terminal = Annotated[int | Terminals, BeforeValidator(_terminal), _terminal_schema]


def _versions(*allowed: str) -> tuple[BeforeValidator, WithJsonSchema]:
    """Return the validator and the schema of a version: YAML reads 1.1 and 2 as numbers."""

    def read(value: object) -> object:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return f"{value:g}" if is_number else value

    numbers = [json.loads(version) for version in allowed if version != "none"]
    return BeforeValidator(read), WithJsonSchema({"enum": [*allowed, *numbers]})


T = TypeVar("T")


class _Pareto(Record, Generic[T]):
    min: T
    """The minimum."""
    shape: Annotated[float, Field(ge=0.01, le=100, allow_inf_nan=False)]
    """The shape parameter: without the upper bound, P(X > x) = ``(min / x) ** shape``."""
    max: T
    """The maximum."""


class _Lognormal(Record, Generic[T]):
    median: T
    """The median."""
    sigma: Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)]
    """The standard deviation of the natural logarithm."""
    max: T
    """The maximum; a larger draw becomes this value."""


class ParetoSize(_Pareto[PositiveSize]):
    """Sizes with a heavy tail, from ``min`` to ``max`` (bounded Pareto distribution)."""


class ParetoTime(_Pareto[PositiveDuration]):
    """Times with a heavy tail, from ``min`` to ``max`` (bounded Pareto distribution)."""


class ParetoCount(_Pareto[Count]):
    """Counts with a heavy tail, from ``min`` to ``max`` (bounded Pareto distribution)."""


class LognormalSize(_Lognormal[PositiveSize]):
    """Sizes whose logarithm is normal, up to ``max``."""


class LognormalTime(_Lognormal[PositiveDuration]):
    """Times whose logarithm is normal, up to ``max``."""


class LognormalCount(_Lognormal[Count]):
    """Counts whose logarithm is normal, up to ``max``."""


class SizeDraw(Draw[PositiveSize, ParetoSize, LognormalSize]):
    """A size that is drawn for each exchange."""


class TimeDraw(Draw[PositiveDuration, ParetoTime, LognormalTime]):
    """A time that is drawn for each exchange."""


class CountDraw(Draw[Count, ParetoCount, LognormalCount]):
    """A count that is drawn for each page, rounded to an integer."""


SizeOrDraw = Annotated[PositiveSize | SizeDraw, ByForm()]
TimeOrDraw = Annotated[Duration | TimeDraw, ByForm()]
CountOrDraw = Annotated[Annotated[int, Field(ge=0, le=MAX_OBJECTS)] | CountDraw, ByForm()]


class _Entry(Record):
    """The fields of all entries of ``traffic``."""

    name: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    """The name in results, by default the kind and a number. If the entry describes several flows,
    the terminal, number or direction of each is appended."""
    start: Duration = units.duration("0 s")
    """When the first of these flows starts, from the start of the run."""
    start_jitter: Duration | None = None
    """The largest additional delay of each flow's start, drawn uniformly from zero, from the seed.
    Several flows of datagrams have by default the interval between two datagrams, so that they are
    not in phase, unless ``start_spacing`` is written; others have none. ``0 s`` starts them in
    phase."""
    priority: QueueClass = 0
    """The class of its packets: in a ``strict_priority`` queue 0 is served first, and in a
    ``shared_rate`` queue it is the number of the class."""
    island_host: str | None = None
    """The host of ``hosts.island`` that it runs on: a name, ``random`` (drawn for each flow, from
    the seed) or ``round-robin``. By default a host without delay at the terminal's gateway."""


class SharedFields(_Entry):
    """The fields of all flows between the hub and one terminal."""

    terminal: Terminal = 1
    """The terminal of the flow: a number from 1, ``all`` for one flow at each, or ``spread`` for
    ``count`` flows that are distributed over all: the first at terminal 1, the next at 2."""
    count: Annotated[int, Field(ge=1, le=MAX_FLOWS)] = 1
    """The number of flows (with ``terminal: all`` at each terminal)."""
    start_spacing: Duration = units.duration("0 s")
    """The time between the starts of these flows."""
    world_host: str | None = None
    """The host of ``hosts.world`` that it runs on: a name, ``random`` (drawn for each flow, from
    the seed) or ``round-robin``. By default a host without delay at the hub's gateway."""


class TcpEnds(Record):
    """The TCP of both ends of a flow."""

    profile: ProfileName = "linux"
    """The host profile of both ends: ``bsd-1997`` or ``linux``."""
    tcp: Tcp = Field(default_factory=Tcp)
    """Settings that override the profile, at both ends."""
    splittable: bool = True
    """Whether a PEP can split its connections. ``false`` stands for QUIC, or TCP inside a VPN,
    which pass a PEP unchanged; the congestion control is the same."""


class _TcpFlow(TcpEnds, SharedFields):
    """The fields of all flows over TCP between the hub and one terminal."""


class Bulk(_TcpFlow):
    """A TCP connection that always has data to send, for a ``size`` or for a ``duration``."""

    kind: Literal["bulk"] = "bulk"
    direction: DirectionName
    """The direction of the data; ACKs take the other one."""
    size: PositiveSize | None = None
    """The application bytes to send; excludes ``duration``."""
    duration: PositiveDuration | None = None
    """How long to send, from the start of the flow; excludes ``size``."""

    def _contradictions(self) -> Iterator[str]:
        if (self.size is None) == (self.duration is None):
            given = "neither size nor duration" if self.size is None else "both size and duration"
            yield f"read {given}; a bulk flow has exactly one of them"


class ConstantRate(SharedFields):
    """UDP datagrams of one size at equal intervals."""

    kind: Literal["constant_rate"] = "constant_rate"
    direction: DirectionName | Literal["both"]
    """The direction of the datagrams; ``both`` is one flow in each, as with ``iperf -d``."""
    rate: Rate
    """UDP payload bits per second, as ``iperf -b`` counts them."""
    payload: PositiveSize
    """The payload of each datagram, at most 65507 bytes; the IP packet has 28 bytes more."""
    duration: PositiveDuration | None = None
    """How long to send, from the start of the flow; by default to the end of the run."""


class Voice(SharedFields):
    """A telephone call: RTP over UDP in packets of 20 ms."""

    kind: Literal["voice"] = "voice"
    direction: DirectionName | Literal["both"] = "both"
    """The direction of speech; ``both`` is one flow in each."""
    codec: CodecName = "g711"
    """The codec: ``g711`` (200 bytes of IP packet), ``g729`` (60 bytes) or ``opus`` (32 kbit/s, 120
    bytes)."""
    jitter_buffer: Duration = units.duration("60 ms")
    """How long the receiver's jitter buffer delays the first packet. A packet that is delayed by
    more than this in addition arrives too late and is not played."""
    silence_suppression: bool = False
    """Send in talk spurts only: 1.004 s on average, with pauses of 1.587 s (ITU-T P.59)."""
    duration: PositiveDuration | None = None
    """How long the call is, from its start; by default to the end of the run."""


class RequestResponse(_TcpFlow):
    """Requests and responses over one TCP connection, one exchange at a time."""

    kind: Literal["request_response"] = "request_response"
    direction: DirectionName
    """The direction of the responses; requests take the other one."""
    request: PositiveSize
    """The size of each request, in application bytes."""
    response: SizeOrDraw
    """The size of each response, in application bytes: a size, or a distribution."""
    think: TimeOrDraw = units.duration("0 s")
    """The time from the end of a response to the next request: a time, or a distribution."""
    exchanges: Count | None = None
    """The number of requests; by default as many as the run has time for."""


class Fetch(_TcpFlow):
    """Files that are fetched one after the other, each over its own TCP connection."""

    kind: Literal["fetch"] = "fetch"
    direction: DirectionName
    """The direction of the files; requests take the other one."""
    # A GET with a handful of headers fits in one segment; the round figure is ours.
    request: PositiveSize = units.size("350 B")
    """The size of each request, in application bytes."""
    size: SizeOrDraw
    """The size of each file, in application bytes: a size, or a distribution."""
    think: TimeOrDraw = units.duration("0 s")
    """The time from the end of a file to the next request: a time, or a distribution."""
    files: Count | None = None
    """The number of files; by default as many as the run has time for."""


class Video(_TcpFlow):
    """A video of constant bit rate: fetched in segments, each by a request, and played.

    Playing starts with ``start_up`` of media in the buffer. It stalls when the buffer is empty.
    """

    kind: Literal["video"] = "video"
    direction: DirectionName
    """The direction of the media; requests take the other one."""
    rate: Rate
    """Bits per second of media."""
    duration: PositiveDuration | None = None
    """The duration of the media; by default the time from its start to the end of the run."""
    # RFC 8216 leaves the duration to the server; packagers of DASH use 2 s to 6 s.
    segment: PositiveDuration = units.duration("4 s")
    """The media in a segment, which is played once it has arrived as a whole."""
    buffer: PositiveDuration = units.duration("30 s")
    """The most media that the player holds: it requests a segment when there is room for it."""
    start_up: PositiveDuration = units.duration("4 s")
    """The media in the buffer at which playing starts, and resumes after a stall."""


class WebPage(_TcpFlow):
    """A user who loads web pages: DNS, TCP, TLS, the document, and then its objects."""

    kind: Literal["web_page"] = "web_page"
    direction: DirectionName
    """The direction of the pages; requests take the other one."""
    pages: Count | None = 1
    """The number of pages; ``null`` for as many as the run has time for."""
    think: TimeOrDraw = TimeDraw(exponential="15 s")
    """The time from the end of a page to the next click: a time, or a distribution."""
    # The desktop page of the Web Almanac 2024, chapter "Page Weight" (HTTP Archive, October 2024):
    # medians of 71 requests, 2,652 kB and 18 kB of HTML, with 1,024 bytes in a kB. Here the mean of
    # an object is (2,652 - 18) kB / 70. The spread is that of the web model of 3GPP2 (EURASIP JWCN
    # 2012:287, table 1): main objects with mean 10,710 and deviation 25,032 bytes have sigma 1.37,
    # embedded objects with 7,758 and 126,168 have 2.36; both end at 2 MB.
    objects: CountOrDraw = 70
    """The number of objects beside the document, at most 10000: a number, or a distribution."""
    document: SizeOrDraw = SizeDraw(
        lognormal=LognormalSize(median="18432 B", sigma=1.37, max="2 MB")
    )
    """The size of the HTML document, in application bytes: a size, or a distribution."""
    object: SizeOrDraw = SizeDraw(lognormal=LognormalSize(median="3100 B", sigma=2.36, max="2 MB"))
    """The size of each object, in application bytes: a size, or a distribution."""
    # A GET of a browser with its header fields fits in one segment; the round figure is ours.
    request: PositiveSize = units.size("400 B")
    """The size of each request, in application bytes."""
    http: Annotated[Literal["1.1", "2"], *_versions("1.1", "2")] = "2"
    """The version of HTTP: ``1.1`` uses parallel connections with one request at a time each,
    ``2`` one connection with all requests at once."""
    connections: Annotated[int, Field(ge=1, le=256)] = 6
    """The largest number of parallel connections with HTTP/1.1; browsers use 6."""
    tls: Annotated[Literal["1.3", "1.2", "none"], *_versions("1.3", "1.2", "none")] = "1.3"
    """The version of TLS, whose handshake takes one round trip (1.3) or two (1.2), or ``none``."""
    dns: bool = True
    """Whether each page begins with a DNS lookup, by UDP to a resolver beyond the link."""


class Channels(TcpEnds, _Entry):
    """Clients that open one TCP connection after another, each to a server drawn at random.

    The server sends a download as soon as it has accepted the connection, without a request, and
    closes. The client then opens the next connection, without think time. Each channel is one flow.
    """

    kind: Literal["channels"] = "channels"
    channels: Annotated[int, Field(ge=1, le=MAX_FLOWS)]
    """The number of channels (with ``terminal: all`` at each terminal)."""
    terminal: Terminal = 1
    """The terminal of the clients: a number from 1, ``all``, or ``spread``."""
    start_jitter: Duration = units.duration("5 s")
    """The window of the starts: each channel starts after a time drawn uniformly from zero to
    this."""
    servers: Servers = DEFAULT_SERVERS
    """The servers, one of which is drawn for each connection: a list of hosts behind the hub, or
    ``world`` for those of ``hosts.world``."""
    sizes: Sizes = DEFAULT_SIZES
    """The sizes of downloads: a list of sizes with weights, or a CSV file."""
    connections: Count | None = None
    """The number of connections of each channel; by default as many as the run has time for."""
    # In traces of the Auckland simulator the median gap between flows of a channel is 3 ms.
    client_jitter: Duration = units.duration("6 ms")
    """The longest time from the end of a connection to the start of the next, drawn uniformly from
    zero."""
    # Assumed to be that of clients.
    server_jitter: Duration = units.duration("6 ms")
    """The longest time from the acceptance of a connection to the first byte that the server
    writes, drawn uniformly from zero."""

    direction: ClassVar[DirectionName] = "forward"
    world_host: ClassVar[None] = None

    @property
    def count(self) -> int:
        """The number of channels (with ``terminal: all`` at each terminal)."""
        return self.channels


class Conference(_Entry):
    """A conference over UDP with a reflector at the hub.

    The reflector sends each datagram of a participant to all others. The participants are at the
    terminals from number 1 on.
    """

    kind: Literal["conference"] = "conference"
    participants: Annotated[int, Field(ge=2, le=MAX_FLOWS)]
    """The number of participants, each at its own terminal."""
    rate: Rate
    """UDP payload bits per second that each participant sends."""
    payload: PositiveSize
    """The payload of each datagram, at most 65507 bytes; the IP packet has 28 bytes more."""
    duration: PositiveDuration | None = None
    """The duration of the conference; by default to the end of the run."""

    world_host: ClassVar[None] = None


_Flow = (
    Bulk | ConstantRate | Voice | RequestResponse | Fetch | Video | WebPage | Channels | Conference
)
FLOWS: Final[Mapping[str, type[_Entry]]] = {
    flow.model_fields["kind"].default: flow for flow in get_args(_Flow)
}

Flow = Annotated[_Flow, Discriminator("kind"), known_kind("kind", FLOWS)]
