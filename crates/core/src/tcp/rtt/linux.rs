//! RTT estimation as in Linux (`tcp_rtt_estimator` and `tcp_set_rto` in `net/ipv4/tcp_input.c`,
//! 6.18): every sample updates the mean deviation. The variance in the timeout is its maximum over
//! a round trip, and decreases once per round trip.

use super::Span;
use crate::packet::seq::Position;

/// In nanoseconds, scaled as in Linux.
#[derive(Clone, Copy, Debug)]
pub(super) struct MeanDeviation {
    /// 8 * SRTT.
    srtt_8: u64,
    /// 4 * mean deviation, and its maximum in this round.
    mdev_4: u64,
    mdev_4_max: u64,
    /// The variance term of the timeout.
    rttvar_4: u64,
    /// The round ends when SND.UNA exceeds this.
    rtt_seq: Position,
}

impl MeanDeviation {
    /// Starts from the first sample; `floor` is the minimum variance (`tcp_rto_min`).
    pub(super) fn first(rtt: u64, nxt: Position, floor: u64) -> Self {
        let rttvar_4 = (2 * rtt).max(floor);
        Self { srtt_8: 8 * rtt, mdev_4: 2 * rtt, mdev_4_max: rttvar_4, rttvar_4, rtt_seq: nxt }
    }

    /// Begins a round.
    pub(super) fn begin_round(&mut self, nxt: Position) {
        self.rtt_seq = nxt;
    }

    /// Adds a sample. Returns the position below which SND.UNA must stay for an identical sample to
    /// have no effect.
    pub(super) fn sample(&mut self, rtt: u64, span: Span, floor: u64) -> Position {
        let error = rtt.abs_diff(self.srtt());
        let decay = self.mdev_4 / 4;
        // A decrease of the RTT raises the deviation by an eighth of what an increase does.
        let growth = error.saturating_sub(decay);
        if rtt < self.srtt() {
            self.srtt_8 -= error;
            self.mdev_4 += growth / 8;
        } else {
            self.srtt_8 += error;
            self.mdev_4 += growth;
        }
        self.mdev_4 -= decay.saturating_sub(error);
        self.mdev_4_max = self.mdev_4_max.max(self.mdev_4);
        self.rttvar_4 = self.rttvar_4.max(self.mdev_4_max);
        if span.una > self.rtt_seq {
            self.rttvar_4 -= (self.rttvar_4 - self.mdev_4_max) / 4;
            self.rtt_seq = span.nxt;
            self.mdev_4_max = floor;
        }
        match (error, self.mdev_4) {
            (0, 0..4) if self.rttvar_4 - floor.min(self.rttvar_4) < 4 => Position::MAX,
            (0, 0..4) => self.rtt_seq + 1,
            _ => 0,
        }
    }

    pub(super) fn srtt(&self) -> u64 {
        self.srtt_8 / 8
    }

    /// The retransmission timeout.
    pub(super) fn rto(&self) -> u64 {
        self.srtt() + self.rttvar_4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const FLOOR: u64 = 200 * MS;

    /// An ACK up to `una` with ten more bytes outstanding.
    fn at(una: Position) -> Span {
        Span { una_before: una - 1, una, nxt: una + 10 }
    }

    fn rto_us(deviation: &MeanDeviation) -> u64 {
        deviation.rto() / 1_000
    }

    /// Given the kernel's equations: 600 ms sets mdev and rttvar to 1,200. 680 ms within the round:
    /// srtt 610, mdev 1,200 + 80 - 300 = 980, below its maximum. Another 680 ms, which ends the
    /// round: srtt 618.75, mdev 980 + 70 - 245 = 805, rttvar still 1,200, the maximum of that
    /// round. The next round has one sample: mdev 805 + 61.25 - 201.25 = 665, rttvar 1,200 - 535 /
    /// 4.
    #[test]
    fn the_variance_decreases_once_per_round_trip() {
        let mut deviation = MeanDeviation::first(600 * MS, 10, FLOOR);
        assert_eq!(rto_us(&deviation), 1_800_000);
        deviation.sample(680 * MS, at(5), FLOOR);
        assert_eq!(rto_us(&deviation), 1_810_000);
        deviation.sample(680 * MS, at(11), FLOOR);
        assert_eq!(rto_us(&deviation), 618_750 + 1_200_000);
        deviation.sample(680 * MS, at(22), FLOOR);
        // srtt: 618.75 + 61.25 / 8.
        assert_eq!(rto_us(&deviation), 626_406 + 1_066_250);
    }

    /// Given many samples per round trip of a steady path, expect the variance to decrease only
    /// once per round trip: from 1,200 ms by a quarter of its excess over 200 ms.
    #[test]
    fn many_samples_do_not_reduce_the_variance_faster() {
        let mut deviation = MeanDeviation::first(600 * MS, 1_000, FLOOR);
        for una in 2..=1_000 {
            deviation.sample(600 * MS, Span { una_before: una - 1, una, nxt: 2_000 }, FLOOR);
        }
        assert_eq!(rto_us(&deviation), 1_800_000);
        // The maximum of the first round was its start, that of the second one the minimum.
        deviation.sample(600 * MS, Span { una_before: 1_000, una: 1_001, nxt: 2_000 }, FLOOR);
        assert_eq!(rto_us(&deviation), 1_800_000);
        deviation.sample(600 * MS, Span { una_before: 2_000, una: 2_001, nxt: 3_000 }, FLOOR);
        assert_eq!(rto_us(&deviation), 1_550_000);
    }

    /// Given an mdev of 4 and a sample 80 ms below the SRTT, expect mdev to grow by (80 - 1) / 8,
    /// not by 79.
    #[test]
    fn an_rtt_decrease_raises_the_deviation_by_an_eighth() {
        let steady = MeanDeviation {
            srtt_8: 8 * 600 * MS,
            mdev_4: 4 * MS,
            mdev_4_max: 0,
            rttvar_4: 0,
            rtt_seq: 100,
        };
        let (mut falls, mut rises) = (steady, steady);
        falls.sample(520 * MS, at(1), 0);
        rises.sample(680 * MS, at(1), 0);
        assert_eq!((falls.mdev_4, falls.srtt()), (13_875_000, 590 * MS));
        assert_eq!((rises.mdev_4, rises.srtt()), (83 * MS, 610 * MS));
    }
}
