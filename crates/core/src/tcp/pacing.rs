//! Pacing inside TCP, as in Linux: a burst may be sent when the previous one has taken its time at
//! the pacing rate. The pacer stores the earliest time of the next burst; the sender derives its
//! deadline from it.

use crate::time::{Duration, Instant};

/// Linux does not pace the first ten segments of a connection: the initial window is sent at once.
const UNPACED_SEGMENTS: u64 = 10;
/// A burst is about one millisecond of data: 1/1024 of the rate (`sk_pacing_shift`), at most one
/// segmentation offload packet.
const BURST_SHIFT: u32 = 10;
const BURST_BYTES_MAX: u64 = 65_535 - 320;
/// `bbr_min_tso_rate`, 1.2 Mbit/s: below it, the minimum burst is one segment; from it on, two.
const SINGLE_SEGMENT_RATE: u64 = 1_200_000 / 8;
const BURST_SEGMENTS_MAX: u64 = 127;

/// See the module's description.
#[derive(Clone, Debug)]
pub(super) struct Pacer {
    /// Payload bytes per second.
    rate: u64,
    /// The earliest time of the next burst.
    next: Instant,
    burst: Burst,
    /// Whether a segment waits only for the pacer.
    waiting: bool,
}

/// The last burst.
#[derive(Clone, Copy, Debug, Default)]
struct Burst {
    at: Instant,
    /// Its earliest time, or `at` if that was later.
    start: Instant,
    /// How late it was sent. The next interval is shorter by that, at most by half.
    late: Duration,
    bytes: u64,
    segments: u64,
    closed: bool,
}

impl Pacer {
    pub(super) fn new(rate: u64) -> Self {
        let burst = Burst { closed: true, ..Burst::default() };
        Self { rate, next: Instant::START, burst, waiting: false }
    }

    /// Payload bytes per second.
    pub(super) fn rate(&self) -> u64 {
        self.rate
    }

    pub(super) fn set_rate(&mut self, rate: u64) {
        self.rate = rate;
    }

    /// The earliest time of the next burst.
    pub(super) fn next(&self) -> Instant {
        self.next
    }

    /// Maximum burst size in segments of `segment` bytes.
    pub(super) fn burst_segments(&self, segment: u64) -> u64 {
        let bytes = (self.rate >> BURST_SHIFT).min(BURST_BYTES_MAX);
        let min = if self.rate < SINGLE_SEGMENT_RATE { 1 } else { 2 };
        (bytes / segment).clamp(min, BURST_SEGMENTS_MAX)
    }

    fn burst_continues(&self, now: Instant, segment: u64) -> bool {
        let Burst { at, segments, closed, .. } = self.burst;
        at == now && !closed && segments < self.burst_segments(segment)
    }

    /// Whether a segment may be sent now.
    pub(super) fn may_send(&self, now: Instant, segment: u64) -> bool {
        self.next <= now || self.burst_continues(now, segment)
    }

    /// Records a sent segment of `bytes`, after `sent_before` others of the connection.
    pub(super) fn sent(&mut self, now: Instant, bytes: u64, segment: u64, sent_before: u64) {
        if !self.burst_continues(now, segment) {
            self.burst = Burst {
                at: now,
                start: self.next.max(now),
                late: now.saturating_since(self.next),
                bytes: 0,
                segments: 0,
                // A segment that bypasses pacing (a probe) is a burst of its own.
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

    /// Sets whether a segment waits only for the pacer.
    pub(super) fn set_waiting(&mut self, waiting: bool) {
        self.waiting = waiting;
    }

    /// When the waiting segment may be sent.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.waiting.then_some(self.next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: u64 = 1_000;

    /// Given 1 MB/s and segments of 1000 bytes, expect bursts of two (1/1024 s is 976 bytes, and
    /// two is the minimum above 1.2 Mbit/s), one every 2 ms. At 10 kB/s, expect bursts of one.
    #[test]
    fn bursts_are_sent_at_the_pacing_rate() {
        let mut pacer = Pacer::new(1_000_000);
        assert_eq!(pacer.burst_segments(SEGMENT), 2);
        let start = Instant::from_millis(0);
        for burst in 0..5u64 {
            let now = start + Duration::from_millis(2 * burst);
            assert_eq!(pacer.next(), now);
            for _ in 0..2 {
                assert!(pacer.may_send(now, SEGMENT));
                pacer.sent(now, SEGMENT, SEGMENT, 10);
            }
            assert!(!pacer.may_send(now, SEGMENT), "the burst is complete");
        }
        pacer.set_rate(10_000);
        assert_eq!(pacer.burst_segments(SEGMENT), 1);
        pacer.set_rate(1 << 30);
        assert_eq!(pacer.burst_segments(SEGMENT), 65);
    }

    /// Given a burst of 2 ms that is sent 0.5 ms late, expect the next one 1.5 ms after it. After a
    /// long idle period at most half of the interval is skipped.
    #[test]
    fn lateness_shortens_the_next_interval_by_at_most_half() {
        let at = |micros| Instant::START + Duration::from_micros(micros);
        for (late, gap) in [(0, 2_000), (500, 1_500), (1_000, 1_000), (9_000, 1_000)] {
            let mut pacer = Pacer::new(1_000_000);
            pacer.sent(at(0), 2_000, SEGMENT, 10);
            assert_eq!(pacer.next(), at(2_000));
            pacer.sent(at(2_000 + late), 2_000, SEGMENT, 11);
            assert_eq!(pacer.next(), at(2_000 + late + gap), "{late} us late");
        }
    }

    /// Given the start of a connection, expect the first nine segments to be sent at once; the
    /// tenth is the first to be paced.
    #[test]
    fn the_initial_window_is_not_paced() {
        let mut pacer = Pacer::new(1_000_000);
        for sent_before in 0..10 {
            assert!(pacer.may_send(Instant::START, SEGMENT));
            pacer.sent(Instant::START, SEGMENT, SEGMENT, sent_before);
        }
        assert_eq!(pacer.next(), Instant::from_millis(1));
        assert!(!pacer.may_send(Instant::START, SEGMENT));
    }
}
