//! Random numbers in a plan.

use core::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use super::Check;

/// A probability distribution of integers.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Draw {
    /// Always the same.
    Constant {
        /// The number.
        value: u64,
    },
    /// Exponential.
    Exponential {
        /// The mean.
        mean: u64,
    },
    /// The bounded Pareto distribution, from `min` to `max`.
    Pareto {
        /// The smallest number.
        min: u64,
        /// The exponent.
        shape: f64,
        /// The largest number.
        max: u64,
    },
    /// A log-normal distribution, censored at `max`.
    Lognormal {
        /// The median.
        median: u64,
        /// Standard deviation of the natural logarithm.
        sigma: f64,
        /// The largest number.
        max: u64,
    },
}

/// Outside these bounds the spread or the tail of a distribution is lost in the precision of `f64`.
const SHAPE_MAX: f64 = 100.0;
const SHAPE_MIN: f64 = 0.01;
const SIGMA_MAX: f64 = 10.0;

impl Draw {
    /// A constant must be in `allowed`; the scale of a distribution must also be at least 1.
    pub(super) fn check(
        &self,
        check: &mut Check,
        allowed: RangeInclusive<u64>,
        at: &dyn Fn(&str) -> String,
    ) {
        let bound = *allowed.end();
        match *self {
            Self::Constant { value } => check.within(value, allowed, || at("value")),
            Self::Exponential { mean } => check.within(mean, 1..=bound, || at("mean")),
            Self::Pareto { min, shape, max } => {
                check.within(max, 1..=bound, || at("max"));
                check.within(min, 1..=max, || at("min"));
                check.that(
                    (SHAPE_MIN..=SHAPE_MAX).contains(&shape),
                    || at("shape"),
                    "must be from 0.01 to 100",
                );
            }
            Self::Lognormal { median, sigma, max } => {
                check.within(max, 1..=bound, || at("max"));
                check.within(median, 1..=max, || at("median"));
                check.that(
                    (0.0..=SIGMA_MAX).contains(&sigma),
                    || at("sigma"),
                    "must be from 0 to 10",
                );
            }
        }
    }
}
