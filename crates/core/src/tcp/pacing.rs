//! Pacing as Linux does it inside TCP: a burst may leave when the one before it has had its time at
//! the pacing rate. The next moment is a fact; the sender derives its deadline from it.

use crate::time::{Duration, Instant};

/// Linux does not pace the first ten segments of a connection: the initial window leaves at once.
const UNPACED_SEGMENTS: u64 = 10;
/// A burst lasts about a millisecond: 1/1024 of what leaves in a second (`sk_pacing_shift`), at
/// most what one packet of segmentation offload carries.
const BURST_SHIFT: u32 = 10;
const BURST_BYTES_MAX: u64 = 65_535 - 320;
/// `bbr_min_tso_rate`, 1.2 Mbit/s: below it a burst may be of one segment, above of two at least.
const SINGLE_SEGMENT_RATE: u64 = 1_200_000 / 8;
const BURST_SEGMENTS_MAX: u64 = 127;

/// See the module's description.
#[derive(Clone, Debug)]
pub(super) struct Pacer {
    /// Payload bytes a second.
    rate: u64,
    /// When the next burst may leave.
    next: Instant,
    burst: Burst,
    /// Whether something waits for that and for nothing else.
    holds: bool,
}

/// The burst that left last.
#[derive(Clone, Copy, Debug, Default)]
struct Burst {
    at: Instant,
    /// When it was to leave at the earliest, or `at` if that was later.
    start: Instant,
    /// How much later: so much of its time has passed already, up to half of it.
    late: Duration,
    bytes: u64,
    segments: u64,
    closed: bool,
}

impl Pacer {
    pub(super) fn new(rate: u64) -> Self {
        let burst = Burst { closed: true, ..Burst::default() };
        Self { rate, next: Instant::START, burst, holds: false }
    }

    /// Payload bytes a second.
    pub(super) fn rate(&self) -> u64 {
        self.rate
    }

    pub(super) fn set_rate(&mut self, rate: u64) {
        self.rate = rate;
    }

    /// When the next burst may leave.
    pub(super) fn next(&self) -> Instant {
        self.next
    }

    /// Segments of `segment` bytes that may leave together.
    pub(super) fn burst_segments(&self, segment: u64) -> u64 {
        let bytes = (self.rate >> BURST_SHIFT).min(BURST_BYTES_MAX);
        let least = if self.rate < SINGLE_SEGMENT_RATE { 1 } else { 2 };
        (bytes / segment).clamp(least, BURST_SEGMENTS_MAX)
    }

    fn burst_goes_on(&self, now: Instant, segment: u64) -> bool {
        let Burst { at, segments, closed, .. } = self.burst;
        at == now && !closed && segments < self.burst_segments(segment)
    }

    /// Whether a segment may leave now.
    pub(super) fn lets_out(&self, now: Instant, segment: u64) -> bool {
        self.next <= now || self.burst_goes_on(now, segment)
    }

    /// A segment with `bytes` leaves, after `sent_before` others of the connection.
    pub(super) fn sent(&mut self, now: Instant, bytes: u64, segment: u64, sent_before: u64) {
        if !self.burst_goes_on(now, segment) {
            self.burst = Burst {
                at: now,
                start: self.next.max(now),
                late: now.saturating_since(self.next),
                bytes: 0,
                segments: 0,
                // What does not wait (a probe) takes nothing else with it.
                closed: self.next > now,
            };
        }
        self.burst.segments += 1;
        if sent_before + 1 < UNPACED_SEGMENTS {
            self.next = self.burst.start;
            return;
        }
        self.burst.bytes += bytes;
        let nanos = u128::from(self.burst.bytes) * 1_000_000_000 / u128::from(self.rate.max(1));
        let length = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        let half = Duration::from_nanos(length.as_nanos() / 2);
        self.next = self.burst.start + length.saturating_sub(self.burst.late.min(half));
    }

    /// Notes whether something waits for the next moment and nothing else.
    pub(super) fn hold(&mut self, holds: bool) {
        self.holds = holds;
    }

    /// When what is held back may leave.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.holds.then_some(self.next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: u64 = 1_000;

    /// Given 1 MB/s and segments of 1000 bytes, expect bursts of two (1/1024 s is 976 bytes, and
    /// two is the least above 1.2 Mbit/s), each 2 ms after the one before; 10 kB/s lets out one.
    #[test]
    fn bursts_leave_at_the_rate() {
        let mut pacer = Pacer::new(1_000_000);
        assert_eq!(pacer.burst_segments(SEGMENT), 2);
        let start = Instant::from_millis(0);
        for burst in 0..5u64 {
            let now = start + Duration::from_millis(2 * burst);
            assert_eq!(pacer.next(), now);
            for _ in 0..2 {
                assert!(pacer.lets_out(now, SEGMENT));
                pacer.sent(now, SEGMENT, SEGMENT, 10);
            }
            assert!(!pacer.lets_out(now, SEGMENT), "two have left");
        }
        pacer.set_rate(10_000);
        assert_eq!(pacer.burst_segments(SEGMENT), 1);
        pacer.set_rate(1 << 30);
        assert_eq!(pacer.burst_segments(SEGMENT), 65);
    }

    /// Given a burst of 2 ms that leaves 0.5 ms late, expect the next one 1.5 ms after it; after a
    /// long pause half of the time is forgiven, not all.
    #[test]
    fn lateness_is_made_good_up_to_half() {
        let at = |micros| Instant::START + Duration::from_micros(micros);
        for (late, gap) in [(0, 2_000), (500, 1_500), (1_000, 1_000), (9_000, 1_000)] {
            let mut pacer = Pacer::new(1_000_000);
            pacer.sent(at(0), 2_000, SEGMENT, 10);
            assert_eq!(pacer.next(), at(2_000));
            pacer.sent(at(2_000 + late), 2_000, SEGMENT, 11);
            assert_eq!(pacer.next(), at(2_000 + late + gap), "{late} us late");
        }
    }

    /// The first nine segments of a connection leave at once and take no time; the tenth does.
    #[test]
    fn the_initial_window_is_not_paced() {
        let mut pacer = Pacer::new(1_000_000);
        for sent_before in 0..10 {
            assert!(pacer.lets_out(Instant::START, SEGMENT));
            pacer.sent(Instant::START, SEGMENT, SEGMENT, sent_before);
        }
        assert_eq!(pacer.next(), Instant::from_millis(1));
        assert!(!pacer.lets_out(Instant::START, SEGMENT));
    }
}
