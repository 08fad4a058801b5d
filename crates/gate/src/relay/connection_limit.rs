//! The bound of the number of connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The connections that are open, those with a handshake that has not ended included, and their maximum.
#[derive(Debug)]
pub struct ConnectionLimit {
    connections: u64,
    open: AtomicU64,
    max_open: AtomicU64,
}

/// Counts as one connection until it is dropped.
#[derive(Debug)]
pub struct Permit(Arc<ConnectionLimit>);

impl ConnectionLimit {
    /// For so many connections at a time.
    #[must_use]
    pub fn new(connections: u64) -> Arc<Self> {
        let [open, max_open] = [0; 2].map(AtomicU64::new);
        Arc::new(Self { connections, open, max_open })
    }

    /// Counts a connection, unless there are as many as there may be.
    pub fn take(self: &Arc<Self>) -> Option<Permit> {
        let next = |open| (open < self.connections).then_some(open + 1);
        let before = self.open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok()?;
        self.max_open.fetch_max(before + 1, Ordering::Relaxed);
        Some(Permit(Arc::clone(self)))
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

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Given two connection_limit, expect no third, and one again when one of the two is given back.
    #[test]
    fn no_more_than_the_maximum_are_open() {
        let connection_limit = ConnectionLimit::new(2);
        let (first, _second) = (connection_limit.take(), connection_limit.take());
        assert!(first.is_some() && connection_limit.take().is_none());
        drop(first);
        assert_eq!(connection_limit.open(), 1);
        assert!(connection_limit.take().is_some());
        assert_eq!(connection_limit.max_open(), 2);
    }
}
