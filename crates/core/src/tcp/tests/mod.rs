//! Scripted tests of one endpoint: given a segment at a time, expect exactly these segments.
//!
//! Segments are written as text with relative numbers: `S 0:1`, `1:1001 ack 1`, `F 1001:1002 ack
//! 1`, with `R` for RST, `E` for ECE and `W` for CWR before the numbers as in tcpdump(8), then `ce` or `ect` for
//! the ECN field, `win`, `sack`, `ts value/echo`, and on a SYN `mss`, `ws` and `sackok`. Sent
//! segments are written the same way, separated by ` | `; `win` is omitted unless the test is about
//! windows. Times are milliseconds.

mod acks;
mod application;
mod closing;
mod cumulative;
mod cwnd_use;
mod ecn;
mod fast_path;
mod fast_path_state;
mod growth;
mod handshake;
mod harness;
mod idle;
mod limits;
mod network;
mod paws;
mod rack;
mod reset;
mod robustness;
mod selective;
mod timers;
mod timers_linux;
mod undo;
mod windows;

use super::config::{
    AckPolicy, AvoidanceCounting, BufferCounts, Config, CongestionName, RtoConfig, RtoMinBounds,
    StackVariant,
};
use crate::time::Duration;

/// A host with segments of 1000 bytes and no options. With an RTT of 100 ms, its first
/// retransmission timeout is 300 ms.
pub(in crate::tcp) fn plain() -> Config {
    Config {
        mss: 1_000,
        initial_window_segments: 1,
        congestion: CongestionName::Reno,
        sack: false,
        timestamps: false,
        window_scaling: false,
        send_buffer: 1 << 20,
        receive_buffer: 65_535,
        receive_buffer_initial: 65_535,
        receive_buffer_counts: BufferCounts::Window,
        acks: AckPolicy {
            delayed_segments: 2,
            delayed_timeout: Duration::from_millis(200),
            quick_segments: 0,
        },
        rto: RtoConfig {
            initial: Duration::from_secs(1),
            min: Duration::from_millis(200),
            max: Duration::from_secs(60),
            granularity: Duration::from_millis(1),
            min_bounds: RtoMinBounds::Timeout,
        },
        slow_start_segments_per_ack: 1,
        avoidance: AvoidanceCounting::Bytes,
        limited_transmit: false,
        rack_tlp: false,
        prr: false,
        hystart: false,
        stack: StackVariant::Rfc,
        ecn: false,
    }
}
