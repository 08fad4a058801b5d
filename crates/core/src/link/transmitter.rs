//! The transmitter: serialises frames at the current rate.

use crate::profile::Profile;
use crate::time::{Duration, Instant};
use crate::units::{BitRate, Bits, Carry, TransmitTime};

/// The time in which a frame is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmission {
    /// When its first bit is sent.
    pub start: Instant,
    /// When its last bit is sent, rounded down to a nanosecond; the next frame gets the remainder.
    pub departure: Instant,
}

/// Strict serialisation: `start = max(now, free_at)`, no credit for idle time.
#[derive(Clone, Debug)]
pub struct Transmitter {
    rate: Profile<BitRate>,
    free_at: Instant,
    carry: Carry,
    /// The idle time from the start of the run to the current busy period.
    idle: Duration,
    /// With a constant rate, the size and transmission time of the last frame: frames have few sizes, and
    /// a division costs more than the rest of a transmission. With any other rate, [`NO_FRAME`].
    last: (Bits, TransmitTime),
}

impl Transmitter {
    /// An idle transmitter. `None` if the last rate of the profile is zero: queued frames would never
    /// leave.
    #[must_use]
    pub fn new(rate: Profile<BitRate>) -> Option<Self> {
        let last_rate = rate.values().last().filter(|rate| rate.0 > 0)?;
        let size = match rate {
            Profile::Constant(_) => Bits(0),
            Profile::Steps(_) => NO_FRAME,
        };
        Some(Self {
            rate,
            free_at: Instant::START,
            carry: Carry::default(),
            idle: Duration::ZERO,
            last: (size, TransmitTime::new(last_rate, size)),
        })
    }

    /// How long a frame that arrives now waits until its first bit is sent.
    #[must_use]
    pub fn wait(&self, now: Instant) -> Duration {
        self.free_at.saturating_since(now)
    }

    /// When the last frame ends.
    #[must_use]
    pub fn free_at(&self) -> Instant {
        self.free_at
    }

    /// The rate.
    pub(super) fn rate(&self) -> &Profile<BitRate> {
        &self.rate
    }

    /// The time spent sending before `at`, which lies in the last busy period.
    #[must_use]
    pub fn busy_until(&self, at: Instant) -> Duration {
        at.saturating_since(Instant::START).saturating_sub(self.idle)
    }

    /// Schedules a frame that arrives now.
    #[inline]
    pub fn take(&mut self, now: Instant, frame: Bits) -> Transmission {
        let start = self.start(now);
        self.take_from(start, frame)
    }

    /// When a frame that arrives now would start. Ends a busy period that is over.
    #[inline]
    pub(super) fn start(&mut self, now: Instant) -> Instant {
        if now > self.free_at {
            self.idle += now - self.free_at;
            self.free_at = now;
            self.carry = Carry::default();
            return now;
        }
        self.free_at
    }

    /// Schedules a frame at `start`, which [`Transmitter::start`] returned just before.
    #[inline]
    pub(super) fn take_from(&mut self, start: Instant, frame: Bits) -> Transmission {
        debug_assert_eq!(start, self.free_at, "start was called just before");
        if frame != self.last.0 {
            let Profile::Constant(rate) = self.rate else {
                return self.take_across_steps(start, frame);
            };
            self.last = (frame, TransmitTime::new(rate, frame));
        }
        let (time, carry) = self.last.1.after(self.carry);
        let departure = start + time;
        self.free_at = departure;
        self.carry = carry;
        Transmission { start, departure }
    }

    #[inline(never)]
    fn take_across_steps(&mut self, start: Instant, frame: Bits) -> Transmission {
        debug_assert_ne!(frame, NO_FRAME, "no frame is that large");
        self.resume(start, work(frame) + u128::from(self.carry.0));
        Transmission { start, departure: self.free_at }
    }

    /// At most the time that a frame takes. `None` if the rate varies.
    pub(super) fn longest_time(&self, frame: Bits) -> Option<Duration> {
        let Profile::Constant(rate) = self.rate else { return None };
        // The remainder of the previous frame adds at most a nanosecond.
        let nanos = work(frame).div_ceil(rate.0.into()) + 1;
        u64::try_from(nanos).ok().map(Duration::from_nanos)
    }

    /// The same transmitter, idle, with another rate. `None` if the last rate is zero.
    pub(super) fn with_rate(&self, rate: Profile<BitRate>) -> Option<Self> {
        Some(Self { free_at: self.free_at, idle: self.idle, ..Self::new(rate)? })
    }

    /// The unsent work at `at`, in the current busy period, without the last frames of `last` bits in
    /// all.
    pub(super) fn remaining_work(&self, at: Instant, last: Bits) -> u128 {
        let mut remaining_work = u128::from(self.carry.0);
        let mut from = at;
        while from < self.free_at {
            let change =
                self.rate.next_change(from).map_or(self.free_at, |at| at.min(self.free_at));
            remaining_work +=
                u128::from((change - from).as_nanos()) * u128::from(self.rate.at(from).0);
            from = change;
        }
        // It is less only if frames end after the largest instant.
        remaining_work.saturating_sub(work(last))
    }

    /// Removes the last frames, of `last` bits in all, which have not started at `at`.
    pub(super) fn unschedule(&mut self, at: Instant, last: Bits) {
        if self.free_at > at {
            self.resume(at, self.remaining_work(at, last));
        }
    }

    /// Continues at `at` with this much work; the transmitter is free when it is done.
    pub(super) fn resume(&mut self, at: Instant, work: u128) {
        (self.free_at, self.carry) = self.finish_across_steps(at, work);
    }

    /// Sends `work` along the steps of the rate profile. Work is counted in billionths of a bit, the
    /// unit of a carry at any rate, so that nothing is rounded at a step: a profile whose steps repeat
    /// one rate is equivalent to that rate.
    fn finish_across_steps(&self, start: Instant, mut work: u128) -> (Instant, Carry) {
        let mut at = start;
        loop {
            let rate = u128::from(self.rate.at(at).0);
            let change = self.rate.next_change(at);
            // A frame cannot end in an outage.
            if let (Some(time), Some(rest)) = (work.checked_div(rate), work.checked_rem(rate)) {
                let end = at + Duration::from_nanos(u64::try_from(time).unwrap_or(u64::MAX));
                if change.is_none_or(|change| end < change || (end == change && rest == 0)) {
                    let rest = u64::try_from(rest).expect("below the rate, 64 bits");
                    return (end, Carry(rest));
                }
            }
            let change = change.expect("the last rate is above zero, so the frame ends there");
            // The frame continues after the change, so its work is at least what fits before it.
            work -= u128::from((change - at).as_nanos()) * rate;
            at = change;
        }
    }
}

const NANOS: u128 = 1_000_000_000;

/// The size of a frame as work: billionths of a bit.
fn work(frame: Bits) -> u128 {
    u128::from(frame.0) * NANOS
}

/// A size that no frame has.
const NO_FRAME: Bits = Bits(u64::MAX);

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
    fn frames_are_serialised_without_credit_for_idle_time() {
        let mut transmitter = constant(1_000_000);
        let first = transmitter.take(ms(0), Bits(8 * 1_000));
        assert_eq!(first, Transmission { start: ms(0), departure: ms(8) });
        assert_eq!(transmitter.wait(ms(3)), Duration::from_millis(5));
        let second = transmitter.take(ms(3), Bits(8 * 1_000));
        assert_eq!(second, Transmission { start: ms(8), departure: ms(16) });
        let after_a_pause = transmitter.take(ms(100), Bits(8 * 1_000));
        assert_eq!(after_a_pause, Transmission { start: ms(100), departure: ms(108) });
    }

    /// Given two frames of 8 ms, 92 ms apart, and a start that was requested but not used, expect only
    /// the frames to count as busy time.
    #[test]
    fn busy_time_excludes_idle_time() {
        let mut transmitter = constant(1_000_000);
        transmitter.take(ms(0), Bits(8 * 1_000));
        let busy = [0, 3, 8].map(|at| transmitter.busy_until(ms(at)).as_nanos() / 1_000_000);
        assert_eq!(busy, [0, 3, 8]);
        assert_eq!(transmitter.start(ms(50)), ms(50));
        assert_eq!(transmitter.busy_until(transmitter.free_at()), Duration::from_millis(8));
        transmitter.take(ms(100), Bits(8 * 1_000));
        let busy = [100, 104, 108].map(|at| transmitter.busy_until(ms(at)).as_nanos() / 1_000_000);
        assert_eq!(busy, [8, 12, 16]);
    }

    #[test]
    fn an_empty_frame_takes_no_time() {
        let mut transmitter = constant(3);
        assert_eq!(
            transmitter.take(ms(5), Bits(0)),
            Transmission { start: ms(5), departure: ms(5) }
        );
    }

    /// 53 bytes at 149.76 Mbit/s take 2831.196... ns: 149,760 of them take exactly 0.424 s.
    #[test]
    fn a_busy_period_does_not_drift() {
        let mut transmitter = constant(149_760_000);
        let last = (0..149_760).map(|_| transmitter.take(ms(0), Bits(8 * 53))).last();
        assert_eq!(last.expect("not empty").departure, ms(424));
    }

    #[test]
    fn a_frame_spans_a_change_of_rate() {
        let steps = vec![(ms(0), BitRate(1_000_000)), (ms(4), BitRate(500_000))];
        let mut transmitter =
            Transmitter::new(Profile::steps(steps).expect("increases")).expect("a rate");
        // 8,000 bits: 4,000 in the first 4 ms, the rest takes 8 ms at half the rate.
        assert_eq!(transmitter.take(ms(0), Bits(8 * 1_000)).departure, ms(12));
    }

    /// The same 53-byte frames, with steps of equal rate every 7 ns: neither frames nor steps may lose
    /// a remainder.
    #[test]
    fn steps_of_one_rate_do_not_drift() {
        let steps = (0..10_000).map(|n| (Instant::from_nanos(7 * n), BitRate(149_760_000)));
        let steps = Profile::steps(steps.collect()).expect("increases");
        let mut transmitter = Transmitter::new(steps).expect("a rate");
        let last = (0..149_760).map(|_| transmitter.take(ms(0), Bits(8 * 53))).last();
        assert_eq!(last.expect("not empty").departure, ms(424));
    }

    /// 1,000 bits at 3 kbit/s need 333,333,333.3 ns. If an outage begins within the last of these, a
    /// millionth of a bit remains, which takes 1 ns at 1 kbit/s after the outage.
    #[test]
    fn bits_that_do_not_fit_before_an_outage_are_sent_after_it() {
        let departure = |bytes: u64| {
            let outage = Instant::from_nanos(333_333_333);
            let steps =
                vec![(ms(0), BitRate(3_000)), (outage, BitRate(0)), (ms(500), BitRate(1_000))];
            let mut transmitter =
                Transmitter::new(Profile::steps(steps).expect("increases")).expect("a rate");
            transmitter.take(ms(0), Bits(8 * bytes)).departure
        };
        assert_eq!(departure(124), Instant::from_nanos(330_666_666));
        assert_eq!(departure(125), Instant::from_nanos(500_000_001));
    }

    #[test]
    fn a_frame_that_ends_as_an_outage_begins_is_sent() {
        let steps = vec![(ms(0), BitRate(1_000)), (ms(1_000), BitRate(0)), (ms(5_000), BitRate(1))];
        let mut transmitter =
            Transmitter::new(Profile::steps(steps).expect("increases")).expect("a rate");
        assert_eq!(transmitter.take(ms(0), Bits(8 * 125)).departure, ms(1_000));
        assert_eq!(transmitter.take(ms(0), Bits(8)).departure, ms(13_000));
    }

    #[test]
    fn an_outage_delays_a_frame_until_its_end() {
        let steps =
            vec![(ms(0), BitRate(1_000_000)), (ms(4), BitRate(0)), (ms(104), BitRate(1_000_000))];
        let mut transmitter =
            Transmitter::new(Profile::steps(steps).expect("increases")).expect("a rate");
        assert_eq!(transmitter.take(ms(0), Bits(8 * 1_000)).departure, ms(108));
        assert_eq!(transmitter.take(ms(50), Bits(8 * 1_000)).departure, ms(116));
    }

    #[test]
    fn a_rate_that_ends_at_zero_is_rejected() {
        assert!(Transmitter::new(Profile::Constant(BitRate(0))).is_none());
        let steps = vec![(ms(0), BitRate(1)), (ms(1), BitRate(0))];
        assert!(Transmitter::new(Profile::steps(steps).expect("increases")).is_none());
    }
}
