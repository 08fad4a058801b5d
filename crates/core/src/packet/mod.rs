//! Packets: what engines exchange over the wires of the graph.

pub mod segment;
pub mod seq;
pub mod symbol;

use std::sync::Arc;

use crate::time::Instant;
use segment::Segment;
use symbol::{RepairSymbol, SourceSymbol};

/// The flow of a packet, for statistics: an index into the flows of the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowId(pub u32);

/// The destination host of a packet, for routing. Hosts are numbered from zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(pub u32);

/// The traffic class of a packet, for queues. Class 0 is served first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Class(pub u8);

/// The ECN field of the IP header (RFC 3168, section 5), by its value on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Ecn {
    /// Not ECN-capable transport: a congested queue drops the packet.
    #[default]
    NotEct = 0b00,
    /// ECN-capable transport, ECT(1): experimental use (RFC 8311).
    Ect1 = 0b01,
    /// ECN-capable transport, ECT(0).
    Ect0 = 0b10,
    /// Congestion experienced: a queue marked the packet instead of dropping it.
    Ce = 0b11,
}

impl Ecn {
    /// Whether a queue may mark the packet. A packet that is CE already counts as capable (RFC 3168,
    /// section 5; Linux, `INET_ECN_set_ce`).
    #[must_use]
    pub fn is_capable(self) -> bool {
        self != Self::NotEct
    }

    /// The field in the two lowest bits of the traffic class byte of an IP header.
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

/// A numbered port of an engine. Each engine defines its ports as constants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Port(pub u8);

/// Identifies a packet within a run: the flow, the end of the flow that created it, and a serial
/// number of that end. There is no shared counter, so the identities do not depend on the packets of
/// other engines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PacketId(pub u64);

/// The end of a flow that created a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The end that sends the data of the flow.
    Sender,
    /// The end that receives them.
    Receiver,
}

impl Origin {
    /// The other end of the flow.
    #[must_use]
    pub fn opposite(self) -> Self {
        match self {
            Self::Sender => Self::Receiver,
            Self::Receiver => Self::Sender,
        }
    }
}

impl PacketId {
    const SERIAL_BITS: u32 = 40;
    const SERIALS: u64 = (1 << Self::SERIAL_BITS) - 1;
    /// The number of flows; more would make identities ambiguous.
    pub const FLOWS_MAX: u32 = 1 << (63 - Self::SERIAL_BITS);
    /// Hosts use the serials before this one. The others are for engines on the path that create
    /// packets in the name of a host.
    pub const HOST_SERIALS: u64 = 1 << (Self::SERIAL_BITS - 1);

    /// The identity of packet number `serial` of one end of a flow. Serials wrap after 2^40.
    #[must_use]
    pub fn new(flow: FlowId, origin: Origin, serial: u64) -> Self {
        let origin = match origin {
            Origin::Sender => 0,
            Origin::Receiver => 1,
        };
        let end = (u64::from(flow.0) << 1) | origin;
        Self((end << Self::SERIAL_BITS) | (serial & Self::SERIALS))
    }

    /// The flow whose end created the packet.
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

    /// The identity of the next packet that the same end creates.
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

/// What kept a packet from the link until it was sent. A sender has exactly one limit at a time;
/// gateways and access lines set theirs on packets that wait for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum LimitedBy {
    /// The application had written nothing more.
    #[default]
    Application,
    /// The handshake was not complete.
    Handshake,
    /// The window that the receiver advertised.
    ReceiveWindow,
    /// The send buffer was full of data that was not acknowledged yet.
    SendBuffer,
    /// The congestion window, in slow start.
    SlowStart,
    /// The congestion window or the pacing rate, after slow start.
    CongestionAvoidance,
    /// Loss recovery, a retransmission timeout included.
    Recovery,
    /// The packet processor of a gateway.
    Gateway,
    /// The access line of a distant host.
    AccessLine,
}

impl LimitedBy {
    /// All limits, in the order of their numbers; the first [`Self::OF_SENDER`] are those of a
    /// sender.
    pub const ALL: [Self; 9] = [
        Self::Application,
        Self::Handshake,
        Self::ReceiveWindow,
        Self::SendBuffer,
        Self::SlowStart,
        Self::CongestionAvoidance,
        Self::Recovery,
        Self::Gateway,
        Self::AccessLine,
    ];
    /// The number of limits of a sender.
    pub const OF_SENDER: usize = 7;

    /// The name in columns.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Application => "application",
            Self::Handshake => "handshake",
            Self::ReceiveWindow => "receive_window",
            Self::SendBuffer => "send_buffer",
            Self::SlowStart => "slow_start",
            Self::CongestionAvoidance => "congestion_avoidance",
            Self::Recovery => "recovery",
            Self::Gateway => "gateway",
            Self::AccessLine => "access_line",
        }
    }
}

/// A packet: a header that every engine may read, and a payload.
///
/// The fields of a plain TCP segment fit in the first 64 bytes: many packets are in flight at a time,
/// so a packet has been evicted from the near caches when a host reads it, a propagation delay after
/// it was written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Packet {
    /// The identity within the run.
    pub id: PacketId,
    /// The creation time; one-way delay is measured from it.
    pub created_at: Instant,
    /// The flow, for statistics.
    pub flow: FlowId,
    /// The destination host.
    pub destination: Address,
    /// The size at the IP layer: IP header, transport header and payload.
    pub bytes: u32,
    /// The traffic class, for priority queues.
    pub class: Class,
    /// The ECN field.
    pub ecn: Ecn,
    /// What kept it from being sent earlier, if it has TCP data from the sender of its flow.
    pub limited_by: Option<LimitedBy>,
    /// Whether a direction of the link has accepted it for transmission.
    pub transmitted: bool,
    /// The payload.
    pub payload: Payload,
}

impl Packet {
    /// The TCP segment, if the packet carries one.
    #[must_use]
    #[inline]
    pub fn segment(&self) -> Option<&Segment> {
        match &self.payload {
            Payload::Tcp(segment) => Some(segment),
            _ => None,
        }
    }

    /// Notes that a packet with data had to wait for a part of the path.
    pub(crate) fn delayed_by(&mut self, limit: LimitedBy) {
        if let Some(limited_by) = &mut self.limited_by {
            *limited_by = limit;
        } else if let Payload::Nested(packets) = &mut self.payload {
            packets.iter_mut().for_each(|inner| inner.delayed_by(limit));
        } else if let Payload::Source(symbol) = &mut self.payload {
            Arc::make_mut(symbol).packet.delayed_by(limit);
        }
    }

    /// The bytes of TCP payload, without those of nested packets.
    #[must_use]
    #[inline]
    pub fn tcp_payload(&self) -> u16 {
        self.segment().map_or(0, |segment| segment.payload)
    }

    /// The sequence number of the datagram, if the packet carries one.
    #[must_use]
    pub fn datagram(&self) -> Option<u64> {
        match self.payload {
            Payload::Datagram { sequence, .. } => Some(sequence),
            _ => None,
        }
    }

    /// The TCP segment. Any other payload is replaced by an empty segment. The SYN options are valid only
    /// while the SYN flag is set: see [`Segment::syn_options`].
    pub(crate) fn segment_mut(&mut self) -> &mut Segment {
        if !matches!(self.payload, Payload::Tcp(_)) {
            self.empty();
        }
        match &mut self.payload {
            Payload::Tcp(segment) => segment,
            _ => unreachable!("the payload was just set"),
        }
    }

    #[cold]
    #[inline(never)]
    fn empty(&mut self) {
        self.payload = Payload::Tcp(Segment::default());
    }

    /// The packets nested in this one.
    #[must_use]
    pub fn nested(&self) -> &[Packet] {
        match &self.payload {
            Payload::Nested(packets) => packets,
            Payload::Source(symbol) => std::slice::from_ref(&symbol.packet),
            Payload::Tcp(_)
            | Payload::Datagram { .. }
            | Payload::Repair(_)
            | Payload::Control(_) => &[],
        }
    }
}

/// The payload of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// A TCP segment.
    Tcp(Segment),
    /// A numbered datagram; only its length is modelled.
    Datagram {
        /// The flow whose sender created it: in a conference, that of another participant.
        source: FlowId,
        /// The sequence number among the sender's datagrams, from zero.
        sequence: u64,
    },
    /// Whole packets: a frame of an aggregator, or a packet in a tunnel. The size of the outer packet
    /// includes them and the headers between them.
    Nested(Vec<Packet>),
    /// A packet as a source symbol, which the sender keeps for repair. The size of the outer packet includes it and all
    /// headers.
    Source(Arc<SourceSymbol>),
    /// A linear combination of source symbols.
    Repair(Box<RepairSymbol>),
    /// A message from one gateway function to its peer at the other end of the link.
    Control(Box<[u8]>),
}

impl Default for Payload {
    fn default() -> Self {
        Self::Datagram { source: FlowId(0), sequence: 0 }
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
    fn a_plain_segment_fits_in_the_first_64_bytes() {
        let payload = std::mem::offset_of!(Packet, payload);
        assert_eq!(
            size_of::<Payload>(),
            size_of::<Segment>(),
            "the discriminant of Payload takes no space"
        );
        assert!(payload + std::mem::offset_of!(Segment, sack) < 64);
    }

    #[test]
    fn an_identity_contains_flow_and_origin() {
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
