//! Round-trip estimation and the retransmission time-out (RFC 6298).

use super::config::{RtoConfig, RtoMinBounds};
use crate::time::{Duration, Instant};

/// Smoothed round-trip time, its variation and the time-out that follows from them. What every sample
/// touches comes last: [`Sender`](super::Sender) has it in one line.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct RttEstimator {
    config: RtoConfig,
    smoothed: Option<Smoothed>,
    /// Times the time-out was doubled since the last sample (5.5).
    backoff: u32,
    /// The smallest sample; [`NONE`] before there is one.
    min: Duration,
    sum: Duration,
    samples: u64,
    sample_ticks: Ticks,
    /// A sample, in ticks, that would change nothing; [`NONE`] if none is known, as while the time-out
    /// is backed off.
    steady: Duration,
    /// The present time-out: asked for with every ACK, changed by every sample.
    rto: Duration,
    /// The last deadline that was rounded up.
    deadline: Instant,
}

/// Longer than any sample.
const NONE: Duration = Duration::from_nanos(u64::MAX);

/// Rounds up to ticks, and remembers the last one: most questions fall into the same tick, and a
/// comparison costs less than a division.
#[derive(Clone, Copy, Debug)]
struct Ticks {
    step: Duration,
    last: Duration,
}

impl Ticks {
    fn round_up(&mut self, time: Duration) -> Duration {
        // The distance wraps for a time beyond the last tick.
        if self.last.as_nanos().wrapping_sub(time.as_nanos()) >= self.step.as_nanos() {
            self.last = time.round_up_to(self.step);
        }
        self.last
    }
}

#[derive(Clone, Copy, Debug)]
struct Smoothed {
    srtt: Duration,
    rttvar: Duration,
}

/// Doubling a millisecond 32 times is 50 days: beyond any largest time-out.
const BACKOFF_MAX: u32 = 32;

/// RFC 6298, 5.7.
const INITIAL_AFTER_LOSS: Duration = Duration::from_secs(3);

impl RttEstimator {
    /// Where in it the fields begin that every sample touches.
    #[cfg(test)]
    pub(super) const OFTEN_USED: usize = core::mem::offset_of!(Self, min);

    /// An estimator without samples.
    #[must_use]
    pub fn new(config: RtoConfig) -> Self {
        let ticks = Ticks { step: config.granularity, last: Duration::ZERO };
        let mut estimator = Self {
            config,
            smoothed: None,
            steady: NONE,
            min: NONE,
            sum: Duration::ZERO,
            samples: 0,
            backoff: 0,
            rto: Duration::ZERO,
            sample_ticks: ticks,
            deadline: Instant::START,
        };
        estimator.set_rto();
        estimator
    }

    /// Takes a sample from a segment that was sent once (Karn's rule is the caller's).
    #[inline]
    pub fn sample(&mut self, rtt: Duration) {
        if rtt < self.min {
            self.min = rtt;
        }
        self.sum += rtt;
        self.samples += 1;
        let rtt = self.sample_ticks.round_up(rtt);
        if rtt != self.steady {
            self.smooth(rtt);
        }
    }

    /// Takes a sample in ticks into account.
    #[inline(never)]
    fn smooth(&mut self, sample: Duration) {
        let backed_off = std::mem::take(&mut self.backoff) > 0;
        let rtt = sample.as_nanos();
        let Some(Smoothed { srtt, rttvar }) = self.smoothed else {
            // 2.2: SRTT = R, RTTVAR = R / 2.
            self.smoothed = Some(Smoothed {
                srtt: Duration::from_nanos(rtt),
                rttvar: Duration::from_nanos(rtt / 2),
            });
            self.set_rto();
            return;
        };
        // 2.3: beta = 1/4 and alpha = 1/8, in that order.
        let before = (srtt.as_nanos(), rttvar.as_nanos());
        let (srtt, rttvar) = before;
        let rttvar = rttvar - rttvar / 4 + srtt.abs_diff(rtt) / 4;
        let srtt = srtt - srtt / 8 + rtt / 8;
        // In ticks, a steady round trip soon changes nothing.
        let is_steady = (srtt, rttvar) == before;
        self.steady = if is_steady { sample } else { NONE };
        if is_steady && !backed_off {
            return;
        }
        self.smoothed = Some(Smoothed {
            srtt: Duration::from_nanos(srtt),
            rttvar: Duration::from_nanos(rttvar),
        });
        self.set_rto();
    }

    /// The time-out expired (5.5): the next one is twice as long.
    pub fn back_off(&mut self) {
        self.backoff = (self.backoff + 1).min(BACKOFF_MAX);
        self.steady = NONE;
        self.set_rto();
    }

    /// New data was acknowledged, so the path works again: forgets the backing off.
    pub fn path_works(&mut self) {
        self.backoff = 0;
        self.set_rto();
    }

    /// The handshake is complete. RFC 6298, 5.7: if its timer expired and it gave no sample, a
    /// time-out that began below 3 s is 3 s from here.
    pub fn opened(&mut self) {
        if self.smoothed.is_none() && self.backoff > 0 && self.config.initial < INITIAL_AFTER_LOSS {
            self.config.initial = INITIAL_AFTER_LOSS;
            self.backoff = 0;
            self.set_rto();
        }
    }

    /// The present time-out.
    #[must_use]
    pub fn rto(&self) -> Duration {
        self.rto
    }

    fn set_rto(&mut self) {
        let config = &self.config;
        let base = self.smoothed.map_or(config.initial, |Smoothed { srtt, rttvar }| {
            // 2.3: SRTT + max(G, K * RTTVAR) with K = 4.
            let variance = rttvar.saturating_mul(4).max(config.granularity);
            match config.min_bounds {
                RtoMinBounds::Timeout => (srtt + variance).max(config.min),
                RtoMinBounds::Variance => srtt + variance.max(config.min),
            }
        });
        self.rto = base.saturating_mul(1 << self.backoff).min(config.max);
    }

    /// When a time-out started at `start` expires: at the clock's next tick.
    #[inline]
    pub fn deadline(&mut self, start: Instant) -> Instant {
        let exact = start + self.rto;
        // The last one will do if it is less than a tick later; the distance wraps if it is earlier.
        let distance = self.deadline.as_nanos().wrapping_sub(exact.as_nanos());
        if distance >= self.sample_ticks.step.as_nanos() {
            let since_start_of_run = exact.saturating_since(Instant::START);
            self.deadline = Instant::START + since_start_of_run.round_up_to(self.sample_ticks.step);
        }
        self.deadline
    }

    /// The same, without remembering it.
    #[must_use]
    pub fn deadline_from(&self, start: Instant) -> Instant {
        self.clone().deadline(start)
    }

    /// The smoothed round-trip time, in clock ticks of the host.
    #[must_use]
    pub fn srtt(&self) -> Option<Duration> {
        self.smoothed.map(|smoothed| smoothed.srtt)
    }

    /// The smallest sample, as precise as it was measured.
    #[must_use]
    pub fn min(&self) -> Option<Duration> {
        (self.samples > 0).then_some(self.min)
    }

    /// The sum of all samples and their number.
    #[must_use]
    pub fn total(&self) -> (Duration, u64) {
        (self.sum, self.samples)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(granularity_ms: u64, min_bounds: RtoMinBounds) -> RtoConfig {
        RtoConfig {
            initial: Duration::from_secs(1),
            min: Duration::from_millis(200),
            max: Duration::from_secs(60),
            granularity: Duration::from_millis(granularity_ms),
            min_bounds,
        }
    }

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn rfc_6298_section_2_by_hand() {
        let mut rtt = RttEstimator::new(config(1, RtoMinBounds::Timeout));
        assert_eq!(rtt.rto(), ms(1_000), "2.1: before any sample");
        rtt.sample(ms(600));
        assert_eq!(rtt.rto(), ms(600 + 4 * 300), "2.2");
        rtt.sample(ms(680));
        // RTTVAR = 3/4 * 300 + 1/4 * 80 = 245; SRTT = 7/8 * 600 + 1/8 * 680 = 610.
        assert_eq!(rtt.srtt(), Some(ms(610)), "2.3");
        assert_eq!(rtt.rto(), ms(610 + 4 * 245), "2.3");
    }

    #[test]
    fn backing_off_doubles_up_to_the_largest_and_a_sample_ends_it() {
        let mut rtt = RttEstimator::new(config(1, RtoMinBounds::Timeout));
        rtt.back_off();
        assert_eq!(rtt.rto(), ms(2_000));
        (0..100).for_each(|_| rtt.back_off());
        assert_eq!(rtt.rto(), ms(60_000));
        rtt.sample(ms(100));
        assert_eq!(rtt.rto(), ms(300));
        rtt.back_off();
        rtt.path_works();
        assert_eq!(rtt.rto(), ms(300));
    }

    #[test]
    fn a_steady_path_ends_at_the_least_timeout_or_the_least_variance() {
        let settle = |bounds| {
            let mut rtt = RttEstimator::new(config(1, bounds));
            (0..100).for_each(|_| rtt.sample(ms(600)));
            rtt.rto().as_nanos() / 1_000_000
        };
        assert_eq!(settle(RtoMinBounds::Timeout), 601, "SRTT + G");
        assert_eq!(settle(RtoMinBounds::Variance), 800, "SRTT + 200 ms");
    }

    #[test]
    fn a_coarse_clock_sees_ticks() {
        let mut rtt = RttEstimator::new(config(500, RtoMinBounds::Timeout));
        rtt.sample(ms(530));
        assert_eq!(rtt.srtt(), Some(ms(1_000)));
        assert_eq!(rtt.min(), Some(ms(530)));
        assert_eq!(rtt.rto(), ms(3_000));
        assert_eq!(rtt.deadline(Instant::from_millis(10)), Instant::from_millis(3_500));
    }
}
