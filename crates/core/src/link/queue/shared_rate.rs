//! Shared rate: classes with queues of their own share the transmitter; each may have a reserved rate and a ceiling, and
//! has a weight.
//!
//! 1. A class goes first while it has sent less than its reserved rate; of several the one with the earliest
//!    deadline. If the reserved rates add up to no more than the rate of the link, no packet leaves later than one frame
//!    after its deadline (Zheng and Shin 1994), so a class that always has
//!    packets gets its reserved rate.
//! 2. What is left is borrowed by all classes with packets in deficit round robin (Shreedhar and Varghese 1996), in
//!    proportion to their weights. Frames are counted after they were chosen, as in RFC 8290, section 4.2.
//! 3. A class at its ceiling waits, even if the transmitter is idle.
//!
//! While the link cannot carry what is reserved, the clock of the reserved rates is stopped.
//!
//! What a class borrows does not count against its reserved rate, as in `tc-htb(8)`.

use super::{DropAtDequeue, Occupancy, PacketSize, QueuedPacket};
use crate::delays::DelayHistogram;
use crate::engine::Count;
use crate::packet::Packet;
use crate::time::{Duration, Instant};
use crate::trace::DropCause;
use crate::units::{BitRate, Bits, Carry};

/// What a weight of 1 lets a class borrow in each round: an Ethernet frame.
const QUANTUM: Bits = Bits(8 * 1_514);

/// The configuration of a class. Rates count bits on the link, framing included.
#[derive(Clone, Debug)]
pub struct SharingClass {
    /// The queue of its packets.
    pub queue: DropAtDequeue,
    /// What it can always send.
    pub reserved: Option<BitRate>,
    /// Its share of what no class has reserved and used, in proportion to the weights of the others.
    pub weight: u16,
    /// The most it can send.
    pub ceiling: Option<BitRate>,
}

/// What a class has sent and lost.
#[derive(Clone, Debug, Default)]
pub struct ClassUse {
    /// What it can always send.
    pub reserved_rate: Option<BitRate>,
    /// Packets sent, with their IP bytes.
    pub sent: Count,
    /// Packets dropped, with their IP bytes.
    pub dropped: Count,
    /// Bits on the link that it sent at its reserved rate.
    pub reserved: Bits,
    /// Bits on the link that it sent beyond that.
    pub borrowed: Bits,
    /// The delays of packets that waited.
    delays: DelayHistogram,
}

impl ClassUse {
    /// A percentile of the delays of the packets sent, from their arrival at the queue; `None` without packets.
    #[must_use]
    pub fn delay(&self, percent: u64) -> Option<Duration> {
        self.delays.percentile_with_zeros(percent, self.sent.packets - self.delays.count())
    }

    fn on_sent(&mut self, now: Instant, queued: &QueuedPacket, is_reserved: bool) {
        let bits = if is_reserved { &mut self.reserved } else { &mut self.borrowed };
        bits.0 += queued.frame.0;
        self.sent.add(queued.packet.bytes);
        let delay = now.saturating_since(queued.enqueued_at);
        if delay > Duration::ZERO {
            self.delays.add_without_extremes(delay);
        }
    }
}

/// See the module's description.
#[derive(Clone, Debug)]
pub struct SharedRate {
    classes: Vec<Class>,
    /// The class whose turn it is to borrow.
    turn: usize,
    waiting: Occupancy,
    /// The largest frame so far.
    largest: Bits,
    /// How long the clock of the reserved rates was stopped.
    stopped: Duration,
}

#[derive(Clone, Debug)]
struct Class {
    queue: DropAtDequeue,
    reserved: Option<Reserved>,
    ceiling: Option<Meter>,
    weight: u16,
    /// The bits that it may still borrow in this round, less those that it has borrowed too many.
    credit: i64,
    /// Whether it had packets when it was last asked for one: CoDel needs to know that its queue became empty.
    was_busy: bool,
    /// Its largest frame so far.
    largest: Bits,
    usage: ClassUse,
}

/// A rate, and when the next frame is due at it.
#[derive(Clone, Copy, Debug)]
struct Meter {
    rate: BitRate,
    due: Instant,
    carry: Carry,
}

impl Meter {
    fn new(rate: BitRate) -> Self {
        Self { rate, due: Instant::START, carry: Carry::default() }
    }

    fn time(&self, frame: Bits) -> Duration {
        self.rate.transmit_time(frame, Carry::default()).0
    }

    /// Gives up what was not used until `now`, but for the time `kept`.
    fn give_up(&mut self, now: Instant, kept: Duration) {
        let earliest = Instant::from_nanos(now.as_nanos().saturating_sub(kept.as_nanos()));
        if earliest > self.due {
            (self.due, self.carry) = (earliest, Carry::default());
        }
    }

    fn charge(&mut self, frame: Bits) {
        let (time, carry) = self.rate.transmit_time(frame, self.carry);
        (self.due, self.carry) = (self.due + time, carry);
    }
}

/// The reserved rate of a class.
#[derive(Clone, Copy, Debug)]
struct Reserved {
    meter: Meter,
    /// The time of the largest frame of the class so far.
    own: Duration,
    /// And of the largest frame of any class: at least as long as that on the link, if it carries what is reserved.
    any: Duration,
}

impl Reserved {
    fn new(rate: BitRate) -> Self {
        Self { meter: Meter::new(rate), own: Duration::ZERO, any: Duration::ZERO }
    }

    fn deadline(&self) -> Instant {
        self.meter.due + self.own
    }

    /// How late the next frame is at `now`, beyond what other classes can cause while the link carries what is reserved.
    fn is_late_by(&self, now: Instant) -> Duration {
        now.saturating_since(self.deadline()).saturating_sub(self.any)
    }
}

impl Class {
    fn new(SharingClass { queue, reserved, weight, ceiling }: SharingClass) -> Self {
        Self {
            queue,
            reserved: reserved.map(Reserved::new),
            ceiling: ceiling.map(Meter::new),
            weight,
            credit: 0,
            was_busy: false,
            largest: Bits(0),
            usage: ClassUse { reserved_rate: reserved, ..ClassUse::default() },
        }
    }

    /// Whether it has packets and is below its ceiling.
    fn may_send(&self, now: Instant) -> bool {
        !self.queue.is_empty() && self.ceiling.is_none_or(|ceiling| ceiling.due <= now)
    }

    fn quantum(&self) -> i64 {
        i64::from(self.weight) * QUANTUM.0.cast_signed()
    }
}

impl SharedRate {
    /// Empty queues for these classes, by number.
    ///
    /// # Panics
    /// If there is no class, or one has a weight or a rate of zero.
    #[must_use]
    pub fn new(classes: impl IntoIterator<Item = SharingClass>) -> Self {
        let classes: Vec<_> = classes.into_iter().map(Class::new).collect();
        assert!(!classes.is_empty(), "packets belong to a class");
        for class in &classes {
            assert!(class.weight > 0, "a class without a weight starves");
            let reserved = class.reserved.map(|reserved| reserved.meter);
            let mut meters = reserved.into_iter().chain(class.ceiling);
            assert!(meters.all(|meter| meter.rate.0 > 0), "a rate of zero is never due");
        }
        let (waiting, largest, stopped) = (Occupancy::default(), Bits(0), Duration::ZERO);
        Self { classes, turn: 0, waiting, largest, stopped }
    }

    /// See [`super::DropAtDequeue::enqueue`]. Higher classes than the last share its queue.
    pub fn enqueue(
        &mut self,
        now: Instant,
        queued: QueuedPacket,
        on_drop: &mut impl FnMut(DropCause, &Packet),
    ) {
        let clock = self.stop_clock(now);
        let last = self.classes.len() - 1;
        let number = last.min(queued.packet.class.0.into());
        self.note_size(number, queued.frame);
        let arriving = queued.size();
        let class = &mut self.classes[number];
        if class.queue.is_empty() {
            class.credit = class.credit.min(0);
            if let Some(reserved) = &mut class.reserved {
                reserved.meter.give_up(clock, Duration::ZERO);
            }
        }
        class.was_busy = true;
        self.on_class(number, Some(arriving), |class| {
            class.queue.enqueue(now, queued, on_drop);
            None
        });
    }

    /// See [`super::DropAtDequeue::dequeue`]. `None` also if all classes with packets are at their ceilings.
    pub fn dequeue(
        &mut self,
        now: Instant,
        on_drop: &mut impl FnMut(DropCause, &Packet),
    ) -> Option<QueuedPacket> {
        for class in &mut self.classes {
            if class.was_busy && class.queue.is_empty() {
                class.was_busy = false;
                let none = class.queue.dequeue(now, on_drop);
                debug_assert_eq!(none, None, "it is empty");
            }
        }
        let (number, is_reserved) = self.next_class(now)?;
        let largest = self.largest;
        self.on_class(number, None, |class| {
            let next = class.queue.dequeue(now, on_drop)?;
            class.usage.on_sent(now, &next, is_reserved);
            if let Some(ceiling) = &mut class.ceiling {
                ceiling.give_up(now, ceiling.time(largest).saturating_mul(2));
                ceiling.charge(next.frame);
            }
            match &mut class.reserved {
                Some(reserved) if is_reserved => reserved.meter.charge(next.frame),
                _ => class.credit -= next.frame.0.cast_signed(),
            }
            Some(next)
        })
    }

    /// When a class with packets is below its ceiling again, if all of them were at it. `None` if nothing waits.
    pub(super) fn ready_at(&self) -> Option<Instant> {
        let waiting = self.classes.iter().filter(|class| !class.queue.is_empty());
        waiting.filter_map(|class| Some(class.ceiling?.due)).min()
    }

    /// Notes the size of a frame of a class.
    fn note_size(&mut self, number: usize, frame: Bits) {
        if frame > self.largest {
            self.largest = frame;
            for reserved in self.classes.iter_mut().filter_map(|class| class.reserved.as_mut()) {
                reserved.any = reserved.meter.time(frame);
            }
        }
        let class = &mut self.classes[number];
        if frame > class.largest {
            class.largest = frame;
            if let Some(reserved) = &mut class.reserved {
                reserved.own = reserved.meter.time(frame);
            }
        }
    }

    /// The clock of the reserved rates. It is stopped while the link cannot carry them, so that classes get it in
    /// proportion to these rates, and are owed nothing later.
    fn stop_clock(&mut self, now: Instant) -> Instant {
        let clock = |stopped: Duration| {
            Instant::from_nanos(now.as_nanos().saturating_sub(stopped.as_nanos()))
        };
        let waiting = self.classes.iter().filter(|class| !class.queue.is_empty());
        let reserved = waiting.filter_map(|class| class.reserved);
        let late = reserved.map(|reserved| reserved.is_late_by(clock(self.stopped))).max();
        self.stopped += late.unwrap_or_default();
        clock(self.stopped)
    }

    /// The class that sends next, and whether it does so at its reserved rate.
    fn next_class(&mut self, now: Instant) -> Option<(usize, bool)> {
        let clock = self.stop_clock(now);
        let sending = self.classes.iter().enumerate().filter(|(_, class)| class.may_send(now));
        let reserving = sending.clone().filter_map(|(number, class)| {
            let reserved = class.reserved.filter(|reserved| reserved.meter.due <= clock)?;
            Some((reserved.deadline(), number))
        });
        if let Some((_, number)) = reserving.min() {
            return Some((number, true));
        }
        sending.clone().next()?;
        loop {
            let class = &mut self.classes[self.turn];
            if class.may_send(now) {
                if class.credit > 0 {
                    return Some((self.turn, false));
                }
                class.credit += class.quantum();
            }
            self.turn = (self.turn + 1) % self.classes.len();
        }
    }

    /// Changes the queue of a class by an arriving packet, or one that it returns. Counts what waits then, and what
    /// was dropped.
    fn on_class(
        &mut self,
        number: usize,
        arriving: Option<PacketSize>,
        change: impl FnOnce(&mut Class) -> Option<QueuedPacket>,
    ) -> Option<QueuedPacket> {
        let class = &mut self.classes[number];
        let before = class.queue.occupancy().backlog();
        let sent = change(class);
        let after = class.queue.occupancy().backlog();
        self.waiting.replace(before, after);
        let mut expected = *class.queue.occupancy();
        expected.replace(after, before);
        arriving.into_iter().for_each(|size| expected.on_enqueue(size));
        sent.iter().for_each(|queued| expected.on_dequeue(queued.size()));
        class.usage.dropped.packets += expected.packets - after.packets;
        class.usage.dropped.bytes += expected.bytes - after.bytes;
        sent
    }

    /// What each class has sent and lost.
    #[must_use]
    pub fn uses(&self) -> Vec<ClassUse> {
        self.classes.iter().map(|class| class.usage.clone()).collect()
    }

    /// Calls `visit` with each packet that waits, class by class.
    pub(super) fn for_each(&self, visit: &mut dyn FnMut(&Packet)) {
        self.classes.iter().for_each(|class| class.queue.for_each(visit));
    }

    pub(super) fn take_packets(&mut self) -> Vec<QueuedPacket> {
        self.classes.iter_mut().flat_map(|class| class.queue.take_packets()).collect()
    }

    /// Whether a packet of this size would not fit in the queue of some class.
    pub(super) fn is_full(&self, size: PacketSize) -> bool {
        self.classes.iter().any(|class| class.queue.is_full(size))
    }

    /// The packets that wait, in all classes together.
    #[must_use]
    pub fn occupancy(&self) -> &Occupancy {
        &self.waiting
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::queued;
    use super::super::{Limit, StrictPriority};
    use super::*;
    use crate::packet::Class as PacketClass;

    const RATE: BitRate = BitRate(4_000_000);
    /// With the 8 bytes of framing of `queued`.
    const FRAME: Bits = Bits(8 * 1_508);

    fn kbps(rate: u64) -> Option<BitRate> {
        Some(BitRate(rate * 1_000))
    }

    fn class(reserved: Option<BitRate>, weight: u16, ceiling: Option<BitRate>) -> SharingClass {
        let queue = DropAtDequeue::StrictPriority(StrictPriority::new(Limit::Packets(4), 1));
        SharingClass { queue, reserved, weight, ceiling }
    }

    /// A queue in front of a transmitter of 4 Mbit/s.
    struct Sending {
        queue: SharedRate,
        now: Instant,
        carry: Carry,
    }

    impl Sending {
        fn new(classes: impl IntoIterator<Item = SharingClass>) -> Self {
            Self { queue: SharedRate::new(classes), now: Instant::START, carry: Carry::default() }
        }

        fn offer(&mut self, number: u8, bytes: u32) {
            let mut packet = queued(0, 0, bytes, 0);
            (packet.packet.class, packet.enqueued_at) = (PacketClass(number), self.now);
            self.queue.enqueue(self.now, packet, &mut |_, _| {});
        }

        /// Sends the next packet, and waits until then.
        fn send(&mut self) -> QueuedPacket {
            let next = self.queue.dequeue(self.now, &mut |_, _| {}).or_else(|| {
                self.now = self.queue.ready_at().expect("a packet waits");
                self.queue.dequeue(self.now, &mut |_, _| {})
            });
            let next = next.expect("a class below its ceiling");
            let (time, carry) = RATE.transmit_time(next.frame, self.carry);
            (self.now, self.carry) = (self.now + time, carry);
            next
        }

        /// Sends for ten seconds, in which these classes always have packets of 1,500 bytes. Returns the rate of each class
        /// in kbit/s, reserved and borrowed.
        fn saturate(mut self, busy: &[u8]) -> Vec<[f64; 2]> {
            let end = Instant::from_millis(10_000);
            while self.now < end {
                for &number in busy {
                    self.offer(number, 1_500);
                }
                self.send();
            }
            let kbps = |bits: Bits| bits.0 as f64 / 10_000.0;
            self.queue
                .uses()
                .iter()
                .map(|class| [class.reserved, class.borrowed].map(kbps))
                .collect()
        }
    }

    /// Three frames in ten seconds, in kbit/s.
    const NEARLY: f64 = 3.0 * FRAME.0 as f64 / 10_000.0;

    fn assert_rates(measured: &[[f64; 2]], expected: &[[f64; 2]]) {
        for (measured, expected) in measured.iter().flatten().zip(expected.iter().flatten()) {
            assert!((measured - expected).abs() <= NEARLY, "{measured} for {expected}");
        }
    }

    /// Given 512 kbit/s reserved of 4 Mbit/s and saturated best effort with three times the weight, expect the class
    /// to get them, and a quarter of the other 3,488.
    #[test]
    fn a_reserved_rate_is_kept_and_the_rest_is_shared_by_weight() {
        let sending = Sending::new([class(kbps(512), 1, None), class(None, 3, None)]);
        assert_rates(&sending.saturate(&[0, 1]), &[[512.0, 872.0], [0.0, 2_616.0]]);
    }

    #[test]
    fn what_is_reserved_and_not_used_is_lent() {
        let sending = Sending::new([class(kbps(512), 1, None), class(None, 1, None)]);
        assert_rates(&sending.saturate(&[1]), &[[0.0, 0.0], [0.0, 4_000.0]]);
    }

    /// Given reserved rates that add up to the link's, expect each class to get its own to within three frames.
    #[test]
    fn reserved_rates_may_fill_the_link() {
        let rates = [100, 900, 3_000];
        let sending = Sending::new(rates.map(|rate| class(kbps(rate), 1, None)));
        let expected = rates.map(|rate| [rate as f64, 0.0]);
        assert_rates(&sending.saturate(&[0, 1, 2]), &expected);
    }

    /// Given ceilings of 1 Mbit/s in all, expect the transmitter to be idle for three quarters of the time.
    #[test]
    fn a_ceiling_holds_on_an_idle_link() {
        let sending = Sending::new([class(kbps(512), 1, kbps(800)), class(None, 1, kbps(200))]);
        assert_rates(&sending.saturate(&[0, 1]), &[[512.0, 288.0], [0.0, 200.0]]);
    }

    /// Given a call of 80 kbit/s in a class with that rate, beside saturated best effort, expect each of its packets to
    /// wait for at most one frame, 3.016 ms, and those of the others not.
    #[test]
    fn a_conforming_class_waits_for_one_frame() {
        let mut sending = Sending::new([class(kbps(84), 1, None), class(None, 100, None)]);
        let (mut next, mut waits) = (Instant::from_millis(1), Vec::new());
        while waits.len() < 500 {
            if sending.now >= next {
                let arrival = next;
                let mut packet = queued(0, 0, 200, 0);
                packet.enqueued_at = arrival;
                sending.queue.enqueue(arrival, packet, &mut |_, _| {});
                next += Duration::from_millis(20);
            }
            sending.offer(1, 1_500);
            let start = sending.now;
            let sent = sending.send();
            if sent.packet.bytes == 200 {
                waits.push(start.saturating_since(sent.enqueued_at));
            }
        }
        let frame = RATE.transmit_time(FRAME, Carry::default()).0;
        assert!(waits.iter().all(|wait| *wait <= frame), "{waits:?}");
        let call = &sending.queue.uses()[0];
        assert_eq!((call.sent.packets, call.borrowed), (500, Bits(0)));
        assert!(call.delay(99).is_some_and(|delay| delay <= frame));
    }

    /// Given a class that was idle for a second, expect it to send the frame that is due, and no more, at its rate.
    #[test]
    fn idle_classes_keep_nothing() {
        let mut sending = Sending::new([class(kbps(1_000), 1, None), class(None, 1_000, None)]);
        sending.now = Instant::from_millis(1_000);
        for _ in 0..4 {
            sending.offer(0, 1_500);
            sending.offer(1, 1_500);
        }
        (0..5).for_each(|_| drop(sending.send()));
        let [first, _] = &sending.queue.uses()[..] else { panic!("two classes") };
        // One at once, and one after the 12 ms of the first; four frames take 12 ms.
        assert_eq!(first.reserved, Bits(2 * FRAME.0));
    }

    /// Given eight classes that send one packet each at the same time every 100 ms, less than is reserved for them, expect a
    /// ninth one that always has packets to get what is reserved for it, half of the link.
    #[test]
    fn classes_that_wake_together_take_nothing_from_what_is_reserved() {
        let small = (0..8).map(|_| class(kbps(250), 1, None));
        let mut sending =
            Sending::new(small.chain([class(kbps(2_000), 1, None), class(None, 1_000, None)]));
        let (end, mut next) = (Instant::from_millis(10_000), Instant::START);
        while sending.now < end {
            if sending.now >= next {
                (0..8).for_each(|number| sending.offer(number, 1_500));
                next += Duration::from_millis(100);
            }
            sending.offer(8, 1_500);
            sending.offer(9, 1_500);
            sending.send();
        }
        let kbps = sending.queue.uses()[8].reserved.0 as f64 / 10_000.0;
        assert!((kbps - 2_000.0).abs() <= NEARLY, "{kbps}");
    }

    /// Given an outage of 10 s, and a class that begins to send within it, expect it to have its reserved rate right
    /// after the outage, and a class that has waited for all of it to be owed nothing.
    #[test]
    fn an_outage_leaves_no_claims() {
        let mut sending = Sending::new([
            class(kbps(1_000), 1, None),
            class(kbps(1_000), 1, None),
            class(Some(BitRate(1_000)), 1, None),
            class(None, 1_000, None),
        ]);
        (0..4).for_each(|_| [0, 3].into_iter().for_each(|number| sending.offer(number, 1_500)));
        sending.now = Instant::from_millis(9_000);
        (0..4).for_each(|_| sending.offer(1, 1_500));
        let start = Instant::from_millis(10_000);
        sending.now = start;
        let end = start + Duration::from_millis(1_000);
        while sending.now < end {
            [0, 1, 3].into_iter().for_each(|number| sending.offer(number, 1_500));
            sending.send();
        }
        for class in &sending.queue.uses()[..2] {
            let kbps = class.reserved.0 as f64 / 1_000.0;
            assert!((kbps - 1_000.0).abs() <= 10.0 * NEARLY, "{kbps}");
        }
    }

    /// Given a full queue of one class, expect the other one to have its own limit, and drops to be counted by class.
    #[test]
    fn the_limit_is_that_of_each_class() {
        let mut sending = Sending::new([class(None, 1, None), class(None, 1, None)]);
        (0..6).for_each(|_| sending.offer(0, 1_500));
        sending.offer(9, 1_500);
        assert_eq!(sending.queue.uses().iter().map(|class| class.dropped.packets).sum::<u64>(), 2);
        assert_eq!(sending.queue.uses()[0].dropped, Count { packets: 2, bytes: 3_000 });
        assert_eq!(sending.queue.occupancy().packets, 5);
        assert_eq!(sending.queue.take_packets().len(), 5);
    }
}
