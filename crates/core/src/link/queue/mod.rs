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
    /// Whether a packet whose first bit would be sent at `start` is let in, and else why not. A packet
    /// that waits for nobody needs no room; any other that is let in starts to wait. Call once a
    /// packet, in order of time, after everything that started until `now` has left.
    ///
    /// # Errors
    /// The cause of the drop.
    #[inline]
    pub fn admit(&mut self, now: Instant, load: Load, start: Instant) -> Result<(), DropCause> {
        match self {
            // A packet that starts at once finds nobody waiting: only an average can be against it.
            Self::DropTail(_) | Self::SelectiveDrop(_) if start <= now => Ok(()),
            Self::DropTail(queue) => {
                queue.admit(load, start.saturating_since(now))?;
                queue.enter(load);
                Ok(())
            }
            Self::SelectiveDrop(queue) => queue.admit_and_enter(load),
            Self::Red(_) | Self::PerFlow(_) | Self::EarlyPacketDiscard(_) => {
                let Load { flow, bytes, link_bytes } = load;
                self.admit_apart(now, flow, bytes, link_bytes, start)
            }
        }
    }

    /// The first bit of a packet that waited is sent at `at`. Call in order of `at`.
    #[inline]
    pub fn leave(&mut self, at: Instant, load: Load) {
        match self {
            Self::DropTail(queue) => queue.leave(load),
            Self::SelectiveDrop(queue) => queue.leave(load),
            Self::Red(_) | Self::PerFlow(_) | Self::EarlyPacketDiscard(_) => {
                let Load { flow, bytes, link_bytes } = load;
                self.leave_apart(at, flow, bytes, link_bytes);
            }
        }
    }

    /// [`Tail::admit`] of the disciplines that do more, out of the way of those that do little. The
    /// load comes in pieces, which fit registers.
    #[cold]
    #[inline(never)]
    fn admit_apart(
        &mut self,
        now: Instant,
        flow: FlowId,
        bytes: u32,
        link_bytes: u32,
        start: Instant,
    ) -> Result<(), DropCause> {
        let load = Load { flow, bytes, link_bytes };
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

    /// [`Tail::leave`], likewise.
    #[cold]
    #[inline(never)]
    fn leave_apart(&mut self, at: Instant, flow: FlowId, bytes: u32, link_bytes: u32) {
        let load = Load { flow, bytes, link_bytes };
        match self {
            Self::Red(queue) => queue.leave(at, load),
            Self::PerFlow(queue) => queue.leave(load),
            Self::EarlyPacketDiscard(queue) => queue.leave(load),
            Self::DropTail(_) | Self::SelectiveDrop(_) => {}
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

    /// Whether nothing waits. If something does, [`Head::pop`] gives a packet: no discipline drops
    /// the last one there.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.occupancy().packets == 0
    }
}
