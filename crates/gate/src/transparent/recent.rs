//! What is remembered for a time.

use std::collections::{BTreeMap, VecDeque};

use bentpipe_core::time::{Duration, Instant};

/// The oldest of more are forgotten.
const MAX: usize = 4_096;

/// Keys that were inserted of late.
pub(super) struct Recent<Key> {
    remembered: Duration,
    /// With the time from which on they are remembered.
    known: BTreeMap<Key, Instant>,
    /// The same from the oldest on, and those of keys that were inserted again.
    inserted: VecDeque<(Instant, Key)>,
}

impl<Key: Copy + Ord> Recent<Key> {
    /// Each is remembered for so long. If it is inserted again in the second half of this time, the time begins again.
    pub(super) fn new(remembered: Duration) -> Self {
        Self { remembered, known: BTreeMap::new(), inserted: VecDeque::new() }
    }

    pub(super) fn contains(&self, key: &Key) -> bool {
        self.known.contains_key(key)
    }

    pub(super) fn insert(&mut self, key: Key, now: Instant) {
        let half = |&at: &Instant| now.saturating_since(at).saturating_mul(2) < self.remembered;
        if self.known.get(&key).is_some_and(half) {
            return;
        }
        self.known.insert(key, now);
        self.inserted.push_back((now, key));
        if self.inserted.len() > MAX {
            self.forget_first();
        }
    }

    pub(super) fn forget_old(&mut self, now: Instant) {
        while let Some(&(at, _)) = self.inserted.front()
            && now.saturating_since(at) >= self.remembered
        {
            self.forget_first();
        }
    }

    /// Forgets the oldest insertion, and its key if there was no later one.
    fn forget_first(&mut self) {
        if let Some((at, key)) = self.inserted.pop_front()
            && self.known.get(&key) == Some(&at)
        {
            self.known.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Given keys that are remembered for 100 s, of which some are inserted again after 49 and 50 s, expect those to be
    /// known for 100 and 150 s.
    #[test]
    fn a_key_is_remembered_from_its_last_insertion_on() {
        let at = |seconds: u64| Instant::from_millis(1_000 * seconds);
        let mut recent = Recent::new(Duration::from_secs(100));
        for key in [1, 2] {
            recent.insert(key, at(0));
        }
        recent.insert(1, at(49));
        recent.insert(2, at(50));
        for (seconds, known) in [(99, [true, true]), (100, [false, true]), (150, [false, false])] {
            recent.forget_old(at(seconds));
            assert_eq!([1, 2].map(|key| recent.contains(&key)), known, "{seconds}");
        }
    }

    /// Given one key too many, expect the oldest to be forgotten.
    #[test]
    fn the_oldest_of_too_many_is_forgotten() {
        let mut recent = Recent::new(Duration::from_secs(100));
        for key in 0..=MAX {
            recent.insert(key, Instant::START);
        }
        assert!(!recent.contains(&0) && recent.contains(&1) && recent.contains(&MAX));
        assert_eq!((recent.known.len(), recent.inserted.len()), (MAX, MAX));
    }
}
