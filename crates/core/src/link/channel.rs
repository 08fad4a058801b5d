//! The channel: which frames arrive corrupted.

use super::Transmission;
use super::time_varying_errors::{ChannelState, ErrorRates, TimeVaryingErrors};
use crate::profile::Profile;
use crate::rng::Rng;
use crate::time::Instant;
use crate::units::{Bits, Probability};

/// What the channel does to frames. Drawn once a frame, in the order of transmission.
#[derive(Clone, Debug)]
pub struct Channel {
    /// Bits that are good before the errors are asked again: a frame that fits in them arrives whole.
    good_bits_left: u64,
    errors: Errors,
}

/// Which bits are bad.
#[derive(Clone, Debug)]
enum Errors {
    /// None.
    Clear,
    /// Each one independently with the same probability (a binary symmetric channel); one bad bit costs
    /// the frame, as its check sequence fails.
    Bits(BitErrors),
    /// Errors that change with time; apart, since few channels are so.
    Varying(Box<TimeVaryingErrors>),
}

/// Draws of a binary symmetric channel.
///
/// Gaps between bad bits are geometric, so one draw a lost frame gives the same law as one draw a
/// bit. The rest of a corrupted frame needs no bookkeeping: bits are independent, so the gap that
/// starts after the frame is a fresh draw.
#[derive(Clone, Debug)]
struct BitErrors {
    rng: Rng,
    /// 1 / ln(1 - bit error rate); `None` when every bit is wrong.
    inverse_log: Option<f64>,
}

impl Channel {
    /// Every frame arrives whole.
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

    /// The channel of Gilbert and Elliott in continuous time: it is good and bad in turns, each for an
    /// exponential time. `states` draws the times and `errors` the losses.
    #[must_use]
    pub fn gilbert_elliott(
        good: ChannelState,
        bad: ChannelState,
        states: Rng,
        errors: Rng,
    ) -> Self {
        Self::varying(TimeVaryingErrors::two_states(good, bad, states, errors))
    }

    /// Errors at rates that are given over time, independent of each other.
    #[must_use]
    pub fn series(errors: &Profile<ErrorRates>, rng: Rng) -> Self {
        Self::varying(TimeVaryingErrors::series(errors, rng))
    }

    /// With no bits known to be good, the errors are asked about every frame.
    fn varying(errors: TimeVaryingErrors) -> Self {
        Self { good_bits_left: 0, errors: Errors::Varying(Box::new(errors)) }
    }

    /// Whether it matters when a frame is sent.
    pub(super) fn varies(&self) -> bool {
        matches!(self.errors, Errors::Varying(_))
    }

    /// Sends one frame, of one bit at least, over the channel: whether it arrives corrupted. That is
    /// decided at `now`; call in the order of the slots.
    #[inline]
    pub fn corrupts(&mut self, now: Instant, transmission: Transmission, frame: Bits) -> bool {
        match self.good_bits_left.checked_sub(frame.0) {
            Some(left) => {
                self.good_bits_left = left;
                false
            }
            None => self.ask(now, transmission, frame),
        }
    }

    #[cold]
    #[inline(never)]
    fn ask(&mut self, now: Instant, transmission: Transmission, frame: Bits) -> bool {
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
    /// The number of good bits before the next bad one: floor(ln u / ln(1 - p)) for uniform u
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

    /// A frame of 1508 bytes at 1e-5 survives with probability (1 - 1e-5)^12064 = 0.886352. The
    /// number lost of 100,000 is binomial: mean 11,365, standard deviation 100.4; four of them.
    #[test]
    fn frame_loss_follows_the_bit_error_rate() {
        let lost = losses(&mut channel(1e-5, 1), 100_000, 1508);
        let survives = libm::exp(12_064.0 * libm::log1p(-1e-5));
        assert!((survives - 0.886_352).abs() < 1e-6);
        assert!(lost.abs_diff(11_365) < 402, "{lost}");
    }

    /// Splitting the same bits into other frames must not change how many bad bits there are: at
    /// 1e-6 and one frame a byte, 10^7 bytes hold 80 bad bytes on average, deviation 8.9.
    #[test]
    fn short_frames_see_the_same_error_rate() {
        let lost = losses(&mut channel(1e-6, 2), 10_000_000, 1);
        assert!(lost.abs_diff(80) < 36, "{lost}");
    }

    #[test]
    fn the_extremes_are_exact() {
        assert_eq!(losses(&mut channel(0.0, 1), 1_000, 10_000), 0);
        assert_eq!(losses(&mut channel(1.0, 1), 1_000, 1), 1_000);
        assert_eq!(losses(&mut channel(1e-300, 1), 1_000, 10_000), 0);
    }
}
