//! The pending wake-ups: one entry an engine, in a binary heap of packed keys.
//!
//! A key packs (instant, insertion number, engine) into 128 bits, so that one comparison decides
//! and ties are first come, first served. An engine whose deadline moves later keeps its entry: a
//! retransmission timer moves later with every ACK, and re-sorting the heap each time would cost
//! more than finding, once it is reached, that the entry is early. [`Wakes::expire`] then re-asks.

use crate::time::Instant;
use crate::trace::NodeId;

/// Children of an entry. Two measured 3 to 5 % faster overall than four: a direction's next wake-up
/// is among the earliest, so its entry settles within a level or two and every comparison counts.
const ARITY: usize = 2;
const NODE_BITS: u32 = 24;
const ABSENT: u32 = u32::MAX;

/// See the module's description.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wakes {
    heap: Vec<u128>,
    /// Where each engine's entry is in `heap`, or `ABSENT`.
    place: Vec<u32>,
    /// Whether the engine's deadline moved later, or away, since its entry was made.
    early: Vec<bool>,
    serial: u64,
}

fn node_of(key: u128) -> usize {
    (key & ((1 << NODE_BITS) - 1)) as usize
}

fn time_of(key: u128) -> Instant {
    #[expect(clippy::cast_possible_truncation, reason = "the upper 64 bits are the instant")]
    Instant::from_nanos((key >> 64) as u64)
}

impl Wakes {
    /// Makes room for one more engine.
    pub(crate) fn add(&mut self) {
        assert!(self.place.len() < (1 << NODE_BITS), "a graph holds at most 2^24 engines");
        self.place.push(ABSENT);
        self.early.push(false);
    }

    /// The earliest entry. It may be early, never late.
    pub(crate) fn first(&self) -> Option<(Instant, NodeId)> {
        #[expect(clippy::cast_possible_truncation, reason = "24 bits")]
        self.heap.first().map(|&key| (time_of(key), NodeId(node_of(key) as u32)))
    }

    /// Notes that `node` next wants to wake at `at`. Later than its entry: the entry stays.
    pub(crate) fn ask(&mut self, node: NodeId, at: Option<Instant>) {
        let Some(at) = at else {
            self.early[node.0 as usize] = true;
            return;
        };
        let place = self.place[node.0 as usize];
        if place == ABSENT {
            let key = self.key(node, at);
            self.heap.push(key);
            self.rise(self.heap.len() - 1, key);
            self.early[node.0 as usize] = false;
            return;
        }
        let entry = time_of(self.heap[place as usize]);
        if at < entry {
            let key = self.key(node, at);
            self.rise(place as usize, key);
        }
        self.early[node.0 as usize] = at > entry;
    }

    /// Whether the first entry may be earlier than its engine's deadline.
    pub(crate) fn first_is_early(&self) -> bool {
        self.heap.first().is_some_and(|&key| self.early[node_of(key)])
    }

    /// Replaces the first entry, which belongs to an engine that was just asked anew.
    pub(crate) fn expire(&mut self, at: Option<Instant>) {
        let node = node_of(self.heap[0]);
        self.early[node] = false;
        if let Some(at) = at {
            #[expect(clippy::cast_possible_truncation, reason = "24 bits")]
            let key = self.key(NodeId(node as u32), at);
            self.sink(key);
            return;
        }
        self.place[node] = ABSENT;
        let last = self.heap.pop().expect("there is a first entry");
        if !self.heap.is_empty() {
            self.sink(last);
        }
    }

    fn key(&mut self, node: NodeId, at: Instant) -> u128 {
        self.serial += 1;
        let order = (self.serial << NODE_BITS) | u64::from(node.0);
        (u128::from(at.as_nanos()) << 64) | u128::from(order)
    }

    fn put(&mut self, place: usize, key: u128) {
        self.heap[place] = key;
        self.place[node_of(key)] = u32::try_from(place).expect("at most 2^24 entries");
    }

    /// Places `key` at `hole` or above it.
    fn rise(&mut self, mut hole: usize, key: u128) {
        while hole > 0 {
            let parent = (hole - 1) / ARITY;
            if self.heap[parent] <= key {
                break;
            }
            self.put(hole, self.heap[parent]);
            hole = parent;
        }
        self.put(hole, key);
    }

    /// Places `key` at the top or below it.
    fn sink(&mut self, key: u128) {
        let mut hole = 0;
        loop {
            let first = hole * ARITY + 1;
            let end = (first + ARITY).min(self.heap.len());
            let Some(children) = self.heap.get(first..end) else { break };
            let (mut least, mut least_key) = (first, key);
            for (child, &child_key) in (first..).zip(children) {
                if child_key < least_key {
                    (least, least_key) = (child, child_key);
                }
            }
            if least_key == key {
                break;
            }
            self.put(hole, least_key);
            hole = least;
        }
        self.put(hole, key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    fn at(nanos: u64) -> Option<Instant> {
        Some(Instant::from_nanos(nanos))
    }

    fn wakes(engines: u32) -> Wakes {
        let mut wakes = Wakes::default();
        (0..engines).for_each(|_| wakes.add());
        wakes
    }

    #[test]
    fn ties_are_first_come_first_served() {
        let mut wakes = wakes(3);
        for node in [2, 0, 1] {
            wakes.ask(NodeId(node), at(5));
        }
        let mut order = Vec::new();
        while let Some((_, node)) = wakes.first() {
            order.push(node.0);
            wakes.expire(None);
        }
        assert_eq!(order, [2, 0, 1]);
    }

    #[test]
    fn an_earlier_deadline_moves_the_entry_and_a_later_one_leaves_it() {
        let mut wakes = wakes(2);
        wakes.ask(NodeId(0), at(10));
        wakes.ask(NodeId(1), at(20));
        wakes.ask(NodeId(1), at(5));
        assert_eq!(wakes.first(), Some((Instant::from_nanos(5), NodeId(1))));
        wakes.ask(NodeId(1), at(30));
        assert_eq!(wakes.first(), Some((Instant::from_nanos(5), NodeId(1))));
        wakes.expire(at(30));
        assert_eq!(wakes.first(), Some((Instant::from_nanos(10), NodeId(0))));
        wakes.ask(NodeId(0), None);
        assert_eq!(wakes.first(), Some((Instant::from_nanos(10), NodeId(0))));
    }

    /// Against a plain list that is searched in full: given random deadlines that move both ways,
    /// expect the same engines at the same instants.
    #[test]
    fn the_heap_agrees_with_a_plain_search() {
        let mut rng = Rng::stream(11, "wakes");
        let mut wakes = wakes(37);
        let mut wanted = vec![None; 37];
        let mut now = 0;
        for step in 0..20_000u64 {
            let node = rng.below(37);
            let deadline = (rng.below(4) > 0).then(|| now + rng.below(1_000));
            wanted[usize::try_from(node).expect("small")] = deadline;
            wakes.ask(NodeId(u32::try_from(node).expect("small")), deadline.and_then(at));
            if step % 3 > 0 {
                continue;
            }
            while let Some((entry, node)) = wakes.first() {
                let wish = wanted[node.0 as usize];
                if wish == Some(entry.as_nanos()) {
                    assert_eq!(wish, wanted.iter().flatten().min().copied());
                    now = entry.as_nanos();
                    wanted[node.0 as usize] = None;
                    wakes.expire(None);
                    break;
                }
                assert!(wish.is_none_or(|wish| wish > entry.as_nanos()), "an entry was late");
                wakes.expire(wish.and_then(at));
            }
        }
        assert!(now > 0);
    }
}
