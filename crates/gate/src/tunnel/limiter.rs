//! Limits of the work that strangers can cause: token buckets for handshakes.

use bentpipe_core::time::{Duration, Instant};
use bentpipe_core::token_bucket::{TokenBucket, TokenRate};

/// Handshakes a second without a cookie, and in a burst. One costs a responder some 0.3 ms.
const FREE: TokenRate = TokenRate { each: Duration::from_millis(20), burst: 50 };
/// Handshakes a second with a cookie: of one sender, and of all.
const PER_SENDER: TokenRate = TokenRate { each: Duration::from_millis(100), burst: 20 };
const ALL: TokenRate = TokenRate { each: Duration::from_micros(2_500), burst: 200 };
/// Senders whose addresses have the same hash share a bucket, so memory is bounded.
const SENDERS: usize = 256;
/// Authenticated first messages that are remembered: of one peer, those of eight hours.
const REMEMBERED: usize = 256;

/// The last authenticated first messages, by their MAC. Copies of them take no limit away and cost no handshake; copies of
/// older ones are refused for their timestamp.
pub(super) struct SeenMessages {
    macs: [u64; REMEMBERED],
    next: usize,
}

impl SeenMessages {
    pub(super) const fn new() -> Self {
        Self { macs: [0; REMEMBERED], next: 0 }
    }

    pub(super) fn contains(&self, mac: &[u8]) -> bool {
        self.macs.contains(&Self::word(mac))
    }

    pub(super) fn insert(&mut self, mac: &[u8]) {
        self.macs[self.next] = Self::word(mac);
        self.next = (self.next + 1) % REMEMBERED;
    }

    /// 64 of the 256 bits: the chance that a new message is taken for one of 256 others is 2^-56, and the
    /// next message of its sender has another MAC.
    fn word(mac: &[u8]) -> u64 {
        mac.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
    }
}

/// What may be done for a first message whose first MAC is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The handshake is computed.
    Work,
    /// The sender gets a cookie.
    Cookie,
    /// Nothing.
    Drop,
}

/// The limits of one tunnel.
pub(super) struct Limiter {
    free: TokenBucket,
    all: TokenBucket,
    senders: Box<[TokenBucket; SENDERS]>,
}

impl Limiter {
    pub(super) fn new() -> Self {
        let senders = Box::new([TokenBucket::FULL; SENDERS]);
        Self { free: TokenBucket::FULL, all: TokenBucket::FULL, senders }
    }

    /// Counts a first message. `sender` is the hash of its address if it has a cookie for that address; it is computed
    /// only when no message passes without one.
    pub(super) fn admit(
        &mut self,
        now: Instant,
        sender: impl FnOnce() -> Option<usize>,
    ) -> Verdict {
        if self.free.take(FREE, now) {
            return Verdict::Work;
        }
        match sender() {
            None => Verdict::Cookie,
            Some(sender) => {
                let is_admitted =
                    self.senders[sender % SENDERS].take(PER_SENDER, now) && self.all.take(ALL, now);
                if is_admitted { Verdict::Work } else { Verdict::Drop }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(verdicts: &[Verdict], verdict: Verdict) -> usize {
        verdicts.iter().filter(|&&found| found == verdict).count()
    }

    /// Given 1,000 messages within 1 s, then the burst of 50 and one each 20 ms pass without a cookie: 50 + 49.
    #[test]
    fn messages_without_a_cookie_are_limited() {
        let mut limiter = Limiter::new();
        let at = |number: u64| Instant::from_millis(5_000 + number);
        let verdicts: Vec<_> =
            (0..1_000).map(|number| limiter.admit(at(number), || None)).collect();
        assert_eq!(count(&verdicts, Verdict::Work), 99);
        assert_eq!(count(&verdicts, Verdict::Cookie), 901);
    }

    /// Given 1,000 messages of one sender at once, all with a cookie, then the 50 of everyone and its own 20 pass.
    #[test]
    fn a_sender_with_a_cookie_has_a_limit_of_its_own() {
        let mut limiter = Limiter::new();
        let now = Instant::from_millis(5_000);
        let verdicts: Vec<_> = (0..1_000).map(|_| limiter.admit(now, || Some(3))).collect();
        assert_eq!(count(&verdicts, Verdict::Work), 70);
        assert_eq!(count(&verdicts, Verdict::Drop), 930);
        // Another sender is not affected.
        assert_eq!(limiter.admit(now, || Some(4)), Verdict::Work);
    }

    /// Given 300 messages, then the last 256 are known.
    #[test]
    fn the_last_messages_are_remembered() {
        let mut seen = SeenMessages::new();
        let mac = |number: u64| [number + 1; 4].map(u64::to_be_bytes).concat();
        (0..300).for_each(|number| seen.insert(&mac(number)));
        let known: Vec<_> = (0..400).filter(|&number| seen.contains(&mac(number))).collect();
        assert_eq!(known, (44..300).collect::<Vec<_>>());
    }

    /// Given senders without number, then all together have 50 + 200 at once and 400 a second.
    #[test]
    fn all_senders_have_a_limit() {
        let mut limiter = Limiter::new();
        let now = Instant::from_millis(5_000);
        let mut all = |now| {
            let verdicts: Vec<_> =
                (0..2_560).map(|sender| limiter.admit(now, || Some(sender))).collect();
            count(&verdicts, Verdict::Work)
        };
        assert_eq!(all(now), 250);
        assert_eq!(all(now + Duration::from_millis(100)), 5 + 40);
    }
}
