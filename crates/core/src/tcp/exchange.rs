//! Types that the sender and its endpoint exchange. Ranges are in positions.

use crate::packet::LimitedBy;
use crate::packet::seq::Position;
use crate::time::Duration;

/// A segment to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// Position of the first byte.
    pub position: Position,
    /// Payload in bytes.
    pub payload: u16,
    /// Whether the segment is a SYN.
    pub syn: bool,
    /// Whether the segment carries a FIN.
    pub fin: bool,
    /// What kept it from being sent earlier.
    pub limited_by: LimitedBy,
}

/// Consecutive full segments of new data to be sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Run {
    /// Start of the first segment.
    pub(super) start: Position,
    /// Number of segments.
    pub(super) count: u64,
    /// Payload of each segment in bytes.
    pub(super) payload: u16,
    /// Whether nothing else may be sent now.
    pub(super) complete: bool,
    /// What kept them from being sent earlier.
    pub(super) limited_by: LimitedBy,
}

/// A received ACK.
#[derive(Clone, Copy, Debug)]
pub struct Ack<'a> {
    /// Cumulative acknowledgement: everything before this position was received.
    pub position: Position,
    /// The advertised window in bytes.
    pub window: u64,
    /// SACK blocks in ascending order, without a D-SACK.
    pub sack: &'a [(Position, Position)],
    /// The range that a D-SACK reports (RFC 2883).
    pub dsack: Option<(Position, Position)>,
    /// RTT according to the echoed timestamp.
    pub timestamp_rtt: Option<Duration>,
    /// Whether the segment has no data, SYN or FIN.
    pub pure: bool,
}

/// Counters of a sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SenderCounters {
    /// Segments sent with data or a FIN, including retransmissions.
    pub segments: u64,
    /// Retransmitted segments.
    pub retransmitted_segments: u64,
    /// Their payload in bytes.
    pub retransmitted_bytes: u64,
    /// Expirations of the retransmission timer.
    pub timeouts: u64,
    /// Fast recoveries entered.
    pub fast_recoveries: u64,
    /// Tail loss probes sent.
    pub tail_loss_probes: u64,
    /// Spurious timeouts that were undone.
    pub spurious_timeouts: u64,
    /// Spurious fast recoveries that were undone.
    pub spurious_recoveries: u64,
}
