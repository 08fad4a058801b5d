//! Drop-tail: a packet that finds no room is lost, all others wait their turn.

use crate::time::Duration;

/// How much may wait. What is being transmitted, or is in flight, does not wait and never counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// So many IP bytes.
    Bytes(u64),
    /// So many packets.
    Packets(u64),
    /// A packet that would wait longer than this before its first bit is sent is lost.
    Time(Duration),
    /// No limit.
    Unlimited,
}

/// What waits in front of a transmitter, counted.
#[derive(Clone, Copy, Debug)]
pub struct DropTail {
    limit: Limit,
    bytes: u64,
    packets: u64,
    bytes_max: u64,
}

impl DropTail {
    /// An empty queue with this limit.
    #[must_use]
    pub fn new(limit: Limit) -> Self {
        Self { limit, bytes: 0, packets: 0, bytes_max: 0 }
    }

    /// Whether a packet of `bytes` that would wait `wait` is let in. A packet that waits for
    /// nobody needs no room.
    #[must_use]
    pub fn admits(&self, bytes: u32, wait: Duration) -> bool {
        if wait == Duration::ZERO {
            return true;
        }
        match self.limit {
            Limit::Bytes(most) => self.bytes + u64::from(bytes) <= most,
            Limit::Packets(most) => self.packets < most,
            Limit::Time(most) => wait <= most,
            Limit::Unlimited => true,
        }
    }

    /// Counts a packet that starts to wait.
    pub fn enter(&mut self, bytes: u32) {
        self.packets += 1;
        self.bytes += u64::from(bytes);
        self.bytes_max = self.bytes_max.max(self.bytes);
    }

    /// Counts a packet whose transmission starts.
    pub fn leave(&mut self, bytes: u32) {
        self.packets -= 1;
        self.bytes -= u64::from(bytes);
    }

    /// IP bytes that wait.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Packets that wait.
    #[must_use]
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// The most IP bytes that ever waited.
    #[must_use]
    pub fn bytes_max(&self) -> u64 {
        self.bytes_max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOME: Duration = Duration::from_millis(1);

    #[test]
    fn bytes_are_counted_to_the_last_one() {
        let mut queue = DropTail::new(Limit::Bytes(3_000));
        queue.enter(1_500);
        assert!(queue.admits(1_500, SOME));
        assert!(!queue.admits(1_501, SOME));
        queue.enter(1_500);
        assert!(!queue.admits(1, SOME));
        queue.leave(1_500);
        assert_eq!((queue.bytes(), queue.packets(), queue.bytes_max()), (1_500, 1, 3_000));
    }

    #[test]
    fn packets_and_time_are_limits_too() {
        let mut queue = DropTail::new(Limit::Packets(1));
        assert!(queue.admits(9_000, SOME));
        queue.enter(40);
        assert!(!queue.admits(40, SOME));
        let queue = DropTail::new(Limit::Time(SOME));
        assert!(queue.admits(9_000, SOME));
        assert!(!queue.admits(40, SOME + Duration::from_nanos(1)));
        assert!(DropTail::new(Limit::Unlimited).admits(u32::MAX, Duration::from_secs(1)));
    }

    #[test]
    fn who_waits_for_nobody_needs_no_room() {
        assert!(DropTail::new(Limit::Bytes(0)).admits(1_500, Duration::ZERO));
        assert!(DropTail::new(Limit::Packets(0)).admits(1_500, Duration::ZERO));
    }
}
