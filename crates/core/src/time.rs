//! Instants and durations in whole nanoseconds.
//!
//! An [`Instant`] counts nanoseconds since the start of the run. Unlike the standard library's, it can
//! be constructed, printed, stored and replayed. 64 bits hold 584 years. "Never" is `None`; there is no
//! `now()`.

use core::fmt;
use core::num::NonZeroU64;
use core::ops::{Add, AddAssign, Sub};

/// A point in time: nanoseconds since the start of the run, up to 2^64 - 2.
///
/// Stored plus one, so that zero is free and `Option<Instant>` is one word: hosts hold many
/// deadlines that may be unset, and every call of an engine returns one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(NonZeroU64);

/// A length of time in nanoseconds.
///
/// One word, where the standard type has separate seconds and nanoseconds: the inner loop adds and
/// compares durations several times per packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Duration(u64);

impl Instant {
    /// The start of the run.
    pub const START: Self = Self(NonZeroU64::MIN);

    /// The instant `nanos` nanoseconds after the start of the run.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(NonZeroU64::MIN.saturating_add(nanos))
    }

    /// The instant `millis` milliseconds after the start of the run.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self::from_nanos(millis * 1_000_000)
    }

    /// Nanoseconds since the start of the run.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0.get() - 1
    }

    /// Time since `earlier`; zero if `earlier` is later.
    #[must_use]
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        Duration(self.0.get().saturating_sub(earlier.0.get()))
    }
}

/// The earlier of two deadlines that may be unset. Zero, which stands for `None`, becomes the latest by
/// subtracting one; this has no branches, which would depend on unpredictable timers.
#[inline]
pub(crate) fn earlier(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    let rank = |at: Option<Instant>| at.map_or(0, |at| at.0.get()).wrapping_sub(1);
    NonZeroU64::new(rank(a).min(rank(b)).wrapping_add(1)).map(Instant)
}

impl Duration {
    /// The empty duration.
    pub const ZERO: Self = Self(0);

    /// `nanos` nanoseconds.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// `micros` microseconds.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros * 1_000)
    }

    /// `millis` milliseconds.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis * 1_000_000)
    }

    /// `secs` seconds.
    #[must_use]
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs * 1_000_000_000)
    }

    /// The length in nanoseconds.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The length in seconds, for estimators; event times are never derived from it without rounding.
    #[must_use]
    #[expect(
        clippy::cast_precision_loss,
        reason = "2^53 ns is 104 days; an estimator does not see the rest"
    )]
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// `self * factor`, saturating.
    #[must_use]
    pub const fn saturating_mul(self, factor: u64) -> Self {
        Self(self.0.saturating_mul(factor))
    }

    /// `self - other`, or zero if that is negative.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// The absolute difference of two durations.
    #[must_use]
    pub const fn abs_diff(self, other: Self) -> Self {
        Self(self.0.abs_diff(other.0))
    }

    /// The smallest multiple of `step` that is not below `self`; `self` if `step` is zero.
    #[must_use]
    pub const fn round_up_to(self, step: Self) -> Self {
        if step.0 == 0 { self } else { Self(self.0.div_ceil(step.0).saturating_mul(step.0)) }
    }
}

impl Add<Duration> for Instant {
    type Output = Self;
    /// Saturates 584 years after the start.
    fn add(self, rhs: Duration) -> Self {
        Self(self.0.saturating_add(rhs.0))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, rhs: Duration) {
        *self = *self + rhs;
    }
}

impl Sub for Instant {
    type Output = Duration;
    /// # Panics
    /// In debug builds, if `rhs` is later than `self`.
    fn sub(self, rhs: Self) -> Duration {
        debug_assert!(self >= rhs, "an earlier instant {self} minus a later one {rhs}");
        self.saturating_since(rhs)
    }
}

impl Add for Duration {
    type Output = Self;
    fn add(self, rhs: Self) -> Self {
        Self(self.0.saturating_add(rhs.0))
    }
}

impl AddAssign for Duration {
    fn add_assign(&mut self, rhs: Self) {
        *self = *self + rhs;
    }
}

impl Default for Instant {
    fn default() -> Self {
        Self::START
    }
}

impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Instant").field(&self.as_nanos()).finish()
    }
}

impl fmt::Display for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Duration(self.as_nanos()).fmt(f)
    }
}

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09} s", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_and_durations_add_up() {
        let start = Instant::from_millis(1_500);
        let later = start + Duration::from_micros(250);
        assert_eq!(later - start, Duration::from_nanos(250_000));
        assert_eq!(start.saturating_since(later), Duration::ZERO);
        assert_eq!(later.to_string(), "1.500250000 s");
        assert_eq!(Duration::from_secs(2).to_string(), "2.000000000 s");
    }

    #[test]
    fn an_optional_instant_is_one_word() {
        assert_eq!(size_of::<Option<Instant>>(), size_of::<u64>());
        assert_eq!((Instant::START.as_nanos(), Instant::default()), (0, Instant::START));
        assert_eq!(format!("{:?}", Instant::from_nanos(7)), "Instant(7)");
    }

    #[test]
    fn the_earlier_of_two_deadlines_is_one_that_is_set() {
        let [start, later, end] = [0, 5, u64::MAX].map(|at| Some(Instant::from_nanos(at)));
        for (a, b, expected) in [
            (None, None, None),
            (start, None, start),
            (end, None, end),
            (start, later, start),
            (end, later, later),
        ] {
            assert_eq!((earlier(a, b), earlier(b, a)), (expected, expected));
        }
    }

    #[test]
    fn addition_saturates_at_the_largest_instant() {
        let end = Instant::from_nanos(u64::MAX);
        assert_eq!(end + Duration::from_secs(1), end);
        assert_eq!(Duration::from_nanos(u64::MAX).saturating_mul(2).as_nanos(), u64::MAX);
    }

    #[test]
    fn rounding_up_reaches_the_next_tick_and_stays_on_a_tick() {
        let tick = Duration::from_millis(500);
        assert_eq!(Duration::from_millis(1).round_up_to(tick), tick);
        assert_eq!(tick.round_up_to(tick), tick);
        assert_eq!(Duration::from_millis(501).round_up_to(tick), Duration::from_secs(1));
        assert_eq!(Duration::from_millis(3).round_up_to(Duration::ZERO), Duration::from_millis(3));
    }
}
