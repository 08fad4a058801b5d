//! What travels over the wires of the graph.

use crate::tcp::Segment;
use crate::time::Instant;

/// Which conversation a packet belongs to: an index into the run's flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowId(pub u32);

/// An engine's numbered socket. Each engine names its ports as constants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Port(pub u8);

/// Tells packets apart within a run: the flow, which of its two ends made the packet, and that
/// end's own count. Made without a shared counter, so one engine's packets never renumber
/// another's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PacketId(pub u64);

/// The end of a flow that made a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Maker {
    /// The end that the flow's data come from.
    Sender,
    /// The end that they go to.
    Receiver,
}

impl Default for Body {
    fn default() -> Self {
        Self::Datagram { sequence: 0 }
    }
}

impl PacketId {
    const SERIAL_BITS: u32 = 40;
    const SERIALS: u64 = (1 << Self::SERIAL_BITS) - 1;

    /// The identity of the `serial`-th packet of one end of a flow. Serials wrap after 2^40.
    #[must_use]
    pub fn new(flow: FlowId, maker: Maker, serial: u64) -> Self {
        let maker = match maker {
            Maker::Sender => 0,
            Maker::Receiver => 1,
        };
        let end = (u64::from(flow.0) << 1) | maker;
        Self((end << Self::SERIAL_BITS) | (serial & Self::SERIALS))
    }

    /// The end of the flow that made the packet.
    #[must_use]
    pub fn maker(self) -> Maker {
        match self.0 >> Self::SERIAL_BITS & 1 {
            0 => Maker::Sender,
            _ => Maker::Receiver,
        }
    }

    /// The identity of the packet that the same end makes next.
    #[must_use]
    pub fn next(self) -> Self {
        if self.0 & Self::SERIALS == Self::SERIALS { self.wrapped() } else { Self(self.0 + 1) }
    }

    #[cold]
    fn wrapped(self) -> Self {
        Self(self.0 & !Self::SERIALS)
    }
}

/// A packet: the header fields that every engine may read, and a body for the two ends.
///
/// What a plain TCP segment needs lies in the first 64 bytes: many packets are on their way at a time,
/// and each is written by one host and read by another a whole delay later, from a far cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Packet {
    /// Identity within the run.
    pub id: PacketId,
    /// When it was made; one-way delay is measured from here.
    pub born: Instant,
    /// The flow it belongs to.
    pub flow: FlowId,
    /// Size at the IP layer: IP header, transport header and payload.
    pub bytes: u32,
    /// What it carries.
    pub body: Body,
}

impl Packet {
    /// The segment that it carries; it carries an empty one from now on if it was none.
    pub(crate) fn segment_mut(&mut self) -> &mut Segment {
        if let Body::Datagram { .. } = self.body {
            self.empty();
        }
        match &mut self.body {
            Body::Segment(segment) => segment,
            Body::Datagram { .. } => unreachable!("it carries a segment by now"),
        }
    }

    #[cold]
    #[inline(never)]
    fn empty(&mut self) {
        self.body = Body::Segment(Segment::default());
    }
}

/// What a packet carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// A TCP segment.
    Segment(Segment),
    /// A numbered datagram of which only the length matters.
    Datagram {
        /// Position in the sender's sequence of datagrams, from zero.
        sequence: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_identity_is_that_of_the_next_serial() {
        let id = |serial| PacketId::new(FlowId(3), Maker::Receiver, serial);
        assert_eq!(id(7).next(), id(8));
        assert_eq!(id((1 << 40) - 1).next(), id(0));
    }

    #[test]
    fn a_plain_segment_lies_in_the_first_64_bytes() {
        let body = std::mem::offset_of!(Packet, body);
        assert_eq!(size_of::<Body>(), size_of::<Segment>(), "the kind of body needs no room");
        assert!(body + std::mem::offset_of!(Segment, sack) < 64);
    }

    #[test]
    fn an_identity_tells_who_made_the_packet() {
        for maker in [Maker::Sender, Maker::Receiver] {
            assert_eq!(PacketId::new(FlowId(u32::MAX), maker, u64::MAX).maker(), maker);
        }
    }

    #[test]
    fn identities_differ_by_flow_maker_and_serial() {
        let id = |flow, maker, serial| PacketId::new(FlowId(flow), maker, serial);
        let all = [
            id(0, Maker::Sender, 0),
            id(0, Maker::Sender, 1),
            id(0, Maker::Receiver, 0),
            id(1, Maker::Sender, 0),
        ];
        for (i, a) in all.iter().enumerate() {
            assert!(all[i + 1..].iter().all(|b| a != b));
        }
    }
}
