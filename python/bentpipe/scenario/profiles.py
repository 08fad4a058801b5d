"""Host profiles: named sets of TCP settings, each with the source of its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bentpipe.scenario.tcp import ProfileName, Tcp

PROFILES: Final[Mapping[ProfileName, Tcp]] = {
    # A 4.4BSD host: 500 ms timer ticks, delayed ACKs every 200 ms, RFC 2581's L = 1, and growth of
    # mss*mss/cwnd for each ACK in congestion avoidance (RFC 2001, section 1). The large send buffer
    # and the scaled window are what a tester of satellite links set by hand.
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
        avoidance_counting="acks",
        limited_transmit=False,
        rack_tlp=False,
        prr=False,
        hystart=False,
        ecn=False,
        stack="rfc",
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
        stack="linux",
    ),
}
