//! Queues in front of a transmitter, one file a discipline.
//!
//! There are two kinds. A [`Tail`] discipline is first in, first out, and decides when a packet
//! arrives; its packets' whole way is then known, so a direction needs no event when a transmission
//! ends. A [`Head`] discipline decides which packet leaves, and whether it does, when the
//! transmitter becomes free.

mod codel;
mod drop_tail;
mod early_packet_discard;
mod flows;
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
pub struct Load {
    /// Whose it is.
    pub flow: FlowId,
    /// Its IP bytes.
    pub bytes: u32,
    /// Its bytes on the link, framing included, rounded up.
    pub link_bytes: u32,
}

/// What waits, packet by packet, in order.
pub(super) trait Waiting {
    /// Those after the `first` ones.
    fn after(&self, first: u64) -> impl Iterator<Item = Load>;
}

/// A packet in a [`Head`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queued {
    /// The packet.
    pub packet: Box<Packet>,
    /// Its size on the link.
    pub frame: Bits,
    /// When it was pushed.
    pub entered: Instant,
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

impl Queued {
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
    pub fn load(&self) -> Load {
        let link_bytes = u32::try_from(self.frame.bytes_rounded_up().0).unwrap_or(u32::MAX);
        Load { flow: self.packet.flow, bytes: self.packet.bytes, link_bytes }
    }
}

/// Packets and their sizes, added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Amounts {
    pub(super) packets: u64,
    /// IP bytes.
    pub(super) bytes: u64,
    /// Bytes on the link.
    pub(super) link_bytes: u64,
}

/// Who finds room in a queue that need not be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room {
    /// What may wait at the most, the packet included.
    pub(super) most: Amounts,
    /// How long it may wait.
    pub(super) wait: Duration,
}

impl Room {
    /// Room for any number of packets of so many bytes in all.
    const fn of_bytes(bytes: u64) -> Self {
        let most = Amounts { packets: u64::MAX, bytes, link_bytes: u64::MAX };
        Self { most, wait: Duration::from_nanos(u64::MAX) }
    }

    /// No more than so much.
    fn within(self, unit: Unit, most: u64) -> Self {
        let Amounts { packets, bytes, link_bytes } = self.most;
        let most = match unit {
            Unit::Packets => Amounts { packets: packets.min(most), ..self.most },
            Unit::Bytes => Amounts { bytes: bytes.min(most), ..self.most },
            Unit::LinkBytes => Amounts { link_bytes: link_bytes.min(most), ..self.most },
        };
        Self { most, ..self }
    }

    /// How many packets of a size fit beside what waits.
    pub(super) fn more(self, waiting: Amounts, bytes: u32, link_bytes: u32) -> u64 {
        let rest =
            |most: u64, now: u64, each: u64| most.checked_sub(now).filter(|rest| *rest >= each);
        let (bytes, link_bytes) = (u64::from(bytes), u64::from(link_bytes));
        let most = self.most;
        let Some(packets) = rest(most.packets, waiting.packets, 1) else { return 0 };
        let Some(by_bytes) = rest(most.bytes, waiting.bytes, bytes) else { return 0 };
        let Some(by_link_bytes) = rest(most.link_bytes, waiting.link_bytes, link_bytes) else {
            return 0;
        };
        let more = packets.min(by_bytes.checked_div(bytes).unwrap_or(u64::MAX));
        if most.link_bytes == u64::MAX {
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
    pub(super) fn amounts(&self) -> Amounts {
        Amounts { packets: self.packets, bytes: self.bytes, link_bytes: self.link_bytes }
    }

    /// What waits is this, which is no more than ever did.
    fn recount(&mut self, waiting: Amounts) {
        Amounts { packets: self.packets, bytes: self.bytes, link_bytes: self.link_bytes } = waiting;
    }

    /// Counts a packet that starts to wait.
    pub fn enter(&mut self, load: Load) {
        self.packets += 1;
        self.bytes += u64::from(load.bytes);
        self.link_bytes += u64::from(load.link_bytes);
        self.bytes_max = self.bytes_max.max(self.bytes);
    }

    /// Counts a packet that no longer waits.
    pub fn leave(&mut self, load: Load) {
        self.packets -= 1;
        self.bytes -= u64::from(load.bytes);
        self.link_bytes -= u64::from(load.link_bytes);
    }
}

/// A first-in first-out queue that decides at arrival.
///
/// Its kind has a byte of its own, since it is asked for several times a packet: it would be worked
/// out from a field of the largest otherwise.
#[derive(Clone, Debug)]
#[repr(u8)]
pub enum Tail {
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

impl Tail {
    /// What becomes of a packet whose first bit would be sent at `start`. One that waits for nobody
    /// needs no room, and is not counted; any other that is let in starts to wait. `ecn` tells whether
    /// it may be marked. Call once a packet, in order of time, after everything that started until
    /// `now` has left.
    pub(super) fn admit(
        &mut self,
        now: Instant,
        load: Load,
        ecn: Ecn,
        start: Instant,
        waiting: &impl Waiting,
    ) -> Verdict {
        let wait = start.saturating_since(now);
        let verdict = match self {
            // A packet that starts at once finds nobody waiting: only an average can be against it.
            Self::DropTail(_) | Self::SelectiveDrop(_) if start <= now => Verdict::Enqueue,
            Self::DropTail(queue) => queue.admit(load, wait).into(),
            Self::SelectiveDrop(queue) => queue.admit(load, waiting).into(),
            Self::Red(queue) => queue.admit(now, load, ecn, wait),
            Self::PerFlow(queue) => queue.admit(load, wait).into(),
            Self::EarlyPacketDiscard(queue) => queue.admit(load, wait).into(),
        };
        if start > now && !matches!(verdict, Verdict::Drop(_)) {
            match self {
                Self::DropTail(queue) => queue.enter(load),
                Self::SelectiveDrop(queue) => queue.enter(load),
                Self::Red(queue) => queue.enter(load),
                Self::PerFlow(queue) => queue.enter(load),
                Self::EarlyPacketDiscard(queue) => queue.enter(load),
            }
        }
        verdict
    }

    /// Who is let in unasked, although some that started may not have left yet: these leave many at a
    /// time, when one of them matters. A packet that waits for nobody is too, and joins those that
    /// leave. `None` if it has to be asked about each packet.
    ///
    /// No more waits then than ever did, so that the most that ever did is known.
    pub(super) fn room(&self) -> Option<Room> {
        match self {
            Self::DropTail(queue) => Some(queue.room()),
            Self::SelectiveDrop(queue) => Some(queue.room()),
            Self::Red(_) | Self::PerFlow(_) | Self::EarlyPacketDiscard(_) => None,
        }
    }

    /// Whether it has to hear of the next packet that starts before what waits is counted again.
    pub(super) fn hears_of_next(&self) -> bool {
        match self {
            Self::DropTail(_) => false,
            Self::SelectiveDrop(queue) => queue.hears_of_next(),
            Self::Red(_) | Self::PerFlow(_) | Self::EarlyPacketDiscard(_) => true,
        }
    }

    /// The first bits of packets are sent, each at its instant. Takes those of them, from the first on,
    /// that it has to hear of. Call in their order.
    pub(super) fn hear(&mut self, started: impl Iterator<Item = (Instant, Load)>) {
        match self {
            Self::DropTail(_) => {}
            Self::SelectiveDrop(queue) => queue.hear(started.map(|(_, load)| load)),
            Self::Red(queue) => started.for_each(|(at, load)| queue.leave(at, load)),
            Self::PerFlow(queue) => started.for_each(|(_, load)| queue.leave(load)),
            Self::EarlyPacketDiscard(queue) => started.for_each(|(_, load)| queue.leave(load)),
        }
    }

    /// From `now` on the transmitter has this rate.
    pub(super) fn set_rate(&mut self, now: Instant, rate: &Profile<BitRate>) {
        if let Self::Red(queue) = self {
            queue.set_rate(now, rate.clone());
        }
    }

    /// So much waits now. Those that hear of all packets have counted it themselves.
    pub(super) fn recount(&mut self, waiting: Amounts) {
        match self {
            Self::DropTail(queue) => queue.recount(waiting),
            Self::SelectiveDrop(queue) => queue.recount(waiting),
            Self::Red(_) | Self::PerFlow(_) | Self::EarlyPacketDiscard(_) => {
                debug_assert_eq!(self.occupancy().amounts(), waiting, "one by one, and by runs");
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
pub enum Head {
    /// See [`CoDel`].
    CoDel(CoDel),
    /// See [`FqCoDel`].
    FqCoDel(FqCoDel),
    /// See [`StrictPriority`].
    StrictPriority(StrictPriority),
}

impl Head {
    /// Takes in a packet that arrives. What has no room is lost: the packet itself, or, where
    /// queues share the room, packets of the longest queue, the packet itself perhaps among them.
    pub fn push(
        &mut self,
        now: Instant,
        queued: Queued,
        lost: &mut impl FnMut(DropCause, &Packet),
    ) {
        debug_assert_eq!(queued.entered, now, "a packet enters when it is pushed");
        match self {
            Self::CoDel(queue) => queue.push(queued, lost),
            Self::FqCoDel(queue) => queue.push(queued, lost),
            Self::StrictPriority(queue) => queue.push(queued, lost),
        }
    }

    /// The packet to send, if any waits. Call it whenever the transmitter is free, also when
    /// nothing waits: that a queue ran empty is something that `CoDel` has to know.
    pub fn pop(
        &mut self,
        now: Instant,
        lost: &mut impl FnMut(DropCause, &Packet),
    ) -> Option<Queued> {
        match self {
            Self::CoDel(queue) => queue.pop(now, lost),
            Self::FqCoDel(queue) => queue.pop(now, lost),
            Self::StrictPriority(queue) => queue.pop(),
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

    /// Calls `see` with each packet that waits.
    pub(in crate::link) fn for_each(&self, see: &mut dyn FnMut(&Packet)) {
        match self {
            Self::CoDel(queue) => queue.packets().for_each(see),
            Self::FqCoDel(queue) => queue.packets().for_each(see),
            Self::StrictPriority(queue) => queue.packets().for_each(see),
        }
    }

    /// Whether nothing waits. If something does, [`Head::pop`] gives a packet: no discipline drops
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
    struct Line {
        tail: Tail,
        counted: VecDeque<(Instant, Load)>,
        free_at: Instant,
    }

    impl Waiting for VecDeque<(Instant, Load)> {
        fn after(&self, first: u64) -> impl Iterator<Item = Load> {
            self.range(first as usize..).map(|&(_, load)| load)
        }
    }

    impl Line {
        fn leave(&mut self, now: Instant) {
            let started = self.counted.partition_point(|&(start, _)| start <= now);
            self.tail.hear(self.counted.range(..started).copied());
            self.counted.drain(..started);
            self.tail.recount(testing::amounts(self.counted.iter().map(|&(_, load)| load)));
        }

        fn has_room(&self, load: Load, wait: Duration) -> bool {
            let Room { most, wait: longest } = self.tail.room().expect("it gives room");
            let with = self.counted.iter().map(|&(_, load)| load).chain([load]);
            let Amounts { packets, bytes, link_bytes } = testing::amounts(with);
            let fits = packets <= most.packets && bytes <= most.bytes;
            wait == Duration::ZERO || (fits && link_bytes <= most.link_bytes && wait <= longest)
        }

        fn offer(&mut self, now: Instant, load: Load, lazily: bool) -> Offer {
            let start = self.free_at.max(now);
            let unasked = lazily && self.has_room(load, start.saturating_since(now));
            let with_shares = unasked && self.tail.hears_of_next();
            let mut decision = Verdict::Enqueue;
            if !unasked {
                self.leave(now);
                decision = self.tail.admit(now, load, Ecn::NotEct, start, &self.counted);
            }
            if decision == Verdict::Enqueue {
                if unasked || start > now {
                    self.counted.push_back((start, load));
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
    fn who_leaves_late_changes_nothing() {
        let ratio = |value| Ratio::new(value).expect("in range");
        let share = |limit| Tail::SelectiveDrop(SelectiveDrop::new(limit, ratio(0.5), ratio(0.8)));
        let tails = [Limit::Bytes(20_000), Limit::LinkBytes(30_000), Limit::Packets(20)]
            .into_iter()
            .flat_map(|limit| [Tail::DropTail(DropTail::new(limit)), share(limit)]);
        let by_time = Tail::DropTail(DropTail::new(Limit::Time(Duration::from_millis(20))));
        for tail in tails.chain([by_time]) {
            let mut rng = Rng::stream(1, "tail");
            let mut lines = [false, true].map(|lazily| {
                let line =
                    Line { tail: tail.clone(), counted: VecDeque::new(), free_at: Instant::START };
                (lazily, line)
            });
            let (mut now, mut dropped, mut with_shares) = (Instant::START, 0, 0);
            for _ in 0..20_000 {
                if rng.below(8) == 0 {
                    now += Duration::from_millis(rng.below(16));
                }
                let bytes = 40 + 10 * rng.below(146) as u32;
                let flow = FlowId(rng.below(4) as u32);
                let load = Load { flow, bytes, link_bytes: bytes + 8 };
                let [eager, late] =
                    lines.each_mut().map(|(lazily, line)| line.offer(now, load, *lazily));
                assert_eq!(eager.decision, late.decision, "{tail:?} at {now}");
                dropped += u32::from(eager.decision != Verdict::Enqueue);
                with_shares += u32::from(late.with_shares);
            }
            let [eager, late] = lines.each_mut().map(|(_, line)| {
                line.leave(now);
                *line.tail.occupancy()
            });
            assert_eq!(eager, late);
            assert!((100..15_000).contains(&dropped), "{tail:?} drops {dropped}");
            let shares = matches!(tail, Tail::SelectiveDrop(_));
            assert_eq!(with_shares > 100, shares, "{tail:?}: {with_shares} while shares were held");
        }
    }
}
