//! A bounded table of flows: least recently used ones make room, idle ones are forgotten.

use std::collections::BTreeMap;

use crate::time::{Duration, Instant};

/// The key of a flow. The caller derives it, say from the five-tuple; equal keys are one flow.
pub type FlowKey = u64;

/// A value for each flow. A packet of a known flow allocates nothing: a list through the slots orders
/// the flows by their last packet.
#[derive(Clone, Debug)]
pub(super) struct FlowTable<V> {
    flows_max: usize,
    idle_timeout: Duration,
    slots: Vec<Slot<V>>,
    free: Vec<usize>,
    index: BTreeMap<FlowKey, usize>,
    /// The ends of the list; `None` while there are no flows.
    newest: Option<usize>,
    oldest: Option<usize>,
}

#[derive(Clone, Debug)]
struct Slot<V> {
    key: FlowKey,
    last_seen: Instant,
    newer: Option<usize>,
    older: Option<usize>,
    value: V,
}

impl<V: Default> FlowTable<V> {
    /// An empty table of at most `flows_max` flows, at least one.
    pub(super) fn new(flows_max: usize, idle_timeout: Duration) -> Self {
        Self {
            flows_max: flows_max.max(1),
            idle_timeout,
            slots: Vec::new(),
            free: Vec::new(),
            index: BTreeMap::new(),
            newest: None,
            oldest: None,
        }
    }

    /// Changes the limits and forgets the flows that no longer fit, the longest without packets first.
    pub(super) fn resize(&mut self, flows_max: usize, idle_timeout: Duration) {
        (self.flows_max, self.idle_timeout) = (flows_max.max(1), idle_timeout);
        while self.len() > self.flows_max
            && let Some(slot) = self.oldest
        {
            self.remove(slot);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    /// Forgets a flow without packets for the idle timeout and returns it, if there is one.
    pub(super) fn pop_idle(&mut self, now: Instant) -> Option<(FlowKey, V)> {
        let slot = self.oldest?;
        let is_idle = now >= self.slots[slot].last_seen + self.idle_timeout;
        is_idle.then(|| self.remove(slot))
    }

    /// Forgets the flow whose last packet is longest ago, if `key` is new and would not fit.
    pub(super) fn make_room(&mut self, key: FlowKey) -> Option<(FlowKey, V)> {
        if self.len() < self.flows_max || self.index.contains_key(&key) {
            return None;
        }
        self.oldest.map(|slot| self.remove(slot))
    }

    /// The value of a flow that has a packet now; the default if it is new. Idle flows are to be
    /// removed before, and room to be made.
    pub(super) fn touch(&mut self, now: Instant, key: FlowKey) -> &mut V {
        let slot = match self.index.get(&key) {
            Some(&slot) => {
                self.unlink(slot);
                slot
            }
            None => self.insert(key, now),
        };
        self.slots[slot].last_seen = now;
        self.link_as_newest(slot);
        &mut self.slots[slot].value
    }

    /// The value of a flow, if it is known.
    pub(super) fn get_mut(&mut self, key: FlowKey) -> Option<&mut V> {
        let slot = *self.index.get(&key)?;
        Some(&mut self.slots[slot].value)
    }

    fn insert(&mut self, key: FlowKey, now: Instant) -> usize {
        debug_assert!(self.len() < self.flows_max, "room was made");
        let new = Slot { key, last_seen: now, newer: None, older: None, value: V::default() };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot] = new;
                slot
            }
            None => {
                self.slots.push(new);
                self.slots.len() - 1
            }
        };
        self.index.insert(key, slot);
        slot
    }

    fn remove(&mut self, slot: usize) -> (FlowKey, V) {
        self.unlink(slot);
        self.free.push(slot);
        let Slot { key, ref mut value, .. } = self.slots[slot];
        self.index.remove(&key);
        (key, std::mem::take(value))
    }

    fn unlink(&mut self, slot: usize) {
        let Slot { newer, older, .. } = self.slots[slot];
        match newer {
            Some(newer) => self.slots[newer].older = older,
            None => self.newest = older,
        }
        match older {
            Some(older) => self.slots[older].newer = newer,
            None => self.oldest = newer,
        }
    }

    fn link_as_newest(&mut self, slot: usize) {
        let second = self.newest.replace(slot);
        (self.slots[slot].newer, self.slots[slot].older) = (None, second);
        match second {
            Some(second) => self.slots[second].newer = Some(slot),
            None => self.oldest = Some(slot),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ms(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    #[test]
    fn the_flow_without_packets_for_the_longest_time_makes_room() {
        let mut table = FlowTable::<u32>::new(2, Duration::from_secs(1));
        *table.touch(ms(0), 10) = 1;
        *table.touch(ms(1), 20) = 2;
        *table.touch(ms(2), 10) += 10;
        assert_eq!(table.make_room(10), None, "it is known");
        assert_eq!(table.make_room(30), Some((20, 2)));
        assert_eq!((*table.touch(ms(3), 30), table.len()), (0, 2));
        assert_eq!(table.get_mut(20), None);
    }

    /// Given a timeout of 1 s and a last packet at 5 ms, expect the flow to be idle at 1.005 s.
    #[test]
    fn a_flow_is_forgotten_after_the_idle_timeout() {
        let mut table = FlowTable::<u32>::new(9, Duration::from_secs(1));
        *table.touch(ms(5), 1) = 7;
        assert_eq!(table.pop_idle(ms(1_004)), None);
        assert_eq!(table.pop_idle(ms(1_005)), Some((1, 7)));
        assert_eq!(table.pop_idle(ms(9_000)), None);
    }

    proptest! {
        /// Given any packets, expect the table to hold what a list sorted by the last packet holds.
        #[test]
        fn the_table_agrees_with_a_sorted_list(
            packets in prop::collection::vec((0u64..8, 0u64..60), 0..200), flows_max in 1usize..6,
        ) {
            let timeout = Duration::from_millis(100);
            let mut table = FlowTable::<u64>::new(flows_max, timeout);
            let mut list: Vec<(FlowKey, Instant, u64)> = Vec::new();
            let mut now = Instant::START;
            for (key, gap) in packets {
                now += Duration::from_millis(gap);
                while table.pop_idle(now).is_some() {}
                list.retain(|&(_, last_seen, _)| now < last_seen + timeout);
                let evicted = table.make_room(key);
                let known = list.iter().position(|flow| flow.0 == key);
                let expected = (known.is_none() && list.len() == flows_max).then(|| list.remove(0));
                prop_assert_eq!(evicted, expected.map(|(key, _, count)| (key, count)));
                let count = known.map_or(0, |index| list.remove(index).2) + 1;
                list.push((key, now, count));
                *table.touch(now, key) += 1;
                prop_assert_eq!(table.len(), list.len());
                for &(key, _, count) in &list {
                    prop_assert_eq!(table.get_mut(key).copied(), Some(count));
                }
            }
        }
    }
}
