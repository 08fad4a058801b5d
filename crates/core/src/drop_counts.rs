//! Packets dropped, by flow and cause.

use crate::packet::{FlowId, Origin, Packet, Payload};
use crate::trace::DropCause;

/// Packets dropped, by [`DropCause`].
pub type ByCause = [u64; DropCause::ALL.len()];

/// Packets dropped, by flow, by the end of the flow that created them, and by cause. Packets nested
/// in a dropped packet count for their own flows, unless a decoder recovers them.
#[derive(Clone, Debug, Default)]
pub struct DropCounts(Vec<FlowDrops>);

/// The dropped packets of a flow.
#[derive(Clone, Copy, Debug, Default)]
pub struct FlowDrops {
    packets: [ByCause; 2],
    /// TCP payload of the sender's packets that were dropped after the link had sent them.
    transmitted_payload_bytes: u64,
    /// TCP payload of the sender's packets that were lost, and that a decoder recovered.
    recovered_payload_bytes: u64,
}

impl DropCounts {
    /// Counts of the flows from 0 to `flows` - 1. Packets of other flows are not counted.
    #[must_use]
    pub fn of_flows(flows: usize) -> Self {
        Self(vec![Default::default(); flows])
    }

    /// Dropped packets that one end of a flow created.
    #[must_use]
    pub fn packets(&self, flow: FlowId, origin: Origin) -> ByCause {
        self.0.get(flow.0 as usize).map(|drops| drops.packets[origin as usize]).unwrap_or_default()
    }

    /// TCP payload of a flow that was dropped after the link had sent it.
    #[must_use]
    pub fn transmitted_payload_bytes(&self, flow: FlowId) -> u64 {
        self.0.get(flow.0 as usize).map_or(0, |drops| drops.transmitted_payload_bytes)
    }

    /// TCP payload of a flow that a decoder recovered.
    #[must_use]
    pub fn recovered_payload_bytes(&self, flow: FlowId) -> u64 {
        self.0.get(flow.0 as usize).map_or(0, |drops| drops.recovered_payload_bytes)
    }

    /// Counts a packet that a decoder recovered, and those nested in it, as not dropped. `dropped` is why the packet that
    /// carried it was, if it was.
    pub(crate) fn recover(&mut self, packet: &Packet, dropped: Option<DropCause>) {
        if let Some(drops) = self.0.get_mut(packet.flow.0 as usize) {
            let origin = packet.id.origin();
            if let Some(cause) = dropped {
                drops.packets[origin as usize][cause as usize] -= 1;
            }
            if origin == Origin::Sender {
                drops.recovered_payload_bytes += u64::from(packet.tcp_payload());
            }
        }
        packet.nested().iter().for_each(|inner| self.recover(inner, dropped));
    }

    /// Counts a dropped packet, and those nested in it.
    #[cold]
    #[inline(never)]
    pub(crate) fn add(&mut self, cause: DropCause, packet: &Packet) {
        self.add_inner(cause, packet, packet.transmitted);
    }

    fn add_inner(&mut self, cause: DropCause, packet: &Packet, transmitted: bool) {
        if let Some(drops) = self.0.get_mut(packet.flow.0 as usize) {
            let origin = packet.id.origin();
            drops.packets[origin as usize][cause as usize] += 1;
            if transmitted && origin == Origin::Sender {
                drops.transmitted_payload_bytes += u64::from(packet.tcp_payload());
            }
        }
        if let Payload::Source(symbol) = &packet.payload {
            // A copy of the packet, if there is one, is not another packet.
            let _ = symbol.dropped.set(cause);
        }
        for inner in packet.nested() {
            self.add_inner(cause, inner, transmitted);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coding::SymbolId;
    use crate::packet::PacketId;
    use crate::packet::segment::Segment;
    use crate::packet::symbol::{SourceHeader, SourceSymbol, StreamId};
    use std::sync::{Arc, OnceLock};

    fn packet(flow: u32, origin: Origin, payload: Payload) -> Packet {
        let flow = FlowId(flow);
        Packet { id: PacketId::new(flow, origin, 3), flow, payload, ..Packet::default() }
    }

    /// Given a dropped frame of a tunnel (flow 2, not counted) with a packet of each end of flow 1,
    /// and a dropped packet of flow 1 alone, expect each for its end and cause.
    #[test]
    fn nested_packets_count_for_their_own_flows() {
        let inside = [Origin::Sender, Origin::Receiver];
        let inside = inside.map(|origin| packet(1, origin, Payload::default()));
        let frame = packet(2, Origin::Sender, Payload::Nested(inside.to_vec()));
        let mut counts = DropCounts::of_flows(2);
        counts.add(DropCause::BitError, &frame);
        counts.add(DropCause::QueueFull, &inside[0]);
        let mut expected = ByCause::default();
        expected[DropCause::BitError as usize] = 1;
        assert_eq!(counts.packets(FlowId(1), Origin::Receiver), expected);
        expected[DropCause::QueueFull as usize] = 1;
        assert_eq!(counts.packets(FlowId(1), Origin::Sender), expected);
        for flow in [0, 2] {
            assert_eq!(counts.packets(FlowId(flow), Origin::Sender), ByCause::default());
        }
    }

    /// Given two packets as symbols of which one is dropped with a bit error, and both of which a decoder recovers, the
    /// other one because it is late, expect none to be lost.
    #[test]
    fn a_recovered_packet_is_not_lost() {
        let symbols = [1, 2].map(|serial| {
            let id = PacketId::new(FlowId(0), Origin::Sender, serial);
            let header = SourceHeader {
                stream: StreamId::default(),
                id: SymbolId(serial as u32),
                sent_us: 0,
            };
            let packet = Packet { id, ..packet(0, Origin::Sender, Payload::default()) };
            Arc::new(SourceSymbol { header, sequence: 0, packet, dropped: OnceLock::new() })
        });
        let mut counts = DropCounts::of_flows(1);
        let carrier = packet(1, Origin::Sender, Payload::Source(Arc::clone(&symbols[0])));
        counts.add(DropCause::BitError, &carrier);
        assert_eq!(counts.packets(FlowId(0), Origin::Sender).iter().sum::<u64>(), 1);
        for symbol in &symbols {
            counts.recover(&symbol.packet, symbol.dropped.get().copied());
        }
        assert_eq!(counts.packets(FlowId(0), Origin::Sender), ByCause::default());
    }

    /// Given segments of 1000 bytes that are dropped before the link, after it, and in a frame after it,
    /// and an ACK after it, expect the payload of the second and the third.
    #[test]
    fn payload_counts_after_the_link() {
        let segment = Payload::Tcp(Segment { payload: 1_000, ..Segment::default() });
        let before = packet(0, Origin::Sender, segment.clone());
        let after = Packet { transmitted: true, ..before.clone() };
        let ack = Packet { transmitted: true, ..packet(0, Origin::Receiver, segment) };
        let frame = Packet {
            transmitted: true,
            ..packet(1, Origin::Sender, Payload::Nested(vec![before.clone()]))
        };
        let mut counts = DropCounts::of_flows(1);
        for packet in [&before, &after, &ack, &frame] {
            counts.add(DropCause::BitError, packet);
        }
        assert_eq!(counts.transmitted_payload_bytes(FlowId(0)), 2_000);
        for packet in [&after, &ack, &frame] {
            counts.recover(packet, Some(DropCause::BitError));
        }
        assert_eq!(counts.recovered_payload_bytes(FlowId(0)), 2_000);
        // The one that was dropped before the link.
        assert_eq!(counts.packets(FlowId(0), Origin::Sender)[DropCause::BitError as usize], 1);
    }
}
