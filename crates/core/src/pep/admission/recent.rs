//! What is remembered for a time.

use std::collections::{BTreeMap, BTreeSet};

use crate::time::{Duration, Instant};

/// Keys that were inserted of late, each with a value.
#[derive(Debug)]
pub(super) struct Recent<Key, Value = ()> {
    remembered: Duration,
    keys_max: usize,
    /// With the time of the last insertion.
    known: BTreeMap<Key, (Instant, Value)>,
    /// The same keys from the oldest on.
    inserted: BTreeSet<(Instant, Key)>,
}

impl<Key: Copy + Ord, Value: Copy> Recent<Key, Value> {
    /// Each is remembered for so long from its last insertion on. The oldest of more than `keys_max` are forgotten.
    pub(super) fn new(remembered: Duration, keys_max: usize) -> Self {
        Self { remembered, keys_max, known: BTreeMap::new(), inserted: BTreeSet::new() }
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
        if let Some((before, _)) = self.known.insert(key, (now, value)) {
            self.inserted.remove(&(before, key));
        }
        self.inserted.insert((now, key));
        if self.inserted.len() > self.keys_max {
            self.forget_first();
        }
        self.forget_old(now);
    }

    /// Frees the memory of keys that are no longer remembered.
    pub(super) fn forget_old(&mut self, now: Instant) {
        while let Some(&(at, _)) = self.inserted.first()
            && now.saturating_since(at) >= self.remembered
        {
            self.forget_first();
        }
    }

    fn forget_first(&mut self) {
        if let Some((_, key)) = self.inserted.pop_first() {
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
        assert_eq!((recent.known.len(), recent.inserted.len()), (3, 3));
    }

    /// Given keys that are not remembered at all, expect none to take memory.
    #[test]
    fn no_time_takes_no_memory() {
        let mut recent = Recent::new(Duration::ZERO, usize::MAX);
        recent.insert(1, (), SECONDS(0));
        assert!(!recent.contains(&1, SECONDS(0)) && recent.known.is_empty());
    }
}
