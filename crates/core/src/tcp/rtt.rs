//! Round-trip estimation and the retransmission time-out (RFC 6298, with the gains of RFC 7323,
//! appendix G; as Linux does it in [`super::rtt_linux`]).

use super::config::{Follows, RtoConfig, RtoMinBounds};
use super::rtt_linux::MeanDeviation;
use crate::packet::seq::Position;
use crate::time::{Duration, Instant};

/// Smoothed round-trip time, its variation and the time-out that follows from them.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct RttEstimator {
    config: RtoConfig,
    smoothed: Option<Smoothed>,
    /// Times the time-out was doubled since the last sample (5.5).
    backoff: u32,
    follows: Follows,
    /// Whether timestamps give a sample with every ACK: then its gains are divided (RFC 7323, appendix G).
    each_ack: bool,
    segment: u64,
    /// How many samples had been taken when the last one was smoothed.
    smoothed_samples: u64,
    /// In nanoseconds: the least variance term (`tcp_rto_min`) and the least time-out.
    variance_floor: u64,
    timeout_floor: u64,
    often: OftenUsed,
}

/// What every sample touches: one line of the cache.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
struct OftenUsed {
    /// The smallest sample; [`NONE`] before there is one.
    min: Duration,
    sum: Duration,
    samples: u64,
    ticks: Ticks,
    /// Samples in the tick of the last one change nothing for as long as the left edge is below this.
    steady_until: Position,
    /// The present time-out: asked for with every ACK, changed by some.
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
    /// Whether `time` is in the last tick.
    #[inline]
    fn repeats(&self, time: Duration) -> bool {
        // The distance wraps for a time beyond the last tick.
        self.last.as_nanos().wrapping_sub(time.as_nanos()) < self.step.as_nanos()
    }

    fn round_up(&mut self, time: Duration) -> Duration {
        if !self.repeats(time) {
            self.last = time.round_up_to(self.step);
        }
        self.last
    }
}

/// What an ACK that gives a sample says of the window, in positions.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// The left edge before it.
    pub una_before: Position,
    /// The left edge after it.
    pub una: Position,
    /// The end of everything sent.
    pub nxt: Position,
}

/// In nanoseconds.
#[derive(Clone, Copy, Debug)]
enum Smoothed {
    Rfc { srtt: u64, rttvar: u64 },
    Linux(MeanDeviation),
}

/// Doubling a millisecond 32 times is 50 days: beyond any largest time-out.
const BACKOFF_MAX: u32 = 32;

/// RFC 6298, 5.7.
const INITIAL_AFTER_LOSS: Duration = Duration::from_secs(3);

impl RttEstimator {
    /// Where in it the fields begin that every sample touches.
    #[cfg(test)]
    pub(super) const OFTEN_USED: usize = core::mem::offset_of!(Self, often);

    /// An estimator without samples.
    #[must_use]
    pub fn new(config: RtoConfig, follows: Follows) -> Self {
        let ticks = Ticks { step: config.granularity, last: Duration::ZERO };
        let (variance_floor, timeout_floor) = match config.min_bounds {
            RtoMinBounds::Timeout => (config.granularity, config.min),
            RtoMinBounds::Variance => (config.min, Duration::ZERO),
        };
        let mut estimator = Self {
            config,
            smoothed: None,
            backoff: 0,
            follows,
            each_ack: false,
            segment: 1,
            smoothed_samples: 0,
            variance_floor: variance_floor.as_nanos(),
            timeout_floor: timeout_floor.as_nanos(),
            often: OftenUsed {
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

    /// The handshake settled the payload of a full segment and whether timestamps give a sample with
    /// each ACK.
    pub fn negotiated(&mut self, segment: u64, each_ack: bool) {
        self.segment = segment;
        self.each_ack = each_ack;
    }

    /// Takes a sample from a segment that was sent once (Karn's rule is the caller's).
    #[inline]
    pub fn sample(&mut self, rtt: Duration, span: Span) {
        let often = &mut self.often;
        if rtt < often.min {
            often.min = rtt;
        }
        often.sum += rtt;
        often.samples += 1;
        if span.una >= often.steady_until || !often.ticks.repeats(rtt) {
            self.smooth(rtt, span);
        }
    }

    /// Takes a sample into account, and with it those that were passed over since the last one.
    #[inline(never)]
    fn smooth(&mut self, rtt: Duration, span: Span) {
        self.backoff = 0;
        let often = &mut self.often;
        let repeated = often.ticks.last.as_nanos();
        let rtt = often.ticks.round_up(rtt).as_nanos();
        if let Some(Smoothed::Linux(deviation)) = &mut self.smoothed {
            if often.steady_until == Position::MAX {
                deviation.begin_round(span.nxt);
            }
            often.steady_until = deviation.sample(rtt, span, self.variance_floor);
            let rto = deviation.rto().max(self.timeout_floor);
            often.rto = Duration::from_nanos(rto).min(self.config.max);
            return;
        }
        let passed_over = often.samples - 1 - self.smoothed_samples;
        self.smoothed_samples = often.samples;
        let expected = self.expected_samples(span);
        self.often.steady_until = match &mut self.smoothed {
            None => {
                self.smoothed = Some(match self.follows {
                    // 2.2: SRTT = R, RTTVAR = R / 2.
                    Follows::Rfc => Smoothed::Rfc { srtt: rtt, rttvar: rtt / 2 },
                    Follows::Linux => {
                        let first = MeanDeviation::first(rtt, span.nxt, self.variance_floor);
                        Smoothed::Linux(first)
                    }
                });
                0
            }
            Some(Smoothed::Rfc { srtt, rttvar }) => {
                if passed_over > 0 {
                    let part = (passed_over.min(expected), expected);
                    (*srtt, *rttvar) = rfc_6298(*srtt, *rttvar, repeated, part);
                }
                let before = (*srtt, *rttvar);
                (*srtt, *rttvar) = rfc_6298(*srtt, *rttvar, rtt, (1, expected));
                match expected {
                    // In ticks, a steady round trip soon changes nothing.
                    _ if (*srtt, *rttvar) == before => Position::MAX,
                    1 => 0,
                    // Samples that repeat this one are taken together, once a round trip.
                    _ => span.nxt,
                }
            }
            Some(Smoothed::Linux(_)) => return,
        };
        self.set_rto();
    }

    /// RFC 7323, appendix G: how many samples a round trip is expected to give.
    fn expected_samples(&self, span: Span) -> u64 {
        if self.each_ack {
            (span.nxt - span.una_before).div_ceil(2 * self.segment).max(1)
        } else {
            1
        }
    }

    /// The time-out expired (5.5): the next one is twice as long.
    pub fn back_off(&mut self) {
        self.backoff = (self.backoff + 1).min(BACKOFF_MAX);
        self.often.steady_until = 0;
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
        self.often.rto
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
        self.often.rto = base.saturating_mul(1 << self.backoff).min(config.max);
    }

    /// When a time-out started at `start` expires: at the clock's next tick.
    #[inline]
    pub fn deadline(&mut self, start: Instant) -> Instant {
        let often = &mut self.often;
        let exact = start + often.rto;
        // The last one will do if it is less than a tick later; the distance wraps if it is earlier.
        let distance = often.deadline.as_nanos().wrapping_sub(exact.as_nanos());
        if distance >= often.ticks.step.as_nanos() {
            let since_start_of_run = exact.saturating_since(Instant::START);
            often.deadline = Instant::START + since_start_of_run.round_up_to(often.ticks.step);
        }
        often.deadline
    }

    /// The same, without remembering it.
    #[must_use]
    pub fn deadline_from(&self, start: Instant) -> Instant {
        self.clone().deadline(start)
    }

    /// The smoothed round-trip time, in clock ticks of the host.
    #[must_use]
    pub fn srtt(&self) -> Option<Duration> {
        self.smoothed.as_ref().map(|smoothed| match smoothed {
            Smoothed::Rfc { srtt, .. } => Duration::from_nanos(*srtt),
            Smoothed::Linux(deviation) => Duration::from_nanos(deviation.srtt()),
        })
    }

    /// The smallest sample, as precise as it was measured.
    #[must_use]
    pub fn min(&self) -> Option<Duration> {
        (self.often.samples > 0).then_some(self.often.min)
    }

    /// The sum of all samples and their number.
    #[must_use]
    pub fn total(&self) -> (Duration, u64) {
        (self.often.sum, self.often.samples)
    }
}

/// RFC 6298, 2.3: beta = 1/4 and alpha = 1/8, in that order. `part` of a round trip's samples, of which so
/// many are expected, has so small a gain (RFC 7323, appendix G).
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
        RttEstimator::new(config(granularity_ms, min_bounds), Follows::Rfc)
    }

    /// An ACK of all there is, a segment.
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

    /// RFC 7323, appendix G: with ten segments in flight, five samples are expected in a round trip, and
    /// the gains of each are a fifth.
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

    /// The same for samples that repeat each other: whether there are five of them in a round trip or a
    /// hundred, RTTVAR falls by a quarter of itself.
    #[test]
    fn repeated_samples_count_once_a_round_trip() {
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
            // 300 (3/4)^3 = 126 to 300 (3/4)^4 = 95: the last round may not have been counted yet.
            assert!((94..=130).contains(&rttvar), "{rttvar} ms with {window} segments");
        }
    }

    #[test]
    fn backing_off_doubles_up_to_the_largest_and_a_sample_ends_it() {
        let mut rtt = rfc(1, RtoMinBounds::Timeout);
        rtt.back_off();
        assert_eq!(rtt.rto(), ms(2_000));
        (0..100).for_each(|_| rtt.back_off());
        assert_eq!(rtt.rto(), ms(60_000));
        rtt.sample(ms(100), ONE);
        assert_eq!(rtt.rto(), ms(300));
        rtt.back_off();
        rtt.path_works();
        assert_eq!(rtt.rto(), ms(300));
    }

    #[test]
    fn a_steady_path_ends_at_the_least_timeout_or_the_least_variance() {
        let settle = |bounds| {
            let mut rtt = rfc(1, bounds);
            (0..100).for_each(|_| rtt.sample(ms(600), ONE));
            rtt.rto().as_nanos() / 1_000_000
        };
        assert_eq!(settle(RtoMinBounds::Timeout), 601, "SRTT + G");
        assert_eq!(settle(RtoMinBounds::Variance), 800, "SRTT + 200 ms");
    }

    #[test]
    fn a_coarse_clock_sees_ticks() {
        let mut rtt = rfc(500, RtoMinBounds::Timeout);
        rtt.sample(ms(530), ONE);
        assert_eq!(rtt.srtt(), Some(ms(1_000)));
        assert_eq!(rtt.min(), Some(ms(530)));
        assert_eq!(rtt.rto(), ms(3_000));
        assert_eq!(rtt.deadline(Instant::from_millis(10)), Instant::from_millis(3_500));
    }
}
