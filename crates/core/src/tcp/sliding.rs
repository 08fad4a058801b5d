//! A list that mostly grows at its end and shrinks at its front, and lies in memory in one piece: it
//! is searched as a slice, where a ring is two.

use core::ops::{Deref, DerefMut};

/// See the module's description.
#[derive(Clone, Debug)]
pub(super) struct Sliding<T> {
    /// What left at the front stays until its room is needed.
    all: Vec<T>,
    first: usize,
}

impl<T> Default for Sliding<T> {
    fn default() -> Self {
        Self { all: Vec::new(), first: 0 }
    }
}

impl<T: Copy> Sliding<T> {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.first == self.all.len()
    }

    #[inline]
    pub(super) fn push(&mut self, value: T) {
        if self.all.len() == self.all.capacity() {
            self.make_room();
        }
        self.all.push(value);
    }

    /// Moves what is there to the front of its room, or doubles the room if that gains little.
    #[cold]
    #[inline(never)]
    fn make_room(&mut self) {
        if self.first > self.all.len() / 2 {
            self.all.drain(..self.first);
            self.first = 0;
        } else {
            self.all.reserve(self.all.len().max(LEAST_ROOM));
        }
    }

    /// Takes `count` values off the front, which must be there.
    #[inline]
    pub(super) fn leave(&mut self, count: usize) {
        debug_assert!(count <= self.len(), "no more can leave than are there");
        self.first += count;
    }

    pub(super) fn insert(&mut self, at: usize, value: T) {
        if self.all.len() == self.all.capacity() {
            self.make_room();
        }
        self.all.insert(self.first + at, value);
    }

    pub(super) fn remove(&mut self, at: usize) {
        if at == 0 {
            self.leave(1);
        } else {
            self.all.remove(self.first + at);
        }
    }

    /// Removes the values from one place up to another.
    pub(super) fn remove_range(&mut self, from: usize, to: usize) {
        self.all.drain(self.first + from..self.first + to);
    }

    pub(super) fn clear(&mut self) {
        self.all.clear();
        self.first = 0;
    }
}

const LEAST_ROOM: usize = 4;

impl<T> Deref for Sliding<T> {
    type Target = [T];
    #[inline]
    fn deref(&self) -> &[T] {
        &self.all[self.first..]
    }
}

impl<T> DerefMut for Sliding<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.all[self.first..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    /// Given random steps that grow and shrink it, expect what a `Vec` holds, and no more room than
    /// four times the most that was ever there.
    #[test]
    fn it_holds_what_a_vec_holds() {
        let (mut sliding, mut vec) = (Sliding::default(), Vec::new());
        let mut rng = Rng::stream(5, "sliding");
        let mut most = LEAST_ROOM;
        for step in 0..5_000u64 {
            let place = |length: usize, rng: &mut Rng| {
                usize::try_from(rng.below(length as u64 + 1)).expect("small")
            };
            match rng.below(12) {
                0..=5 => {
                    sliding.push(step);
                    vec.push(step);
                }
                6..=8 => {
                    let count = place(vec.len().min(3), &mut rng);
                    sliding.leave(count);
                    vec.drain(..count);
                }
                9 => {
                    let at = place(vec.len(), &mut rng);
                    sliding.insert(at, step);
                    vec.insert(at, step);
                }
                10 if !vec.is_empty() => {
                    let at = place(vec.len() - 1, &mut rng);
                    sliding.remove(at);
                    vec.remove(at);
                }
                11 if rng.below(50) == 0 => {
                    let (a, b) = (place(vec.len(), &mut rng), place(vec.len(), &mut rng));
                    sliding.remove_range(a.min(b), a.max(b));
                    vec.drain(a.min(b)..a.max(b));
                }
                _ => {}
            }
            most = most.max(vec.len());
            assert_eq!(*sliding, *vec);
            assert!(sliding.all.capacity() <= 4 * most, "step {step}");
        }
        sliding.clear();
        assert!(sliding.is_empty());
    }
}
