//! SYNs that wait for the end of an earlier connection with the same addresses and ports.
//!
//! For its client such a connection has ended when the leg to the client has: so a client may use its port again while
//! the leg to the server still waits for the acknowledgement of its FIN, for a round trip of the link.

use std::collections::BTreeMap;

use bentpipe_core::time::{Duration, Instant};

use super::syn::{Ends, Syn};
use crate::side::Side;

/// How soon a SYN is tried again, and by which part of its time so far: it is at most so much late.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_PART: u64 = 4;
/// After this its client has repeated it (RFC 6298).
const LIMIT: Duration = Duration::from_secs(1);

/// A SYN that waits.
pub(super) struct Deferred {
    pub(super) syn: Syn,
    /// The side of its client.
    pub(super) side: Side,
    pub(super) since: Instant,
}

/// See the module documentation.
#[derive(Default)]
pub(super) struct DeferredSyns {
    /// With the time of the next try.
    waiting: BTreeMap<Ends, (Instant, Deferred)>,
}

impl DeferredSyns {
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Lets a SYN wait that was tried now. One that has waited for too long is dropped.
    pub(super) fn insert(&mut self, deferred: Deferred, now: Instant) {
        let waited = now.saturating_since(deferred.since);
        if waited < LIMIT {
            let pause = PAUSE_MIN.max(Duration::from_nanos(waited.as_nanos() / PAUSE_PART));
            self.waiting.insert(deferred.syn.ends(), (now + pause, deferred));
        }
    }

    pub(super) fn remove(&mut self, ends: &Ends) {
        self.waiting.remove(ends);
    }

    /// Takes those that are to be tried now.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<Deferred> {
        let due = self.waiting.iter().filter(|(_, (next, _))| *next <= now);
        let due: Vec<_> = due.map(|(&ends, _)| ends).collect();
        due.iter().filter_map(|ends| Some(self.waiting.remove(ends)?.1)).collect()
    }
}

#[cfg(test)]
mod tests {
    use bentpipe_core::wire::{TCP, ipv4};

    use super::*;

    const MS: fn(u64) -> Instant = Instant::from_millis;

    fn syn() -> Syn {
        let mut packet = Vec::new();
        ipv4::Header {
            source: [10, 1, 0, 2].into(),
            destination: [10, 2, 0, 2].into(),
            protocol: TCP,
            traffic_class: 0,
            identification: 0,
            dont_fragment: true,
            more_fragments: false,
            fragment_offset: 0,
            time_to_live: 64,
            total_bytes: 40,
        }
        .emit(&mut packet);
        // Ports 5,000 and 80, sequence numbers, five words of header, the flag SYN.
        packet.extend([0x13, 0x88, 0, 80, 0, 0, 0, 7, 0, 0, 0, 0, 0x50, 2, 0, 9, 0, 0, 0, 0]);
        Syn::parse(&packet, false).expect("a SYN")
    }

    /// Given a SYN that always fails, expect tries after 10 ms, later after a quarter of the time before, and none when its
    /// client has repeated it.
    #[test]
    fn tries_are_ever_rarer() {
        let mut syns = DeferredSyns::default();
        let deferred = || Deferred { syn: syn(), side: Side::Lan, since: MS(0) };
        syns.insert(deferred(), MS(0));
        let mut tries = Vec::new();
        for at in (0..2_000).map(MS) {
            for deferred in syns.take_due(at) {
                tries.push(at.as_nanos() / 1_000_000);
                syns.insert(deferred, at);
            }
        }
        assert_eq!(tries[..6], [10, 20, 30, 40, 50, 63]);
        assert_eq!((tries.len(), tries[tries.len() - 1]), (19, 1_162));
        assert!(syns.is_empty());
        syns.insert(deferred(), MS(5));
        syns.remove(&syn().ends());
        assert_eq!(syns.len(), 0);
    }
}
