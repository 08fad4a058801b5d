//! Controlled delay (RFC 8289): packets are dropped at the head of the queue when they have waited
//! longer than a target for a whole interval, and then at a growing rate until the wait is below
//! the target again.
//!
//! This is the pseudo-code of section 5 of the RFC. The largest packet that it asks for is the
//! largest IP packet seen so far. With ECN a packet that would be dropped is marked and sent instead, if
//! its transport reacts to marks (Linux, `codel_dequeue`): the control law counts a mark as a drop.

use std::collections::VecDeque;

use super::{Limit, Occupancy, QueuedPacket};
use crate::packet::Packet;
use crate::time::{Duration, Instant};
use crate::trace::DropCause;

/// The parameters of a [`CoDel`] queue.
#[derive(Clone, Copy, Debug)]
pub struct CoDelConfig {
    /// How much may wait; not a time.
    pub limit: Limit,
    /// The wait that may stand (RFC 8289: 5 ms).
    pub target: Duration,
    /// How long the wait may be above the target (RFC 8289: 100 ms, the round-trip time of most
    /// paths; a longer path needs a longer interval).
    pub interval: Duration,
    /// Whether packets are marked instead of dropped if their transport reacts to marks.
    pub ecn: bool,
}

/// See the module's description.
#[derive(Clone, Debug)]
pub struct CoDel {
    limit: Limit,
    law: ControlLaw,
    fifo: Fifo,
    control: Control,
    waiting: Occupancy,
}

impl CoDel {
    /// An empty queue.
    ///
    /// # Panics
    /// If the limit is one in time: how long a packet will wait is not known when it arrives.
    #[must_use]
    pub fn new(config: CoDelConfig) -> Self {
        config.limit.assert_held();
        Self {
            limit: config.limit,
            law: ControlLaw::new(config.target, config.interval, config.ecn),
            fifo: Fifo::default(),
            control: Control::default(),
            waiting: Occupancy::default(),
        }
    }

    /// See [`super::DropAtDequeue::push`].
    pub fn enqueue(&mut self, queued: QueuedPacket, on_drop: &mut impl FnMut(DropCause, &Packet)) {
        let size = queued.size();
        if !self.limit.has_room(&self.waiting, size, Duration::ZERO) {
            on_drop(DropCause::QueueFull, &queued.packet);
            return;
        }
        self.law.observe(&queued.packet);
        self.waiting.on_enqueue(size);
        self.fifo.push(queued);
    }

    /// See [`super::DropAtDequeue::pop`].
    pub fn dequeue(
        &mut self,
        now: Instant,
        on_drop: &mut impl FnMut(DropCause, &Packet),
    ) -> Option<QueuedPacket> {
        let waiting = &mut self.waiting;
        let next = self.control.dequeue(&self.law, now, &mut self.fifo, &mut |queued| {
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

    /// What waits.
    #[must_use]
    pub fn occupancy(&self) -> &Occupancy {
        &self.waiting
    }
}

/// Packets in order of arrival, and their IP bytes.
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

    pub(super) fn iter(&self) -> impl Iterator<Item = &Packet> {
        self.packets.iter().map(|queued| &*queued.packet)
    }
}

/// What a control loop aims at: the same for all queues of a discipline.
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

    /// Marks a packet instead of dropping it, if that may be. Whether it did.
    fn try_mark(&self, candidate: &mut Candidate) -> bool {
        self.ecn && candidate.queued.as_mut().is_some_and(QueuedPacket::mark)
    }

    /// Takes note of a packet that joins a queue.
    pub(super) fn observe(&mut self, packet: &Packet) {
        self.largest = self.largest.max(packet.bytes.into());
    }

    /// `at` + interval / sqrt(count), rounded down to a nanosecond. Throughput of TCP goes with the
    /// inverse square root of its loss, so that it falls linearly (RFC 8289). For integers
    /// floor(i / sqrt(c)) = floor(sqrt(floor(i^2 / c))); the square of 64 bits fits 128.
    fn next_drop(&self, at: Instant, count: u32) -> Instant {
        let squared = u128::from(self.interval.as_nanos()).pow(2) / u128::from(count);
        let nanos = u64::try_from(squared.isqrt()).expect("at most the interval");
        at + Duration::from_nanos(nanos)
    }
}

/// The state of the control loop of one queue. Its fields are those of the RFC's pseudo-code.
#[derive(Clone, Debug, Default)]
pub(super) struct Control {
    /// When the wait will have been above the target for an interval; `None` while it is below.
    first_above: Option<Instant>,
    /// Whether it is in the drop state.
    dropping: bool,
    /// The next drop of the drop state; when it is left, what was to be the next.
    drop_next: Instant,
    /// Packets dropped in this drop state, or where it took up the count of the one before.
    count: u32,
    /// The count with which this drop state began.
    last_count: u32,
}

/// A packet taken from the queue, and whether it may be dropped.
struct Candidate {
    queued: Option<QueuedPacket>,
    droppable: bool,
}

impl Control {
    /// The next packet to send. Those that are dropped before it are handed to `dropped`.
    pub(super) fn dequeue(
        &mut self,
        law: &ControlLaw,
        now: Instant,
        fifo: &mut Fifo,
        dropped: &mut impl FnMut(&QueuedPacket),
    ) -> Option<QueuedPacket> {
        let mut candidate = self.next_candidate(law, now, fifo);
        if !self.dropping {
            if candidate.droppable {
                if !law.try_mark(&mut candidate) {
                    candidate.queued.iter().for_each(&mut *dropped);
                    candidate = self.next_candidate(law, now, fifo);
                }
                self.enter_drop_state(law, now);
            }
            return candidate.queued;
        }
        self.dropping = candidate.droppable;
        // At a high drop rate several drops may be due at once.
        while self.dropping && self.drop_next <= now {
            self.count = self.count.saturating_add(1);
            if law.try_mark(&mut candidate) {
                self.drop_next = law.next_drop(self.drop_next, self.count);
                break;
            }
            candidate.queued.iter().for_each(&mut *dropped);
            candidate = self.next_candidate(law, now, fifo);
            self.dropping = candidate.droppable;
            if self.dropping {
                self.drop_next = law.next_drop(self.drop_next, self.count);
            }
        }
        candidate.queued
    }

    fn next_candidate(&mut self, law: &ControlLaw, now: Instant, fifo: &mut Fifo) -> Candidate {
        let Some(queued) = fifo.pop() else {
            self.first_above = None;
            return Candidate { queued: None, droppable: false };
        };
        // What is left must keep the link busy until the next packet comes, whatever its wait: less
        // than one large packet is never dropped from.
        if now - queued.enqueued_at < law.target || fifo.bytes <= law.largest {
            self.first_above = None;
            return Candidate { queued: Some(queued), droppable: false };
        }
        let first_above = *self.first_above.get_or_insert(now + law.interval);
        Candidate { queued: Some(queued), droppable: first_above <= now }
    }

    /// A drop state that begins soon after the last one ended takes up the drop rate that
    /// controlled the queue then. 16 intervals are those of the RFC's pseudo-code, which took them
    /// from Linux.
    fn enter_drop_state(&mut self, law: &ControlLaw, now: Instant) {
        let dropped = self.count - self.last_count;
        let soon = now.saturating_since(self.drop_next) < law.interval.saturating_mul(16);
        self.count = if dropped > 1 && soon { dropped } else { 1 };
        self.last_count = self.count;
        self.drop_next = law.next_drop(now, self.count);
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

    fn law() -> ControlLaw {
        ControlLaw { largest: 1_000, ..ControlLaw::new(TARGET, INTERVAL, false) }
    }

    fn codel(target: Duration, limit: Limit) -> CoDel {
        CoDel::new(CoDelConfig { limit, target, interval: INTERVAL, ecn: false })
    }

    /// How many packets are dropped before the one that is sent at `now`, both in milliseconds,
    /// when all of a long queue have waited for `wait`.
    fn drops(control: &mut Control, now: u64, wait: u64) -> usize {
        let mut fifo = Fifo::default();
        (0..50).for_each(|serial| fifo.push(queued(0, serial, 1_000, now - wait)));
        let mut dropped = 0;
        let sent =
            control.dequeue(&law(), Instant::from_millis(now), &mut fifo, &mut |_| dropped += 1);
        assert!(sent.is_some());
        dropped
    }

    /// The milliseconds at which a packet is dropped, with one sent each millisecond.
    fn moments(control: &mut Control, when: core::ops::Range<u64>, wait: u64) -> Vec<u64> {
        when.filter(|&now| drops(control, now, wait) > 0).collect()
    }

    /// 100 ms over the square roots of 1, 2, 3 and 4, rounded down.
    #[test]
    fn the_control_law_is_the_inverse_square_root() {
        let after = |count| law().next_drop(Instant::START, count).as_nanos();
        assert_eq!([1, 2, 3, 4].map(after), [100_000_000, 70_710_678, 57_735_026, 50_000_000]);
        let longest = ControlLaw { interval: Duration::from_nanos(u64::MAX), ..law() };
        assert_eq!(longest.next_drop(Instant::START, 1).as_nanos(), u64::MAX - 1);
    }

    /// Above the target from 10 ms on. The first drop is one interval later, the next ones follow
    /// by 100 / sqrt(n): at 210, 280.7, 338.4, 388.4, 433.2, 474.0 and 511.8 ms.
    #[test]
    fn drops_come_ever_faster_while_the_wait_is_above_the_target() {
        let mut control = Control::default();
        assert_eq!(moments(&mut control, 10..110, 5), []);
        assert_eq!(moments(&mut control, 110..513, 5), [110, 210, 281, 339, 389, 434, 474, 512]);
    }

    /// Marks come when drops would, but one a packet: those due at 210, 280.7, 338.4 and 388.4 ms fall
    /// to the four packets from 400 ms on.
    #[test]
    fn marks_follow_the_same_control_law() {
        let law = ControlLaw { ecn: true, ..law() };
        let mut control = Control::default();
        let mut marks = |now: u64| {
            let mut fifo = Fifo::default();
            for serial in 0..5 {
                let mut queued = queued(0, serial, 1_000, now - 10);
                queued.packet.ecn = Ecn::Ect0;
                fifo.push(queued);
            }
            let now = Instant::from_millis(now);
            let sent = control.dequeue(&law, now, &mut fifo, &mut |_| panic!("none is dropped"));
            let sent = sent.expect("some wait");
            assert_eq!(sent.packet.ecn == Ecn::Ce, sent.marked);
            sent.marked
        };
        let early: Vec<_> = (10..111).filter(|&now| marks(now)).collect();
        assert_eq!(early, [110]);
        let late: Vec<_> = (400..435).filter(|&now| marks(now)).collect();
        assert_eq!(late, [400, 401, 402, 403, 434]);
    }

    /// A packet whose transport does not react to marks is dropped.
    #[test]
    fn what_may_not_be_marked_is_dropped() {
        let law = ControlLaw { ecn: true, ..law() };
        let (mut control, mut dropped) = (Control::default(), 0);
        for millis in 10..111 {
            let mut fifo = Fifo::default();
            (0..5).for_each(|serial| fifo.push(queued(0, serial, 1_000, millis - 10)));
            let now = Instant::from_millis(millis);
            let sent = control.dequeue(&law, now, &mut fifo, &mut |_| dropped += 1);
            assert!(sent.is_some_and(|sent| !sent.marked));
        }
        assert_eq!(dropped, 1);
    }

    #[test]
    fn one_packet_below_the_target_starts_the_interval_again() {
        let mut control = Control::default();
        assert_eq!(moments(&mut control, 10..109, 10), []);
        assert_eq!(drops(&mut control, 109, 4), 0);
        assert_eq!(moments(&mut control, 110..211, 10), [210]);
    }

    /// The drops due at 210, 280.7, 338.4 and 388.4 ms all fall to the packet sent at 400 ms.
    #[test]
    fn drops_that_are_due_at_once_are_made_at_once() {
        let mut control = Control::default();
        assert_eq!(moments(&mut control, 10..111, 10), [110]);
        assert_eq!(drops(&mut control, 400, 10), 4);
        assert_eq!(moments(&mut control, 401..435, 10), [434]);
    }

    /// Drops at 110, 210, 281 and 339 ms; the state is left at 340 ms with the next one due at
    /// 388.4.
    fn after_four_drops() -> Control {
        let mut control = Control::default();
        assert_eq!(moments(&mut control, 10..340, 10), [110, 210, 281, 339]);
        assert_eq!(drops(&mut control, 340, 0), 0);
        control
    }

    /// Three of the four drops came after the first one: the count goes on from 3, so that the
    /// drops are 100 / sqrt(3) = 57.7 and 100 / sqrt(4) = 50 ms apart: at 498.7 and 548.7 ms.
    #[test]
    fn a_drop_state_that_begins_soon_takes_up_the_rate_of_the_last() {
        let mut control = after_four_drops();
        assert_eq!(moments(&mut control, 341..550, 10), [441, 499, 549]);
    }

    /// One drop more than the three it began with is no reason to go on: from 1 again, 100 ms
    /// apart.
    #[test]
    fn one_drop_is_not_a_rate_to_take_up() {
        let mut control = after_four_drops();
        assert_eq!(moments(&mut control, 341..500, 10), [441, 499]);
        assert_eq!(drops(&mut control, 500, 0), 0);
        assert_eq!(moments(&mut control, 501..702, 10), [601, 701]);
    }

    /// 16 intervals after 388.4 ms are over at 1,988.4 ms.
    #[test]
    fn a_rate_is_forgotten_after_sixteen_intervals() {
        assert_eq!(moments(&mut after_four_drops(), 1_888..2_047, 10), [1_988, 2_046]);
        assert_eq!(moments(&mut after_four_drops(), 1_889..2_090, 10), [1_989, 2_089]);
    }

    /// Packets of 1,000 bytes come and go each millisecond; so many are left after each departure.
    fn losses_with_standing_queue(packets: u64) -> usize {
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

    /// With one packet left the next one has waited for 1 ms, the target, but no more than the
    /// largest packet is in the queue. With two or four left, drops bring it down to one.
    #[test]
    fn less_than_one_large_packet_is_never_dropped_from() {
        assert_eq!(losses_with_standing_queue(1), 0);
        assert_eq!(losses_with_standing_queue(2), 1);
        assert_eq!(losses_with_standing_queue(4), 3);
    }

    #[test]
    fn the_limit_is_one_on_what_waits() {
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
    fn a_limit_in_time_is_refused() {
        let _ = codel(TARGET, Limit::Time(INTERVAL));
    }
}
