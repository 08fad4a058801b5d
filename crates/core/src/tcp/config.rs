//! The settings of a host's TCP. The scenario sets every field; there are no defaults here.

use crate::time::Duration;

/// The settings of one host's TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The MSS option: payload plus options of the largest segment (RFC 6691).
    pub mss: u16,
    /// Initial window in segments (1 in RFC 2001, 10 in RFC 6928).
    pub initial_window_segments: u32,
    /// Congestion control, and the recovery algorithm without SACK.
    pub congestion: CongestionName,
    /// Selective acknowledgement (RFC 2018), if both ends support it.
    pub sack: bool,
    /// Timestamps (RFC 7323), if both ends support them.
    pub timestamps: bool,
    /// Window scaling (RFC 7323), if both ends support it.
    pub window_scaling: bool,
    /// Capacity for data that was written and not yet acknowledged, in bytes.
    pub send_buffer: u64,
    /// The maximum receive buffer; see `receive_buffer_counts`.
    pub receive_buffer: u64,
    /// The initial receive buffer. Auto-tuning grows it up to `receive_buffer`.
    pub receive_buffer_initial: u64,
    /// How much of the receive buffer is advertised as window.
    pub receive_buffer_counts: BufferCounts,
    /// When received data is acknowledged.
    pub acks: AckPolicy,
    /// The retransmission timer.
    pub rto: RtoConfig,
    /// RFC 3465's L: the maximum growth per ACK in slow start, in segments.
    pub slow_start_segments_per_ack: u32,
    /// How the window grows in congestion avoidance (Reno and NewReno).
    pub avoidance: AvoidanceCounting,
    /// Limited transmit (RFC 3042) without SACK. With SACK the pipe rule implies it.
    pub limited_transmit: bool,
    /// RACK-TLP loss detection (RFC 8985); needs SACK.
    pub rack_tlp: bool,
    /// Proportional rate reduction (RFC 6937); needs SACK.
    pub prr: bool,
    /// HyStart++ (RFC 9406), or Linux's HyStart with [`StackVariant::Linux`].
    pub hystart: bool,
    /// Which rules apply where Linux differs from the RFCs.
    pub stack: StackVariant,
    /// Explicit congestion notification (RFC 3168), if both ends support it.
    pub ecn: bool,
}

/// The congestion-control algorithms of a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CongestionName {
    /// RFC 5681. Without SACK, fast recovery ends at the first new ACK.
    Reno,
    /// RFC 5681. Without SACK, fast recovery continues after partial ACKs (RFC 6582).
    NewReno,
    /// RFC 9438.
    Cubic,
    /// Version 1, as in Linux. It has its own pacing and recovery and ignores the settings for
    /// growth, PRR and HyStart++.
    Bbr,
    /// Caini and Firrincieli 2004, as in Linux: its own slow start, without HyStart++.
    Hybla,
    /// Brakmo and Peterson 1995, as in Linux: its own slow start, without HyStart++.
    Vegas,
    /// Westwood+ (Grieco and Mascolo 2004), as in Linux: grows like Reno.
    Westwood,
}

impl CongestionName {
    /// Every algorithm with its name in scenarios.
    pub const ALL: [(&'static str, Self); 7] = [
        ("reno", Self::Reno),
        ("newreno", Self::NewReno),
        ("cubic", Self::Cubic),
        ("bbr", Self::Bbr),
        ("hybla", Self::Hybla),
        ("vegas", Self::Vegas),
        ("westwood", Self::Westwood),
    ];
}

/// The rules that a host uses where Linux (6.18) differs from the RFCs: CUBIC's growth, the end of
/// slow start, the base of a window reduction, transmission during recovery, restarting and
/// back-off of the retransmission timer, smoothing of the RTT variance, undo (F-RTO, Eifel, D-SACK)
/// and the restart after idle periods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StackVariant {
    /// The RFCs.
    #[default]
    Rfc,
    /// Linux 6.18.
    Linux,
}

/// How congestion avoidance counts acknowledged data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AvoidanceCounting {
    /// Bytes (RFC 3465): one segment per round trip, regardless of the number of ACKs.
    Bytes,
    /// ACKs (RFC 5681, equation 3): half a segment per round trip with an ACK for every second
    /// segment.
    Acks,
}

/// When received data is acknowledged (RFC 5681, section 4.2).
///
/// Full segments are counted in bytes. [`StackVariant::Rfc`] counts `delayed_segments` times the
/// maximum payload. [`StackVariant::Linux`] (`__tcp_ack_snd_check`) requires more than
/// `delayed_segments - 1` times the largest payload received so far (`rcv_mss`, initially at most
/// 536).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckPolicy {
    /// Send an ACK at the latest after this many full segments; 1 disables delayed ACKs.
    pub delayed_segments: u32,
    /// The maximum delay of an ACK.
    pub delayed_timeout: Duration,
    /// Number of segments at the start of a connection that are acknowledged immediately (quick
    /// ACKs in Linux).
    pub quick_segments: u32,
}

/// The unit of receive buffer sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BufferCounts {
    /// Payload: the window is the whole buffer.
    #[default]
    Window,
    /// Memory, as in Linux's `tcp_rmem`. Initially half of it is window; later, the ratio of
    /// payload to memory of the largest segment received.
    Memory,
}

/// The retransmission timeout (RFC 6298).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RtoConfig {
    /// Timeout before the first RTT sample.
    pub initial: Duration,
    /// Minimum; see `min_bounds`.
    pub min: Duration,
    /// Maximum, also after backing off.
    pub max: Duration,
    /// Clock granularity G: samples and deadlines are rounded up to it.
    pub granularity: Duration,
    /// What `min` limits.
    pub min_bounds: RtoMinBounds,
}

/// What the minimum retransmission timeout limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RtoMinBounds {
    /// The whole timeout (RFC 6298, 2.4).
    Timeout,
    /// The variance term, as in Linux: the timeout is at least srtt + min.
    Variance,
}
