//! Packet events, and the sinks that record them. No engine depends on whether a sink is attached.

pub use crate::drop_cause::DropCause;
use crate::packet::{FlowId, Packet, PacketId};
use crate::rng::fnv1a;
use crate::time::Instant;

/// The number of an engine in its graph.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

/// What happened to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum EventKind {
    /// A queue accepted it.
    Enqueued,
    /// It was dropped, for this cause.
    Dropped(DropCause),
    /// Its transmission started at this instant.
    Transmitted,
    /// It arrived at the far end of the link.
    Delivered,
    /// A queue marked it (RFC 3168): its ECN field is CE from here on. Also recorded if it was CE
    /// before.
    Marked,
}

impl EventKind {
    /// The names of the kinds, in the order of [`EventKind::number`].
    pub const NAMES: [&'static str; 5] =
        ["enqueued", "dropped", "transmitted", "delivered", "marked"];

    /// The number of the kind in columns.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Enqueued => 0,
            Self::Dropped(_) => 1,
            Self::Transmitted => 2,
            Self::Delivered => 3,
            Self::Marked => 4,
        }
    }
}

/// A packet event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Event {
    /// When it happened. An engine may report an event later than it happened (a departure when the
    /// next packet arrives, for example), so a sink that needs order sorts by this.
    pub at: Instant,
    /// The engine that reported it.
    pub node: NodeId,
    /// What happened.
    pub kind: EventKind,
    /// The packet's flow.
    pub flow: FlowId,
    /// The packet.
    pub packet: PacketId,
    /// The size of the packet at the IP layer.
    pub bytes: u32,
}

/// A sink for events.
pub trait Trace {
    /// Records an event.
    fn record(&mut self, event: &Event);

    /// Records an event, with access to the packet during the call.
    fn record_packet(&mut self, event: &Event, _packet: &Packet) {
        self.record(event);
    }
}

/// A sink that stores every event.
#[derive(Clone, Debug, Default)]
pub struct VecTrace(pub Vec<Event>);

impl Trace for VecTrace {
    fn record(&mut self, event: &Event) {
        self.0.push(*event);
    }
}

/// A sink that stores only the number of events and their hash: equal runs have equal hashes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HashTrace {
    hash: u64,
    events: u64,
}

impl Trace for HashTrace {
    fn record(&mut self, event: &Event) {
        let cause = match event.kind {
            EventKind::Dropped(cause) => 1 + cause as u64,
            EventKind::Enqueued
            | EventKind::Transmitted
            | EventKind::Delivered
            | EventKind::Marked => 0,
        };
        let words = [
            self.hash,
            event.at.as_nanos(),
            u64::from(event.node.0),
            u64::from(event.kind.number()) << 8 | cause,
            u64::from(event.flow.0),
            event.packet.0,
            u64::from(event.bytes),
        ];
        let mut bytes = [0; 56];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(words) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        self.hash = fnv1a(&bytes);
        self.events += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(at: u64, kind: EventKind) -> Event {
        Event {
            at: Instant::from_nanos(at),
            node: NodeId(1),
            kind,
            flow: FlowId(2),
            packet: PacketId(3),
            bytes: 40,
        }
    }

    #[test]
    fn the_hash_depends_on_order_time_and_cause() {
        let hash = |events: &[Event]| {
            let mut trace = HashTrace::default();
            events.iter().for_each(|event| trace.record(event));
            trace
        };
        let early = event(1, EventKind::Enqueued);
        let late = event(2, EventKind::Enqueued);
        assert_eq!(hash(&[early, late]), hash(&[early, late]));
        assert_ne!(hash(&[early, late]), hash(&[late, early]));
        assert_ne!(
            hash(&[event(1, EventKind::Dropped(DropCause::QueueFull))]),
            hash(&[event(1, EventKind::Dropped(DropCause::BitError))])
        );
    }

    #[test]
    fn names_and_numbers_agree() {
        for (number, cause) in DropCause::ALL.into_iter().enumerate() {
            assert_eq!(cause as usize, number);
        }
        let kind = EventKind::Dropped(DropCause::BitError);
        assert_eq!(EventKind::NAMES[usize::from(kind.number())], "dropped");
        assert_eq!(EventKind::NAMES[usize::from(EventKind::Marked.number())], "marked");
        assert_eq!(DropCause::BitError.name(), "bit_error");
        assert_eq!(DropCause::QueueFull.name(), "queue_full");
    }
}
