//! Long-term bandwidth: where a token-bucket policer drops what exceeds its rate, the maximum of
//! ten rounds overestimates that rate. Two consecutive intervals with heavy loss and the same rate
//! set the bandwidth to it for a while.

use super::AckFacts;
use crate::tcp::rate::per_second;
use crate::time::{Duration, Instant};

/// Minimum length of an interval in rounds; the maximum is four times that.
const INTERVAL_ROUNDS: u32 = 4;
/// Minimum ratio of lost to delivered data in a policed interval, in 256ths (20 percent).
const LOSS_THRESHOLD: u64 = 50;
/// Two intervals agree if they differ by at most an eighth, or 4 kbit/s.
const AGREEMENT_DIVISOR: u64 = 8;
const AGREEMENT_BYTES: u64 = 4_000 / 8;
/// Rounds for which the rate is used.
const USE_ROUNDS: u32 = 48;

/// See the module's description.
#[derive(Clone, Debug, Default)]
pub(super) struct LongTerm {
    /// The rate of the last interval, or the mean of two that agreed; zero if there is none.
    bandwidth: u64,
    in_use: bool,
    sampling: bool,
    rounds: u32,
    /// Start of the interval: time, delivered and lost bytes.
    at: Instant,
    delivered: u64,
    lost: u64,
}

impl LongTerm {
    /// The bandwidth, while it is in use.
    pub(super) fn bandwidth(&self) -> Option<u64> {
        self.in_use.then_some(self.bandwidth)
    }

    fn begin_interval(&mut self, facts: &AckFacts) {
        self.at = facts.delivered_at;
        self.delivered = facts.delivered;
        self.lost = facts.lost_total;
        self.rounds = 0;
    }

    fn reset(&mut self, facts: &AckFacts) {
        *self = Self::default();
        self.begin_interval(facts);
    }

    /// Processes an ACK. Returns whether the use of the rate ends, so that the path is probed
    /// again.
    pub(super) fn update(&mut self, facts: &AckFacts, round_start: bool, probing: bool) -> bool {
        if self.in_use {
            self.rounds += u32::from(probing && round_start);
            let over = self.rounds >= USE_ROUNDS;
            if over {
                self.reset(facts);
            }
            return over;
        }
        if !self.sampling {
            // The first loss shows that the bucket is empty.
            if facts.lost == 0 {
                return false;
            }
            self.begin_interval(facts);
            self.sampling = true;
        }
        // An application-limited rate would be too low.
        if facts.sample.is_some_and(|sample| sample.app_limited) {
            self.reset(facts);
            return false;
        }
        self.rounds += u32::from(round_start);
        if self.rounds > 4 * INTERVAL_ROUNDS {
            self.reset(facts);
        } else if self.rounds >= INTERVAL_ROUNDS && facts.lost > 0 {
            self.end_interval(facts);
        }
        false
    }

    /// Ends the interval with a loss: the bucket was empty at both ends.
    fn end_interval(&mut self, facts: &AckFacts) {
        let lost = facts.lost_total - self.lost;
        let delivered = facts.delivered - self.delivered;
        let length = facts.delivered_at.saturating_since(self.at);
        if delivered == 0 || lost * 256 < LOSS_THRESHOLD * delivered || length < INTERVAL_MIN {
            return;
        }
        let bandwidth = per_second(delivered, length);
        let difference = bandwidth.abs_diff(self.bandwidth);
        let agree =
            difference <= self.bandwidth / AGREEMENT_DIVISOR || difference <= AGREEMENT_BYTES;
        if self.bandwidth > 0 && agree {
            self.bandwidth = u64::midpoint(bandwidth, self.bandwidth);
            self.in_use = true;
            self.rounds = 0;
        } else {
            self.bandwidth = bandwidth;
            self.begin_interval(facts);
        }
    }
}

/// Linux measures intervals in milliseconds.
const INTERVAL_MIN: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;

    /// A policed path: each round of 100 ms delivers `bytes` and loses a third of as many.
    fn round(long_term: &mut LongTerm, number: u64, bytes: u64) -> bool {
        let facts = AckFacts {
            delivered_at: Instant::from_millis(number * 100),
            delivered: number * bytes,
            lost: bytes / 3,
            lost_total: number * (bytes / 3),
            ..AckFacts::default()
        };
        long_term.update(&facts, true, true)
    }

    /// Given a token rate of 1 Mbit/s, expect the intervals of rounds 1 to 4 and 4 to 8 to agree on
    /// 125,000 bytes per second, in use for 48 rounds.
    #[test]
    fn two_equal_intervals_set_the_rate_for_48_rounds() {
        let mut long_term = LongTerm::default();
        let mut used = Vec::new();
        let mut over = Vec::new();
        for number in 1..=60 {
            if round(&mut long_term, number, 12_500) {
                over.push(number);
            }
            if let Some(bandwidth) = long_term.bandwidth() {
                assert_eq!(bandwidth, 125_000);
                used.push(number);
            }
        }
        assert_eq!((used.first(), over.as_slice()), (Some(&8), [56].as_slice()));
        assert_eq!(used.len(), 48);
    }

    /// Given a loss of one byte in ten, expect no policer: that is less than 20 percent.
    #[test]
    fn light_loss_is_not_a_policer() {
        let mut long_term = LongTerm::default();
        for number in 1..=60 {
            let facts = AckFacts {
                delivered_at: Instant::from_millis(number * 100),
                delivered: number * 10_000,
                lost: 1_000,
                lost_total: number * 1_000,
                ..AckFacts::default()
            };
            assert!(!long_term.update(&facts, true, true));
            assert_eq!(long_term.bandwidth(), None);
        }
    }
}
