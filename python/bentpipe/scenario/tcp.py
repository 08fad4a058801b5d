"""The settings of TCP hosts, and those of host profiles (`profiles.toml`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal, get_args

from pydantic import Field

from bentpipe import units
from bentpipe.scenario.record import (
    Duration,
    ListOf,
    Number,
    PositiveDuration,
    PositiveSize,
    Rate,
    Record,
    Segments,
)
from bentpipe.scenario.tables import read_table

# 65,535 bytes of IP packet less 20 of IPv4 and 20 of TCP header.
MAX_MSS_BYTES: Final = 65_495

ProfileName = Literal["bsd-1997", "linux"]
CongestionControl = Literal["reno", "newreno", "cubic", "bbr", "hybla", "vegas", "westwood"]


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
    slow_start_segments_per_ack: Number | None = None
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


_SETTINGS: Final = read_table("profiles")
# Host profiles: named sets of settings.
PROFILES: Final[Mapping[ProfileName, Tcp]] = {
    name: Tcp(**_SETTINGS[name]) for name in get_args(ProfileName)
}


# --- hosts at some distance -----------------------------------------------------------------------


MAX_HOSTS: Final = 10_000
# Of an entry of channels.
MAX_SERVERS: Final = 1_000

Side = Literal["world", "island"]
# The choices that a flow can write instead of a name.
RANDOM: Final = "random"
ROUND_ROBIN: Final = "round-robin"


class Host(Record):
    """A host at some distance from its gateway."""

    name: Annotated[str, Field(min_length=1, max_length=100)]
    """The name that flows refer to."""
    delay: Duration = units.duration("0 ms")
    """One-way delay between it and the gateway: half of the round trip."""
    jitter: Duration = units.duration("0 ms")
    """The largest additional delay of a packet, each way; drawn for each packet, uniformly from
    zero. Packets are not reordered."""
    rate: Rate | None = None
    """The rate of its line, in IP bits per second; without one, sending takes no time."""


_Hosts = Annotated[ListOf[Host], Field(max_length=MAX_HOSTS)]


class Hosts(Record):
    """Hosts with a delay of their own. Flows that name none run at the gateway, without delay."""

    world: _Hosts = ()
    """Hosts behind the hub, such as servers on the Internet."""
    island: _Hosts = ()
    """Hosts behind each terminal."""
