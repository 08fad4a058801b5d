//! The retransmission timer (RFC 6298) and the dispatch of expired timers.

use super::{Expiry, Recovery, Sender};
use crate::tcp::congestion::LossState;
use crate::time::{Instant, earlier};

impl Sender {
    /// RFC 6298, 5.1: starts the timer unless it is running.
    pub(super) fn start_timer(&mut self, now: Instant) {
        if self.timeout_at.is_none() {
            self.timeout_at = Some(self.rtt.deadline(now));
        }
    }

    /// RFC 6298, 5.2 and 5.3: restarts the timers with data outstanding, otherwise stops them.
    pub(super) fn restart_timers(&mut self, now: Instant) {
        let outstanding = self.una < self.max;
        self.timeout_at = outstanding.then(|| self.rtt.deadline(now));
        self.tlp_at = (outstanding && self.rack_tlp).then(|| self.tlp_expiry(now));
    }

    /// When to call [`Sender::on_timer`] if no ACK arrives.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        if self.is_idle() {
            debug_assert!(self.timeout_at.or(self.tlp_at).is_none(), "nothing is outstanding");
            return None;
        }
        let timer = self.timeout_at.or_else(|| self.persist_deadline());
        if !self.rack_tlp {
            return if self.paced { earlier(timer, self.pacing_deadline()) } else { timer };
        }
        let Recovery::Selective(selective) = &self.recovery else { return timer };
        let timer = earlier(timer, self.tlp_deadline(selective));
        if selective.fast_path_ok() {
            // Neither the reordering timer nor pacing is active.
            return timer;
        }
        let timer = earlier(timer, selective.detection_deadline());
        if self.paced { earlier(timer, self.pacing_deadline()) } else { timer }
    }

    /// Handles expired timers: loss detection, probes, or the retransmission timeout.
    pub fn on_timer(&mut self, now: Instant) {
        let due = |deadline: Option<Instant>| deadline.is_some_and(|deadline| deadline <= now);
        let mut tlp_due = false;
        if let Recovery::Selective(selective) = &mut self.recovery {
            if due(selective.detection_deadline()) {
                let began = selective.detect_on_timer(
                    now,
                    self.max,
                    self.una,
                    &mut self.control,
                    &self.rtt,
                );
                self.counters.fast_recoveries += u64::from(began);
            }
            let may_send_tlp = selective.may_send_tlp() && !self.window_is_closed();
            tlp_due = may_send_tlp && (due(self.tlp_at) || due(self.timeout_at));
        }
        if tlp_due && !due(self.tlp_at) && self.tlp_outlasts_rto(now) {
            self.timeout_at = self.tlp_at;
        } else if tlp_due {
            self.tlp_due = true;
            self.tlp_at = None;
            self.timeout_at = Some(self.rtt.deadline(now));
        } else if due(self.timeout_at) {
            self.on_rto(now);
        } else if self.timeout_at.is_none() && due(self.persist_deadline()) {
            self.window_probe_due = true;
            self.rtt.back_off();
        }
    }

    /// The retransmission timer expired (RFC 6298, 5.4 to 5.6; RFC 5681, 3.1).
    fn on_rto(&mut self, now: Instant) {
        self.rtt.back_off();
        self.timeout_at = Some(self.rtt.deadline(now));
        self.tlp_at = None;
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
            let repeated = self.timed_out || self.already_reduced();
            expiry = Some(Expiry {
                una: self.una,
                prior: (!repeated).then(|| self.control.prior()),
                may_be_spurious: self.timed_out || self.is_open(),
            });
            self.control.timed_out(self.max - self.una, repeated);
            self.timed_out = true;
        }
        self.retransmit_all(now, expiry);
        // A zero-window probe does not indicate congestion (`tcp_send_probe0`).
        if let Recovery::Selective(selective) = &self.recovery
            && selective.is_linux()
            && !window_closed
        {
            // Segments not marked lost are still in flight: a cwnd of one segment would block the
            // retransmission.
            self.control.set_cwnd(selective.pipe() + u64::from(self.segment));
        }
        if self.paced && !window_closed {
            self.sample_timeout(now);
        }
        // With SACK, the dropped probe is among the lost segments.
        self.window_probe_due = window_closed && matches!(self.recovery, Recovery::Cumulative(_));
    }

    /// With SACK: whether no recovery is in progress.
    fn is_open(&self) -> bool {
        match &self.recovery {
            Recovery::Cumulative(_) => false,
            Recovery::Selective(selective) => selective.loss_state() == LossState::Open,
        }
    }

    /// Whether fast recovery has reduced cwnd for the outstanding data. RFC 5681 (3.1) and RFC 6675
    /// (5.1) reduce it again at a timeout; Linux reduces it once per window (`tcp_enter_loss`).
    fn already_reduced(&self) -> bool {
        self.linux
            && match &self.recovery {
                Recovery::Cumulative(cumulative) => cumulative.is_recovering(),
                Recovery::Selective(selective) => selective.is_recovering(),
            }
    }
}
