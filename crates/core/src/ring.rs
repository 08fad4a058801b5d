//! A first-in first-out ring, for the inner loop. The standard `VecDeque` does the same; this one
//! keeps a power of two of places, so that finding one is a mask and not a comparison, and counts
//! positions from the first value that ever came, so that a mark within it stays where it is while
//! values in front of it leave.

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
    /// How many values ever left: the position of the front.
    #[inline]
    pub(crate) fn begin(&self) -> u64 {
        self.begin
    }

    /// How many values ever came: the position of the next one.
    #[inline]
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// The value at a position, which must be there: it has come and has not left.
    #[inline]
    pub(crate) fn at(&self, position: u64) -> &T {
        debug_assert!((self.begin..self.end).contains(&position), "nothing is at {position}");
        &self.slots[self.slot(position)]
    }

    /// [`Ring::at`], to be altered in its place.
    pub(crate) fn at_mut(&mut self, position: u64) -> &mut T {
        debug_assert!((self.begin..self.end).contains(&position), "nothing is at {position}");
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

    /// Takes the front, which must be there, out of its place. What is left in it is never dropped.
    #[inline]
    pub(crate) fn pop_front(&mut self) -> &mut T {
        debug_assert!(self.begin < self.end, "nothing is there");
        let slot = self.slot(self.begin);
        self.begin += 1;
        &mut self.slots[slot]
    }

    #[inline]
    pub(crate) fn push_back(&mut self, value: T) {
        if self.end - self.begin == self.slots.len() as u64 {
            self.grow();
        }
        let slot = self.slot(self.end);
        // Asking whether the place still owns something would cost every value a branch.
        std::mem::forget(std::mem::replace(&mut self.slots[slot], value));
        self.end += 1;
    }

    /// Where a position is kept. The mask takes the lower bits, whatever the width of a word.
    #[inline]
    fn slot(&self, position: u64) -> usize {
        position as usize & self.slots.len().wrapping_sub(1)
    }

    /// Doubles the places.
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

    /// Given 2,000 random steps that grow it to some 100 values several times over, expect what a
    /// `VecDeque` holds.
    #[test]
    fn it_agrees_with_a_vec_deque() {
        let (mut ring, mut deque) = (Ring::default(), VecDeque::new());
        let (mut end, mut begin) = (0, 0);
        let mut rng = crate::rng::Rng::stream(3, "ring");
        for step in 0..2_000u64 {
            let falls = step / 200 % 2 == 1;
            if rng.below(4) < if falls { 1 } else { 3 } {
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
