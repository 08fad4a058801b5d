//! Where Linux takes a reduction back: after a time-out, in fast recovery and after it
//! (`tcp_process_loss`, `tcp_try_undo_partial`, `tcp_try_undo_recovery`, `tcp_try_undo_dsack`), and F-RTO
//! (RFC 5682, section 3).

use super::{AckNews, Phase, Selective};
use crate::packet::seq::Position;
use crate::tcp::congestion::{Control, Prior};

/// What was undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tcp) enum Undone {
    /// A retransmission time-out.
    Timeout,
    /// A fast recovery.
    Recovery,
}

/// What an expiry of the retransmission timer brings besides its losses.
#[derive(Clone, Copy, Debug)]
pub(in crate::tcp) struct Expiry {
    /// The left edge.
    pub(in crate::tcp) una: Position,
    /// What the window was, if it is reduced now.
    pub(in crate::tcp) prior: Option<Prior>,
    /// Whether it is not known yet that the time-out was right: no recovery was under way, or nothing
    /// was acknowledged since the time-out before (RFC 5682, 3.1 and 3.2).
    pub(in crate::tcp) in_doubt: bool,
}

/// How far F-RTO is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Frto {
    /// The time-out was right, or there is none.
    #[default]
    Off,
    /// The first segment was retransmitted.
    Waits,
    /// New data goes out and retransmissions are held back: the next ACK decides (step 2.b).
    HoldsBack,
}

/// What an ACK says of the segments that were outstanding at a time-out.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Arrivals {
    /// One of them arrived that was never retransmitted (`FLAG_ORIG_SACK_ACKED`).
    pub(super) original: bool,
    /// A block reported something new (`FLAG_DATA_SACKED`).
    pub(super) sacked: bool,
}

impl Selective {
    /// Notes what an expiry of the timer makes of undoing it.
    pub(super) fn note_expiry(&mut self, expiry: &Expiry, continues: bool) {
        if let Some(prior) = expiry.prior {
            let in_flight = self.board.retransmissions_in_flight();
            self.undo.begin(expiry.una, prior, in_flight, continues);
        }
        self.frto = if expiry.in_doubt { Frto::Waits } else { Frto::Off };
    }

    /// Undoes what an ACK shows to have been wrong, if anything. Whether losses are to be looked for.
    pub(super) fn try_undo(
        &mut self,
        news: &AckNews<'_>,
        arrivals: Arrivals,
        control: &mut Control,
    ) -> (Option<Undone>, bool) {
        let advanced = news.una > news.una_before;
        match self.phase {
            Phase::Open => {
                if self.undo.all_were_duplicates() {
                    self.undo_reduction(control);
                    return (Some(Undone::Recovery), true);
                }
            }
            Phase::Cwr(_) => {}
            Phase::Recovery(point) if news.una >= point => {
                if self.undo.may_undo(news.echo) {
                    self.end_recovery();
                    self.undo_reduction(control);
                    return (Some(Undone::Recovery), true);
                }
            }
            Phase::Recovery(_) => return self.try_undo_recovery(news, advanced, control),
            Phase::AfterTimeout(point) => {
                let late = advanced && self.undo.may_undo(news.echo);
                if late || self.was_spurious(news, arrivals, point, advanced) {
                    self.board.unmark_lost();
                    self.end_recovery();
                    self.undo_reduction(control);
                    return (Some(Undone::Timeout), true);
                }
            }
        }
        (None, true)
    }

    /// `tcp_try_undo_partial` and `tcp_try_undo_dsack`.
    fn try_undo_recovery(
        &mut self,
        news: &AckNews<'_>,
        advanced: bool,
        control: &mut Control,
    ) -> (Option<Undone>, bool) {
        if advanced && self.undo.was_delayed(news.echo) {
            // A late segment filled the hole, not a retransmission: packets are reordered.
            if let Some(rack) = &mut self.rack {
                rack.note_reordering();
            }
            if self.board.retransmissions_in_flight() > 0 {
                return (None, false);
            }
            self.board.unmark_lost();
        } else if !self.undo.all_were_duplicates() {
            return (None, true);
        }
        self.end_recovery();
        self.undo_reduction(control);
        (Some(Undone::Recovery), true)
    }

    fn undo_reduction(&mut self, control: &mut Control) {
        if let Some(prior) = self.undo.take() {
            control.undo(prior);
        }
    }

    /// F-RTO (`tcp_process_loss`): whether the time-out was spurious. RFC 5682, 3.1: a never retransmitted
    /// segment that was outstanding then arrives (3.b). What arrives of the data sent since shows that
    /// the loss was real (3.a).
    fn was_spurious(
        &mut self,
        news: &AckNews<'_>,
        arrivals: Arrivals,
        point: Position,
        advanced: bool,
    ) -> bool {
        if self.frto == Frto::Off {
            return false;
        }
        if arrivals.original {
            return true;
        }
        self.frto = if news.nxt > point {
            let real = arrivals.sacked || (news.plain_duplicate && news.duplicate.is_none());
            if real { Frto::Off } else { Frto::Waits }
        } else if advanced && news.una < point {
            // Step 2.b; without new data, conventional recovery.
            if news.may_send_new { Frto::HoldsBack } else { Frto::Off }
        } else {
            self.frto
        };
        false
    }

    /// Whether new data goes before what is to be retransmitted.
    pub(super) fn holds_back(&self) -> bool {
        self.frto == Frto::HoldsBack
    }

    /// No new data can leave: if none left since the time-out, what was held back goes. Whether
    /// anything was.
    #[cold]
    #[inline(never)]
    pub(in crate::tcp) fn stop_holding_back(&mut self, nxt: Position) -> bool {
        let ends =
            self.holds_back() && matches!(self.phase, Phase::AfterTimeout(point) if nxt <= point);
        if ends {
            self.frto = Frto::Off;
        }
        ends
    }

    /// The receiver got a range twice (RFC 2883). Whether that counts for the reordering window.
    #[cold]
    #[inline(never)]
    pub(super) fn on_duplicate(&mut self, news: &AckNews<'_>, range: (Position, Position)) -> bool {
        let is_old = range.1 <= news.una_before;
        let counts = is_old || self.board.was_retransmitted(range.0);
        let believed = self.undo.duplicate(range, self.segment, counts);
        let of_probe = self.probe.is_some_and(|probe| probe.end == range.1);
        let seen = self.rack.as_ref().is_some_and(super::Rack::saw_reordering);
        // Linux takes no notice of those of probes, and of any before it saw reordering.
        believed && (!self.linux || (seen && !of_probe))
    }
}
