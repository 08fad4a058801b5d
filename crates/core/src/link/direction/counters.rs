//! The counters of a direction at an instant.

use super::Direction;
use super::carrier::Carrier;
use crate::engine::Count;
use crate::link::transit::SizeTotals;
use crate::time::{Duration, Instant};
use crate::trace::DropCause;

/// Counters of a direction at an instant; see [`Direction::counters_at`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets whose last bit was sent.
    pub sent_packets: u64,
    /// Their bits on the link, framing included.
    pub sent_bits: u64,
    /// Packets delivered, with their IP bytes.
    pub delivered: Count,
    /// Packets dropped, by [`DropCause`], with their IP bytes.
    pub dropped: [Count; DropCause::ALL.len()],
    /// Packets marked by the queue (RFC 3168), with their IP bytes.
    pub marked: Count,
    /// Time the transmitter spent sending.
    pub busy: Duration,
    /// IP bytes in the queue.
    pub queue_bytes: u64,
    /// Packets in the queue.
    pub queue_packets: u64,
    /// The most IP bytes that were ever in the queue.
    pub queue_max_bytes: u64,
    /// IP bytes of the packet being sent.
    pub sending_bytes: u64,
    /// IP bytes that left the transmitter and have not arrived.
    pub in_flight_bytes: u64,
}

impl Counters {
    /// The counters by name, but for dropped packets.
    #[must_use]
    pub fn fields(&self) -> [(&'static str, u64); 12] {
        [
            ("sent_packets", self.sent_packets),
            ("sent_bits", self.sent_bits),
            ("delivered_packets", self.delivered.packets),
            ("delivered_bytes", self.delivered.bytes),
            ("marked_packets", self.marked.packets),
            ("marked_bytes", self.marked.bytes),
            ("busy_ns", self.busy.as_nanos()),
            ("queue_packets", self.queue_packets),
            ("queue_bytes", self.queue_bytes),
            ("queue_max_bytes", self.queue_max_bytes),
            ("sending_bytes", self.sending_bytes),
            ("in_flight_bytes", self.in_flight_bytes),
        ]
    }
}

impl Direction {
    /// The counters at `now`. Reading them changes nothing that the direction does.
    pub fn counters_at(&mut self, now: Instant) -> Counters {
        let Self { carrier, scheduling, .. } = self;
        let started_to = scheduling.started(carrier, now);
        let waiting = *scheduling.occupancy();
        let Carrier { transit, transmitter, .. } = &*carrier;
        let arrived = transit.totals_before(transit.begin());
        let started = transit.totals_before(started_to);
        // A packet that waits starts when the previous one ends.
        let is_sending = started_to < transit.end() || transmitter.free_at() > now;
        let (sending_packets, sending, idle_from) = if is_sending && started_to > transit.begin() {
            let last = started_to - 1;
            (1, started.since(transit.totals_before(last)), transit.start(last))
        } else {
            (0, SizeTotals::default(), transmitter.free_at())
        };
        Counters {
            sent_packets: started_to - sending_packets,
            sent_bits: started.frame_bits - sending.frame_bits,
            delivered: carrier.delivered(),
            dropped: carrier.dropped,
            marked: carrier.marked,
            busy: transmitter.busy_until(idle_from),
            queue_bytes: waiting.bytes,
            queue_packets: waiting.packets,
            queue_max_bytes: waiting.bytes_max.max(self.earlier_bytes_max),
            sending_bytes: sending.bytes,
            in_flight_bytes: started.bytes - sending.bytes - arrived.bytes,
        }
    }
}
