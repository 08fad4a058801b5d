//! Queues in front of a transmitter, one file per discipline.
//!
//! There are two kinds. A [`DropAtEnqueue`] discipline is a FIFO that drops packets only when they arrive.
//! All times of an accepted packet are then known, so a direction needs no event when a transmission ends.
//! A [`DropAtDequeue`] discipline chooses the next packet, and may drop packets, when the transmitter
//! becomes free.

mod codel;
mod drop_tail;
mod early_packet_discard;
mod flow_table;
mod fq_codel;
mod limit;
mod per_flow;
mod red;
mod selective_drop;
mod shared_rate;
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
pub use shared_rate::{ClassUse, SharedRate, SharingClass};
pub use strict_priority::StrictPriority;

/// The size of a packet, as queues count it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketSize {
    /// The flow of the packet.
    pub flow: FlowId,
    /// IP bytes.
    pub bytes: u32,
    /// Bytes on the link, framing included, rounded up.
    pub link_bytes: u32,
}

/// The packets that wait, in order.
pub(super) trait WaitingPackets {
    /// The packets after the `first` ones.
    fn after(&self, first: u64) -> impl Iterator<Item = PacketSize>;
}

/// A packet in a [`DropAtDequeue`] discipline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuedPacket {
    /// The packet.
    pub packet: Box<Packet>,
    /// The size on the link.
    pub frame: Bits,
    /// When it was enqueued.
    pub enqueued_at: Instant,
    /// Whether this queue marked it (RFC 3168).
    pub marked: bool,
}

/// What a queue does with an arriving packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Accepts it.
    Enqueue,
    /// Accepts it and marks it (RFC 3168).
    Mark,
    /// Drops it.
    Drop(DropCause),
}

impl From<Result<(), DropCause>> for Verdict {
    fn from(result: Result<(), DropCause>) -> Self {
        result.map_or_else(Self::Drop, |()| Self::Enqueue)
    }
}

impl QueuedPacket {
    /// Marks the packet if its transport is ECN-capable. Returns whether it is.
    pub(super) fn mark(&mut self) -> bool {
        let capable = self.packet.ecn.is_capable();
        if capable {
            self.packet.ecn = Ecn::Ce;
            self.marked = true;
        }
        capable
    }

    /// The size of the packet.
    #[must_use]
    pub fn size(&self) -> PacketSize {
        let link_bytes = u32::try_from(self.frame.bytes_rounded_up().0).unwrap_or(u32::MAX);
        PacketSize { flow: self.packet.flow, bytes: self.packet.bytes, link_bytes }
    }
}

/// The number and total size of packets that wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Backlog {
    pub(super) packets: u64,
    /// IP bytes.
    pub(super) bytes: u64,
    /// Bytes on the link.
    pub(super) link_bytes: u64,
}

/// The room for packets that are accepted without a call of [`DropAtEnqueue::admit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Headroom {
    /// The largest backlog, the packet included.
    pub(super) max: Backlog,
    /// The longest wait.
    pub(super) wait_max: Duration,
}

impl Headroom {
    /// Room for any number of packets with this many bytes in total.
    const fn of_bytes(bytes: u64) -> Self {
        let max = Backlog { packets: u64::MAX, bytes, link_bytes: u64::MAX };
        Self { max, wait_max: Duration::from_nanos(u64::MAX) }
    }

    /// Reduces the headroom to a limit in a unit.
    fn within(self, unit: Unit, limit: u64) -> Self {
        let Backlog { packets, bytes, link_bytes } = self.max;
        let max = match unit {
            Unit::Packets => Backlog { packets: packets.min(limit), ..self.max },
            Unit::Bytes => Backlog { bytes: bytes.min(limit), ..self.max },
            Unit::LinkBytes => Backlog { link_bytes: link_bytes.min(limit), ..self.max },
        };
        Self { max, ..self }
    }

    /// The number of packets of one size that fit.
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
            // This rarely matters, and the division of so large a number is slow.
            return more;
        }
        more.min(by_link_bytes.checked_div(link_bytes).unwrap_or(u64::MAX))
    }
}

/// The packets that wait, and the largest backlog so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Occupancy {
    /// Packets.
    pub packets: u64,
    /// The largest backlog so far, in IP bytes.
    pub bytes_max: u64,
    /// IP bytes.
    pub bytes: u64,
    /// Bytes on the link.
    pub link_bytes: u64,
}

impl Occupancy {
    pub(super) fn backlog(&self) -> Backlog {
        Backlog { packets: self.packets, bytes: self.bytes, link_bytes: self.link_bytes }
    }

    /// Sets the current backlog, which is no larger than `bytes_max`.
    fn set_backlog(&mut self, waiting: Backlog) {
        Backlog { packets: self.packets, bytes: self.bytes, link_bytes: self.link_bytes } = waiting;
    }

    /// Counts a change of one of the queues that this one consists of.
    fn replace(&mut self, before: Backlog, after: Backlog) {
        self.packets = self.packets - before.packets + after.packets;
        self.bytes = self.bytes - before.bytes + after.bytes;
        self.link_bytes = self.link_bytes - before.link_bytes + after.link_bytes;
        self.bytes_max = self.bytes_max.max(self.bytes);
    }

    /// Counts a packet that begins to wait.
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

/// A FIFO that drops packets only at enqueue.
///
/// `repr(u8)` gives the kind a byte of its own, as it is read several times per packet; otherwise
/// it would be derived from a field of the largest variant.
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
    /// Accepts, marks or drops a packet whose transmission would start at `start`. A packet that starts
    /// at once needs no room and is not counted; any other accepted packet begins to wait. `ecn` tells
    /// whether the packet may be marked. Call once per packet, in order of time, after the dequeue events
    /// until `now`.
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
            // A packet that starts at once finds an empty queue: only RED, by its average, can drop it.
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

    /// The packets that need no call of [`Self::admit`], even before the dequeue events of earlier packets:
    /// those are reported in batches, when one of them matters. A packet that starts at once needs none,
    /// either. `None` if every packet needs one.
    ///
    /// The headroom never exceeds the largest backlog so far, so that this needs no update.
    pub(super) fn headroom(&self) -> Option<Headroom> {
        match self {
            Self::DropTail(queue) => Some(queue.headroom()),
            Self::SelectiveDrop(queue) => Some(queue.headroom()),
            Self::Red(_) | Self::PerFlow(_) | Self::EarlyPacketDiscard(_) => None,
        }
    }

    /// Whether the queue needs the event of the next dequeue before its backlog is set again.
    pub(super) fn needs_dequeue_events(&self) -> bool {
        match self {
            Self::DropTail(_) => false,
            Self::SelectiveDrop(queue) => queue.needs_dequeue_events(),
            Self::Red(_) | Self::PerFlow(_) | Self::EarlyPacketDiscard(_) => true,
        }
    }

    /// Reports transmissions that start, each at its instant and in order. Consumes, from the first on,
    /// those that the queue needs.
    pub(super) fn on_dequeue(&mut self, started: impl Iterator<Item = (Instant, PacketSize)>) {
        match self {
            Self::DropTail(_) => {}
            Self::SelectiveDrop(queue) => queue.on_dequeue(started.map(|(_, size)| size)),
            Self::Red(queue) => started.for_each(|(at, size)| queue.on_dequeue(at, size)),
            Self::PerFlow(queue) => started.for_each(|(_, size)| queue.on_dequeue(size)),
            Self::EarlyPacketDiscard(queue) => started.for_each(|(_, size)| queue.on_dequeue(size)),
        }
    }

    /// Sets the rate of the transmitter from `now` on.
    pub(super) fn set_rate(&mut self, now: Instant, rate: &Profile<BitRate>) {
        if let Self::Red(queue) = self {
            queue.set_rate(now, rate.clone());
        }
    }

    /// Sets the current backlog. Queues that need all dequeue events have counted it themselves.
    pub(super) fn set_backlog(&mut self, waiting: Backlog) {
        match self {
            Self::DropTail(queue) => queue.set_backlog(waiting),
            Self::SelectiveDrop(queue) => queue.set_backlog(waiting),
            Self::Red(_) | Self::PerFlow(_) | Self::EarlyPacketDiscard(_) => {
                debug_assert_eq!(self.occupancy().backlog(), waiting, "the counted backlog");
            }
        }
    }

    /// The limit of the whole queue.
    pub(super) fn limit(&self) -> Limit {
        match self {
            Self::DropTail(queue) => queue.limit(),
            Self::Red(queue) => queue.limit(),
            Self::PerFlow(queue) => queue.limit(),
            Self::EarlyPacketDiscard(queue) => queue.limit(),
            Self::SelectiveDrop(queue) => queue.limit(),
        }
    }

    /// The packets that wait.
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

/// A discipline that chooses the next packet when the transmitter becomes free.
///
/// It counts the packets that wait. It passes a packet that it drops to `on_drop` with the cause, after
/// it stopped counting it.
#[derive(Clone, Debug)]
pub enum DropAtDequeue {
    /// See [`CoDel`].
    CoDel(CoDel),
    /// See [`FqCoDel`].
    FqCoDel(FqCoDel),
    /// See [`StrictPriority`].
    StrictPriority(StrictPriority),
    /// See [`SharedRate`].
    SharedRate(SharedRate),
}

impl DropAtDequeue {
    /// Adds an arriving packet. If there is no room, it drops the packet or, if queues share the room,
    /// packets of the longest queue, possibly including this one.
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
            Self::SharedRate(queue) => queue.enqueue(now, queued, on_drop),
        }
    }

    /// The next packet to send, if any waits and may be sent now. Call it whenever the transmitter is free, even if nothing
    /// waits: `CoDel` needs to know that the queue became empty.
    pub fn dequeue(
        &mut self,
        now: Instant,
        on_drop: &mut impl FnMut(DropCause, &Packet),
    ) -> Option<QueuedPacket> {
        match self {
            Self::CoDel(queue) => queue.dequeue(now, on_drop),
            Self::FqCoDel(queue) => queue.dequeue(now, on_drop),
            Self::StrictPriority(queue) => queue.dequeue(),
            Self::SharedRate(queue) => queue.dequeue(now, on_drop),
        }
    }

    /// The packets that wait.
    #[must_use]
    pub fn occupancy(&self) -> &Occupancy {
        match self {
            Self::CoDel(queue) => queue.occupancy(),
            Self::FqCoDel(queue) => queue.occupancy(),
            Self::StrictPriority(queue) => queue.occupancy(),
            Self::SharedRate(queue) => queue.occupancy(),
        }
    }

    /// Whether a packet of this size would not fit.
    pub(super) fn is_full(&self, size: PacketSize) -> bool {
        match self {
            Self::CoDel(queue) => queue.is_full(size),
            Self::FqCoDel(queue) => queue.is_full(size),
            Self::StrictPriority(queue) => queue.is_full(size),
            Self::SharedRate(queue) => queue.is_full(size),
        }
    }

    /// Calls `visit` with each packet that waits.
    pub(in crate::link) fn for_each(&self, visit: &mut dyn FnMut(&Packet)) {
        match self {
            Self::CoDel(queue) => queue.packets().for_each(visit),
            Self::FqCoDel(queue) => queue.packets().for_each(visit),
            Self::StrictPriority(queue) => queue.packets().for_each(visit),
            Self::SharedRate(queue) => queue.for_each(visit),
        }
    }

    /// Removes all packets, in no particular order; only the occupancy remains to be read.
    pub(in crate::link) fn take_packets(&mut self) -> Vec<QueuedPacket> {
        match self {
            Self::CoDel(queue) => queue.take_packets(),
            Self::FqCoDel(queue) => queue.take_packets(),
            Self::StrictPriority(queue) => queue.take_packets(),
            Self::SharedRate(queue) => queue.take_packets(),
        }
    }

    /// Without a packet from [`DropAtDequeue::dequeue`]: when one that waits may be sent. `None` if nothing waits.
    pub(in crate::link) fn ready_at(&self) -> Option<Instant> {
        match self {
            Self::CoDel(_) | Self::FqCoDel(_) | Self::StrictPriority(_) => None,
            Self::SharedRate(queue) => queue.ready_at(),
        }
    }

    /// What each class has sent and lost; none without a shared rate.
    pub(in crate::link) fn class_uses(&self) -> Vec<ClassUse> {
        match self {
            Self::SharedRate(queue) => queue.uses(),
            Self::CoDel(_) | Self::FqCoDel(_) | Self::StrictPriority(_) => Vec::new(),
        }
    }

    /// Whether nothing waits. If not, [`DropAtDequeue::dequeue`] returns a packet, now or when it is
    /// [ready](Self::ready_at): no discipline drops the last one there.
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

    /// A queue whose packets each take a millisecond to send, and the packets in it with their starts.
    struct TestQueue {
        discipline: DropAtEnqueue,
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
            self.discipline.on_dequeue(self.counted.range(..started).copied());
            self.counted.drain(..started);
            self.discipline
                .set_backlog(testing::backlog(self.counted.iter().map(|&(_, size)| size)));
        }

        fn has_room(&self, size: PacketSize, wait: Duration) -> bool {
            let Headroom { max, wait_max } = self.discipline.headroom().expect("it has headroom");
            let packets = self.counted.iter().map(|&(_, size)| size).chain([size]);
            let Backlog { packets, bytes, link_bytes } = testing::backlog(packets);
            let fits = packets <= max.packets && bytes <= max.bytes;
            wait == Duration::ZERO || (fits && link_bytes <= max.link_bytes && wait <= wait_max)
        }

        fn offer(&mut self, now: Instant, size: PacketSize, deferred: bool) -> Outcome {
            let start = self.free_at.max(now);
            let skips_admit = deferred && self.has_room(size, start.saturating_since(now));
            let skipped_with_shares = skips_admit && self.discipline.needs_dequeue_events();
            let mut verdict = Verdict::Enqueue;
            if !skips_admit {
                self.on_dequeue(now);
                verdict = self.discipline.admit(now, size, Ecn::NotEct, start, &self.counted);
            }
            if verdict == Verdict::Enqueue {
                if skips_admit || start > now {
                    self.counted.push_back((start, size));
                }
                self.free_at = start + Duration::from_millis(1);
            }
            Outcome { verdict, skipped_with_shares }
        }
    }

    struct Outcome {
        verdict: Verdict,
        /// Whether it was accepted without `admit` while the queue needed dequeue events.
        skipped_with_shares: bool,
    }

    /// Given bursts of packets, expect the same verdict for each, and the same backlog at the end, whether
    /// dequeue events are reported as packets start or only when they matter.
    #[test]
    fn deferred_dequeue_events_change_no_verdict() {
        let ratio = |value| Ratio::new(value).expect("in range");
        let share =
            |limit| DropAtEnqueue::SelectiveDrop(SelectiveDrop::new(limit, ratio(0.5), ratio(0.8)));
        let disciplines = [Limit::Bytes(20_000), Limit::LinkBytes(30_000), Limit::Packets(20)]
            .into_iter()
            .flat_map(|limit| [DropAtEnqueue::DropTail(DropTail::new(limit)), share(limit)]);
        let by_time =
            DropAtEnqueue::DropTail(DropTail::new(Limit::Time(Duration::from_millis(20))));
        for discipline in disciplines.chain([by_time]) {
            let mut rng = Rng::stream(1, "tail");
            let mut queues = [false, true].map(|deferred| {
                let queue = TestQueue {
                    discipline: discipline.clone(),
                    counted: VecDeque::new(),
                    free_at: Instant::START,
                };
                (deferred, queue)
            });
            let (mut now, mut dropped, mut skipped_with_shares) = (Instant::START, 0, 0);
            for _ in 0..20_000 {
                if rng.below(8) == 0 {
                    now += Duration::from_millis(rng.below(16));
                }
                let bytes = 40 + 10 * rng.below(146) as u32;
                let flow = FlowId(rng.below(4) as u32);
                let size = PacketSize { flow, bytes, link_bytes: bytes + 8 };
                let [eager, late] =
                    queues.each_mut().map(|(deferred, queue)| queue.offer(now, size, *deferred));
                assert_eq!(eager.verdict, late.verdict, "{discipline:?} at {now}");
                dropped += u32::from(eager.verdict != Verdict::Enqueue);
                skipped_with_shares += u32::from(late.skipped_with_shares);
            }
            let [eager, late] = queues.each_mut().map(|(_, queue)| {
                queue.on_dequeue(now);
                *queue.discipline.occupancy()
            });
            assert_eq!(eager, late);
            assert!((100..15_000).contains(&dropped), "{discipline:?} drops {dropped}");
            let shares = matches!(discipline, DropAtEnqueue::SelectiveDrop(_));
            assert_eq!(
                skipped_with_shares > 100,
                shares,
                "{discipline:?}: {skipped_with_shares} without `admit`"
            );
        }
    }
}
