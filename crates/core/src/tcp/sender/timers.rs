//! The retransmission timer (RFC 6298), and what is due at which moment.

use super::{Expiry, Recovery, Sender};
use crate::tcp::congestion::LossState;
use crate::time::Instant;

impl Sender {
    /// RFC 6298, 5.1: starts the timer unless it is running.
    pub(super) fn start_timer(&mut self, now: Instant) {
        if self.timeout_at.is_none() {
            self.timeout_at = Some(self.rtt.deadline(now));
        }
    }

    /// RFC 6298, 5.2 and 5.3: with data outstanding the timers start anew, else they stop.
    pub(super) fn restart_timers(&mut self, now: Instant) {
        let outstanding = self.una < self.max;
        self.timeout_at = outstanding.then(|| self.rtt.deadline(now));
        self.probe_at = (outstanding && self.probes).then(|| self.probe_time(now));
    }

    /// When to call [`Sender::on_time`] if no ACK comes.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        if self.is_idle() {
            debug_assert!(self.timeout_at.or(self.probe_at).is_none(), "nothing is outstanding");
            return None;
        }
        let timer = self.timeout_at.or_else(|| self.persist_at());
        if !self.probes {
            return if self.paced { earlier(timer, self.pace_deadline()) } else { timer };
        }
        let Recovery::Selective(selective) = &self.recovery else { return timer };
        let timer = earlier(timer, self.probe_due_at(selective));
        if selective.is_calm() {
            // Nothing waits for its detection, and nothing is paced.
            return timer;
        }
        let timer = earlier(timer, selective.detection_deadline());
        if self.paced { earlier(timer, self.pace_deadline()) } else { timer }
    }

    /// Does what is due: detection, a probe, or a time-out.
    pub fn on_time(&mut self, now: Instant) {
        let due = |deadline: Option<Instant>| deadline.is_some_and(|deadline| deadline <= now);
        let mut probe_due = false;
        if let Recovery::Selective(selective) = &mut self.recovery {
            if due(selective.detection_deadline()) {
                let began =
                    selective.detect_by_time(now, self.max, self.una, &mut self.control, &self.rtt);
                self.counters.fast_recoveries += u64::from(began);
            }
            let may_probe = selective.may_probe() && !self.window_is_closed();
            probe_due = may_probe && (due(self.probe_at) || due(self.timeout_at));
        }
        if probe_due && !due(self.probe_at) && self.probe_outlasts_timeout(now) {
            self.timeout_at = self.probe_at;
        } else if probe_due {
            self.probe_due = true;
            self.probe_at = None;
            self.timeout_at = Some(self.rtt.deadline(now));
        } else if due(self.timeout_at) {
            self.time_out(now);
        } else if self.timeout_at.is_none() && due(self.persist_at()) {
            self.window_probe_due = true;
            self.rtt.back_off();
        }
    }

    /// The retransmission timer expired (RFC 6298, 5.4 to 5.6; RFC 5681, 3.1).
    fn time_out(&mut self, now: Instant) {
        self.rtt.back_off();
        self.timeout_at = Some(self.rtt.deadline(now));
        self.probe_at = None;
        self.timed = None;
        if self.una == 0 {
            self.counters.timeouts += 1;
            self.control.syn_lost();
            self.nxt = 0;
            return;
        }
        let window_closed = self.edge <= self.una;
        let mut expiry = None;
        if !window_closed {
            self.counters.timeouts += 1;
            let repeated = self.timeouts_in_a_row > 0 || self.window_was_reduced();
            expiry = Some(Expiry {
                una: self.una,
                prior: (!repeated).then(|| self.control.prior()),
                in_doubt: self.timeouts_in_a_row > 0 || self.is_open(),
            });
            self.control.timed_out(self.max - self.una, repeated);
            self.timeouts_in_a_row += 1;
        }
        self.resend_everything(now, expiry);
        // The probe of a closed window is no sign of congestion (`tcp_send_probe0`).
        if let Recovery::Selective(selective) = &self.recovery
            && selective.is_linux()
            && !window_closed
        {
            // What is not given up is still on its way: a window of one would hold everything back.
            self.control.set_cwnd(selective.pipe() + self.segment);
        }
        if self.paced && !window_closed {
            self.measure_timeout(now);
        }
        // With SACK, the probe that was refused is among the lost segments.
        self.window_probe_due = window_closed && matches!(self.recovery, Recovery::Cumulative(_));
    }

    /// With SACK, whether no loss is being repaired.
    fn is_open(&self) -> bool {
        match &self.recovery {
            Recovery::Cumulative(_) => false,
            Recovery::Selective(selective) => selective.loss_state() == LossState::Open,
        }
    }

    /// Whether fast recovery has reduced the window for what is outstanding. RFC 5681 (3.1) and RFC 6675
    /// (5.1) reduce it once more at a time-out; Linux does so once a window (`tcp_enter_loss`).
    fn window_was_reduced(&self) -> bool {
        self.linux
            && match &self.recovery {
                Recovery::Cumulative(cumulative) => cumulative.is_recovering(),
                Recovery::Selective(selective) => selective.is_recovering(),
            }
    }
}

fn earlier(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
