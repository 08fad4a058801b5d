//! What leaves now: new data as far as the windows allow, what was lost before that.

use super::idle::SentAt;
use super::{Outgoing, Position, Recovery, Run, Sender};
use crate::time::Instant;

impl Sender {
    /// What [`Sender::next_segment`] would give one by one, as far as it is full segments of new data
    /// with more data behind them; they count as sent. Nothing while something is retransmitted or probed,
    /// or at a pace.
    #[inline]
    pub(in crate::tcp) fn full_segments(&mut self, now: Instant) -> Run {
        let (segment, start) = (self.segment, self.nxt);
        let probes = self.probe_due || self.window_probe_due;
        if self.una == 0 || start < self.max || probes {
            return Run::default();
        }
        let Some(allowed) = self.allowed_now() else { return Run::default() };
        // What reaches the end of the data may carry the FIN.
        let unsent = self.written.saturating_sub(start + u64::from(self.closed));
        let right = self.edge.min(self.una.saturating_add(self.send_buffer));
        let available = unsent.min(right.saturating_sub(start));
        let limit = start + available.min(allowed);
        let count = match &mut self.recovery {
            Recovery::Cumulative(_) => (limit - start) / segment,
            Recovery::Selective(selective) => selective.sent_run(now, start, limit, segment),
        };
        let end = start + count * segment;
        if count > 0 {
            self.segments += count;
            self.note_run(now, start + segment, end);
        }
        // Another full segment is there and has no room: that is what stops the sending.
        let is_all = available - (end - start) >= segment;
        self.limited_by_window |= is_all;
        let payload = u16::try_from(segment).expect("an MSS has 16 bits");
        Run { start, count, payload, is_all }
    }

    /// Bytes of new data that the congestion window lets out, if nothing is to be retransmitted first and
    /// nothing is paced.
    fn allowed_now(&self) -> Option<u64> {
        match &self.recovery {
            Recovery::Cumulative(cumulative) => {
                let window = cumulative.window(&self.control, self.segment);
                cumulative.lets_out_runs().then(|| window.saturating_sub(self.nxt - self.una))
            }
            Recovery::Selective(selective) => selective.room(self.control.cwnd()),
        }
    }

    /// Full segments up to `end` were sent, the first one up to `first_end`.
    fn note_run(&mut self, now: Instant, first_end: Position, end: Position) {
        self.nxt = end;
        self.max = end;
        if matches!(self.recovery, Recovery::Cumulative(_)) && self.timed.is_none() {
            self.timed = Some((first_end, now));
        }
        self.probe_at = self.probes.then(|| self.probe_time(now));
        self.last_activity = now;
        self.last_sent = SentAt::new(now);
        self.start_timer(now);
    }

    /// The next segment that may leave, if any; it counts as sent. Call until `None`.
    pub fn next_segment(&mut self, now: Instant) -> Option<Outgoing> {
        if self.una == 0 {
            return self.syn(now);
        }
        let held = self.paced && self.pace_holds(now);
        if !held && let Some(outgoing) = self.lost_segment(now) {
            return Some(outgoing);
        }
        if std::mem::take(&mut self.probe_due)
            && let Some(outgoing) = self.probe(now)
        {
            return Some(outgoing);
        }
        if std::mem::take(&mut self.window_probe_due)
            && let Some(outgoing) = self.window_probe(now)
        {
            return Some(outgoing);
        }
        let Some(payload) = self.new_payload() else {
            if !held && self.stops_holding_back() {
                return self.lost_segment(now);
            }
            self.limited_by_window = self.retransmissions_wait();
            return None;
        };
        let window_allows = self.window_lets_out(payload);
        if !window_allows && !held && self.stops_holding_back() {
            return self.lost_segment(now);
        }
        self.limited_by_window = !window_allows;
        (window_allows && !held).then(|| self.send_next(now, payload))
    }

    /// Whether the congestion window lets out a new segment with this payload.
    pub(super) fn window_lets_out(&self, payload: u64) -> bool {
        match &self.recovery {
            Recovery::Cumulative(cumulative) => {
                let flight = self.nxt - self.una;
                let window = cumulative.window(&self.control, self.segment);
                flight + payload <= window || flight == 0
            }
            Recovery::Selective(selective) => selective.lets_out(payload, self.control.cwnd()),
        }
    }

    /// F-RTO: what was held back for new data goes after all, since none can leave.
    fn stops_holding_back(&mut self) -> bool {
        match &mut self.recovery {
            Recovery::Selective(selective) if selective.retransmissions_wait() => {
                selective.stop_holding_back(self.max)
            }
            _ => false,
        }
    }

    /// Only the SYN leaves before it is acknowledged.
    fn syn(&mut self, now: Instant) -> Option<Outgoing> {
        if self.nxt > 0 {
            return None;
        }
        self.timed = (self.max == 0).then_some((1, now));
        self.nxt = 1;
        self.max = 1;
        self.last_sent = SentAt::new(now);
        self.start_timer(now);
        Some(Outgoing { position: 0, payload: 0, syn: true, fin: false })
    }

    fn lost_segment(&mut self, now: Instant) -> Option<Outgoing> {
        match &mut self.recovery {
            Recovery::Cumulative(cumulative) => {
                if !cumulative.take_resend() || self.una == self.max {
                    return None;
                }
                let end = (self.una + self.segment).min(self.max);
                // A FIN takes no room: it goes with the last data again.
                let end = if end == self.written { self.max } else { end };
                self.timed = None;
                self.nxt = self.nxt.max(end);
                Some(self.outgoing(now, self.una, end))
            }
            Recovery::Selective(selective) => {
                let sent = selective.next_retransmission(self.control.cwnd())?;
                selective.sent_again(now, &sent, false);
                if (self.paced || selective.is_linux()) && sent.start == self.una {
                    self.restart_for_repair(now);
                }
                Some(self.outgoing(now, sent.start, sent.end))
            }
        }
    }

    /// Data that the application and the peer's window allow to be sent next, as a payload; zero
    /// for a FIN alone. RFC 9293, 3.8.6.2.1: a part of a segment leaves only if it is the last, or
    /// half of the largest window ever offered, or is retransmitted after a time-out.
    pub(super) fn new_payload(&self) -> Option<u64> {
        let unsent = self.written.saturating_sub(self.nxt);
        if unsent == 0 {
            let fin_waits = self.closed && self.nxt == self.written;
            return fin_waits.then_some(0);
        }
        let right = self.edge.min(self.una.saturating_add(self.send_buffer));
        let usable = right.saturating_sub(self.nxt);
        let wanted = unsent.min(self.segment - self.reserved);
        if usable >= wanted {
            return Some(wanted);
        }
        let is_retransmitted = self.nxt < self.max;
        let may_leave = is_retransmitted || usable >= self.window_max / 2;
        (usable > 0 && may_leave).then_some(usable)
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
            // Karn's rule: what is retransmitted is not timed.
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
            self.measure_sent(now, start, end);
        }
        self.segments += 1;
        if start < self.max {
            self.counters.retransmitted_segments += 1;
        }
        if end > self.max {
            self.max = end;
            self.probe_at = self.probes.then(|| self.probe_time(now));
        }
        self.last_activity = now;
        self.last_sent = SentAt::new(now);
        self.start_timer(now);
        let payload = u16::try_from(payload).expect("an MSS has 16 bits");
        Outgoing { position: start, payload, syn: false, fin }
    }

    pub(super) fn retransmissions_wait(&self) -> bool {
        match &self.recovery {
            Recovery::Cumulative(_) => false,
            Recovery::Selective(selective) => selective.retransmissions_wait(),
        }
    }
}
