//! Limits of rates.

use crate::time::{Duration, Instant};

/// A rate with bursts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenRate {
    /// The time for a token.
    pub each: Duration,
    /// The most tokens at a time; at least one.
    pub burst: u64,
}

/// A token bucket that stores one instant (GCRA, ITU-T I.371): when it will be full again.
#[derive(Clone, Copy, Debug)]
pub struct TokenBucket {
    full_at: Instant,
}

impl TokenBucket {
    /// A full bucket.
    pub const FULL: Self = Self { full_at: Instant::START };

    /// Takes a token, if there is one.
    pub fn take(&mut self, rate: TokenRate, now: Instant) -> bool {
        let full_at = self.full_at.max(now);
        let missing = full_at.saturating_since(now);
        if missing > rate.each.saturating_mul(rate.burst - 1) {
            return false;
        }
        self.full_at = full_at + rate.each;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Given 60 requests at once of a bucket with 50 tokens, one more each millisecond, expect 50 to be admitted, and
    /// later one for each millisecond.
    #[test]
    fn a_burst_is_admitted_and_then_the_rate() {
        let rate = TokenRate { each: Duration::from_millis(1), burst: 50 };
        let mut bucket = TokenBucket::FULL;
        let mut admitted =
            |millis| (0..60).filter(|_| bucket.take(rate, Instant::from_millis(millis))).count();
        assert_eq!([0, 0, 1, 3, 1_000].map(&mut admitted), [50, 0, 1, 2, 50]);
    }
}
