//! Statistics of one-way delays: percentiles, and the interarrival jitter of RFC 3550.

use crate::time::Duration;

const SUB_BUCKET_BITS: u32 = 8;
/// Buckets of an octave of delays. A bucket is at most 1/256 of its delays wide.
const SUB_BUCKETS: usize = 1 << SUB_BUCKET_BITS;
/// Buckets that are allocated together: a quarter of an octave.
const CHUNK: usize = 64;

/// A histogram of delays with 256 buckets per octave, as `HdrHistogram` has them. A percentile is the
/// middle of a bucket: at most 1/512 (0.2 %) from the exact one.
///
/// Memory is bounded: 2 KiB for each octave between the smallest and the largest delay, and there are at
/// most 57 octaves. A queue rarely varies the delay of a flow by more than three. The `hdrhistogram`
/// crate allocates all octaves from zero.
#[derive(Clone, Debug)]
pub struct DelayHistogram {
    /// The counts of the buckets from `first_bucket` on.
    counts: Vec<u64>,
    first_bucket: usize,
    min_ns: u64,
    max_ns: u64,
}

impl Default for DelayHistogram {
    fn default() -> Self {
        Self { counts: Vec::new(), first_bucket: 0, min_ns: u64::MAX, max_ns: 0 }
    }
}

impl DelayHistogram {
    /// Memory of a histogram over three octaves of delays.
    pub const TYPICAL_BYTES: usize = 3 * SUB_BUCKETS * size_of::<u64>();

    /// Counts a delay.
    #[inline]
    pub fn add(&mut self, delay: Duration) {
        let nanos = delay.as_nanos();
        self.add_without_extremes(delay);
        self.min_ns = self.min_ns.min(nanos);
        self.max_ns = self.max_ns.max(nanos);
    }

    /// Counts a delay in the inner loop: percentiles are not limited to the smallest and the largest delay.
    #[inline]
    pub fn add_without_extremes(&mut self, delay: Duration) {
        let bucket = bucket_of(delay.as_nanos());
        match self.counts.get_mut(bucket.wrapping_sub(self.first_bucket)) {
            Some(count) => *count += 1,
            None => *self.allocate(bucket) += 1,
        }
    }

    /// Allocates the chunk of a bucket.
    #[cold]
    #[inline(never)]
    fn allocate(&mut self, bucket: usize) -> &mut u64 {
        let chunk = bucket / CHUNK * CHUNK;
        if self.counts.is_empty() {
            self.first_bucket = chunk;
        }
        let before = self.first_bucket.saturating_sub(chunk);
        self.counts.splice(..0, std::iter::repeat_n(0, before));
        self.first_bucket = self.first_bucket.min(chunk);
        let end = chunk + CHUNK - self.first_bucket;
        self.counts.resize(self.counts.len().max(end), 0);
        &mut self.counts[bucket - self.first_bucket]
    }

    /// Adds the delays of another histogram.
    pub fn merge(&mut self, other: &Self) {
        for (bucket, &count) in (other.first_bucket..).zip(&other.counts).filter(|of| *of.1 > 0) {
            match self.counts.get_mut(bucket.wrapping_sub(self.first_bucket)) {
                Some(sum) => *sum += count,
                None => *self.allocate(bucket) += count,
            }
        }
        self.min_ns = self.min_ns.min(other.min_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// The number of delays.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The smallest delay that is not exceeded by `percent` of the delays (the nearest rank), within
    /// 0.2 %; `None` without delays.
    #[must_use]
    pub fn percentile(&self, percent: u64) -> Option<Duration> {
        self.percentile_with_zeros(percent, 0)
    }

    /// [`Self::percentile`] with `zeros` more delays of zero.
    #[must_use]
    pub fn percentile_with_zeros(&self, percent: u64, zeros: u64) -> Option<Duration> {
        let count = u128::from(self.count()) + u128::from(zeros);
        let rank = (count * u128::from(percent)).div_ceil(100).max(1) as u64;
        if rank <= zeros { Some(Duration::ZERO) } else { self.at_rank(rank - zeros) }
    }

    /// The delay of this rank, within 0.2 %. The smallest has rank 1.
    #[must_use]
    pub fn at_rank(&self, rank: u64) -> Option<Duration> {
        let mut counted = 0;
        let bucket = self.counts.iter().position(|&count| {
            counted += count;
            counted >= rank
        })?;
        let middle = middle_of(self.first_bucket + bucket);
        let (min, max) = (self.min_ns, self.max_ns);
        let limited = if min <= max { middle.clamp(min, max) } else { middle };
        Some(Duration::from_nanos(limited))
    }

    /// The buckets that have delays, the largest first: an upper bound of their delays, within 0.4 %,
    /// and their number.
    pub fn from_largest(&self) -> impl Iterator<Item = (Duration, u64)> {
        let buckets = self.counts.iter().enumerate().rev().filter(|of| *of.1 > 0);
        buckets.map(|(index, &count)| {
            let (lower, width) = bounds_of(self.first_bucket + index);
            (Duration::from_nanos((lower + (width - 1)).min(self.max_ns)), count)
        })
    }

    /// The largest delay that [`Self::add`] has counted; zero without one.
    #[must_use]
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.max_ns)
    }
}

/// Delays below 256 ns have a bucket each; the octave from 2^k on has 256 buckets of 2^(k-8) ns.
#[inline]
fn bucket_of(nanos: u64) -> usize {
    let shift = (nanos | SUB_BUCKETS as u64).ilog2() - SUB_BUCKET_BITS;
    ((shift as usize) << SUB_BUCKET_BITS) + (nanos >> shift) as usize
}

/// The smallest delay of a bucket, and its width.
fn bounds_of(bucket: usize) -> (u64, u64) {
    let (octave, within) = (bucket / SUB_BUCKETS, (bucket % SUB_BUCKETS) as u64);
    let Some(shift) = octave.checked_sub(1) else { return (within, 1) };
    ((SUB_BUCKETS as u64 + within) << shift, 1 << shift)
}

/// The middle of a bucket.
fn middle_of(bucket: usize) -> u64 {
    let (lower, width) = bounds_of(bucket);
    lower + (width >> 1)
}

/// The interarrival jitter of one stream of datagrams (RFC 3550, section 6.4.1).
#[derive(Clone, Copy, Debug, Default)]
pub struct Jitter {
    /// The delay of the last datagram.
    last: Option<Duration>,
    /// The estimate, times 16 (RFC 3550, appendix A.8).
    scaled_ns: u64,
    /// The sum and the number of the differences.
    sum: Duration,
    differences: u64,
}

impl Jitter {
    /// Updates the estimate with the delay of the next datagram to arrive, in sequence or not:
    /// J += (|D| - J) / 16, where D is the difference of the delays of two datagrams.
    #[inline]
    pub fn add(&mut self, delay: Duration) {
        if let Some(last) = self.last.replace(delay) {
            let difference = delay.as_nanos().abs_diff(last.as_nanos());
            // Rounded as in appendix A.8.
            let sixteenth = (self.scaled_ns + 8) >> 4;
            self.scaled_ns = self.scaled_ns + difference - sixteenth;
            self.sum += Duration::from_nanos(difference);
            self.differences += 1;
        }
    }

    /// The estimate after the last datagram, 0 after the first; `None` before it.
    #[must_use]
    pub fn estimate(&self) -> Option<Duration> {
        self.last.map(|_| Duration::from_nanos(self.scaled_ns >> 4))
    }

    /// The mean |D| over all datagrams of some streams (mean jitter, RFC 3611, section 4.6); `None`
    /// without differences.
    #[must_use]
    pub fn mean<'a>(streams: impl IntoIterator<Item = &'a Self>) -> Option<Duration> {
        let (mut sum_ns, mut differences) = (0, 0);
        for stream in streams {
            sum_ns += stream.sum.as_nanos();
            differences += stream.differences;
        }
        u64::checked_div(sum_ns, differences).map(Duration::from_nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ERROR_PERCENT: f64 = 0.2;

    fn histogram(delays: &[u64]) -> DelayHistogram {
        let mut histogram = DelayHistogram::default();
        delays.iter().for_each(|&nanos| histogram.add(Duration::from_nanos(nanos)));
        histogram
    }

    #[test]
    fn every_power_of_two_is_the_first_of_its_octave() {
        for shift in SUB_BUCKET_BITS..64 {
            let nanos = 1_u64 << shift;
            assert_eq!(bucket_of(nanos) % SUB_BUCKETS, 0, "2^{shift}");
            assert_eq!(bucket_of(nanos - 1) + 1, bucket_of(nanos), "2^{shift}");
        }
        assert_eq!(bucket_of(u64::MAX) / SUB_BUCKETS, 56);
        assert_eq!((bucket_of(0), bucket_of(255), middle_of(255)), (0, 255, 255));
    }

    #[test]
    fn no_delays_have_no_percentiles_and_no_jitter() {
        assert_eq!(DelayHistogram::default().percentile(50), None);
        assert_eq!(Jitter::default().estimate(), None);
    }

    /// Given a flow with delays from 250 ms to 1.9 s (three octaves), expect no more memory than stated.
    #[test]
    fn memory_depends_on_the_range_of_delays_only() {
        let delays: Vec<u64> = (0..100_000).map(|n| 269_000_000 + 16_310 * n).collect();
        let bytes = histogram(&delays).counts.len() * size_of::<u64>();
        assert_eq!(bytes, DelayHistogram::TYPICAL_BYTES);
    }

    /// The reference: RFC 3550, section 6.4.1, in floating point from the times of sending and arrival.
    fn jitter_of_rfc_3550(datagrams: &[(u64, u64)]) -> f64 {
        let mut jitter = 0.0;
        for pair in datagrams.windows(2) {
            let [(sent, arrived), (next_sent, next_arrived)] = [pair[0], pair[1]];
            let between_arrivals = next_arrived as f64 - arrived as f64;
            let between_departures = next_sent as f64 - sent as f64;
            let difference = between_arrivals - between_departures;
            jitter += (difference.abs() - jitter) / 16.0;
        }
        jitter
    }

    proptest! {
        /// Given any delays, expect each percentile within the stated error of the exact one.
        #[test]
        fn percentiles_are_within_the_stated_error(
            mut delays in prop::collection::vec((0..63_u32).prop_flat_map(|bits| 0..2_u64 << bits), 1..300),
            percent in 0..=100_u64,
        ) {
            let found = histogram(&delays).percentile(percent).expect("there are delays");
            delays.sort_unstable();
            let rank = (delays.len() * percent as usize).div_ceil(100).max(1);
            let exact = delays[rank - 1] as f64;
            let error = (found.as_nanos() as f64 - exact).abs();
            prop_assert!(error <= exact * ERROR_PERCENT / 100.0, "{found} for {exact} ns");
        }

        /// Given any delays, expect the sum of the largest ones not below the exact one, and within 0.4 %.
        #[test]
        fn the_largest_delays_have_upper_bounds(
            mut delays in prop::collection::vec((0..50_u32).prop_flat_map(|bits| 0..2_u64 << bits), 1..300),
            largest in 1..300_usize,
        ) {
            let (mut left, mut bound) = (largest as u64, 0.0);
            for (upper, count) in histogram(&delays).from_largest() {
                let taken = count.min(left);
                bound += taken as f64 * upper.as_nanos() as f64;
                left -= taken;
            }
            delays.sort_unstable_by(|one, other| other.cmp(one));
            let exact: u64 = delays.iter().take(largest).sum();
            prop_assert!(bound >= exact as f64, "{bound} for {exact} ns");
            prop_assert!(bound <= exact as f64 * 1.004 + 1.0, "{bound} for {exact} ns");
        }

        /// Given datagrams that arrive in any order after any delay up to 10 s, expect the jitter of the
        /// reference; the integers round each step to a sixteenth of a nanosecond.
        #[test]
        fn jitter_is_that_of_rfc_3550(
            datagrams in prop::collection::vec((0..1_u64 << 40, 0..10_000_000_000_u64), 1..300),
        ) {
            let mut jitter = Jitter::default();
            let datagrams: Vec<_> =
                datagrams.into_iter().map(|(sent, delay)| (sent, sent + delay)).collect();
            for (sent, arrived) in &datagrams {
                jitter.add(Duration::from_nanos(arrived - sent));
            }
            let found = jitter.estimate().expect("there are datagrams").as_nanos() as f64;
            let expected = jitter_of_rfc_3550(&datagrams);
            prop_assert!((found - expected).abs() <= 2.0, "{found} instead of {expected}");
            let delays: Vec<_> = datagrams.iter().map(|(sent, arrived)| arrived - sent).collect();
            let sum: u64 = delays.windows(2).map(|pair| pair[0].abs_diff(pair[1])).sum();
            let mean = Jitter::mean([&jitter]).map(Duration::as_nanos);
            prop_assert_eq!(mean, sum.checked_div(delays.len() as u64 - 1));
        }
    }
}
