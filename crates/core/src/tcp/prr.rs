//! Proportional rate reduction (RFC 6937): during recovery, transmission is clocked by delivered
//! data, so that cwnd converges to ssthresh without a pause or a burst.

/// See the module's description. Quantities are bytes. `recover_fs`, `delivered` and `out` are
/// RecoverFS, prr_delivered and prr_out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prr {
    recover_fs: u64,
    delivered: u64,
    out: u64,
    linux: bool,
}

impl Prr {
    /// Recovery begins with `flight` bytes outstanding.
    pub(super) fn new(flight: u64) -> Self {
        Self { recover_fs: flight.max(1), delivered: 0, out: 0, linux: false }
    }

    /// The variant of Linux, starting from a cwnd of `cwnd` bytes; see [`Prr::window`].
    pub(super) fn linux(cwnd: u64) -> Self {
        Self { linux: true, ..Self::new(cwnd) }
    }

    /// Records `bytes` sent during recovery.
    pub(super) fn sent(&mut self, bytes: u64) {
        self.out += bytes;
    }

    /// Returns the new cwnd after an ACK that delivered `delivered` bytes and left `pipe` bytes in
    /// flight. `safe_ack` means that SND.UNA advanced and no new loss was detected: only then does
    /// Linux send one segment more than was delivered (RFC 9937, 6.2: SafeACK).
    pub(super) fn window(
        &mut self,
        delivered: u64,
        pipe: u64,
        ssthresh: u64,
        segment: u64,
        safe_ack: bool,
    ) -> u64 {
        self.delivered += delivered;
        let extra = if safe_ack || !self.linux { segment } else { 0 };
        let send_count = if pipe > ssthresh {
            // Section 3: proportional rate reduction, rounded up.
            (self.delivered * ssthresh).div_ceil(self.recover_fs).saturating_sub(self.out)
        } else {
            // Section 3: slow-start reduction bound.
            let limit = self.delivered.saturating_sub(self.out).max(delivered) + extra;
            (ssthresh - pipe).min(limit)
        };
        pipe + send_count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Given the example of RFC 6937, section 3, with limited transmit (20 segments outstanding,
    /// the first lost, ssthresh 10; each ACK delivers one segment), expect one segment sent for
    /// every two delivered.
    #[test]
    fn one_segment_is_sent_for_every_two_delivered() {
        let mut prr = Prr::new(20);
        let mut pipe = 18;
        let mut sent = 0;
        for ack in 1..=16u64 {
            let window = prr.window(1, pipe, 10, 1, true);
            while pipe < window {
                prr.sent(1);
                pipe += 1;
                sent += 1;
            }
            assert_eq!(sent, ack.div_ceil(2), "after {ack} ACKs");
            pipe -= 1;
        }
        assert_eq!(pipe, 10, "recovery ends at ssthresh");
    }

    /// Given a pipe below ssthresh after a burst of losses, expect slow start at most: one segment
    /// more than was delivered.
    #[test]
    fn below_ssthresh_growth_is_bounded() {
        let mut prr = Prr::new(20);
        assert_eq!(prr.window(1, 4, 10, 1, false), 6);
        prr.sent(2);
        assert_eq!(prr.window(1, 5, 10, 1, false), 7);
    }

    /// Given Linux's variant, expect as much sent as was delivered while losses are detected, and
    /// one segment more after that.
    #[test]
    fn linux_adds_a_segment_only_for_a_safe_ack() {
        let mut prr = Prr::linux(20);
        assert_eq!(prr.window(1, 4, 10, 1, false), 5);
        prr.sent(1);
        assert_eq!(prr.window(1, 4, 10, 1, true), 6);
    }
}
