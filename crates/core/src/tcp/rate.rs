//! Delivery-rate estimation (draft-cheng-iccrg-delivery-rate-estimation-00, as in Linux): the rate
//! at which the network delivered what was outstanding when a segment was sent. It is active only
//! with a congestion control that uses rates (BBR).
//!
//! A sample spans from the transmission of a segment to its acknowledgement. The rate is the data
//! delivered in between over the longer of the send interval and the ACK interval, so neither a
//! burst of segments nor one of ACKs can inflate it.

use super::sliding::Sliding;
use crate::packet::seq::Position;
use crate::time::{Duration, Instant};

/// Per-segment state: a snapshot of the connection when the segment was last sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    end: Position,
    sent_at: Instant,
    /// Start of the send interval: when the segment of the latest delivery was sent.
    first_sent_at: Instant,
    /// Time of the latest delivery (`tp->delivered_mstamp`), and the total delivered by then.
    delivered_at: Instant,
    delivered: u64,
    app_limited: bool,
    retransmitted: bool,
}

/// A rate sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RateSample {
    /// Total bytes delivered when the segment was sent.
    pub(super) prior_delivered: u64,
    /// Bytes delivered since then.
    pub(super) delivered: u64,
    /// The sampling interval.
    pub(super) interval: Duration,
    /// Whether the sender was application-limited.
    pub(super) app_limited: bool,
}

impl RateSample {
    /// The delivery rate in bytes per second.
    pub(super) fn bandwidth(&self) -> u64 {
        per_second(self.delivered, self.interval)
    }
}

/// Upper limit, above any path; prevents overflow of products.
const BANDWIDTH_MAX: u64 = 1 << 44;

/// Bytes per second of `bytes` in `time`.
pub(super) fn per_second(bytes: u64, time: Duration) -> u64 {
    let nanos = u128::from(time.as_nanos().max(1));
    let rate = u128::from(bytes) * 1_000_000_000 / nanos;
    u64::try_from(rate).unwrap_or(BANDWIDTH_MAX).min(BANDWIDTH_MAX)
}

/// See the module's description.
#[derive(Clone, Debug, Default)]
pub(super) struct RateSampler {
    records: Sliding<Record>,
    delivered: u64,
    delivered_at: Instant,
    first_sent_at: Instant,
    /// Samples are application-limited until the total delivered exceeds this.
    app_limited_until: Option<u64>,
    lost: u64,
    /// Without SACK: outstanding bytes that duplicate ACKs account for.
    duplicates: u64,
    /// What the ACK being processed delivered; see [`RateSampler::set_delivered`].
    last_delivered: (u64, Option<Position>),
}

impl RateSampler {
    /// Total bytes delivered.
    pub(super) fn delivered(&self) -> u64 {
        self.delivered
    }

    /// Time of the latest delivery, or of the first transmission after an idle period.
    pub(super) fn delivered_at(&self) -> Instant {
        self.delivered_at
    }

    /// Without SACK: total bytes known to be lost.
    pub(super) fn lost(&self) -> u64 {
        self.lost
    }

    /// Without SACK: bytes that duplicate ACKs show to have left the network.
    pub(super) fn duplicates(&self) -> u64 {
        self.duplicates
    }

    /// Whether the connection is application-limited.
    pub(super) fn is_app_limited(&self) -> bool {
        self.app_limited_until.is_some()
    }

    /// The application has no more data with `in_flight` bytes in flight.
    pub(super) fn set_app_limited(&mut self, in_flight: u64) {
        self.app_limited_until = Some(self.delivered + in_flight);
    }

    /// Records that `start..end` is sent. `pipe_was_empty`: nothing was outstanding before.
    pub(super) fn sent(
        &mut self,
        now: Instant,
        start: Position,
        end: Position,
        pipe_was_empty: bool,
    ) {
        if pipe_was_empty {
            self.first_sent_at = now;
            self.delivered_at = now;
        }
        let record = Record {
            end,
            sent_at: now,
            first_sent_at: self.first_sent_at,
            delivered_at: self.delivered_at,
            delivered: self.delivered,
            app_limited: self.is_app_limited(),
            retransmitted: false,
        };
        let newest_end = self.records.last().map_or(0, |newest| newest.end);
        if start >= newest_end {
            self.records.push(record);
            return;
        }
        // A retransmission has the boundaries of the original; otherwise it gives no sample.
        let at = self.index_of(end);
        if let Some(old) = self.records.get_mut(at).filter(|old| old.end == end) {
            *old = Record { retransmitted: true, ..record };
        }
    }

    fn index_of(&self, end: Position) -> usize {
        self.records.partition_point(|record| record.end < end)
    }

    /// Everything outstanding will be retransmitted, possibly with other segment boundaries.
    pub(super) fn clear_records(&mut self) {
        self.records.clear();
        self.duplicates = 0;
    }

    /// The record of the segment that ends at `end`.
    fn ending_at(&self, end: Position) -> Option<Record> {
        let record = self.records.get(self.index_of(end))?;
        (record.end == end).then_some(*record)
    }

    /// Whether the first outstanding segment was (re)transmitted after the segment of `record`.
    pub(super) fn first_sent_after(&self, record: &Record) -> bool {
        self.records.first().is_some_and(|first| first.sent_at > record.sent_at)
    }

    /// The most recently sent of the segments before `una`.
    pub(super) fn newest_before(&self, una: Position) -> Option<Record> {
        let known = self.records.iter().take_while(|record| record.end <= una);
        known.copied().max_by_key(|record| (record.sent_at, record.end))
    }

    /// Sets the bytes that the ACK being processed delivered, and the end of the most recently sent
    /// of their segments, if known.
    pub(super) fn set_delivered(&mut self, bytes: u64, newest_end: Option<Position>) {
        self.last_delivered = (bytes, newest_end);
    }

    /// Takes what [`RateSampler::set_delivered`] set: the bytes, and the record of the segment.
    pub(super) fn take_delivered(&mut self) -> (u64, Option<Record>) {
        let (bytes, newest_end) = std::mem::take(&mut self.last_delivered);
        (bytes, newest_end.and_then(|end| self.ending_at(end)))
    }

    /// Without SACK: a duplicate ACK means that one outstanding segment was received. Returns the
    /// newly delivered bytes.
    pub(super) fn on_duplicate(&mut self, segment: u64, outstanding: u64) -> u64 {
        let delivered = segment.min(outstanding.saturating_sub(self.duplicates));
        self.duplicates += delivered;
        delivered
    }

    /// Without SACK: `acked` bytes were cumulatively acknowledged. Returns how many of them
    /// duplicate ACKs had not accounted for. The first segment was the hole.
    pub(super) fn on_in_order(&mut self, acked: u64, segment: u64) -> u64 {
        let hole = acked.min(segment);
        let delivered = acked.saturating_sub(self.duplicates).max(hole);
        self.duplicates = self.duplicates.saturating_sub(acked - hole);
        delivered
    }

    /// Without SACK: `bytes` were lost.
    pub(super) fn add_lost(&mut self, bytes: u64) {
        self.lost += bytes;
    }

    /// Processes an ACK that delivered `bytes` and advanced SND.UNA to `una`; `newest` is the most
    /// recently sent of the delivered segments. Returns a sample, unless its interval is below the
    /// minimum RTT (an original acknowledged after its retransmission).
    pub(super) fn acked(
        &mut self,
        now: Instant,
        una: Position,
        bytes: u64,
        newest: Option<Record>,
        min_rtt: Option<Duration>,
    ) -> Option<RateSample> {
        self.delivered += bytes;
        if self.app_limited_until.is_some_and(|until| self.delivered > until) {
            self.app_limited_until = None;
        }
        if bytes > 0 {
            self.delivered_at = now;
        }
        let acked = self.records.partition_point(|record| record.end <= una);
        self.records.drop_front(acked);
        let newest = newest?;
        self.first_sent_at = newest.sent_at;
        let sending = newest.sent_at.saturating_since(newest.first_sent_at);
        let acknowledging = now.saturating_since(newest.delivered_at);
        let interval = sending.max(acknowledging);
        if interval == Duration::ZERO || min_rtt.is_some_and(|min| interval < min) {
            return None;
        }
        Some(RateSample {
            prior_delivered: newest.delivered,
            delivered: self.delivered - newest.delivered,
            interval,
            app_limited: newest.app_limited,
        })
    }
}

impl Record {
    /// RTT of the segment, unless it was retransmitted.
    pub(super) fn round_trip(&self, now: Instant) -> Option<Duration> {
        (!self.retransmitted).then(|| now.saturating_since(self.sent_at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: u64 = 1_000;

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    fn ack(rate: &mut RateSampler, now: u64, una: u64, segments: u64) -> Option<RateSample> {
        let newest = rate.newest_before(una * SEGMENT);
        rate.acked(
            at(now),
            una * SEGMENT,
            segments * SEGMENT,
            newest,
            Some(Duration::from_millis(1)),
        )
    }

    fn send(rate: &mut RateSampler, now: u64, number: u64, pipe_was_empty: bool) {
        rate.sent(at(now), number * SEGMENT, (number + 1) * SEGMENT, pipe_was_empty);
    }

    /// Given four segments sent at 0 and acknowledged one by one at 100, 110, 120 and 130 ms,
    /// expect samples of 1, 2, 3 and 4 segments in these times: 10 to 30.8 segments per second.
    #[test]
    fn a_burst_is_sampled_at_the_rate_of_its_acks() {
        let mut rate = RateSampler::default();
        (0..4).for_each(|number| send(&mut rate, 0, number, number == 0));
        for number in 0..4 {
            let now = 100 + 10 * number;
            let sample = ack(&mut rate, now, number + 1, 1).expect("a sample");
            assert_eq!(sample.delivered, (number + 1) * SEGMENT);
            assert_eq!(sample.interval, Duration::from_millis(now));
            assert_eq!(sample.bandwidth(), (number + 1) * 1_000_000 / now);
        }
    }

    /// Given one segment every 10 ms from 0 on over an RTT of 20 ms, expect 100 segments per second
    /// from the third ACK on: at 40 ms, the segment sent at 20 ms, when one had been delivered (ACK
    /// at 20 ms), gives 2 in 20 ms.
    #[test]
    fn a_steady_stream_is_sampled_at_its_own_rate() {
        let mut rate = RateSampler::default();
        for number in 0..10u64 {
            let now = number * 10;
            let sample = number.checked_sub(2).and_then(|acked| ack(&mut rate, now, acked + 1, 1));
            send(&mut rate, now, number, number == 0);
            if number >= 4 {
                let sample = sample.expect("a sample");
                assert_eq!((sample.delivered, sample.bandwidth()), (2 * SEGMENT, 100_000));
                assert_eq!(sample.interval, Duration::from_millis(20));
            }
        }
    }

    /// Given compressed ACKs, expect the send rate: ten segments, one every 10 ms, are all
    /// acknowledged at 150 ms. The last one was sent 90 ms after the first and gives ten in 150 ms;
    /// with an interval from its own transmission it would be ten in 60 ms.
    #[test]
    fn compressed_acks_do_not_inflate_the_rate() {
        let mut rate = RateSampler::default();
        (0..10).for_each(|number| send(&mut rate, number * 10, number, number == 0));
        let sample = ack(&mut rate, 150, 10, 10).expect("a sample");
        assert_eq!((sample.delivered, sample.interval), (10_000, Duration::from_millis(150)));
        // Ten more segments at the same rate are acknowledged within a millisecond of the last
        // transmission: ten delivered since 150 ms, in 101 ms.
        (10..20).for_each(|number| send(&mut rate, 150 + (number - 9) * 10, number, false));
        let sample = ack(&mut rate, 251, 20, 10).expect("a sample");
        assert_eq!((sample.delivered, sample.interval), (10_000, Duration::from_millis(160)));
    }

    /// Given an application that ran out of data with two segments in flight, expect segments sent
    /// then to be marked until those two and one more byte were delivered.
    #[test]
    fn samples_are_marked_as_application_limited() {
        let mut rate = RateSampler::default();
        send(&mut rate, 0, 0, true);
        send(&mut rate, 0, 1, false);
        rate.set_app_limited(2 * SEGMENT);
        send(&mut rate, 50, 2, false);
        assert!(!ack(&mut rate, 100, 1, 1).expect("a sample").app_limited);
        assert!(!ack(&mut rate, 110, 2, 1).expect("a sample").app_limited);
        send(&mut rate, 110, 3, false);
        assert!(ack(&mut rate, 150, 3, 1).expect("a sample").app_limited);
        assert!(!rate.is_app_limited(), "more than what was in flight was delivered");
        assert!(ack(&mut rate, 210, 4, 1).expect("a sample").app_limited, "sent before that");
        send(&mut rate, 210, 4, true);
        assert!(!ack(&mut rate, 310, 5, 1).expect("a sample").app_limited);
    }

    /// Given an RTT of 100 ms and two segments that are spuriously retransmitted at 95 ms, expect
    /// no sample from the second: it is retransmitted again at 101 ms, and the ACK at 102 ms is for
    /// the original. From the delivery at 100 ms and the retransmission at 95 ms, the interval
    /// would be 6 ms.
    #[test]
    fn an_interval_below_the_minimum_rtt_gives_no_sample() {
        let mut rate = RateSampler::default();
        let min_rtt = Some(Duration::from_millis(100));
        (0..2).for_each(|number| send(&mut rate, 0, number, number == 0));
        (0..2).for_each(|number| send(&mut rate, 95, number, false));
        let newest = rate.newest_before(SEGMENT);
        assert!(rate.acked(at(100), SEGMENT, SEGMENT, newest, min_rtt).is_some());
        send(&mut rate, 101, 1, false);
        let newest = rate.newest_before(2 * SEGMENT);
        assert_eq!(newest.expect("known").round_trip(at(102)), None, "it was retransmitted");
        assert_eq!(rate.acked(at(102), 2 * SEGMENT, SEGMENT, newest, min_rtt), None);
    }

    /// Given three duplicate ACKs without SACK and then an ACK of four segments and the hole,
    /// expect three segments delivered by the duplicates and two by the ACK.
    #[test]
    fn duplicate_acks_count_as_delivered() {
        let mut rate = RateSampler::default();
        let delivered: Vec<u64> = (0..3).map(|_| rate.on_duplicate(SEGMENT, 10_000)).collect();
        assert_eq!(delivered, [1_000; 3]);
        assert_eq!(rate.on_in_order(5_000, SEGMENT), 2_000);
        assert_eq!(rate.duplicates(), 0);
        assert_eq!(rate.on_duplicate(SEGMENT, 500), 500, "at most what is outstanding");
    }
}
