//! What a host's TCP is set to. Every field is decided by the scenario; there are no defaults here.

use crate::time::Duration;

/// The settings of one host's TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The MSS option: payload plus options of the largest segment (RFC 6691).
    pub mss: u16,
    /// Initial window in segments (1 in RFC 2001, 10 in RFC 6928).
    pub initial_window_segments: u32,
    /// Congestion control, and the recovery used when SACK is off.
    pub congestion: CongestionName,
    /// Selective acknowledgement (RFC 2018), if both ends agree.
    pub sack: bool,
    /// Timestamps (RFC 7323), if both ends agree.
    pub timestamps: bool,
    /// Window scaling (RFC 7323), if both ends agree.
    pub window_scaling: bool,
    /// Bytes that may be written and not yet acknowledged.
    pub send_buffer: u64,
    /// The largest receive buffer; see `receive_buffer_counts`.
    pub receive_buffer: u64,
    /// The receive buffer at first; below `receive_buffer` it tunes itself up to that.
    pub receive_buffer_initial: u64,
    /// What of the receive buffer is offered as window.
    pub receive_buffer_counts: BufferCounts,
    /// When received data is acknowledged.
    pub acks: AckPolicy,
    /// The retransmission timer.
    pub rto: RtoConfig,
    /// RFC 3465's L: the most segments that one ACK adds to the window in slow start.
    pub slow_start_segments_per_ack: u32,
    /// How the window grows in congestion avoidance (Reno and NewReno).
    pub avoidance: AvoidanceCounting,
    /// Limited transmit (RFC 3042) without SACK; with SACK the pipe rule implies it.
    pub limited_transmit: bool,
    /// RACK-TLP loss detection (RFC 8985); needs SACK.
    pub rack_tlp: bool,
    /// Proportional rate reduction (RFC 6937); needs SACK.
    pub prr: bool,
    /// HyStart++ (RFC 9406), or with [`Follows::Linux`] the HyStart that Linux has.
    pub hystart: bool,
    /// What decides where Linux differs from the RFCs.
    pub follows: Follows,
    /// Explicit congestion notification (RFC 3168), if both ends agree.
    pub ecn: bool,
}

/// The algorithms a scenario may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CongestionName {
    /// RFC 5681; without SACK, recovery ends at the first new ACK.
    Reno,
    /// RFC 5681; without SACK, recovery survives partial ACKs (RFC 6582).
    NewReno,
    /// RFC 9438.
    Cubic,
    /// Version 1, as Linux has it. It paces and recovers by its own rules, so that growth, PRR and
    /// HyStart++ are not asked.
    Bbr,
    /// Caini and Firrincieli 2004, as Linux has it: its own growth, without HyStart++.
    Hybla,
    /// Brakmo and Peterson 1995, as Linux has it: its own growth, without HyStart++.
    Vegas,
    /// Westwood+ (Grieco and Mascolo 2004), as Linux has it: Reno's growth.
    Westwood,
}

impl CongestionName {
    /// Every algorithm with the name that scenarios use.
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

/// What a host does where Linux (6.18) differs from the RFCs: the growth of CUBIC, the end of slow start,
/// what a reduction starts from, what is sent in a recovery, when the retransmission timer starts
/// anew and what it gives up, how the round trip's variance is smoothed, what is undone (F-RTO,
/// Eifel, D-SACK) and how the window restarts after a pause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Follows {
    /// What the RFCs say.
    #[default]
    Rfc,
    /// What Linux does.
    Linux,
}

/// How congestion avoidance counts what was acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AvoidanceCounting {
    /// Bytes (RFC 3465): one segment a round trip, however many ACKs carry the news.
    Bytes,
    /// ACKs (RFC 5681, equation 3): half a segment a round trip when every second segment is
    /// acknowledged.
    Acks,
}

/// When received data is acknowledged (RFC 5681, section 4.2).
///
/// Full segments are counted in bytes: `delayed_segments` times the largest payload under
/// [`Follows::Rfc`]; under [`Follows::Linux`] (`__tcp_ack_snd_check`) more than one less of the largest
/// that arrived so far, which is taken for 536 at first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckPolicy {
    /// An ACK at the latest for every so many full segments; 1 switches delaying off.
    pub delayed_segments: u32,
    /// The longest that an ACK is held back.
    pub delayed_timeout: Duration,
    /// So many segments at the start of a connection are acknowledged at once (Linux's quick ACKs).
    pub quick_segments: u32,
}

/// What the sizes of a receive buffer count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BufferCounts {
    /// Payload: the window is as large as the buffer.
    #[default]
    Window,
    /// Memory, as Linux's `tcp_rmem` does: half of it is window at first, and then as much as payload is
    /// of the memory that the largest segment so far takes.
    Memory,
}

/// The retransmission timer (RFC 6298).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RtoConfig {
    /// Before the first round-trip sample.
    pub initial: Duration,
    /// The least value; see `min_bounds`.
    pub min: Duration,
    /// The largest value, after backing off.
    pub max: Duration,
    /// The clock's tick: samples and deadlines are rounded up to it.
    pub granularity: Duration,
    /// What `min` bounds.
    pub min_bounds: RtoMinBounds,
}

/// What the least retransmission time-out bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RtoMinBounds {
    /// The whole time-out (RFC 6298, 2.4).
    Timeout,
    /// Its variance term, as Linux does: the time-out is at least srtt + min.
    Variance,
}
