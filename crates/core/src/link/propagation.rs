//! Propagation: the delay between the transmitter and the receiver.

use crate::profile::Profile;
use crate::time::{Duration, Instant};

/// A delay that may vary with time. Frames are never reordered: when the path shortens, a frame that
/// would arrive before its predecessor arrives together with it.
#[derive(Clone, Debug)]
pub struct Propagation {
    delay: Profile<Duration>,
    /// Tracked only if the delay varies.
    last_arrival: Instant,
}

impl Propagation {
    /// A path with this one-way delay.
    #[must_use]
    pub fn new(delay: Profile<Duration>) -> Self {
        Self { delay, last_arrival: Instant::START }
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
        match delay {
            // A constant delay would ignore the previous frame.
            Some(Profile::Constant(delay)) => {
                self.delay = Profile::Steps(vec![(Instant::START, delay)]);
            }
            Some(delay) => self.delay = delay,
            None => {}
        }
    }

    #[inline(never)]
    fn arrival_in_order(&mut self, departure: Instant) -> Instant {
        self.last_arrival = self.last_arrival.max(departure + self.delay.at(departure));
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
}
