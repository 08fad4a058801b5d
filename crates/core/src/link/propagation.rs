//! Propagation: the delay between the transmitter and the receiver.

use crate::profile::Profile;
use crate::rng::Rng;
use crate::time::{Duration, Instant};

/// A delay that may vary with time, with jitter. Frames are never reordered: a frame that would arrive
/// before its predecessor, because the path shortens or its jitter is less, arrives together with it.
#[derive(Clone, Debug)]
pub struct Propagation {
    delay: Profile<Duration>,
    /// Tracked only if the delay varies.
    last_arrival: Instant,
    jitter: Option<Box<Jitter>>,
}

/// A random addition to the delay of each frame.
#[derive(Clone, Debug)]
struct Jitter {
    max: Duration,
    rng: Rng,
}

impl Propagation {
    /// A path with this one-way delay.
    #[must_use]
    pub fn new(delay: Profile<Duration>) -> Self {
        Self { delay, last_arrival: Instant::START, jitter: None }
    }

    /// Adds a random delay to each frame, uniform from zero to `max`, drawn from `rng`.
    #[must_use]
    pub fn with_jitter(mut self, max: Duration, rng: Rng) -> Self {
        if max > Duration::ZERO {
            self.set_jitter(max, rng);
        }
        self
    }

    /// Changes the jitter from the next frame on.
    pub(super) fn set_jitter(&mut self, max: Duration, rng: Rng) {
        self.jitter = (max > Duration::ZERO).then(|| Box::new(Jitter { max, rng }));
        if let Profile::Constant(delay) = self.delay {
            // A constant delay would ignore the previous frame.
            self.delay = Profile::Constant(delay).into_steps();
        }
    }

    /// The arrival time of a frame whose last bit leaves at `departure`. Call in order of departure.
    #[inline]
    pub fn arrival(&mut self, departure: Instant) -> Instant {
        match self.delay {
            // Departures are in order, so arrivals are.
            Profile::Constant(delay) => departure + delay,
            Profile::Steps(_) => self.arrival_in_order(departure),
        }
    }

    /// Changes the delay from the next frame on, if one is given. The previous frame arrives at
    /// `last_arrival`.
    pub(super) fn change(&mut self, delay: Option<Profile<Duration>>, last_arrival: Instant) {
        self.last_arrival = last_arrival;
        if let Some(delay) = delay {
            // A constant delay would ignore the previous frame.
            self.delay = delay.into_steps();
        }
    }

    #[inline(never)]
    fn arrival_in_order(&mut self, departure: Instant) -> Instant {
        let mut arrival = departure + self.delay.at(departure);
        if let Some(jitter) = &mut self.jitter {
            arrival += Duration::from_nanos(jitter.rng.below(jitter.max.as_nanos() + 1));
        }
        self.last_arrival = self.last_arrival.max(arrival);
        self.last_arrival
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortening_path_keeps_the_order() {
        let ms = Instant::from_millis;
        let delay = Profile::steps(vec![
            (ms(0), Duration::from_millis(100)),
            (ms(10), Duration::from_millis(20)),
        ])
        .expect("increases");
        let mut path = Propagation::new(delay);
        assert_eq!(path.arrival(ms(9)), ms(109));
        assert_eq!(path.arrival(ms(10)), ms(109));
        assert_eq!(path.arrival(ms(95)), ms(115));
    }

    /// Given frames 20 ms apart and jitter up to 10 ms, which no frame can catch up, expect additions
    /// uniform from 0 to 10 ms: the mean of 10,000 is 5 ms within four standard errors (0.029 ms each).
    #[test]
    fn jitter_is_uniform_from_zero() {
        let delay = Profile::Constant(Duration::from_millis(100));
        let rng = Rng::stream(1, "jitter");
        let mut path = Propagation::new(delay).with_jitter(Duration::from_millis(10), rng);
        let added = (0..10_000).map(|n| {
            let departure = Instant::from_millis(20 * n);
            let delay = path.arrival(departure).saturating_since(departure);
            delay.as_nanos() - 100_000_000
        });
        let added: Vec<u64> = added.collect();
        let mean = added.iter().sum::<u64>() / 10_000;
        assert!(mean.abs_diff(5_000_000) < 4 * 29_000, "{mean}");
        let (min, max) = (added.iter().min(), added.iter().max());
        assert!(min < Some(&10_000) && max > Some(&9_990_000) && max <= Some(&10_000_000));
    }

    /// Given frames 1 ms apart and jitter up to 10 ms, expect arrivals in order, also after the delay
    /// changes.
    #[test]
    fn jitter_reorders_no_frames() {
        let delay = Profile::Constant(Duration::from_millis(100));
        let rng = Rng::stream(2, "jitter");
        let mut path = Propagation::new(delay).with_jitter(Duration::from_millis(10), rng);
        let mut last = Instant::START;
        for n in 0..1_000 {
            if n == 500 {
                path.change(Some(Profile::Constant(Duration::from_millis(20))), last);
            }
            let arrival = path.arrival(Instant::from_millis(n));
            assert!(arrival >= last, "frame {n}");
            last = arrival;
        }
        assert!(last >= Instant::from_millis(999 + 20));
        assert!(last <= Instant::from_millis(999 + 20 + 10));
    }

    #[test]
    fn no_jitter_draws_nothing() {
        let delay = Profile::Constant(Duration::from_millis(100));
        let path = Propagation::new(delay).with_jitter(Duration::ZERO, Rng::stream(1, "jitter"));
        assert!(path.jitter.is_none());
        assert!(matches!(path.delay, Profile::Constant(_)));
    }
}
