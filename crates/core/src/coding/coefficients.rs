//! The coefficients of a repair symbol (RFC 8681, section 3.6).

use super::tinymt32::TinyMt32;

/// The density threshold DT, 0 to 15: a coefficient is not zero with probability (DT + 1) / 16. With
/// [`Density::FULL`] no coefficient is zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Density(u8);

impl Density {
    /// No coefficient is zero.
    pub const FULL: Self = Self(15);

    /// The density with this threshold; `None` above 15.
    #[must_use]
    pub const fn new(threshold: u8) -> Option<Self> {
        if threshold <= Self::FULL.0 { Some(Self(threshold)) } else { None }
    }

    /// The threshold DT.
    #[must_use]
    pub const fn threshold(self) -> u8 {
        self.0
    }
}

/// Writes the coefficients of the repair symbol with this key, those of the oldest symbol of its window first.
pub fn coefficients(key: u16, density: Density, result: &mut [u8]) {
    let mut generator = TinyMt32::new(u32::from(key));
    for coefficient in result {
        // At full density the RFC draws no number for this decision.
        let is_chosen =
            density == Density::FULL || generator.next_u32() & 0xF <= u32::from(density.0);
        *coefficient = if is_chosen { unit(&mut generator) } else { 0 };
    }
}

/// A uniform element other than zero: the low bytes of numbers, until one is not zero.
fn unit(generator: &mut TinyMt32) -> u8 {
    loop {
        let byte = generator.next_u32() as u8;
        if byte != 0 {
            return byte;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn<const N: usize>(key: u16, threshold: u8) -> [u8; N] {
        let mut result = [0; N];
        coefficients(key, Density::new(threshold).expect("a threshold"), &mut result);
        result
    }

    /// RFC 8681, appendix A: the low bytes of the first numbers for the seed 1. None is zero, so they are the
    /// coefficients.
    #[test]
    fn full_density_takes_low_bytes() {
        assert_eq!(drawn(1, 15), [37, 225, 177, 176, 21, 246, 54, 139, 168, 237]);
    }

    /// The low 4 bits of the numbers for the seed 1 are 5, 1, 1, 0, 5, 6, 6, 11, 8, 13, 3, 11, 14, 14, 8, 7, 2 (RFC 8681,
    /// appendix A), and the low bytes 37, 225, 177, 176, 21, 246, 54, 139, 168, 237, 211, 187, 62, ... With DT 7, number 1
    /// (5) chooses number 2 (225), 3 (1) chooses 4 (176), 5 chooses 6 (246), 7 (6) chooses 8 (139). Numbers 9 (8) and 10
    /// (13) give zeros, 11 (3) chooses 12 (187); 13 (14), 14 (14) and 15 (8) give zeros.
    #[test]
    fn a_threshold_of_seven_by_hand() {
        assert_eq!(drawn(1, 7), [225, 176, 246, 139, 0, 0, 187, 0, 0, 0]);
    }

    /// Computed by a separate program, with a bitwise field and a list of words for the generator.
    #[test]
    fn other_keys_and_thresholds() {
        assert_eq!(drawn(0, 15), [39, 42, 153, 208, 176]);
        assert_eq!(drawn(0x1234, 3), [25, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let mut sparse = [0; 40];
        (sparse[4], sparse[5], sparse[32], sparse[38]) = (206, 248, 164, 171);
        assert_eq!(drawn(65_535, 0), sparse);
    }

    /// Given 100,000 coefficients, expect (DT + 1) / 16 of them not to be zero, within five standard deviations
    /// (at most 5 sqrt(100,000 / 4) = 791).
    #[test]
    fn the_threshold_sets_the_share_of_coefficients() {
        for threshold in 0..=15 {
            let found: usize = (0..100)
                .map(|key| drawn::<1000>(key, threshold).iter().filter(|&&c| c != 0).count())
                .sum();
            let expected = 6_250 * (usize::from(threshold) + 1);
            assert!(found.abs_diff(expected) < 791, "{threshold}: {found}");
        }
        assert_eq!(Density::new(16), None);
    }
}
