//! Packets dropped, by flow and cause.

use crate::packet::{FlowId, Origin, Packet};
use crate::trace::DropCause;

/// Packets dropped, by [`DropCause`].
pub type ByCause = [u64; DropCause::ALL.len()];

/// Packets dropped, by flow, by the end of the flow that created them, and by cause. Packets nested
/// in a dropped packet count for their own flows.
#[derive(Clone, Debug, Default)]
pub struct DropCounts(Vec<[ByCause; 2]>);

impl DropCounts {
    /// Counts of the flows from 0 to `flows` - 1. Packets of other flows are not counted.
    #[must_use]
    pub fn of_flows(flows: usize) -> Self {
        Self(vec![Default::default(); flows])
    }

    /// Dropped packets that one end of a flow created.
    #[must_use]
    pub fn packets(&self, flow: FlowId, origin: Origin) -> ByCause {
        self.0.get(flow.0 as usize).map(|ends| ends[origin as usize]).unwrap_or_default()
    }

    /// Counts a dropped packet, and those nested in it.
    #[cold]
    #[inline(never)]
    pub(crate) fn add(&mut self, cause: DropCause, packet: &Packet) {
        if let Some(ends) = self.0.get_mut(packet.flow.0 as usize) {
            ends[packet.id.origin() as usize][cause as usize] += 1;
        }
        for inner in packet.nested() {
            self.add(cause, inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{PacketId, Payload};

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
}
