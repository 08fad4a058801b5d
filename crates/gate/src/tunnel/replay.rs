//! The replay window: which counters of a session have arrived (RFC 6479).
//!
//! A ring of words has one bit for each counter. When the window moves, whole words are cleared instead of bits being
//! shifted, so one word of the ring is always in part outside the window.

const WORD_BITS: u64 = u64::BITS as u64;
const WORDS: u64 = 128;

/// Counters up to this far below the highest one can be told apart.
pub const WINDOW: u64 = (WORDS - 1) * WORD_BITS;

/// The counters that arrived in one session.
#[derive(Clone, Debug)]
pub struct ReplayWindow {
    /// One more than the highest counter that arrived.
    next: u64,
    words: [u64; WORDS as usize],
}

impl Default for ReplayWindow {
    fn default() -> Self {
        Self::new()
    }
}

impl ReplayWindow {
    /// A window in which nothing has arrived.
    #[must_use]
    pub const fn new() -> Self {
        Self { next: 0, words: [0; WORDS as usize] }
    }

    /// One more than the highest counter that arrived; 0 if none did.
    #[must_use]
    pub const fn next(&self) -> u64 {
        self.next
    }

    /// Whether `counter` is neither known to have arrived nor older than the window. Never for the highest counter of 64
    /// bits, which Noise reserves (section 5.1) and after which there is none.
    #[must_use]
    pub const fn is_new(&self, counter: u64) -> bool {
        if counter >= self.next {
            return counter != u64::MAX;
        }
        self.next - counter <= WINDOW && self.words[Self::word(counter)] & Self::bit(counter) == 0
    }

    /// Records a counter of an authenticated packet that [`Self::is_new`]. Returns whether it is the highest so far.
    pub fn record(&mut self, counter: u64) -> bool {
        let is_highest = counter >= self.next;
        if is_highest {
            self.clear_up_to(counter);
            self.next = counter + 1;
        }
        self.words[Self::word(counter)] |= Self::bit(counter);
        is_highest
    }

    /// Clears the words after that of the highest counter, up to that of `counter`.
    fn clear_up_to(&mut self, counter: u64) {
        let highest = self.next.checked_sub(1).map_or(0, |highest| highest / WORD_BITS);
        let entered = (counter / WORD_BITS - highest).min(WORDS);
        for word in (highest + 1)..=(highest + entered) {
            self.words[(word % WORDS) as usize] = 0;
        }
    }

    const fn word(counter: u64) -> usize {
        (counter / WORD_BITS % WORDS) as usize
    }

    const fn bit(counter: u64) -> u64 {
        1 << (counter % WORD_BITS)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const _: () = assert!(WINDOW >= 2_048);

    /// Given counter 10,000 arrived, then 10,001 - 8,128 = 1,873 is the oldest that can still be told apart.
    #[test]
    fn the_window_ends_where_it_says() {
        let mut window = ReplayWindow::new();
        assert!(window.record(10_000));
        assert!(window.is_new(1_873));
        assert!(!window.is_new(1_872));
        assert!(!window.is_new(10_000));
        assert!(window.is_new(10_001));
    }

    /// Given a jump over the whole ring, then nothing of the old round remains in it.
    #[test]
    fn a_jump_clears_the_whole_ring() {
        let mut window = ReplayWindow::new();
        (0..10_000).for_each(|counter| assert!(window.record(counter)));
        assert!(window.record(1 << 40));
        assert!(((1 << 40) - 8_127..1 << 40).all(|counter| window.is_new(counter)));
        assert!((0..10_000).all(|counter| !window.is_new(counter)));
    }

    /// The reserved counter is refused, and the one before it accepted once.
    #[test]
    fn the_last_counter_is_accepted_once() {
        let mut window = ReplayWindow::new();
        assert!(window.is_new(u64::MAX - 1));
        assert!(window.record(u64::MAX - 1));
        assert!(!window.is_new(u64::MAX));
        assert!(!window.is_new(u64::MAX - 1));
        assert!(window.is_new(u64::MAX - 2));
        assert!(!window.is_new(u64::MAX - 10_000));
    }

    proptest! {
        /// Given counters in any sequence, then the window says what a set of all counters and the rule of its width say.
        #[test]
        fn it_agrees_with_a_set(steps in prop::collection::vec((0_u64..20_000, any::<bool>()), 1..400)) {
            let mut window = ReplayWindow::new();
            let mut seen = BTreeSet::new();
            let mut highest: Option<u64> = None;
            for (step, is_near) in steps {
                let counter = if is_near { highest.unwrap_or(0).saturating_sub(step / 100) + 70 } else { step };
                let is_in_window = highest.is_none_or(|highest| counter + WINDOW > highest);
                let expected = is_in_window && !seen.contains(&counter);
                prop_assert_eq!(window.is_new(counter), expected);
                if expected {
                    prop_assert_eq!(window.record(counter), highest.is_none_or(|highest| counter > highest));
                    seen.insert(counter);
                    highest = highest.max(Some(counter));
                }
            }
        }
    }
}
