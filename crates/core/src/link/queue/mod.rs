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
mod testing;

use crate::packet::{FlowId, Packet};
use crate::time::Instant;
use crate::trace::DropCause;
use crate::units::Bits;
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
}

impl Queued {
    /// The packet as a queue counts it.
    #[must_use]
    pub fn load(&self) -> Load {
        let link_bytes = u32::try_from(self.frame.bytes_rounded_up().0).unwrap_or(u32::MAX);
        Load { flow: self.packet.flow, bytes: self.packet.bytes, link_bytes }
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
    /// Whether there waits, with one packet more, no more than ever did. Where some are counted that wait
    /// no longer, a yes is still true.
    #[inline]
    fn has_been_more_with(&self, load: Load) -> bool {
        self.bytes + u64::from(load.bytes) <= self.bytes_max
    }

    /// Counts a packet that starts to wait.
    pub fn enter(&mut self, load: Load) {
        self.packets += 1;
        self.bytes += u64::from(load.bytes);
        self.link_bytes += u64::from(load.link_bytes);
        self.bytes_max = self.bytes_max.max(self.bytes);
    }

    /// Counts a packet that waits for nobody, among those that wait.
    #[inline]
    fn pass(&mut self, load: Load) {
        self.packets += 1;
        self.bytes += u64::from(load.bytes);
        self.link_bytes += u64::from(load.link_bytes);
    }

    /// Counts packets that no longer wait.
    #[inline]
    fn leave_all(&mut self, loads: impl Iterator<Item = Load>) {
        let mut left = Self::default();
        loads.for_each(|load| left.pass(load));
        self.packets -= left.packets;
        self.bytes -= left.bytes;
        self.link_bytes -= left.link_bytes;
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
    /// Whether a packet whose first bit would be sent at `start` is let in, and else why not. A packet
    /// that waits for nobody needs no room, and is not counted; any other that is let in starts to
    /// wait. Call once a packet, in order of time, after everything that started until `now` has left.
    pub(super) fn admit(
        &mut self,
        now: Instant,
        load: Load,
        start: Instant,
        waiting: &impl Waiting,
    ) -> Result<(), DropCause> {
        match self {
            // A packet that starts at once finds nobody waiting: only an average can be against it.
            Self::DropTail(_) | Self::SelectiveDrop(_) if start <= now => Ok(()),
            Self::DropTail(queue) => {
                queue.admit(load, start.saturating_since(now))?;
                queue.enter(load);
                Ok(())
            }
            Self::SelectiveDrop(queue) => {
                queue.admit(load, waiting)?;
                queue.enter(load);
                Ok(())
            }
            Self::Red(_) | Self::PerFlow(_) | Self::EarlyPacketDiscard(_) => {
                self.admit_apart(now, load, start)
            }
        }
    }

    /// [`Tail::admit`] where it is sure to let the packet in, although some that started may not have
    /// left yet; whether it is. So these leave many at a time, when one of them matters. A packet that
    /// waits for nobody is counted here too, and leaves with them.
    #[inline]
    pub(super) fn admit_if_sure(&mut self, now: Instant, load: Load, start: Instant) -> bool {
        match self {
            Self::DropTail(queue) => queue.admit_if_sure(load, start.saturating_since(now)),
            Self::SelectiveDrop(queue) => queue.admit_if_sure(load, start <= now),
            Self::Red(_) | Self::PerFlow(_) | Self::EarlyPacketDiscard(_) => false,
        }
    }

    /// The first bits of packets that were counted are sent, each at its instant. Call in their order.
    #[inline]
    pub(super) fn leave(&mut self, started: impl Iterator<Item = (Instant, Load)>) {
        match self {
            Self::DropTail(queue) => queue.leave_all(started.map(|(_, load)| load)),
            Self::SelectiveDrop(queue) => queue.leave_all(started.map(|(_, load)| load)),
            Self::Red(queue) => started.for_each(|(at, load)| queue.leave(at, load)),
            Self::PerFlow(queue) => started.for_each(|(_, load)| queue.leave(load)),
            Self::EarlyPacketDiscard(queue) => started.for_each(|(_, load)| queue.leave(load)),
        }
    }

    /// [`Tail::admit`] of the disciplines that do more.
    fn admit_apart(&mut self, now: Instant, load: Load, start: Instant) -> Result<(), DropCause> {
        let wait = start.saturating_since(now);
        match self {
            Self::Red(queue) => queue.admit(now, load, wait)?,
            Self::PerFlow(queue) => queue.admit(load, wait)?,
            Self::EarlyPacketDiscard(queue) => queue.admit(load, wait)?,
            Self::DropTail(_) | Self::SelectiveDrop(_) => unreachable!("these are admitted there"),
        }
        if start > now {
            match self {
                Self::Red(queue) => queue.enter(load),
                Self::PerFlow(queue) => queue.enter(load),
                Self::EarlyPacketDiscard(queue) => queue.enter(load),
                Self::DropTail(_) | Self::SelectiveDrop(_) => {}
            }
        }
        Ok(())
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
            self.tail.leave(self.counted.drain(..started));
        }

        fn offer(&mut self, now: Instant, load: Load, lazily: bool) -> Result<(), DropCause> {
            let start = self.free_at.max(now);
            let sure = lazily && self.tail.admit_if_sure(now, load, start);
            if !sure {
                self.leave(now);
                self.tail.admit(now, load, start, &self.counted)?;
            }
            if sure || start > now {
                self.counted.push_back((start, load));
            }
            self.free_at = start + Duration::from_millis(1);
            Ok(())
        }
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
            let (mut now, mut dropped) = (Instant::START, 0);
            for _ in 0..20_000 {
                if rng.below(8) == 0 {
                    now += Duration::from_millis(rng.below(16));
                }
                let bytes = 40 + 10 * rng.below(146) as u32;
                let flow = FlowId(rng.below(4) as u32);
                let load = Load { flow, bytes, link_bytes: bytes + 8 };
                let [eager, late] =
                    lines.each_mut().map(|(lazily, line)| line.offer(now, load, *lazily));
                assert_eq!(eager, late, "{tail:?} at {now}");
                dropped += u32::from(eager.is_err());
            }
            let [eager, late] = lines.each_mut().map(|(_, line)| {
                line.leave(now);
                *line.tail.occupancy()
            });
            assert_eq!(eager, late);
            assert!((100..15_000).contains(&dropped), "{tail:?} drops {dropped}");
        }
    }
}
