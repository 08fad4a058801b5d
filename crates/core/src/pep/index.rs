//! The slots of open connections.

use super::Key;
use crate::packet::FlowId;

/// The slots of open connections, by flow and number. It is read for every packet: flows are numbered from
/// 0, and most have a few open connections.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// By flow: its open connections with their slots, in order of their numbers.
    flows: Vec<Vec<(u16, u32)>>,
    open: usize,
}

impl Index {
    /// The number of open connections.
    pub(super) fn len(&self) -> usize {
        self.open
    }

    #[inline]
    pub(super) fn get(&self, (flow, number): Key) -> Option<u32> {
        let slots = self.flows.get(flow.0 as usize)?;
        let found = slots.binary_search_by_key(&number, |entry| entry.0).ok()?;
        Some(slots[found].1)
    }

    /// The slots of a flow.
    pub(super) fn of_flow(&self, flow: FlowId) -> impl Iterator<Item = u32> {
        self.flows.get(flow.0 as usize).into_iter().flatten().map(|entry| entry.1)
    }

    /// Adds a connection that is not there.
    pub(super) fn insert(&mut self, (flow, number): Key, slot: u32) {
        let flow = flow.0 as usize;
        if flow >= self.flows.len() {
            self.flows.resize_with(flow + 1, Vec::new);
        }
        let slots = &mut self.flows[flow];
        slots.insert(slots.partition_point(|entry| entry.0 < number), (number, slot));
        self.open += 1;
    }

    /// Removes a connection that is there.
    pub(super) fn remove(&mut self, (flow, number): Key) {
        let slots = &mut self.flows[flow.0 as usize];
        slots.retain(|entry| entry.0 != number);
        self.open -= 1;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::rng::Rng;

    /// Given random connections that open and close, expect the slots and the order of a `BTreeMap`.
    #[test]
    fn it_agrees_with_a_map() {
        let mut rng = Rng::stream(1, "index");
        let (mut index, mut map) = (Index::default(), BTreeMap::new());
        for slot in 0..2_000 {
            let flow = FlowId(u32::try_from(rng.below(4)).expect("small"));
            let key = (flow, u16::MAX - u16::try_from(rng.below(8)).expect("small"));
            assert_eq!(index.get(key), map.get(&key).copied());
            if map.remove(&key).is_some() {
                index.remove(key);
            } else {
                index.insert(key, slot);
                map.insert(key, slot);
            }
            let of_flow = map.range((flow, 0)..=(flow, u16::MAX)).map(|(_, slot)| *slot);
            assert!(index.of_flow(flow).eq(of_flow));
            assert_eq!(index.len(), map.len());
        }
    }
}
