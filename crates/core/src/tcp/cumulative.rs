//! Loss recovery from cumulative ACKs alone: Reno (RFC 5681, section 3.2) and NewReno (RFC 6582).

use super::congestion::{Control, LossState};
use crate::packet::seq::Position;

/// Number of duplicate ACKs that trigger fast retransmit (RFC 5681).
const DUPLICATE_THRESHOLD: u32 = 3;

/// See the module's description.
#[derive(Clone, Debug)]
pub(super) struct Cumulative {
    /// NewReno: a partial ACK means that the next segment is lost as well (RFC 6582).
    newreno: bool,
    limited_transmit: bool,
    duplicates: u32,
    /// Window inflation by duplicate ACKs: each one means that a segment left the network.
    inflation: u64,
    /// In fast recovery: SND.MAX when it began (`recover` in RFC 6582, section 3.2, step 2).
    recovery_point: Option<Position>,
    /// SND.MAX at the last timeout. Duplicate ACKs up to here may be caused by its retransmissions
    /// and do not trigger fast retransmit (RFC 6582, section 3.2, steps 2 and 4).
    recover: Position,
    /// ACKs above this position may take the fast path: `recover`, or [`Position::MAX`] (never)
    /// with rate sampling.
    fast_path_above: Position,
    rate_sampling: bool,
    retransmit_first: bool,
}

impl Cumulative {
    pub(super) fn new(newreno: bool, limited_transmit: bool, rate_sampling: bool) -> Self {
        Self {
            newreno,
            limited_transmit,
            duplicates: 0,
            inflation: 0,
            recovery_point: None,
            recover: 0,
            fast_path_above: if rate_sampling { Position::MAX } else { 0 },
            rate_sampling,
            retransmit_first: false,
        }
    }

    /// Whether the segment at SND.UNA must be retransmitted now; clears the request.
    pub(super) fn take_retransmit(&mut self) -> bool {
        std::mem::take(&mut self.retransmit_first)
    }

    /// Whether runs of new data may be sent without checking each segment.
    pub(super) fn allows_runs(&self) -> bool {
        !self.retransmit_first && !self.rate_sampling
    }

    /// Whether the segment at SND.UNA must be retransmitted now.
    pub(super) fn retransmit_pending(&self) -> bool {
        self.retransmit_first
    }

    /// The usable congestion window in bytes.
    pub(super) fn window(&self, control: &Control, segment: u64) -> u64 {
        let early = if self.limited_transmit && self.recovery_point.is_none() {
            // RFC 3042: one new segment for each of the first two duplicates.
            u64::from(self.duplicates.min(DUPLICATE_THRESHOLD - 1)) * segment
        } else {
            0
        };
        control.cwnd() + self.inflation + early
    }

    /// Whether the sender is in fast recovery.
    pub(super) fn is_recovering(&self) -> bool {
        self.recovery_point.is_some()
    }

    /// The loss recovery state.
    pub(super) fn loss_state(&self, una: Position) -> LossState {
        match self.recovery_point {
            Some(_) => LossState::Recovery,
            None if una < self.recover => LossState::Loss,
            None => LossState::Open,
        }
    }

    /// Whether an ACK up to `una` may take the fast path: no duplicate ACKs were received, and it
    /// covers no retransmission.
    pub(super) fn fast_path_ok(&self, una: Position) -> bool {
        self.duplicates == 0 && self.recovery_point.is_none() && una > self.fast_path_above
    }

    /// Processes a new ACK up to `una` of `bytes`. Returns by how many bytes the window may grow.
    pub(super) fn acked(&mut self, una: Position, bytes: u64, segment: u64) -> u64 {
        self.duplicates = 0;
        let Some(point) = self.recovery_point else {
            // RFC 3465, 2.3: after a timeout, much of the retransmitted data may have been received
            // before.
            return if una <= self.recover { bytes.min(segment) } else { bytes };
        };
        if self.newreno && una < point {
            // RFC 6582, step 3, partial ACK: retransmit the next hole and deflate the window.
            self.retransmit_first = true;
            self.inflation = self.inflation.saturating_sub(bytes);
            if bytes >= segment {
                self.inflation += segment;
            }
            return 0;
        }
        self.recovery_point = None;
        self.inflation = 0;
        0
    }

    /// Processes a duplicate ACK of `una` with SND.MAX `max`. Returns whether fast recovery begins.
    pub(super) fn duplicate(
        &mut self,
        una: Position,
        max: Position,
        segment: u64,
        control: &mut Control,
    ) -> bool {
        if self.recovery_point.is_some() {
            self.inflation += segment;
            return false;
        }
        self.duplicates += 1;
        if self.duplicates != DUPLICATE_THRESHOLD || una <= self.recover {
            return false;
        }
        control.on_congestion(max - una);
        self.inflation = u64::from(DUPLICATE_THRESHOLD) * segment;
        self.recovery_point = Some(max);
        self.retransmit_first = true;
        true
    }

    /// The retransmission timer expired: everything up to `max` will be retransmitted.
    pub(super) fn timed_out(&mut self, max: Position) {
        self.duplicates = 0;
        self.inflation = 0;
        self.recovery_point = None;
        self.retransmit_first = false;
        self.recover = max;
        self.fast_path_above = if self.rate_sampling { Position::MAX } else { max };
    }
}
