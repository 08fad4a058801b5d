//! Sizes, rates and probabilities as types, and the conversion between size, rate and time.

use crate::time::Duration;

/// A number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

/// A number of bits. Sizes on a link are in bits, since stuffing may add a fraction of a byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bits(pub u64);

impl From<Bytes> for Bits {
    fn from(bytes: Bytes) -> Self {
        Self(bytes.0.saturating_mul(8))
    }
}

impl Bits {
    /// The size in bytes, rounded up.
    #[must_use]
    pub const fn bytes_rounded_up(self) -> Bytes {
        Bytes(self.0.div_ceil(8))
    }
}

/// A rate in bits per second (SI: 1 Mbit/s is 1,000,000 bit/s). Zero means an outage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BitRate(pub u64);

/// The remainder of a transmission time that was rounded down to a nanosecond, in units of 1/rate
/// nanoseconds.
///
/// Carried to the next packet of the busy period, so that rounding errors do not accumulate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carry(pub(crate) u64);

/// A probability; the constructor checks that it lies in 0..=1.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Probability(f64);

/// The transmission time of one size at one rate: divided once and used for many packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransmitTime {
    rate: BitRate,
    whole: Duration,
    rest: u64,
}

const NANOS_PER_SECOND: u64 = 1_000_000_000;

impl BitRate {
    /// The transmission time of `size` at this rate, and the remainder for the next packet.
    ///
    /// The time is rounded down to a whole nanosecond; the remainder makes the sum over a busy
    /// period exact. Products fit 64 bits up to 2 GiB per packet (2^34 * 1e9 < 2^64 - 2^60); larger
    /// sizes take the 128-bit path.
    ///
    /// # Panics
    /// If the rate is zero: a transmission has to wait for the end of an outage.
    #[must_use]
    pub fn transmit_time(self, size: impl Into<Bits>, carry: Carry) -> (Duration, Carry) {
        assert!(self.0 > 0, "nothing can be sent at 0 bit/s");
        let Bits(bits) = size.into();
        if bits < 1 << 34 && carry.0 < 1 << 60 {
            let product = bits * NANOS_PER_SECOND + carry.0;
            return (Duration::from_nanos(product / self.0), Carry(product % self.0));
        }
        let product = u128::from(bits) * u128::from(NANOS_PER_SECOND) + u128::from(carry.0);
        let rate = u128::from(self.0);
        let nanos = u64::try_from(product / rate).unwrap_or(u64::MAX);
        let rest = u64::try_from(product % rate).expect("a remainder is below the rate, 64 bits");
        (Duration::from_nanos(nanos), Carry(rest))
    }
}

impl TransmitTime {
    /// The time of `size` at `rate`; panics like [`BitRate::transmit_time`].
    #[must_use]
    pub fn new(rate: BitRate, size: impl Into<Bits>) -> Self {
        let (whole, Carry(rest)) = rate.transmit_time(size, Carry::default());
        Self { rate, whole, rest }
    }

    /// The transmission time and the remainder, given the remainder of the previous packet: the same
    /// as [`BitRate::transmit_time`]. The sum of two remainders is below twice the rate, so it adds at
    /// most one nanosecond.
    #[must_use]
    pub fn after(self, Carry(carry): Carry) -> (Duration, Carry) {
        let rest = self.rest + carry;
        if rest < self.rate.0 {
            return (self.whole, Carry(rest));
        }
        (self.whole + Duration::from_nanos(1), Carry(rest - self.rate.0))
    }
}

impl Probability {
    /// `None` unless `value` lies in 0..=1.
    #[must_use]
    pub fn new(value: f64) -> Option<Self> {
        (0.0..=1.0).contains(&value).then_some(Self(value))
    }

    /// The probability as a number from 0 to 1.
    #[must_use]
    pub const fn get(self) -> f64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kilobyte_at_a_megabit_takes_eight_milliseconds() {
        let (time, carry) = BitRate(1_000_000).transmit_time(Bytes(1000), Carry::default());
        assert_eq!((time, carry), (Duration::from_millis(8), Carry::default()));
    }

    #[test]
    fn remainders_add_up_to_the_exact_time() {
        // 7 bytes at 3 bit/s take 18.66... s: three of them take exactly 56 s.
        let mut carry = Carry::default();
        let mut total = Duration::ZERO;
        for _ in 0..3 {
            let (time, rest) = BitRate(3).transmit_time(Bytes(7), carry);
            total += time;
            carry = rest;
        }
        assert_eq!((total, carry), (Duration::from_secs(56), Carry::default()));
    }

    #[test]
    fn times_below_a_nanosecond_add_up() {
        // One byte takes 8 ps: 125 bytes sent one by one take exactly 1 ns.
        let mut carry = Carry::default();
        let mut total = Duration::ZERO;
        for _ in 0..125 {
            let (time, rest) = BitRate(1_000_000_000_000).transmit_time(Bytes(1), carry);
            total += time;
            carry = rest;
        }
        assert_eq!(total, Duration::from_nanos(1));
    }

    #[test]
    fn transmit_time_agrees_with_bit_rate() {
        for rate in [3, 7, 1_000_003, 149_760_000, 1_000_000_000_000] {
            let once = TransmitTime::new(BitRate(rate), Bytes(1_508));
            let (mut a, mut b) = (Carry::default(), Carry::default());
            for _ in 0..1_000 {
                let each = BitRate(rate).transmit_time(Bytes(1_508), a);
                assert_eq!(once.after(b), each, "at {rate} bit/s");
                (a, b) = (each.1, each.1);
            }
        }
    }

    #[test]
    fn large_sizes_use_128_bits_and_saturate() {
        let (time, _) = BitRate(8).transmit_time(Bytes(1 << 33), Carry::default());
        assert_eq!(time, Duration::from_secs(1 << 33));
        let (time, _) = BitRate(1).transmit_time(Bytes(u64::MAX), Carry::default());
        assert_eq!(time.as_nanos(), u64::MAX);
    }

    #[test]
    #[should_panic(expected = "0 bit/s")]
    fn a_rate_of_zero_panics() {
        let _ = BitRate(0).transmit_time(Bytes(1), Carry::default());
    }

    #[test]
    fn a_probability_lies_in_0_to_1() {
        assert_eq!(Probability::new(0.25).map(Probability::get), Some(0.25));
        for bad in [-0.1, 1.000_001, f64::NAN, f64::INFINITY] {
            assert_eq!(Probability::new(bad), None, "{bad}");
        }
    }
}
