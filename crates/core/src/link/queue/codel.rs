//! Controlled delay (RFC 8289): packets are dropped at the head of the queue when their sojourn time has
//! been at or above a target for an interval, and then at an increasing rate until it is below the target.
//!
//! This is the pseudo-code of section 5 of the RFC. Its maximum packet size is that of the largest IP
//! packet accepted so far, where the RFC and Linux use the MTU: with small packets alone, fewer bytes may
//! wait behind a packet that is dropped. With ECN, a packet of an ECN-capable transport is marked and sent instead of dropped
//! (Linux, `codel_dequeue`): the control law counts a mark as a drop.

use std::collections::VecDeque;

use super::{Limit, Occupancy, PacketSize, QueuedPacket};
use crate::packet::Packet;
use crate::time::{Duration, Instant};
use crate::trace::DropCause;

/// The parameters of a [`CoDel`] queue.
#[derive(Clone, Copy, Debug)]
pub struct CoDelConfig {
    /// The capacity in packets or bytes.
    pub limit: Limit,
    /// The acceptable standing sojourn time (RFC 8289: 5 ms).
    pub target: Duration,
    /// How long the sojourn time may be at or above the target: the largest RTT of the flows (RFC 8289:
    /// 100 ms, which most paths are below; over a geostationary satellite some 600 ms).
    pub interval: Duration,
    /// Whether packets of ECN-capable transports are marked instead of dropped.
    pub ecn: bool,
}

/// A queue with CoDel.
#[derive(Clone, Debug)]
pub struct CoDel {
    limit: Limit,
    control_law: ControlLaw,
    fifo: Fifo,
    control: Control,
    waiting: Occupancy,
}

impl CoDel {
    /// An empty queue.
    ///
    /// # Panics
    /// If the limit is a time: the sojourn time of a packet is not known when it arrives.
    #[must_use]
    pub fn new(config: CoDelConfig) -> Self {
        config.limit.assert_held();
        Self {
            limit: config.limit,
            control_law: ControlLaw::new(config.target, config.interval, config.ecn),
            fifo: Fifo::default(),
            control: Control::default(),
            waiting: Occupancy::default(),
        }
    }

    /// See [`super::DropAtDequeue::enqueue`].
    pub fn enqueue(&mut self, queued: QueuedPacket, on_drop: &mut impl FnMut(DropCause, &Packet)) {
        let size = queued.size();
        if self.is_full(size) {
            on_drop(DropCause::QueueFull, &queued.packet);
            return;
        }
        self.control_law.observe(&queued.packet);
        self.waiting.on_enqueue(size);
        self.fifo.push(queued);
    }

    /// See [`super::DropAtDequeue::dequeue`].
    pub fn dequeue(
        &mut self,
        now: Instant,
        on_drop: &mut impl FnMut(DropCause, &Packet),
    ) -> Option<QueuedPacket> {
        let waiting = &mut self.waiting;
        let next = self.control.dequeue(&self.control_law, now, &mut self.fifo, &mut |queued| {
            waiting.on_dequeue(queued.size());
            on_drop(DropCause::Codel, &queued.packet);
        })?;
        waiting.on_dequeue(next.size());
        Some(next)
    }

    /// The packets that wait, in order.
    pub(super) fn packets(&self) -> impl Iterator<Item = &Packet> {
        self.fifo.iter()
    }

    /// Removes all packets of a queue that is replaced by another one: its state stays as it was.
    pub(super) fn take_packets(&mut self) -> Vec<QueuedPacket> {
        self.fifo.take()
    }

    /// Whether a packet of this size would not fit.
    pub(super) fn is_full(&self, size: PacketSize) -> bool {
        // Only limits in time depend on the wait.
        !self.limit.has_room(&self.waiting, size, Duration::ZERO)
    }

    /// The packets that wait.
    #[must_use]
    pub fn occupancy(&self) -> &Occupancy {
        &self.waiting
    }
}

/// Packets in order of arrival, and the IP bytes of this queue; [`Occupancy`] is that of all queues of a
/// discipline.
#[derive(Clone, Debug, Default)]
pub(super) struct Fifo {
    packets: VecDeque<QueuedPacket>,
    bytes: u64,
}

impl Fifo {
    pub(super) fn push(&mut self, queued: QueuedPacket) {
        self.bytes += u64::from(queued.packet.bytes);
        self.packets.push_back(queued);
    }

    pub(super) fn pop(&mut self) -> Option<QueuedPacket> {
        let first = self.packets.pop_front()?;
        self.bytes -= u64::from(first.packet.bytes);
        Some(first)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn packets(&self) -> usize {
        self.packets.len()
    }

    pub(super) fn take(&mut self) -> Vec<QueuedPacket> {
        std::mem::take(self).packets.into()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Packet> {
        self.packets.iter().map(|queued| &*queued.packet)
    }
}

/// The parameters of the control law: the same for all queues of a discipline.
#[derive(Clone, Debug)]
pub(super) struct ControlLaw {
    target: Duration,
    interval: Duration,
    ecn: bool,
    /// IP bytes of the largest packet seen so far.
    largest: u64,
}

impl ControlLaw {
    pub(super) fn new(target: Duration, interval: Duration, ecn: bool) -> Self {
        Self { target, interval, ecn, largest: 0 }
    }

    /// Marks a packet instead of dropping it, if possible. Returns whether it did.
    fn try_mark(&self, candidate: &mut Candidate) -> bool {
        self.ecn && candidate.queued.as_mut().is_some_and(QueuedPacket::mark)
    }

    /// Records the size of a packet that is enqueued.
    pub(super) fn observe(&mut self, packet: &Packet) {
        self.largest = self.largest.max(packet.bytes.into());
    }

    /// The time of the drop after the one at `at`: interval / sqrt(count) later, rounded down to a
    /// nanosecond; `count` is at least 1. The throughput of TCP is inversely proportional to the square root
    /// of its loss rate, so that these drops decrease it linearly (RFC 8289). For integers
    /// floor(i / sqrt(c)) = floor(sqrt(floor(i^2 / c))); the square of 64 bits fits 128.
    fn next_drop(&self, at: Instant, count: u32) -> Instant {
        let squared = u128::from(self.interval.as_nanos()).pow(2) / u128::from(count);
        let nanos = u64::try_from(squared.isqrt()).expect("at most the interval");
        at + Duration::from_nanos(nanos)
    }
}

/// The state of one queue. Its fields are the RFC's `first_above_time_`, `dropping_`, `drop_next_`, `count_`
/// and `lastcount_`.
#[derive(Clone, Debug, Default)]
pub(super) struct Control {
    /// When the sojourn time will have been at or above the target for an interval; `None` while it is below.
    first_above: Option<Instant>,
    /// Whether it is in the dropping state.
    dropping: bool,
    /// The next drop in the dropping state; outside it, the drop that would have been next.
    drop_next: Instant,
    /// What spaces drops by interval / sqrt(count): 1 at the start of a dropping state, or the count that it
    /// resumes, and one more for each further drop or mark. At least `last_count`.
    count: u32,
    /// The count at the start of this dropping state.
    last_count: u32,
}

/// A packet removed from the queue, and whether it may be dropped.
struct Candidate {
    queued: Option<QueuedPacket>,
    droppable: bool,
}

impl Control {
    /// The next packet to send. Packets dropped before it are passed to `dropped`.
    pub(super) fn dequeue(
        &mut self,
        control_law: &ControlLaw,
        now: Instant,
        fifo: &mut Fifo,
        dropped: &mut impl FnMut(&QueuedPacket),
    ) -> Option<QueuedPacket> {
        let mut candidate = self.next_candidate(control_law, now, fifo);
        if !self.dropping {
            if candidate.droppable {
                if !control_law.try_mark(&mut candidate) {
                    candidate.queued.iter().for_each(&mut *dropped);
                    candidate = self.next_candidate(control_law, now, fifo);
                }
                self.enter_drop_state(control_law, now);
            }
            return candidate.queued;
        }
        self.dropping = candidate.droppable;
        // At a high drop rate several drops may be due at once.
        while self.dropping && self.drop_next <= now {
            self.count = self.count.saturating_add(1);
            if control_law.try_mark(&mut candidate) {
                // It is sent; if the next drop is due already, the next packet is marked, too (Linux).
                self.drop_next = control_law.next_drop(self.drop_next, self.count);
                break;
            }
            candidate.queued.iter().for_each(&mut *dropped);
            candidate = self.next_candidate(control_law, now, fifo);
            self.dropping = candidate.droppable;
            if self.dropping {
                self.drop_next = control_law.next_drop(self.drop_next, self.count);
            }
        }
        candidate.queued
    }

    fn next_candidate(
        &mut self,
        control_law: &ControlLaw,
        now: Instant,
        fifo: &mut Fifo,
    ) -> Candidate {
        let Some(queued) = fifo.pop() else {
            self.first_above = None;
            return Candidate { queued: None, droppable: false };
        };
        // The backlog must keep the link busy until the next packet arrives: nothing is dropped if no
        // more than a maximum packet is left behind this one.
        if now - queued.enqueued_at < control_law.target || fifo.bytes <= control_law.largest {
            self.first_above = None;
            return Candidate { queued: Some(queued), droppable: false };
        }
        let first_above = *self.first_above.get_or_insert(now + control_law.interval);
        Candidate { queued: Some(queued), droppable: first_above <= now }
    }

    /// Enters the dropping state. If the last one ended less than 16 intervals ago and had two drops or more
    /// after its first, its drop rate is resumed, as in the RFC's pseudo-code and in Linux.
    fn enter_drop_state(&mut self, control_law: &ControlLaw, now: Instant) {
        // The RFC's `delta`: the drops and marks after the first.
        let dropped = self.count - self.last_count;
        let soon = now.saturating_since(self.drop_next) < control_law.interval.saturating_mul(16);
        self.count = if dropped > 1 && soon { dropped } else { 1 };
        self.last_count = self.count;
        self.drop_next = control_law.next_drop(now, self.count);
        self.dropping = true;
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Drops, queued};
    use super::*;
    use crate::packet::Ecn;

    const TARGET: Duration = Duration::from_millis(5);
    const INTERVAL: Duration = Duration::from_millis(100);

    fn control_law() -> ControlLaw {
        ControlLaw { largest: 1_000, ..ControlLaw::new(TARGET, INTERVAL, false) }
    }

    fn codel(target: Duration, limit: Limit) -> CoDel {
        CoDel::new(CoDelConfig { limit, target, interval: INTERVAL, ecn: false })
    }

    /// The number of packets dropped before one is sent at `now`, if all packets of a long queue have
    /// waited for `wait`; times in milliseconds.
    fn drops(control: &mut Control, now: u64, wait: u64) -> usize {
        let mut fifo = Fifo::default();
        (0..50).for_each(|serial| fifo.push(queued(0, serial, 1_000, now - wait)));
        let mut dropped = 0;
        let sent =
            control.dequeue(&control_law(), Instant::from_millis(now), &mut fifo, &mut |_| {
                dropped += 1
            });
        assert!(sent.is_some());
        dropped
    }

    /// The milliseconds at which a packet is dropped, with one sent each millisecond.
    fn drop_times(control: &mut Control, when: core::ops::Range<u64>, wait: u64) -> Vec<u64> {
        when.filter(|&now| drops(control, now, wait) > 0).collect()
    }

    /// 100 ms over the square roots of 1, 2, 3 and 4, rounded down.
    #[test]
    fn the_control_law_is_the_inverse_square_root() {
        let after = |count| control_law().next_drop(Instant::START, count).as_nanos();
        assert_eq!([1, 2, 3, 4].map(after), [100_000_000, 70_710_678, 57_735_026, 50_000_000]);
        let longest = ControlLaw { interval: Duration::from_nanos(u64::MAX), ..control_law() };
        assert_eq!(longest.next_drop(Instant::START, 1).as_nanos(), u64::MAX - 1);
    }

    /// Given a sojourn time above the target from 10 ms on, expect the first drop an interval later and
    /// the next ones after 100 / sqrt(n): at 210, 280.7, 338.4, 388.4, 433.2, 474.0 and 511.8 ms.
    #[test]
    fn the_drop_rate_increases_while_the_sojourn_time_is_above_the_target() {
        let mut control = Control::default();
        assert_eq!(drop_times(&mut control, 10..110, 5), []);
        assert_eq!(drop_times(&mut control, 110..513, 5), [110, 210, 281, 339, 389, 434, 474, 512]);
    }

    /// Given ECN, expect marks instead of drops, one per packet: those due at 210, 280.7, 338.4 and 388.4 ms
    /// apply to the four packets from 400 ms on.
    #[test]
    fn marks_follow_the_same_control_law() {
        let control_law = ControlLaw { ecn: true, ..control_law() };
        let mut control = Control::default();
        let mut marks = |now: u64| {
            let mut fifo = Fifo::default();
            for serial in 0..5 {
                let mut queued = queued(0, serial, 1_000, now - 10);
                queued.packet.ecn = Ecn::Ect0;
                fifo.push(queued);
            }
            let now = Instant::from_millis(now);
            let sent =
                control.dequeue(&control_law, now, &mut fifo, &mut |_| panic!("none is dropped"));
            let sent = sent.expect("packets wait");
            assert_eq!(sent.packet.ecn == Ecn::Ce, sent.marked);
            sent.marked
        };
        let early: Vec<_> = (10..111).filter(|&now| marks(now)).collect();
        assert_eq!(early, [110]);
        let late: Vec<_> = (400..435).filter(|&now| marks(now)).collect();
        assert_eq!(late, [400, 401, 402, 403, 434]);
    }

    /// Given a transport that is not ECN-capable, expect drops.
    #[test]
    fn packets_of_not_ect_transports_are_dropped() {
        let control_law = ControlLaw { ecn: true, ..control_law() };
        let (mut control, mut dropped) = (Control::default(), 0);
        for millis in 10..111 {
            let mut fifo = Fifo::default();
            (0..5).for_each(|serial| fifo.push(queued(0, serial, 1_000, millis - 10)));
            let now = Instant::from_millis(millis);
            let sent = control.dequeue(&control_law, now, &mut fifo, &mut |_| dropped += 1);
            assert!(sent.is_some_and(|sent| !sent.marked));
        }
        assert_eq!(dropped, 1);
    }

    #[test]
    fn one_packet_below_the_target_restarts_the_interval() {
        let mut control = Control::default();
        assert_eq!(drop_times(&mut control, 10..109, 10), []);
        assert_eq!(drops(&mut control, 109, 4), 0);
        assert_eq!(drop_times(&mut control, 110..211, 10), [210]);
    }

    /// The drops due at 210, 280.7, 338.4 and 388.4 ms are all made when a packet is sent at 400 ms.
    #[test]
    fn drops_due_at_the_same_time_are_made_together() {
        let mut control = Control::default();
        assert_eq!(drop_times(&mut control, 10..111, 10), [110]);
        assert_eq!(drops(&mut control, 400, 10), 4);
        assert_eq!(drop_times(&mut control, 401..435, 10), [434]);
    }

    /// Drops at 110, 210, 281 and 339 ms; the drop state ends at 340 ms with the next drop due at 388.4.
    fn after_four_drops() -> Control {
        let mut control = Control::default();
        assert_eq!(drop_times(&mut control, 10..340, 10), [110, 210, 281, 339]);
        assert_eq!(drops(&mut control, 340, 0), 0);
        control
    }

    /// Three of the four drops came after the first one, so the count resumes at 3: drops are
    /// 100 / sqrt(3) = 57.7 and 100 / sqrt(4) = 50 ms apart, at 498.7 and 548.7 ms.
    #[test]
    fn a_drop_state_that_begins_soon_resumes_the_rate_of_the_last() {
        let mut control = after_four_drops();
        assert_eq!(drop_times(&mut control, 341..550, 10), [441, 499, 549]);
    }

    /// One drop more than the initial three does not resume the count: it restarts at 1, with drops
    /// 100 ms apart.
    #[test]
    fn one_drop_does_not_resume_a_rate() {
        let mut control = after_four_drops();
        assert_eq!(drop_times(&mut control, 341..500, 10), [441, 499]);
        assert_eq!(drops(&mut control, 500, 0), 0);
        assert_eq!(drop_times(&mut control, 501..702, 10), [601, 701]);
    }

    /// 16 intervals after 388.4 ms end at 1,988.4 ms.
    #[test]
    fn a_rate_is_not_resumed_after_sixteen_intervals() {
        assert_eq!(drop_times(&mut after_four_drops(), 1_888..2_047, 10), [1_988, 2_046]);
        assert_eq!(drop_times(&mut after_four_drops(), 1_889..2_090, 10), [1_989, 2_089]);
    }

    /// One packet of 1,000 bytes arrives and one leaves each millisecond; `packets` are left after each
    /// departure.
    fn drops_with_standing_queue(packets: u64) -> usize {
        let mut queue = codel(Duration::from_millis(1), Limit::Unlimited);
        let mut drops = Drops::default();
        for millis in 0..1_000 {
            queue.enqueue(queued(0, millis, 1_000, millis), &mut drops.record());
            if millis >= packets {
                assert!(queue.dequeue(Instant::from_millis(millis), &mut drops.record()).is_some());
            }
        }
        assert_eq!(queue.occupancy().packets + drops.0.len() as u64, packets);
        drops.0.len()
    }

    /// With one packet left the sojourn time of the next one is 1 ms, the target, but the backlog is at most
    /// one maximum packet. With two or four left, drops reduce the backlog to one.
    #[test]
    fn no_packet_is_dropped_from_a_backlog_of_one_maximum_packet() {
        assert_eq!(drops_with_standing_queue(1), 0);
        assert_eq!(drops_with_standing_queue(2), 1);
        assert_eq!(drops_with_standing_queue(4), 3);
    }

    #[test]
    fn the_limit_applies_to_waiting_packets() {
        let mut queue = codel(TARGET, Limit::Bytes(2_000));
        let mut drops = Drops::default();
        for serial in 0..3 {
            queue.enqueue(queued(0, serial, 1_000, 0), &mut drops.record());
        }
        assert_eq!(drops.0, [(DropCause::QueueFull, 0, 2)]);
        assert!(queue.dequeue(Instant::START, &mut drops.record()).is_some());
        let left = Occupancy { packets: 1, bytes: 1_000, link_bytes: 1_008, bytes_max: 2_000 };
        assert_eq!(*queue.occupancy(), left);
    }

    #[test]
    #[should_panic(expected = "a limit in packets or bytes")]
    fn a_limit_in_time_panics() {
        let _ = codel(TARGET, Limit::Time(INTERVAL));
    }
}
