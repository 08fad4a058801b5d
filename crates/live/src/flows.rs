//! Flow identification, for queues with per-flow state.

use std::net::IpAddr;

use bentpipe_core::packet::FlowId;
use bentpipe_core::wire::FiveTuple;
use bentpipe_sim::Side;

/// Assigns flow IDs from zero; both directions of a connection have the same ID.
///
/// After [`FLOWS_MAX`] flows a new one shares the ID of an old one, like a hash bucket in a router.
/// The table has a constant size and never evicts.
#[derive(Debug)]
pub struct Flows {
    slots: Vec<Option<(FiveTuple, FlowId)>>,
    known: u32,
}

/// The number of distinct flow IDs.
pub const FLOWS_MAX: u32 = 1 << 16;

const SLOTS: usize = 2 * FLOWS_MAX as usize;

impl Default for Flows {
    fn default() -> Self {
        Self { slots: vec![None; SLOTS], known: 0 }
    }
}

impl Flows {
    /// The flow ID of a packet from `side`. Packets that are not IP or are truncated have ID zero.
    pub fn id_of(&mut self, side: Side, packet: &[u8]) -> FlowId {
        let Some(tuple) = FiveTuple::of(packet) else { return FlowId(0) };
        let tuple = match side {
            Side::World => tuple,
            Side::Island => tuple.reversed(),
        };
        let mut slot = hash(&tuple) as usize % SLOTS;
        while let Some((known, flow)) = self.slots[slot] {
            if known == tuple {
                return flow;
            }
            slot = (slot + 1) % SLOTS;
        }
        if self.known == FLOWS_MAX {
            return FlowId(slot as u32 % FLOWS_MAX);
        }
        let flow = FlowId(self.known);
        self.known += 1;
        self.slots[slot] = Some((tuple, flow));
        flow
    }
}

/// Hashes one field at a time by multiply and fold. Hashing a byte at a time took as long as the
/// graph.
fn hash(tuple: &FiveTuple) -> u64 {
    let address = |address| match address {
        IpAddr::V4(address) => u64::from(address.to_bits()),
        IpAddr::V6(address) => {
            let bits = address.to_bits();
            fold((bits >> 64) as u64) ^ bits as u64
        }
    };
    let ports = u64::from(tuple.source_port) << 16 | u64::from(tuple.destination_port);
    let rest = u64::from(tuple.protocol) << 32 | ports;
    fold(fold(fold(address(tuple.source)) ^ address(tuple.destination)) ^ rest)
}

/// The XOR of both halves of a product with 2^64 over the golden ratio.
fn fold(word: u64) -> u64 {
    let product = u128::from(word ^ 0xD1B5_4A32_D192_ED03) * 0x9E37_79B9_7F4A_7C15;
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An IPv4 header without options, and UDP ports.
    fn packet(source: [u8; 4], destination: [u8; 4], ports: [u16; 2]) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0];
        packet.extend(source.iter().chain(&destination));
        packet.extend(ports.iter().flat_map(|port| port.to_be_bytes()));
        packet.extend([0, 8, 0, 0]);
        packet
    }

    const WORLD: [u8; 4] = [10, 0, 0, 1];
    const ISLAND: [u8; 4] = [10, 0, 0, 2];

    #[test]
    fn both_directions_of_a_flow_have_the_same_id() {
        let mut flows = Flows::default();
        let there = packet(WORLD, ISLAND, [80, 5_000]);
        let back = packet(ISLAND, WORLD, [5_000, 80]);
        let other = packet(ISLAND, WORLD, [5_001, 80]);
        assert_eq!(flows.id_of(Side::World, &there), FlowId(0));
        assert_eq!(flows.id_of(Side::Island, &other), FlowId(1));
        assert_eq!(flows.id_of(Side::Island, &back), FlowId(0));
        assert_eq!(flows.id_of(Side::Island, &other), FlowId(1));
        assert_eq!(flows.id_of(Side::Island, b"no packet"), FlowId(0));
    }

    /// Given more flows than IDs, expect IDs below the limit, and unchanged IDs for the old flows.
    #[test]
    fn the_table_is_bounded() {
        let mut flows = Flows::default();
        let nth = |number: u32| packet(WORLD, number.to_be_bytes(), [1, 2]);
        for number in 0..FLOWS_MAX + 1_000 {
            let flow = flows.id_of(Side::World, &nth(number));
            assert!(flow.0 == number || (number >= FLOWS_MAX && flow.0 < FLOWS_MAX));
        }
        assert_eq!(flows.id_of(Side::World, &nth(7)), FlowId(7));
    }
}
