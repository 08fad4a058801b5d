//! Queues in front of a transmitter, one file a discipline.
//!
//! There are two kinds. A [`Tail`] discipline is first in, first out, and decides when a packet
//! arrives; its packets' whole way is then known, so a direction needs no event when a transmission
//! ends. A head discipline decides which packet leaves, and whether it does, when the transmitter
//! becomes free.

mod drop_tail;
mod early_packet_discard;
mod flows;
mod limit;
mod per_flow;
mod red;
mod selective_drop;

use crate::packet::FlowId;
use crate::time::{Duration, Instant};
use crate::trace::DropCause;
pub use drop_tail::DropTail;
pub use early_packet_discard::EarlyPacketDiscard;
pub use limit::{Limit, Ratio, Unit};
pub use per_flow::PerFlow;
pub use red::{Red, RedConfig};
pub use selective_drop::SelectiveDrop;

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

/// What waits, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Occupancy {
    /// Packets that wait.
    pub packets: u64,
    /// Their IP bytes.
    pub bytes: u64,
    /// Their bytes on the link.
    pub link_bytes: u64,
    /// The most IP bytes that ever waited.
    pub bytes_max: u64,
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
#[derive(Clone, Debug)]
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
    /// Whether a packet that would wait `wait` for its first bit is let in, and else why not. A
    /// packet that waits for nobody needs no room. Call once a packet, in order of time, after
    /// everything that started until `now` has left.
    ///
    /// # Errors
    /// The cause of the drop.
    pub fn admit(&mut self, now: Instant, load: Load, wait: Duration) -> Result<(), DropCause> {
        match self {
            Self::DropTail(queue) => queue.admit(load, wait),
            Self::Red(queue) => queue.admit(now, load, wait),
            Self::PerFlow(queue) => queue.admit(load, wait),
            Self::EarlyPacketDiscard(queue) => queue.admit(load, wait),
            Self::SelectiveDrop(queue) => queue.admit(load, wait),
        }
    }

    /// A packet that was let in starts to wait.
    pub fn enter(&mut self, load: Load) {
        match self {
            Self::DropTail(queue) => queue.enter(load),
            Self::Red(queue) => queue.enter(load),
            Self::PerFlow(queue) => queue.enter(load),
            Self::EarlyPacketDiscard(queue) => queue.enter(load),
            Self::SelectiveDrop(queue) => queue.enter(load),
        }
    }

    /// The first bit of a packet that waited is sent at `at`. Call in order of `at`.
    pub fn leave(&mut self, at: Instant, load: Load) {
        match self {
            Self::DropTail(queue) => queue.leave(load),
            Self::Red(queue) => queue.leave(at, load),
            Self::PerFlow(queue) => queue.leave(load),
            Self::EarlyPacketDiscard(queue) => queue.leave(load),
            Self::SelectiveDrop(queue) => queue.leave(load),
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
