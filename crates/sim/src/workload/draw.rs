//! Random sizes and times, from a distribution and a random stream.

use bentpipe_core::rng::Rng;

use crate::plan::Draw;

/// Random numbers of a distribution.
#[derive(Clone, Debug)]
pub struct Draws {
    distribution: Draw,
    rng: Rng,
}

impl Draws {
    /// Creates a generator that uses `rng`.
    #[must_use]
    pub fn new(distribution: Draw, rng: Rng) -> Self {
        Self { distribution, rng }
    }

    /// Draws the next number.
    pub fn draw(&mut self) -> u64 {
        self.distribution.draw(&mut self.rng)
    }
}

impl Draw {
    /// Draws the next number of a random stream, rounded to the nearest integer.
    pub fn draw(self, rng: &mut Rng) -> u64 {
        match self {
            Draw::Constant { value } => value,
            Draw::Exponential { mean } => rounded(-libm::log(rng.open_unit()) * real(mean)),
            Draw::Pareto { min, shape, max } => {
                // Inversion of F(x) = (1 - (min / x)^shape) / (1 - (min / max)^shape).
                let covered = 1.0 - libm::pow(real(min) / real(max), shape);
                let rest = 1.0 - rng.open_unit() * covered;
                rounded(real(min) * libm::pow(rest, -1.0 / shape)).clamp(min, max)
            }
            Draw::Lognormal { median, sigma, max } => {
                let logarithm = sigma * standard_normal(rng);
                rounded(real(median) * libm::exp(logarithm)).min(max)
            }
        }
    }
}

/// The first of the two normal numbers of Box and Muller's method (1958).
fn standard_normal(rng: &mut Rng) -> f64 {
    let radius = libm::sqrt(-2.0 * libm::log(rng.open_unit()));
    radius * libm::cos(core::f64::consts::TAU * rng.open_unit())
}

#[expect(clippy::cast_precision_loss, reason = "a draw has only the 53 bits of a double")]
fn real(number: u64) -> f64 {
    number as f64
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "no distribution is negative, and a float-to-integer cast saturates"
)]
fn rounded(number: f64) -> u64 {
    libm::round(number) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWS: u32 = 200_000;

    /// Mean, minimum and maximum of many draws.
    fn many(distribution: Draw) -> (f64, u64, u64) {
        let mut draws = Draws::new(distribution, Rng::stream(11, "draws"));
        let numbers: Vec<u64> = (0..DRAWS).map(|_| draws.draw()).collect();
        let sum = numbers.iter().map(|&number| real(number)).sum::<f64>();
        let min = *numbers.iter().min().expect("many");
        let max = *numbers.iter().max().expect("many");
        (sum / f64::from(DRAWS), min, max)
    }

    /// The mean of n draws has a standard error of deviation / sqrt(n); five of them are allowed.
    fn assert_mean(distribution: Draw, mean: f64, deviation: f64) {
        let measured = many(distribution).0;
        let tolerance = 5.0 * deviation / f64::from(DRAWS).sqrt();
        assert!((measured - mean).abs() < tolerance, "{distribution:?}: {measured}, not {mean}");
    }

    #[test]
    fn a_constant_uses_no_random_number() {
        assert_eq!(many(Draw::Constant { value: 7 }), (7.0, 7, 7));
        let mut draws = Draws::new(Draw::Constant { value: 7 }, Rng::stream(1, "a"));
        draws.draw();
        assert_eq!(draws.rng.next_u64(), Rng::stream(1, "a").next_u64());
    }

    /// The deviation of an exponential distribution is its mean.
    #[test]
    fn an_exponential_distribution_has_its_mean() {
        assert_mean(Draw::Exponential { mean: 20_000 }, 20_000.0, 20_000.0);
    }

    /// E[x^k] = a L^k / (1 - (L/H)^a) * (1 - (L/H)^(a-k)) / (a - k) for a distribution from L to H
    /// with exponent a.
    #[test]
    fn a_bounded_pareto_distribution_has_its_mean_and_its_bounds() {
        for shape in [0.5, 1.2, 2.5] {
            let (min, max) = (4_000.0f64, 10_000_000.0f64);
            let ratio = min / max;
            let moment = |k: i32| {
                let rest = shape - f64::from(k);
                shape * min.powi(k) / (1.0 - libm::pow(ratio, shape))
                    * (1.0 - libm::pow(ratio, rest))
                    / rest
            };
            let deviation = (moment(2) - moment(1) * moment(1)).sqrt();
            let distribution = Draw::Pareto { min: 4_000, shape, max: 10_000_000 };
            assert_mean(distribution, moment(1), deviation);
            let (_, low, high) = many(distribution);
            assert!(low >= 4_000 && high <= 10_000_000, "{low} to {high}");
        }
        assert_eq!(many(Draw::Pareto { min: 9, shape: 100.0, max: 9 }), (9.0, 9, 9));
        let steep = many(Draw::Pareto { min: 1, shape: 100.0, max: 1 << 50 });
        assert_eq!((steep.1, steep.2), (1, 1));
    }

    /// E[x] = m exp(s^2 / 2), and var[x] = E[x]^2 (exp(s^2) - 1), for a median m. The bound is more
    /// than eleven standard deviations of the logarithm above the median.
    #[test]
    fn a_lognormal_distribution_has_its_mean_and_its_bound() {
        let mean = 10_000.0 * libm::exp(0.5);
        let deviation = mean * (libm::exp(1.0) - 1.0).sqrt();
        let distribution = Draw::Lognormal { median: 10_000, sigma: 1.0, max: 1 << 40 };
        assert_mean(distribution, mean, deviation);
        let (_, _, max) = many(Draw::Lognormal { median: 10_000, sigma: 1.0, max: 30_000 });
        assert_eq!(max, 30_000);
        let certain = Draw::Lognormal { median: 10_000, sigma: 0.0, max: 30_000 };
        assert_eq!(many(certain), (10_000.0, 10_000, 10_000));
    }
}
