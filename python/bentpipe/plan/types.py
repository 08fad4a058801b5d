"""The types of a plan, which `crates/sim/src/plan` reads as JSON and describes field by field.

Times are in nanoseconds, sizes in bytes and rates in bit/s.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, TypedDict

from bentpipe.plan.queue_types import QueuePlan
from bentpipe.plan.tunnel_types import TunnelPlan
from bentpipe.scenario.framings import FramingPlan

DirectionName: TypeAlias = Literal["forward", "return"]


class Constant(TypedDict):
    """One value."""

    kind: Literal["constant"]
    value: int


class Steps(TypedDict):
    """Pairs of a time and the value from then on; the first time is 0."""

    kind: Literal["steps"]
    steps: list[list[int]]


Series: TypeAlias = Constant | Steps


class Clear(TypedDict):
    """A channel without errors."""

    kind: Literal["clear"]


class BitErrors(TypedDict):
    """Independent bit errors."""

    kind: Literal["bit_errors"]
    bit_error_rate: float


class ChannelStatePlan(TypedDict):
    """One state of a Gilbert-Elliott channel."""

    bit_error_rate: float
    loss_rate: float
    mean_duration_ns: int


class GilbertElliottPlan(TypedDict):
    """A channel with a good and a bad state."""

    kind: Literal["gilbert_elliott"]
    good: ChannelStatePlan
    bad: ChannelStatePlan


class ErrorStep(TypedDict):
    """The errors from a time on."""

    at_ns: int
    bit_error_rate: float
    loss_rate: float


class ErrorSeries(TypedDict):
    """Errors over time."""

    kind: Literal["error_series"]
    steps: list[ErrorStep]


ChannelPlan: TypeAlias = Clear | BitErrors | GilbertElliottPlan | ErrorSeries


class BranchPlan(TypedDict):
    """The path from a direction to one gateway."""

    gateway: int
    delay_ns: int
    channel: ChannelPlan


class WirePlan(TypedDict):
    """A direction without its ends."""

    rate_bps: Series
    delay_ns: Series
    jitter_ns: int
    framing: FramingPlan
    queue: QueuePlan
    channel: ChannelPlan


# "from" is a keyword, which the class syntax does not allow.
_Ends = TypedDict("_Ends", {"name": str, "from": int, "to": list[BranchPlan]})


class DirectionPlan(_Ends, WirePlan):
    """One direction of the link, from a gateway to others."""


class AggregatorPlan(TypedDict):
    """A packet aggregator."""

    kind: Literal["aggregator"]
    frame_size_bytes: int
    packet_size_bytes: int
    hold_time_ns: int
    classes: list[int] | None


class ProcessorPlan(TypedDict):
    """A packet processor."""

    kind: Literal["processor"]
    packets_per_second: int
    per_byte_ns: int
    buffer_packets: int


class PepPlan(TypedDict):
    """A PEP: the TCP of its legs, and the relay between them."""

    kind: Literal["pep"]
    lan_tcp: TcpPlan
    link_tcp: TcpPlan
    notsent_lowat_bytes: int | None
    buffer_bytes: int
    connections: int
    early_accept: bool


FunctionPlan: TypeAlias = AggregatorPlan | PepPlan | ProcessorPlan | TunnelPlan


class GatewayPlan(TypedDict):
    """A gateway and its functions, from the hosts to the link."""

    name: str
    functions: list[FunctionPlan]


class HostPlan(TypedDict):
    """A host at some distance from its gateway."""

    name: str
    gateway: int
    delay_ns: int
    jitter_ns: int
    rate_bps: int | None


class RandomHost(TypedDict):
    """A host drawn at random for each flow."""

    kind: Literal["random"]


class NamedHost(TypedDict):
    """The host with this index."""

    kind: Literal["named"]
    host: int


HostChoice: TypeAlias = RandomHost | NamedHost


class TcpPlan(TypedDict):
    """A TCP host."""

    mss_bytes: int
    initial_window_segments: int
    congestion_control: str
    sack: bool
    timestamps: bool
    window_scaling: bool
    send_buffer_bytes: int
    receive_buffer_bytes: int
    receive_buffer_initial_bytes: int
    receive_buffer_counts: Literal["window", "memory"]
    delayed_ack_segments: int
    delayed_ack_timeout_ns: int
    quick_ack_segments: int
    rto_initial_ns: int
    rto_min_ns: int
    rto_min_bounds: Literal["timeout", "variance"]
    rto_max_ns: int
    clock_granularity_ns: int
    slow_start_segments_per_ack: int
    avoidance_counting: Literal["bytes", "acks"]
    limited_transmit: bool
    rack_tlp: bool
    prr: bool
    hystart: bool
    ecn: bool
    stack: Literal["rfc", "linux"]


class Amount(TypedDict):
    """How much a bulk flow sends."""

    unit: Literal["bytes", "duration_ns"]
    value: int


class BulkPlan(TypedDict):
    """A TCP connection that sends as fast as it can."""

    kind: Literal["bulk"]
    amount: Amount
    sender: TcpPlan
    receiver: TcpPlan


class DatagramsPlan(TypedDict):
    """UDP datagrams at even intervals."""

    rate_bps: int
    payload_bytes: int
    duration_ns: int


class ConstantRatePlan(DatagramsPlan):
    """UDP datagrams from one end to the other."""

    kind: Literal["constant_rate"]


class TalkSpurtsPlan(TypedDict):
    """The mean durations of talk spurts and pauses."""

    talk_ns: int
    pause_ns: int


class VoicePlan(DatagramsPlan):
    """One direction of a call."""

    kind: Literal["voice"]
    codec: str
    jitter_buffer_ns: int
    talk_spurts: TalkSpurtsPlan | None


class ConferencePlan(DatagramsPlan):
    """One participant of a conference."""

    kind: Literal["conference"]
    conference: int


class Exponential(TypedDict):
    """An exponential distribution."""

    kind: Literal["exponential"]
    mean: int


class Pareto(TypedDict):
    """A bounded Pareto distribution."""

    kind: Literal["pareto"]
    min: int
    shape: float
    max: int


class Lognormal(TypedDict):
    """A log-normal distribution with an upper bound."""

    kind: Literal["lognormal"]
    median: int
    sigma: float
    max: int


DrawPlan: TypeAlias = Constant | Exponential | Pareto | Lognormal


class RequestResponsePlan(TypedDict):
    """Requests and responses; without ``keep_connection`` each has a connection of its own."""

    kind: Literal["request_response"]
    request_bytes: int
    response_bytes: DrawPlan
    think_ns: DrawPlan
    exchanges: int | None
    keep_connection: bool
    server: TcpPlan
    client: TcpPlan


class MediaPlan(TypedDict):
    """Media in segments, and the buffer that it is played from."""

    rate_bps: int
    duration_ns: int
    segment_ns: int
    buffer_ns: int
    start_up_ns: int


class VideoPlan(TypedDict):
    """A video: segments that are requested as the player has room for them."""

    kind: Literal["video"]
    media: MediaPlan
    request_bytes: int
    server: TcpPlan
    client: TcpPlan


class WebPagePlan(TypedDict):
    """A user who loads web pages; ``pages`` is None for no limit."""

    kind: Literal["web_page"]
    pages: int | None
    think_ns: DrawPlan
    objects: DrawPlan
    document_bytes: DrawPlan
    object_bytes: DrawPlan
    request_bytes: int
    http: Literal["1.1", "2"]
    connections: int
    tls: Literal["1.2", "1.3"] | None
    dns: bool
    server: TcpPlan
    client: TcpPlan


class DownloadChannelPlan(TypedDict):
    """Downloads over one connection after another, each from one of the servers.

    ``sizes`` has pairs of a size in bytes and its weight; ``connections`` is None for no limit.
    """

    kind: Literal["channel"]
    servers: list[int]
    sizes: list[list[int]]
    connections: int | None
    server_jitter_ns: int
    client_jitter_ns: int
    server: TcpPlan
    client: TcpPlan


WorkloadPlan: TypeAlias = (
    BulkPlan
    | ConstantRatePlan
    | VoicePlan
    | RequestResponsePlan
    | VideoPlan
    | WebPagePlan
    | DownloadChannelPlan
    | ConferencePlan
)


class FlowPlan(TypedDict):
    """One flow; ``terminal`` counts from 0."""

    name: str
    terminal: int
    direction: DirectionName
    start_ns: int
    start_jitter_ns: int
    world_host: HostChoice | None
    island_host: HostChoice | None
    priority: int
    splittable: bool
    workload: WorkloadPlan
