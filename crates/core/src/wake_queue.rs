//! The pending wake-ups: one key an engine, in a tournament that remembers losers.
//!
//! A key is an instant and, for ties, the number of its insertion: first come, first served. Engines
//! are the leaves of a binary tree; each inner node keeps the key that lost the match between the
//! two sides, and the one that lost none is kept apart. When that one is set anew (which is what
//! serving an engine does), it meets the losers on its way to the root, one comparison a node, and
//! where it wins nothing is written (Knuth, The Art of Computer Programming 3, 5.4.1).
//!
//! The tree leans: it is a heap whose every node carries an engine and two subtrees, so two matches.
//! Engine `i` is at most 2 log2(i + 1) + 1 matches from the root, so those that were added first (a
//! link's directions, whose deadline moves with every packet) cost the same few steps among a
//! thousand hosts as among two.
//!
//! A deadline that moves later is not queued at once: the old key stays, and is set anew when it comes
//! up. A retransmission timer that each ACK pushes back thus costs one comparison an ACK, and one way
//! to the root a time-out. Turns among ties are taken when a key is set.

use crate::time::Instant;
use crate::trace::NodeId;

const INDEX_BITS: u32 = 24;
const INDEX_MASK: u64 = (1 << INDEX_BITS) - 1;
/// Later than every instant.
const NEVER: u64 = u64::MAX;

/// When an engine is due, and its turn among those that are due then.
#[derive(Clone, Copy, Debug)]
struct Key {
    nanos: u64,
    /// The insertion number, and the engine's place in the lowest bits.
    order: u64,
}

/// The other side of a match, where no engine is. Its place is to the right of all.
const NO_KEY: Key = Key { nanos: NEVER, order: u64::MAX };

impl Key {
    fn is_before(self, other: Self) -> bool {
        self.nanos < other.nanos || (self.nanos == other.nanos && self.order < other.order)
    }

    /// The node of the heap that carries the engine; the root is 1.
    fn index(self) -> usize {
        (self.order & INDEX_MASK) as usize
    }
}

/// Of the two matches at a node of the heap: one subtree against the other.
const SUBTREES: usize = 0;
/// The winner of that one against the engine of the node.
const OWN: usize = 1;

/// What an engine asked for, and what is queued of it: never later.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    requested: u64,
    queued: u64,
}

impl Deadline {
    /// Whether the key of the engine is too early.
    #[inline]
    pub(crate) fn is_stale(&self) -> bool {
        self.requested != self.queued
    }
}

/// See the module's description.
#[derive(Clone, Debug)]
pub(crate) struct WakeQueue {
    /// The least of all keys.
    first: Key,
    /// Who lost at each node of the heap, by place; nothing is at place 0.
    losers: Vec<[Key; 2]>,
    /// The last insertion number, above the bits of a place.
    serial: u64,
}

impl Default for WakeQueue {
    fn default() -> Self {
        Self { first: NO_KEY, losers: vec![[NO_KEY; 2]], serial: 0 }
    }
}

fn index_of(node: NodeId) -> usize {
    node.0 as usize + 1
}

#[inline]
fn nanos(at: Option<Instant>) -> u64 {
    at.map_or(NEVER, Instant::as_nanos)
}

impl WakeQueue {
    /// Makes room for one more engine, which asks for nothing yet.
    pub(crate) fn add(&mut self) -> Deadline {
        let index = self.losers.len();
        assert!(index < INDEX_MASK as usize, "a graph holds fewer than 2^24 engines");
        self.losers.push([NO_KEY; 2]);
        let idle = Key { nanos: NEVER, order: index as u64 };
        // Whoever is there already wins, until somebody asks for something.
        match index {
            1 => self.first = idle,
            _ if index.is_multiple_of(2) => self.losers[index / 2][OWN] = idle,
            _ => self.losers[index / 2][SUBTREES] = idle,
        }
        Deadline { requested: NEVER, queued: NEVER }
    }

    /// The number of the engine whose key is the earliest; its deadline may have moved later since.
    /// Without engines, that of none.
    #[inline]
    pub(crate) fn first(&self) -> usize {
        self.first.index() - 1
    }

    /// When the first engine is due, if at all.
    #[inline]
    pub(crate) fn first_at(&self) -> Option<Instant> {
        (self.first.nanos != NEVER).then(|| Instant::from_nanos(self.first.nanos))
    }

    /// When the first engine is due, if that is not after `limit`.
    #[inline]
    pub(crate) fn first_until(&self, limit: Instant) -> Option<Instant> {
        (self.first.nanos <= limit.as_nanos()).then(|| Instant::from_nanos(self.first.nanos))
    }

    /// Notes that `node` next wants to wake at `at`, unless its key is due before that anyway.
    #[inline]
    pub(crate) fn request(&mut self, node: NodeId, deadline: &mut Deadline, at: Option<Instant>) {
        deadline.requested = nanos(at);
        if deadline.requested < deadline.queued {
            deadline.queued = deadline.requested;
            self.decrease_key(index_of(node), deadline.requested);
        }
    }

    /// Notes when the first engine, whose deadline this is, wants to wake next, in place of what was
    /// queued before.
    #[inline]
    pub(crate) fn reschedule_first(&mut self, deadline: &mut Deadline, at: Option<Instant>) {
        deadline.requested = nanos(at);
        self.requeue_first(deadline);
    }

    /// Notes what the first engine, whose deadline this is, asked for last.
    #[inline]
    pub(crate) fn requeue_first(&mut self, deadline: &mut Deadline) {
        deadline.queued = deadline.requested;
        let mut index = self.first.index();
        let mut key = self.new_key(index, deadline.requested);
        key = play(&mut self.losers[index][OWN], key);
        while index > 1 {
            index /= 2;
            let losers = &mut self.losers[index];
            key = play(&mut losers[SUBTREES], key);
            key = play(&mut losers[OWN], key);
        }
        self.first = key;
    }

    #[inline]
    fn new_key(&mut self, index: usize, nanos: u64) -> Key {
        self.serial += 1 << INDEX_BITS;
        Key { nanos, order: self.serial | index as u64 }
    }

    /// Sets a key to an earlier instant than it had. It may now beat whom it lost to, who may have
    /// lost further up.
    #[cold]
    #[inline(never)]
    fn decrease_key(&mut self, index: usize, nanos: u64) {
        let key = self.new_key(index, nanos);
        // Where the key is kept. The first loser on the way up that came the same way is this key as it
        // was, the next one is who beat it, and so on.
        let mut kept: Option<(usize, usize)> = None;
        for (index, contest, child) in path_to_root(index) {
            let loser = self.losers[index][contest];
            let is_on_path = match contest {
                SUBTREES => is_within(loser.index(), child),
                _ => (loser.index() == index) == (child == 0),
            };
            if !is_on_path {
                continue;
            }
            if let Some((kept_at, kept_contest)) = kept {
                if !key.is_before(loser) {
                    break;
                }
                self.losers[kept_at][kept_contest] = loser;
            }
            kept = Some((index, contest));
        }
        let mut loser = key;
        if key.is_before(self.first) {
            loser = std::mem::replace(&mut self.first, key);
        }
        // Who was the first of all is nowhere else.
        if let Some((index, contest)) = kept {
            self.losers[index][contest] = loser;
        }
    }
}

/// The matches between an engine and the root, and the node from which the way comes there, if any.
fn path_to_root(index: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    let nodes = std::iter::successors(Some(index), |index| Some(index / 2));
    let above = nodes.take_while(|&child| child > 1);
    let above = above.flat_map(|child| [(child / 2, SUBTREES, child), (child / 2, OWN, child)]);
    std::iter::once((index, OWN, 0)).chain(above)
}

/// Whether a place is in the subtree of another.
fn is_within(index: usize, root: usize) -> bool {
    index >= root && index >> (index.ilog2() - root.ilog2()) == root
}

/// The winner of a match; the loser stays.
#[inline]
fn play(loser: &mut Key, key: Key) -> Key {
    if loser.is_before(key) { std::mem::replace(loser, key) } else { key }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    fn at(nanos: u64) -> Option<Instant> {
        Some(Instant::from_nanos(nanos))
    }

    /// The tournament together with the deadlines, which a graph keeps beside its engines.
    struct TestQueue {
        wakes: WakeQueue,
        deadlines: Vec<Deadline>,
    }

    impl TestQueue {
        fn new(engines: usize) -> Self {
            let mut wakes = WakeQueue::default();
            let deadlines = (0..engines).map(|_| wakes.add()).collect();
            Self { wakes, deadlines }
        }

        fn request(&mut self, node: u32, at: Option<Instant>) {
            self.wakes.request(NodeId(node), &mut self.deadlines[node as usize], at);
        }

        fn reschedule_first(&mut self, at: Option<Instant>) {
            self.wakes.reschedule_first(&mut self.deadlines[self.wakes.first()], at);
        }

        fn first(&self) -> Option<(u64, usize)> {
            self.wakes.first_at().map(|at| (at.as_nanos(), self.wakes.first()))
        }

        fn pop(&mut self) -> Option<(u64, usize)> {
            let first = self.first()?;
            self.reschedule_first(None);
            Some(first)
        }
    }

    #[test]
    fn ties_are_served_in_request_order() {
        let mut queue = TestQueue::new(3);
        for node in [2, 0, 1] {
            queue.request(node, at(5));
        }
        let order: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order, [(5, 2), (5, 0), (5, 1)]);
    }

    #[test]
    fn an_earlier_deadline_is_queued_at_once_and_a_later_one_lazily() {
        let mut queue = TestQueue::new(2);
        queue.request(0, at(10));
        queue.request(1, at(20));
        queue.request(1, at(5));
        assert_eq!(queue.first(), Some((5, 1)));
        queue.request(1, None);
        queue.request(1, at(30));
        assert_eq!(queue.first(), Some((5, 1)));
        assert!(queue.deadlines[1].is_stale());
        queue.wakes.requeue_first(&mut queue.deadlines[1]);
        assert!(!queue.deadlines[1].is_stale());
        assert_eq!(queue.pop(), Some((10, 0)));
        assert_eq!(queue.pop(), Some((30, 1)));
        assert_eq!(queue.first(), None);
    }

    #[test]
    fn an_unchanged_deadline_keeps_its_order() {
        let mut queue = TestQueue::new(2);
        for node in [0, 1, 0] {
            queue.request(node, at(5));
        }
        let order: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order, [(5, 0), (5, 1)]);
    }

    /// Against a plain list that is searched in full: given random deadlines that move both ways,
    /// go away and tie often, expect the same engine at the same instant each time.
    #[test]
    fn the_queue_agrees_with_a_linear_search() {
        for engines in [1, 2, 3, 4, 5, 7, 8, 37] {
            let mut rng = Rng::stream(engines, "wakes");
            let engines = usize::try_from(engines).expect("small");
            let mut queue = TestQueue::new(engines);
            let mut queued: Vec<Option<(u64, u64)>> = vec![None; engines];
            for step in 0..20_000u64 {
                let deadline = (rng.below(4) > 0).then(|| 1 + rng.below(50));
                if rng.below(2) == 0 && queue.first().is_some() {
                    queued[queue.wakes.first()] = deadline.map(|deadline| (deadline, step));
                    queue.reschedule_first(deadline.and_then(at));
                } else {
                    let node = rng.below(engines as u64);
                    queue.request(u32::try_from(node).expect("small"), deadline.and_then(at));
                    let queued = &mut queued[usize::try_from(node).expect("small")];
                    let earlier =
                        |&deadline: &u64| queued.is_none_or(|(queued, _)| deadline < queued);
                    if let Some(deadline) = deadline.filter(earlier) {
                        *queued = Some((deadline, step));
                    }
                }
                let first = (0..engines).filter_map(|n| queued[n].map(|key| (key, n))).min();
                let expected = first.map(|((deadline, _), n)| (deadline, n));
                assert_eq!(queue.first(), expected, "{engines} engines, step {step}");
            }
        }
    }

    /// Engines may be added when others already wait.
    #[test]
    fn an_engine_added_late_is_queued_with_the_others() {
        let mut queue = TestQueue::new(0);
        let deadlines = [7u64, 3, 9, 3, 1, 8, 2, 6, 5];
        for (node, deadline) in deadlines.into_iter().enumerate() {
            let idle = queue.wakes.add();
            queue.deadlines.push(idle);
            queue.request(u32::try_from(node).expect("small"), at(deadline));
        }
        let order: Vec<_> = std::iter::from_fn(|| queue.pop()).map(|(_, node)| node).collect();
        assert_eq!(order, [4, 6, 1, 3, 8, 7, 0, 5, 2]);
    }
}
