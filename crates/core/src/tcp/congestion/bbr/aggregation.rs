//! ACK aggregation (in Linux since 5.1): where ACKs come in bunches, the window is larger by as
//! much as came at once beyond what the bandwidth explains, so that the sender does not stop
//! between bunches.

use super::scaled;
use crate::time::{Duration, Instant};

/// Rounds that one of the two halves of the window lasts.
const HALF_WINDOW_ROUNDS: u32 = 5;
/// What one bunch adds to the window is at most what arrives in this time.
const LONGEST: Duration = Duration::from_millis(100);
/// Segments after which an epoch begins anew whatever its rate.
const EPOCH_SEGMENTS_MAX: u64 = 1 << 20;

/// See the module's description.
#[derive(Clone, Debug, Default)]
pub(super) struct Aggregation {
    epoch_at: Instant,
    epoch_acked: u64,
    /// The most that came beyond what was expected, in this half of the window and the last one.
    extra: [u64; 2],
    rounds: u32,
}

impl Aggregation {
    /// What is acknowledged from `now` on is a new epoch.
    pub(super) fn restart(&mut self, now: Instant) {
        self.epoch_at = now;
        self.epoch_acked = 0;
    }

    /// `acked` bytes more were acknowledged at `now`, over a path of `bandwidth` bytes a second.
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
        let expected = in_time(bandwidth, now.saturating_since(self.epoch_at));
        // Linux counts in whole segments.
        let expected = expected / segment * segment;
        let too_long = self.epoch_acked + acked >= EPOCH_SEGMENTS_MAX * segment;
        let expected = if self.epoch_acked <= expected || too_long {
            self.restart(now);
            0
        } else {
            expected
        };
        self.epoch_acked += acked;
        let extra = self.epoch_acked.saturating_sub(expected).min(cwnd);
        self.extra[0] = self.extra[0].max(extra);
    }

    /// Bytes to add to the window.
    pub(super) fn budget(&self, bandwidth: u64) -> u64 {
        self.extra[0].max(self.extra[1]).min(in_time(bandwidth, LONGEST))
    }
}

/// Bytes that `bandwidth` brings in `time`.
pub(super) fn in_time(bandwidth: u64, time: Duration) -> u64 {
    scaled(bandwidth, time.as_nanos(), 1_000_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Given 1 MB/s and ACKs of 20 kB each 20 ms, expect that each bunch is a surprise of its own
    /// size, 20 kB: each comes no earlier than the rate explains, so it begins an epoch. Ten rounds
    /// later, with one segment each millisecond, nothing but a segment is left.
    #[test]
    fn a_bunch_is_remembered_for_five_to_ten_rounds() {
        let mut aggregation = Aggregation::default();
        let window = (1 << 20, 1_000);
        for bunch in 1..6u64 {
            aggregation.acked(Instant::from_millis(20 * bunch), 20_000, 1_000_000, false, window);
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
