//! When packets arrived that a program at a gateway forwards, as a tunnel does: they enter the graph again as new packets.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hasher};

use bentpipe_core::time::Instant;

/// The packets that are remembered: more than two seconds of 300 Mbit/s. Those that were lost stay until then.
const PACKETS_MAX: usize = 1 << 16;
/// The transport header with its checksum, and the first bytes behind it.
const KEY_BYTES: usize = 64;

/// The arrival times of packets by their contents.
#[derive(Clone, Debug, Default)]
pub(crate) struct ArrivalTimes {
    by_key: BTreeMap<u64, Instant>,
    oldest: VecDeque<u64>,
}

impl ArrivalTimes {
    /// Remembers the arrival of a packet by its bytes from the transport header on, which no router changes.
    pub(crate) fn insert(&mut self, segment: &[u8], at: Instant) {
        let key = key_of(segment);
        self.by_key.insert(key, at);
        self.oldest.push_back(key);
        if self.oldest.len() > PACKETS_MAX
            && let Some(oldest) = self.oldest.pop_front()
        {
            self.by_key.remove(&oldest);
        }
    }

    /// Forgets a packet, and returns when it arrived; `None` for one that a program has made.
    pub(crate) fn take(&mut self, segment: &[u8]) -> Option<Instant> {
        self.by_key.remove(&key_of(segment))
    }
}

fn key_of(segment: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(&segment[..segment.len().min(KEY_BYTES)]);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bentpipe_core::time::Duration;

    /// Given more packets than are remembered, expect the latest ones, each once.
    #[test]
    fn the_latest_packets_are_remembered() {
        let at = |number: usize| Instant::START + Duration::from_nanos(number as u64);
        let mut times = ArrivalTimes::default();
        let segment = |number: usize| number.to_be_bytes();
        for number in 0..=PACKETS_MAX {
            times.insert(&segment(number), at(number));
        }
        assert_eq!(times.take(&segment(0)), None);
        assert_eq!(times.take(&segment(1)), Some(at(1)));
        assert_eq!(times.take(&segment(1)), None);
        assert_eq!(times.take(&segment(PACKETS_MAX)), Some(at(PACKETS_MAX)));
        assert_eq!(times.take(b"made by a program"), None);
    }
}
