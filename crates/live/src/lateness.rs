//! How late packets were: a distribution, and what may be said of a run because of it.

use bentpipe_core::time::Duration;

/// Counts of durations in classes of 1/16 of an octave: quantiles within 6.25 % at any size, in a
/// fixed room and without a decision per packet.
#[derive(Clone, Debug)]
pub struct Lateness {
    classes: Vec<u64>,
    count: u64,
    max_ns: u64,
}

const CLASSES_PER_OCTAVE: u64 = 16;
const CLASSES: usize = 64 * CLASSES_PER_OCTAVE as usize;

/// What a run may not exceed for its figures to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// For 99 of 100 packets.
    pub p99: Duration,
    /// For every packet.
    pub max: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { p99: Duration::from_millis(1), max: Duration::from_millis(10) }
    }
}

impl Default for Lateness {
    fn default() -> Self {
        Self { classes: vec![0; CLASSES], count: 0, max_ns: 0 }
    }
}

impl Lateness {
    /// Counts one packet.
    #[inline]
    pub fn add(&mut self, late: Duration) {
        let nanos = late.as_nanos();
        self.classes[class_of(nanos)] += 1;
        self.count += 1;
        self.max_ns = self.max_ns.max(nanos);
    }

    /// How many were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The latest.
    #[must_use]
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.max_ns)
    }

    /// What a share of the packets, from 0 to 1, did not exceed: the upper end of a class, so at most
    /// 6.25 % too much. Zero if nothing was counted.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "2^53 packets are more than a year of them")]
    pub fn quantile(&self, share: f64) -> Duration {
        let wanted = share * self.count as f64;
        let mut below = 0;
        for (class, &count) in self.classes.iter().enumerate() {
            below += count;
            if count > 0 && below as f64 >= wanted {
                return Duration::from_nanos(upper_end(class as u64).min(self.max_ns));
            }
        }
        self.max()
    }

    /// What no more than 1 of 100 packets exceeded, or one packet where there are fewer than 100.
    #[must_use]
    pub fn p99(&self) -> Duration {
        let within = self.count - self.count.div_ceil(100);
        let mut below = 0;
        for (class, &count) in self.classes.iter().enumerate() {
            below += count;
            if below >= within {
                let end = if within == 0 { 0 } else { upper_end(class as u64) };
                return Duration::from_nanos(end.min(self.max_ns));
            }
        }
        self.max()
    }

    /// Adds what another counted.
    pub fn merge(&mut self, other: &Self) {
        for (sum, count) in self.classes.iter_mut().zip(&other.classes) {
            *sum += count;
        }
        self.count += other.count;
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// Why the figures of packets that were so late do not count, if they do not.
    #[must_use]
    pub fn verdict(&self, limits: Limits) -> Option<String> {
        limits.reason(self.quantile(0.99), self.max())
    }
}

impl Limits {
    /// Why lateness with this 99th percentile and maximum is too much, if it is.
    #[must_use]
    pub fn reason(self, p99: Duration, max: Duration) -> Option<String> {
        let text = |name, found, limit| {
            Some(format!(
                "lateness {name} is {found} but must not exceed {limit}; to fix it: end other programs, \
                 or send less"
            ))
        };
        if p99 > self.p99 {
            return text("p99", p99, self.p99);
        }
        if max > self.max { text("maximum", max, self.max) } else { None }
    }
}

/// Below 16 ns a class each; above, the four bits after the first.
fn class_of(nanos: u64) -> usize {
    if nanos < CLASSES_PER_OCTAVE {
        return nanos as usize;
    }
    let octave = u64::from(nanos.ilog2());
    let part = (nanos >> (octave - 4)) & (CLASSES_PER_OCTAVE - 1);
    ((octave - 3) * CLASSES_PER_OCTAVE + part) as usize
}

/// The largest value of a class.
fn upper_end(class: u64) -> u64 {
    if class < CLASSES_PER_OCTAVE {
        return class;
    }
    let (octave, part) = (class / CLASSES_PER_OCTAVE + 3, class % CLASSES_PER_OCTAVE);
    ((1 << octave) - 1) + ((part + 1) << (octave - 4))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn micros(count: u64) -> Duration {
        Duration::from_micros(count)
    }

    /// Given 1 to 1,000 microseconds once each, expect every quantile within a sixteenth above.
    #[test]
    fn quantiles_are_those_of_what_was_counted() {
        let mut lateness = Lateness::default();
        (1..=1_000).for_each(|count| lateness.add(micros(count)));
        assert_eq!((lateness.count(), lateness.max()), (1_000, micros(1_000)));
        for (share, exact) in [(0.0, 1), (0.5, 500), (0.99, 990), (1.0, 1_000)] {
            let found = lateness.quantile(share);
            assert!(found >= micros(exact), "{share}: {found}");
            assert!(found.as_nanos() <= micros(exact).as_nanos() * 17 / 16, "{share}: {found}");
        }
    }

    /// Given 1 to 1,000 microseconds once each, expect 10 above the 99th percentile of a window; given
    /// one packet, or two, expect one above it.
    #[test]
    fn one_in_a_hundred_or_one_is_above_the_percentile() {
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
    fn what_was_counted_apart_is_added_up() {
        let (mut one, mut other, mut both) = <(Lateness, Lateness, Lateness)>::default();
        for count in 1..=1_000 {
            let part = if count % 3 == 0 { &mut one } else { &mut other };
            part.add(micros(count));
            both.add(micros(count));
        }
        one.merge(&other);
        assert_eq!((one.count(), one.max()), (both.count(), both.max()));
        assert_eq!((one.classes, one.max_ns), (both.classes, both.max_ns));
    }

    #[test]
    fn a_run_counts_up_to_its_limits() {
        let mut lateness = Lateness::default();
        assert_eq!(lateness.verdict(Limits::default()), None);
        (0..10_000).for_each(|_| lateness.add(micros(40)));
        (0..50).for_each(|_| lateness.add(micros(9_000)));
        assert_eq!(lateness.verdict(Limits::default()), None, "half a percent");
        lateness.add(micros(10_001));
        let verdict = lateness.verdict(Limits::default()).expect("one is too late");
        assert!(verdict.contains("0.010001000 s but must not exceed 0.010000000 s"), "{verdict}");
        (0..60).for_each(|_| lateness.add(micros(9_000)));
        let verdict = lateness.verdict(Limits::default()).expect("over a percent");
        assert!(verdict.starts_with("lateness p99"), "{verdict}");
    }

    proptest! {
        #[test]
        fn a_value_lies_in_its_class(nanos: u64) {
            let class = class_of(nanos) as u64;
            let lower = if class == 0 { 0 } else { upper_end(class - 1) + 1 };
            prop_assert!((lower..=upper_end(class)).contains(&nanos));
            prop_assert!((class as usize) < CLASSES);
        }
    }
}
