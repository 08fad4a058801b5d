//! Wall time as an [`Instant`] of the run.

use bentpipe_core::time::{Duration, Instant};
use rustix::thread::clock_nanosleep_absolute;
use rustix::time::{ClockId, Timespec, clock_gettime};

/// `CLOCK_MONOTONIC`, relative to the creation of this value.
///
/// `CLOCK_REALTIME` can be set at any time. `CLOCK_MONOTONIC_RAW` costs a system call on some
/// machines, and timers do not follow its rate.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin_ns: u64,
}

impl Clock {
    /// A clock that starts now, at zero.
    #[must_use]
    pub fn start() -> Self {
        Self { origin_ns: monotonic_ns() }
    }

    /// The time since the start.
    #[must_use]
    pub fn now(self) -> Instant {
        Instant::from_nanos(monotonic_ns() - self.origin_ns)
    }

    /// Converts a `CLOCK_REALTIME` time to this clock by their current offset. The error is some
    /// ten nanoseconds if `CLOCK_REALTIME` is not set in between.
    #[must_use]
    pub fn from_real_time(self, seconds: i64, nanos: i64) -> Instant {
        let real = clock_gettime(ClockId::Realtime);
        let now = self.now();
        let ago = (real.tv_sec - seconds) * 1_000_000_000 + (real.tv_nsec - nanos);
        Instant::from_nanos(now.as_nanos().saturating_add_signed(-ago))
    }

    /// The current offset between this clock and `CLOCK_REALTIME`.
    #[must_use]
    pub fn real_time_offset(self) -> RealTimeOffset {
        // Each reading of one clock lies between two readings of the other. The narrowest of three
        // tries is the one that was not preempted.
        let tries = (0..3).map(|_| {
            let before = monotonic_ns();
            let real = clock_gettime(ClockId::Realtime);
            let elapsed = monotonic_ns() - before;
            (elapsed, before + elapsed / 2, real)
        });
        let (elapsed, now, real) = tries.min_by_key(|&(elapsed, ..)| elapsed).expect("three tries");
        let real = real.tv_sec.unsigned_abs() * 1_000_000_000 + real.tv_nsec.unsigned_abs();
        let at_start_ns = real.saturating_sub(now - self.origin_ns);
        RealTimeOffset { at_start_ns, uncertainty: Duration::from_nanos(elapsed / 2) }
    }

    /// Sleeps until `at`, or until a signal arrives.
    pub fn sleep_until(self, at: Instant) {
        let nanos = at.as_nanos().saturating_add(self.origin_ns);
        let request = Timespec {
            tv_sec: (nanos / 1_000_000_000).cast_signed(),
            tv_nsec: (nanos % 1_000_000_000).cast_signed(),
        };
        // EINTR: a signal ended the sleep.
        let _ = clock_nanosleep_absolute(ClockId::Monotonic, &request);
    }

    /// Waits until `at` to within about a microsecond: sleeps first, then spins.
    pub fn wait_until(self, at: Instant) {
        loop {
            let left = at.saturating_since(self.now());
            if left == Duration::ZERO {
                return;
            }
            let sleep = left.saturating_sub(SLEEP_MARGIN);
            if sleep > Duration::ZERO {
                std::thread::sleep(std::time::Duration::from_nanos(sleep.as_nanos()));
            }
        }
    }
}

/// The offset between a [`Clock`] and `CLOCK_REALTIME`. Both run at the same rate, adjtime(3) and
/// NTP included, so the offset is constant until `CLOCK_REALTIME` is set (clock_gettime(2)) or the
/// machine is suspended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RealTimeOffset {
    /// `CLOCK_REALTIME` at the start of the clock, in nanoseconds, assuming the current offset.
    pub at_start_ns: u64,
    /// The error bound of `at_start_ns`, in either direction.
    pub uncertainty: Duration,
}

/// A sleep may overrun by this much.
const SLEEP_MARGIN: Duration = Duration::from_micros(80);

/// `CLOCK_REALTIME`: nanoseconds since 1970, 0 before. It can be set at any time.
#[must_use]
pub fn unix_nanos() -> u64 {
    let now = clock_gettime(ClockId::Realtime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(now.tv_nsec.unsigned_abs())
}

fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}
