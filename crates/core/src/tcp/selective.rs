//! Loss recovery with SACK: RFC 6675 or RACK-TLP (RFC 8985). In recovery, cwnd follows the pipe
//! rule or proportional rate reduction (RFC 6937).
//!
//! [`StackVariant::Linux`] undoes spurious reductions; see `undoing`.
//!
//! Not modelled: the rescue retransmission and rule 3 of RFC 6675's NextSeg.

mod undoing;

pub(super) use undoing::Expiry;

use super::config::{Config, StackVariant};
use super::congestion::{Control, LossState};
use super::prr::Prr;
use super::rack::Rack;
use super::rtt::RttEstimator;
use super::scoreboard::{Delivered, Scoreboard, Sent};
use super::undo::{Undo, Undone};
use crate::packet::seq::Position;
use crate::time::{Duration, Instant};
use std::cell::Cell;
use undoing::{Frto, NewlyAcked};

/// Recovery phase; positions are SND.MAX when it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    /// cwnd is being reduced after an ECN echo, without a loss (Linux, `TCP_CA_CWR`).
    Cwr(Position),
    Recovery(Position),
    Loss(Position),
}

/// An outstanding tail loss probe (RFC 8985, section 7).
#[derive(Clone, Copy, Debug)]
struct TailLossProbe {
    end: Position,
    retransmission: bool,
}

/// The effects of an ACK.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AckOutcome {
    /// An RTT sample from a segment that was sent once.
    pub(super) rtt: Option<Duration>,
    /// Bytes by which cwnd may grow.
    pub(super) growth_bytes: u64,
    /// Fast recovery began.
    pub(super) recovery_began: bool,
    /// The tail loss probe episode ended.
    pub(super) tlp_ended: bool,
    /// The ACK is for a segment sent before the last transmission of the first outstanding one,
    /// whose ACK cannot have arrived yet: the retransmission timer is restarted (Linux,
    /// `tcp_clean_rtx_queue`).
    pub(super) rearm_rto: bool,
    /// The reduction that was undone.
    pub(super) undone: Option<Undone>,
}

/// An ACK, with the state of the sender.
#[derive(Clone, Copy, Debug)]
pub(super) struct AckInfo<'a> {
    pub(super) now: Instant,
    pub(super) una: Position,
    pub(super) una_before: Position,
    pub(super) nxt: Position,
    pub(super) sack: &'a [(Position, Position)],
    /// The range of a D-SACK (RFC 2883).
    pub(super) dsack: Option<(Position, Position)>,
    /// A pure duplicate ACK without SACK blocks.
    pub(super) plain_duplicate: bool,
    /// The time that its timestamp echoes.
    pub(super) echo: Option<Instant>,
    /// Whether there is new data within the peer's window.
    pub(super) may_send_new: bool,
}

/// See the module's description. The fields that every ACK uses come first.
#[derive(Clone, Debug)]
#[repr(C)]
pub(super) struct Selective {
    /// Whether in-order ACKs may take the fast path: the phase is open, and no SACKed ranges,
    /// pending retransmissions, reordering timer or probe exist. An in-order ACK of data that was
    /// sent once keeps it set.
    fast_path_ok: bool,
    use_rack: bool,
    /// The first retransmission of a recovery is sent regardless of cwnd.
    force_retransmit: bool,
    use_prr: bool,
    /// Whether delivery rates are sampled with each ACK (BBR); this excludes the fast path.
    rate_sampling: bool,
    /// Whether [`StackVariant::Linux`] is set.
    linux: bool,
    board: Scoreboard,
    prr: Option<Prr>,
    rack: Option<Rack>,
    phase: Phase,
    tlp: Option<TailLossProbe>,
    segment: u64,
    frto: Frto,
    undo: Undo,
}

impl Selective {
    pub(super) fn new(segment: u64, config: &Config, rate_sampling: bool) -> Self {
        Self {
            board: Scoreboard::default(),
            rack: config.rack_tlp.then(Rack::default),
            use_rack: config.rack_tlp,
            // BBR sets cwnd itself.
            use_prr: config.prr && !rate_sampling,
            rate_sampling,
            linux: config.stack == StackVariant::Linux,
            prr: None,
            phase: Phase::Open,
            force_retransmit: false,
            tlp: None,
            segment,
            fast_path_ok: !rate_sampling,
            frto: Frto::Off,
            undo: Undo::default(),
        }
    }

    /// Bytes in flight.
    pub(super) fn pipe(&self) -> u64 {
        self.board.pipe()
    }

    /// Whether [`StackVariant::Linux`] is set.
    pub(super) fn is_linux(&self) -> bool {
        self.linux
    }

    /// Total bytes marked lost.
    pub(super) fn lost_bytes(&self) -> u64 {
        self.board.lost_bytes()
    }

    /// Whether the sender is in fast recovery.
    pub(super) fn is_recovering(&self) -> bool {
        matches!(self.phase, Phase::Recovery(_))
    }

    /// The loss recovery state.
    pub(super) fn loss_state(&self) -> LossState {
        match self.phase {
            Phase::Open | Phase::Cwr(_) => LossState::Open,
            Phase::Recovery(_) => LossState::Recovery,
            Phase::Loss(_) => LossState::Loss,
        }
    }

    /// The next lost segment, if cwnd allows its retransmission.
    #[inline(always)]
    pub(super) fn next_retransmission(&self, cwnd: u64) -> Option<Sent> {
        let sent = self.board.first_pending_retransmit()?;
        // With nothing in flight, one segment may always be sent: a full one with a FIN takes one
        // sequence number more than the cwnd after a timeout.
        let pipe = self.board.pipe();
        let fits = pipe == 0 || pipe + (sent.end - sent.start) <= cwnd;
        ((self.force_retransmit || fits) && !self.defers_retransmits()).then_some(sent)
    }

    /// Whether cwnd allows `bytes` of new data.
    pub(super) fn allows_new(&self, bytes: u64, cwnd: u64) -> bool {
        let is_first = !self.board.has_pending_retransmits() || self.defers_retransmits();
        is_first && self.board.pipe() + bytes <= cwnd
    }

    /// Bytes of new data that cwnd allows to be sent as a run: only if there is nothing to be
    /// retransmitted, and without rate sampling, which implies pacing.
    pub(super) fn bulk_allowance(&self, cwnd: u64) -> Option<u64> {
        let may_send_run =
            self.fast_path_ok || !(self.rate_sampling || self.board.has_pending_retransmits());
        may_send_run.then(|| cwnd.saturating_sub(self.board.pipe()))
    }

    /// Whether lost segments are to be retransmitted.
    pub(super) fn has_pending_retransmits(&self) -> bool {
        self.board.has_pending_retransmits()
    }

    #[inline]
    pub(super) fn sent_new(&mut self, now: Instant, start: Position, end: Position) {
        self.board.sent(now, start, end);
        self.count_prr_sent(end - start);
    }

    /// Records a run of as many segments of `segment` bytes as fit between `start` and `limit`.
    /// Returns their number.
    #[inline]
    pub(super) fn sent_run(
        &mut self,
        now: Instant,
        start: Position,
        limit: Position,
        segment: u64,
    ) -> u64 {
        let (mut end, mut count) = (start, 0);
        while end + segment <= limit {
            self.board.sent(now, end, end + segment);
            end += segment;
            count += 1;
        }
        if !self.fast_path_ok {
            self.count_prr_sent(end - start);
        }
        count
    }

    fn count_prr_sent(&mut self, bytes: u64) {
        if let Some(prr) = &mut self.prr {
            prr.sent(bytes);
        }
    }

    /// A segment was retransmitted, as a tail loss `probe` or because it was lost.
    pub(super) fn on_retransmit(&mut self, now: Instant, sent: &Sent, probe: bool) {
        self.force_retransmit = false;
        self.undo.on_retransmit(now, probe);
        self.board.retransmitted(now, sent.start);
        if let Some(rack) = &mut self.rack {
            rack.retransmitted(now, sent.start);
        }
        self.count_prr_sent(sent.end - sent.start);
        self.update_fast_path_ok();
    }

    /// The last outstanding segment, which a tail loss probe retransmits.
    pub(super) fn last_segment(&self) -> Option<Sent> {
        self.board.last()
    }

    /// RFC 8985, section 7.2: whether a tail loss probe may be scheduled.
    pub(super) fn may_send_tlp(&self) -> bool {
        if self.fast_path_ok {
            return self.use_rack && self.board.pipe() > 0;
        }
        self.rack.is_some()
            && matches!(self.phase, Phase::Open | Phase::Cwr(_))
            && self.tlp.is_none()
            && self.board.sacked_bytes() == 0
            && self.board.pipe() > 0
    }

    /// When the first outstanding segment was last sent.
    pub(super) fn head_sent_at(&self) -> Option<Instant> {
        self.board.head().map(|head| head.sent_at)
    }

    pub(super) fn tlp_outstanding(&self) -> bool {
        self.tlp.is_some()
    }

    pub(super) fn tlp_sent(&mut self, end: Position, retransmission: bool) {
        self.tlp = Some(TailLossProbe { end, retransmission });
        self.update_fast_path_ok();
    }

    /// When the reordering timer expires.
    pub(super) fn detection_deadline(&self) -> Option<Instant> {
        self.rack.as_ref()?.deadline()
    }

    /// The reordering timer expired. Returns whether fast recovery began.
    pub(super) fn detect_on_timer(
        &mut self,
        now: Instant,
        nxt: Position,
        una: Position,
        control: &mut Control,
        rtt: &RttEstimator,
    ) -> bool {
        self.detect(now, rtt);
        let began = self.enter_recovery(nxt, una, control);
        self.update_prr(0, false, control);
        self.update_fast_path_ok();
        began
    }

    /// Applies proportional rate reduction to cwnd after `delivered` bytes were delivered. Returns
    /// whether PRR is active.
    fn update_prr(&mut self, delivered: u64, safe_ack: bool, control: &mut Control) -> bool {
        let (Phase::Recovery(_) | Phase::Cwr(_), Some(prr)) = (self.phase, &mut self.prr) else {
            return false;
        };
        let ssthresh = control.ssthresh().unwrap_or(self.segment);
        control.set_cwnd(prr.window(
            delivered,
            self.board.pipe(),
            ssthresh,
            self.segment,
            safe_ack,
        ));
        true
    }

    pub(super) fn on_ack<const RATE_SAMPLING: bool>(
        &mut self,
        info: &AckInfo<'_>,
        control: &mut Control,
        rtt: &RttEstimator,
    ) -> AckOutcome {
        let AckInfo { now, una, una_before, nxt, sack, .. } = *info;
        let sacked_before = self.board.sacked_bytes();
        let mut outcome = AckOutcome::default();
        let (mut newest, mut oldest): (Option<Instant>, Option<Instant>) = (None, None);
        let lost_before = self.board.lost_bytes();
        let mut last_sent: Option<(Instant, Position)> = None;
        let outstanding_at_timeout = match self.phase {
            Phase::Loss(point) => point,
            Phase::Open | Phase::Cwr(_) | Phase::Recovery(_) => 0,
        };
        let original = Cell::new(false);
        let delivered_count = Cell::new(0u64);
        let mut in_order_count = 0;
        {
            let rack = &mut self.rack;
            let mut on_delivered = |delivered: Delivered| {
                delivered_count.set(delivered_count.get() + 1);
                if RATE_SAMPLING {
                    last_sent = last_sent.max(Some((delivered.sent_at, delivered.end)));
                }
                if !delivered.retransmitted {
                    newest = newest.max(Some(delivered.sent_at));
                    oldest = Some(oldest.map_or(delivered.sent_at, |at| at.min(delivered.sent_at)));
                    if delivered.end <= outstanding_at_timeout {
                        original.set(true);
                    }
                }
                if let Some(rack) = rack {
                    rack.delivered(now, delivered, rtt.min());
                }
            };
            if una > una_before {
                self.board.advance(una, &mut on_delivered);
                in_order_count = delivered_count.get();
            }
            for &(start, end) in sack {
                self.board.sack(start, end, &mut on_delivered);
            }
        }
        outcome.rearm_rto = self.linux
            && una == una_before
            && self.board.head().is_some_and(|head| oldest.is_some_and(|at| at < head.sent_at));
        outcome.rtt = newest.map(|sent_at| now.saturating_since(sent_at));
        // Delivered data: the advance of SND.UNA plus the change in SACKed bytes.
        let delivered =
            (una - una_before + self.board.sacked_bytes()).saturating_sub(sacked_before);
        if RATE_SAMPLING {
            control.set_delivered(delivered, last_sent.map(|(_, end)| end));
        }

        let sacked = delivered_count.get() > in_order_count;
        let newly_acked = NewlyAcked { original: original.get(), sacked };
        let (may_grow, detects) =
            self.update_phase::<RATE_SAMPLING>(info, newly_acked, control, &mut outcome);
        if detects {
            self.detect(now, rtt);
        }
        outcome.recovery_began = self.enter_recovery(nxt, una, control);
        let safe_ack = una > una_before && self.board.lost_bytes() == lost_before;
        if !self.update_prr(delivered, safe_ack, control) && may_grow && !outcome.recovery_began {
            // Data SACKed before does not count (after a timeout, that may be most of a window).
            outcome.growth_bytes = (una - una_before).min(delivered);
        }
        self.update_fast_path_ok();
        outcome
    }

    /// Ends a probe episode and a recovery, and undoes a spurious reduction, if the ACK says so.
    /// Returns whether cwnd may grow and whether losses are to be detected.
    fn update_phase<const RATE_SAMPLING: bool>(
        &mut self,
        info: &AckInfo<'_>,
        newly_acked: NewlyAcked,
        control: &mut Control,
        outcome: &mut AckOutcome,
    ) -> (bool, bool) {
        let dsack = info.dsack.is_some_and(|range| self.on_dsack(info, range));
        outcome.tlp_ended = self.end_tlp(info, control);
        let was_open = self.phase == Phase::Open;
        let mut detects = self.rack.is_some() || !info.sack.is_empty();
        if self.linux && !RATE_SAMPLING {
            let (undone, may_detect) = self.try_undo(info, newly_acked, control);
            outcome.undone = undone;
            detects &= may_detect;
        }
        let may_grow = self.try_end_recovery::<RATE_SAMPLING>(info.una, info.nxt, control);
        if let Some(rack) = &mut self.rack {
            let ended = !was_open && self.phase == Phase::Open;
            rack.update_reo_wnd(info.una, info.nxt, dsack, ended);
        }
        (may_grow, detects)
    }

    /// Whether in-order ACKs may take the fast path.
    #[inline]
    pub(super) fn fast_path_ok(&self) -> bool {
        self.fast_path_ok
    }

    fn update_fast_path_ok(&mut self) {
        self.fast_path_ok = !self.rate_sampling
            && self.phase == Phase::Open
            && self.tlp.is_none()
            && self.board.fast_path_ok()
            && self.rack.as_ref().is_none_or(Rack::fast_path_ok);
    }

    /// The fast path of [`Selective::on_ack`], for an ACK up to `una` without SACK blocks while
    /// [`Selective::fast_path_ok`]. Returns the RTT of the most recently sent segment that it
    /// acknowledges, if that was sent once.
    #[inline]
    pub(super) fn on_ack_fast_path(
        &mut self,
        now: Instant,
        una: Position,
        rtt: &RttEstimator,
    ) -> Option<Duration> {
        let rack = if self.use_rack { self.rack.as_mut() } else { None };
        let newest = match rack {
            None => self.board.advance_in_order(una, |_| {}),
            Some(rack) => {
                let min_rtt = rtt.min();
                self.board.advance_in_order(una, |segment| rack.delivered(now, segment, min_rtt))
            }
        };
        newest.map(|sent_at| now.saturating_since(sent_at))
    }

    /// RFC 8985, section 7.4: whether the probe episode ended. A probe that retransmitted a segment
    /// and is acknowledged without a duplicate ACK repaired a loss, which is congestion.
    #[inline]
    fn end_tlp(&mut self, info: &AckInfo<'_>, control: &mut Control) -> bool {
        let Some(probe) = self.tlp.filter(|probe| info.una >= probe.end) else { return false };
        // RFC 8985, 7.4.2: a D-SACK of it means that the original arrived as well.
        let dsack = info.dsack.is_some_and(|range| range.1 == probe.end);
        let repaired = probe.retransmission && info.una > probe.end && !dsack;
        if probe.retransmission && !repaired && !info.plain_duplicate && !dsack {
            return false;
        }
        self.tlp = None;
        if repaired {
            control.on_congestion(info.nxt - info.una_before);
        }
        true
    }

    /// Leaves the phase that the ACK completes. Returns whether cwnd may grow: not in fast
    /// recovery, nor with the ACK that ends it.
    #[inline]
    fn try_end_recovery<const RATE_SAMPLING: bool>(
        &mut self,
        una: Position,
        nxt: Position,
        control: &mut Control,
    ) -> bool {
        match self.phase {
            // If a lost segment is still unacknowledged, Linux enters the next recovery with the
            // ACK that ends this one. For BBR both are one recovery, whose first round conserves
            // packets.
            Phase::Loss(point) | Phase::Recovery(point)
                if RATE_SAMPLING && una >= point && self.board.has_unrepaired_loss() =>
            {
                self.phase = Phase::Recovery(nxt);
                false
            }
            Phase::Open => true,
            Phase::Cwr(point) => {
                // The CWR flag is on the data after that point (Linux, `tcp_fastretrans_alert`).
                if una > point {
                    self.phase = Phase::Open;
                    self.prr = None;
                    control.on_recovery_end();
                }
                false
            }
            Phase::Loss(point) => {
                if una >= point {
                    self.end_recovery();
                }
                true
            }
            Phase::Recovery(point) => {
                if una >= point {
                    self.end_recovery();
                    control.on_recovery_end();
                }
                false
            }
        }
    }

    fn end_recovery(&mut self) {
        self.phase = Phase::Open;
        self.prr = None;
        self.force_retransmit = false;
        self.frto = Frto::Off;
    }

    fn detect(&mut self, now: Instant, rtt: &RttEstimator) {
        let recovering = !matches!(self.phase, Phase::Open | Phase::Cwr(_));
        let (board, segment) = (&mut self.board, self.segment);
        if let Some(rack) = &mut self.rack {
            rack.detect(now, board, segment, recovering, (rtt.min(), rtt.srtt()));
        } else {
            let lost_below = board.lost_below(segment);
            board.mark_originals_lost(|sent| sent.end <= lost_below);
        }
    }

    fn enter_recovery(&mut self, nxt: Position, una: Position, control: &mut Control) -> bool {
        let is_open = matches!(self.phase, Phase::Open | Phase::Cwr(_));
        if !is_open || !self.board.has_pending_retransmits() {
            return false;
        }
        if self.phase == Phase::Open {
            // A reduction for an ECN echo is never spurious, so it and what follows is not undone.
            if self.linux && !self.rate_sampling {
                let in_flight = self.board.retransmissions_in_flight();
                self.undo.init(Undone::Recovery, una, control.prior(), in_flight, false);
            }
            self.reduce(nxt, una, control);
        }
        self.phase = Phase::Recovery(nxt);
        self.force_retransmit = true;
        self.tlp = None;
        true
    }

    /// An ECN echo was received: reduces cwnd as for a loss, without a retransmission (Linux,
    /// `tcp_enter_cwr`). This reduction is never undone.
    pub(super) fn enter_cwr(&mut self, nxt: Position, una: Position, control: &mut Control) {
        if self.phase == Phase::Open {
            self.undo.take();
            self.reduce(nxt, una, control);
            self.phase = Phase::Cwr(nxt);
            self.update_fast_path_ok();
        }
    }

    fn reduce(&mut self, nxt: Position, una: Position, control: &mut Control) {
        let (flight, cwnd) = (nxt - una, control.cwnd());
        control.on_congestion(flight);
        let prr = || if self.linux { Prr::linux(cwnd) } else { Prr::new(flight) };
        self.prr = self.use_prr.then(prr);
    }

    /// The retransmission timer expired with SND.MAX `nxt`, or, without an `expiry`, a zero window
    /// reopened and everything sent beyond it was dropped.
    pub(super) fn timed_out(&mut self, now: Instant, nxt: Position, expiry: Option<Expiry>) {
        match &mut self.rack {
            Some(rack) if self.linux => rack.timed_out(now, &mut self.board),
            _ => self.board.mark_all_lost(),
        }
        let continues = self.phase != Phase::Open;
        self.phase = Phase::Loss(nxt);
        self.prr = None;
        self.force_retransmit = false;
        self.tlp = None;
        self.frto = Frto::Off;
        match expiry {
            Some(expiry) if self.linux && !self.rate_sampling => {
                self.on_expiry(&expiry, continues);
            }
            _ => {
                self.undo.take();
            }
        }
        self.update_fast_path_ok();
    }
}
