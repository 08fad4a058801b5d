//! Wall time as an [`Instant`] of the run.

use bentpipe_core::time::{Duration, Instant};
use rustix::thread::clock_nanosleep_absolute;
use rustix::time::{ClockId, Timespec, clock_gettime};

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

    /// When, on this clock, the machine's real-time clock shows a time: as far apart as the two are
    /// now, which is right to some ten nanoseconds while nobody sets that clock.
    #[must_use]
    pub fn at_real_time(self, seconds: i64, nanos: i64) -> Instant {
        let real = clock_gettime(ClockId::Realtime);
        let now = self.now();
        let ago = (real.tv_sec - seconds) * 1_000_000_000 + (real.tv_nsec - nanos);
        Instant::from_nanos(now.as_nanos().saturating_add_signed(-ago))
    }

    /// How far apart this clock and the machine's real-time clock are now.
    #[must_use]
    pub fn compare(self) -> RealTime {
        // Between two looks at one clock lies the look at the other. Of several tries the one counts
        // during which this thread had the processor.
        let tries = (0..3).map(|_| {
            let before = monotonic_ns();
            let real = clock_gettime(ClockId::Realtime);
            let took = monotonic_ns() - before;
            (took, before + took / 2, real)
        });
        let (took, now, real) = tries.min_by_key(|&(took, ..)| took).expect("there were three");
        let real = real.tv_sec.unsigned_abs() * 1_000_000_000 + real.tv_nsec.unsigned_abs();
        let at_start_ns = real.saturating_sub(now - self.origin_ns);
        RealTime { at_start_ns, uncertainty: Duration::from_nanos(took / 2) }
    }

    /// Sleeps until `at`, or until a signal comes.
    pub fn sleep_until(self, at: Instant) {
        let nanos = at.as_nanos().saturating_add(self.origin_ns);
        let request = Timespec {
            tv_sec: (nanos / 1_000_000_000).cast_signed(),
            tv_nsec: (nanos % 1_000_000_000).cast_signed(),
        };
        // It fails if a signal ends it.
        let _ = clock_nanosleep_absolute(ClockId::Monotonic, &request);
    }

    /// Waits until `at`, to a microsecond or so: asleep at first, then looking.
    pub fn wait_until(self, at: Instant) {
        loop {
            let left = at.saturating_since(self.now());
            if left == Duration::ZERO {
                return;
            }
            let asleep = left.saturating_sub(OVERSLEPT);
            if asleep > Duration::ZERO {
                std::thread::sleep(std::time::Duration::from_nanos(asleep.as_nanos()));
            }
        }
    }
}

/// How far apart a [`Clock`] and the machine's real-time clock are. Both run at one rate, adjtime(3) and
/// NTP included, so this stays as it is until somebody sets the real-time clock (clock_gettime(2)), or
/// the machine was suspended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RealTime {
    /// What the real-time clock showed when the other was at zero, in nanoseconds, if the two were as
    /// far apart then as they are now.
    pub at_start_ns: u64,
    /// By how much that may be wrong, either way.
    pub uncertainty: Duration,
}

/// A sleep may last this much longer than asked for.
const OVERSLEPT: Duration = Duration::from_micros(80);

fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}
