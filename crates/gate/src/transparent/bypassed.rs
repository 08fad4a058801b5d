//! Connections that pass without the relay, so that their repeated SYNs pass, too.

use std::collections::{BTreeSet, VecDeque};

use bentpipe_core::time::{Duration, Instant};

use super::syn::Ends;

/// Linux repeats a SYN for 127 s (tcp(7), `tcp_syn_retries`).
const REMEMBERED: Duration = Duration::from_secs(127);
/// The oldest of more are forgotten.
const MAX: usize = 4_096;

/// See the module documentation.
#[derive(Default)]
pub(super) struct Bypassed {
    known: BTreeSet<Ends>,
    /// The same, from the oldest on.
    since: VecDeque<(Instant, Ends)>,
}

impl Bypassed {
    pub(super) fn contains(&self, ends: &Ends) -> bool {
        self.known.contains(ends)
    }

    pub(super) fn insert(&mut self, ends: Ends, now: Instant) {
        if self.known.insert(ends) {
            self.since.push_back((now, ends));
        }
        if self.since.len() > MAX {
            self.forget_first();
        }
    }

    /// Forgets those whose SYNs are no longer repeated.
    pub(super) fn forget_old(&mut self, now: Instant) {
        while let Some(&(since, _)) = self.since.front()
            && now.saturating_since(since) >= REMEMBERED
        {
            self.forget_first();
        }
    }

    fn forget_first(&mut self) {
        if let Some((_, ends)) = self.since.pop_front() {
            self.known.remove(&ends);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(port: usize) -> Ends {
        let client = ([10, 1, 0, 2], port as u16).into();
        Ends { client, server: ([10, 2, 0, 2], 80).into() }
    }

    /// Given a connection, one of 127 s ago and too many, expect the first to be known, and the others to be
    /// forgotten.
    #[test]
    fn the_old_ones_are_forgotten() {
        let mut bypassed = Bypassed::default();
        bypassed.insert(ends(1), Instant::START);
        bypassed.insert(ends(2), Instant::from_millis(1));
        bypassed.insert(ends(2), Instant::from_millis(2));
        bypassed.forget_old(Instant::from_millis(127_000));
        assert!(!bypassed.contains(&ends(1)) && bypassed.contains(&ends(2)));
        for port in 3..3 + MAX {
            bypassed.insert(ends(port), Instant::from_millis(3));
        }
        assert!(!bypassed.contains(&ends(2)) && bypassed.contains(&ends(3)));
        assert_eq!((bypassed.known.len(), bypassed.since.len()), (MAX, MAX));
    }
}
