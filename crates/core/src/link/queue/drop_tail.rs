//! Drop-tail: a FIFO that drops a packet that does not fit.

use super::{Backlog, Headroom, Limit, Occupancy, PacketSize};
use crate::time::Duration;
use crate::trace::DropCause;

/// See the module's description.
#[derive(Clone, Copy, Debug)]
pub struct DropTail {
    limit: Limit,
    waiting: Occupancy,
}

impl DropTail {
    /// An empty queue with this limit.
    #[must_use]
    pub fn new(limit: Limit) -> Self {
        Self { limit, waiting: Occupancy::default() }
    }

    /// See `DropAtEnqueue::admit`.
    #[inline]
    pub fn admit(&mut self, size: PacketSize, wait: Duration) -> Result<(), DropCause> {
        self.limit.admit(&self.waiting, size, wait)
    }

    /// See `DropAtEnqueue::headroom`.
    pub(super) fn headroom(&self) -> Headroom {
        let seen = Headroom::of_bytes(self.waiting.bytes_max);
        match self.limit {
            Limit::Time(wait) => Headroom { wait_max: wait, ..seen },
            _ => self.limit.counted().map_or(seen, |(unit, limit)| seen.within(unit, limit)),
        }
    }

    /// Sets the current backlog.
    pub(super) fn set_backlog(&mut self, waiting: Backlog) {
        self.waiting.set_backlog(waiting);
    }

    /// Counts a packet that begins to wait.
    #[inline]
    pub fn on_enqueue(&mut self, size: PacketSize) {
        self.waiting.on_enqueue(size);
    }

    /// Counts a packet whose transmission starts.
    #[inline]
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

    fn size(bytes: u32) -> PacketSize {
        PacketSize { flow: FlowId(0), bytes, link_bytes: bytes + 10 }
    }

    fn admits(limit: Limit, waiting: &[u32], bytes: u32, wait: Duration) -> bool {
        let mut queue = DropTail::new(limit);
        waiting.iter().for_each(|&bytes| queue.on_enqueue(size(bytes)));
        queue.admit(size(bytes), wait).is_ok()
    }

    #[test]
    fn the_byte_limit_is_exact() {
        let limit = Limit::Bytes(3_000);
        assert!(admits(limit, &[1_500], 1_500, SOME));
        assert!(!admits(limit, &[1_500], 1_501, SOME));
        assert!(!admits(limit, &[1_500, 1_500], 1, SOME));
        assert!(admits(Limit::LinkBytes(3_000), &[1_490], 1_490, SOME));
        assert!(!admits(Limit::LinkBytes(3_000), &[1_490], 1_491, SOME));
    }

    #[test]
    fn dequeued_packets_do_not_count() {
        let mut queue = DropTail::new(Limit::Bytes(3_000));
        queue.on_enqueue(size(1_500));
        queue.on_enqueue(size(1_500));
        queue.on_dequeue(size(1_500));
        let left = Occupancy { packets: 1, bytes: 1_500, link_bytes: 1_510, bytes_max: 3_000 };
        assert_eq!(*queue.occupancy(), left);
    }

    #[test]
    fn packets_and_time_are_limits_too() {
        assert!(admits(Limit::Packets(1), &[], 9_000, SOME));
        assert!(!admits(Limit::Packets(1), &[40], 40, SOME));
        assert!(admits(Limit::Time(SOME), &[], 9_000, SOME));
        assert!(!admits(Limit::Time(SOME), &[], 40, SOME + Duration::from_nanos(1)));
        assert!(admits(Limit::Unlimited, &[9_000], 65_535, Duration::from_secs(1)));
    }

    #[test]
    fn a_packet_that_starts_at_once_needs_no_room() {
        assert!(admits(Limit::Bytes(0), &[], 1_500, Duration::ZERO));
        assert!(admits(Limit::Packets(0), &[], 1_500, Duration::ZERO));
    }
}
