//! The queue of pending wake-ups: a tournament tree (tree of losers) with one key per engine.
//!
//! A key is an instant and, for ties, an insertion number (FIFO). Engines are the
//! leaves of a binary tree. Each inner node stores the key that lost the match between its two
//! sides; the winner of the root is stored separately. Replacing the winner, which happens each time an
//! engine is woken, replays the matches on its path to the root: one comparison per node, and no write
//! where the new key wins (Knuth, The Art of Computer Programming 3, 5.4.1).
//!
//! The tree is skewed: it is a heap in which every node holds an engine and two subtrees, and therefore
//! two matches. Engine `i` is at most 2 log2(i + 1) + 1 matches from the root. The engines that are added
//! first (the directions of a link, whose deadlines change with every packet) therefore cost the same few
//! steps among a thousand hosts as among two.
//!
//! Increasing a key is lazy: the old key stays in the tree and is requeued when it comes first. A
//! retransmission timer that each ACK rearms thus costs one comparison per ACK, and one path to the
//! root per timeout. A key gets its insertion number when it is queued.

use crate::time::Instant;
use crate::trace::NodeId;

const INDEX_BITS: u32 = 24;
const INDEX_MASK: u64 = (1 << INDEX_BITS) - 1;
/// Later than every instant.
const NEVER: u64 = u64::MAX;

/// When an engine is due, and its order among those that are due at the same instant.
#[derive(Clone, Copy, Debug)]
struct Key {
    nanos: u64,
    /// The insertion number, with the heap index of the engine in the lowest bits.
    order: u64,
}

/// The key of an absent engine. Its heap index is higher than all others.
const NO_KEY: Key = Key { nanos: NEVER, order: u64::MAX };

impl Key {
    fn is_before(self, other: Self) -> bool {
        self.nanos < other.nanos || (self.nanos == other.nanos && self.order < other.order)
    }

    /// The heap index of the engine; the root is 1.
    fn index(self) -> usize {
        (self.order & INDEX_MASK) as usize
    }
}

/// Of the two matches at a heap node: one subtree against the other.
const SUBTREES: usize = 0;
/// The winner of that match against the engine of the node.
const OWN: usize = 1;

/// The deadline that an engine requested, and the key that is queued for it, which is never later.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    requested: u64,
    queued: u64,
}

impl Deadline {
    /// Whether the queued key is too early.
    #[inline]
    pub(crate) fn is_stale(&self) -> bool {
        self.requested != self.queued
    }
}

/// See the module's description.
#[derive(Clone, Debug)]
pub(crate) struct WakeQueue {
    /// The smallest of all keys.
    first: Key,
    /// The losers of the matches at each heap node, by index; index 0 is unused.
    losers: Vec<[Key; 2]>,
    /// The last insertion number, above the bits of a heap index.
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
    /// Adds an engine that is not due.
    pub(crate) fn add(&mut self) -> Deadline {
        let index = self.losers.len();
        assert!(index < INDEX_MASK as usize, "a graph holds fewer than 2^24 engines");
        self.losers.push([NO_KEY; 2]);
        let idle = Key { nanos: NEVER, order: index as u64 };
        // The winner so far stays the winner until a key is decreased.
        match index {
            1 => self.first = idle,
            _ if index.is_multiple_of(2) => self.losers[index / 2][OWN] = idle,
            _ => self.losers[index / 2][SUBTREES] = idle,
        }
        Deadline { requested: NEVER, queued: NEVER }
    }

    /// The number of the engine with the smallest key; its deadline may be later by now. Not a valid
    /// engine number if there are no engines.
    #[inline]
    pub(crate) fn first(&self) -> usize {
        self.first.index() - 1
    }

    /// The smallest key, if any engine is due.
    #[inline]
    pub(crate) fn first_at(&self) -> Option<Instant> {
        (self.first.nanos != NEVER).then(|| Instant::from_nanos(self.first.nanos))
    }

    /// The smallest key, if it is not after `limit`.
    #[inline]
    pub(crate) fn first_until(&self, limit: Instant) -> Option<Instant> {
        (self.first.nanos <= limit.as_nanos()).then(|| Instant::from_nanos(self.first.nanos))
    }

    /// Sets the deadline of `node`; its key is decreased if it is later than that.
    #[inline]
    pub(crate) fn request(&mut self, node: NodeId, deadline: &mut Deadline, at: Option<Instant>) {
        deadline.requested = nanos(at);
        if deadline.requested < deadline.queued {
            deadline.queued = deadline.requested;
            self.decrease_key(index_of(node), deadline.requested);
        }
    }

    /// Sets the deadline of the first engine and replaces its key.
    #[inline]
    pub(crate) fn reschedule_first(&mut self, deadline: &mut Deadline, at: Option<Instant>) {
        deadline.requested = nanos(at);
        self.requeue_first(deadline);
    }

    /// Replaces the key of the first engine by the deadline that it last requested.
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

    /// Decreases the key of an engine. The key may now win against the key that it lost to, which may
    /// itself have lost further up.
    #[cold]
    #[inline(never)]
    fn decrease_key(&mut self, index: usize, nanos: u64) {
        let key = self.new_key(index, nanos);
        // The node that stores the key. On the path to the root the first loser that came by the same
        // path is the old key, the next one is the key that won against it, and so on.
        let is_kept_here = self.losers[index][OWN].index() == index;
        let mut kept = is_kept_here.then_some((index, OWN));
        let mut child = index;
        'path: while child > 1 {
            let node = child / 2;
            for contest in [SUBTREES, OWN] {
                let loser = self.losers[node][contest];
                let is_on_path = match contest {
                    SUBTREES => is_within(loser.index(), child),
                    _ => loser.index() != node,
                };
                if !is_on_path {
                    continue;
                }
                if let Some((kept_at, kept_contest)) = kept {
                    if !key.is_before(loser) {
                        break 'path;
                    }
                    self.losers[kept_at][kept_contest] = loser;
                }
                kept = Some((node, contest));
            }
            child = node;
        }
        let mut loser = key;
        if key.is_before(self.first) {
            loser = std::mem::replace(&mut self.first, key);
        }
        // If no node stores the old key, it was the overall winner.
        if let Some((index, contest)) = kept {
            self.losers[index][contest] = loser;
        }
    }
}

/// Whether a heap index is in the subtree of another.
fn is_within(index: usize, root: usize) -> bool {
    index >= root && index >> (index.ilog2() - root.ilog2()) == root
}

/// Plays a match: returns the winner and stores the loser.
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

    /// The queue together with the deadlines, which a graph stores with its engines.
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

    /// Given random deadlines that move both ways, are cancelled and often tie, expect the same engine
    /// at the same instant as by a linear search of a list.
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

    /// Given engines that are added while others are queued, expect the order of the deadlines.
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
