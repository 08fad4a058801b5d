//! The distribution of packet lateness, the limits for a valid run, and what lateness can change.

use bentpipe_core::delays::DelayHistogram;
use bentpipe_core::time::Duration;

/// How late packets were.
#[derive(Clone, Debug, Default)]
pub struct Lateness {
    delays: DelayHistogram,
    limits: Limits,
    /// The shortest round trip of the link while packets were counted.
    round_trip: Duration,
    /// Packets that were late, and those late by more than any packet may be, by the limits that held when
    /// they left.
    late: u64,
    too_late: u64,
}

/// See `sched_setattr(2)` and `setpriority(2)`.
const NO_PRIORITY: &str =
    " (the link has no priority over other programs: that takes CAP_SYS_NICE, which root has)";

/// The limits of lateness for a valid run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// A packet that is later counts as late: 1 ms or, if that is more, 1 % of a round trip with jitter.
    pub late: Duration,
    /// No packet may be later: 10 ms or, if that is more, 2 % of a round trip with jitter.
    pub max: Duration,
    /// The shortest round trip of connections over the link; zero if unknown.
    pub round_trip: Duration,
}

impl Default for Limits {
    /// Those of a link without delay.
    fn default() -> Self {
        Self::of_link(Duration::ZERO, Duration::ZERO)
    }
}

impl Limits {
    /// The limits of a link: its delay and its jitter are the sums of both directions.
    #[must_use]
    pub fn of_link(round_trip: Duration, jitter: Duration) -> Self {
        let longest = (round_trip + jitter).as_nanos();
        Self {
            late: Duration::from_millis(1).max(Duration::from_nanos(longest / 100)),
            max: Duration::from_millis(10).max(Duration::from_nanos(longest / 50)),
            round_trip,
        }
    }
}

/// How many of some packets may be late: 1 in 100. Of few packets, a share says little: up to three
/// may be late, at most 1 in 10.
fn late_packets_allowed(packets: u64) -> u64 {
    packets.div_ceil(100).max(packets.div_ceil(10).min(3))
}

impl Lateness {
    /// No packets yet.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self { limits, round_trip: limits.round_trip, ..Self::default() }
    }

    /// Forgets all packets.
    pub fn restart(&mut self) {
        *self = Self::new(self.limits);
    }

    /// Sets the limits of packets from now on.
    pub fn set_limits(&mut self, limits: Limits) {
        let before = if self.count() == 0 { limits.round_trip } else { self.round_trip };
        self.round_trip = before.min(limits.round_trip);
        self.limits = limits;
    }

    /// Counts one packet.
    #[inline]
    pub fn add(&mut self, late: Duration) {
        self.delays.add(late);
        self.late += u64::from(late > self.limits.late);
        self.too_late += u64::from(late > self.limits.max);
    }

    /// The number of packets.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.delays.count()
    }

    /// The number of late packets.
    #[must_use]
    pub fn late(&self) -> u64 {
        self.late
    }

    /// The maximum.
    #[must_use]
    pub fn max(&self) -> Duration {
        self.delays.max()
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
        self.delays.at_rank(rank.max(1)).unwrap_or(Duration::ZERO)
    }

    /// Adds the packets of another distribution, whose limits hold from now on.
    pub fn merge(&mut self, other: &Self) {
        let before = if self.count() == 0 { other.round_trip } else { self.round_trip };
        self.round_trip = before.min(other.round_trip);
        self.limits = other.limits;
        self.delays.merge(&other.delays);
        self.late += other.late;
        self.too_late += other.too_late;
    }

    /// By how much of its time a connection over the link can be slower, at most, because packets were
    /// late in this time (`docs/model/real-time.md` has the proof). A chain of round trips in the time
    /// has two packets each: no more lateness than that of so many packets, the latest of all.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "an error of 2^-53 of a share")]
    pub fn slowdown(&self, time: Duration) -> f64 {
        let round_trips = time.as_nanos().checked_div(self.round_trip.as_nanos());
        let mut left = round_trips.map_or(u64::MAX, |whole| 2 * (whole + 1));
        let mut sum_ns = 0.0;
        for (upper, count) in self.delays.from_largest() {
            let counted = count.min(left);
            sum_ns += counted as f64 * upper.as_nanos() as f64;
            left -= counted;
        }
        sum_ns / time.as_nanos().max(1) as f64
    }

    /// Why this distribution makes a run invalid, if it does. The reason mentions a link without priority.
    #[must_use]
    pub fn reason(&self, has_priority: bool) -> Option<String> {
        let (count, limits) = (self.count(), self.limits);
        let allowed = late_packets_allowed(count);
        (self.late > allowed || self.too_late > 0).then(|| {
            let ms = |time: Duration| (time.as_nanos() as f64 / 1e4).round() / 1e2;
            format!(
                "packets were late by up to {:.1} ms (limit {} ms), {} of {count} by more than {} ms (limit {allowed} \
                 packets); to fix it: stop other programs, send less, or choose a slower link or another machine{}",
                ms(self.max()),
                ms(limits.max),
                self.late,
                ms(limits.late),
                if has_priority { "" } else { NO_PRIORITY },
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The round trip of a geostationary link.
    const GEO: Duration = Duration::from_millis(543);

    fn micros(count: u64) -> Duration {
        Duration::from_micros(count)
    }

    fn lateness(round_trip: Duration, packets: &[(u64, u64)]) -> Lateness {
        let mut found = Lateness::new(Limits::of_link(round_trip, Duration::ZERO));
        for &(count, late_us) in packets {
            (0..count).for_each(|_| found.add(micros(late_us)));
        }
        found
    }

    fn is_valid(round_trip: Duration, packets: &[(u64, u64)]) -> bool {
        lateness(round_trip, packets).reason(true).is_none()
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

    #[test]
    fn merged_histograms_have_the_sum_of_the_counts() {
        let (mut one, mut other, mut both) = <(Lateness, Lateness, Lateness)>::default();
        for count in 1..=2_000 {
            let part = if count % 3 == 0 { &mut one } else { &mut other };
            part.add(micros(count));
            both.add(micros(count));
        }
        one.merge(&other);
        assert_eq!((one.count(), one.late(), one.max()), (2_000, 1_000, both.max()));
        assert_eq!(one.fields(), both.fields());
    }

    /// Given a quiet run of 33 packets, expect 1.9 ms to be on time on a link of 543 ms; and on one
    /// without delay up to three packets to be late, not more.
    #[test]
    fn a_quiet_short_run_is_not_judged_by_a_percentile() {
        assert!(is_valid(GEO, &[(33, 1_900)]));
        for (late, valid) in [(1, true), (3, true), (4, false)] {
            assert_eq!(
                is_valid(Duration::ZERO, &[(33 - late, 40), (late, 1_900)]),
                valid,
                "{late}"
            );
        }
        assert!(!is_valid(Duration::ZERO, &[(8, 40), (2, 1_900)]), "1 in 10");
        assert!(is_valid(Duration::ZERO, &[(9, 40), (1, 1_900)]));
    }

    /// Given 10,000 packets of which 1 in 100 is late, expect a valid run; given one more, an invalid
    /// one. On a link of 543 ms, packets are late by more than 5.43 ms.
    #[test]
    fn a_late_long_run_is_invalid() {
        for (round_trip, late_us) in [(Duration::ZERO, 1_001), (GEO, 5_431)] {
            assert!(is_valid(round_trip, &[(9_900, 40), (100, late_us)]));
            assert!(!is_valid(round_trip, &[(9_899, 40), (101, late_us)]));
            assert!(is_valid(round_trip, &[(10_000, late_us - 1)]), "exactly on the limit");
        }
    }

    /// Given one packet of 10,000 that is late by exactly the maximum, and by 1 us more.
    #[test]
    fn no_packet_may_be_later_than_the_maximum() {
        for (round_trip, max_us) in [(Duration::ZERO, 10_000), (GEO, 10_860)] {
            assert!(is_valid(round_trip, &[(9_999, 40), (1, max_us)]));
            let late = lateness(round_trip, &[(9_999, 40), (1, max_us + 10)]);
            let reason = late.reason(true).expect("one is too late");
            let limit = max_us as f64 / 1e3;
            assert!(
                reason.contains(&format!("(limit {limit} ms), 1 of 10000 by more")),
                "{reason}"
            );
        }
    }

    #[test]
    fn jitter_of_the_link_counts_as_its_delay() {
        let limits = Limits::of_link(Duration::from_millis(100), Duration::from_millis(600));
        assert_eq!((limits.late, limits.max), (micros(7_000), micros(14_000)));
        assert_eq!(limits.round_trip, Duration::from_millis(100));
    }

    /// Given a link whose delay decreases, expect each packet to be judged by the limit that held when
    /// it left, and the bound by the shortest round trip.
    #[test]
    fn a_packet_is_judged_by_the_link_that_it_left() {
        let mut lateness = lateness(GEO, &[(100, 1_900)]);
        lateness.set_limits(Limits::of_link(Duration::from_millis(26), Duration::ZERO));
        assert_eq!(lateness.late(), 0);
        (0..100).for_each(|_| lateness.add(micros(1_900)));
        assert_eq!(lateness.late(), 100);
        assert_eq!(lateness.round_trip, Duration::from_millis(26));
        lateness.restart();
        lateness.set_limits(Limits::of_link(GEO, Duration::ZERO));
        assert_eq!((lateness.late(), lateness.round_trip), (0, GEO));
    }

    /// Given 2 s, so at most 8 packets of a chain of round trips of 543 ms: 33 packets late by 1.9 ms
    /// can slow it by 8 times 1.9 ms of 2 s, 0.76 %, and 2 of them by 3.8 ms and the rest.
    #[test]
    fn a_connection_is_slowed_by_the_latest_packets_of_a_chain() {
        let two = Duration::from_secs(2);
        let slowdown = |packets: &[(u64, u64)]| lateness(GEO, packets).slowdown(two);
        let close = |found: f64, exact: f64| found >= exact && found <= 1.004 * exact;
        assert!(close(slowdown(&[(33, 1_900)]), 8.0 * 1.9e-3 / 2.0));
        assert!(close(slowdown(&[(31, 100), (2, 1_900)]), (2.0 * 1.9e-3 + 6.0 * 1e-4) / 2.0));
        // Without a known round trip, all packets may be on the chain.
        assert!(close(lateness(Duration::ZERO, &[(33, 1_900)]).slowdown(two), 33.0 * 1.9e-3 / 2.0));
        assert!(slowdown(&[]).abs() < f64::EPSILON);
    }

    /// Given a link with and one without priority, expect only the second to be told what gives it.
    #[test]
    fn a_reason_mentions_a_missing_priority() {
        let late = lateness(Duration::ZERO, &[(1, 11_000)]);
        let [with, without] = [true, false].map(|has| late.reason(has).expect("too late"));
        assert!(with.ends_with("another machine"), "{with}");
        assert_eq!(without, with + NO_PRIORITY);
    }
}
