//! Queues in front of a transmitter, one file a discipline.
//!
//! There are two kinds. A [`Tail`] discipline is first in, first out, and decides when a packet
//! arrives; its packets' whole way is then known, so a direction needs no event when a transmission
//! ends. A head discipline decides which packet leaves, and whether it does, when the transmitter
//! becomes free.

mod drop_tail;

use crate::packet::FlowId;
use crate::time::{Duration, Instant};
use crate::trace::DropCause;
pub use drop_tail::{DropTail, Limit};

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
}

impl Tail {
    /// Whether a packet that would wait `wait` for its first bit is let in, and else why not. A
    /// packet that waits for nobody needs no room. Call once a packet, in order of time, after
    /// everything that started until `now` has left.
    ///
    /// # Errors
    /// The cause of the drop.
    pub fn admit(&mut self, _now: Instant, load: Load, wait: Duration) -> Result<(), DropCause> {
        match self {
            Self::DropTail(queue) => queue.admit(load, wait),
        }
    }

    /// A packet that was let in starts to wait.
    pub fn enter(&mut self, load: Load) {
        match self {
            Self::DropTail(queue) => queue.enter(load),
        }
    }

    /// The first bit of a packet that waited is sent at `at`. Call in order of `at`.
    pub fn leave(&mut self, _at: Instant, load: Load) {
        match self {
            Self::DropTail(queue) => queue.leave(load),
        }
    }

    /// What waits.
    #[must_use]
    pub fn occupancy(&self) -> &Occupancy {
        match self {
            Self::DropTail(queue) => queue.occupancy(),
        }
    }
}
