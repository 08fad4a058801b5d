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
//! A deadline that moves later is not noted at once: the old key stays, and is set anew when it comes
//! up. A retransmission timer that each ACK pushes back thus costs one comparison an ACK, and one way
//! to the root a time-out. Turns among ties are taken when a key is set.

use crate::time::Instant;
use crate::trace::NodeId;

const PLACE_BITS: u32 = 24;
const PLACE_MASK: u64 = (1 << PLACE_BITS) - 1;
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
const NOBODY: Key = Key { nanos: NEVER, order: u64::MAX };

impl Key {
    fn is_before(self, other: Self) -> bool {
        self.nanos < other.nanos || (self.nanos == other.nanos && self.order < other.order)
    }

    /// The node of the heap that carries the engine; the root is 1.
    fn place(self) -> usize {
        (self.order & PLACE_MASK) as usize
    }
}

/// Of the two matches at a node of the heap: one subtree against the other.
const SIDES: usize = 0;
/// The winner of that one against the engine of the node.
const OWN: usize = 1;

/// What an engine asked for, and what is noted of it: never later.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Alarm {
    wanted: u64,
    noted: u64,
}

impl Alarm {
    /// Whether the key of the engine is too early.
    #[inline]
    pub(crate) fn is_stale(&self) -> bool {
        self.wanted != self.noted
    }
}

/// See the module's description.
#[derive(Clone, Debug)]
pub(crate) struct Wakes {
    /// The least of all keys.
    first: Key,
    /// Who lost at each node of the heap, by place; nothing is at place 0.
    losers: Vec<[Key; 2]>,
    /// The last insertion number, above the bits of a place.
    serial: u64,
}

impl Default for Wakes {
    fn default() -> Self {
        Self { first: NOBODY, losers: vec![[NOBODY; 2]], serial: 0 }
    }
}

fn place_of(node: NodeId) -> usize {
    node.0 as usize + 1
}

#[inline]
fn nanos(at: Option<Instant>) -> u64 {
    at.map_or(NEVER, Instant::as_nanos)
}

impl Wakes {
    /// Makes room for one more engine, which asks for nothing yet.
    pub(crate) fn add(&mut self) -> Alarm {
        let place = self.losers.len();
        assert!(place < PLACE_MASK as usize, "a graph holds fewer than 2^24 engines");
        self.losers.push([NOBODY; 2]);
        let idle = Key { nanos: NEVER, order: place as u64 };
        // Whoever is there already wins, until somebody asks for something.
        match place {
            1 => self.first = idle,
            _ if place.is_multiple_of(2) => self.losers[place / 2][OWN] = idle,
            _ => self.losers[place / 2][SIDES] = idle,
        }
        Alarm { wanted: NEVER, noted: NEVER }
    }

    /// The number of the engine whose key is the earliest; its deadline may have moved later since.
    /// Without engines, that of none.
    #[inline]
    pub(crate) fn first(&self) -> usize {
        self.first.place() - 1
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
    pub(crate) fn ask(&mut self, node: NodeId, alarm: &mut Alarm, at: Option<Instant>) {
        alarm.wanted = nanos(at);
        if alarm.wanted < alarm.noted {
            alarm.noted = alarm.wanted;
            self.hasten(place_of(node), alarm.wanted);
        }
    }

    /// Notes when the first engine, whose alarm this is, wants to wake next, in place of what was
    /// noted before.
    #[inline]
    pub(crate) fn set_first(&mut self, alarm: &mut Alarm, at: Option<Instant>) {
        alarm.wanted = nanos(at);
        self.renew_first(alarm);
    }

    /// Notes what the first engine, whose alarm this is, asked for last.
    #[inline]
    pub(crate) fn renew_first(&mut self, alarm: &mut Alarm) {
        alarm.noted = alarm.wanted;
        let mut place = self.first.place();
        let mut key = self.new_key(place, alarm.wanted);
        key = play(&mut self.losers[place][OWN], key);
        while place > 1 {
            place /= 2;
            let losers = &mut self.losers[place];
            key = play(&mut losers[SIDES], key);
            key = play(&mut losers[OWN], key);
        }
        self.first = key;
    }

    #[inline]
    fn new_key(&mut self, place: usize, nanos: u64) -> Key {
        self.serial += 1 << PLACE_BITS;
        Key { nanos, order: self.serial | place as u64 }
    }

    /// Sets a key to an earlier instant than it had. It may now beat whom it lost to, who may have
    /// lost further up.
    #[cold]
    #[inline(never)]
    fn hasten(&mut self, place: usize, nanos: u64) {
        let key = self.new_key(place, nanos);
        // Where the key is kept. The first loser on the way up that came the same way is this key as it
        // was, the next one is who beat it, and so on.
        let mut kept: Option<(usize, usize)> = None;
        for (place, game, child) in way_of(place) {
            let loser = self.losers[place][game];
            let came_the_same_way = match game {
                SIDES => is_within(loser.place(), child),
                _ => (loser.place() == place) == (child == 0),
            };
            if !came_the_same_way {
                continue;
            }
            if let Some((kept_at, kept_game)) = kept {
                if !key.is_before(loser) {
                    break;
                }
                self.losers[kept_at][kept_game] = loser;
            }
            kept = Some((place, game));
        }
        let mut loser = key;
        if key.is_before(self.first) {
            loser = std::mem::replace(&mut self.first, key);
        }
        // Who was the first of all is nowhere else.
        if let Some((place, game)) = kept {
            self.losers[place][game] = loser;
        }
    }
}

/// The matches between an engine and the root, and the node from which the way comes there, if any.
fn way_of(place: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    let nodes = std::iter::successors(Some(place), |place| Some(place / 2));
    let above = nodes.take_while(|&child| child > 1);
    let above = above.flat_map(|child| [(child / 2, SIDES, child), (child / 2, OWN, child)]);
    std::iter::once((place, OWN, 0)).chain(above)
}

/// Whether a place is in the subtree of another.
fn is_within(place: usize, root: usize) -> bool {
    place >= root && place >> (place.ilog2() - root.ilog2()) == root
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

    /// The tournament together with the alarms, which a graph keeps beside its engines.
    struct Bench {
        wakes: Wakes,
        alarms: Vec<Alarm>,
    }

    impl Bench {
        fn new(engines: usize) -> Self {
            let mut wakes = Wakes::default();
            let alarms = (0..engines).map(|_| wakes.add()).collect();
            Self { wakes, alarms }
        }

        fn ask(&mut self, node: u32, at: Option<Instant>) {
            self.wakes.ask(NodeId(node), &mut self.alarms[node as usize], at);
        }

        fn set_first(&mut self, at: Option<Instant>) {
            self.wakes.set_first(&mut self.alarms[self.wakes.first()], at);
        }

        fn first(&self) -> Option<(u64, usize)> {
            self.wakes.first_at().map(|at| (at.as_nanos(), self.wakes.first()))
        }

        fn pop(&mut self) -> Option<(u64, usize)> {
            let first = self.first()?;
            self.set_first(None);
            Some(first)
        }
    }

    #[test]
    fn ties_are_first_come_first_served() {
        let mut bench = Bench::new(3);
        for node in [2, 0, 1] {
            bench.ask(node, at(5));
        }
        let order: Vec<_> = std::iter::from_fn(|| bench.pop()).collect();
        assert_eq!(order, [(5, 2), (5, 0), (5, 1)]);
    }

    #[test]
    fn an_earlier_deadline_is_noted_at_once_and_a_later_one_when_it_comes_up() {
        let mut bench = Bench::new(2);
        bench.ask(0, at(10));
        bench.ask(1, at(20));
        bench.ask(1, at(5));
        assert_eq!(bench.first(), Some((5, 1)));
        bench.ask(1, None);
        bench.ask(1, at(30));
        assert_eq!(bench.first(), Some((5, 1)));
        assert!(bench.alarms[1].is_stale());
        bench.wakes.renew_first(&mut bench.alarms[1]);
        assert!(!bench.alarms[1].is_stale());
        assert_eq!(bench.pop(), Some((10, 0)));
        assert_eq!(bench.pop(), Some((30, 1)));
        assert_eq!(bench.first(), None);
    }

    #[test]
    fn a_deadline_that_stays_keeps_its_turn() {
        let mut bench = Bench::new(2);
        for node in [0, 1, 0] {
            bench.ask(node, at(5));
        }
        let order: Vec<_> = std::iter::from_fn(|| bench.pop()).collect();
        assert_eq!(order, [(5, 0), (5, 1)]);
    }

    /// Against a plain list that is searched in full: given random deadlines that move both ways,
    /// go away and tie often, expect the same engine at the same instant each time.
    #[test]
    fn the_tournament_agrees_with_a_plain_search() {
        for engines in [1, 2, 3, 4, 5, 7, 8, 37] {
            let mut rng = Rng::stream(engines, "wakes");
            let engines = usize::try_from(engines).expect("small");
            let mut bench = Bench::new(engines);
            let mut noted: Vec<Option<(u64, u64)>> = vec![None; engines];
            for step in 0..20_000u64 {
                let deadline = (rng.below(4) > 0).then(|| 1 + rng.below(50));
                if rng.below(2) == 0 && bench.first().is_some() {
                    noted[bench.wakes.first()] = deadline.map(|deadline| (deadline, step));
                    bench.set_first(deadline.and_then(at));
                } else {
                    let node = rng.below(engines as u64);
                    bench.ask(u32::try_from(node).expect("small"), deadline.and_then(at));
                    let noted = &mut noted[usize::try_from(node).expect("small")];
                    let earlier = |&deadline: &u64| noted.is_none_or(|(noted, _)| deadline < noted);
                    if let Some(deadline) = deadline.filter(earlier) {
                        *noted = Some((deadline, step));
                    }
                }
                let first = (0..engines).filter_map(|n| noted[n].map(|key| (key, n))).min();
                let expected = first.map(|((deadline, _), n)| (deadline, n));
                assert_eq!(bench.first(), expected, "{engines} engines, step {step}");
            }
        }
    }

    /// Engines may be added when others already wait.
    #[test]
    fn who_is_added_late_waits_with_the_others() {
        let mut bench = Bench::new(0);
        let deadlines = [7u64, 3, 9, 3, 1, 8, 2, 6, 5];
        for (node, deadline) in deadlines.into_iter().enumerate() {
            let alarm = bench.wakes.add();
            bench.alarms.push(alarm);
            bench.ask(u32::try_from(node).expect("small"), at(deadline));
        }
        let order: Vec<_> = std::iter::from_fn(|| bench.pop()).map(|(_, node)| node).collect();
        assert_eq!(order, [4, 6, 1, 3, 8, 7, 0, 5, 2]);
    }
}
