//! Rate sampling and pacing of a sender with BBR. Unused without BBR.

use super::{Ack, Position, Recovery, Sender};
use crate::tcp::congestion::LossState;
use crate::tcp::congestion::bbr::AckFacts;
use crate::tcp::rate::RateSampler;
use crate::time::{Duration, Instant};

/// State before an ACK.
#[derive(Clone, Copy, Debug)]
pub(super) struct AckBaseline {
    in_flight: u64,
    lost: u64,
    retransmit_pending: bool,
}

impl Sender {
    fn rate(&self) -> Option<&RateSampler> {
        self.control.bbr().map(|bbr| &bbr.rate)
    }

    /// Bytes in flight. Without SACK, less what duplicate ACKs account for.
    pub(super) fn flight(&self) -> u64 {
        let dup_acked = match &self.recovery {
            Recovery::Cumulative(_) => self.rate().map_or(0, RateSampler::duplicates),
            Recovery::Selective(_) => 0,
        };
        self.in_flight().saturating_sub(dup_acked)
    }

    fn loss_state(&self) -> LossState {
        match &self.recovery {
            Recovery::Cumulative(cumulative) => cumulative.loss_state(self.una),
            Recovery::Selective(selective) => selective.loss_state(),
        }
    }

    /// With SACK: total bytes marked lost.
    fn scoreboard_lost(&self) -> Option<u64> {
        match &self.recovery {
            Recovery::Selective(selective) => Some(selective.lost_bytes()),
            Recovery::Cumulative(_) => None,
        }
    }

    /// Without SACK: whether the segment at SND.UNA must be retransmitted now.
    fn retransmit_pending(&self) -> bool {
        match &self.recovery {
            Recovery::Cumulative(cumulative) => cumulative.retransmit_pending(),
            Recovery::Selective(_) => false,
        }
    }

    /// [`Sender::on_ack`] with rate sampling.
    #[cold]
    #[inline(never)]
    pub(super) fn on_ack_sampled(&mut self, now: Instant, ack: &Ack<'_>) {
        let (una_before, before) = (self.una, self.ack_baseline());
        let (_, rtt) = self.process_ack::<true>(now, ack);
        if una_before > 0 {
            self.update_bbr(now, una_before, before, rtt);
        }
    }

    /// The state that an ACK is compared with.
    fn ack_baseline(&self) -> AckBaseline {
        AckBaseline {
            in_flight: self.flight(),
            lost: self.lost(),
            retransmit_pending: self.retransmit_pending(),
        }
    }

    /// Total bytes known to be lost.
    fn lost(&self) -> u64 {
        self.scoreboard_lost().or(self.rate().map(RateSampler::lost)).unwrap_or(0)
    }

    /// Reports a retransmission timeout to BBR.
    pub(super) fn sample_timeout(&mut self, now: Instant) {
        let lost = self.lost();
        if let Some((bbr, _)) = self.control.bbr_mut() {
            bbr.on_timeout_loss(now, lost);
        }
    }

    /// Restarts the retransmission timer, because the first missing segment was retransmitted or
    /// its ACK cannot have arrived yet (as in Linux). BBR keeps sending at the rate of the path, so
    /// the queue and the RTT may have grown since SND.UNA last advanced.
    #[cold]
    #[inline(never)]
    pub(super) fn rearm_rto(&mut self, now: Instant) {
        self.timeout_at = Some(self.rtt.deadline(now));
    }

    /// Records the segment `start..end` before it counts as sent.
    #[cold]
    #[inline(never)]
    pub(super) fn sample_sent(&mut self, now: Instant, start: Position, end: Position) {
        let pipe_was_empty = self.una == self.max;
        let (segment, segments) = (self.segment(), self.segments);
        let Some((bbr, window)) = self.control.bbr_mut() else { return };
        if pipe_was_empty {
            bbr.on_idle_restart(now, window);
        }
        bbr.rate.sent(now, start, end, pipe_was_empty);
        bbr.pacer.sent(now, end - start, segment, segments);
    }

    /// Without SACK: everything will be retransmitted.
    pub(super) fn reset_rate_samples(&mut self) {
        if self.paced {
            let outstanding = self.max - self.una;
            if let Some((bbr, _)) = self.control.bbr_mut() {
                bbr.rate.add_lost(outstanding);
                bbr.rate.clear_records();
            }
        }
    }

    /// Updates BBR after loss recovery processed an ACK.
    fn update_bbr(
        &mut self,
        now: Instant,
        una_before: Position,
        before: AckBaseline,
        rtt: Option<Duration>,
    ) {
        let (una, segment) = (self.una, self.segment());
        let acked = una - una_before;
        let outstanding = self.max - una;
        let (state, min_rtt) = (self.loss_state(), self.rtt.min());
        let scoreboard_lost = self.scoreboard_lost();
        let retransmit_pending = self.retransmit_pending();
        let Some((bbr, _)) = self.control.bbr_mut() else { return };
        let rate = &mut bbr.rate;
        let reported = rate.take_delivered();
        let (delivered, newest) = if scoreboard_lost.is_none() && acked > 0 {
            (rate.on_in_order(acked, segment), rate.newest_before(una))
        } else {
            reported
        };
        // The SACKed segments were sent before the retransmission of the first hole.
        let must_rearm = acked == 0 && newest.is_some_and(|newest| rate.first_sent_after(&newest));
        if retransmit_pending && !before.retransmit_pending {
            // One more segment is known to be lost.
            rate.add_lost(segment.min(outstanding));
        }
        let lost_total = scoreboard_lost.unwrap_or_else(|| rate.lost());
        let own_rtt = newest.and_then(|newest| newest.round_trip(now));
        let sample = rate.acked(now, una, delivered, newest, min_rtt);
        let is_partial =
            sample.is_some_and(|sample| sample.delivered == delivered) && delivered < segment;
        let facts = AckFacts {
            now,
            sample,
            rtt: rtt.or(own_rtt),
            maybe_delayed: is_partial && outstanding == 0,
            acked: delivered,
            lost: lost_total - before.lost,
            delivered: rate.delivered(),
            lost_total,
            delivered_at: rate.delivered_at(),
            in_flight_before: before.in_flight,
            in_flight: 0,
            state,
        };
        let facts = AckFacts { in_flight: self.flight(), ..facts };
        if must_rearm {
            self.rearm_rto(now);
        }
        if let Some((bbr, window)) = self.control.bbr_mut() {
            bbr.update(&facts, window);
        }
    }

    /// Marks the connection application-limited if less than a segment is unsent and cwnd has room
    /// (Linux, `tcp_rate_check_app_limited`, which also precedes each write).
    #[cold]
    #[inline(never)]
    pub(super) fn check_app_limited(&mut self) {
        let in_flight = self.flight();
        let right = self.written.min(self.una.saturating_add(self.send_buffer));
        let ran_out = right.saturating_sub(self.nxt) < self.segment()
            && in_flight < self.control.cwnd()
            && !self.has_pending_retransmits();
        if ran_out && let Some((bbr, _)) = self.control.bbr_mut() {
            bbr.rate.set_app_limited(in_flight);
        }
    }

    /// Whether pacing blocks transmission. Also notes whether a segment waits only for the pacer,
    /// and whether the application has run out of data.
    #[cold]
    #[inline(never)]
    pub(super) fn is_pacing_blocked(&mut self, now: Instant) -> bool {
        self.check_app_limited();
        let segment = self.segment();
        let blocked = self.control.bbr().is_some_and(|bbr| !bbr.pacer.may_send(now, segment));
        let waiting = blocked && self.has_sendable();
        if let Some((bbr, _)) = self.control.bbr_mut() {
            bbr.pacer.set_waiting(waiting);
        }
        blocked
    }

    /// Whether cwnd and the peer's window allow any transmission.
    fn has_sendable(&self) -> bool {
        let retransmit_pending = match &self.recovery {
            Recovery::Cumulative(_) => self.retransmit_pending() && self.una < self.max,
            Recovery::Selective(selective) => {
                selective.next_retransmission(self.control.cwnd()).is_some()
            }
        };
        retransmit_pending || self.new_payload().is_some_and(|payload| self.cwnd_allows(payload))
    }

    /// When the pacer allows the next transmission.
    pub(super) fn pacing_deadline(&self) -> Option<Instant> {
        self.control.bbr()?.pacer.deadline()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::Config;
    use crate::tcp::config::CongestionName;
    use crate::tcp::tests::plain;

    const SEGMENT: u64 = 1_000;

    fn ms(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    fn ack(position: Position, sack: &[(Position, Position)]) -> Ack<'_> {
        let window = 1 << 20;
        Ack { position, window, sack, dsack: None, timestamp_rtt: None, pure: true }
    }

    /// A sender with BBR and a cwnd of ten segments, whose SYN was acknowledged after 100 ms.
    fn established(sack: bool) -> Sender {
        let config = Config {
            congestion: CongestionName::Bbr,
            initial_window_segments: 10,
            sack,
            ..plain()
        };
        let mut sender = Sender::new(&config);
        sender.negotiated(SEGMENT, sack, false, &config);
        assert!(sender.next_segment(ms(0)).is_some_and(|outgoing| outgoing.syn));
        sender.on_ack(ms(100), &ack(1, &[]));
        sender
    }

    /// Writes and sends `segments`, one each 10 ms from 100 ms on, so that the pacer blocks none.
    fn send(sender: &mut Sender, segments: u64) {
        sender.write(ms(100), segments * SEGMENT);
        for number in 0..segments {
            let outgoing = sender.next_segment(ms(100 + 10 * number)).expect("cwnd allows it");
            assert_eq!(outgoing.position, 1 + number * SEGMENT);
        }
    }

    /// Given five segments of which the first is lost, expect nothing to be lost before the third
    /// duplicate ACK, and one segment from then on; without SACK the sampler counts it, with SACK
    /// the scoreboard.
    #[test]
    fn lost_bytes_are_those_of_the_segments_found_lost() {
        for has_sack in [false, true] {
            let mut sender = established(has_sack);
            send(&mut sender, 5);
            for number in 1..=3 {
                assert_eq!((sender.lost(), sender.ack_baseline().lost), (0, 0), "ACK {number}");
                let received = [(1 + SEGMENT, 1 + (1 + number) * SEGMENT)];
                let blocks = if has_sack { &received[..] } else { &[] };
                sender.on_ack(ms(200 + number), &ack(1, blocks));
            }
            assert_eq!((sender.lost(), sender.ack_baseline().lost), (SEGMENT, SEGMENT));
        }
    }

    /// Whether the connection is marked now, without earlier marks.
    fn is_app_limited(sender: &mut Sender) -> bool {
        sender.control.bbr_mut().expect("BBR").0.rate = RateSampler::default();
        sender.check_app_limited();
        sender.rate().is_some_and(RateSampler::is_app_limited)
    }

    /// Given less than a segment unsent, expect the connection to be application-limited if less
    /// than cwnd is in flight, and not if exactly cwnd is.
    #[test]
    fn a_full_cwnd_is_not_application_limited() {
        let mut sender = established(false);
        send(&mut sender, 9);
        assert!(is_app_limited(&mut sender), "nine of ten segments");
        let mut sender = established(false);
        send(&mut sender, 10);
        assert_eq!(sender.in_flight(), sender.control().cwnd());
        assert!(!is_app_limited(&mut sender), "cwnd is full");
    }

    /// Given one byte less than a segment, and a whole one, expect only the first to count as out
    /// of data.
    #[test]
    fn a_whole_unsent_segment_is_not_application_limited() {
        for (bytes, expected) in [(SEGMENT - 1, true), (SEGMENT, false)] {
            let mut sender = established(false);
            sender.write(ms(100), bytes);
            assert_eq!(is_app_limited(&mut sender), expected, "{bytes} bytes unsent");
        }
    }

    /// Given the send buffer as the limit of what the application can write, expect its end to count
    /// as out of data.
    #[test]
    fn a_full_send_buffer_is_application_limited() {
        let mut sender = established(false);
        sender.write(ms(100), 10 * SEGMENT);
        assert!(!is_app_limited(&mut sender));
        sender.send_buffer = SEGMENT - 1;
        assert!(is_app_limited(&mut sender));
    }

    /// Given a lost segment to be retransmitted and nothing else to send, expect the connection not
    /// to be application-limited.
    #[test]
    fn a_pending_retransmission_is_not_application_limited() {
        let mut sender = established(true);
        send(&mut sender, 5);
        sender.on_ack(ms(201), &ack(1, &[(1 + SEGMENT, 1 + 5 * SEGMENT)]));
        assert!(sender.has_pending_retransmits());
        assert!(!is_app_limited(&mut sender));
    }
}
