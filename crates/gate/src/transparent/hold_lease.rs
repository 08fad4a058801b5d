//! Until when the rules hold new connections.
//!
//! A SYN that arrives while they do not passes by itself. If the SYN holder opened a leg for it, too, the server would
//! see two connections with the same addresses and ports.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bentpipe_core::time::Instant;
use bentpipe_sys::clock::Clock;
use rustix::event::{EventfdFlags, eventfd};

/// See the module documentation.
#[derive(Debug)]
pub struct HoldLease {
    clock: Clock,
    until_ns: AtomicU64,
    /// Whether SYNs that arrived while the rules did not hold them may still wait to be read.
    is_stale: AtomicBool,
    /// Readable from then on.
    event: OwnedFd,
}

impl HoldLease {
    /// The rules hold nothing yet.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn start() -> io::Result<Self> {
        let (until_ns, is_stale) = (AtomicU64::new(0), AtomicBool::new(false));
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { clock: Clock::start(), until_ns, is_stale, event })
    }

    /// The time, as [`HoldLease::renew`] takes it.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    /// The rules were renewed, and hold new connections until then at least.
    pub fn renew(&self, until: Instant) {
        let was_held = self.holds();
        if !was_held {
            self.is_stale.store(true, Ordering::Release);
        }
        self.until_ns.store(until.as_nanos(), Ordering::Release);
        if !was_held {
            // Without it the next SYN does the same.
            let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
        }
    }

    /// Whether a SYN that has arrived now was held. If it was not, it passes by itself.
    pub(super) fn holds(&self) -> bool {
        self.until_ns.load(Ordering::Acquire) > self.now().as_nanos()
    }

    /// Whether what waits to be read may be older than the rules. Call it after [`HoldLease::holds`].
    pub(super) fn take_stale(&self) -> bool {
        if !self.is_stale.load(Ordering::Acquire) {
            return false;
        }
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
        self.is_stale.swap(false, Ordering::AcqRel)
    }
}

impl AsFd for HoldLease {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use bentpipe_core::time::Duration;

    use super::*;

    /// Given rules that were never renewed, expect SYNs not to be held; then to be, and those that wait to be old, once;
    /// the same after rules that have expired.
    #[test]
    fn syns_are_held_while_the_rules_are_renewed() {
        let lease = HoldLease::start().expect("an event");
        assert!(!lease.holds());
        for _ in 0..2 {
            lease.renew(lease.now() + Duration::from_secs(1_000));
            assert!(lease.holds() && lease.take_stale() && !lease.take_stale());
            lease.renew(lease.now() + Duration::from_secs(1_000));
            assert!(lease.holds() && !lease.take_stale());
            lease.renew(Instant::START);
            assert!(!lease.holds());
        }
    }
}
