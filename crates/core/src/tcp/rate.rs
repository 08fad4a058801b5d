//! Delivery-rate estimation (draft-cheng-iccrg-delivery-rate-estimation-00, as Linux does it): how
//! fast the network delivered what was outstanding when a segment was sent. Only a congestion
//! control that asks for rates keeps this.
//!
//! A sample spans from a segment's sending to its acknowledgement. What was delivered in between,
//! over the longer of the time it took to send it and the time it took to be acknowledged, is a
//! rate that neither a burst of segments nor one of ACKs can exaggerate.

use super::sliding::Sliding;
use crate::packet::seq::Position;
use crate::time::{Duration, Instant};

/// What is remembered of each outstanding segment: the state of the connection when it was last
/// sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    end: Position,
    sent_at: Instant,
    /// When the segment was sent whose delivery was the latest news: the sending phase began then.
    first_sent_at: Instant,
    /// When that news came, and how much had been delivered in all.
    delivered_at: Instant,
    delivered: u64,
    app_limited: bool,
    retransmitted: bool,
}

/// One sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RateSample {
    /// Bytes delivered in all when the segment was sent.
    pub(super) prior_delivered: u64,
    /// Bytes delivered since then.
    pub(super) delivered: u64,
    /// The time this took.
    pub(super) interval: Duration,
    /// Whether the application, not the network, may have set the rate.
    pub(super) app_limited: bool,
}

impl RateSample {
    /// Bytes a second.
    pub(super) fn bandwidth(&self) -> u64 {
        per_second(self.delivered, self.interval)
    }
}

/// No path is faster; a bound for products.
const BANDWIDTH_MAX: u64 = 1 << 44;

/// Bytes over a time, as bytes a second.
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
    /// Samples are limited by the application until more than this has been delivered.
    app_limited_until: Option<u64>,
    lost: u64,
    /// Without SACK: bytes that duplicate ACKs stand for, of those outstanding.
    duplicates: u64,
    /// What the ACK that is being taken delivered; see [`RateSampler::arrived`].
    news: (u64, Option<Position>),
}

impl RateSampler {
    /// Bytes delivered in all.
    pub(super) fn delivered(&self) -> u64 {
        self.delivered
    }

    /// When the latest of them were reported, or the first one was sent after a pause.
    pub(super) fn delivered_at(&self) -> Instant {
        self.delivered_at
    }

    /// Without SACK: bytes lost in all, as far as is known.
    pub(super) fn lost(&self) -> u64 {
        self.lost
    }

    /// Without SACK: bytes that left the network although nothing says which.
    pub(super) fn duplicates(&self) -> u64 {
        self.duplicates
    }

    /// Whether the application limits what is sent now.
    pub(super) fn is_app_limited(&self) -> bool {
        self.app_limited_until.is_some()
    }

    /// The application left the pipe with `in_flight` bytes and had no more.
    pub(super) fn limit_by_application(&mut self, in_flight: u64) {
        self.app_limited_until = Some(self.delivered + in_flight);
    }

    /// The segment `start..end` leaves; `alone` if nothing was outstanding before it.
    pub(super) fn sent(&mut self, now: Instant, start: Position, end: Position, alone: bool) {
        if alone {
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
        // What is retransmitted has the bounds it had before; if not, it gives no sample.
        let at = self.place_of(end);
        if let Some(old) = self.records.get_mut(at).filter(|old| old.end == end) {
            *old = Record { retransmitted: true, ..record };
        }
    }

    fn place_of(&self, end: Position) -> usize {
        self.records.partition_point(|record| record.end < end)
    }

    /// Everything outstanding will be sent anew, in new segments perhaps.
    pub(super) fn forget(&mut self) {
        self.records.clear();
        self.duplicates = 0;
    }

    /// The record of the segment that ends here.
    fn ending_at(&self, end: Position) -> Option<Record> {
        let record = self.records.get(self.place_of(end))?;
        (record.end == end).then_some(*record)
    }

    /// Whether the first outstanding segment was sent (again) after that of a record.
    pub(super) fn first_is_later(&self, record: &Record) -> bool {
        self.records.first().is_some_and(|first| first.sent_at > record.sent_at)
    }

    /// Of the segments before `una`, the one that was sent last.
    pub(super) fn newest_before(&self, una: Position) -> Option<Record> {
        let known = self.records.iter().take_while(|record| record.end <= una);
        known.copied().max_by_key(|record| (record.sent_at, record.end))
    }

    /// The ACK that is being taken delivered so many bytes; of their segments, as far as is known which
    /// they are, the one that was sent last ends here.
    pub(super) fn arrived(&mut self, bytes: u64, newest_end: Option<Position>) {
        self.news = (bytes, newest_end);
    }

    /// What was said by [`RateSampler::arrived`] since this was asked: the bytes, and the record of the
    /// segment.
    pub(super) fn take_news(&mut self) -> (u64, Option<Record>) {
        let (bytes, newest_end) = std::mem::take(&mut self.news);
        (bytes, newest_end.and_then(|end| self.ending_at(end)))
    }

    /// Without SACK: a duplicate ACK says that one segment of those outstanding has arrived; the
    /// bytes that are news.
    pub(super) fn duplicate(&mut self, segment: u64, outstanding: u64) -> u64 {
        let news = segment.min(outstanding.saturating_sub(self.duplicates));
        self.duplicates += news;
        news
    }

    /// Without SACK: `acked` bytes more are in order: how many of them duplicates had not
    /// announced. The first segment was the hole.
    pub(super) fn in_order(&mut self, acked: u64, segment: u64) -> u64 {
        let hole = acked.min(segment);
        let news = acked.saturating_sub(self.duplicates).max(hole);
        self.duplicates = self.duplicates.saturating_sub(acked - hole);
        news
    }

    /// Without SACK: `bytes` were found lost.
    pub(super) fn lose(&mut self, bytes: u64) {
        self.lost += bytes;
    }

    /// An ACK delivered `bytes`, among them the segment of `newest`, which was sent last, and moved
    /// the left edge to `una`. The sample it gives; one shorter than the shortest round trip is not
    /// believed (a repeated segment whose original arrived).
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
        let arrived = self.records.partition_point(|record| record.end <= una);
        self.records.leave(arrived);
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
    /// The round trip it took, if it was sent once.
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

    fn send(rate: &mut RateSampler, now: u64, number: u64, alone: bool) {
        rate.sent(at(now), number * SEGMENT, (number + 1) * SEGMENT, alone);
    }

    /// Given four segments sent at once at 0 and acknowledged one by one at 100, 110, 120 and 130
    /// ms, expect 1, 2, 3 and 4 segments since then over as long: 10 to 30.8 segments a second.
    #[test]
    fn a_burst_is_measured_by_its_acks() {
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

    /// Given one segment a 10 ms from 0 on over a round trip of 20 ms, expect 100 segments a second
    /// from the third ACK on: at 40 ms, the segment sent at 20 ms, when one had been delivered
    /// (reported at 20 ms), makes 2 in 20 ms.
    #[test]
    fn a_steady_stream_shows_its_own_rate() {
        let mut rate = RateSampler::default();
        for number in 0..10u64 {
            let now = number * 10;
            let sample =
                number.checked_sub(2).and_then(|arrived| ack(&mut rate, now, arrived + 1, 1));
            send(&mut rate, now, number, number == 0);
            if number >= 4 {
                let sample = sample.expect("a sample");
                assert_eq!((sample.delivered, sample.bandwidth()), (2 * SEGMENT, 100_000));
                assert_eq!(sample.interval, Duration::from_millis(20));
            }
        }
    }

    /// Given ACKs that waited somewhere and come at once, expect the rate of the sending: ten
    /// segments, one each 10 ms, are all acknowledged at 150 ms. The last one left 90 ms after the
    /// first and shows ten in 150 ms; had the clock started at its own sending, it would be in 60.
    #[test]
    fn compressed_acks_do_not_exaggerate() {
        let mut rate = RateSampler::default();
        (0..10).for_each(|number| send(&mut rate, number * 10, number, number == 0));
        let sample = ack(&mut rate, 150, 10, 10).expect("a sample");
        assert_eq!((sample.delivered, sample.interval), (10_000, Duration::from_millis(150)));
        // Ten more leave as slowly and are acknowledged within a millisecond of the last sending:
        // since 150 ms, ten were delivered in 101 ms.
        (10..20).for_each(|number| send(&mut rate, 150 + (number - 9) * 10, number, false));
        let sample = ack(&mut rate, 251, 20, 10).expect("a sample");
        assert_eq!((sample.delivered, sample.interval), (10_000, Duration::from_millis(160)));
    }

    /// Given an application that ran out with two segments in flight, expect what is sent then to
    /// be marked until those two and one more byte were delivered.
    #[test]
    fn samples_know_when_the_application_set_the_rate() {
        let mut rate = RateSampler::default();
        send(&mut rate, 0, 0, true);
        send(&mut rate, 0, 1, false);
        rate.limit_by_application(2 * SEGMENT);
        send(&mut rate, 50, 2, false);
        assert!(!ack(&mut rate, 100, 1, 1).expect("a sample").app_limited);
        assert!(!ack(&mut rate, 110, 2, 1).expect("a sample").app_limited);
        send(&mut rate, 110, 3, false);
        assert!(ack(&mut rate, 150, 3, 1).expect("a sample").app_limited);
        assert!(!rate.is_app_limited(), "more than what was in flight has arrived");
        assert!(ack(&mut rate, 210, 4, 1).expect("a sample").app_limited, "sent before that");
        send(&mut rate, 210, 4, true);
        assert!(!ack(&mut rate, 310, 5, 1).expect("a sample").app_limited);
    }

    /// Given two segments of a path of 100 ms, retransmitted at 95 ms although nothing was lost,
    /// expect no sample from the second: it is sent once more at 101 ms, and the ACK of 102 ms is
    /// of the first time. Counted from the news of 100 ms and the repetition of 95 ms, that would
    /// be 6 ms.
    #[test]
    fn an_interval_below_the_shortest_round_trip_is_not_believed() {
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

    /// Without SACK: three duplicates announce three segments, and an ACK of four and the hole
    /// brings news of two.
    #[test]
    fn duplicates_count_before_they_are_in_order() {
        let mut rate = RateSampler::default();
        let news: Vec<u64> = (0..3).map(|_| rate.duplicate(SEGMENT, 10_000)).collect();
        assert_eq!(news, [1_000; 3]);
        assert_eq!(rate.in_order(5_000, SEGMENT), 2_000);
        assert_eq!(rate.duplicates(), 0);
        assert_eq!(rate.duplicate(SEGMENT, 500), 500, "no more than what is outstanding");
    }
}
