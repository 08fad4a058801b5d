//! Until when the rules hold new connections.
//!
//! A SYN that arrives while they do not passes by itself. If the SYN holder opened a leg for an earlier copy of it, too, the
//! server would see two connections with the same addresses and ports. And a SYN that was held is lost for its client, which
//! repeats it after a second: so one that arrives after the rules were renewed, and before the lease is renewed here, waits.

use std::sync::atomic::{AtomicU64, Ordering};

use bentpipe_core::time::{Duration, Instant};
use bentpipe_sys::clock::Clock;

/// A client does not repeat a SYN earlier than this: it does so after 1 s (RFC 6298, section 2).
const REPEATED_AFTER: Duration = Duration::from_millis(900);

/// What is known of a SYN that the rules have held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HoldState {
    /// No copy of it has passed, and the next one is held as well.
    Held,
    /// No copy of it has passed; the next one does, unless the rules are renewed before, or were renewed already.
    LeaseEnded,
    /// A copy of it may have passed.
    MayHavePassed,
}

/// See the module documentation.
#[derive(Debug)]
pub struct HoldLease {
    clock: Clock,
    /// Since when the rules hold without a pause.
    since_ns: AtomicU64,
    until_ns: AtomicU64,
}

impl Default for HoldLease {
    /// The rules hold nothing yet.
    fn default() -> Self {
        Self { clock: Clock::start(), since_ns: AtomicU64::new(0), until_ns: AtomicU64::new(0) }
    }
}

impl HoldLease {
    /// The time, as [`HoldLease::renew`] takes it.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    /// The rules were renewed, and hold new connections until then at least.
    pub fn renew(&self, until: Instant) {
        let now = self.now();
        if !self.holds(now) {
            self.since_ns.store(now.as_nanos(), Ordering::Release);
        }
        self.until_ns.store(until.as_nanos(), Ordering::Release);
    }

    /// Whether a SYN that arrives now is held. If it is not, it passes by itself.
    pub(super) fn holds(&self, now: Instant) -> bool {
        self.until_ns.load(Ordering::Acquire) > now.as_nanos()
    }

    /// What is known of a SYN that was held, and arrived at this time at the earliest.
    pub(super) fn state_of(&self, arrived: Instant, now: Instant) -> HoldState {
        let (holds, is_fresh) = (self.holds(now), now.saturating_since(arrived) < REPEATED_AFTER);
        match (holds, is_fresh) {
            (true, true) => HoldState::Held,
            (true, false) if self.since_ns.load(Ordering::Acquire) <= arrived.as_nanos() => {
                HoldState::Held
            }
            (false, true) => HoldState::LeaseEnded,
            (_, false) => HoldState::MayHavePassed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(start: Instant, milliseconds: u64) -> Instant {
        start + Duration::from_millis(milliseconds)
    }

    /// Given a lease that was never renewed, expect a SYN that the rules held to wait until its client repeats it; given its
    /// renewal in the meantime, expect it to be split, and a later one to be split however long it waited.
    #[test]
    fn a_syn_waits_for_the_lease() {
        let lease = HoldLease::default();
        let start = lease.now();
        assert_eq!(lease.state_of(start, after(start, 899)), HoldState::LeaseEnded);
        assert_eq!(lease.state_of(start, after(start, 900)), HoldState::MayHavePassed);
        lease.renew(after(start, 10_000));
        assert_eq!(lease.state_of(start, after(start, 899)), HoldState::Held);
        let renewed = lease.now();
        assert_eq!(lease.state_of(renewed, after(renewed, 5_000)), HoldState::Held);
    }

    /// Given rules that have expired and are renewed, expect no SYN to be split that may be older and was repeated.
    #[test]
    fn a_syn_of_which_a_copy_may_have_passed_is_dropped() {
        let lease = HoldLease::default();
        let start = lease.now();
        lease.renew(after(start, 10_000));
        lease.renew(Instant::START);
        assert!(!lease.holds(lease.now()));
        while lease.now() == start {}
        lease.renew(after(start, 10_000));
        assert_eq!(lease.state_of(start, after(start, 5_000)), HoldState::MayHavePassed);
        assert_eq!(lease.state_of(start, after(start, 899)), HoldState::Held);
    }
}
