//! What it takes to undo a reduction of the window that turns out to be wrong, because what was
//! retransmitted had only been late: by timestamps (the Eifel detection algorithm, RFC 3522) or because the
//! receiver reports every retransmission as a duplicate (D-SACK, RFC 2883 and 3708). Names in
//! parentheses are those of Linux's `struct tcp_sock`.

use super::congestion::Prior;
use crate::packet::seq::Position;
use crate::time::Instant;

/// See the module's description.
#[derive(Clone, Debug, Default)]
pub(super) struct Undo {
    /// The left edge when the window was reduced (`undo_marker`), if that may be undone.
    marker: Option<Position>,
    /// What the window was before.
    prior: Option<Prior>,
    /// Retransmissions since then that were not reported as duplicates (`undo_retrans`); `None` while
    /// there was none at all.
    outstanding: Option<u64>,
    /// When the first retransmission was sent (`retrans_stamp`).
    first_sent_at: Option<Instant>,
    /// Retransmitted segments since the connection began (`total_retrans`), and segments that were
    /// reported as duplicates (`dsack_dups`).
    retransmitted: u64,
    duplicates: u64,
}

/// The clock of timestamps.
const TICK_NANOS: u64 = 1_000_000;

impl Undo {
    /// The window is reduced (`tcp_init_undo`). A reduction that follows another one of the same loss
    /// `continues` it: the first retransmission remains the first.
    pub(super) fn begin(&mut self, una: Position, prior: Prior, in_flight: u64, continues: bool) {
        self.marker = Some(una);
        self.prior = Some(prior);
        self.outstanding = (in_flight > 0).then_some(in_flight);
        if in_flight == 0 && !continues {
            self.first_sent_at = None;
        }
    }

    /// Nothing is left to undo: what the window was before, once.
    pub(super) fn take(&mut self) -> Option<Prior> {
        self.marker = None;
        self.prior.take()
    }

    /// A segment was retransmitted, as a tail loss `probe` or because it was lost.
    pub(super) fn retransmitted(&mut self, now: Instant, probe: bool) {
        self.retransmitted += 1;
        if !probe {
            self.outstanding = Some(self.outstanding.unwrap_or(0) + 1);
            self.first_sent_at.get_or_insert(now);
        }
    }

    /// The receiver got `start..end` twice (`tcp_check_dsack`). Whether that is to be believed: no more
    /// can be reported than was retransmitted. `counts` tells whether it was retransmitted, as far as
    /// is known.
    pub(super) fn duplicate(
        &mut self,
        (start, end): (Position, Position),
        segment: u64,
        counts: bool,
    ) -> bool {
        let segments = end.saturating_sub(start).div_ceil(segment);
        self.duplicates += segments;
        if segments == 0 || self.duplicates > self.retransmitted {
            return false;
        }
        if counts && self.marker.is_some_and(|marker| end > marker) {
            self.outstanding = self.outstanding.map(|count| count.saturating_sub(segments));
        }
        true
    }

    /// Whether every retransmission was a duplicate (`tcp_try_undo_dsack`).
    pub(super) fn all_were_duplicates(&self) -> bool {
        self.marker.is_some() && self.outstanding == Some(0)
    }

    /// Whether the window was reduced and what arrives was sent before the first retransmission
    /// (`tcp_packet_delayed`): `echo` is the time that the ACK's timestamp echoes.
    pub(super) fn was_delayed(&self, echo: Option<Instant>) -> bool {
        self.marker.is_some()
            && self.first_sent_at.is_none_or(|first| {
                echo.is_some_and(|echo| {
                    echo.as_nanos() / TICK_NANOS < first.as_nanos() / TICK_NANOS
                })
            })
    }

    /// Whether the reduction was wrong (`tcp_may_undo`).
    pub(super) fn may_undo(&self, echo: Option<Instant>) -> bool {
        self.all_were_duplicates() || self.was_delayed(echo)
    }
}

/// The time that a timestamp echoes, from the round trip that it shows.
pub(super) fn echoed(now: Instant, round_trip: crate::time::Duration) -> Instant {
    let tick = now.as_nanos() / TICK_NANOS * TICK_NANOS;
    Instant::from_nanos(tick.saturating_sub(round_trip.as_nanos()))
}
