//! A first-in first-out ring, for the inner loop. The standard `VecDeque` does the same; this one
//! keeps a power of two of places, so that finding one is a mask and not a comparison.

/// See the module's description.
#[derive(Clone, Debug)]
pub(crate) struct Ring<T> {
    places: Vec<T>,
    head: usize,
    len: usize,
}

impl<T> Default for Ring<T> {
    fn default() -> Self {
        Self { places: Vec::new(), head: 0, len: 0 }
    }
}

impl<T: Default> Ring<T> {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The value at `index` from the front, which must be there.
    pub(crate) fn at(&self, index: usize) -> &T {
        debug_assert!(index < self.len, "{index} is beyond the end");
        &self.places[(self.head + index) & (self.places.len() - 1)]
    }

    pub(crate) fn front(&self) -> Option<&T> {
        (self.len > 0).then(|| self.at(0))
    }

    /// Takes the front, which must be there, out of its place; what is left in it is forgotten.
    pub(crate) fn take_front(&mut self) -> &mut T {
        debug_assert!(self.len > 0, "nothing is there");
        let mask = self.places.len() - 1;
        let front = self.head & mask;
        self.head = (front + 1) & mask;
        self.len -= 1;
        &mut self.places[front]
    }

    pub(crate) fn push_back(&mut self, value: T) {
        if self.len == self.places.len() {
            self.grow();
        }
        let mask = self.places.len() - 1;
        self.places[(self.head + self.len) & mask] = value;
        self.len += 1;
    }

    #[cold]
    fn grow(&mut self) {
        self.places.rotate_left(self.head);
        self.head = 0;
        let places = (2 * self.places.len()).max(16);
        self.places.resize_with(places, T::default);
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
        let mut rng = crate::rng::Rng::stream(3, "ring");
        for step in 0..2_000u64 {
            let falls = step / 200 % 2 == 1;
            if rng.below(4) < if falls { 1 } else { 3 } {
                ring.push_back(step);
                deque.push_back(step);
            } else if let Some(front) = deque.pop_front() {
                assert_eq!(*ring.take_front(), front);
            }
            assert_eq!((ring.front(), ring.len()), (deque.front(), deque.len()));
            assert!((0..deque.len()).all(|index| ring.at(index) == &deque[index]));
        }
    }
}
