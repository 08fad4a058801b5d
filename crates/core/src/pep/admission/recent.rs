//! What is remembered for a time.

use std::collections::{BTreeMap, VecDeque};

use crate::time::{Duration, Instant};

/// Insertions that later ones replace, beyond as many as there are keys, before they are removed.
const REPLACED_MAX: usize = 64;

/// Keys that were inserted of late, each with a value.
#[derive(Debug)]
pub(super) struct Recent<Key, Value = ()> {
    remembered: Duration,
    keys_max: usize,
    /// With the time of the last insertion.
    known: BTreeMap<Key, (Instant, Value)>,
    /// The insertions in their order; those that a later one of the same key replaces are skipped. Where a time is earlier
    /// than that of the one before, its key is kept for longer than it counts.
    inserted: VecDeque<(Instant, Key)>,
}

impl<Key: Copy + Ord, Value: Copy> Recent<Key, Value> {
    /// Each is remembered for so long from its last insertion on. The oldest of more than `keys_max` are forgotten.
    pub(super) fn new(remembered: Duration, keys_max: usize) -> Self {
        Self { remembered, keys_max, known: BTreeMap::new(), inserted: VecDeque::new() }
    }

    /// The value of a key that is remembered.
    pub(super) fn get(&self, key: &Key, now: Instant) -> Option<Value> {
        let known = self.known.get(key);
        known.filter(|known| now.saturating_since(known.0) < self.remembered).map(|known| known.1)
    }

    pub(super) fn contains(&self, key: &Key, now: Instant) -> bool {
        self.get(key, now).is_some()
    }

    pub(super) fn insert(&mut self, key: Key, value: Value, now: Instant) {
        let before = self.known.insert(key, (now, value));
        if before.is_none_or(|(at, _)| at != now) {
            self.inserted.push_back((now, key));
        }
        if self.known.len() > self.keys_max {
            self.forget_first();
        }
        self.forget_old(now);
        if self.inserted.len() > 2 * self.known.len() + REPLACED_MAX {
            let known = &self.known;
            self.inserted.retain(|&(at, key)| known.get(&key).is_some_and(|last| last.0 == at));
        }
    }

    /// Removes keys that are no longer remembered.
    pub(super) fn forget_old(&mut self, now: Instant) {
        while let Some(&(at, _)) = self.inserted.front()
            && now.saturating_since(at) >= self.remembered
        {
            self.pop_first();
        }
    }

    fn forget_first(&mut self) {
        let most = self.known.len();
        while self.known.len() == most && !self.inserted.is_empty() {
            self.pop_first();
        }
    }

    /// Forgets the key of the oldest insertion, unless a later one replaces it.
    fn pop_first(&mut self) {
        if let Some((at, key)) = self.inserted.pop_front()
            && self.known.get(&key).is_some_and(|last| last.0 == at)
        {
            self.known.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECONDS: fn(u64) -> Instant = |seconds| Instant::from_millis(1_000 * seconds);

    /// Given keys that are remembered for 100 s, of which one is inserted again after 50 s, expect them to be known for 100
    /// and 150 s, with their last values.
    #[test]
    fn a_key_is_remembered_from_its_last_insertion_on() {
        let mut recent = Recent::new(Duration::from_secs(100), usize::MAX);
        recent.insert(1, 'a', SECONDS(0));
        recent.insert(2, 'b', SECONDS(0));
        recent.insert(2, 'c', SECONDS(50));
        for (at, known) in [
            (49, [Some('a'), Some('c')]),
            (99, [Some('a'), Some('c')]),
            (100, [None, Some('c')]),
            (149, [None, Some('c')]),
            (150, [None, None]),
        ] {
            assert_eq!([1, 2].map(|key| recent.get(&key, SECONDS(at))), known, "{at} s");
        }
        recent.forget_old(SECONDS(150));
        assert!(recent.known.is_empty() && recent.inserted.is_empty());
    }

    /// Given one key too many, expect the oldest to be forgotten; the one that was inserted again is not.
    #[test]
    fn the_oldest_of_too_many_is_forgotten() {
        let mut recent = Recent::new(Duration::from_secs(100), 3);
        for (at, key) in [(0, 0), (1, 1), (2, 2), (3, 0), (4, 3)] {
            recent.insert(key, (), SECONDS(at));
        }
        let known = [0, 1, 2, 3].map(|key| recent.contains(&key, SECONDS(4)));
        assert_eq!(known, [true, false, true, true]);
        assert_eq!(recent.known.len(), 3);
    }

    /// Given a key that is inserted 1,000 times, expect the memory of few insertions.
    #[test]
    fn insertions_that_are_replaced_take_no_memory() {
        let mut recent = Recent::new(Duration::from_secs(2_000), usize::MAX);
        for at in 0..1_000 {
            recent.insert(1, (), SECONDS(at));
            assert!(recent.inserted.len() <= 2 + REPLACED_MAX, "{at} s");
        }
        assert!(recent.contains(&1, SECONDS(2_998)) && !recent.contains(&1, SECONDS(2_999)));
    }

    /// Given keys that are not remembered at all, expect none to take memory.
    #[test]
    fn no_time_takes_no_memory() {
        let mut recent = Recent::new(Duration::ZERO, usize::MAX);
        recent.insert(1, (), SECONDS(0));
        assert!(!recent.contains(&1, SECONDS(0)) && recent.known.is_empty());
    }
}
