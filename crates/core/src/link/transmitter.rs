//! The transmitter: one frame after the other, at the rate of the moment.

use crate::profile::Profile;
use crate::time::{Duration, Instant};
use crate::units::{BitRate, Bytes, Carry, TransmitTime};

/// When a frame is on the transmitter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Its first bit.
    pub start: Instant,
    /// Its last bit, rounded down to a nanosecond; the remainder starts the next frame.
    pub departure: Instant,
}

/// Strict serialisation: `start = max(now, free_at)`, no credit for idle time.
#[derive(Clone, Debug)]
pub struct Transmitter {
    rate: Profile<BitRate>,
    free_at: Instant,
    carry: Carry,
    /// The size and time of the last frame: frames come in few sizes, and a division costs more
    /// than the rest of a transmission.
    last: (Bytes, TransmitTime),
}

impl Transmitter {
    /// An idle transmitter. `None` if the last rate of the profile is zero: what is queued then
    /// would never leave.
    #[must_use]
    pub fn new(rate: Profile<BitRate>) -> Option<Self> {
        let comes_back = rate.values().last().is_some_and(|rate| rate.0 > 0);
        comes_back.then_some(Self {
            rate,
            free_at: Instant::START,
            carry: Carry::default(),
            last: (Bytes(0), TransmitTime::default()),
        })
    }

    /// How long a frame that arrives now would wait for its first bit.
    #[must_use]
    pub fn wait(&self, now: Instant) -> Duration {
        self.free_at.saturating_since(now)
    }

    /// Takes the next slot for a frame that arrives now.
    pub fn take(&mut self, now: Instant, frame: Bytes) -> Slot {
        if now > self.free_at {
            self.free_at = now;
            self.carry = Carry::default();
        }
        let start = self.free_at;
        match self.rate {
            Profile::Constant(rate) => {
                if frame != self.last.0 {
                    self.last = (frame, TransmitTime::new(rate, frame));
                }
                let (time, carry) = self.last.1.after(self.carry);
                self.free_at = start + time;
                self.carry = carry;
            }
            Profile::Steps(_) => self.free_at = self.finish_across_steps(start, frame),
        }
        Slot { start, departure: self.free_at }
    }

    /// Walks the pieces of the rate profile until the last bit is out. Bits already sent before a
    /// change stay sent; at most one bit is rounded up at each change.
    fn finish_across_steps(&mut self, start: Instant, frame: Bytes) -> Instant {
        let mut at = start;
        let mut bits_left = frame.0 * 8;
        loop {
            let rate = self.rate.at(at);
            let change = self.rate.next_change(at);
            if rate.0 > 0 {
                let need = div_ceil(u128::from(bits_left) * NANOS, rate.0);
                let end = at + Duration::from_nanos(need);
                if change.is_none_or(|change| end <= change) {
                    return end;
                }
            }
            let change = change.expect("the last rate is above zero, so the frame ends there");
            let span = u128::from((change - at).as_nanos());
            let sent = u64::try_from(span * u128::from(rate.0) / NANOS).unwrap_or(u64::MAX);
            bits_left = bits_left.saturating_sub(sent).max(1);
            at = change;
        }
    }
}

const NANOS: u128 = 1_000_000_000;

fn div_ceil(product: u128, rate: u64) -> u64 {
    u64::try_from(product.div_ceil(u128::from(rate))).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    fn constant(rate: u64) -> Transmitter {
        Transmitter::new(Profile::Constant(BitRate(rate))).expect("a rate")
    }

    #[test]
    fn frames_follow_each_other_and_idle_time_earns_nothing() {
        let mut transmitter = constant(1_000_000);
        let first = transmitter.take(ms(0), Bytes(1_000));
        assert_eq!(first, Slot { start: ms(0), departure: ms(8) });
        assert_eq!(transmitter.wait(ms(3)), Duration::from_millis(5));
        let second = transmitter.take(ms(3), Bytes(1_000));
        assert_eq!(second, Slot { start: ms(8), departure: ms(16) });
        let after_a_pause = transmitter.take(ms(100), Bytes(1_000));
        assert_eq!(after_a_pause, Slot { start: ms(100), departure: ms(108) });
    }

    /// 53 bytes at 149.76 Mbit/s take 2831.196... ns: 149,760 of them take exactly 0.424 s.
    #[test]
    fn a_busy_period_does_not_drift() {
        let mut transmitter = constant(149_760_000);
        let last = (0..149_760).map(|_| transmitter.take(ms(0), Bytes(53))).last();
        assert_eq!(last.expect("many").departure, ms(424));
    }

    #[test]
    fn a_frame_spans_a_change_of_rate() {
        let steps = vec![(ms(0), BitRate(1_000_000)), (ms(4), BitRate(500_000))];
        let mut transmitter =
            Transmitter::new(Profile::steps(steps).expect("rises")).expect("a rate");
        // 8,000 bits: 4,000 in the first 4 ms, the rest takes 8 ms at half the rate.
        assert_eq!(transmitter.take(ms(0), Bytes(1_000)).departure, ms(12));
    }

    #[test]
    fn an_outage_holds_the_frame_until_the_link_is_back() {
        let steps =
            vec![(ms(0), BitRate(1_000_000)), (ms(4), BitRate(0)), (ms(104), BitRate(1_000_000))];
        let mut transmitter =
            Transmitter::new(Profile::steps(steps).expect("rises")).expect("a rate");
        assert_eq!(transmitter.take(ms(0), Bytes(1_000)).departure, ms(108));
        assert_eq!(transmitter.take(ms(50), Bytes(1_000)).departure, ms(116));
    }

    #[test]
    fn a_link_that_never_comes_back_is_refused() {
        assert!(Transmitter::new(Profile::Constant(BitRate(0))).is_none());
        let steps = vec![(ms(0), BitRate(1)), (ms(1), BitRate(0))];
        assert!(Transmitter::new(Profile::steps(steps).expect("rises")).is_none());
    }
}
