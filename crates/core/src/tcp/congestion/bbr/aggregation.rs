//! ACK aggregation (in Linux since 5.1): where ACKs arrive in bursts, cwnd is increased by the
//! excess of acknowledged data over the estimated bandwidth, so that the sender does not stop
//! between bursts.

use super::scaled;
use crate::time::{Duration, Instant};

/// Rounds in each half of the filter window.
const HALF_WINDOW_ROUNDS: u32 = 5;
/// A burst adds at most the data of this time to cwnd (`bbr_extra_acked_max_us`).
const LONGEST: Duration = Duration::from_millis(100);
/// An epoch is restarted after this many segments, whatever the rate.
const EPOCH_SEGMENTS_MAX: u64 = 1 << 20;

/// See the module's description.
#[derive(Clone, Debug, Default)]
pub(super) struct Aggregation {
    epoch_at: Instant,
    epoch_acked: u64,
    /// The maximum excess in this half of the window and the previous one.
    extra: [u64; 2],
    rounds: u32,
}

impl Aggregation {
    /// Starts an epoch at `now`.
    pub(super) fn restart(&mut self, now: Instant) {
        self.epoch_at = now;
        self.epoch_acked = 0;
    }

    /// Adds `acked` bytes acknowledged at `now`, with an estimated `bandwidth` in bytes per second.
    pub(super) fn acked(
        &mut self,
        now: Instant,
        acked: u64,
        bandwidth: u64,
        round_start: bool,
        (cwnd, segment): (u64, u64),
    ) {
        if round_start {
            self.rounds += 1;
            if self.rounds >= HALF_WINDOW_ROUNDS {
                self.rounds = 0;
                self.extra = [0, self.extra[0]];
            }
        }
        let expected = bytes_in(bandwidth, now.saturating_since(self.epoch_at));
        // Linux counts whole segments.
        let expected = expected / segment * segment;
        let is_too_long = self.epoch_acked + acked >= EPOCH_SEGMENTS_MAX * segment;
        let expected = if self.epoch_acked <= expected || is_too_long {
            self.restart(now);
            0
        } else {
            expected
        };
        self.epoch_acked += acked;
        let extra = self.epoch_acked.saturating_sub(expected).min(cwnd);
        self.extra[0] = self.extra[0].max(extra);
    }

    /// Bytes to add to cwnd.
    pub(super) fn budget(&self, bandwidth: u64) -> u64 {
        self.extra[0].max(self.extra[1]).min(bytes_in(bandwidth, LONGEST))
    }
}

/// Bytes that `bandwidth` delivers in `time`.
pub(super) fn bytes_in(bandwidth: u64, time: Duration) -> u64 {
    scaled(bandwidth, time.as_nanos(), 1_000_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Given 1 MB/s and ACKs of 20 kB every 20 ms, expect an excess of 20 kB: each burst arrives no
    /// earlier than the rate explains, so it begins an epoch. Ten rounds later, with one segment
    /// per millisecond, expect one segment.
    #[test]
    fn a_burst_counts_for_five_to_ten_rounds() {
        let mut aggregation = Aggregation::default();
        let window = (1 << 20, 1_000);
        for burst in 1..6u64 {
            aggregation.acked(Instant::from_millis(20 * burst), 20_000, 1_000_000, false, window);
        }
        assert_eq!(aggregation.budget(1_000_000), 20_000);
        assert_eq!(aggregation.budget(100_000), 10_000, "at most 100 ms of the rate");
        for ack in 1..=200u64 {
            let now = Instant::from_millis(120 + ack);
            aggregation.acked(now, 1_000, 1_000_000, ack.is_multiple_of(20), window);
            let budget = aggregation.budget(1_000_000);
            assert_eq!(budget, if ack < 200 { 20_000 } else { 1_000 }, "after {ack} ACKs");
        }
    }
}
