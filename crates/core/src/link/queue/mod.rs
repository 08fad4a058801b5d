//! Queues in front of a transmitter, one file a discipline.
//!
//! There are two kinds. A [`DropAtEnqueue`] discipline is first in, first out, and decides when a packet
//! arrives; its packets' whole way is then known, so a direction needs no event when a transmission
//! ends. A [`DropAtDequeue`] discipline decides which packet leaves, and whether it does, when the
//! transmitter becomes free.

mod codel;
mod drop_tail;
mod early_packet_discard;
mod flow_table;
mod fq_codel;
mod limit;
mod per_flow;
mod red;
mod selective_drop;
mod strict_priority;
#[cfg(test)]
pub(super) mod testing;

use crate::packet::{Ecn, FlowId, Packet};
use crate::profile::Profile;
use crate::time::{Duration, Instant};
use crate::trace::DropCause;
use crate::units::{BitRate, Bits};
pub use codel::{CoDel, CoDelConfig};
pub use drop_tail::DropTail;
pub use early_packet_discard::EarlyPacketDiscard;
pub use fq_codel::{FqCoDel, FqCoDelConfig};
pub use limit::{Limit, Ratio, Unit};
pub use per_flow::PerFlow;
pub use red::{Red, RedConfig};
pub use selective_drop::SelectiveDrop;
pub use strict_priority::StrictPriority;

/// A packet as a queue counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketSize {
    /// Whose it is.
    pub flow: FlowId,
    /// Its IP bytes.
    pub bytes: u32,
    /// Its bytes on the link, framing included, rounded up.
    pub link_bytes: u32,
}

/// What waits, packet by packet, in order.
pub(super) trait WaitingPackets {
    /// Those after the `first` ones.
    fn after(&self, first: u64) -> impl Iterator<Item = PacketSize>;
}

/// A packet in a [`DropAtDequeue`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuedPacket {
    /// The packet.
    pub packet: Box<Packet>,
    /// Its size on the link.
    pub frame: Bits,
    /// When it was pushed.
    pub enqueued_at: Instant,
    /// Whether this queue marked it (RFC 3168).
    pub marked: bool,
}

/// What a queue does with a packet that arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Lets it in.
    Enqueue,
    /// Lets it in and marks it (RFC 3168).
    Mark,
    /// Drops it.
    Drop(DropCause),
}

impl From<Result<(), DropCause>> for Verdict {
    fn from(room: Result<(), DropCause>) -> Self {
        room.map_or_else(Self::Drop, |()| Self::Enqueue)
    }
}

impl QueuedPacket {
    /// Marks the packet if its transport reacts to marks. Whether it does.
    pub(super) fn mark(&mut self) -> bool {
        let capable = self.packet.ecn.is_capable();
        if capable {
            self.packet.ecn = Ecn::Ce;
            self.marked = true;
        }
        capable
    }

    /// The packet as a queue counts it.
    #[must_use]
    pub fn size(&self) -> PacketSize {
        let link_bytes = u32::try_from(self.frame.bytes_rounded_up().0).unwrap_or(u32::MAX);
        PacketSize { flow: self.packet.flow, bytes: self.packet.bytes, link_bytes }
    }
}

/// Packets and their sizes, added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Backlog {
    pub(super) packets: u64,
    /// IP bytes.
    pub(super) bytes: u64,
    /// Bytes on the link.
    pub(super) link_bytes: u64,
}

/// Who finds room in a queue that need not be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Headroom {
    /// The largest backlog, the packet included.
    pub(super) max: Backlog,
    /// The longest wait.
    pub(super) wait_max: Duration,
}

impl Headroom {
    /// Headroom for any number of packets of so many bytes in all.
    const fn of_bytes(bytes: u64) -> Self {
        let max = Backlog { packets: u64::MAX, bytes, link_bytes: u64::MAX };
        Self { max, wait_max: Duration::from_nanos(u64::MAX) }
    }

    /// No more than so much.
    fn within(self, unit: Unit, limit: u64) -> Self {
        let Backlog { packets, bytes, link_bytes } = self.max;
        let max = match unit {
            Unit::Packets => Backlog { packets: packets.min(limit), ..self.max },
            Unit::Bytes => Backlog { bytes: bytes.min(limit), ..self.max },
            Unit::LinkBytes => Backlog { link_bytes: link_bytes.min(limit), ..self.max },
        };
        Self { max, ..self }
    }

    /// How many packets of a size fit beside what waits.
    pub(super) fn packets_that_fit(self, waiting: Backlog, bytes: u32, link_bytes: u32) -> u64 {
        let rest =
            |max: u64, now: u64, each: u64| max.checked_sub(now).filter(|rest| *rest >= each);
        let (bytes, link_bytes) = (u64::from(bytes), u64::from(link_bytes));
        let max = self.max;
        let Some(packets) = rest(max.packets, waiting.packets, 1) else { return 0 };
        let Some(by_bytes) = rest(max.bytes, waiting.bytes, bytes) else { return 0 };
        let Some(by_link_bytes) = rest(max.link_bytes, waiting.link_bytes, link_bytes) else {
            return 0;
        };
        let more = packets.min(by_bytes.checked_div(bytes).unwrap_or(u64::MAX));
        if max.link_bytes == u64::MAX {
            // It is seldom what counts, and a division of so large a number is slow.
            return more;
        }
        more.min(by_link_bytes.checked_div(link_bytes).unwrap_or(u64::MAX))
    }
}

/// What waits, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Occupancy {
    /// Packets that wait.
    pub packets: u64,
    /// The most IP bytes that ever waited.
    pub bytes_max: u64,
    /// Their IP bytes.
    pub bytes: u64,
    /// Their bytes on the link.
    pub link_bytes: u64,
}

impl Occupancy {
    pub(super) fn backlog(&self) -> Backlog {
        Backlog { packets: self.packets, bytes: self.bytes, link_bytes: self.link_bytes }
    }

    /// What waits is this, which is no more than ever did.
    fn set_backlog(&mut self, waiting: Backlog) {
        Backlog { packets: self.packets, bytes: self.bytes, link_bytes: self.link_bytes } = waiting;
    }

    /// Counts a packet that starts to wait.
    pub fn on_enqueue(&mut self, size: PacketSize) {
        self.packets += 1;
        self.bytes += u64::from(size.bytes);
        self.link_bytes += u64::from(size.link_bytes);
        self.bytes_max = self.bytes_max.max(self.bytes);
    }

    /// Counts a packet that no longer waits.
    pub fn on_dequeue(&mut self, size: PacketSize) {
        self.packets -= 1;
        self.bytes -= u64::from(size.bytes);
        self.link_bytes -= u64::from(size.link_bytes);
    }
}

/// A first-in first-out queue that decides at arrival.
///
/// Its kind has a byte of its own, since it is asked for several times a packet: it would be worked
/// out from a field of the largest otherwise.
#[derive(Clone, Debug)]
#[repr(u8)]
pub enum DropAtEnqueue {
    /// See [`DropTail`].
    DropTail(DropTail),
    /// See [`Red`].
    Red(Red),
    /// See [`PerFlow`].
    PerFlow(PerFlow),
    /// See [`EarlyPacketDiscard`].
    EarlyPacketDiscard(EarlyPacketDiscard),
    /// See [`SelectiveDrop`].
    SelectiveDrop(SelectiveDrop),
}

impl DropAtEnqueue {
    /// What becomes of a packet whose first bit would be sent at `start`. One that waits for nobody
    /// needs no room, and is not counted; any other that is let in starts to wait. `ecn` tells whether
    /// it may be marked. Call once a packet, in order of time, after everything that started until
    /// `now` has left.
    pub(super) fn admit(
        &mut self,
        now: Instant,
        size: PacketSize,
        ecn: Ecn,
        start: Instant,
        waiting: &impl WaitingPackets,
    ) -> Verdict {
        let wait = start.saturating_since(now);
        let verdict = match self {
            // A packet that starts at once finds nobody waiting: only an average can be against it.
            Self::DropTail(_) | Self::SelectiveDrop(_) if start <= now => Verdict::Enqueue,
            Self::DropTail(queue) => queue.admit(size, wait).into(),
            Self::SelectiveDrop(queue) => queue.admit(size, waiting).into(),
            Self::Red(queue) => queue.admit(now, size, ecn, wait),
            Self::PerFlow(queue) => queue.admit(size, wait).into(),
            Self::EarlyPacketDiscard(queue) => queue.admit(size, wait).into(),
        };
        if start > now && !matches!(verdict, Verdict::Drop(_)) {
            match self {
                Self::DropTail(queue) => queue.on_enqueue(size),
                Self::SelectiveDrop(queue) => queue.on_enqueue(size),
                Self::Red(queue) => queue.on_enqueue(size),
                Self::PerFlow(queue) => queue.on_enqueue(size),
                Self::EarlyPacketDiscard(queue) => queue.on_enqueue(size),
            }
        }
        verdict
    }

    /// Who is let in unasked, although some that started may not have left yet: these leave many at a
    /// time, when one of them matters. A packet that waits for nobody is too, and joins those that
    /// leave. `None` if it has to be asked about each packet.
    ///
    /// No more waits then than ever did, so that the most that ever did is known.
    pub(super) fn headroom(&self) -> Option<Headroom> {
        match self {
            Self::DropTail(queue) => Some(queue.headroom()),
            Self::SelectiveDrop(queue) => Some(queue.headroom()),
            Self::Red(_) | Self::PerFlow(_) | Self::EarlyPacketDiscard(_) => None,
        }
    }

    /// Whether it has to hear of the next packet that starts before what waits is counted again.
    pub(super) fn needs_dequeue_events(&self) -> bool {
        match self {
            Self::DropTail(_) => false,
            Self::SelectiveDrop(queue) => queue.needs_dequeue_events(),
            Self::Red(_) | Self::PerFlow(_) | Self::EarlyPacketDiscard(_) => true,
        }
    }

    /// The first bits of packets are sent, each at its instant. Takes those of them, from the first on,
    /// that it has to hear of. Call in their order.
    pub(super) fn on_dequeue(&mut self, started: impl Iterator<Item = (Instant, PacketSize)>) {
        match self {
            Self::DropTail(_) => {}
            Self::SelectiveDrop(queue) => queue.on_dequeue(started.map(|(_, size)| size)),
            Self::Red(queue) => started.for_each(|(at, size)| queue.on_dequeue(at, size)),
            Self::PerFlow(queue) => started.for_each(|(_, size)| queue.on_dequeue(size)),
            Self::EarlyPacketDiscard(queue) => started.for_each(|(_, size)| queue.on_dequeue(size)),
        }
    }

    /// From `now` on the transmitter has this rate.
    pub(super) fn set_rate(&mut self, now: Instant, rate: &Profile<BitRate>) {
        if let Self::Red(queue) = self {
            queue.set_rate(now, rate.clone());
        }
    }

    /// So much waits now. Those that hear of all packets have counted it themselves.
    pub(super) fn set_backlog(&mut self, waiting: Backlog) {
        match self {
            Self::DropTail(queue) => queue.set_backlog(waiting),
            Self::SelectiveDrop(queue) => queue.set_backlog(waiting),
            Self::Red(_) | Self::PerFlow(_) | Self::EarlyPacketDiscard(_) => {
                debug_assert_eq!(self.occupancy().backlog(), waiting, "one by one, and by runs");
            }
        }
    }

    /// What waits.
    #[must_use]
    pub fn occupancy(&self) -> &Occupancy {
        match self {
            Self::DropTail(queue) => queue.occupancy(),
            Self::Red(queue) => queue.occupancy(),
            Self::PerFlow(queue) => queue.occupancy(),
            Self::EarlyPacketDiscard(queue) => queue.occupancy(),
            Self::SelectiveDrop(queue) => queue.occupancy(),
        }
    }
}

/// A discipline that decides when the transmitter becomes free.
///
/// It keeps count of what waits. A packet that it drops is handed to `lost` with the cause, and
/// waits no more by then.
#[derive(Clone, Debug)]
pub enum DropAtDequeue {
    /// See [`CoDel`].
    CoDel(CoDel),
    /// See [`FqCoDel`].
    FqCoDel(FqCoDel),
    /// See [`StrictPriority`].
    StrictPriority(StrictPriority),
}

impl DropAtDequeue {
    /// Takes in a packet that arrives. What has no room is lost: the packet itself, or, where
    /// queues share the room, packets of the longest queue, the packet itself perhaps among them.
    pub fn enqueue(
        &mut self,
        now: Instant,
        queued: QueuedPacket,
        on_drop: &mut impl FnMut(DropCause, &Packet),
    ) {
        debug_assert_eq!(queued.enqueued_at, now, "a packet enters when it is pushed");
        match self {
            Self::CoDel(queue) => queue.enqueue(queued, on_drop),
            Self::FqCoDel(queue) => queue.enqueue(queued, on_drop),
            Self::StrictPriority(queue) => queue.enqueue(queued, on_drop),
        }
    }

    /// The packet to send, if any waits. Call it whenever the transmitter is free, also when
    /// nothing waits: that a queue ran empty is something that `CoDel` has to know.
    pub fn dequeue(
        &mut self,
        now: Instant,
        on_drop: &mut impl FnMut(DropCause, &Packet),
    ) -> Option<QueuedPacket> {
        match self {
            Self::CoDel(queue) => queue.dequeue(now, on_drop),
            Self::FqCoDel(queue) => queue.dequeue(now, on_drop),
            Self::StrictPriority(queue) => queue.dequeue(),
        }
    }

    /// What waits.
    #[must_use]
    pub fn occupancy(&self) -> &Occupancy {
        match self {
            Self::CoDel(queue) => queue.occupancy(),
            Self::FqCoDel(queue) => queue.occupancy(),
            Self::StrictPriority(queue) => queue.occupancy(),
        }
    }

    /// CallCounter `see` with each packet that waits.
    pub(in crate::link) fn for_each(&self, see: &mut dyn FnMut(&Packet)) {
        match self {
            Self::CoDel(queue) => queue.packets().for_each(see),
            Self::FqCoDel(queue) => queue.packets().for_each(see),
            Self::StrictPriority(queue) => queue.packets().for_each(see),
        }
    }

    /// Whether nothing waits. If something does, [`DropAtDequeue::pop`] gives a packet: no discipline drops
    /// the last one there.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.occupancy().packets == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;
    use crate::time::Duration;
    use std::collections::VecDeque;

    /// A queue whose packets each take a millisecond to send, with what it counts and when that starts.
    struct TestQueue {
        tail: DropAtEnqueue,
        counted: VecDeque<(Instant, PacketSize)>,
        free_at: Instant,
    }

    impl WaitingPackets for VecDeque<(Instant, PacketSize)> {
        fn after(&self, first: u64) -> impl Iterator<Item = PacketSize> {
            self.range(first as usize..).map(|&(_, size)| size)
        }
    }

    impl TestQueue {
        fn on_dequeue(&mut self, now: Instant) {
            let started = self.counted.partition_point(|&(start, _)| start <= now);
            self.tail.on_dequeue(self.counted.range(..started).copied());
            self.counted.drain(..started);
            self.tail.set_backlog(testing::backlog(self.counted.iter().map(|&(_, size)| size)));
        }

        fn has_room(&self, size: PacketSize, wait: Duration) -> bool {
            let Headroom { max, wait_max } = self.tail.headroom().expect("it gives room");
            let with = self.counted.iter().map(|&(_, size)| size).chain([size]);
            let Backlog { packets, bytes, link_bytes } = testing::backlog(with);
            let fits = packets <= max.packets && bytes <= max.bytes;
            wait == Duration::ZERO || (fits && link_bytes <= max.link_bytes && wait <= wait_max)
        }

        fn offer(&mut self, now: Instant, size: PacketSize, lazily: bool) -> Offer {
            let start = self.free_at.max(now);
            let unasked = lazily && self.has_room(size, start.saturating_since(now));
            let with_shares = unasked && self.tail.needs_dequeue_events();
            let mut decision = Verdict::Enqueue;
            if !unasked {
                self.on_dequeue(now);
                decision = self.tail.admit(now, size, Ecn::NotEct, start, &self.counted);
            }
            if decision == Verdict::Enqueue {
                if unasked || start > now {
                    self.counted.push_back((start, size));
                }
                self.free_at = start + Duration::from_millis(1);
            }
            Offer { decision, with_shares }
        }
    }

    struct Offer {
        decision: Verdict,
        /// Whether it was let in unasked while the queue had to hear of each packet that starts.
        with_shares: bool,
    }

    /// Given bursts of packets, some of which wait, expect the same fate for each, and the same count at
    /// the end, whether packets leave as they start or not before that matters.
    #[test]
    fn deferred_dequeue_events_change_no_decision() {
        let ratio = |value| Ratio::new(value).expect("in range");
        let share =
            |limit| DropAtEnqueue::SelectiveDrop(SelectiveDrop::new(limit, ratio(0.5), ratio(0.8)));
        let tails = [Limit::Bytes(20_000), Limit::LinkBytes(30_000), Limit::Packets(20)]
            .into_iter()
            .flat_map(|limit| [DropAtEnqueue::DropTail(DropTail::new(limit)), share(limit)]);
        let by_time =
            DropAtEnqueue::DropTail(DropTail::new(Limit::Time(Duration::from_millis(20))));
        for tail in tails.chain([by_time]) {
            let mut rng = Rng::stream(1, "tail");
            let mut lines = [false, true].map(|lazily| {
                let line = TestQueue {
                    tail: tail.clone(),
                    counted: VecDeque::new(),
                    free_at: Instant::START,
                };
                (lazily, line)
            });
            let (mut now, mut dropped, mut with_shares) = (Instant::START, 0, 0);
            for _ in 0..20_000 {
                if rng.below(8) == 0 {
                    now += Duration::from_millis(rng.below(16));
                }
                let bytes = 40 + 10 * rng.below(146) as u32;
                let flow = FlowId(rng.below(4) as u32);
                let size = PacketSize { flow, bytes, link_bytes: bytes + 8 };
                let [eager, late] =
                    lines.each_mut().map(|(lazily, line)| line.offer(now, size, *lazily));
                assert_eq!(eager.decision, late.decision, "{tail:?} at {now}");
                dropped += u32::from(eager.decision != Verdict::Enqueue);
                with_shares += u32::from(late.with_shares);
            }
            let [eager, late] = lines.each_mut().map(|(_, line)| {
                line.on_dequeue(now);
                *line.tail.occupancy()
            });
            assert_eq!(eager, late);
            assert!((100..15_000).contains(&dropped), "{tail:?} drops {dropped}");
            let shares = matches!(tail, DropAtEnqueue::SelectiveDrop(_));
            assert_eq!(with_shares > 100, shares, "{tail:?}: {with_shares} while shares were held");
        }
    }
}
