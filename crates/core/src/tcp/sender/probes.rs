//! What a sender does when nothing comes back: tail loss probes, which look for a lost end before the
//! time-out does (RFC 8985, section 7), and probes of a closed window (RFC 9293, 3.8.6.1).

use super::idle::SentAt;
use super::{Outgoing, Recovery, Sender};
use crate::tcp::selective::Selective;
use crate::time::{Duration, Instant};

/// RFC 8985, section 7.2: added for a peer that may delay the ACK of a single segment, and used
/// before there is a sample.
const PROBE_ACK_DELAY_MAX: Duration = Duration::from_millis(200);
const PROBE_WITHOUT_SAMPLE: Duration = Duration::from_secs(1);

impl Sender {
    /// RFC 8985, section 7.3: new data if the peer's window allows, else the last segment again.
    pub(super) fn probe(&mut self, now: Instant) -> Option<Outgoing> {
        let new = self.new_payload();
        let Recovery::Selective(selective) = &mut self.recovery else { return None };
        self.counters.tail_loss_probes += 1;
        if let Some(payload) = new {
            let outgoing = self.send_next(now, payload);
            let end = self.nxt;
            if let Recovery::Selective(selective) = &mut self.recovery {
                selective.probe_sent(end, false);
            }
            return Some(outgoing);
        }
        let sent = selective.last_segment()?;
        selective.sent_again(now, &sent, true);
        selective.probe_sent(sent.end, true);
        Some(self.outgoing(now, sent.start, sent.end))
    }

    /// As much as the peer's window takes, and one byte in any case: the answer tells the window.
    pub(super) fn window_probe(&mut self, now: Instant) -> Option<Outgoing> {
        let unsent = self.written.saturating_sub(self.nxt).min(self.segment);
        let usable = self.edge.saturating_sub(self.nxt).max(1);
        let outgoing = (unsent > 0).then(|| self.send_next(now, unsent.min(usable)));
        if self.edge <= self.una {
            // No tail loss probe of it: the peer may refuse it for as long as its window is closed.
            self.probe_at = None;
        }
        outgoing
    }

    /// RFC 8985, section 7.2: two round trips after the last new data or progress.
    pub(super) fn probe_time(&self, now: Instant) -> Instant {
        let wait = self.rtt.srtt().map_or(PROBE_WITHOUT_SAMPLE, |srtt| {
            let lone = self.max - self.una <= self.segment;
            srtt.saturating_mul(2) + if lone { PROBE_ACK_DELAY_MAX } else { Duration::ZERO }
        });
        now + wait
    }

    /// Whether what waits for an answer is a probe already.
    pub(super) fn window_is_closed(&self) -> bool {
        self.edge <= self.una
    }

    /// When a tail loss probe is to be sent: at the latest in place of a time-out.
    pub(super) fn probe_due_at(&self, selective: &Selective) -> Option<Instant> {
        let at = self.probe_at.filter(|_| selective.may_probe() && !self.window_is_closed())?;
        Some(self.timeout_at.map_or(at, |timeout| at.min(timeout)))
    }

    /// Whether the retransmission timer, which is due, leaves the probe where it is. In Linux a probe takes
    /// the timer's place and starts anew with all new data. The time-out is the earlier one only as long
    /// as that of the first outstanding segment lies ahead when data is sent (`tcp_schedule_loss_probe`,
    /// `tcp_rto_delta_us`); RFC 8985 (7.2) has the earlier one in any case.
    #[cold]
    #[inline(never)]
    pub(super) fn probe_outlasts_timeout(&self, now: Instant) -> bool {
        let Recovery::Selective(selective) = &self.recovery else { return false };
        let (Some(probe_at), Some(head_at)) = (self.probe_at, selective.head_sent_at()) else {
            return false;
        };
        // The last new data or progress; only with new data is there no new time-out.
        let since = self.probe_time(now).saturating_since(probe_at);
        let sent_at = Instant::from_nanos(now.as_nanos().saturating_sub(since.as_nanos()));
        selective.is_linux()
            && self.last_sent == SentAt::new(sent_at)
            && head_at + self.rtt.rto() <= sent_at
    }

    /// RFC 9293, 3.8.6.1: with nothing outstanding and data that the peer's window holds back, the
    /// peer is probed.
    pub(super) fn persist_at(&self) -> Option<Instant> {
        let waits = self.written > self.nxt && self.una > 0 && self.new_payload().is_none();
        waits.then(|| self.rtt.deadline_from(self.last_activity))
    }
}
