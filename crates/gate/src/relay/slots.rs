//! The bound of the number of connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The connections that are open, those with a handshake that has not ended included, and their maximum.
#[derive(Debug)]
pub struct Slots {
    connections: u64,
    open: AtomicU64,
    max_open: AtomicU64,
}

/// Counts as one connection until it is dropped.
#[derive(Debug)]
pub struct Slot(Arc<Slots>);

impl Slots {
    /// For so many connections at a time.
    #[must_use]
    pub fn new(connections: u64) -> Arc<Self> {
        let [open, max_open] = [0; 2].map(AtomicU64::new);
        Arc::new(Self { connections, open, max_open })
    }

    /// Counts a connection, unless there are as many as there may be.
    pub fn take(self: &Arc<Self>) -> Option<Slot> {
        let next = |open| (open < self.connections).then_some(open + 1);
        let before = self.open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok()?;
        self.max_open.fetch_max(before + 1, Ordering::Relaxed);
        Some(Slot(Arc::clone(self)))
    }

    /// The number of connections now.
    #[must_use]
    pub fn open(&self) -> u64 {
        self.open.load(Ordering::Relaxed)
    }

    /// The largest number so far.
    #[must_use]
    pub fn max_open(&self) -> u64 {
        self.max_open.load(Ordering::Relaxed)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Given two slots, expect no third, and one again when one of the two is given back.
    #[test]
    fn no_more_than_the_maximum_are_open() {
        let slots = Slots::new(2);
        let (first, _second) = (slots.take(), slots.take());
        assert!(first.is_some() && slots.take().is_none());
        drop(first);
        assert_eq!(slots.open(), 1);
        assert!(slots.take().is_some());
        assert_eq!(slots.max_open(), 2);
    }
}
