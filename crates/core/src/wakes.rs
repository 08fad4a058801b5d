//! The pending wake-ups: one entry an engine, in a tournament tree of packed keys.
//!
//! A key packs (instant, insertion number, engine) into 128 bits, so that one comparison decides
//! and ties are first come, first served. Engines are leaves, each inner node holds the least key
//! below it, and a change climbs until it no longer matters.
//!
//! The tree leans: engine 0 hangs one step below the root, engines 1 and 2 under the next inner node,
//! 3 to 6 under the one after it, and so on. Engine `i` is at most 2 log2(i + 1) + 1 steps from the
//! root, so those that were added first (a link's directions, whose deadline moves with every
//! packet) cost the same few steps among a thousand hosts as among two.
//!
//! A deadline that moves later is not noted at once: the old key stays, and whoever finds it first
//! asks the engine anew. A retransmission timer that each ACK pushes back thus costs one comparison
//! an ACK and one question a time-out. Turns among ties are taken when a key is set.

use crate::time::Instant;
use crate::trace::NodeId;

const NODE_BITS: u32 = 24;
/// Larger than every key: no engine has this number.
const ABSENT: u128 = u128::MAX;
/// Places for engines in the tree: subtrees of 1, 2, 4, ... leaves, one under each inner node of the
/// spine.
const SPINE: usize = NODE_BITS as usize;

/// See the module's description.
#[derive(Clone, Debug)]
pub(crate) struct Wakes {
    /// The least key of subtree `k` and all subtrees after it.
    spine: [u128; SPINE + 1],
    /// The subtrees one after the other, each as a heap-shaped tournament: subtree `k` has its root
    /// at 1 and its leaves from `2^k`, and begins at `2^(k + 1)`.
    trees: Vec<u128>,
    /// Whether an engine's deadline is later than its key, or gone.
    stale: Vec<bool>,
    engines: usize,
    serial: u64,
}

impl Default for Wakes {
    fn default() -> Self {
        Self {
            spine: [ABSENT; SPINE + 1],
            trees: Vec::new(),
            stale: Vec::new(),
            engines: 0,
            serial: 0,
        }
    }
}

fn time_of(key: u128) -> Instant {
    Instant::from_nanos((key >> 64) as u64)
}

/// The subtree of an engine and its leaf there.
fn place_of(node: NodeId) -> (usize, usize) {
    let place = node.0 as usize + 1;
    (place.ilog2() as usize, place)
}

/// Where a subtree begins among all.
fn start_of(subtree: usize) -> usize {
    2 << subtree
}

impl Wakes {
    /// Makes room for one more engine.
    pub(crate) fn add(&mut self) {
        assert!(self.engines + 1 < (1 << NODE_BITS), "a graph holds fewer than 2^24 engines");
        let subtree = (self.engines + 1).ilog2() as usize;
        self.trees.resize(start_of(subtree + 1), ABSENT);
        self.stale.push(false);
        self.engines += 1;
    }

    /// Whether the key of `node` is too early.
    pub(crate) fn is_stale(&self, node: NodeId) -> bool {
        self.stale[node.0 as usize]
    }

    /// The earliest key and whose it is; the engine's deadline may have moved later since.
    pub(crate) fn first(&self) -> Option<(Instant, NodeId)> {
        let key = self.spine[0];
        (key != ABSENT).then(|| (time_of(key), NodeId((key & ((1 << NODE_BITS) - 1)) as u32)))
    }

    /// Notes that `node` next wants to wake at `at`, unless its key is due before that anyway.
    #[inline]
    pub(crate) fn ask(&mut self, node: NodeId, at: Option<Instant>) {
        let (subtree, leaf) = place_of(node);
        let key = self.trees[start_of(subtree) + leaf];
        match at {
            Some(at) if key == ABSENT || at < time_of(key) => self.set(node, Some(at)),
            at => self.stale[node.0 as usize] = key != ABSENT && at != Some(time_of(key)),
        }
    }

    /// Notes when `node` wants to wake next, in place of what was noted before.
    pub(crate) fn set(&mut self, node: NodeId, at: Option<Instant>) {
        let (subtree, leaf) = place_of(node);
        self.stale[node.0 as usize] = false;
        let mut least = ABSENT;
        if let Some(at) = at {
            self.serial += 1;
            let order = (self.serial << NODE_BITS) | u64::from(node.0);
            least = (u128::from(at.as_nanos()) << 64) | u128::from(order);
        }
        let tree = &mut self.trees[start_of(subtree)..start_of(subtree + 1)];
        let mut place = leaf;
        tree[place] = least;
        while place > 1 {
            least = least.min(tree[place ^ 1]);
            place /= 2;
            if tree[place] == least {
                return;
            }
            tree[place] = least;
        }
        // From here up, each inner node has the subtree on one side and the rest of the spine on the
        // other.
        least = least.min(self.spine[subtree + 1]);
        for spine in (0..=subtree).rev() {
            if self.spine[spine] == least {
                return;
            }
            self.spine[spine] = least;
            if spine > 0 {
                least = least.min(self.trees[start_of(spine - 1) + 1]);
            }
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
        wakes.set(node, None);
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
    fn an_earlier_deadline_is_noted_at_once_and_a_later_one_when_it_is_set() {
        let mut wakes = wakes(2);
        wakes.ask(NodeId(0), at(10));
        wakes.ask(NodeId(1), at(20));
        wakes.ask(NodeId(1), at(5));
        assert_eq!(wakes.first(), Some((Instant::from_nanos(5), NodeId(1))));
        wakes.ask(NodeId(1), at(30));
        wakes.ask(NodeId(1), None);
        assert_eq!(wakes.first(), Some((Instant::from_nanos(5), NodeId(1))));
        wakes.set(NodeId(1), at(30));
        assert_eq!(wakes.first(), Some((Instant::from_nanos(10), NodeId(0))));
        wakes.set(NodeId(0), None);
        assert_eq!(pop(&mut wakes), Some((30, 1)));
        assert_eq!(wakes.first(), None);
    }

    #[test]
    fn a_deadline_that_stays_keeps_its_turn() {
        let mut wakes = wakes(2);
        wakes.ask(NodeId(0), at(5));
        wakes.ask(NodeId(1), at(5));
        wakes.ask(NodeId(0), at(5));
        let order: Vec<_> = std::iter::from_fn(|| pop(&mut wakes)).collect();
        assert_eq!(order, [(5, 0), (5, 1)]);
    }

    /// Against a plain list that is searched in full: given random deadlines that move both ways,
    /// go away and tie often, expect the same engine at the same instant each time.
    #[test]
    fn the_tree_agrees_with_a_plain_search() {
        let mut rng = Rng::stream(11, "wakes");
        let mut wakes = wakes(37);
        let mut noted: Vec<Option<(u64, u64)>> = vec![None; 37];
        for step in 0..20_000u64 {
            let node = usize::try_from(rng.below(37)).expect("small");
            let deadline = (rng.below(4) > 0).then(|| 1 + rng.below(50));
            let id = NodeId(u32::try_from(node).expect("small"));
            if rng.below(2) == 0 {
                wakes.set(id, deadline.and_then(at));
                noted[node] = deadline.map(|deadline| (deadline, step));
            } else {
                wakes.ask(id, deadline.and_then(at));
                let earlier = |deadline| noted[node].is_none_or(|(noted, _)| deadline < noted);
                if let Some(deadline) = deadline.filter(|&deadline| earlier(deadline)) {
                    noted[node] = Some((deadline, step));
                }
            }
            let first = (0..37u32).filter_map(|n| noted[n as usize].map(|key| (key, n))).min();
            let expected =
                first.map(|((deadline, _), n)| (Instant::from_nanos(deadline), NodeId(n)));
            assert_eq!(wakes.first(), expected);
        }
    }
}
