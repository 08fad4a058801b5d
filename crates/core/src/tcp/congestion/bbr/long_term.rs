//! Long-term bandwidth: where a policer with a bucket of tokens drops what is above its rate, the
//! largest rate of ten rounds is that of the tokens. Two intervals in a row with heavy loss and the
//! same rate give that rate as the bandwidth for a while.

use super::Facts;
use crate::tcp::rate::per_second;
use crate::time::{Duration, Instant};

/// An interval has at least so many rounds, and at most four times as many.
const INTERVAL_ROUNDS: u32 = 4;
/// Lost over delivered, in 256ths (20 percent), from which on an interval counts as policed.
const LOSS_THRESHOLD: u64 = 50;
/// Two intervals agree within an eighth, or within 4 kbit/s.
const AGREEMENT_DIVISOR: u64 = 8;
const AGREEMENT_BYTES: u64 = 4_000 / 8;
/// Rounds for which the rate is used.
const USE_ROUNDS: u32 = 48;

/// See the module's description.
#[derive(Clone, Debug, Default)]
pub(super) struct LongTerm {
    /// The rate of the last interval, or of both that agreed; zero if there is none.
    bandwidth: u64,
    in_use: bool,
    sampling: bool,
    rounds: u32,
    /// Where the interval began.
    at: Instant,
    delivered: u64,
    lost: u64,
}

impl LongTerm {
    /// The bandwidth, while it is to be used.
    pub(super) fn bandwidth(&self) -> Option<u64> {
        self.in_use.then_some(self.bandwidth)
    }

    fn begin_interval(&mut self, facts: &Facts) {
        self.at = facts.delivered_at;
        self.delivered = facts.delivered;
        self.lost = facts.lost_in_all;
        self.rounds = 0;
    }

    fn reset(&mut self, facts: &Facts) {
        *self = Self::default();
        self.begin_interval(facts);
    }

    /// Takes an ACK's facts. Whether the use of the rate ends, so that the path is to be probed
    /// anew.
    pub(super) fn update(&mut self, facts: &Facts, round_start: bool, probing: bool) -> bool {
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
        // A rate that the application sets would be too low.
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

    /// The interval ends with a loss: the bucket was empty at both its ends.
    fn end_interval(&mut self, facts: &Facts) {
        let lost = facts.lost_in_all - self.lost;
        let delivered = facts.delivered - self.delivered;
        let length = facts.delivered_at.saturating_since(self.at);
        if delivered == 0 || lost * 256 < LOSS_THRESHOLD * delivered || length < SHORTEST {
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

/// Linux counts the interval in milliseconds.
const SHORTEST: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;

    /// A policed path: each round of 100 ms delivers so many bytes and loses a third of as many.
    fn round(long_term: &mut LongTerm, number: u64, bytes: u64) -> bool {
        let facts = Facts {
            delivered_at: Instant::from_millis(number * 100),
            delivered: number * bytes,
            lost: bytes / 3,
            lost_in_all: number * (bytes / 3),
            ..Facts::default()
        };
        long_term.update(&facts, true, true)
    }

    /// Given 1 Mbit/s of tokens, expect that the intervals from round 1 to 4 and from there to 8
    /// agree on 125,000 bytes a second, and that this holds for 48 rounds.
    #[test]
    fn two_intervals_that_agree_are_believed_for_48_rounds() {
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

    /// Without heavy loss there is no policer: one byte in ten is less than 20 percent.
    #[test]
    fn light_loss_is_no_policer() {
        let mut long_term = LongTerm::default();
        for number in 1..=60 {
            let facts = Facts {
                delivered_at: Instant::from_millis(number * 100),
                delivered: number * 10_000,
                lost: 1_000,
                lost_in_all: number * 1_000,
                ..Facts::default()
            };
            assert!(!long_term.update(&facts, true, true));
            assert_eq!(long_term.bandwidth(), None);
        }
    }
}
