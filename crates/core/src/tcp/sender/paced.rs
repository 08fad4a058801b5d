//! What a paced sender does besides: it measures the rate of delivery for the congestion control,
//! and holds back what comes too early. All of it is idle without BBR.

use super::{Ack, Position, Recovery, Sender};
use crate::tcp::congestion::LossState;
use crate::tcp::congestion::bbr::Facts;
use crate::tcp::rate::RateSampler;
use crate::time::{Duration, Instant};

/// Where things stood before an ACK.
#[derive(Clone, Copy, Debug)]
pub(super) struct Before {
    in_flight: u64,
    lost: u64,
    resends: bool,
}

impl Sender {
    fn rate(&self) -> Option<&RateSampler> {
        self.control.bbr().map(|bbr| &bbr.rate)
    }

    /// Bytes in flight; without SACK, what duplicates announced has left the network.
    pub(super) fn flight(&self) -> u64 {
        let announced = match &self.recovery {
            Recovery::Cumulative(_) => self.rate().map_or(0, RateSampler::duplicates),
            Recovery::Selective(_) => 0,
        };
        self.in_flight().saturating_sub(announced)
    }

    fn loss_state(&self) -> LossState {
        match &self.recovery {
            Recovery::Cumulative(cumulative) => cumulative.loss_state(self.una),
            Recovery::Selective(selective) => selective.loss_state(),
        }
    }

    /// With SACK, bytes lost in all.
    fn board_lost(&self) -> Option<u64> {
        match &self.recovery {
            Recovery::Selective(selective) => Some(selective.lost_bytes()),
            Recovery::Cumulative(_) => None,
        }
    }

    /// Without SACK, whether a segment is to be retransmitted at once.
    fn resends(&self) -> bool {
        match &self.recovery {
            Recovery::Cumulative(cumulative) => cumulative.resends(),
            Recovery::Selective(_) => false,
        }
    }

    /// [`Sender::on_ack`] with measures taken.
    #[cold]
    #[inline(never)]
    pub(super) fn on_measured_ack(&mut self, now: Instant, ack: &Ack<'_>) {
        let (una_before, before) = (self.una, self.before_ack());
        let (_, rtt) = self.take_ack::<true>(now, ack);
        if una_before > 0 {
            self.measure(now, una_before, before, rtt);
        }
    }

    /// What an ACK will be compared with.
    fn before_ack(&self) -> Before {
        Before { in_flight: self.flight(), lost: self.lost(), resends: self.resends() }
    }

    /// Bytes lost in all, as far as is known.
    fn lost(&self) -> u64 {
        self.board_lost().or(self.rate().map(RateSampler::lost)).unwrap_or(0)
    }

    /// The retransmission timer expired.
    pub(super) fn measure_timeout(&mut self, now: Instant) {
        let lost = self.lost();
        if let Some((bbr, _)) = self.control.bbr_mut() {
            bbr.lost_by_time(now, lost);
        }
    }

    /// The first segment that is missing is retransmitted, or cannot be expected yet: the timer starts anew,
    /// as in Linux. BBR sends on at the rate of the path, so that the queue and with it the round trip
    /// may have grown since the last advance.
    #[cold]
    #[inline(never)]
    pub(super) fn restart_for_repair(&mut self, now: Instant) {
        self.timeout_at = Some(self.rtt.deadline(now));
    }

    /// The segment `start..end` is about to count as sent.
    #[cold]
    #[inline(never)]
    pub(super) fn measure_sent(&mut self, now: Instant, start: Position, end: Position) {
        let alone = self.una == self.max;
        let (segment, segments) = (self.segment, self.segments);
        let Some((bbr, window)) = self.control.bbr_mut() else { return };
        if alone {
            bbr.restarted(now, window);
        }
        bbr.rate.sent(now, start, end, alone);
        bbr.pacer.sent(now, end - start, segment, segments);
    }

    /// Without SACK, everything will be sent anew.
    pub(super) fn forget_measures(&mut self) {
        if self.paced {
            let outstanding = self.max - self.una;
            if let Some((bbr, _)) = self.control.bbr_mut() {
                bbr.rate.lose(outstanding);
                bbr.rate.forget();
            }
        }
    }

    /// An ACK came and recovery has taken it: what it tells the congestion control.
    fn measure(
        &mut self,
        now: Instant,
        una_before: Position,
        before: Before,
        rtt: Option<Duration>,
    ) {
        let (una, segment) = (self.una, self.segment);
        let acked = una - una_before;
        let outstanding = self.max - una;
        let (state, min_rtt) = (self.loss_state(), self.rtt.min());
        let board_lost = self.board_lost();
        let resends = self.resends();
        let Some((bbr, _)) = self.control.bbr_mut() else { return };
        let rate = &mut bbr.rate;
        let news = rate.take_news();
        let (delivered, newest) = if board_lost.is_none() && acked > 0 {
            (rate.in_order(acked, segment), rate.newest_before(una))
        } else {
            news
        };
        // What is selectively acknowledged left before the repair of the first hole did.
        let repair_is_due_later =
            acked == 0 && newest.is_some_and(|newest| rate.first_is_later(&newest));
        if resends && !before.resends {
            // One segment more is known to be missing.
            rate.lose(segment.min(outstanding));
        }
        let lost_in_all = board_lost.unwrap_or_else(|| rate.lost());
        let own_rtt = newest.and_then(|newest| newest.round_trip(now));
        let sample = rate.acked(now, una, delivered, newest, min_rtt);
        let lone =
            sample.is_some_and(|sample| sample.delivered == delivered) && delivered < segment;
        let facts = Facts {
            now,
            sample,
            rtt: rtt.or(own_rtt),
            maybe_delayed: lone && outstanding == 0,
            acked: delivered,
            lost: lost_in_all - before.lost,
            delivered: rate.delivered(),
            lost_in_all,
            delivered_at: rate.delivered_at(),
            in_flight_before: before.in_flight,
            in_flight: 0,
            state,
        };
        let facts = Facts { in_flight: self.flight(), ..facts };
        if repair_is_due_later {
            self.restart_for_repair(now);
        }
        if let Some((bbr, window)) = self.control.bbr_mut() {
            bbr.update(&facts, window);
        }
    }

    /// Notes if the application has run out: less than a segment waits, and the window has room for more
    /// (Linux, `tcp_rate_check_app_limited`, which also precedes each write).
    #[cold]
    #[inline(never)]
    pub(super) fn check_application_limit(&mut self) {
        let in_flight = self.flight();
        let right = self.written.min(self.una.saturating_add(self.send_buffer));
        let ran_out = right.saturating_sub(self.nxt) < self.segment
            && in_flight < self.control.cwnd()
            && !self.retransmissions_wait();
        if ran_out && let Some((bbr, _)) = self.control.bbr_mut() {
            bbr.rate.limit_by_application(in_flight);
        }
    }

    /// Whether the pace holds back what the windows let out. Notes whether anything waits for that,
    /// and whether the application has run out.
    #[cold]
    #[inline(never)]
    pub(super) fn pace_holds(&mut self, now: Instant) -> bool {
        self.check_application_limit();
        let segment = self.segment;
        let holds = self.control.bbr().is_some_and(|bbr| !bbr.pacer.lets_out(now, segment));
        let waits = holds && self.something_waits();
        if let Some((bbr, _)) = self.control.bbr_mut() {
            bbr.pacer.hold(waits);
        }
        holds
    }

    /// Whether the windows let out anything.
    fn something_waits(&self) -> bool {
        let resends = match &self.recovery {
            Recovery::Cumulative(_) => self.resends() && self.una < self.max,
            Recovery::Selective(selective) => {
                selective.next_retransmission(self.control.cwnd()).is_some()
            }
        };
        resends || self.new_payload().is_some_and(|payload| self.window_lets_out(payload))
    }

    /// When what the pace holds back may leave.
    pub(super) fn pace_deadline(&self) -> Option<Instant> {
        self.control.bbr()?.pacer.deadline()
    }
}
