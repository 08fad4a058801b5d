//! RACK loss detection (RFC 8985, section 6): a segment is lost if one sent after it was delivered,
//! and an RTT plus the reordering window has passed since it was sent.

use std::collections::VecDeque;

use super::scoreboard::{DUPLICATE_THRESHOLD, Delivered, Scoreboard};
use crate::packet::seq::Position;
use crate::time::{Duration, Instant};

/// Section 6.2, step 4: number of recoveries after which the reordering window is reset.
const REO_WND_PERSIST: u32 = 16;
/// Linux's limit (`tcp_rack_update_reo_wnd`): 255 quarters in total.
const EXTRA_QUARTERS_MAX: u64 = 254;

/// See the module's description. Names follow the RFC's section 5.
#[derive(Clone, Debug, Default)]
pub(super) struct Rack {
    /// Of the delivered segments, the one sent last: RACK.xmit_ts and RACK.end_seq.
    newest: Option<(Instant, Position)>,
    /// RTT of the segment delivered last (RACK.rtt; `tcp_rack_advance`).
    rtt: Duration,
    /// Highest position delivered (RACK.fack).
    fack: Position,
    reordering_seen: bool,
    /// RACK.reo_wnd_mult - 1, the extra quarters of the minimum RTT; RACK.reo_wnd_persist; and the
    /// end of the round trip in which a further D-SACK has no effect.
    extra_quarters: u64,
    reo_wnd_persist: u32,
    dsack_round: Position,
    /// Retransmissions in the order sent: time and start.
    retransmissions: VecDeque<(Instant, Position)>,
    deadline: Option<Instant>,
}

impl Rack {
    /// Section 6.2, steps 2 and 3: processes a delivered segment.
    pub(super) fn delivered(
        &mut self,
        now: Instant,
        segment: Delivered,
        min_rtt: Option<Duration>,
    ) {
        let rtt = now.saturating_since(segment.sent_at);
        if segment.retransmitted && min_rtt.is_some_and(|min| rtt < min) {
            // The ACK must be for the original transmission, so it gives no RTT of the
            // retransmission.
            return;
        }
        if segment.end > self.fack {
            self.fack = segment.end;
        } else if !segment.retransmitted {
            self.reordering_seen = true;
        }
        // Every delivery updates the RTT, even if the segment was not the one sent last: after an
        // outage, delayed originals arrive after a retransmission, and the segments behind them are
        // equally late.
        self.rtt = rtt;
        if self.newest.is_none_or(|newest| (segment.sent_at, segment.end) > newest) {
            self.newest = Some((segment.sent_at, segment.end));
        }
    }

    /// A delayed original, not a retransmission, filled a hole.
    pub(super) fn note_reordering(&mut self) {
        self.reordering_seen = true;
    }

    /// Whether reordering was observed.
    pub(super) fn reordering_seen(&self) -> bool {
        self.reordering_seen
    }

    /// Section 6.2, step 4: the reordering window grows at most once per round trip in which a
    /// D-SACK reports a spurious retransmission, and stays so for 16 recoveries.
    pub(super) fn update_reo_wnd(
        &mut self,
        una: Position,
        nxt: Position,
        dsack: bool,
        recovery_ended: bool,
    ) {
        if dsack && una >= self.dsack_round {
            self.dsack_round = nxt;
            self.extra_quarters = (self.extra_quarters + 1).min(EXTRA_QUARTERS_MAX);
            self.reo_wnd_persist = REO_WND_PERSIST;
        } else if recovery_ended {
            self.reo_wnd_persist = self.reo_wnd_persist.saturating_sub(1);
            if self.reo_wnd_persist == 0 {
                self.extra_quarters = 0;
            }
        }
    }

    /// Whether detection can be skipped: no reordering timer is running, and nothing was
    /// retransmitted.
    pub(super) fn fast_path_ok(&self) -> bool {
        self.deadline.is_none() && self.retransmissions.is_empty()
    }

    /// Records a retransmission.
    pub(super) fn retransmitted(&mut self, now: Instant, start: Position) {
        self.retransmissions.push_back((now, start));
    }

    /// The retransmission timer expired (section 6.3): the first segment is lost, and so is every
    /// segment sent at least one RTT ago.
    pub(super) fn timed_out(&mut self, now: Instant, board: &mut Scoreboard) {
        let rtt = self.rtt;
        board.mark_lost_where(|sent| sent.sent_at + rtt <= now);
        self.deadline = None;
    }

    /// When the reordering timer expires.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Section 6.2, step 5: marks lost segments.
    pub(super) fn detect(
        &mut self,
        now: Instant,
        board: &mut Scoreboard,
        segment: u64,
        recovering: bool,
        rtts: (Option<Duration>, Option<Duration>),
    ) {
        self.deadline = None;
        let Some(newest) = self.newest else { return };
        // Without retransmissions, segments were sent in order: if the first unresolved one was not
        // sent before the newest delivered one, no other was.
        let first_may_be_lost = board
            .first_unresolved()
            .is_some_and(|first| first.is_resolved() || newest > (first.sent_at, first.end));
        if self.retransmissions.is_empty() && !first_may_be_lost {
            return;
        }
        let window = self.reordering_window(board, segment, recovering, rtts);
        let due = |sent_at: Instant| sent_at + self.rtt + window;
        let sent_before_newest = |sent_at, end| newest > (sent_at, end);

        board.mark_originals_lost(|sent| {
            sent_before_newest(sent.sent_at, sent.end) && due(sent.sent_at) <= now
        });
        let first_pending =
            board.first_unresolved().filter(|sent| sent_before_newest(sent.sent_at, sent.end));
        let mut deadline = first_pending.map(|sent| due(sent.sent_at));

        while let Some(&(sent_at, start)) = self.retransmissions.front() {
            let unsacked = board.unsacked_at(start).filter(|sent| sent.sent_at == sent_at);
            if let Some(sent) = unsacked {
                if !sent_before_newest(sent_at, sent.end) {
                    break;
                }
                if due(sent_at) > now {
                    deadline = Some(deadline.map_or(due(sent_at), |at| at.min(due(sent_at))));
                    break;
                }
                board.mark_lost_at(start);
            }
            self.retransmissions.pop_front();
        }
        self.deadline = deadline;
    }

    /// Section 6.2, step 4: the reordering window. It is zero in recovery or with enough SACKed
    /// data, unless reordering was observed; otherwise a quarter of the minimum RTT, or several
    /// after D-SACKs; at most the smoothed RTT.
    fn reordering_window(
        &self,
        board: &Scoreboard,
        segment: u64,
        recovering: bool,
        (min, srtt): (Option<Duration>, Option<Duration>),
    ) -> Duration {
        let loss_is_certain = recovering || board.sacked_bytes() >= DUPLICATE_THRESHOLD * segment;
        if !self.reordering_seen && loss_is_certain {
            return Duration::ZERO;
        }
        let quarter = Duration::from_nanos(min.unwrap_or(Duration::ZERO).as_nanos() / 4);
        let window = quarter.saturating_mul(1 + self.extra_quarters);
        window.min(srtt.unwrap_or(window))
    }
}
