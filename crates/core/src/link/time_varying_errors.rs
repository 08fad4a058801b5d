//! Channel errors that vary with time: the Gilbert-Elliott model, and error rates as a time series.
//!
//! Frames are lost at the points of a Poisson process in cumulative hazard: a bit with error probability p
//! adds -ln(1 - p), a frame with loss probability q adds -ln(1 - q). The hazard to the next point is
//! exponential with mean 1, so a frame that adds h survives with probability exp(-h): the product of
//! (1 - p) over its bits and of 1 - q, whatever the states during its transmission. One draw per lost
//! frame suffices, as with a constant bit error rate.

use crate::link::Transmission;
use crate::profile::Profile;
use crate::rng::Rng;
use crate::time::{Duration, Instant};
use crate::units::Probability;

/// The error rates in a state, or from an instant on.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ErrorRates {
    /// The probability of a bit error; one bit error loses the frame.
    pub bit_error_rate: Probability,
    /// The probability that a frame is lost, at the start of its transmission.
    pub loss_rate: Probability,
}

/// A state of the Gilbert-Elliott channel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChannelState {
    /// The error rates in it.
    pub errors: ErrorRates,
    /// The mean of the exponential sojourn time.
    pub mean_duration: Duration,
}

/// See the module's description.
#[derive(Clone, Debug)]
pub struct TimeVaryingErrors {
    states: States,
    /// The hazard to the next lost frame.
    hazard_left: f64,
    rng: Rng,
}

#[derive(Clone, Debug)]
enum States {
    TwoStates(Box<TwoStates>),
    Series(Profile<Hazard>),
}

/// The hazard that a bit and a frame add; infinite where the probability of an error is one.
#[derive(Clone, Copy, Debug)]
struct Hazard {
    bit: f64,
    frame: f64,
}

impl From<ErrorRates> for Hazard {
    fn from(errors: ErrorRates) -> Self {
        // Not -0: a state without errors adds nothing.
        let of = |probability: Probability| libm::fabs(libm::log1p(-probability.get()));
        Self { bit: of(errors.bit_error_rate), frame: of(errors.loss_rate) }
    }
}

impl TimeVaryingErrors {
    /// Two alternating states with exponential sojourn times (Gilbert 1960, Elliott 1963, in continuous
    /// time). The states have a random stream of their own: the same seed gives the same states at the
    /// same times, whatever is sent.
    pub(super) fn two_states(
        good: ChannelState,
        bad: ChannelState,
        states: Rng,
        errors: Rng,
    ) -> Self {
        let [good_ns, bad_ns] = [good, bad].map(|state| mean_nanos(state.mean_duration));
        let hazards = [good, bad].map(|state| state.errors.into());
        let mut first =
            Sojourn { rng: states, is_bad: false, since: Instant::START, until: Instant::START };
        first.begin(Instant::START, [good_ns, bad_ns]);
        let states = TwoStates {
            hazards,
            mean_nanos: [good_ns, bad_ns],
            current: first.clone(),
            ahead: first,
        };
        Self::new(States::TwoStates(Box::new(states)), errors)
    }

    pub(super) fn series(errors: &Profile<ErrorRates>, rng: Rng) -> Self {
        Self::new(States::Series(errors.map(Hazard::from)), rng)
    }

    fn new(states: States, rng: Rng) -> Self {
        let mut errors = Self { states, hazard_left: 0.0, rng };
        errors.draw();
        errors
    }

    /// Whether a frame of this many bits is corrupted, as decided at `now`, which is not after the start
    /// of the transmission. Calls are in order of `now` and of start, but after a change of rate, frames
    /// that start after `now` may be evaluated again.
    #[cold]
    #[inline(never)]
    pub(super) fn corrupts(&mut self, now: Instant, transmission: Transmission, bits: u64) -> bool {
        let added = match &mut self.states {
            States::TwoStates(states) => states.hazard(now, transmission, bits),
            States::Series(profile) => series_hazard(profile, transmission, bits),
        };
        if added <= self.hazard_left {
            self.hazard_left -= added;
            return false;
        }
        self.draw();
        true
    }

    fn draw(&mut self) {
        self.hazard_left = -libm::log(self.rng.open_unit());
    }
}

/// The hazard of a frame: the loss rate at its start, and the bit error rates in proportion to time.
fn series_hazard(profile: &Profile<Hazard>, transmission: Transmission, bits: u64) -> f64 {
    let Transmission { start, departure } = transmission;
    let mut hazard = profile.at(start);
    let mut added = hazard.frame;
    let mut from = start;
    loop {
        let change = profile.next_change(from).filter(|&change| change < departure);
        added += hazard.of_bits(bits, from, change.unwrap_or(departure), transmission);
        let Some(change) = change else { return added };
        (from, hazard) = (change, profile.at(change));
    }
}

impl Hazard {
    /// The hazard of the bits that are sent between two instants: bits are spread evenly over the
    /// transmission.
    fn of_bits(self, bits: u64, from: Instant, to: Instant, transmission: Transmission) -> f64 {
        if self.bit == 0.0 {
            return 0.0;
        }
        let bits = float(bits);
        if (from, to) == (transmission.start, transmission.departure) {
            return bits * self.bit;
        }
        bits * self.bit
            * (nanos_between(from, to) / nanos_between(transmission.start, transmission.departure))
    }
}

#[derive(Clone, Debug)]
struct TwoStates {
    /// Of the good state and of the bad state.
    hazards: [Hazard; 2],
    mean_nanos: [f64; 2],
    /// The sojourn at the last `now`: after a change of rate, frames that are yet to be sent are
    /// evaluated again from here, with the same states.
    current: Sojourn,
    /// The sojourn in which the last frame ends.
    ahead: Sojourn,
}

/// The time in one state, and the stream that draws the following ones.
#[derive(Clone, Debug)]
struct Sojourn {
    rng: Rng,
    is_bad: bool,
    since: Instant,
    until: Instant,
}

impl Sojourn {
    /// An exponential time by inversion, rounded, at least a nanosecond.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "not negative, and a float-to-integer cast saturates"
    )]
    fn draw(&mut self, mean_nanos: [f64; 2]) {
        let mean = mean_nanos[usize::from(self.is_bad)];
        let nanos = libm::round(-libm::log(self.rng.open_unit()) * mean) as u64;
        self.since = self.until;
        self.until += Duration::from_nanos(nanos.max(1));
    }

    /// Starts at `at` in the stationary distribution. Exponential times are memoryless, so the rest of
    /// the sojourn at `at` is exponential, too.
    fn begin(&mut self, at: Instant, mean_nanos: [f64; 2]) {
        let [good, bad] = mean_nanos;
        self.is_bad = self.rng.open_unit() * (good + bad) <= bad;
        self.until = at;
        self.draw(mean_nanos);
    }

    /// Advances to the sojourn that contains `at`. Returns whether it restarted there.
    fn advance(&mut self, at: Instant, mean_nanos: [f64; 2]) -> bool {
        if is_long(self.until, at, mean_nanos) {
            self.begin(at, mean_nanos);
            return true;
        }
        // No change of state is scheduled after the largest instant.
        while self.until <= at && self.until < Instant::from_nanos(u64::MAX) {
            self.is_bad = !self.is_bad;
            self.draw(mean_nanos);
        }
        false
    }
}

/// After this many mean cycles the state is independent of the one at their start, and drawing each of
/// them takes about a millisecond. A frame may wait for days until an operator ends an outage.
const CYCLES_MAX: f64 = 16_384.0;

fn is_long(from: Instant, to: Instant, mean_nanos: [f64; 2]) -> bool {
    let [good, bad] = mean_nanos;
    float(to.saturating_since(from).as_nanos()) > CYCLES_MAX * (good + bad)
}

impl TwoStates {
    fn hazard(&mut self, now: Instant, transmission: Transmission, bits: u64) -> f64 {
        let Transmission { start, departure } = transmission;
        let restarted = self.current.advance(now, self.mean_nanos);
        if restarted || self.ahead.since > start {
            self.ahead = self.current.clone();
        }
        let Self { hazards, mean_nanos, ahead, .. } = self;
        ahead.advance(start, *mean_nanos);
        let mut hazard = hazards[usize::from(ahead.is_bad)];
        let mut added = hazard.frame;
        if is_long(start, departure, *mean_nanos) {
            let [good, bad] = *mean_nanos;
            let of_bit = (good * hazards[0].bit + bad * hazards[1].bit) / (good + bad);
            return added + float(bits) * of_bit;
        }
        let mut from = start;
        while ahead.until < departure {
            let change = ahead.until;
            added += hazard.of_bits(bits, from, change, transmission);
            ahead.advance(change, *mean_nanos);
            (from, hazard) = (change, hazards[usize::from(ahead.is_bad)]);
        }
        added + hazard.of_bits(bits, from, departure, transmission)
    }
}

#[expect(clippy::cast_precision_loss, reason = "a fraction of a size or a time")]
fn float(value: u64) -> f64 {
    value as f64
}

fn nanos_between(from: Instant, to: Instant) -> f64 {
    float((to - from).as_nanos())
}

fn mean_nanos(mean: Duration) -> f64 {
    float(mean.as_nanos())
}

#[cfg(test)]
mod tests {
    use super::super::Channel;
    use super::*;
    use crate::units::Bits;

    fn rates(bit_error_rate: f64, loss_rate: f64) -> ErrorRates {
        let of = |value| Probability::new(value).expect("a probability");
        ErrorRates { bit_error_rate: of(bit_error_rate), loss_rate: of(loss_rate) }
    }

    fn state(errors: ErrorRates, millis: u64) -> ChannelState {
        ChannelState { errors, mean_duration: Duration::from_millis(millis) }
    }

    fn two_states(good: ChannelState, bad: ChannelState, seed: u64) -> Channel {
        let stream = |name| Rng::stream(seed, name);
        Channel::gilbert_elliott(good, bad, stream("channel.states"), stream("channel"))
    }

    /// Which of `frames` frames are corrupted: 1,000 bits in 100 us each, one per millisecond.
    fn corrupted(channel: &mut Channel, frames: u64) -> Vec<bool> {
        let frame = |number: u64| {
            let start = Instant::from_millis(number);
            let transmission =
                Transmission { start, departure: start + Duration::from_nanos(100_000) };
            channel.corrupts(start, transmission, Bits(1_000))
        };
        (0..frames).map(frame).collect()
    }

    fn share(corrupted: &[bool]) -> f64 {
        let lost = corrupted.iter().filter(|&&corrupted| corrupted).count();
        lost as f64 / corrupted.len() as f64
    }

    /// Given mean sojourn times of 900 ms and 100 ms and loss rates of 1 % and 60 %, the chain is bad a
    /// tenth of the time, and the mean loss is 0.9 * 1 % + 0.1 * 60 % = 6.9 %. The share of 10^6 frames
    /// in the bad state has, with the correlation time tau = 1 / (1/0.9 + 1/0.1) s = 90 ms, a variance
    /// of 0.9 * 0.1 * 2 tau / T = 1.62e-5 over T = 1000 s: the standard deviation of the mean loss is
    /// 0.59 * 0.00402 = 0.0024. Four of them over the mean of ten seeds: 0.0030.
    #[test]
    fn the_mean_loss_is_weighted_by_time() {
        let shares = (0..10).map(|seed| {
            let (good, bad) = (state(rates(0.0, 0.01), 900), state(rates(0.0, 0.6), 100));
            share(&corrupted(&mut two_states(good, bad, seed), 200_000))
        });
        let mean = shares.sum::<f64>() / 10.0;
        assert!((mean - 0.069).abs() < 0.0067, "{mean}");
    }

    /// Given loss rates of 0 and 1 in the good and the bad state and one frame per millisecond, bad times
    /// are bursts. From one frame to the next a bad state becomes good with probability
    /// q = g (1 - exp(-(1/900 + 1/100) ms)) = 0.9 * 0.011049 = 0.009944, where g is its share of time.
    /// Bursts are geometric with mean 1 / q = 100.56 frames and nearly that standard deviation. In 600 s
    /// there are some 600 of them: four standard errors are 16.4.
    #[test]
    fn bursts_last_as_long_as_the_bad_state() {
        let (good, bad) = (state(rates(0.0, 0.0), 900), state(rates(0.0, 1.0), 100));
        let corrupted = corrupted(&mut two_states(good, bad, 1), 600_000);
        let lost = corrupted.iter().filter(|&&corrupted| corrupted).count() as f64;
        let bursts = corrupted.windows(2).filter(|pair| !pair[0] && pair[1]).count() as f64;
        assert!((480.0..720.0).contains(&bursts), "{bursts} bursts");
        assert!((lost / bursts - 100.56).abs() < 16.4, "{} frames per burst", lost / bursts);
    }

    /// Given bit error rates of 0 and 1e-3 with mean sojourn times of 10 ms and frames of 1,000 bits in
    /// 100 us, frames within a bad sojourn survive with (1 - 1e-3)^1000 = 0.36770. Some frames contain a
    /// change of state: with k = 1e5 ns / 1e7 ns = 0.01 the loss of all frames is 0.5 * 0.6323, less at
    /// most some k * 0.5. Expect 0.316 within 0.006 for that, plus randomness (the share of bad frames in
    /// 1,000 s has the standard deviation sqrt(0.25 * 2 * 5 ms / 1000 s) = 0.0016; four are 0.0064).
    #[test]
    fn bit_errors_follow_the_rate_of_the_state() {
        let (good, bad) = (state(rates(0.0, 0.0), 10), state(rates(1e-3, 0.0), 10));
        let lost = share(&corrupted(&mut two_states(good, bad, 3), 1_000_000));
        assert!((lost - 0.316).abs() < 0.0064 * 0.6323 + 0.005, "{lost}");
    }

    /// Given two equal states, the channel is a binary symmetric one: a frame of 12,064 bits at 1e-5
    /// survives with 0.886352 (as with a constant rate). The number lost of 100,000 has the mean 11,365
    /// and the standard deviation 100.4; the bound is four of them.
    #[test]
    fn two_equal_states_are_a_binary_symmetric_channel() {
        let same = state(rates(1e-5, 0.0), 1);
        let mut channel = two_states(same, same, 1);
        let lost = (0..100_000u64).filter(|number| {
            let start = Instant::from_millis(10 * number);
            let transmission = Transmission { start, departure: start + Duration::from_millis(10) };
            channel.corrupts(start, transmission, Bits(8 * 1508))
        });
        let lost = lost.count();
        assert!(lost.abs_diff(11_365) < 402, "{lost}");
    }

    /// Given a frame of 2,000 bits whose second half is sent at a bit error rate of 1, expect it lost;
    /// one whose last bit was sent before is not; and the loss rate is that at the first bit.
    #[test]
    fn a_series_step_holds_from_its_instant() {
        let ms = Instant::from_millis;
        let transmission = |from, to| Transmission { start: ms(from), departure: ms(to) };
        let series = |errors| {
            let steps = vec![(ms(0), rates(0.0, 0.0)), (ms(10), errors), (ms(20), rates(0.0, 0.0))];
            Channel::series(&Profile::steps(steps).expect("increases"), Rng::stream(1, "series"))
        };
        let mut bits = series(rates(1.0, 0.0));
        let mut frames = series(rates(0.0, 1.0));
        let given = [(0, 10), (9, 11), (10, 12), (19, 21), (20, 22), (5, 25)];
        let lost = |channel: &mut Channel| {
            given.map(|(from, to)| channel.corrupts(ms(0), transmission(from, to), Bits(2_000)))
        };
        assert_eq!(lost(&mut bits), [false, true, true, true, false, true]);
        assert_eq!(lost(&mut frames), [false, false, true, true, false, false]);
    }

    /// Given sojourn times of 10 us and frames that start or end at the largest instant, as in an outage
    /// that only an operator ends, expect an immediate result; frames that are then sent now find the
    /// current states: half of them are lost.
    #[test]
    fn long_waits_are_skipped() {
        let brief = |loss| ChannelState {
            errors: rates(0.0, loss),
            mean_duration: Duration::from_nanos(10_000),
        };
        let mut channel = two_states(brief(0.0), brief(1.0), 7);
        let (now, end) = (Instant::from_millis(1), Instant::from_nanos(1 << 62));
        for transmission in [
            Transmission { start: now, departure: end },
            Transmission { start: end, departure: end },
        ] {
            channel.corrupts(now, transmission, Bits(8_000));
        }
        let lost = share(&corrupted(&mut channel, 10_000));
        assert!((lost - 0.5).abs() < 4.0 * 0.005, "{lost}");
    }

    /// Given the same seed and different traffic, expect the same states: with all frames lost in the bad
    /// state, frames every 7 ms are lost as is every seventh of those that start every ms.
    #[test]
    fn the_states_do_not_depend_on_the_traffic() {
        let (good, bad) = (state(rates(0.0, 0.0), 30), state(rates(0.0, 1.0), 20));
        let all = corrupted(&mut two_states(good, bad, 5), 70_000);
        let mut channel = two_states(good, bad, 5);
        let some = (0..10_000u64).map(|number| {
            let start = Instant::from_millis(7 * number);
            channel.corrupts(start, Transmission { start, departure: start }, Bits(8))
        });
        assert!(some.eq(all.iter().step_by(7).copied()));
    }
}
