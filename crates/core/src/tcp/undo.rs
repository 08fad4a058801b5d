//! Detection of spurious retransmissions, to undo the window reduction that they caused: by
//! timestamps (the Eifel detection algorithm, RFC 3522) or because D-SACKs report every
//! retransmission (RFC 2883 and 3708). Fields are named as in Linux's `struct tcp_sock`.

use super::congestion::Prior;
use crate::packet::seq::Position;
use crate::time::Instant;

/// What was undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Undone {
    /// A retransmission timeout.
    Timeout,
    /// A fast recovery.
    Recovery,
}

/// See the module's description.
#[derive(Clone, Debug, Default)]
pub(super) struct Undo {
    /// What reduced the window last.
    cause: Option<Undone>,
    /// SND.UNA when the window was reduced, if that may be undone.
    undo_marker: Option<Position>,
    /// The window before the reduction.
    prior: Option<Prior>,
    /// Retransmissions since then without a D-SACK; `None` while there was none at all.
    undo_retrans: Option<u64>,
    /// When the first retransmission was sent.
    retrans_stamp: Option<Instant>,
    /// Retransmitted segments, and segments reported by D-SACKs, since the connection began.
    total_retrans: u64,
    dsack_dups: u64,
}

/// Tick of the timestamp clock.
const TICK_NANOS: u64 = 1_000_000;

impl Undo {
    /// The window is reduced for this cause (`tcp_init_undo`). `continues`: another reduction for the same loss
    /// preceded it, so `retrans_stamp` stays.
    pub(super) fn init(
        &mut self,
        cause: Undone,
        una: Position,
        prior: Prior,
        in_flight: u64,
        continues: bool,
    ) {
        self.cause = Some(cause);
        self.undo_marker = Some(una);
        self.prior = Some(prior);
        self.undo_retrans = (in_flight > 0).then_some(in_flight);
        if in_flight == 0 && !continues {
            self.retrans_stamp = None;
        }
    }

    /// What reduced the window last; after a recovery a D-SACK may still undo it.
    pub(super) fn cause(&self) -> Option<Undone> {
        self.cause
    }

    /// Ends the undo period (`undo_marker` = 0) and returns the prior window, if any.
    pub(super) fn take(&mut self) -> Option<Prior> {
        self.undo_marker = None;
        self.prior.take()
    }

    /// A segment was retransmitted, as a tail loss `probe` or because it was lost.
    pub(super) fn on_retransmit(&mut self, now: Instant, probe: bool) {
        self.total_retrans += 1;
        if !probe {
            self.undo_retrans = Some(self.undo_retrans.unwrap_or(0) + 1);
            self.retrans_stamp.get_or_insert(now);
        }
    }

    /// Processes a D-SACK of `start..end` (`tcp_check_dsack`). Returns whether it is plausible: at
    /// most as many segments can be duplicates as were retransmitted. `counts` tells whether the
    /// range is known to be retransmitted.
    pub(super) fn on_dsack(
        &mut self,
        (start, end): (Position, Position),
        segment: u64,
        counts: bool,
    ) -> bool {
        let segments = end.saturating_sub(start).div_ceil(segment);
        self.dsack_dups += segments;
        if segments == 0 || self.dsack_dups > self.total_retrans {
            return false;
        }
        if counts && self.undo_marker.is_some_and(|undo_marker| end > undo_marker) {
            self.undo_retrans = self.undo_retrans.map(|count| count.saturating_sub(segments));
        }
        true
    }

    /// Whether D-SACKs reported every retransmission (`tcp_try_undo_dsack`).
    pub(super) fn all_retransmits_dsacked(&self) -> bool {
        self.undo_marker.is_some() && self.undo_retrans == Some(0)
    }

    /// Whether the window was reduced and the delivered segment was sent before the first
    /// retransmission (`tcp_packet_delayed`). `echo` is the time that the ACK's timestamp echoes.
    pub(super) fn packet_delayed(&self, echo: Option<Instant>) -> bool {
        self.undo_marker.is_some()
            && self.retrans_stamp.is_none_or(|first| {
                echo.is_some_and(|echo| {
                    echo.as_nanos() / TICK_NANOS < first.as_nanos() / TICK_NANOS
                })
            })
    }

    /// Whether the reduction was spurious (`tcp_may_undo`).
    pub(super) fn may_undo(&self, echo: Option<Instant>) -> bool {
        self.all_retransmits_dsacked() || self.packet_delayed(echo)
    }
}

/// The time that a timestamp echoes, from the RTT that it gives.
pub(super) fn echoed_time(now: Instant, round_trip: crate::time::Duration) -> Instant {
    let tick = now.as_nanos() / TICK_NANOS * TICK_NANOS;
    Instant::from_nanos(tick.saturating_sub(round_trip.as_nanos()))
}
