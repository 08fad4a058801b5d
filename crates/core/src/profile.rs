//! Values that vary with time. They are pure functions, so an engine and a report see the same values.

use crate::time::Instant;

/// A value as a function of time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Profile<T> {
    /// The same value at all times.
    Constant(T),
    /// A step function: each value holds from its instant until the next one; see [`Profile::steps`].
    Steps(Vec<(Instant, T)>),
}

impl<T: Copy> Profile<T> {
    /// A step function. `None` unless the first step is at the start of the run and the instants
    /// increase.
    #[must_use]
    pub fn steps(steps: Vec<(Instant, T)>) -> Option<Self> {
        let starts_at_zero = steps.first().is_some_and(|step| step.0 == Instant::START);
        let rises = steps.windows(2).all(|pair| pair[0].0 < pair[1].0);
        (starts_at_zero && rises).then_some(Self::Steps(steps))
    }

    /// The value at `now`.
    #[must_use]
    #[inline]
    pub fn at(&self, now: Instant) -> T {
        match self {
            Self::Constant(value) => *value,
            Self::Steps(steps) => Self::step(steps, now),
        }
    }

    /// Out of line, so that a constant is inlined where it is used.
    #[inline(never)]
    fn step(steps: &[(Instant, T)], now: Instant) -> T {
        let after = steps.partition_point(|step| step.0 <= now);
        steps[after - 1].1
    }

    /// The next instant after `now` at which the value may change.
    #[must_use]
    pub fn next_change(&self, now: Instant) -> Option<Instant> {
        match self {
            Self::Constant(_) => None,
            Self::Steps(steps) => {
                let after = steps.partition_point(|step| step.0 <= now);
                steps.get(after).map(|step| step.0)
            }
        }
    }

    /// Applies a function to every value.
    #[must_use]
    pub fn map<U>(&self, value: impl Fn(T) -> U) -> Profile<U> {
        match self {
            Self::Constant(constant) => Profile::Constant(value(*constant)),
            Self::Steps(steps) => {
                Profile::Steps(steps.iter().map(|&(at, step)| (at, value(step))).collect())
            }
        }
    }

    /// The same profile as steps; a constant becomes one step.
    #[must_use]
    pub fn into_steps(self) -> Self {
        match self {
            Self::Constant(value) => Self::Steps(vec![(Instant::START, value)]),
            steps @ Self::Steps(_) => steps,
        }
    }

    /// All values of the profile, in order of time.
    pub fn values(&self) -> impl Iterator<Item = T> + '_ {
        let (constant, steps) = match self {
            Self::Constant(value) => (Some(*value), [].as_slice()),
            Self::Steps(steps) => (None, steps.as_slice()),
        };
        constant.into_iter().chain(steps.iter().map(|step| step.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps_profile() -> Profile<u32> {
        let at = Instant::from_millis;
        Profile::steps(vec![(at(0), 10), (at(5), 20), (at(9), 0)]).expect("increases from zero")
    }

    #[test]
    fn a_step_holds_from_its_instant_until_the_next() {
        let profile = steps_profile();
        let at = |ns| profile.at(Instant::from_nanos(ns));
        assert_eq!([at(0), at(4_999_999), at(5_000_000)], [10, 10, 20]);
        assert_eq!([at(8_999_999), at(9_000_000), at(u64::MAX)], [20, 0, 0]);
    }

    #[test]
    fn the_next_change_is_strictly_later() {
        let profile = steps_profile();
        let next = |ms| profile.next_change(Instant::from_millis(ms));
        assert_eq!(next(0), Some(Instant::from_millis(5)));
        assert_eq!(next(5), Some(Instant::from_millis(9)));
        assert_eq!(next(9), None);
        assert_eq!(Profile::Constant(1).next_change(Instant::START), None);
    }

    #[test]
    fn steps_start_at_zero_and_increase() {
        let at = Instant::from_millis;
        assert_eq!(Profile::<u8>::steps(vec![]), None);
        assert_eq!(Profile::steps(vec![(at(1), 1)]), None);
        assert_eq!(Profile::steps(vec![(at(0), 1), (at(0), 2)]), None);
        assert_eq!(steps_profile().values().collect::<Vec<_>>(), [10, 20, 0]);
        assert_eq!(Profile::Constant(7).values().collect::<Vec<_>>(), [7]);
    }
}
