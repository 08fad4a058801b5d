//! The distribution of packet lateness, and the limits for a valid run.

use bentpipe_core::delays::DelayHistogram;
use bentpipe_core::time::Duration;

/// How late packets were.
#[derive(Clone, Debug, Default)]
pub struct Lateness(DelayHistogram);

/// See `sched_setattr(2)` and `setpriority(2)`.
const NO_PRIORITY: &str =
    " (the link has no priority over other programs: that takes CAP_SYS_NICE, which root has)";

/// The limits of lateness for a valid run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Of the 99th percentile.
    pub p99: Duration,
    /// Of the maximum.
    pub max: Duration,
    /// Whether the link has priority over other programs. If not, a reason says so.
    pub has_priority: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self { p99: Duration::from_millis(1), max: Duration::from_millis(10), has_priority: true }
    }
}

impl Lateness {
    /// Counts one packet.
    #[inline]
    pub fn add(&mut self, late: Duration) {
        self.0.add(late);
    }

    /// The number of packets.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.count()
    }

    /// The maximum.
    #[must_use]
    pub fn max(&self) -> Duration {
        self.0.max()
    }

    /// The number of packets, and quantiles in ns, by name.
    #[must_use]
    pub fn fields(&self) -> [(&'static str, u64); 6] {
        let quantile = |share| self.quantile(share).as_nanos();
        [
            ("packets", self.count()),
            ("p50_ns", quantile(0.5)),
            ("p90_ns", quantile(0.9)),
            ("p99_ns", quantile(0.99)),
            ("p999_ns", quantile(0.999)),
            ("max_ns", self.max().as_nanos()),
        ]
    }

    /// The quantile of a share from 0 to 1. Zero without packets.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "2^53 packets are more than a year of them")]
    pub fn quantile(&self, share: f64) -> Duration {
        let rank = (share * self.count() as f64).ceil() as u64;
        self.0.at_rank(rank.max(1)).unwrap_or(Duration::ZERO)
    }

    /// The lateness that at most one in 100 packets exceeds, or one packet if there are fewer than
    /// 100.
    #[must_use]
    pub fn p99(&self) -> Duration {
        let within = self.count() - self.count().div_ceil(100);
        if within == 0 { Duration::ZERO } else { self.0.at_rank(within).unwrap_or(Duration::ZERO) }
    }

    /// Adds the packets of another distribution.
    pub fn merge(&mut self, other: &Self) {
        self.0.merge(&other.0);
    }

    /// Why this distribution makes a run invalid, if it does.
    #[must_use]
    pub fn verdict(&self, limits: Limits) -> Option<String> {
        limits.reason(self.quantile(0.99), self.max())
    }
}

impl Limits {
    /// Why this 99th percentile and maximum make a run invalid, if they do.
    #[must_use]
    pub fn reason(self, p99: Duration, max: Duration) -> Option<String> {
        (p99 > self.p99 || max > self.max).then(|| {
            let ms = |time: Duration| time.as_nanos() as f64 / 1e6;
            format!(
                "packets were late by up to {:.1} ms (limit {} ms), 1 in 100 by {:.1} ms or more (limit {} ms); \
                 to fix it: stop other programs, send less, or choose a slower link or another machine{}",
                ms(max),
                ms(self.max),
                ms(p99),
                ms(self.p99),
                if self.has_priority { "" } else { NO_PRIORITY },
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn micros(count: u64) -> Duration {
        Duration::from_micros(count)
    }

    /// Given 1 to 1,000 microseconds once each, expect every quantile to be within 0.2 % of the exact one.
    #[test]
    fn quantiles_are_close_to_the_exact_ones() {
        let mut lateness = Lateness::default();
        (1..=1_000).for_each(|count| lateness.add(micros(count)));
        assert_eq!((lateness.count(), lateness.max()), (1_000, micros(1_000)));
        for (share, exact) in [(0.0, 1), (0.5, 500), (0.99, 990), (1.0, 1_000)] {
            let found = lateness.quantile(share);
            let error_ns = found.as_nanos().abs_diff(1_000 * exact);
            assert!(error_ns <= 2 * exact, "{share}: {found}");
        }
    }

    /// Given 1 to 1,000 microseconds once each, expect 10 above the 99th percentile; given one
    /// packet, or two, expect one above it.
    #[test]
    fn at_least_one_packet_may_exceed_the_percentile() {
        let mut lateness = Lateness::default();
        assert_eq!(lateness.p99(), Duration::ZERO);
        lateness.add(micros(500));
        assert_eq!(lateness.p99(), Duration::ZERO);
        lateness.add(micros(10));
        assert!(lateness.p99() < micros(11), "{}", lateness.p99());
        let mut lateness = Lateness::default();
        (1..=1_000).for_each(|count| lateness.add(micros(count)));
        assert_eq!(lateness.p99(), lateness.quantile(0.99));
    }

    #[test]
    fn merged_histograms_have_the_sum_of_the_counts() {
        let (mut one, mut other, mut both) = <(Lateness, Lateness, Lateness)>::default();
        for count in 1..=1_000 {
            let part = if count % 3 == 0 { &mut one } else { &mut other };
            part.add(micros(count));
            both.add(micros(count));
        }
        one.merge(&other);
        assert_eq!((one.count(), one.max()), (both.count(), both.max()));
        assert_eq!(one.fields(), both.fields());
    }

    #[test]
    fn a_run_is_valid_up_to_its_limits() {
        let mut lateness = Lateness::default();
        assert_eq!(lateness.verdict(Limits::default()), None);
        (0..10_000).for_each(|_| lateness.add(micros(40)));
        (0..50).for_each(|_| lateness.add(micros(9_000)));
        assert_eq!(lateness.verdict(Limits::default()), None, "half a percent");
        lateness.add(micros(10_001));
        let verdict = lateness.verdict(Limits::default()).expect("one is too late");
        assert!(
            verdict.starts_with("packets were late by up to 10.0 ms (limit 10 ms)"),
            "{verdict}"
        );
        let mut lateness = Lateness::default();
        (0..60).for_each(|_| lateness.add(micros(9_000)));
        let verdict = lateness.verdict(Limits::default()).expect("over a percent");
        assert!(verdict.contains("1 in 100 by 9.0 ms or more (limit 1 ms)"), "{verdict}");
    }

    /// Given a link with and one without priority, expect only the second to be told what gives it.
    #[test]
    fn a_reason_mentions_a_missing_priority() {
        let with = Limits::default();
        let without = Limits { has_priority: false, ..with };
        let reason =
            |limits: Limits| limits.reason(micros(9_000), micros(9_000)).expect("too late");
        assert!(reason(with).ends_with("another machine"), "{}", reason(with));
        assert_eq!(reason(without), reason(with) + NO_PRIORITY);
    }
}
