//! Early packet discard (Romanow and Floyd, "Dynamics of TCP Traffic over ATM Networks", IEEE JSAC
//! 13(4), 1995): a packet whose first cell finds the queue above a threshold is dropped whole, so that no
//! cells of incomplete packets are carried.
//!
//! A packet is enqueued in one piece, as at an edge device that segments it into cells: cells of several
//! packets are not interleaved. The room above the threshold (a few packets, in the paper) is for packets
//! that arrived before it was exceeded.

use super::{Limit, Occupancy, PacketSize, Ratio, Unit};
use crate::time::Duration;
use crate::trace::DropCause;

/// See the module's description.
#[derive(Clone, Debug)]
pub struct EarlyPacketDiscard {
    limit: Limit,
    unit: Unit,
    /// The largest backlog at which packets are accepted.
    threshold: u64,
    waiting: Occupancy,
}

impl EarlyPacketDiscard {
    /// An empty queue with this limit and a threshold as a fraction of it.
    ///
    /// # Panics
    /// If the limit counts neither packets nor bytes: it has no fractions.
    #[must_use]
    pub fn new(limit: Limit, threshold: Ratio) -> Self {
        let (unit, limit_amount) = limit.counted().expect("a limit in packets or in bytes");
        Self {
            limit,
            unit,
            threshold: threshold.floor_of(limit_amount),
            waiting: Occupancy::default(),
        }
    }

    /// See `DropAtEnqueue::admit`.
    pub fn admit(&mut self, size: PacketSize, wait: Duration) -> Result<(), DropCause> {
        if self.unit.count(&self.waiting) > self.threshold {
            return Err(DropCause::EarlyPacketDiscard);
        }
        self.limit.admit(&self.waiting, size, wait)
    }

    /// Counts a packet that begins to wait.
    pub fn on_enqueue(&mut self, size: PacketSize) {
        self.waiting.on_enqueue(size);
    }

    /// Counts a packet whose transmission starts.
    pub fn on_dequeue(&mut self, size: PacketSize) {
        self.waiting.on_dequeue(size);
    }

    /// The limit of the whole queue.
    pub(super) fn limit(&self) -> Limit {
        self.limit
    }

    /// The packets that wait.
    #[must_use]
    pub fn occupancy(&self) -> &Occupancy {
        &self.waiting
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::FlowId;

    const SOME: Duration = Duration::from_millis(1);

    /// A packet of `cells` cells of 53 bytes.
    fn cells(cells: u32) -> PacketSize {
        PacketSize { flow: FlowId(0), bytes: 48 * cells - 8, link_bytes: 53 * cells }
    }

    /// Given 1,000 cells and a threshold of 80 %, expect packets to be accepted up to a backlog of 800 cells.
    #[test]
    fn the_threshold_is_exact() {
        let threshold = Ratio::new(0.8).expect("in range");
        let mut queue = EarlyPacketDiscard::new(Limit::LinkBytes(53 * 1_000), threshold);
        queue.on_enqueue(cells(800));
        assert_eq!(queue.admit(cells(32), SOME), Ok(()), "at the threshold");
        queue.on_enqueue(cells(1));
        assert_eq!(queue.admit(cells(1), SOME), Err(DropCause::EarlyPacketDiscard));
        queue.on_dequeue(cells(1));
        assert_eq!(queue.admit(cells(1), SOME), Ok(()));
    }

    #[test]
    fn a_packet_below_the_threshold_may_still_be_too_large() {
        let threshold = Ratio::new(0.8).expect("in range");
        let mut queue = EarlyPacketDiscard::new(Limit::LinkBytes(53 * 100), threshold);
        queue.on_enqueue(cells(80));
        assert_eq!(queue.admit(cells(20), SOME), Ok(()));
        assert_eq!(queue.admit(cells(21), SOME), Err(DropCause::QueueFull));
    }
}
