//! SACK compression: beyond a hole, Linux acknowledges the first three segments individually for
//! fast retransmit, and later ones about every millisecond (`__tcp_ack_snd_check`).

use crate::tcp::config::{Config, StackVariant};
use crate::time::{Duration, Instant};

/// TCP_FASTRETRANS_THRESH: number of segments acknowledged immediately for each RCV.NXT.
const IMMEDIATE: u8 = 3;
/// `tcp_comp_sack_nr`: maximum number of segments whose ACKs are compressed into one.
const COMPRESSED_MAX: u8 = 44;
/// `tcp_comp_sack_delay_ns`; at most a twentieth of the RTT.
const DELAY_MAX: Duration = Duration::from_millis(1);
const RTT_SHARE: u64 = 20;
/// `tcp_comp_sack_slack_ns`: by how much the timer may be late to share an interrupt. On an idle
/// CPU it is.
const SLACK: Duration = Duration::from_micros(100);
/// TCP_SACK_BLOCKS_EXPECTED: a compressed ACK is sent before a block becomes the first one that is
/// new or was behind this many others (`tcp_sack_new_ofo_skb`).
const BLOCKS_EXPECTED: usize = 2;

/// See the module's description.
#[derive(Clone, Copy, Debug)]
pub(super) struct Compression {
    on: bool,
    /// Segments beyond the hole that were acknowledged immediately.
    immediate: u8,
    /// Segments whose ACK is delayed.
    compressed: u8,
}

impl Compression {
    /// Hosts that acknowledge each segment immediately do so beyond a hole as well (Linux,
    /// `quickack` of a route: `tcp_in_quickack_mode`).
    pub(super) fn of(config: &Config) -> Self {
        let on = config.stack == StackVariant::Linux && config.acks.delayed_segments > 1;
        Self { on, immediate: 0, compressed: 0 }
    }

    /// Without SACK, the peer needs every duplicate ACK.
    pub(super) fn negotiated(&mut self, sack: bool) {
        self.on &= sack;
    }

    /// RCV.NXT advanced: counting restarts.
    pub(super) fn restart(&mut self) {
        (self.immediate, self.compressed) = (0, 0);
    }

    /// An ACK was sent; it reports everything received.
    pub(super) fn acknowledged(&mut self) {
        self.compressed = 0;
    }

    /// Whether an ACK is delayed.
    pub(super) fn is_active(&self) -> bool {
        self.compressed > 0
    }

    /// Processes a segment beyond a hole whose block was behind `rank` others. Returns when its ACK
    /// is due, or `None` if it must be sent immediately.
    pub(super) fn compress(
        &mut self,
        now: Instant,
        rank: usize,
        rtt: Option<Duration>,
    ) -> Option<Instant> {
        let block_is_due = self.compressed > 0 && rank >= BLOCKS_EXPECTED;
        if !self.on || block_is_due || self.compressed >= COMPRESSED_MAX {
            return None;
        }
        if self.immediate < IMMEDIATE {
            self.immediate += 1;
            return None;
        }
        self.compressed += 1;
        let share = rtt.map_or(0, |rtt| rtt.as_nanos() / RTT_SHARE);
        Some(now + Duration::from_nanos(share).min(DELAY_MAX) + SLACK)
    }
}
