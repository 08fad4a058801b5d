//! Wall time as an [`Instant`] of the run.

use bentpipe_core::time::Instant;
use rustix::time::{ClockId, clock_gettime};

/// The machine's monotonic clock, counted from when this was made.
///
/// Monotonic, because the clock on the wall is set by others; and not the raw one, whose reading
/// costs a system call on some machines and whose rate nobody else's timers follow.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin_ns: u64,
}

impl Clock {
    /// A clock that starts now.
    #[must_use]
    pub fn start() -> Self {
        Self { origin_ns: monotonic_ns() }
    }

    /// How long ago it started.
    #[must_use]
    pub fn now(self) -> Instant {
        Instant::from_nanos(monotonic_ns() - self.origin_ns)
    }
}

fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}
