//! The congestion window after an idle period: RFC 5681 (4.1), and Linux
//! (`tcp_slow_start_after_idle_check`, `tcp_cwnd_restart`; `net.ipv4.tcp_slow_start_after_idle` is
//! on by default).

use super::Sender;
use crate::time::{Duration, Instant};

/// Bits of nanoseconds below one unit of [`CoarseInstant`]: 1.05 ms.
const UNIT_BITS: u32 = 20;

/// An instant in half the memory of an [`Instant`], to fit into the second cache line of a sender.
/// It wraps after 52 days.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CoarseInstant(u32);

impl CoarseInstant {
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "it wraps, as the kernel's does")]
    pub(super) fn new(at: Instant) -> Self {
        Self((at.as_nanos() >> UNIT_BITS) as u32)
    }

    /// The time since then, to within a unit.
    fn elapsed(self, now: Instant) -> Duration {
        let units = Self::new(now).0.wrapping_sub(self.0);
        Duration::from_nanos(u64::from(units) << UNIT_BITS)
    }
}

impl Sender {
    /// The application writes with nothing outstanding. BBR has its own restart from idle.
    #[cold]
    #[inline(never)]
    pub(super) fn restart_after_idle(&mut self, now: Instant) {
        let (idle, rto) = (self.last_sent.elapsed(now), self.rtt.rto());
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
        self.control.restart_halved(halvings);
    }
}
