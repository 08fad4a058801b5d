//! Undo of window reductions in Linux: after a timeout, during fast recovery and after it
//! (`tcp_process_loss`, `tcp_try_undo_partial`, `tcp_try_undo_recovery`, `tcp_try_undo_dsack`), and
//! F-RTO (RFC 5682, section 3).

use super::{AckInfo, Phase, Selective};
use crate::packet::seq::Position;
use crate::tcp::congestion::{Control, Prior};
use crate::tcp::undo::Undone;

/// An expiration of the retransmission timer.
#[derive(Clone, Copy, Debug)]
pub(in crate::tcp) struct Expiry {
    /// SND.UNA when the timer expired.
    pub(in crate::tcp) una: Position,
    /// The window before the reduction; `None` if a reduction of the same window of data preceded it.
    pub(in crate::tcp) prior: Option<Prior>,
    /// Whether F-RTO checks the timeout: no recovery was in progress, or nothing was acknowledged
    /// since the previous timeout (RFC 5682, 3.1 and 3.2).
    pub(in crate::tcp) may_be_spurious: bool,
}

/// State of F-RTO.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Frto {
    /// The timeout was genuine, or there is none.
    #[default]
    Off,
    /// Retransmissions go out: no ACK has advanced SND.UNA yet, or new data was sent and no ACK has decided.
    Undecided,
    /// New data is sent and retransmissions are deferred (step 2.b) until the next ACK.
    SendingNew,
}

/// What an ACK newly acknowledged.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NewlyAcked {
    /// A never retransmitted segment that was outstanding at the timeout (`FLAG_ORIG_SACK_ACKED`).
    pub(super) original: bool,
    /// A SACK block reported new data (`FLAG_DATA_SACKED`).
    pub(super) sacked: bool,
}

impl Selective {
    /// Prepares undo and F-RTO at an expiration of the retransmission timer. `continues`: in a recovery.
    pub(super) fn on_expiry(&mut self, expiry: &Expiry, continues: bool) {
        if let Some(prior) = expiry.prior {
            let in_flight = self.board.retransmissions_in_flight();
            self.undo.init(Undone::Timeout, expiry.una, prior, in_flight, continues);
        }
        self.frto = if expiry.may_be_spurious { Frto::Undecided } else { Frto::Off };
    }

    /// Undoes the reduction that an ACK shows to be spurious, if any. Also returns whether losses are to be
    /// detected: not while retransmissions are outstanding that a delayed original may have made needless.
    pub(super) fn try_undo(
        &mut self,
        info: &AckInfo<'_>,
        newly_acked: NewlyAcked,
        control: &mut Control,
    ) -> (Option<Undone>, bool) {
        let advanced = info.una > info.una_before;
        match self.phase {
            Phase::Open => {
                if self.undo.all_retransmits_dsacked() {
                    self.undo_reduction(control);
                    return (self.undo.cause(), true);
                }
            }
            // A reduction for an ECN echo is never undone: see `enter_cwr`.
            Phase::Cwr(_) => {}
            Phase::Recovery(point) if info.una >= point => {
                if self.undo.may_undo(info.echo) {
                    self.end_recovery();
                    self.undo_reduction(control);
                    return (Some(Undone::Recovery), true);
                }
            }
            Phase::Recovery(_) => return self.try_undo_recovery(info, advanced, control),
            Phase::Loss(point) => {
                let delayed = advanced && self.undo.may_undo(info.echo);
                if delayed || self.was_spurious(info, newly_acked, point, advanced) {
                    self.board.unmark_lost();
                    self.end_recovery();
                    self.undo_reduction(control);
                    return (Some(Undone::Timeout), true);
                }
            }
        }
        (None, true)
    }

    /// During fast recovery, before its recovery point: `tcp_try_undo_partial` and `tcp_try_undo_dsack`.
    fn try_undo_recovery(
        &mut self,
        info: &AckInfo<'_>,
        advanced: bool,
        control: &mut Control,
    ) -> (Option<Undone>, bool) {
        if advanced && self.undo.packet_delayed(info.echo) {
            // A delayed original filled the hole, not a retransmission: there is reordering.
            if let Some(rack) = &mut self.rack {
                rack.note_reordering();
            }
            if self.board.retransmissions_in_flight() > 0 {
                // As Linux: sends new data, but marks no more segments lost.
                return (None, false);
            }
            self.board.unmark_lost();
        } else if !self.undo.all_retransmits_dsacked() {
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

    /// F-RTO (`tcp_process_loss`): whether the timeout was spurious. RFC 5682, 3.1: it was if a
    /// never retransmitted segment that was outstanding at the timeout is acknowledged (3.b). It
    /// was not if data sent since then is acknowledged first (3.a). `point` is SND.MAX at the timeout.
    fn was_spurious(
        &mut self,
        info: &AckInfo<'_>,
        newly_acked: NewlyAcked,
        point: Position,
        advanced: bool,
    ) -> bool {
        if self.frto == Frto::Off {
            return false;
        }
        if newly_acked.original {
            return true;
        }
        self.frto = if info.nxt > point {
            // A D-SACK is no duplicate ACK (Linux: `FLAG_DSACKING_ACK`).
            let genuine = newly_acked.sacked || (info.plain_duplicate && info.dsack.is_none());
            if genuine { Frto::Off } else { Frto::Undecided }
        } else if advanced && info.una < point {
            // Step 2.b; without new data, conventional recovery.
            if info.may_send_new { Frto::SendingNew } else { Frto::Off }
        } else {
            self.frto
        };
        false
    }

    /// Whether new data is sent before retransmissions.
    pub(super) fn defers_retransmits(&self) -> bool {
        self.frto == Frto::SendingNew
    }

    /// No new data can be sent: if none was sent since the timeout, ends deferring retransmissions.
    /// Returns whether it did.
    #[cold]
    #[inline(never)]
    pub(in crate::tcp) fn stop_deferring(&mut self, nxt: Position) -> bool {
        let ends =
            self.defers_retransmits() && matches!(self.phase, Phase::Loss(point) if nxt <= point);
        if ends {
            self.frto = Frto::Off;
        }
        ends
    }

    /// Processes a D-SACK (RFC 2883). Returns whether it counts for the reordering window.
    #[cold]
    #[inline(never)]
    pub(super) fn on_dsack(&mut self, info: &AckInfo<'_>, range: (Position, Position)) -> bool {
        // What is below SND.UNA has left the scoreboard and counts as retransmitted (`tcp_check_dsack`).
        let is_old = range.1 <= info.una_before;
        let counts = is_old || self.board.was_retransmitted(range.0);
        let plausible = self.undo.on_dsack(range, self.segment, counts);
        let of_probe = self.tlp.is_some_and(|probe| probe.end == range.1);
        let reordering_seen = self.rack.as_ref().is_some_and(super::Rack::reordering_seen);
        // Linux ignores D-SACKs of probes, which RACK did not cause, and all of them until it observes
        // reordering (`tcp_dsack_seen`).
        plausible && (!self.linux || (reordering_seen && !of_probe))
    }
}
