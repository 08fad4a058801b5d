//! The congestion window after a pause of the application: RFC 5681 (4.1), and as Linux does it
//! (`tcp_slow_start_after_idle_check`, `tcp_cwnd_restart`; `net.ipv4.tcp_slow_start_after_idle` is on by
//! default).

use super::Sender;
use crate::time::{Duration, Instant};

/// A unit of [`SentAt`] is so many bits of nanoseconds: 1.05 ms.
const UNIT_BITS: u32 = 20;

/// When a segment was last sent, in half the room of an [`Instant`]: it has that room in the second line
/// of a sender. Pauses of 52 days and more come out too short.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SentAt(u32);

impl SentAt {
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "it wraps, as the kernel's does")]
    pub(super) fn new(at: Instant) -> Self {
        Self((at.as_nanos() >> UNIT_BITS) as u32)
    }

    /// How long ago it was, to a unit.
    fn until(self, now: Instant) -> Duration {
        let units = Self::new(now).0.wrapping_sub(self.0);
        Duration::from_nanos(u64::from(units) << UNIT_BITS)
    }
}

impl Sender {
    /// The application writes, and nothing is outstanding. A paced sender does this by itself.
    #[cold]
    #[inline(never)]
    pub(super) fn after_idle(&mut self, now: Instant) {
        let (idle, rto) = (self.last_sent.until(now), self.rtt.rto());
        if self.linux {
            self.control.shift_epoch(now, idle);
        }
        if idle <= rto {
            return;
        }
        if !self.linux {
            self.control.shift_epoch(now, idle);
            self.control.restart();
            return;
        }
        let halvings = (idle.as_nanos() - 1) / rto.as_nanos().max(1);
        self.control.restart_by_halves(halvings);
    }
}
