//! The pending wake-ups: one entry an engine, in a tournament tree of packed keys.
//!
//! A key packs (instant, insertion number, engine) into 128 bits, so that one comparison decides
//! and ties are first come, first served. Engines are leaves, each inner node holds the least key
//! below it, and a change climbs until it no longer matters: at most log2 of the number of engines
//! steps. A timer that moves later with every ACK is rarely the least of its neighbours, so its
//! changes end within a step or two.

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
    serial: u64,
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

    /// The earliest deadline and whose it is. Looking changes nothing.
    pub(crate) fn first(&self) -> Option<(Instant, NodeId)> {
        let &key = self.tree.get(1).filter(|&&key| key != ABSENT)?;
        Some((time_of(key), NodeId((key & ((1 << NODE_BITS) - 1)) as u32)))
    }

    /// Notes that `node` next wants to wake at `at`. A deadline that stays keeps its turn among
    /// ties; one that moves goes behind those that were there before.
    pub(crate) fn ask(&mut self, node: NodeId, at: Option<Instant>) {
        let leaf = self.tree.len() / 2 + node.0 as usize;
        let entry = self.tree[leaf];
        let Some(at) = at else {
            if entry != ABSENT {
                self.set(leaf, ABSENT);
            }
            return;
        };
        if entry == ABSENT || time_of(entry) != at {
            self.serial += 1;
            let order = (self.serial << NODE_BITS) | u64::from(node.0);
            self.set(leaf, (u128::from(at.as_nanos()) << 64) | u128::from(order));
        }
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

    fn pop(wakes: &mut Wakes) -> Option<(u64, u32)> {
        let (at, node) = wakes.first()?;
        wakes.ask(node, None);
        Some((at.as_nanos(), node.0))
    }

    #[test]
    fn ties_are_first_come_first_served() {
        let mut wakes = wakes(3);
        for node in [2, 0, 1] {
            wakes.ask(NodeId(node), at(5));
        }
        let order: Vec<_> = std::iter::from_fn(|| pop(&mut wakes)).collect();
        assert_eq!(order, [(5, 2), (5, 0), (5, 1)]);
    }

    #[test]
    fn a_deadline_moves_both_ways_and_goes_away() {
        let mut wakes = wakes(2);
        wakes.ask(NodeId(0), at(10));
        wakes.ask(NodeId(1), at(20));
        wakes.ask(NodeId(1), at(5));
        assert_eq!(wakes.first(), Some((Instant::from_nanos(5), NodeId(1))));
        wakes.ask(NodeId(1), at(30));
        assert_eq!(wakes.first(), Some((Instant::from_nanos(10), NodeId(0))));
        wakes.ask(NodeId(0), None);
        assert_eq!(pop(&mut wakes), Some((30, 1)));
        assert_eq!(wakes.first(), None);
    }

    #[test]
    fn a_deadline_that_comes_back_has_lost_its_turn() {
        let mut wakes = wakes(2);
        wakes.ask(NodeId(0), at(5));
        wakes.ask(NodeId(1), at(5));
        wakes.ask(NodeId(0), at(9));
        wakes.ask(NodeId(0), at(5));
        let order: Vec<_> = std::iter::from_fn(|| pop(&mut wakes)).collect();
        assert_eq!(order, [(5, 1), (5, 0)]);
    }

    /// Engine 0 moves to 10 before engine 1 asks for 10: it comes first, whether or not anybody
    /// looked at the tree in between. An unchanged deadline keeps its turn.
    #[test]
    fn a_turn_among_ties_is_taken_when_the_deadline_is_set() {
        for looks in [false, true] {
            let mut wakes = wakes(3);
            wakes.ask(NodeId(2), at(10));
            wakes.ask(NodeId(0), at(5));
            wakes.ask(NodeId(0), at(10));
            wakes.ask(NodeId(1), at(10));
            if looks {
                assert_eq!(wakes.first(), Some((Instant::from_nanos(10), NodeId(2))));
            }
            wakes.ask(NodeId(2), at(10));
            let order: Vec<_> = std::iter::from_fn(|| pop(&mut wakes)).collect();
            assert_eq!(order, [(10, 2), (10, 0), (10, 1)]);
        }
    }

    /// Against a plain list that is searched in full: given random deadlines that move both ways,
    /// go away and tie often, expect the same engine at the same instant each time.
    #[test]
    fn the_tree_agrees_with_a_plain_search() {
        let mut rng = Rng::stream(11, "wakes");
        let mut wakes = wakes(37);
        let mut wanted: Vec<Option<(u64, u64)>> = vec![None; 37];
        let mut now = 0;
        for step in 0..20_000u64 {
            let node = usize::try_from(rng.below(37)).expect("small");
            let deadline = (rng.below(4) > 0).then(|| now + 1 + rng.below(50));
            if wanted[node].map(|wish| wish.0) != deadline {
                wanted[node] = deadline.map(|deadline| (deadline, step));
            }
            wakes.ask(NodeId(u32::try_from(node).expect("small")), deadline.and_then(at));
            if step % 3 > 0 {
                continue;
            }
            let first = (0..37u32).filter_map(|n| wanted[n as usize].map(|wish| (wish, n))).min();
            let expected = first.map(|((deadline, _), node)| (deadline, node));
            assert_eq!(pop(&mut wakes), expected);
            if let Some((deadline, node)) = expected {
                now = deadline;
                wanted[node as usize] = None;
            }
        }
        assert!(now > 0);
    }
}
