//! A FIFO ring buffer for the inner loop. Unlike `VecDeque` it has a power of two of slots, so that an
//! index is a mask and not a comparison, and addresses values by their position since the start, which
//! does not change as values in front are removed.

/// See the module's description.
#[derive(Clone, Debug)]
pub(crate) struct Ring<T> {
    slots: Vec<T>,
    begin: u64,
    end: u64,
}

impl<T> Default for Ring<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), begin: 0, end: 0 }
    }
}

impl<T: Default> Ring<T> {
    /// The number of values ever removed: the position of the front.
    #[inline]
    pub(crate) fn begin(&self) -> u64 {
        self.begin
    }

    /// The number of values ever added: the position of the next one.
    #[inline]
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// The value at `position`, which must lie in `begin..end`.
    #[inline]
    pub(crate) fn at(&self, position: u64) -> &T {
        debug_assert!((self.begin..self.end).contains(&position), "no value at {position}");
        &self.slots[self.slot(position)]
    }

    /// Like [`Ring::at`], but mutable.
    pub(crate) fn at_mut(&mut self, position: u64) -> &mut T {
        debug_assert!((self.begin..self.end).contains(&position), "no value at {position}");
        let slot = self.slot(position);
        &mut self.slots[slot]
    }

    /// The values, from the front.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        (self.begin..self.end).map(|position| self.at(position))
    }

    #[inline]
    pub(crate) fn front(&self) -> Option<&T> {
        (self.begin < self.end).then(|| self.at(self.begin))
    }

    /// Removes the front, which must exist, and returns its slot. A value that the caller leaves in the
    /// slot is never dropped.
    #[inline]
    pub(crate) fn pop_front(&mut self) -> &mut T {
        debug_assert!(self.begin < self.end, "the ring is empty");
        let slot = self.slot(self.begin);
        self.begin += 1;
        &mut self.slots[slot]
    }

    /// Removes the last value, which must exist.
    pub(crate) fn pop_back(&mut self) -> T {
        debug_assert!(self.begin < self.end, "the ring is empty");
        self.end -= 1;
        let slot = self.slot(self.end);
        std::mem::take(&mut self.slots[slot])
    }

    #[inline]
    pub(crate) fn push_back(&mut self, value: T) {
        if self.end - self.begin == self.slots.len() as u64 {
            self.grow();
        }
        let slot = self.slot(self.end);
        // Checking whether the slot still owns a value would cost a branch for every value.
        std::mem::forget(std::mem::replace(&mut self.slots[slot], value));
        self.end += 1;
    }

    /// The slot of a position. The mask takes the lower bits, whatever the width of a word.
    #[inline]
    fn slot(&self, position: u64) -> usize {
        position as usize & self.slots.len().wrapping_sub(1)
    }

    /// Doubles the number of slots.
    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        let mut grown = Self { slots: Vec::new(), begin: self.begin, end: self.begin };
        grown.slots.resize_with((2 * self.slots.len()).max(16), T::default);
        while self.begin < self.end {
            grown.push_back(std::mem::take(self.pop_front()));
        }
        *self = grown;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// Given 2,000 random steps that grow and shrink it to some 100 values several times, expect the
    /// contents of a `VecDeque`.
    #[test]
    fn it_agrees_with_a_vec_deque() {
        let (mut ring, mut deque) = (Ring::default(), VecDeque::new());
        let (mut end, mut begin) = (0, 0);
        let mut rng = crate::rng::Rng::stream(3, "ring");
        for step in 0..2_000u64 {
            let is_shrinking = step / 200 % 2 == 1;
            if rng.below(4) < if is_shrinking { 1 } else { 3 } {
                ring.push_back(step);
                deque.push_back(step);
                end += 1;
            } else if let Some(front) = deque.pop_front() {
                assert_eq!(*ring.pop_front(), front);
                begin += 1;
            }
            assert_eq!((ring.front(), ring.begin(), ring.end()), (deque.front(), begin, end));
            assert!(ring.iter().eq(&deque));
            assert!((begin..end).zip(&deque).all(|(position, value)| ring.at(position) == value));
            assert!((begin..end).zip(&deque).all(|(at, value)| ring.at_mut(at) == value));
        }
    }
}
