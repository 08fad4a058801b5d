//! HyStart as in Linux (`net/ipv4/tcp_cubic.c`, 6.18; Ha and Rhee 2011). Slow start ends when an
//! ACK train is longer than half the minimum RTT, because cwnd then covers the path, or when the
//! RTT increases.

use super::Acked;
use super::hystart::SlowStartAction;
use crate::packet::seq::Position;
use crate::time::{Duration, Instant};

/// Minimum cwnd in segments (`hystart_low_window`).
const LOW_WINDOW: u64 = 16;
/// Maximum gap between the ACKs of a train (`hystart_ack_delta_us`).
const ACK_GAP: Duration = Duration::from_millis(2);
/// Added to the minimum RTT for batching at the sender (`hystart_ack_delay`); it is larger only
/// above 2 Gbit/s.
const ACK_DELAY: Duration = Duration::from_millis(1);
/// Minimum samples in a round (HYSTART_MIN_SAMPLES).
const SAMPLES: u32 = 8;
const RTT_RISE_MIN: Duration = Duration::from_millis(4);
const RTT_RISE_MAX: Duration = Duration::from_millis(16);
const RTT_RISE_DIVISOR: u64 = 8;

/// See the module's description.
#[derive(Clone, Debug, Default)]
pub(super) struct LinuxHyStart {
    /// The round ends when data beyond this position is acknowledged.
    round_end: Position,
    round_start: Instant,
    last_ack: Instant,
    round_min: Option<Duration>,
    samples: u32,
    min_rtt: Option<Duration>,
}

impl LinuxHyStart {
    /// The handshake completed.
    pub(super) fn on_established(&mut self, now: Instant) {
        self.round_start = now;
        self.last_ack = now;
    }

    /// Processes an ACK in slow start with a cwnd of `segments`.
    pub(super) fn acked(&mut self, acked: &Acked, segments: u64) -> SlowStartAction {
        let continues = SlowStartAction { growth_divisor: 1, leave_slow_start: false };
        let Some(rtt) = acked.rtt else { return continues };
        let min_rtt = self.min_rtt.map_or(rtt, |min| min.min(rtt));
        self.min_rtt = Some(min_rtt);
        if acked.una > self.round_end {
            self.round_end = acked.nxt;
            (self.round_start, self.last_ack) = (acked.now, acked.now);
            (self.round_min, self.samples) = (None, 0);
        }
        if segments < LOW_WINDOW {
            return continues;
        }
        let train = self.has_ack_train(acked.now, min_rtt);
        let delay = self.has_delay_increase(rtt, min_rtt);
        SlowStartAction { leave_slow_start: train || delay, ..continues }
    }

    fn has_ack_train(&mut self, now: Instant, min_rtt: Duration) -> bool {
        if now.saturating_since(self.last_ack) > ACK_GAP {
            return false;
        }
        self.last_ack = now;
        let half = Duration::from_nanos((min_rtt + ACK_DELAY).as_nanos() / 2);
        now.saturating_since(self.round_start) > half
    }

    fn has_delay_increase(&mut self, rtt: Duration, min_rtt: Duration) -> bool {
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

    /// One round of ACKs `gap` apart. Returns the ACK that ends slow start, if any.
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

    /// Given an RTT of 100 ms and ACKs 1 ms apart, expect slow start to end with the first ACK more
    /// than 50.5 ms after the round's first.
    #[test]
    fn an_ack_train_of_half_the_rtt_ends_slow_start() {
        let gap = Duration::from_millis(1);
        let mut hystart = LinuxHyStart::default();
        assert_eq!(round(&mut hystart, 1, 100, gap, 51), None);
        assert_eq!(round(&mut hystart, 2, 100, gap, 60), Some(51));
    }

    /// Given ACKs 3 ms apart, expect no train.
    #[test]
    fn acks_with_gaps_are_no_train() {
        let mut hystart = LinuxHyStart::default();
        assert_eq!(round(&mut hystart, 1, 100, Duration::from_millis(3), 30), None);
    }

    /// Given RTTs of 100 ms and then of 113, expect slow start to end with the ninth ACK: 113 is
    /// more than an eighth above 100, and 112 is not.
    #[test]
    fn an_rtt_increase_by_an_eighth_ends_slow_start() {
        let gap = Duration::from_micros(10);
        let mut hystart = LinuxHyStart::default();
        assert_eq!(round(&mut hystart, 1, 100, gap, 20), None);
        assert_eq!(round(&mut hystart, 2, 112, gap, 20), None);
        assert_eq!(round(&mut hystart, 3, 113, gap, 20), Some(8));
    }

    #[test]
    fn a_small_window_stays_in_slow_start() {
        let mut hystart = LinuxHyStart::default();
        let rtt = Some(Duration::from_millis(100));
        for ack in 0..100 {
            let now = Instant::START + Duration::from_millis(ack);
            let acked = Acked { now, bytes: 1, rtt, srtt: rtt, una: 1 + ack, nxt: 200 };
            assert!(!hystart.acked(&acked, 15).leave_slow_start);
        }
    }
}
