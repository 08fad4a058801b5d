//! Probes: tail loss probes, which detect a lost tail before the retransmission timeout (RFC 8985,
//! section 7), and zero-window probes (RFC 9293, 3.8.6.1).

use super::idle::CoarseInstant;
use super::{Outgoing, Recovery, Sender};
use crate::tcp::selective::Selective;
use crate::time::{Duration, Instant};

/// RFC 8985, section 7.2: WCDelAckT, added for a single segment, whose ACK the peer may delay; and
/// the timeout before there is an RTT sample.
const WC_DEL_ACK_T: Duration = Duration::from_millis(200);
const PTO_WITHOUT_SAMPLE: Duration = Duration::from_secs(1);
/// The minimum of two RTTs: two jiffies of Linux (`TCP_TIMEOUT_MIN`).
const TIMEOUT_MIN: Duration = Duration::from_millis(2);

impl Sender {
    /// Sends a tail loss probe (RFC 8985, section 7.3): new data if the peer's window allows it,
    /// otherwise the last segment.
    pub(super) fn send_tlp(&mut self, now: Instant) -> Option<Outgoing> {
        let new = self.new_payload();
        let Recovery::Selective(selective) = &mut self.recovery else { return None };
        self.counters.tail_loss_probes += 1;
        if let Some(payload) = new {
            let outgoing = self.send_next(now, payload);
            let end = self.nxt;
            if let Recovery::Selective(selective) = &mut self.recovery {
                selective.tlp_sent(end, false);
            }
            return Some(outgoing);
        }
        let sent = selective.last_segment()?;
        selective.on_retransmit(now, &sent, true);
        selective.tlp_sent(sent.end, true);
        Some(self.outgoing(now, sent.start, sent.end))
    }

    /// A zero-window probe: as much as the peer's window allows, at least one byte.
    pub(super) fn window_probe(&mut self, now: Instant) -> Option<Outgoing> {
        let unsent = self.written.saturating_sub(self.nxt).min(self.segment());
        let usable = self.edge.saturating_sub(self.nxt).max(1);
        let outgoing = (unsent > 0).then(|| self.send_next(now, unsent.min(usable)));
        if self.edge <= self.una {
            // No tail loss probe follows: the peer may drop it while its window is closed.
            self.tlp_at = None;
        }
        outgoing
    }

    /// RFC 8985, section 7.2: the probe timeout, two RTTs after the last new data or progress.
    pub(super) fn tlp_expiry(&self, now: Instant) -> Instant {
        let timeout = self.rtt.srtt().map_or(PTO_WITHOUT_SAMPLE, |srtt| {
            let is_single = self.max - self.una <= self.segment();
            srtt.saturating_mul(2).max(TIMEOUT_MIN)
                + if is_single { WC_DEL_ACK_T } else { Duration::ZERO }
        });
        now + timeout
    }

    /// Whether the peer's window is closed, so that window probes are sent instead of tail loss
    /// probes.
    pub(super) fn window_is_closed(&self) -> bool {
        self.edge <= self.una
    }

    /// When a tail loss probe is due: no later than the retransmission timeout, which it replaces.
    pub(super) fn tlp_deadline(&self, selective: &Selective) -> Option<Instant> {
        let at = self.tlp_at.filter(|_| selective.may_send_tlp() && !self.window_is_closed())?;
        Some(self.timeout_at.map_or(at, |timeout| at.min(timeout)))
    }

    /// Whether a due retransmission timer leaves the tail loss probe pending. In Linux, a probe
    /// replaces the timer and is rescheduled with all new data. The timeout comes first only if
    /// that of the first outstanding segment is in the future when data is sent
    /// (`tcp_schedule_loss_probe`, `tcp_rto_delta_us`). RFC 8985 (7.2) always takes the earlier
    /// one.
    #[cold]
    #[inline(never)]
    pub(super) fn tlp_outlasts_rto(&self, now: Instant) -> bool {
        let Recovery::Selective(selective) = &self.recovery else { return false };
        let (Some(tlp_at), Some(head_at)) = (self.tlp_at, selective.head_sent_at()) else {
            return false;
        };
        // The last new data or progress; only new data leaves the retransmission timer alone.
        let since = self.tlp_expiry(now).saturating_since(tlp_at);
        let sent_at = Instant::from_nanos(now.as_nanos().saturating_sub(since.as_nanos()));
        selective.is_linux()
            && self.last_sent == CoarseInstant::new(sent_at)
            && head_at + self.rtt.rto() <= sent_at
    }

    /// RFC 9293, 3.8.6.1: the persist timer runs with nothing outstanding and data beyond the
    /// peer's window.
    pub(super) fn persist_deadline(&self) -> Option<Instant> {
        let is_blocked = self.written > self.nxt && self.una > 0 && self.new_payload().is_none();
        is_blocked.then(|| self.rtt.deadline_from(self.last_activity))
    }
}
