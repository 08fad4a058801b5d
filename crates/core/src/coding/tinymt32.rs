//! The pseudorandom number generator TinyMT32 of RFC 8682. It is not for cryptography.

/// The parameters of RFC 8682, section 2.
const FIRST_MATRIX: u32 = 0x8F70_11EE;
const SECOND_MATRIX: u32 = 0xFC78_FF1F;
const TEMPER_MATRIX: u32 = 0x3793_FDFF;
/// Multiplier of the seed's expansion, that of Mersenne Twister.
const SEED_MULTIPLIER: u32 = 1_812_433_253;
/// Rounds that expand the seed, and steps before the first number.
const ROUNDS: usize = 8;

/// All ones if the lowest bit is set, else zero.
const fn mask_of_lowest_bit(word: u32) -> u32 {
    (word & 1).wrapping_neg()
}

/// A generator with a state of 127 bits.
#[derive(Clone, Debug)]
pub struct TinyMt32([u32; 4]);

impl TinyMt32 {
    /// The generator for a seed; zero is a seed like any other.
    #[must_use]
    pub fn new(seed: u32) -> Self {
        let mut state = [seed, FIRST_MATRIX, SECOND_MATRIX, TEMPER_MATRIX];
        for round in 1..ROUNDS {
            let previous = state[(round - 1) % 4];
            let mixed = SEED_MULTIPLIER.wrapping_mul(previous ^ previous >> 30);
            state[round % 4] ^= mixed.wrapping_add(round as u32);
        }
        let mut generator = Self(state);
        (0..ROUNDS).for_each(|_| generator.step());
        generator
    }

    fn step(&mut self) {
        let [first, second, third, fourth] = self.0;
        // The highest bit of the first word is not part of the state.
        let mut x = (first & 0x7FFF_FFFF) ^ second ^ third;
        x ^= x << 1;
        let y = fourth ^ fourth >> 1 ^ x;
        let mask = mask_of_lowest_bit(y);
        self.0 = [second, third ^ mask & FIRST_MATRIX, x ^ y << 10 ^ mask & SECOND_MATRIX, y];
    }

    /// 32 uniform bits.
    pub fn next_u32(&mut self) -> u32 {
        self.step();
        let [first, _, third, fourth] = self.0;
        let sum = first.wrapping_add(third >> 8);
        fourth ^ sum ^ mask_of_lowest_bit(sum) & TEMPER_MATRIX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 8682, figure 2: the first 50 numbers for the seed 1.
    #[test]
    fn rfc_8682_figure_2() {
        let published = [
            2_545_341_989,
            981_918_433,
            3_715_302_833,
            2_387_538_352,
            3_591_001_365,
            3_820_442_102,
            2_114_400_566,
            2_196_103_051,
            2_783_359_912,
            764_534_509,
            643_179_475,
            1_822_416_315,
            881_558_334,
            4_207_026_366,
            3_690_273_640,
            3_240_535_687,
            2_921_447_122,
            3_984_931_427,
            4_092_394_160,
            44_209_675,
            2_188_315_343,
            2_908_663_843,
            1_834_519_336,
            3_774_670_961,
            3_019_990_707,
            4_065_554_902,
            1_239_765_502,
            4_035_716_197,
            3_412_127_188,
            552_822_483,
            161_364_450,
            353_727_785,
            140_085_994,
            149_132_008,
            2_547_770_827,
            4_064_042_525,
            4_078_297_538,
            2_057_335_507,
            622_384_752,
            2_041_665_899,
            2_193_913_817,
            1_080_849_512,
            33_160_901,
            662_956_935,
            642_999_063,
            3_384_709_977,
            1_723_175_122,
            3_866_752_252,
            521_822_317,
            2_292_524_454,
        ];
        let mut generator = TinyMt32::new(1);
        let numbers: Vec<u32> = published.iter().map(|_| generator.next_u32()).collect();
        assert_eq!(numbers, published);
    }
}
