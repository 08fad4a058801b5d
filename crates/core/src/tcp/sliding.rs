//! A queue in contiguous memory that mostly grows at the end and shrinks at the front. It is
//! searched as one slice, where a ring buffer has two.

use core::ops::{Deref, DerefMut};

/// See the module's description.
#[derive(Clone, Debug)]
pub(super) struct Sliding<T> {
    /// Removed values stay at the front until their memory is needed.
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
            self.grow();
        }
        self.all.push(value);
    }

    /// Compacts the values to the front, or doubles the capacity if that gains little.
    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        if self.first > self.all.len() / 2 {
            self.all.drain(..self.first);
            self.first = 0;
        } else {
            self.all.reserve(self.all.len().max(MIN_CAPACITY));
        }
    }

    /// Removes `count` values from the front. There must be that many.
    #[inline]
    pub(super) fn drop_front(&mut self, count: usize) {
        debug_assert!(count <= self.len(), "the queue has as many values");
        self.first += count;
    }

    pub(super) fn insert(&mut self, at: usize, value: T) {
        if self.all.len() == self.all.capacity() {
            self.grow();
        }
        self.all.insert(self.first + at, value);
    }

    pub(super) fn remove(&mut self, at: usize) {
        if at == 0 {
            self.drop_front(1);
        } else {
            self.all.remove(self.first + at);
        }
    }

    /// Removes the values from index `from` up to `to`.
    pub(super) fn remove_range(&mut self, from: usize, to: usize) {
        self.all.drain(self.first + from..self.first + to);
    }

    pub(super) fn clear(&mut self) {
        self.all.clear();
        self.first = 0;
    }
}

const MIN_CAPACITY: usize = 4;

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

    /// Given random operations that grow and shrink it, expect the content of a `Vec`, and a
    /// capacity of at most four times the maximum length.
    #[test]
    fn it_behaves_like_a_vec() {
        let (mut sliding, mut vec) = (Sliding::default(), Vec::new());
        let mut rng = Rng::stream(5, "sliding");
        let mut max_len = MIN_CAPACITY;
        for step in 0..5_000u64 {
            let index = |length: usize, rng: &mut Rng| {
                usize::try_from(rng.below(length as u64 + 1)).expect("small")
            };
            match rng.below(12) {
                0..=5 => {
                    sliding.push(step);
                    vec.push(step);
                }
                6..=8 => {
                    let count = index(vec.len().min(3), &mut rng);
                    sliding.drop_front(count);
                    vec.drain(..count);
                }
                9 => {
                    let at = index(vec.len(), &mut rng);
                    sliding.insert(at, step);
                    vec.insert(at, step);
                }
                10 if !vec.is_empty() => {
                    let at = index(vec.len() - 1, &mut rng);
                    sliding.remove(at);
                    vec.remove(at);
                }
                11 if rng.below(50) == 0 => {
                    let (a, b) = (index(vec.len(), &mut rng), index(vec.len(), &mut rng));
                    sliding.remove_range(a.min(b), a.max(b));
                    vec.drain(a.min(b)..a.max(b));
                }
                _ => {}
            }
            max_len = max_len.max(vec.len());
            assert_eq!(*sliding, *vec);
            assert!(sliding.all.capacity() <= 4 * max_len, "step {step}");
        }
        sliding.clear();
        assert!(sliding.is_empty());
    }
}
