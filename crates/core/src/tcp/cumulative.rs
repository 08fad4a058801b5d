//! Loss recovery from cumulative ACKs alone: Reno (RFC 5681, section 3.2) and NewReno (RFC 6582).

use super::congestion::{Control, LossState};
use crate::packet::seq::Position;

/// RFC 5681: so many duplicates mean loss.
const DUPLICATE_THRESHOLD: u32 = 3;

/// See the module's description.
#[derive(Clone, Debug)]
pub(super) struct Cumulative {
    /// NewReno: an ACK for a part of what was outstanding means one more segment is missing.
    survives_partial_acks: bool,
    limited_transmit: bool,
    duplicates: u32,
    /// What duplicates add to the window: each stands for a segment that left the network.
    inflation: u64,
    /// In fast recovery: everything before this was sent before the loss was noticed.
    recovering_to: Option<Position>,
    /// Duplicates up to here may come from the segments that a time-out repeated, and start no
    /// recovery until more than this is acknowledged (RFC 6582, section 3.2, step 2).
    repeated_to: Position,
    /// ACKs above this are of many if nothing else is remarkable: `repeated_to`, or the end of all
    /// numbers where each ACK is measured.
    calm_above: Position,
    is_measured: bool,
    resend: bool,
}

impl Cumulative {
    pub(super) fn new(
        survives_partial_acks: bool,
        limited_transmit: bool,
        is_measured: bool,
    ) -> Self {
        Self {
            survives_partial_acks,
            limited_transmit,
            duplicates: 0,
            inflation: 0,
            recovering_to: None,
            repeated_to: 0,
            calm_above: if is_measured { Position::MAX } else { 0 },
            is_measured,
            resend: false,
        }
    }

    /// Whether the first outstanding segment is to be retransmitted at once; asking takes the order.
    pub(super) fn take_resend(&mut self) -> bool {
        std::mem::take(&mut self.resend)
    }

    /// Whether new data may leave at once, many segments together.
    pub(super) fn lets_out_runs(&self) -> bool {
        !self.resend && !self.is_measured
    }

    /// Whether it is.
    pub(super) fn resends(&self) -> bool {
        self.resend
    }

    /// Bytes that may be outstanding.
    pub(super) fn window(&self, control: &Control, segment: u64) -> u64 {
        let early = if self.limited_transmit && self.recovering_to.is_none() {
            // RFC 3042: one new segment for each of the first two duplicates.
            u64::from(self.duplicates.min(DUPLICATE_THRESHOLD - 1)) * segment
        } else {
            0
        };
        control.cwnd() + self.inflation + early
    }

    /// Whether fast recovery is under way.
    pub(super) fn is_recovering(&self) -> bool {
        self.recovering_to.is_some()
    }

    /// How far the repair of losses is.
    pub(super) fn loss_state(&self, una: Position) -> LossState {
        match self.recovering_to {
            Some(_) => LossState::Recovery,
            None if una < self.repeated_to => LossState::Loss,
            None => LossState::Open,
        }
    }

    /// Whether an ACK up to `una` is one of many: no duplicate came, and nothing was retransmitted that
    /// it may be for.
    pub(super) fn is_calm(&self, una: Position) -> bool {
        self.duplicates == 0 && self.recovering_to.is_none() && una > self.calm_above
    }

    /// `bytes` more were acknowledged, up to `una`. By how many the window may grow.
    pub(super) fn acked(&mut self, una: Position, bytes: u64, segment: u64) -> u64 {
        self.duplicates = 0;
        let Some(point) = self.recovering_to else {
            // RFC 3465, 2.3: of what a time-out repeats, much may have arrived before.
            return if una <= self.repeated_to { bytes.min(segment) } else { bytes };
        };
        if self.survives_partial_acks && una < point {
            // RFC 6582, step 3, partial: the next hole, and the window deflates by what left it.
            self.resend = true;
            self.inflation = self.inflation.saturating_sub(bytes);
            if bytes >= segment {
                self.inflation += segment;
            }
            return 0;
        }
        self.recovering_to = None;
        self.inflation = 0;
        0
    }

    /// A duplicate ACK for `una` came while everything up to `max` was sent. Whether fast recovery
    /// begins.
    pub(super) fn duplicate(
        &mut self,
        una: Position,
        max: Position,
        segment: u64,
        control: &mut Control,
    ) -> bool {
        if self.recovering_to.is_some() {
            self.inflation += segment;
            return false;
        }
        self.duplicates += 1;
        if self.duplicates != DUPLICATE_THRESHOLD || una <= self.repeated_to {
            return false;
        }
        control.congestion(max - una);
        self.inflation = u64::from(DUPLICATE_THRESHOLD) * segment;
        self.recovering_to = Some(max);
        self.resend = true;
        true
    }

    /// The retransmission timer expired: everything up to `max` will be retransmitted.
    pub(super) fn timed_out(&mut self, max: Position) {
        self.duplicates = 0;
        self.inflation = 0;
        self.recovering_to = None;
        self.resend = false;
        self.repeated_to = max;
        self.calm_above = if self.is_measured { Position::MAX } else { max };
    }
}
