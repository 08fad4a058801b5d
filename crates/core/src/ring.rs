//! A first-in first-out ring, for the inner loop. The standard `VecDeque` does the same; this one
//! keeps a power of two of places, so that finding one is a mask and not a comparison, and counts
//! positions from the first value that ever came, so that a mark within it stays where it is while
//! values in front of it leave.

/// See the module's description.
#[derive(Clone, Debug)]
pub(crate) struct Ring<T> {
    places: Vec<T>,
    left: u64,
    came: u64,
}

impl<T> Default for Ring<T> {
    fn default() -> Self {
        Self { places: Vec::new(), left: 0, came: 0 }
    }
}

impl<T: Default> Ring<T> {
    /// How many values ever left: the position of the front.
    #[inline]
    pub(crate) fn left(&self) -> u64 {
        self.left
    }

    /// How many values ever came: the position of the next one.
    #[inline]
    pub(crate) fn came(&self) -> u64 {
        self.came
    }

    /// The value at a position, which must be there: it has come and has not left.
    #[inline]
    pub(crate) fn at(&self, position: u64) -> &T {
        debug_assert!((self.left..self.came).contains(&position), "nothing is at {position}");
        &self.places[self.place(position)]
    }

    /// [`Ring::at`], to be altered in its place.
    pub(crate) fn at_mut(&mut self, position: u64) -> &mut T {
        debug_assert!((self.left..self.came).contains(&position), "nothing is at {position}");
        let place = self.place(position);
        &mut self.places[place]
    }

    /// The values, from the front.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        (self.left..self.came).map(|position| self.at(position))
    }

    #[inline]
    pub(crate) fn front(&self) -> Option<&T> {
        (self.left < self.came).then(|| self.at(self.left))
    }

    /// Takes the front, which must be there, out of its place. What is left in it is never dropped.
    #[inline]
    pub(crate) fn take_front(&mut self) -> &mut T {
        debug_assert!(self.left < self.came, "nothing is there");
        let place = self.place(self.left);
        self.left += 1;
        &mut self.places[place]
    }

    #[inline]
    pub(crate) fn push_back(&mut self, value: T) {
        if self.came - self.left == self.places.len() as u64 {
            self.grow();
        }
        let place = self.place(self.came);
        // Asking whether the place still owns something would cost every value a branch.
        std::mem::forget(std::mem::replace(&mut self.places[place], value));
        self.came += 1;
    }

    /// Where a position is kept. The mask takes the lower bits, whatever the width of a word.
    #[inline]
    fn place(&self, position: u64) -> usize {
        position as usize & self.places.len().wrapping_sub(1)
    }

    /// Doubles the places.
    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        let mut grown = Self { places: Vec::new(), left: self.left, came: self.left };
        grown.places.resize_with((2 * self.places.len()).max(16), T::default);
        while self.left < self.came {
            grown.push_back(std::mem::take(self.take_front()));
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
    fn it_holds_what_a_deque_holds() {
        let (mut ring, mut deque) = (Ring::default(), VecDeque::new());
        let (mut came, mut left) = (0, 0);
        let mut rng = crate::rng::Rng::stream(3, "ring");
        for step in 0..2_000u64 {
            let falls = step / 200 % 2 == 1;
            if rng.below(4) < if falls { 1 } else { 3 } {
                ring.push_back(step);
                deque.push_back(step);
                came += 1;
            } else if let Some(front) = deque.pop_front() {
                assert_eq!(*ring.take_front(), front);
                left += 1;
            }
            assert_eq!((ring.front(), ring.left(), ring.came()), (deque.front(), left, came));
            assert!(ring.iter().eq(&deque));
            assert!((left..came).zip(&deque).all(|(position, value)| ring.at(position) == value));
            assert!((left..came).zip(&deque).all(|(at, value)| ring.at_mut(at) == value));
        }
    }
}
