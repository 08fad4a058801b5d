//! What a flow learns of losses that were decoded (RFC 9265).
//!
//! A decoder hides losses from the congestion control of the flows in the tunnel, those of congestion among them. The
//! flows may be told of them instead.

use crate::packet::Ecn;

/// How flows learn of losses that were decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CongestionSignal {
    /// Not at all.
    Hidden,
    /// Decoded packets that are capable of ECN are marked; the others are delivered unmarked.
    Ecn,
    /// A share of decoded packets is not delivered.
    Visible {
        /// The share in millionths.
        share_ppm: u32,
    },
}

/// What becomes of a decoded packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// It is delivered unchanged.
    Hidden,
    /// It is delivered, marked CE (congestion experienced).
    Marked,
    /// It is not delivered.
    Withheld,
}

/// Decides for each decoded packet, and counts.
#[derive(Clone, Copy, Debug)]
pub struct LossSignal {
    signal: CongestionSignal,
    /// The share of a packet to be withheld, in millionths.
    credit: u64,
    counts: [u64; 3],
}

impl LossSignal {
    /// Nothing was decoded yet.
    #[must_use]
    pub const fn new(signal: CongestionSignal) -> Self {
        Self { signal, credit: 0, counts: [0; 3] }
    }

    /// What becomes of the next decoded packet.
    pub fn next(&mut self, ecn: Ecn) -> Shown {
        let shown = match self.signal {
            CongestionSignal::Ecn if ecn.is_capable() => Shown::Marked,
            CongestionSignal::Hidden | CongestionSignal::Ecn => Shown::Hidden,
            CongestionSignal::Visible { share_ppm } => {
                self.credit += u64::from(share_ppm);
                if self.credit >= 1_000_000 {
                    self.credit -= 1_000_000;
                    Shown::Withheld
                } else {
                    Shown::Hidden
                }
            }
        };
        self.counts[shown as usize] += 1;
        shown
    }

    /// Decoded packets of which this became.
    #[must_use]
    pub fn count(&self, shown: Shown) -> u64 {
        self.counts[shown as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capable_packets_are_marked() {
        let mut signal = LossSignal::new(CongestionSignal::Ecn);
        assert_eq!(signal.next(Ecn::Ect0), Shown::Marked);
        assert_eq!(signal.next(Ecn::NotEct), Shown::Hidden);
        assert_eq!([Shown::Hidden, Shown::Marked].map(|shown| signal.count(shown)), [1, 1]);
    }

    /// Given a share of 40 %, expect 40 of 100 decoded packets not to be delivered, and never two consecutive ones.
    #[test]
    fn a_share_of_losses_stays_visible() {
        let mut signal = LossSignal::new(CongestionSignal::Visible { share_ppm: 400_000 });
        let shown: Vec<_> = (0..100).map(|_| signal.next(Ecn::NotEct)).collect();
        assert_eq!(signal.count(Shown::Withheld), 40);
        assert!(shown.windows(2).all(|pair| pair.contains(&Shown::Hidden)));
    }
}
