//! Conversations by number, as queues that treat flows apart know them.

use std::net::IpAddr;

use bentpipe_core::packet::FlowId;
use bentpipe_core::wire::FiveTuple;
use bentpipe_sim::Side;

/// Numbers the conversations that come by, from zero; both directions of one have one number.
///
/// After [`FLOWS_MAX`] conversations a new one shares the number of an old one, as it would share a
/// bucket in a router: the table never forgets and never grows.
#[derive(Debug)]
pub struct Flows {
    slots: Vec<Option<(FiveTuple, FlowId)>>,
    known: u32,
}

/// How many conversations are told apart.
pub const FLOWS_MAX: u32 = 1 << 16;

const SLOTS: usize = 2 * FLOWS_MAX as usize;

impl Default for Flows {
    fn default() -> Self {
        Self { slots: vec![None; SLOTS], known: 0 }
    }
}

impl Flows {
    /// The number of the conversation of a packet that comes from `side`. What is not IP, or too
    /// short to tell, is of flow zero.
    pub fn number(&mut self, side: Side, packet: &[u8]) -> FlowId {
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

/// Spreads by multiplying and folding, a step a field: a byte at a time took as long as the graph.
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

/// Both halves of a product with an odd number without a pattern: 2^64 over the golden ratio.
fn fold(word: u64) -> u64 {
    let product = u128::from(word ^ 0xD1B5_4A32_D192_ED03) * 0x9E37_79B9_7F4A_7C15;
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An IPv4 header without options and the ports of UDP.
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
    fn both_directions_of_a_conversation_have_one_number() {
        let mut flows = Flows::default();
        let there = packet(WORLD, ISLAND, [80, 5_000]);
        let back = packet(ISLAND, WORLD, [5_000, 80]);
        let other = packet(ISLAND, WORLD, [5_001, 80]);
        assert_eq!(flows.number(Side::World, &there), FlowId(0));
        assert_eq!(flows.number(Side::Island, &other), FlowId(1));
        assert_eq!(flows.number(Side::Island, &back), FlowId(0));
        assert_eq!(flows.number(Side::Island, &other), FlowId(1));
        assert_eq!(flows.number(Side::Island, b"no packet"), FlowId(0));
    }

    /// Given more conversations than there are numbers, expect numbers below the most, and the old
    /// conversations to keep theirs.
    #[test]
    fn the_table_is_bounded() {
        let mut flows = Flows::default();
        let nth = |number: u32| packet(WORLD, number.to_be_bytes(), [1, 2]);
        for number in 0..FLOWS_MAX + 1_000 {
            let flow = flows.number(Side::World, &nth(number));
            assert!(flow.0 == number || (number >= FLOWS_MAX && flow.0 < FLOWS_MAX));
        }
        assert_eq!(flows.number(Side::World, &nth(7)), FlowId(7));
    }
}
