//! TCP settings in a plan.

use bentpipe_core::tcp;
use bentpipe_core::tcp::config::{
    self as config, AckPolicy, AvoidanceCounting, BufferCounts, CongestionName, RtoConfig,
    RtoMinBounds,
};
use bentpipe_core::time::Duration;
use serde::{Deserialize, Serialize};

use super::{Check, TIME_NS_MAX};

/// The largest window (RFC 7323, section 2.3).
const BUFFER_BYTES_MAX: u64 = 1 << 30;
/// From Linux's `TCP_MIN_MSS` to 65,535 less the headers of IPv4 and TCP without options (RFC 9293, section 3.7.1).
const MSS_BYTES: core::ops::RangeInclusive<u16> = 88..=65_495;

/// The TCP settings of a host; see [`tcp::Config`] for the meaning of each field.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "each field is described at the engine's own settings")]
#[expect(clippy::struct_excessive_bools, reason = "each is one option of a host, by name")]
pub struct Tcp {
    pub mss_bytes: u16,
    pub initial_window_segments: u32,
    pub congestion_control: Congestion,
    pub sack: bool,
    pub timestamps: bool,
    pub window_scaling: bool,
    pub send_buffer_bytes: u64,
    pub receive_buffer_bytes: u64,
    pub receive_buffer_initial_bytes: u64,
    /// What the sizes of the receive buffer count.
    pub receive_buffer_counts: BufferUnit,
    pub delayed_ack_segments: u32,
    pub delayed_ack_timeout_ns: u64,
    pub quick_ack_segments: u32,
    pub rto_initial_ns: u64,
    pub rto_min_ns: u64,
    pub rto_min_bounds: MinBounds,
    pub rto_max_ns: u64,
    pub clock_granularity_ns: u64,
    pub slow_start_segments_per_ack: u32,
    pub avoidance_counting: Counting,
    pub limited_transmit: bool,
    pub rack_tlp: bool,
    pub prr: bool,
    pub hystart: bool,
    pub ecn: bool,
    /// What the host does where Linux differs from the RFCs.
    pub stack: StackVariant,
}

/// A congestion control.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "described at `CongestionName`")]
pub enum Congestion {
    Reno,
    NewReno,
    Cubic,
    Bbr,
    Hybla,
    Vegas,
    Westwood,
}

/// Which rules a host uses where Linux differs from the RFCs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StackVariant {
    /// The RFCs.
    Rfc,
    /// Linux.
    Linux,
}

/// What the sizes of the receive buffer count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BufferUnit {
    /// Bytes of the advertised window.
    Window,
    /// Bytes of memory with the overhead of packets, as in Linux; the window is a fraction of them.
    Memory,
}

/// The unit of growth in congestion avoidance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "described at `AvoidanceCounting`")]
pub enum Counting {
    Bytes,
    Acks,
}

/// What the minimum retransmission timeout applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "described at `RtoMinBounds`")]
pub enum MinBounds {
    Timeout,
    Variance,
}

impl Tcp {
    pub(super) fn check(&self, check: &mut Check, at: &dyn Fn(&str) -> String) {
        let mut bounds = |name: &str, value: u64, min: u64, max: u64| {
            check.that(
                (min..=max).contains(&value),
                || at(name),
                &format!("is {value} but must be from {min} to {max}"),
            );
        };
        // What no host exceeds, so that sums of counts and times stay far from their limits.
        let mss = u64::from(self.mss_bytes);
        bounds("mss_bytes", mss, (*MSS_BYTES.start()).into(), (*MSS_BYTES.end()).into());
        bounds("initial_window_segments", self.initial_window_segments.into(), 1, 1_000);
        bounds("send_buffer_bytes", self.send_buffer_bytes, mss, BUFFER_BYTES_MAX);
        bounds("receive_buffer_bytes", self.receive_buffer_bytes, mss, BUFFER_BYTES_MAX);
        bounds(
            "receive_buffer_initial_bytes",
            self.receive_buffer_initial_bytes,
            mss,
            self.receive_buffer_bytes,
        );
        bounds("delayed_ack_segments", self.delayed_ack_segments.into(), 1, 1_000);
        bounds("delayed_ack_timeout_ns", self.delayed_ack_timeout_ns, 0, 10_000_000_000);
        bounds("clock_granularity_ns", self.clock_granularity_ns, 1, 10_000_000_000);
        bounds("rto_min_ns", self.rto_min_ns, 1_000_000, self.rto_max_ns);
        bounds("rto_initial_ns", self.rto_initial_ns, self.rto_min_ns, self.rto_max_ns);
        bounds("rto_max_ns", self.rto_max_ns, 1_000_000, TIME_NS_MAX);
        bounds("slow_start_segments_per_ack", self.slow_start_segments_per_ack.into(), 1, 65_535);
    }

    /// The engine's settings.
    #[must_use]
    pub fn config(&self) -> tcp::Config {
        tcp::Config {
            mss: self.mss_bytes,
            initial_window_segments: self.initial_window_segments,
            congestion: match self.congestion_control {
                Congestion::Reno => CongestionName::Reno,
                Congestion::NewReno => CongestionName::NewReno,
                Congestion::Cubic => CongestionName::Cubic,
                Congestion::Bbr => CongestionName::Bbr,
                Congestion::Hybla => CongestionName::Hybla,
                Congestion::Vegas => CongestionName::Vegas,
                Congestion::Westwood => CongestionName::Westwood,
            },
            sack: self.sack,
            timestamps: self.timestamps,
            window_scaling: self.window_scaling,
            send_buffer: self.send_buffer_bytes,
            receive_buffer: self.receive_buffer_bytes,
            receive_buffer_initial: self.receive_buffer_initial_bytes,
            receive_buffer_counts: match self.receive_buffer_counts {
                BufferUnit::Window => BufferCounts::Window,
                BufferUnit::Memory => BufferCounts::Memory,
            },
            acks: AckPolicy {
                delayed_segments: self.delayed_ack_segments,
                delayed_timeout: Duration::from_nanos(self.delayed_ack_timeout_ns),
                quick_segments: self.quick_ack_segments,
            },
            rto: RtoConfig {
                initial: Duration::from_nanos(self.rto_initial_ns),
                min: Duration::from_nanos(self.rto_min_ns),
                max: Duration::from_nanos(self.rto_max_ns),
                granularity: Duration::from_nanos(self.clock_granularity_ns),
                min_bounds: match self.rto_min_bounds {
                    MinBounds::Timeout => RtoMinBounds::Timeout,
                    MinBounds::Variance => RtoMinBounds::Variance,
                },
            },
            slow_start_segments_per_ack: self.slow_start_segments_per_ack,
            avoidance: match self.avoidance_counting {
                Counting::Bytes => AvoidanceCounting::Bytes,
                Counting::Acks => AvoidanceCounting::Acks,
            },
            limited_transmit: self.limited_transmit,
            rack_tlp: self.rack_tlp,
            prr: self.prr,
            hystart: self.hystart,
            ecn: self.ecn,
            stack: match self.stack {
                StackVariant::Rfc => config::StackVariant::Rfc,
                StackVariant::Linux => config::StackVariant::Linux,
            },
        }
    }
}
