//! Transmission: lost segments first, then new data as far as the windows allow.

use super::idle::CoarseInstant;
use super::{Outgoing, Position, Recovery, Run, Sender};
use crate::packet::LimitedBy;
use crate::time::Instant;

impl Sender {
    /// A run of the segments that [`Sender::next_segment`] would return, as far as they are full
    /// segments of new data with more data behind them; they count as sent. Empty with pending
    /// retransmissions, with a due probe, and with pacing.
    #[inline]
    pub(in crate::tcp) fn take_full_segments(&mut self, now: Instant) -> Run {
        let (segment, start) = (self.segment(), self.nxt);
        let probes = self.tlp_due || self.window_probe_due;
        if self.una == 0 || start < self.max || probes {
            return Run::default();
        }
        let Some(allowed) = self.bulk_allowance() else { return Run::default() };
        // The last segment may carry the FIN.
        let unsent = self.written.saturating_sub(start + u64::from(self.closed));
        let right = self.edge.min(self.una.saturating_add(self.send_buffer));
        let available = unsent.min(right.saturating_sub(start));
        let limited_by = self.limited_by;
        let limit = start + available.min(allowed);
        let count = match &mut self.recovery {
            Recovery::Cumulative(_) => (limit - start) / segment,
            Recovery::Selective(selective) => selective.sent_run(now, start, limit, segment),
        };
        let end = start + count * segment;
        if count > 0 {
            self.segments += count;
            self.on_run_sent(now, start + segment, end);
        }
        // Another full segment is available but exceeds cwnd: the sender is cwnd-limited.
        let complete = available - (end - start) >= segment;
        if complete {
            self.on_cwnd_full();
            self.set_limit(now, self.cwnd_limit());
        }
        let payload = self.segment;
        Run { start, count, payload, complete, limited_by }
    }

    /// Bytes of new data that cwnd allows, if there is nothing to retransmit and no pacing.
    fn bulk_allowance(&self) -> Option<u64> {
        match &self.recovery {
            Recovery::Cumulative(cumulative) => {
                let window = cumulative.window(&self.control, self.segment());
                cumulative.allows_runs().then(|| window.saturating_sub(self.nxt - self.una))
            }
            Recovery::Selective(selective) => selective.bulk_allowance(self.control.cwnd()),
        }
    }

    /// Records that full segments up to `end` were sent, the first one up to `first_end`.
    fn on_run_sent(&mut self, now: Instant, first_end: Position, end: Position) {
        self.nxt = end;
        self.max = end;
        if matches!(self.recovery, Recovery::Cumulative(_)) && self.timed.is_none() {
            self.timed = Some((first_end, now));
        }
        self.sent_new = true;
        self.tlp_at = self.rack_tlp.then(|| self.tlp_expiry(now));
        self.last_activity = now;
        self.last_sent = CoarseInstant::new(now);
        self.start_timer(now);
    }

    /// The next segment that may be sent, if any; it counts as sent. Call until `None`.
    pub fn next_segment(&mut self, now: Instant) -> Option<Outgoing> {
        if self.una == 0 {
            return self.syn(now);
        }
        let blocked = self.paced && self.is_pacing_blocked(now);
        if !blocked && let Some(outgoing) = self.next_lost_segment(now) {
            return Some(outgoing);
        }
        if std::mem::take(&mut self.tlp_due)
            && let Some(outgoing) = self.send_tlp(now)
        {
            return Some(outgoing);
        }
        if std::mem::take(&mut self.window_probe_due)
            && let Some(outgoing) = self.window_probe(now)
        {
            return Some(outgoing);
        }
        let Some(payload) = self.new_payload() else {
            if !blocked && self.stop_deferring() {
                return self.next_lost_segment(now);
            }
            self.on_transmission_end();
            self.set_limit(now, self.window_limit());
            return None;
        };
        let within_cwnd = self.cwnd_allows(payload);
        if !within_cwnd && !blocked && self.stop_deferring() {
            return self.next_lost_segment(now);
        }
        if !within_cwnd || blocked {
            if !within_cwnd {
                self.on_cwnd_full();
            }
            self.set_limit(now, self.cwnd_limit());
            return None;
        }
        Some(self.send_next(now, payload))
    }

    /// Whether cwnd allows a new segment with this payload.
    pub(super) fn cwnd_allows(&self, payload: u64) -> bool {
        match &self.recovery {
            Recovery::Cumulative(cumulative) => {
                let flight = self.nxt - self.una;
                let window = cumulative.window(&self.control, self.segment());
                flight + payload <= window || flight == 0
            }
            Recovery::Selective(selective) => selective.allows_new(payload, self.control.cwnd()),
        }
    }

    /// F-RTO: ends deferring retransmissions, since no new data can be sent.
    fn stop_deferring(&mut self) -> bool {
        match &mut self.recovery {
            Recovery::Selective(selective) if selective.has_pending_retransmits() => {
                selective.stop_deferring(self.max)
            }
            _ => false,
        }
    }

    /// Only the SYN is sent before it is acknowledged.
    fn syn(&mut self, now: Instant) -> Option<Outgoing> {
        if self.nxt > 0 {
            self.set_limit(now, self.handshake_limit());
            return None;
        }
        if self.max == 0 {
            self.start_limit_times(now);
        }
        self.timed = (self.max == 0).then_some((1, now));
        self.nxt = 1;
        self.max = 1;
        self.last_sent = CoarseInstant::new(now);
        self.start_timer(now);
        let limited_by = LimitedBy::Handshake;
        Some(Outgoing { position: 0, payload: 0, syn: true, fin: false, limited_by })
    }

    fn next_lost_segment(&mut self, now: Instant) -> Option<Outgoing> {
        match &mut self.recovery {
            Recovery::Cumulative(cumulative) => {
                if !cumulative.take_retransmit() || self.una == self.max {
                    return None;
                }
                let end = (self.una + self.segment()).min(self.max);
                // A FIN occupies no payload: it is retransmitted with the last data.
                let end = if end == self.written { self.max } else { end };
                self.timed = None;
                self.nxt = self.nxt.max(end);
                Some(self.outgoing(now, self.una, end))
            }
            Recovery::Selective(selective) => {
                let sent = selective.next_retransmission(self.control.cwnd())?;
                selective.on_retransmit(now, &sent, false);
                if (self.paced || selective.is_linux()) && sent.start == self.una {
                    self.rearm_rto(now);
                }
                Some(self.outgoing(now, sent.start, sent.end))
            }
        }
    }

    /// Payload of the next segment that the application and the peer's window allow; zero for a FIN
    /// alone. RFC 9293, 3.8.6.2.1: a partial segment is sent only if it is the last, at least half
    /// of the largest window advertised, or retransmitted after a timeout.
    pub(super) fn new_payload(&self) -> Option<u64> {
        let unsent = self.written.saturating_sub(self.nxt);
        if unsent == 0 {
            let fin_pending = self.closed && self.nxt == self.written;
            return fin_pending.then_some(0);
        }
        let right = self.edge.min(self.una.saturating_add(self.send_buffer));
        let usable = right.saturating_sub(self.nxt);
        let full = unsent.min(self.segment() - self.option_bytes);
        if usable >= full {
            return Some(full);
        }
        let is_retransmitted = self.nxt < self.max;
        let is_allowed = is_retransmitted || usable >= u64::from(self.window_max) / 2;
        (usable > 0 && is_allowed).then_some(usable)
    }

    pub(super) fn send_next(&mut self, now: Instant, payload: u64) -> Outgoing {
        let start = self.nxt;
        let data_end = start + payload;
        let fin = self.closed && data_end == self.written;
        let end = data_end + u64::from(fin);
        if start >= self.max {
            if let Recovery::Selective(selective) = &mut self.recovery {
                selective.sent_new(now, start, end);
            } else if self.timed.is_none() {
                self.timed = Some((end, now));
            }
        } else {
            // Karn's algorithm: retransmitted segments are not timed.
            self.timed = None;
        }
        self.nxt = end;
        self.outgoing(now, start, end)
    }

    /// Counts the segment `start..end` as sent and describes it.
    pub(super) fn outgoing(&mut self, now: Instant, start: Position, end: Position) -> Outgoing {
        let fin = self.closed && end > self.written;
        let payload = end - start - u64::from(fin);
        if self.paced {
            self.sample_sent(now, start, end);
        }
        self.segments += 1;
        let mut limited_by = self.limited_by;
        if start < self.max {
            self.counters.retransmitted_segments += 1;
            self.counters.retransmitted_bytes += payload;
            limited_by = LimitedBy::Recovery;
        }
        if end > self.max {
            self.max = end;
            self.sent_new = true;
            self.tlp_at = self.rack_tlp.then(|| self.tlp_expiry(now));
        }
        self.last_activity = now;
        self.last_sent = CoarseInstant::new(now);
        self.start_timer(now);
        let payload = u16::try_from(payload).expect("an MSS has 16 bits");
        Outgoing { position: start, payload, syn: false, fin, limited_by }
    }

    pub(super) fn has_pending_retransmits(&self) -> bool {
        match &self.recovery {
            Recovery::Cumulative(_) => false,
            Recovery::Selective(selective) => selective.has_pending_retransmits(),
        }
    }
}
