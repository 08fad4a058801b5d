//! The channel: which frames arrive corrupted.

use super::Transmission;
use super::time_varying_errors::{ChannelState, ErrorRates, TimeVaryingErrors};
use crate::profile::Profile;
use crate::rng::Rng;
use crate::time::Instant;
use crate::units::{Bits, Probability};

/// A channel with errors. It draws once per frame, in the order of transmission.
#[derive(Clone, Debug)]
pub struct Channel {
    /// The number of bits before the error process must be evaluated: a frame that fits in them is correct.
    good_bits_left: u64,
    errors: Errors,
}

/// The error process.
#[derive(Clone, Debug)]
enum Errors {
    /// No errors.
    Clear,
    /// Independent bit errors of one probability (a binary symmetric channel). A frame with a
    /// bit error is lost: its check sequence fails.
    Bits(BitErrors),
    /// Errors that vary with time; boxed, since few channels have them.
    Varying(Box<TimeVaryingErrors>),
}

/// The error process of a binary symmetric channel.
///
/// Gaps between bit errors are geometric, so one draw per lost frame gives the same distribution as one
/// draw per bit. The rest of a corrupted frame needs no draw: bits are independent, so the gap after the frame is
/// drawn independently.
#[derive(Clone, Debug)]
struct BitErrors {
    rng: Rng,
    /// 1 / ln(1 - bit error rate); `None` when every bit is wrong.
    inverse_log: Option<f64>,
}

impl Channel {
    /// A channel without errors.
    #[must_use]
    pub fn clear() -> Self {
        Self { good_bits_left: u64::MAX, errors: Errors::Clear }
    }

    /// A binary symmetric channel with this bit error rate, drawing from `rng`.
    #[must_use]
    pub fn bit_errors(bit_error_rate: Probability, rng: Rng) -> Self {
        let rate = bit_error_rate.get();
        if rate == 0.0 {
            return Self::clear();
        }
        let inverse_log = (rate < 1.0).then(|| 1.0 / libm::log1p(-rate));
        let mut errors = BitErrors { rng, inverse_log };
        Self { good_bits_left: errors.draw_gap(), errors: Errors::Bits(errors) }
    }

    /// A Gilbert-Elliott channel in continuous time: it alternates between a good and a bad state with
    /// exponential sojourn times. `states` draws the times and `errors` the losses.
    #[must_use]
    pub fn gilbert_elliott(
        good: ChannelState,
        bad: ChannelState,
        states: Rng,
        errors: Rng,
    ) -> Self {
        Self::varying(TimeVaryingErrors::two_states(good, bad, states, errors))
    }

    /// A channel with independent errors at rates that are a function of time.
    #[must_use]
    pub fn series(errors: &Profile<ErrorRates>, rng: Rng) -> Self {
        Self::varying(TimeVaryingErrors::series(errors, rng))
    }

    /// No bits are known to be correct, so the error process is evaluated for every frame.
    fn varying(errors: TimeVaryingErrors) -> Self {
        Self { good_bits_left: 0, errors: Errors::Varying(Box::new(errors)) }
    }

    /// Whether the errors depend on the time of transmission.
    pub(super) fn varies(&self) -> bool {
        matches!(self.errors, Errors::Varying(_))
    }

    /// Transmits a frame of at least one bit. Returns whether it arrives corrupted, as decided at `now`.
    /// Call in the order of transmission.
    #[inline]
    pub fn corrupts(&mut self, now: Instant, transmission: Transmission, frame: Bits) -> bool {
        match self.good_bits_left.checked_sub(frame.0) {
            Some(left) => {
                self.good_bits_left = left;
                false
            }
            None => self.evaluate_errors(now, transmission, frame),
        }
    }

    #[cold]
    #[inline(never)]
    fn evaluate_errors(&mut self, now: Instant, transmission: Transmission, frame: Bits) -> bool {
        match &mut self.errors {
            Errors::Clear => {
                self.good_bits_left = u64::MAX;
                false
            }
            Errors::Bits(errors) => {
                self.good_bits_left = errors.draw_gap();
                true
            }
            Errors::Varying(errors) => errors.corrupts(now, transmission, frame.0),
        }
    }
}

impl BitErrors {
    /// The number of correct bits before the next bit error: floor(ln u / ln(1 - p)) for uniform u
    /// (inversion; Devroye 1986, X.2). `libm` gives the same logarithm on every machine.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "both logarithms are negative, and a float-to-integer cast saturates"
    )]
    fn draw_gap(&mut self) -> u64 {
        match self.inverse_log {
            Some(inverse_log) => (libm::log(self.rng.open_unit()) * inverse_log) as u64,
            None => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn channel(rate: f64, seed: u64) -> Channel {
        let rate = Probability::new(rate).expect("a probability");
        Channel::bit_errors(rate, Rng::stream(seed, "channel"))
    }

    fn losses(channel: &mut Channel, frames: u64, bytes: u64) -> u64 {
        let at = Instant::START;
        let transmission = Transmission { start: at, departure: at };
        (0..frames).map(|_| u64::from(channel.corrupts(at, transmission, Bits(8 * bytes)))).sum()
    }

    /// A frame of 1508 bytes at 1e-5 survives with probability (1 - 1e-5)^12064 = 0.886352. The number
    /// lost of 100,000 is binomial: mean 11,365, standard deviation 100.4; the bound is four of them.
    #[test]
    fn frame_loss_follows_the_bit_error_rate() {
        let lost = losses(&mut channel(1e-5, 1), 100_000, 1508);
        let survives = libm::exp(12_064.0 * libm::log1p(-1e-5));
        assert!((survives - 0.886_352).abs() < 1e-6);
        assert!(lost.abs_diff(11_365) < 402, "{lost}");
    }

    /// The number of bit errors must not depend on the frame size: at 1e-6 and one frame a byte, 10^7
    /// bytes contain 80 bytes with errors on average, standard deviation 8.9.
    #[test]
    fn the_error_rate_does_not_depend_on_the_frame_size() {
        let lost = losses(&mut channel(1e-6, 2), 10_000_000, 1);
        assert!(lost.abs_diff(80) < 36, "{lost}");
    }

    #[test]
    fn error_rates_of_zero_and_one_are_exact() {
        assert_eq!(losses(&mut channel(0.0, 1), 1_000, 10_000), 0);
        assert_eq!(losses(&mut channel(1.0, 1), 1_000, 1), 1_000);
        assert_eq!(losses(&mut channel(1e-300, 1), 1_000, 10_000), 0);
    }
}
