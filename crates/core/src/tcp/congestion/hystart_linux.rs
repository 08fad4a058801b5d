//! HyStart as Linux has it (`net/ipv4/tcp_cubic.c`, 6.18; Ha and Rhee 2011): slow start ends when a
//! round's ACKs come close together for longer than half the smallest round trip, since then the
//! window covers the path; or when round trips grow.

use super::Acked;
use super::hystart::Verdict;
use crate::packet::seq::Position;
use crate::time::{Duration, Instant};

/// Smaller windows are let grow, in segments.
const LOW_WINDOW: u64 = 16;
/// ACKs so close belong to one train.
const ACK_GAP: Duration = Duration::from_millis(2);
/// Added to the smallest round trip for what a sender keeps together, which is more only at rates
/// above 2 Gbit/s.
const ACK_DELAY: Duration = Duration::from_millis(1);
/// Samples in a round before its smallest is believed.
const SAMPLES: u32 = 8;
const RTT_RISE_MIN: Duration = Duration::from_millis(4);
const RTT_RISE_MAX: Duration = Duration::from_millis(16);
const RTT_RISE_DIVISOR: u64 = 8;

/// See the module's description.
#[derive(Clone, Debug, Default)]
pub(super) struct LinuxHyStart {
    /// The round ends when something beyond this position is acknowledged.
    round_end: Position,
    round_start: Instant,
    last_ack: Instant,
    round_min: Option<Duration>,
    samples: u32,
    min_rtt: Option<Duration>,
}

impl LinuxHyStart {
    /// The handshake is over.
    pub(super) fn opened(&mut self, now: Instant) {
        self.round_start = now;
        self.last_ack = now;
    }

    /// An ACK in slow start, with a window of `segments`.
    pub(super) fn acked(&mut self, acked: &Acked, segments: u64) -> Verdict {
        let go_on = Verdict { growth_divisor: 1, leave_slow_start: false };
        let Some(rtt) = acked.rtt else { return go_on };
        let min_rtt = self.min_rtt.map_or(rtt, |min| min.min(rtt));
        self.min_rtt = Some(min_rtt);
        if acked.una > self.round_end {
            self.round_end = acked.nxt;
            (self.round_start, self.last_ack) = (acked.now, acked.now);
            (self.round_min, self.samples) = (None, 0);
        }
        if segments < LOW_WINDOW {
            return go_on;
        }
        let train = self.is_long_train(acked.now, min_rtt);
        let rise = self.has_risen(rtt, min_rtt);
        Verdict { leave_slow_start: train || rise, ..go_on }
    }

    fn is_long_train(&mut self, now: Instant, min_rtt: Duration) -> bool {
        if now.saturating_since(self.last_ack) > ACK_GAP {
            return false;
        }
        self.last_ack = now;
        let half = Duration::from_nanos((min_rtt + ACK_DELAY).as_nanos() / 2);
        now.saturating_since(self.round_start) > half
    }

    fn has_risen(&mut self, rtt: Duration, min_rtt: Duration) -> bool {
        let round_min = self.round_min.map_or(rtt, |min| min.min(rtt));
        self.round_min = Some(round_min);
        if self.samples < SAMPLES {
            self.samples += 1;
            return false;
        }
        let share = Duration::from_nanos(min_rtt.as_nanos() / RTT_RISE_DIVISOR);
        round_min > min_rtt + share.clamp(RTT_RISE_MIN, RTT_RISE_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One round of ACKs `gap` apart; when slow start is left, if it is.
    fn round(
        hystart: &mut LinuxHyStart,
        number: u64,
        rtt_ms: u64,
        gap: Duration,
        acks: u64,
    ) -> Option<u64> {
        let rtt = Some(Duration::from_millis(rtt_ms));
        let start = Instant::START + Duration::from_millis(rtt_ms).saturating_mul(number);
        (0..acks).find(|&ack| {
            let now = start + gap.saturating_mul(ack);
            let (una, nxt) = (number * 1_000 + ack + 1, number * 1_000 + 1_000);
            let acked = Acked { now, bytes: 1, rtt, srtt: rtt, una, nxt };
            hystart.acked(&acked, 16).leave_slow_start
        })
    }

    /// Given a round trip of 100 ms and ACKs 1 ms apart, expect the end with the first that is more
    /// than 50.5 ms after the round's first.
    #[test]
    fn a_train_of_half_a_round_trip_ends_slow_start() {
        let gap = Duration::from_millis(1);
        let mut hystart = LinuxHyStart::default();
        assert_eq!(round(&mut hystart, 1, 100, gap, 51), None);
        assert_eq!(round(&mut hystart, 2, 100, gap, 60), Some(51));
    }

    /// ACKs 3 ms apart are no train.
    #[test]
    fn a_train_with_gaps_is_none() {
        let mut hystart = LinuxHyStart::default();
        assert_eq!(round(&mut hystart, 1, 100, Duration::from_millis(3), 30), None);
    }

    /// Given round trips of 100 ms and then of 113, expect the end with the ninth ACK: 113 is more
    /// than an eighth above 100, and 112 is not.
    #[test]
    fn a_rise_by_an_eighth_ends_slow_start() {
        let gap = Duration::from_micros(10);
        let mut hystart = LinuxHyStart::default();
        assert_eq!(round(&mut hystart, 1, 100, gap, 20), None);
        assert_eq!(round(&mut hystart, 2, 112, gap, 20), None);
        assert_eq!(round(&mut hystart, 3, 113, gap, 20), Some(8));
    }

    #[test]
    fn a_small_window_is_let_grow() {
        let mut hystart = LinuxHyStart::default();
        let rtt = Some(Duration::from_millis(100));
        for ack in 0..100 {
            let now = Instant::START + Duration::from_millis(ack);
            let acked = Acked { now, bytes: 1, rtt, srtt: rtt, una: 1 + ack, nxt: 200 };
            assert!(!hystart.acked(&acked, 15).leave_slow_start);
        }
    }
}
