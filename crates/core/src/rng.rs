//! Random number streams, one for each engine.
//!
//! The generator is xoshiro256++ 1.0 seeded by SplitMix64 (Blackman and Vigna, 2019). It is implemented
//! here and tested with its published vectors, so that no upgrade of a dependency can change a result.
//! A stream is named after its engine: another engine, or another draw in one engine, does not change
//! the draws of any other engine.

/// SplitMix64, to expand a seed to a larger state.
#[derive(Clone, Debug)]
struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

/// FNV-1a, 64 bits (Fowler, Noll, Vo): a stable hash for stream names and trace hashes.
#[must_use]
pub fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
    })
}

/// A bijection in which each bit of the result depends on every bit of `word`. Hashes small numbers,
/// which FNV-1a distributes too evenly to be random.
pub(crate) fn scramble(word: u64) -> u64 {
    SplitMix64(word).next()
}

/// A xoshiro256++ generator.
#[derive(Clone, Debug)]
pub struct Rng([u64; 4]);

impl Rng {
    /// The stream of the engine `name` in the run with this seed.
    #[must_use]
    pub fn stream(run_seed: u64, name: &str) -> Self {
        let mut spread = SplitMix64(SplitMix64(run_seed).next() ^ fnv1a(name.as_bytes()));
        Self([spread.next(), spread.next(), spread.next(), spread.next()])
    }

    /// 64 uniform bits.
    pub fn next_u64(&mut self) -> u64 {
        let s = &mut self.0;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// A uniform number in (0, 1]. Zero is excluded, so that its logarithm is finite.
    #[expect(clippy::cast_precision_loss, reason = "53 bits are exact in a double")]
    pub fn open_unit(&mut self) -> f64 {
        ((self.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// A uniform integer in `0..bound`, without the bias of a plain remainder (Lemire, 2019).
    ///
    /// # Panics
    /// If `bound` is zero.
    #[expect(clippy::cast_possible_truncation, reason = "the low and high halves are meant")]
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "the bound is positive");
        let threshold = bound.wrapping_neg() % bound;
        loop {
            let product = u128::from(self.next_u64()) * u128::from(bound);
            if product as u64 >= threshold {
                return (product >> 64) as u64;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// First outputs of the authors' splitmix64.c for seed 1234567.
    #[test]
    fn splitmix64_matches_its_published_vector() {
        let mut generator = SplitMix64(1_234_567);
        let outputs: Vec<u64> = (0..5).map(|_| generator.next()).collect();
        assert_eq!(
            outputs,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423,
                4_593_380_528_125_082_431,
                16_408_922_859_458_223_821
            ]
        );
    }

    /// First outputs of the authors' xoshiro256plusplus.c for the state 1, 2, 3, 4.
    #[test]
    fn xoshiro256_plus_plus_matches_its_published_vector() {
        let mut generator = Rng([1, 2, 3, 4]);
        let outputs: Vec<u64> = (0..10).map(|_| generator.next_u64()).collect();
        assert_eq!(
            outputs,
            [
                41_943_041,
                58_720_359,
                3_588_806_011_781_223,
                3_591_011_842_654_386,
                9_228_616_714_210_784_205,
                9_973_669_472_204_895_162,
                14_011_001_112_246_962_877,
                12_406_186_145_184_390_807,
                15_849_039_046_786_891_736,
                10_450_023_813_501_588_000
            ]
        );
    }

    #[test]
    fn fnv1a_matches_its_published_vectors() {
        assert_eq!(fnv1a(b""), 0xCBF2_9CE4_8422_2325);
        assert_eq!(fnv1a(b"a"), 0xAF63_DC4C_8601_EC8C);
        assert_eq!(fnv1a(b"foobar"), 0x8594_4171_F739_67E8);
    }

    #[test]
    fn streams_differ_by_name_and_by_seed_and_repeat() {
        let draw = |seed, name: &str| Rng::stream(seed, name).next_u64();
        assert_eq!(draw(1, "link.forward"), draw(1, "link.forward"));
        assert_ne!(draw(1, "link.forward"), draw(1, "link.return"));
        assert_ne!(draw(1, "link.forward"), draw(2, "link.forward"));
    }

    /// The mean of n uniform draws has a standard error of 1/sqrt(12 n): 0.0009 for 100,000, so
    /// five standard errors are 0.0046.
    #[test]
    fn unit_draws_are_centred_and_never_zero() {
        let mut rng = Rng::stream(7, "unit");
        let draws: Vec<f64> = (0..100_000).map(|_| rng.open_unit()).collect();
        let mean = draws.iter().sum::<f64>() / 100_000.0;
        assert!((mean - 0.5).abs() < 0.0046, "{mean}");
        assert!(draws.iter().all(|&draw| draw > 0.0 && draw <= 1.0));
    }

    /// Each of six faces is expected 10,000 times; five standard deviations are 457.
    #[test]
    fn below_is_uniform() {
        let mut rng = Rng::stream(3, "die");
        let mut counts = [0i64; 6];
        for _ in 0..60_000 {
            counts[usize::try_from(rng.below(6)).expect("below six")] += 1;
        }
        assert!(counts.iter().all(|count| (count - 10_000).abs() < 457), "{counts:?}");
    }
}
