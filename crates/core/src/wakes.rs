//! The pending wake-ups: one entry an engine, in a tournament tree of packed keys.
//!
//! A key packs (instant, insertion number, engine) into 128 bits, so that one comparison decides
//! and ties are first come, first served. Engines are leaves, each inner node holds the least key
//! below it, and a change climbs until it no longer matters: at most log2 of the number of engines
//! steps. A binary heap with a place for each engine measured the same and took twice the code.
//!
//! An engine whose deadline moves later keeps its entry: a retransmission timer moves later with
//! every ACK. Once the entry is reached it turns out to be early, and [`Wakes::expire`] re-asks.

use crate::time::Instant;
use crate::trace::NodeId;

const NODE_BITS: u32 = 24;
/// Larger than every key: no engine has this number.
const ABSENT: u128 = u128::MAX;

/// See the module's description.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wakes {
    /// Inner nodes from 1 (the root), children of `i` at `2 i` and `2 i + 1`, leaves at the end.
    tree: Vec<u128>,
    engines: usize,
    /// Whether the engine's deadline moved later, or away, since its entry was made.
    early: Vec<bool>,
    serial: u64,
}

fn node_of(key: u128) -> usize {
    (key & ((1 << NODE_BITS) - 1)) as usize
}

fn time_of(key: u128) -> Instant {
    Instant::from_nanos((key >> 64) as u64)
}

impl Wakes {
    /// Makes room for one more engine.
    pub(crate) fn add(&mut self) {
        assert!(self.engines + 1 < (1 << NODE_BITS), "a graph holds fewer than 2^24 engines");
        if self.engines == self.tree.len() / 2 {
            self.grow();
        }
        self.engines += 1;
        self.early.push(false);
    }

    /// Doubles the leaves.
    fn grow(&mut self) {
        let leaves = self.tree.len() / 2;
        let mut tree = vec![ABSENT; (4 * leaves).max(2)];
        let first_leaf = tree.len() / 2;
        tree[first_leaf..first_leaf + leaves].copy_from_slice(&self.tree[leaves..]);
        for inner in (1..first_leaf).rev() {
            tree[inner] = tree[2 * inner].min(tree[2 * inner + 1]);
        }
        self.tree = tree;
    }

    /// The earliest entry. It may be early, never late.
    pub(crate) fn first(&self) -> Option<(Instant, NodeId)> {
        let &key = self.tree.get(1).filter(|&&key| key != ABSENT)?;
        #[expect(clippy::cast_possible_truncation, reason = "24 bits")]
        Some((time_of(key), NodeId(node_of(key) as u32)))
    }

    /// Notes that `node` next wants to wake at `at`. Later than its entry: the entry stays.
    pub(crate) fn ask(&mut self, node: NodeId, at: Option<Instant>) {
        let leaf = self.tree.len() / 2 + node.0 as usize;
        let entry = time_of(self.tree[leaf]);
        let Some(at) = at else {
            self.early[node.0 as usize] = true;
            return;
        };
        if at < entry {
            let key = self.key(node, at);
            self.set(leaf, key);
        }
        self.early[node.0 as usize] = at > entry;
    }

    /// Whether the first entry may be earlier than its engine's deadline.
    pub(crate) fn first_is_early(&self) -> bool {
        self.first().is_some_and(|(_, node)| self.early[node.0 as usize])
    }

    /// Replaces the first entry, which belongs to an engine that was just asked anew.
    pub(crate) fn expire(&mut self, at: Option<Instant>) {
        let Some((_, node)) = self.first() else { return };
        self.early[node.0 as usize] = false;
        let key = at.map_or(ABSENT, |at| self.key(node, at));
        self.set(self.tree.len() / 2 + node.0 as usize, key);
    }

    fn key(&mut self, node: NodeId, at: Instant) -> u128 {
        self.serial += 1;
        let order = (self.serial << NODE_BITS) | u64::from(node.0);
        (u128::from(at.as_nanos()) << 64) | u128::from(order)
    }

    /// Changes a leaf and every inner node for which that matters.
    fn set(&mut self, leaf: usize, key: u128) {
        let tree = self.tree.as_mut_slice();
        tree[leaf] = key;
        let mut place = leaf;
        let mut least = key;
        while place > 1 {
            least = least.min(tree[place ^ 1]);
            place /= 2;
            if tree[place] == least {
                break;
            }
            tree[place] = least;
        }
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
