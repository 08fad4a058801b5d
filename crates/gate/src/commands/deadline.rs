//! The end of a wait.

use std::time::Duration;

use bentpipe_core::time::Instant;
use bentpipe_sys::clock::Clock;

/// A time from which on nothing is waited for any more.
pub(super) struct Deadline {
    clock: Clock,
    at: Instant,
}

impl Deadline {
    pub(super) fn after(time: Duration) -> Self {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Self { clock: Clock::start(), at: Instant::from_nanos(nanos) }
    }

    pub(super) fn is_past(&self) -> bool {
        self.clock.now() > self.at
    }
}
