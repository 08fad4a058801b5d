//! RACK loss detection (RFC 8985, section 6): a segment is lost when one sent after it was delivered
//! and a round trip plus a reordering window has passed since it was sent.

use std::collections::VecDeque;

use super::scoreboard::{DUPLICATE_THRESHOLD, Delivered, Scoreboard};
use crate::packet::seq::Position;
use crate::time::{Duration, Instant};

/// Section 6.2, step 4: recoveries for which a longer reordering window stays.
const PERSISTS: u32 = 16;
/// Linux's bound (`tcp_rack_update_reo_wnd`): 255 quarters in all.
const EXTRA_QUARTERS_MAX: u64 = 254;

/// See the module's description. Names follow the RFC's section 5.
#[derive(Clone, Debug, Default)]
pub(super) struct Rack {
    /// Of the delivered segments, the one sent last: when, and where it ends.
    newest: Option<(Instant, Position)>,
    /// The round trip of the segment delivered last (`RACK.rtt`; `tcp_rack_advance`).
    rtt: Duration,
    /// The highest position delivered.
    fack: Position,
    reordering_seen: bool,
    /// By how many quarters of the smallest round trip the reordering window is longer than the first
    /// (`reo_wnd_mult` - 1), after how many recoveries it is not, and up to where D-SACKs do not
    /// lengthen it once more.
    extra_quarters: u64,
    persist: u32,
    dsack_round: Position,
    /// Retransmissions in order of sending: when, and where the segment starts.
    retransmissions: VecDeque<(Instant, Position)>,
    deadline: Option<Instant>,
}

impl Rack {
    /// Section 6.2, steps 2 and 3: takes note of a delivered segment.
    pub(super) fn delivered(&mut self, now: Instant, news: Delivered, min_rtt: Option<Duration>) {
        let rtt = now.saturating_since(news.sent_at);
        if news.retransmitted && min_rtt.is_some_and(|min| rtt < min) {
            // The ACK must be for the original: it says nothing about the retransmission.
            return;
        }
        if news.end > self.fack {
            self.fack = news.end;
        } else if !news.retransmitted {
            self.reordering_seen = true;
        }
        // The round trip is that of what arrived last, sent last or not: what an outage held up arrives
        // after a retransmission, and what follows it is no later than it is.
        self.rtt = rtt;
        if self.newest.is_none_or(|newest| (news.sent_at, news.end) > newest) {
            self.newest = Some((news.sent_at, news.end));
        }
    }

    /// A segment that had only been late filled a hole.
    pub(super) fn note_reordering(&mut self) {
        self.reordering_seen = true;
    }

    /// Whether packets were seen to be reordered.
    pub(super) fn saw_reordering(&self) -> bool {
        self.reordering_seen
    }

    /// Section 6.2, step 4: the reordering window grows once a round trip in which a D-SACK tells of a
    /// segment that was retransmitted in vain, for 16 recoveries.
    pub(super) fn adapt(
        &mut self,
        una: Position,
        nxt: Position,
        duplicate: bool,
        recovery_ended: bool,
    ) {
        if duplicate && una >= self.dsack_round {
            self.dsack_round = nxt;
            self.extra_quarters = (self.extra_quarters + 1).min(EXTRA_QUARTERS_MAX);
            self.persist = PERSISTS;
        } else if recovery_ended {
            self.persist = self.persist.saturating_sub(1);
            if self.persist == 0 {
                self.extra_quarters = 0;
            }
        }
    }

    /// Whether detection would find nothing: no segment is awaited, and nothing was retransmitted.
    pub(super) fn is_calm(&self) -> bool {
        self.deadline.is_none() && self.retransmissions.is_empty()
    }

    /// A lost segment was retransmitted.
    pub(super) fn retransmitted(&mut self, now: Instant, start: Position) {
        self.retransmissions.push_back((now, start));
    }

    /// The retransmission timer expired (section 6.3): what was sent a round trip ago is lost, and the
    /// first segment in any case; what was sent since is given its time.
    pub(super) fn timed_out(&mut self, now: Instant, board: &mut Scoreboard) {
        let rtt = self.rtt;
        board.lose_those(|sent| sent.sent_at + rtt <= now);
        self.deadline = None;
    }

    /// When detection is to run again without an ACK.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Section 6.2, step 5: marks what is lost by now.
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
        // With nothing retransmitted, segments were sent in order: if the first one that may be missing
        // was not overtaken, none was.
        let first_was_overtaken = board
            .first_unjudged()
            .is_some_and(|first| first.was_judged() || newest > (first.sent_at, first.end));
        if self.retransmissions.is_empty() && !first_was_overtaken {
            return;
        }
        let window = self.reordering_window(board, segment, recovering, rtts);
        let due = |sent_at: Instant| sent_at + self.rtt + window;
        let overtaken = |sent_at, end| newest > (sent_at, end);

        board.judge_originals(|sent| overtaken(sent.sent_at, sent.end) && due(sent.sent_at) <= now);
        let waiting = board.first_unjudged().filter(|sent| overtaken(sent.sent_at, sent.end));
        let mut deadline = waiting.map(|sent| due(sent.sent_at));

        while let Some(&(sent_at, start)) = self.retransmissions.front() {
            let missing = board.missing_at(start).filter(|sent| sent.sent_at == sent_at);
            if let Some(sent) = missing {
                if !overtaken(sent_at, sent.end) {
                    break;
                }
                if due(sent_at) > now {
                    deadline = Some(deadline.map_or(due(sent_at), |at| at.min(due(sent_at))));
                    break;
                }
                board.lose(start);
            }
            self.retransmissions.pop_front();
        }
        self.deadline = deadline;
    }

    /// Section 6.2, step 4: none while recovery is sure, else a quarter of the smallest round trip, or
    /// several where D-SACKs told of reordering; at most a round trip.
    fn reordering_window(
        &self,
        board: &Scoreboard,
        segment: u64,
        recovering: bool,
        (min, srtt): (Option<Duration>, Option<Duration>),
    ) -> Duration {
        let sure = recovering || board.sacked_bytes() >= DUPLICATE_THRESHOLD * segment;
        if !self.reordering_seen && sure {
            return Duration::ZERO;
        }
        let quarter = Duration::from_nanos(min.unwrap_or(Duration::ZERO).as_nanos() / 4);
        let window = quarter.saturating_mul(1 + self.extra_quarters);
        window.min(srtt.unwrap_or(window))
    }
}
