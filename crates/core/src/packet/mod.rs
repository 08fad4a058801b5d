//! What travels over the wires of the graph.

pub mod segment;
pub mod seq;

use crate::time::Instant;
use segment::Segment;

/// The conversation that a packet belongs to, for statistics: an index into the run's flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowId(pub u32);

/// The host that a packet is for: what routing looks at. Hosts are numbered from zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(pub u32);

/// The traffic class that a packet belongs to: what queues look at. Class 0 is served first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Class(pub u8);

/// The ECN field of the IP header (RFC 3168, section 5), by its value on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Ecn {
    /// The transport does not react to marks: a congested queue drops the packet.
    #[default]
    NotEct = 0b00,
    /// ECN-capable, experimental use (RFC 8311).
    Ect1 = 0b01,
    /// ECN-capable.
    Ect0 = 0b10,
    /// Congestion experienced: a queue marked the packet instead of dropping it.
    Ce = 0b11,
}

impl Ecn {
    /// Whether a queue may mark the packet: its transport reacts to marks. One that was marked before
    /// stays so (RFC 3168, section 5; Linux, `INET_ECN_set_ce`).
    #[must_use]
    pub fn is_capable(self) -> bool {
        self != Self::NotEct
    }

    /// By the two lowest bits of the traffic class in an IP header.
    #[must_use]
    pub fn of_traffic_class(class: u8) -> Self {
        match class & 0b11 {
            0b00 => Self::NotEct,
            0b01 => Self::Ect1,
            0b10 => Self::Ect0,
            _ => Self::Ce,
        }
    }
}

/// An engine's numbered socket. Each engine names its ports as constants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Port(pub u8);

/// Identifies a packet within a run: the flow, which of its two ends created the packet, and that
/// end's own count. Made without a shared counter, so one engine's packets never renumber
/// another's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PacketId(pub u64);

/// The end of a flow that created a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The end that the flow's data come from.
    Sender,
    /// The end that they go to.
    Receiver,
}

impl PacketId {
    const SERIAL_BITS: u32 = 40;
    const SERIALS: u64 = (1 << Self::SERIAL_BITS) - 1;
    /// Flows are numbered below this, or two of them would share identities.
    pub const FLOWS_MAX: u32 = 1 << (63 - Self::SERIAL_BITS);

    /// The identity of the `serial`-th packet of one end of a flow. Serials wrap after 2^40.
    #[must_use]
    pub fn new(flow: FlowId, origin: Origin, serial: u64) -> Self {
        let origin = match origin {
            Origin::Sender => 0,
            Origin::Receiver => 1,
        };
        let end = (u64::from(flow.0) << 1) | origin;
        Self((end << Self::SERIAL_BITS) | (serial & Self::SERIALS))
    }

    /// The flow whose end created the packet, if flows are numbered below [`PacketId::FLOWS_MAX`].
    #[must_use]
    pub fn flow(self) -> FlowId {
        FlowId((self.0 >> (Self::SERIAL_BITS + 1)) as u32)
    }

    /// The end of the flow that created the packet.
    #[must_use]
    pub fn origin(self) -> Origin {
        match self.0 >> Self::SERIAL_BITS & 1 {
            0 => Origin::Sender,
            _ => Origin::Receiver,
        }
    }

    /// The identity of the packet that the same end creates next.
    #[must_use]
    pub fn next(self) -> Self {
        let next = self.0.wrapping_add(1);
        if next & Self::SERIALS == 0 { self.wrapped() } else { Self(next) }
    }

    #[cold]
    fn wrapped(self) -> Self {
        Self(self.0 & !Self::SERIALS)
    }
}

/// A packet: a header that every engine may read, and a payload for those that it concerns.
///
/// What a plain TCP segment needs lies in the first 64 bytes: many packets are in flight at a time,
/// and each is written by one host and read by another a whole delay later, from a far cache.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Packet {
    /// Identity within the run.
    pub id: PacketId,
    /// When it was created; one-way delay is measured from here.
    pub created_at: Instant,
    /// The flow that it counts for.
    pub flow: FlowId,
    /// The host that it is for.
    pub destination: Address,
    /// Size at the IP layer: IP header, transport header and payload.
    pub bytes: u32,
    /// Its class where a queue serves by priority.
    pub class: Class,
    /// Whether queues may mark it, and whether one did.
    pub ecn: Ecn,
    /// What it carries.
    pub payload: Payload,
}

impl Packet {
    /// The TCP segment that it carries, if it carries one.
    #[must_use]
    #[inline]
    pub fn segment(&self) -> Option<&Segment> {
        match &self.payload {
            Payload::Tcp(segment) => Some(segment),
            _ => None,
        }
    }

    /// The position of the datagram that it carries in its sender's sequence, if it carries one.
    #[must_use]
    pub fn datagram(&self) -> Option<u64> {
        match self.payload {
            Payload::Datagram { sequence } => Some(sequence),
            _ => None,
        }
    }

    /// The segment that it carries. A packet that carried something else carries an empty segment from
    /// now on. The segment's offer is of use only while its SYN flag is set: see [`Segment::offer`].
    pub(crate) fn segment_mut(&mut self) -> &mut Segment {
        if !matches!(self.payload, Payload::Tcp(_)) {
            self.empty();
        }
        match &mut self.payload {
            Payload::Tcp(segment) => segment,
            _ => unreachable!("it carries a segment by now"),
        }
    }

    #[cold]
    #[inline(never)]
    fn empty(&mut self) {
        self.payload = Payload::Tcp(Segment::default());
    }

    /// How many packets it stands for in the books: itself, and all that it carries.
    #[must_use]
    pub fn nested(&self) -> &[Packet] {
        match &self.payload {
            Payload::Nested(packets) => packets,
            Payload::Tcp(_)
            | Payload::Datagram { .. }
            | Payload::Coded(_)
            | Payload::Control(_) => &[],
        }
    }
}

/// What a packet carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// A TCP segment.
    Tcp(Segment),
    /// A numbered datagram of which only the length matters.
    Datagram {
        /// Position in the sender's sequence of datagrams, from zero.
        sequence: u64,
    },
    /// Whole packets: a frame of an aggregator, or a packet in a tunnel. The outer packet's size
    /// contains theirs and the headers between them.
    Nested(Vec<Packet>),
    /// A linear combination of source symbols.
    Coded(Box<CodedSymbol>),
    /// A message from one gateway function to its peer at the other end of the link.
    Control(Box<[u8]>),
}

/// A linear combination of the source symbols of a window, over GF(2^8).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CodedSymbol {
    /// The number of the first source symbol of the window.
    pub first_symbol: u32,
    /// The coefficient of each symbol of the window.
    pub coefficients: Vec<u8>,
    /// The combination of their bytes; none in a simulation, where only rank and lengths count.
    pub bytes: Vec<u8>,
}

impl Default for Payload {
    fn default() -> Self {
        Self::Datagram { sequence: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_identity_is_that_of_the_next_serial() {
        let id = |serial| PacketId::new(FlowId(3), Origin::Receiver, serial);
        assert_eq!(id(7).next(), id(8));
        assert_eq!(id((1 << 40) - 1).next(), id(0));
    }

    #[test]
    fn a_plain_segment_lies_in_the_first_64_bytes() {
        let payload = std::mem::offset_of!(Packet, payload);
        assert_eq!(size_of::<Payload>(), size_of::<Segment>(), "the kind of payload needs no room");
        assert!(payload + std::mem::offset_of!(Segment, sack) < 64);
    }

    #[test]
    fn an_identity_tells_flow_and_origin() {
        for origin in [Origin::Sender, Origin::Receiver] {
            for flow in [0, 1, PacketId::FLOWS_MAX - 1] {
                let id = PacketId::new(FlowId(flow), origin, u64::MAX);
                assert_eq!((id.flow(), id.origin()), (FlowId(flow), origin));
            }
        }
    }

    #[test]
    fn identities_differ_by_flow_origin_and_serial() {
        let id = |flow, origin, serial| PacketId::new(FlowId(flow), origin, serial);
        let all = [
            id(0, Origin::Sender, 0),
            id(0, Origin::Sender, 1),
            id(0, Origin::Receiver, 0),
            id(1, Origin::Sender, 0),
        ];
        for (i, a) in all.iter().enumerate() {
            assert!(all[i + 1..].iter().all(|b| a != b));
        }
    }
}
