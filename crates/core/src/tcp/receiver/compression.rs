//! SACK compression: behind a hole Linux acknowledges three segments one by one, as fast retransmit
//! needs, and from then on about a millisecond's worth at a time (`__tcp_ack_snd_check`).

use crate::tcp::config::{Config, Follows};
use crate::time::{Duration, Instant};

/// TCP_FASTRETRANS_THRESH: so many segments are acknowledged at once for each left edge.
const AT_ONCE: u8 = 3;
/// `tcp_comp_sack_nr`: one ACK is held back for so many segments at most.
const HELD_MAX: u8 = 44;
/// `tcp_comp_sack_delay_ns`; not more than a twentieth of the round trip.
const DELAY_MAX: Duration = Duration::from_millis(1);
const RTT_SHARE: u64 = 20;
/// `tcp_comp_sack_slack_ns`: the timer may be so late in order to share an interrupt. On an idle
/// processor it is.
const SLACK: Duration = Duration::from_micros(100);
/// TCP_SACK_BLOCKS_EXPECTED: what is held back is reported before a block becomes the first that is new
/// or stood behind so many others (`tcp_sack_new_ofo_skb`).
const BLOCKS_EXPECTED: usize = 2;

/// See the module's description.
#[derive(Clone, Copy, Debug)]
pub(super) struct Compression {
    on: bool,
    /// Segments beyond the hole that were acknowledged at once.
    at_once: u8,
    /// Segments whose ACK is held back.
    held: u8,
}

impl Compression {
    /// A host that acknowledges each segment at once does so beyond a hole too (Linux, `quickack` of a
    /// route: `tcp_in_quickack_mode`).
    pub(super) fn of(config: &Config) -> Self {
        let on = config.follows == Follows::Linux && config.acks.delayed_segments > 1;
        Self { on, at_once: 0, held: 0 }
    }

    /// Without SACK, every duplicate ACK counts.
    pub(super) fn negotiated(&mut self, sack: bool) {
        self.on &= sack;
    }

    /// The left edge moved; what lies beyond it is counted anew.
    pub(super) fn restart(&mut self) {
        (self.at_once, self.held) = (0, 0);
    }

    /// An ACK leaves, which reports all that arrived.
    pub(super) fn acknowledged(&mut self) {
        self.held = 0;
    }

    /// Whether an ACK is held back.
    pub(super) fn holds(&self) -> bool {
        self.held > 0
    }

    /// A segment beyond the hole arrived, and its block stood behind `rank` others. When its ACK is due,
    /// if it may wait at all; if one waits already, that one's time holds.
    pub(super) fn hold(
        &mut self,
        now: Instant,
        rank: usize,
        rtt: Option<Duration>,
    ) -> Option<Instant> {
        let is_crowded = self.held > 0 && rank >= BLOCKS_EXPECTED;
        if !self.on || is_crowded || self.held >= HELD_MAX {
            return None;
        }
        if self.at_once < AT_ONCE {
            self.at_once += 1;
            return None;
        }
        self.held += 1;
        let share = rtt.map_or(0, |rtt| rtt.as_nanos() / RTT_SHARE);
        Some(now + Duration::from_nanos(share).min(DELAY_MAX) + SLACK)
    }
}
