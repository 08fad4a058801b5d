//! RTT estimation and the retransmission timeout (RFC 6298, with the gains of RFC 7323, appendix G;
//! Linux's variant is in [`linux`]).

mod linux;

use super::config::{RtoConfig, RtoMinBounds, StackVariant};
use crate::packet::seq::Position;
use crate::time::{Duration, Instant};
use linux::MeanDeviation;

/// SRTT, RTTVAR and the retransmission timeout.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct RttEstimator {
    config: RtoConfig,
    smoothed: Option<Smoothed>,
    /// Number of back-offs since the last sample (5.5).
    backoff: u32,
    stack: StackVariant,
    /// Whether timestamps give a sample with every ACK, so that gains are divided (RFC 7323,
    /// appendix G).
    sample_per_ack: bool,
    segment: u64,
    /// Number of samples when the last one was smoothed.
    smoothed_samples: u64,
    /// Minimum variance term (`tcp_rto_min`) and minimum timeout, in nanoseconds.
    variance_floor: u64,
    timeout_floor: u64,
    hot: HotFields,
}

/// The fields that every sample uses, in one cache line.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
struct HotFields {
    /// The minimum sample; [`NONE`] before there is one.
    min: Duration,
    sum: Duration,
    samples: u64,
    ticks: Ticks,
    /// Samples in the tick of the last one have no effect while SND.UNA is below this.
    steady_until: Position,
    /// The current timeout: read with every ACK, seldom changed.
    rto: Duration,
    /// The last rounded deadline.
    deadline: Instant,
}

/// Longer than any sample.
const NONE: Duration = Duration::from_nanos(u64::MAX);

/// Rounds up to ticks and caches the last one: most values fall into the same tick, and a
/// comparison is cheaper than a division.
#[derive(Clone, Copy, Debug)]
struct Ticks {
    step: Duration,
    last: Duration,
}

impl Ticks {
    /// Whether `time` is in the last tick.
    #[inline]
    fn contains(&self, time: Duration) -> bool {
        // The distance wraps for a time beyond the last tick.
        self.last.as_nanos().wrapping_sub(time.as_nanos()) < self.step.as_nanos()
    }

    fn round_up(&mut self, time: Duration) -> Duration {
        if !self.contains(time) {
            self.last = time.round_up_to(self.step);
        }
        self.last
    }
}

/// The send window around an ACK that gives a sample.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// SND.UNA before it.
    pub una_before: Position,
    /// SND.UNA after it.
    pub una: Position,
    /// SND.MAX.
    pub nxt: Position,
}

/// In nanoseconds.
#[derive(Clone, Copy, Debug)]
enum Smoothed {
    Rfc { srtt: u64, rttvar: u64 },
    Linux(MeanDeviation),
}

/// A millisecond doubled 32 times is 50 days, beyond any maximum.
const BACKOFF_MAX: u32 = 32;

/// RFC 6298, 5.7.
const INITIAL_AFTER_LOSS: Duration = Duration::from_secs(3);

impl RttEstimator {
    /// Offset of the fields that every sample uses.
    #[cfg(test)]
    pub(super) const HOT_OFFSET: usize = core::mem::offset_of!(Self, hot);

    /// An estimator without samples.
    #[must_use]
    pub fn new(config: RtoConfig, stack: StackVariant) -> Self {
        let ticks = Ticks { step: config.granularity, last: Duration::ZERO };
        let (variance_floor, timeout_floor) = match config.min_bounds {
            RtoMinBounds::Timeout => (config.granularity, config.min),
            RtoMinBounds::Variance => (config.min, Duration::ZERO),
        };
        let mut estimator = Self {
            config,
            smoothed: None,
            backoff: 0,
            stack,
            sample_per_ack: false,
            segment: 1,
            smoothed_samples: 0,
            variance_floor: variance_floor.as_nanos(),
            timeout_floor: timeout_floor.as_nanos(),
            hot: HotFields {
                min: NONE,
                sum: Duration::ZERO,
                samples: 0,
                ticks,
                steady_until: 0,
                rto: Duration::ZERO,
                deadline: Instant::START,
            },
        };
        estimator.set_rto();
        estimator
    }

    /// Sets the payload of a full segment and whether timestamps give a sample with each ACK.
    pub fn negotiated(&mut self, segment: u64, sample_per_ack: bool) {
        self.segment = segment;
        self.sample_per_ack = sample_per_ack;
    }

    /// Adds a sample. Karn's rule is up to the caller.
    #[inline]
    pub fn sample(&mut self, rtt: Duration, span: Span) {
        let hot = &mut self.hot;
        if rtt < hot.min {
            hot.min = rtt;
        }
        hot.sum += rtt;
        hot.samples += 1;
        if span.una >= hot.steady_until || !hot.ticks.contains(rtt) {
            self.smooth(rtt, span);
        }
    }

    /// Smooths a sample, and the identical ones skipped since the last call.
    #[inline(never)]
    fn smooth(&mut self, rtt: Duration, span: Span) {
        self.backoff = 0;
        let hot = &mut self.hot;
        let repeated = hot.ticks.last.as_nanos();
        let rtt = hot.ticks.round_up(rtt).as_nanos();
        if let Some(Smoothed::Linux(deviation)) = &mut self.smoothed {
            if hot.steady_until == Position::MAX {
                deviation.begin_round(span.nxt);
            }
            hot.steady_until = deviation.sample(rtt, span, self.variance_floor);
            let rto = deviation.rto().max(self.timeout_floor);
            hot.rto = Duration::from_nanos(rto).min(self.config.max);
            return;
        }
        let skipped = hot.samples - 1 - self.smoothed_samples;
        self.smoothed_samples = hot.samples;
        let expected = self.expected_samples(span);
        self.hot.steady_until = match &mut self.smoothed {
            None => {
                self.smoothed = Some(match self.stack {
                    // 2.2: SRTT = R, RTTVAR = R / 2.
                    StackVariant::Rfc => Smoothed::Rfc { srtt: rtt, rttvar: rtt / 2 },
                    StackVariant::Linux => {
                        let first = MeanDeviation::first(rtt, span.nxt, self.variance_floor);
                        Smoothed::Linux(first)
                    }
                });
                0
            }
            Some(Smoothed::Rfc { srtt, rttvar }) => {
                if skipped > 0 {
                    let part = (skipped.min(expected), expected);
                    (*srtt, *rttvar) = rfc_6298(*srtt, *rttvar, repeated, part);
                }
                let before = (*srtt, *rttvar);
                (*srtt, *rttvar) = rfc_6298(*srtt, *rttvar, rtt, (1, expected));
                match expected {
                    // A steady RTT in ticks converges quickly.
                    _ if (*srtt, *rttvar) == before => Position::MAX,
                    1 => 0,
                    // Identical samples are smoothed together, once per round trip.
                    _ => span.nxt,
                }
            }
            Some(Smoothed::Linux(_)) => return,
        };
        self.set_rto();
    }

    /// RFC 7323, appendix G: ExpectedSamples.
    fn expected_samples(&self, span: Span) -> u64 {
        if self.sample_per_ack {
            (span.nxt - span.una_before).div_ceil(2 * self.segment).max(1)
        } else {
            1
        }
    }

    /// Doubles the timeout after it expired (5.5).
    pub fn back_off(&mut self) {
        self.backoff = (self.backoff + 1).min(BACKOFF_MAX);
        self.hot.steady_until = 0;
        self.set_rto();
    }

    /// Ends the back-off: the path delivers again.
    pub fn reset_backoff(&mut self) {
        self.backoff = 0;
        self.set_rto();
    }

    /// The handshake completed. RFC 6298, 5.7: if the SYN was retransmitted without giving a
    /// sample, an initial timeout below 3 s becomes 3 s.
    pub fn on_established(&mut self) {
        if self.smoothed.is_none() && self.backoff > 0 && self.config.initial < INITIAL_AFTER_LOSS {
            self.config.initial = INITIAL_AFTER_LOSS;
            self.backoff = 0;
            self.set_rto();
        }
    }

    /// The current retransmission timeout.
    #[must_use]
    pub fn rto(&self) -> Duration {
        self.hot.rto
    }

    fn set_rto(&mut self) {
        let config = &self.config;
        let base = match &self.smoothed {
            None => config.initial,
            Some(Smoothed::Rfc { srtt, rttvar }) => {
                // 2.3: SRTT + max(G, K * RTTVAR) with K = 4.
                let variance = Duration::from_nanos(rttvar.saturating_mul(4));
                let srtt = Duration::from_nanos(*srtt);
                match config.min_bounds {
                    RtoMinBounds::Timeout => {
                        (srtt + variance.max(config.granularity)).max(config.min)
                    }
                    RtoMinBounds::Variance => {
                        srtt + variance.max(config.granularity).max(config.min)
                    }
                }
            }
            Some(Smoothed::Linux(deviation)) => {
                Duration::from_nanos(deviation.rto().max(self.timeout_floor))
            }
        };
        self.hot.rto = base.saturating_mul(1 << self.backoff).min(config.max);
    }

    /// When a timer started at `start` expires, rounded up to the host's clock tick.
    #[inline]
    pub fn deadline(&mut self, start: Instant) -> Instant {
        let hot = &mut self.hot;
        let exact = start + hot.rto;
        // The cached deadline is right if it is less than a tick later; the distance wraps if it is
        // earlier.
        let distance = hot.deadline.as_nanos().wrapping_sub(exact.as_nanos());
        if distance >= hot.ticks.step.as_nanos() {
            let since_start_of_run = exact.saturating_since(Instant::START);
            hot.deadline = Instant::START + since_start_of_run.round_up_to(hot.ticks.step);
        }
        hot.deadline
    }

    /// [`RttEstimator::deadline`] without caching.
    #[must_use]
    pub fn deadline_from(&self, start: Instant) -> Instant {
        self.clone().deadline(start)
    }

    /// SRTT, in clock ticks of the host.
    #[must_use]
    pub fn srtt(&self) -> Option<Duration> {
        self.smoothed.as_ref().map(|smoothed| match smoothed {
            Smoothed::Rfc { srtt, .. } => Duration::from_nanos(*srtt),
            Smoothed::Linux(deviation) => Duration::from_nanos(deviation.srtt()),
        })
    }

    /// The minimum sample, not rounded to ticks.
    #[must_use]
    pub fn min(&self) -> Option<Duration> {
        (self.hot.samples > 0).then_some(self.hot.min)
    }

    /// The sum of all samples and their number.
    #[must_use]
    pub fn total(&self) -> (Duration, u64) {
        (self.hot.sum, self.hot.samples)
    }
}

/// RFC 6298, 2.3: beta = 1/4 and alpha = 1/8, in that order. The gains apply to `part` of the
/// `expected` samples per round trip (RFC 7323, appendix G).
fn rfc_6298(srtt: u64, rttvar: u64, rtt: u64, (part, expected): (u64, u64)) -> (u64, u64) {
    let beta = |time: u64| time / (4 * expected) * part;
    let alpha = |time: u64| time / (8 * expected) * part;
    let rttvar = rttvar - beta(rttvar) + beta(srtt.abs_diff(rtt));
    (srtt - alpha(srtt) + alpha(rtt), rttvar)
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

    fn rfc(granularity_ms: u64, min_bounds: RtoMinBounds) -> RttEstimator {
        RttEstimator::new(config(granularity_ms, min_bounds), StackVariant::Rfc)
    }

    /// An ACK of the only outstanding segment.
    const ONE: Span = Span { una_before: 0, una: 1, nxt: 1 };

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn rfc_6298_section_2_by_hand() {
        let mut rtt = rfc(1, RtoMinBounds::Timeout);
        assert_eq!(rtt.rto(), ms(1_000), "2.1: before any sample");
        rtt.sample(ms(600), ONE);
        assert_eq!(rtt.rto(), ms(600 + 4 * 300), "2.2");
        rtt.sample(ms(680), ONE);
        // RTTVAR = 3/4 * 300 + 1/4 * 80 = 245; SRTT = 7/8 * 600 + 1/8 * 680 = 610.
        assert_eq!(rtt.srtt(), Some(ms(610)), "2.3");
        assert_eq!(rtt.rto(), ms(610 + 4 * 245), "2.3");
    }

    /// Given ten segments in flight (RFC 7323, appendix G), expect gains of a fifth: five samples
    /// are expected per round trip.
    #[test]
    fn rfc_7323_appendix_g_by_hand() {
        let mut rtt = rfc(1, RtoMinBounds::Timeout);
        rtt.negotiated(1_000, true);
        rtt.sample(ms(600), ONE);
        rtt.sample(ms(680), Span { una_before: 1, una: 2_001, nxt: 10_001 });
        // RTTVAR = 19/20 * 300 + 1/20 * 80 = 289; SRTT = 39/40 * 600 + 1/40 * 680 = 602.
        assert_eq!(rtt.srtt(), Some(ms(602)));
        assert_eq!(rtt.rto(), ms(602 + 4 * 289));
    }

    /// Given identical samples, five or a hundred per round trip, expect RTTVAR to decrease by a
    /// quarter per round trip.
    #[test]
    fn identical_samples_count_once_per_round_trip() {
        for window in [10u64, 200] {
            let mut rtt = rfc(1, RtoMinBounds::Timeout);
            rtt.negotiated(1_000, true);
            rtt.sample(ms(600), ONE);
            let mut una = 1;
            for _ in 0..4 * window / 2 {
                let nxt = una + window * 1_000;
                rtt.sample(ms(600), Span { una_before: una, una: una + 2_000, nxt });
                una += 2_000;
            }
            let rttvar = (rtt.rto().as_nanos() / 1_000_000 - 600) / 4;
            // 300 (3/4)^3 = 126 to 300 (3/4)^4 = 95: the last round may not be complete.
            assert!((94..=130).contains(&rttvar), "{rttvar} ms with {window} segments");
        }
    }

    #[test]
    fn backing_off_doubles_up_to_the_maximum_until_a_sample() {
        let mut rtt = rfc(1, RtoMinBounds::Timeout);
        rtt.back_off();
        assert_eq!(rtt.rto(), ms(2_000));
        (0..100).for_each(|_| rtt.back_off());
        assert_eq!(rtt.rto(), ms(60_000));
        rtt.sample(ms(100), ONE);
        assert_eq!(rtt.rto(), ms(300));
        rtt.back_off();
        rtt.reset_backoff();
        assert_eq!(rtt.rto(), ms(300));
    }

    #[test]
    fn a_steady_path_converges_to_the_minimum_timeout_or_variance() {
        let converged = |bounds| {
            let mut rtt = rfc(1, bounds);
            (0..100).for_each(|_| rtt.sample(ms(600), ONE));
            rtt.rto().as_nanos() / 1_000_000
        };
        assert_eq!(converged(RtoMinBounds::Timeout), 601, "SRTT + G");
        assert_eq!(converged(RtoMinBounds::Variance), 800, "SRTT + 200 ms");
    }

    #[test]
    fn a_coarse_clock_rounds_up_to_ticks() {
        let mut rtt = rfc(500, RtoMinBounds::Timeout);
        rtt.sample(ms(530), ONE);
        assert_eq!(rtt.srtt(), Some(ms(1_000)));
        assert_eq!(rtt.min(), Some(ms(530)));
        assert_eq!(rtt.rto(), ms(3_000));
        assert_eq!(rtt.deadline(Instant::from_millis(10)), Instant::from_millis(3_500));
    }
}
