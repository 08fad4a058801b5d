//! What the sending half and its endpoint tell each other, in positions.

use crate::packet::seq::Position;
use crate::time::Duration;

/// A segment to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// Its first position.
    pub position: Position,
    /// Bytes of data.
    pub payload: u16,
    /// Whether it opens the stream.
    pub syn: bool,
    /// Whether it ends the stream.
    pub fin: bool,
}

/// Full segments of new data to be sent, one after the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Run {
    /// Where the first one starts.
    pub(super) start: Position,
    /// How many.
    pub(super) count: u64,
    /// Bytes of data in each.
    pub(super) payload: u16,
    /// Whether nothing else may leave now.
    pub(super) is_all: bool,
}

/// What an ACK says, in positions.
#[derive(Clone, Copy, Debug)]
pub struct Ack<'a> {
    /// Everything before this has arrived.
    pub position: Position,
    /// The window it offers.
    pub window: u64,
    /// Ranges beyond `position` that have arrived, the lowest first.
    pub sack: &'a [(Position, Position)],
    /// A range that has arrived twice (D-SACK, RFC 2883).
    pub duplicate: Option<(Position, Position)>,
    /// The round trip that its timestamp shows.
    pub timestamp_rtt: Option<Duration>,
    /// Whether the segment carries nothing but the ACK.
    pub pure: bool,
}

/// Counters for results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SenderCounters {
    /// Segments sent that carry data or a FIN, repetitions included.
    pub segments: u64,
    /// Of these, repetitions.
    pub retransmitted_segments: u64,
    /// Expiries of the retransmission timer.
    pub timeouts: u64,
    /// Fast recoveries begun.
    pub fast_recoveries: u64,
    /// Tail loss probes sent.
    pub tail_loss_probes: u64,
    /// Of the time-outs, those that turned out to be spurious and were undone.
    pub spurious_timeouts: u64,
    /// Of the fast recoveries, those that turned out to be spurious and were undone.
    pub spurious_recoveries: u64,
}
