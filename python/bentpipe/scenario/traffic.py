"""The traffic of a scenario: hosts' TCP, and one record a kind of flow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, WithJsonSchema, model_validator

from bentpipe import units
from bentpipe.scenario.codecs import CodecName
from bentpipe.scenario.draws import (
    CountOrDraw,
    LognormalSize,
    SizeDraw,
    SizeOrDraw,
    TimeDraw,
    TimeOrDraw,
)
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

# The state of a flow takes a few kB; ten thousand flows fit any machine.
MAX_FLOWS: Final = 10_000
# 65,535 bytes of IP packet less 20 of IPv4 and 20 of TCP header.
MAX_MSS_BYTES: Final = 65_495
# 65,535 bytes of IP packet less 20 of IPv4 and 8 of UDP header.
MAX_PAYLOAD_BYTES: Final = 65_507

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
    """Settings of a TCP host, which override those of its profile."""

    mss: PositiveSize | None = None
    """The MSS option, 88 to 65495 bytes; timestamps take 12 bytes of each segment."""
    initial_window: Segments | None = None
    """The first congestion window, in segments."""
    congestion_control: CongestionControl | None = None
    """``reno``, ``newreno``, ``cubic``, ``bbr`` (version 1, which paces), ``hybla``, ``vegas`` or
    ``westwood`` (Westwood+). ``hystart`` does not apply to ``bbr``, ``hybla`` and
    ``vegas``; ``prr``, ``avoidance_counting`` and ``slow_start_segments_per_ack`` do not apply to
    ``bbr``."""
    sack: bool | None = None
    """Selective acknowledgements (RFC 2018, loss recovery by RFC 6675)."""
    timestamps: bool | None = None
    """The timestamps option (RFC 7323): 12 bytes in each segment, an RTT sample from each ACK."""
    window_scaling: bool | None = None
    """The window scale option (RFC 7323). Without it the window is at most 65,535 bytes,
    independent of the receive buffer."""
    send_buffer: PositiveSize | None = None
    """The maximum number of bytes that the sender holds unacknowledged."""
    receive_buffer: PositiveSize | None = None
    """The maximum receive buffer: the advertised window, or the memory that it is a share of; see
    ``receive_buffer_counts`` and ``window_scaling``."""
    receive_buffer_initial: PositiveSize | None = None
    """The initial receive buffer; auto-tuning increases it up to ``receive_buffer`` as data
    arrive. By default ``receive_buffer``, unless the profile has another."""
    receive_buffer_counts: Literal["window", "memory"] | None = None
    """What the sizes of the receive buffer count: ``window``, the bytes advertised, or ``memory``,
    as in Linux's ``tcp_rmem``. The window is half of the memory initially, and then the share that
    payload has of a segment's memory: 1448 of 2304 bytes in a packet of 1500."""
    delayed_ack_segments: Segments | None = None
    """The number of full segments after which the receiver sends an ACK; 1 disables delayed
    ACKs."""
    delayed_ack_timeout: Duration | None = None
    """The longest time by which the receiver delays an ACK."""
    quick_ack_segments: Segments | None = None
    """The number of segments at the start of a connection that are acknowledged without delay."""
    rto_initial: PositiveDuration | None = None
    """The retransmission timeout before the first RTT sample (RFC 6298)."""
    rto_min: PositiveDuration | None = None
    """The minimum retransmission timeout."""
    rto_min_bounds: Literal["timeout", "variance"] | None = None
    """What ``rto_min`` bounds: the whole ``timeout`` (RFC 6298), or only its ``variance`` term, so
    that the timeout is at least the smoothed RTT plus ``rto_min`` (Linux)."""
    rto_max: PositiveDuration | None = None
    """The maximum retransmission timeout, after exponential backoff."""
    clock_granularity: PositiveDuration | None = None
    """The tick of the host's retransmission timer."""
    slow_start_segments_per_ack: Segments | None = None
    """The limit of growth per ACK in slow start, in segments (the L of RFC 3465)."""
    avoidance_counting: Literal["bytes", "acks"] | None = None
    """Growth in congestion avoidance: ``bytes`` adds one segment per round trip; ``acks`` adds
    mss*mss/cwnd per ACK, which with delayed ACKs is half a segment per round trip."""
    limited_transmit: bool | None = None
    """Send a new segment on each of the first two duplicate ACKs (RFC 3042)."""
    rack_tlp: bool | None = None
    """RACK loss detection and tail loss probes (RFC 8985)."""
    prr: bool | None = None
    """Proportional rate reduction in recovery (RFC 6937)."""
    hystart: bool | None = None
    """Leave slow start when the RTT grows: HyStart++ (RFC 9406), or Linux's HyStart with ``stack:
    linux``. With ``stack: linux`` the default is true for ``cubic`` only."""
    ecn: bool | None = None
    """Explicit congestion notification (RFC 3168) at both ends: a queue with ``ecn`` marks data
    packets instead of dropping them, and the sender reduces its window for a mark as for a loss.
    ``bbr`` does not react to marks."""
    stack: Literal["rfc", "linux"] | None = None
    """Which rules apply where Linux differs from the RFCs: CUBIC's growth, HyStart, the window that
    a reduction starts from, what is sent in recovery, and when the retransmission timer
    restarts."""


def _version(value: object) -> object:
    """Return a version as text: YAML reads 1.1 and 2 as numbers."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return str(value) if is_number else value


def _versions(*allowed: str) -> WithJsonSchema:
    numbers = [float(each) if "." in each else int(each) for each in allowed if each != "none"]
    return WithJsonSchema({"enum": [*allowed, *numbers]})


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
    priority: Annotated[int, Field(ge=0, le=255)] = 0
    """The class of its packets in a ``strict_priority`` queue; 0 is served first."""
    island_host: str | None = None
    """The host of ``hosts.island`` that it runs on: a name, ``random`` (drawn for each flow, from
    the seed) or ``round-robin``. By default a host without delay at the terminal's gateway."""

    @model_validator(mode="after")
    def _write_kind(self) -> Self:
        # A file needs the kind, so a record made in Python writes it, too.
        self.model_fields_set.add("kind")
        return self


class _Flow(_Entry):
    """The fields of all flows between the hub and one terminal."""

    terminal: Terminal = 1
    """The terminal of the flow: a number from 1, or ``all`` for one flow at each."""
    count: Annotated[int, Field(ge=1, le=MAX_FLOWS)] = 1
    """The number of flows (at each terminal)."""
    start_spacing: Duration = units.duration("0 s")
    """The time between the starts of these flows."""
    world_host: str | None = None
    """The host of ``hosts.world`` that it runs on: a name, ``random`` (drawn for each flow, from
    the seed) or ``round-robin``. By default a host without delay at the hub's gateway."""


class _TcpFlow(_Flow):
    """The fields of all flows over TCP."""

    profile: ProfileName = "linux"
    """The host profile of both ends: ``bsd-1997`` or ``linux``."""
    tcp: Tcp = Field(default_factory=Tcp)
    """Settings that override the profile, at both ends."""


class Bulk(_TcpFlow):
    """A TCP connection that always has data to send, for a ``size`` or for a ``duration``."""

    kind: Literal["bulk"] = "bulk"
    """``bulk``."""
    direction: DirectionName
    """The direction of the data; ACKs take the other one."""
    size: PositiveSize | None = None
    """The application bytes to send; excludes ``duration``."""
    duration: PositiveDuration | None = None
    """How long to send, from the start of the flow; excludes ``size``."""

    @model_validator(mode="after")
    def _check_amount(self) -> Self:
        if (self.size is None) == (self.duration is None):
            found = "neither size nor duration" if self.size is None else "both size and duration"
            raise refusal(f"read {found}; a bulk flow has exactly one of them")
        return self


class ConstantRate(_Flow):
    """UDP datagrams of one size at equal intervals."""

    kind: Literal["constant_rate"] = "constant_rate"
    """``constant_rate``."""
    direction: DirectionName | Literal["both"]
    """The direction of the datagrams; ``both`` is one flow in each, as with ``iperf -d``."""
    rate: Rate
    """UDP payload bits per second, as ``iperf -b`` counts them."""
    payload: PositiveSize
    """The payload of each datagram, at most 65507 bytes; the IP packet has 28 bytes more."""
    duration: PositiveDuration | None = None
    """How long to send, from the start of the flow; by default to the end of the run."""


class Voice(_Flow):
    """A telephone call: RTP over UDP in packets of 20 ms."""

    kind: Literal["voice"] = "voice"
    """``voice``."""
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
    """``request_response``."""
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
    """``fetch``."""
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
    """``video``."""
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
    """``web_page``."""
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
    """The number of objects beside the document: a number, or a distribution."""
    document: SizeOrDraw = SizeDraw(
        lognormal=LognormalSize(median="18432 B", sigma=1.37, max="2 MB")
    )
    """The size of the HTML document, in application bytes: a size, or a distribution."""
    object: SizeOrDraw = SizeDraw(lognormal=LognormalSize(median="3100 B", sigma=2.36, max="2 MB"))
    """The size of each object, in application bytes: a size, or a distribution."""
    # A GET of a browser with its header fields fits in one segment; the round figure is ours.
    request: PositiveSize = units.size("400 B")
    """The size of each request, in application bytes."""
    http: Annotated[Literal["1.1", "2"], BeforeValidator(_version), _versions("1.1", "2")] = "2"
    """The version of HTTP: ``1.1`` uses parallel connections with one request at a time each,
    ``2`` one connection with all requests at once."""
    connections: Annotated[int, Field(ge=1, le=256)] = 6
    """The largest number of parallel connections with HTTP/1.1; browsers use 6."""
    tls: Annotated[
        Literal["1.3", "1.2", "none"], BeforeValidator(_version), _versions("1.3", "1.2", "none")
    ] = "1.3"
    """The version of TLS, whose handshake takes one round trip (1.3) or two (1.2), or ``none``."""
    dns: bool = True
    """Whether each page begins with a DNS lookup, by UDP to a resolver beyond the link."""


class Conference(_Entry):
    """A conference over UDP with a reflector at the hub.

    The reflector sends each datagram of a participant to all others. The participants are at the
    terminals from number 1 on.
    """

    kind: Literal["conference"] = "conference"
    """``conference``."""
    participants: Annotated[int, Field(ge=2, le=MAX_FLOWS)]
    """The number of participants, each at its own terminal."""
    rate: Rate
    """UDP payload bits per second that each participant sends."""
    payload: PositiveSize
    """The payload of each datagram, at most 65507 bytes; the IP packet has 28 bytes more."""
    duration: PositiveDuration | None = None
    """The duration of the conference; by default to the end of the run."""


FLOWS: Final[Mapping[str, type[_Entry]]] = {
    "bulk": Bulk,
    "constant_rate": ConstantRate,
    "voice": Voice,
    "request_response": RequestResponse,
    "fetch": Fetch,
    "video": Video,
    "web_page": WebPage,
    "conference": Conference,
}

Flow = Annotated[
    Bulk | ConstantRate | Voice | RequestResponse | Fetch | Video | WebPage | Conference,
    Discriminator("kind"),
    known_kind("kind", FLOWS),
]
