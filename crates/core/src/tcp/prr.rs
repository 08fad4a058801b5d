//! Proportional rate reduction (RFC 6937): during recovery, what is sent follows what is delivered,
//! so that the window ends at the threshold without a pause or a burst.

/// See the module's description. Quantities are bytes; names are the RFC's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prr {
    recover_flight: u64,
    delivered: u64,
    out: u64,
    linux: bool,
}

impl Prr {
    /// Recovery begins with `flight` bytes outstanding (RecoverFS).
    pub(super) fn new(flight: u64) -> Self {
        Self { recover_flight: flight.max(1), delivered: 0, out: 0, linux: false }
    }

    /// As Linux does it, from a window of `cwnd` bytes: see [`Prr::window`].
    pub(super) fn linux(cwnd: u64) -> Self {
        Self { linux: true, ..Self::new(cwnd) }
    }

    /// `bytes` were sent during recovery.
    pub(super) fn sent(&mut self, bytes: u64) {
        self.out += bytes;
    }

    /// An ACK delivered `delivered` bytes and left `pipe` in flight: the window from here. `clean`
    /// tells whether it moved the left edge and no loss came to light: with that alone Linux lets a
    /// segment more out than was delivered (RFC 9937, 6.2: SafeACK).
    pub(super) fn window(
        &mut self,
        delivered: u64,
        pipe: u64,
        ssthresh: u64,
        segment: u64,
        clean: bool,
    ) -> u64 {
        self.delivered += delivered;
        let extra = if clean || !self.linux { segment } else { 0 };
        let more = if pipe > ssthresh {
            // Section 3: proportional; rounded up.
            (self.delivered * ssthresh).div_ceil(self.recover_flight).saturating_sub(self.out)
        } else {
            // The slow-start reduction bound.
            let limit = self.delivered.saturating_sub(self.out).max(delivered) + extra;
            (ssthresh - pipe).min(limit)
        };
        pipe + more
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 6937, section 3, with limited transmit: 20 segments outstanding, the
    /// first lost, ssthresh 10. Each ACK delivers one segment; one is sent for every two.
    #[test]
    fn one_goes_out_for_every_two_delivered() {
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
        assert_eq!(pipe, 10, "recovery ends at the threshold");
    }

    /// After a burst of losses the pipe is below the threshold: slow start at most, one more
    /// segment than was delivered.
    #[test]
    fn below_the_threshold_growth_is_bounded() {
        let mut prr = Prr::new(20);
        assert_eq!(prr.window(1, 4, 10, 1, false), 6);
        prr.sent(2);
        assert_eq!(prr.window(1, 5, 10, 1, false), 7);
    }

    /// Linux sends as much as was delivered while losses come to light, and one more after that.
    #[test]
    fn linux_adds_a_segment_only_when_all_is_well() {
        let mut prr = Prr::linux(20);
        assert_eq!(prr.window(1, 4, 10, 1, false), 5);
        prr.sent(1);
        assert_eq!(prr.window(1, 4, 10, 1, true), 6);
    }
}
