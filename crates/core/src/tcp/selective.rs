//! Loss recovery with SACK: RFC 6675, or RACK-TLP (RFC 8985); the window during recovery by the
//! pipe rule or by proportional rate reduction (RFC 6937).
//!
//! Where Linux is followed, a reduction that was wrong is undone: see `undoing`.
//!
//! Not modelled: the rescue retransmission and rule 3 of RFC 6675's NextSeg.

mod undoing;

pub(super) use undoing::{Expiry, Undone};

use super::config::{Config, Follows};
use super::congestion::{Control, LossState};
use super::prr::Prr;
use super::rack::Rack;
use super::rtt::RttEstimator;
use super::scoreboard::{Delivered, Scoreboard, Sent};
use super::undo::Undo;
use crate::packet::seq::Position;
use crate::time::{Duration, Instant};
use std::cell::Cell;
use undoing::{Arrivals, Frto};

/// Where recovery stands; positions are the end of what was outstanding when it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    /// The window is being reduced after an ECN echo; nothing was lost (Linux, `TCP_CA_CWR`).
    Cwr(Position),
    Recovery(Position),
    AfterTimeout(Position),
}

/// A tail loss probe on its way (RFC 8985, section 7).
#[derive(Clone, Copy, Debug)]
struct Probe {
    end: Position,
    retransmission: bool,
}

/// What one ACK meant.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AckVerdict {
    /// A round-trip sample from a segment sent once.
    pub(super) rtt: Option<Duration>,
    /// Bytes by which the window may grow.
    pub(super) growth_bytes: u64,
    /// Fast recovery begins.
    pub(super) recovery_began: bool,
    /// A tail loss probe's episode is over.
    pub(super) probe_ended: bool,
    /// What was sent before the first outstanding segment last was is reported only now: the answer to
    /// that one cannot be there yet (Linux, `tcp_clean_rtx_queue`).
    pub(super) answer_is_early: bool,
    /// What it showed to have been wrong.
    pub(super) undone: Option<Undone>,
}

/// What an ACK says, in positions.
#[derive(Clone, Copy, Debug)]
pub(super) struct AckNews<'a> {
    pub(super) now: Instant,
    pub(super) una: Position,
    pub(super) una_before: Position,
    pub(super) nxt: Position,
    pub(super) sack: &'a [(Position, Position)],
    /// A range that the peer got twice (D-SACK, RFC 2883).
    pub(super) duplicate: Option<(Position, Position)>,
    /// A pure ACK that repeats the left edge and carries no block.
    pub(super) plain_duplicate: bool,
    /// The time that its timestamp echoes.
    pub(super) echo: Option<Instant>,
    /// Whether there is new data that the peer's window allows.
    pub(super) may_send_new: bool,
}

/// See the module's description. What every ACK touches comes first.
#[derive(Clone, Debug)]
#[repr(C)]
pub(super) struct Selective {
    /// Whether nothing is missing and nobody looks for a loss: so it is at nearly every ACK, and ACKs
    /// up to data that was sent once leave it so. Then nothing waits for its retransmission, and no
    /// recovery paces itself.
    calm: bool,
    use_rack: bool,
    /// The first retransmission of a recovery does not wait for the window.
    force: bool,
    use_prr: bool,
    /// Whether each ACK is measured; then none is one of many.
    is_measured: bool,
    /// Whether what differs there is as in Linux.
    linux: bool,
    board: Scoreboard,
    prr: Option<Prr>,
    rack: Option<Rack>,
    phase: Phase,
    probe: Option<Probe>,
    segment: u64,
    frto: Frto,
    undo: Undo,
}

impl Selective {
    pub(super) fn new(segment: u64, config: &Config, is_measured: bool) -> Self {
        Self {
            board: Scoreboard::default(),
            rack: config.rack_tlp.then(Rack::default),
            use_rack: config.rack_tlp,
            // What measures ACKs sets the window itself.
            use_prr: config.prr && !is_measured,
            is_measured,
            linux: config.follows == Follows::Linux,
            prr: None,
            phase: Phase::Open,
            force: false,
            probe: None,
            segment,
            calm: !is_measured,
            frto: Frto::Off,
            undo: Undo::default(),
        }
    }

    /// Bytes in flight.
    pub(super) fn pipe(&self) -> u64 {
        self.board.pipe()
    }

    /// Whether what differs there is as in Linux.
    pub(super) fn is_linux(&self) -> bool {
        self.linux
    }

    /// Bytes judged lost since the connection began.
    pub(super) fn lost_bytes(&self) -> u64 {
        self.board.lost_bytes()
    }

    /// Whether fast recovery is under way.
    pub(super) fn is_recovering(&self) -> bool {
        matches!(self.phase, Phase::Recovery(_))
    }

    /// How far the repair of losses is.
    pub(super) fn loss_state(&self) -> LossState {
        match self.phase {
            Phase::Open | Phase::Cwr(_) => LossState::Open,
            Phase::Recovery(_) => LossState::Recovery,
            Phase::AfterTimeout(_) => LossState::Loss,
        }
    }

    /// The next lost segment that the window lets out.
    #[inline(always)]
    pub(super) fn next_retransmission(&self, cwnd: u64) -> Option<Sent> {
        let sent = self.board.first_waiting()?;
        // With nothing in flight one segment may always leave: a full one that carries the FIN takes
        // one number more than the window that a time-out leaves.
        let pipe = self.board.pipe();
        let fits = pipe == 0 || pipe + (sent.end - sent.start) <= cwnd;
        ((self.force || fits) && !self.holds_back()).then_some(sent)
    }

    /// Whether the window lets out `bytes` of new data.
    pub(super) fn lets_out(&self, bytes: u64, cwnd: u64) -> bool {
        let is_first = !self.board.has_waiting() || self.holds_back();
        is_first && self.board.pipe() + bytes <= cwnd
    }

    /// Bytes of new data that the window lets out at once, if nothing waits for its retransmission and
    /// nothing is measured, as then each segment waits for its moment.
    pub(super) fn room(&self, cwnd: u64) -> Option<u64> {
        let at_once = self.calm || !(self.is_measured || self.board.has_waiting());
        at_once.then(|| cwnd.saturating_sub(self.board.pipe()))
    }

    /// Whether lost segments wait for the window.
    pub(super) fn retransmissions_wait(&self) -> bool {
        self.board.has_waiting()
    }

    #[inline]
    pub(super) fn sent_new(&mut self, now: Instant, start: Position, end: Position) {
        self.board.sent(now, start, end);
        self.note_sent(end - start);
    }

    /// As many new segments of `segment` bytes as fit between `start` and `limit` were sent: how many.
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
        if !self.calm {
            self.note_sent(end - start);
        }
        count
    }

    fn note_sent(&mut self, bytes: u64) {
        if let Some(prr) = &mut self.prr {
            prr.sent(bytes);
        }
    }

    /// A segment was retransmitted, as a tail loss `probe` or because it was lost.
    pub(super) fn sent_again(&mut self, now: Instant, sent: &Sent, probe: bool) {
        self.force = false;
        self.undo.retransmitted(now, probe);
        self.board.retransmitted(now, sent.start);
        if let Some(rack) = &mut self.rack {
            rack.retransmitted(now, sent.start);
        }
        self.note_sent(sent.end - sent.start);
        self.note_calm();
    }

    /// The last outstanding segment, which a probe repeats.
    pub(super) fn last_segment(&self) -> Option<Sent> {
        self.board.last()
    }

    /// Section 7.2: whether a tail loss probe may be scheduled.
    pub(super) fn may_probe(&self) -> bool {
        if self.calm {
            return self.use_rack && self.board.pipe() > 0;
        }
        self.rack.is_some()
            && matches!(self.phase, Phase::Open | Phase::Cwr(_))
            && self.probe.is_none()
            && self.board.sacked_bytes() == 0
            && self.board.pipe() > 0
    }

    /// When the first outstanding segment was sent last.
    pub(super) fn head_sent_at(&self) -> Option<Instant> {
        self.board.head().map(|head| head.sent_at)
    }

    pub(super) fn awaits_probe(&self) -> bool {
        self.probe.is_some()
    }

    pub(super) fn probe_sent(&mut self, end: Position, retransmission: bool) {
        self.probe = Some(Probe { end, retransmission });
        self.note_calm();
    }

    /// When losses are to be detected again without an ACK.
    pub(super) fn detection_deadline(&self) -> Option<Instant> {
        self.rack.as_ref()?.deadline()
    }

    /// The reordering window passed.
    pub(super) fn detect_by_time(
        &mut self,
        now: Instant,
        nxt: Position,
        una: Position,
        control: &mut Control,
        rtt: &RttEstimator,
    ) -> bool {
        self.detect(now, rtt);
        let began = self.enter_recovery(nxt, una, control);
        self.pace(0, false, control);
        self.note_calm();
        began
    }

    /// Proportional rate reduction: the window from here, with `delivered` bytes newly delivered.
    /// Whether recovery is under way and paces itself.
    fn pace(&mut self, delivered: u64, clean: bool, control: &mut Control) -> bool {
        let (Phase::Recovery(_) | Phase::Cwr(_), Some(prr)) = (self.phase, &mut self.prr) else {
            return false;
        };
        let ssthresh = control.ssthresh().unwrap_or(self.segment);
        control.set_cwnd(prr.window(delivered, self.board.pipe(), ssthresh, self.segment, clean));
        true
    }

    pub(super) fn on_ack<const MEASURED: bool>(
        &mut self,
        news: &AckNews<'_>,
        control: &mut Control,
        rtt: &RttEstimator,
    ) -> AckVerdict {
        let AckNews { now, una, una_before, nxt, sack, .. } = *news;
        let pipe_and_sacked = self.board.sacked_bytes();
        let mut verdict = AckVerdict::default();
        let (mut newest, mut oldest): (Option<Instant>, Option<Instant>) = (None, None);
        let lost_before = self.board.lost_bytes();
        let mut last_sent: Option<(Instant, Position)> = None;
        let outstanding_at_timeout = match self.phase {
            Phase::AfterTimeout(point) => point,
            Phase::Open | Phase::Cwr(_) | Phase::Recovery(_) => 0,
        };
        let original = Cell::new(false);
        let news_count = Cell::new(0u64);
        let mut in_order_count = 0;
        {
            let rack = &mut self.rack;
            let mut note = |delivered: Delivered| {
                news_count.set(news_count.get() + 1);
                if MEASURED {
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
                self.board.advance(una, &mut note);
                in_order_count = news_count.get();
            }
            for &(start, end) in sack {
                self.board.sack(start, end, &mut note);
            }
        }
        verdict.answer_is_early = self.linux
            && una == una_before
            && self.board.head().is_some_and(|head| oldest.is_some_and(|at| at < head.sent_at));
        verdict.rtt = newest.map(|sent_at| now.saturating_since(sent_at));
        // What left the network: newly in order plus the change in what is selectively known.
        let delivered =
            (una - una_before + self.board.sacked_bytes()).saturating_sub(pipe_and_sacked);
        if MEASURED {
            control.note_arrival(delivered, last_sent.map(|(_, end)| end));
        }

        let sacked = news_count.get() > in_order_count;
        let arrivals = Arrivals { original: original.get(), sacked };
        let (grows, detects) = self.change_phase::<MEASURED>(news, arrivals, control, &mut verdict);
        if detects {
            self.detect(now, rtt);
        }
        verdict.recovery_began = self.enter_recovery(nxt, una, control);
        let clean = una > una_before && self.board.lost_bytes() == lost_before;
        if !self.pace(delivered, clean, control) && grows && !verdict.recovery_began {
            // What was selectively known before is no news (after a time-out, most of a window).
            verdict.growth_bytes = (una - una_before).min(delivered);
        }
        self.note_calm();
        verdict
    }

    /// Ends what an ACK ends: a probe's episode, and a recovery, whether it was needed or not. Whether the
    /// window may grow, and whether losses are to be looked for.
    fn change_phase<const MEASURED: bool>(
        &mut self,
        news: &AckNews<'_>,
        arrivals: Arrivals,
        control: &mut Control,
        verdict: &mut AckVerdict,
    ) -> (bool, bool) {
        let duplicate = news.duplicate.is_some_and(|range| self.on_duplicate(news, range));
        verdict.probe_ended = self.end_probe(news, control);
        let was_open = self.phase == Phase::Open;
        let mut detects = self.rack.is_some() || !news.sack.is_empty();
        if self.linux && !MEASURED {
            let (undone, looks) = self.try_undo(news, arrivals, control);
            verdict.undone = undone;
            detects &= looks;
        }
        let grows = self.leave_recovery::<MEASURED>(news.una, news.nxt, control);
        if let Some(rack) = &mut self.rack {
            let ended = !was_open && self.phase == Phase::Open;
            rack.adapt(news.una, news.nxt, duplicate, ended);
        }
        (grows, detects)
    }

    /// Whether nothing is missing and nobody looks for a loss.
    #[inline]
    pub(super) fn is_calm(&self) -> bool {
        self.calm
    }

    fn note_calm(&mut self) {
        self.calm = !self.is_measured
            && self.phase == Phase::Open
            && self.probe.is_none()
            && self.board.is_calm()
            && self.rack.as_ref().is_none_or(Rack::is_calm);
    }

    /// [`Selective::on_ack`] for an ACK without blocks up to `una` while all is
    /// [calm](Selective::is_calm): the round trip of the newest segment that arrived, if it was sent
    /// once.
    #[inline]
    pub(super) fn on_next_ack(
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
                self.board.advance_in_order(una, |news| rack.delivered(now, news, min_rtt))
            }
        };
        newest.map(|sent_at| now.saturating_since(sent_at))
    }

    /// Section 7.4: what the end of a probe's episode says. A probe that repeated a segment and was
    /// acknowledged without a duplicate repaired a loss, which congestion control must hear of.
    #[inline]
    fn end_probe(&mut self, news: &AckNews<'_>, control: &mut Control) -> bool {
        let Some(probe) = self.probe.filter(|probe| news.una >= probe.end) else { return false };
        // RFC 8985, 7.4.2: a D-SACK of it tells that the original arrived too.
        let duplicate = news.duplicate.is_some_and(|range| range.1 == probe.end);
        let repaired = probe.retransmission && news.una > probe.end && !duplicate;
        if probe.retransmission && !repaired && !news.plain_duplicate && !duplicate {
            return false;
        }
        self.probe = None;
        if repaired {
            control.congestion(news.nxt - news.una_before);
        }
        true
    }

    /// Whether the window may grow: not in fast recovery, and not with the ACK that ends it.
    #[inline]
    fn leave_recovery<const MEASURED: bool>(
        &mut self,
        una: Position,
        nxt: Position,
        control: &mut Control,
    ) -> bool {
        match self.phase {
            // Linux begins the next recovery with the ACK that ends this one while anything that was
            // lost is not repaired; for BBR that is one recovery, whose first round conserves packets.
            Phase::AfterTimeout(point) | Phase::Recovery(point)
                if MEASURED && una >= point && self.board.repairs() =>
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
                    control.recovered();
                }
                false
            }
            Phase::AfterTimeout(point) => {
                if una >= point {
                    self.end_recovery();
                }
                true
            }
            Phase::Recovery(point) => {
                if una >= point {
                    self.end_recovery();
                    control.recovered();
                }
                false
            }
        }
    }

    fn end_recovery(&mut self) {
        self.phase = Phase::Open;
        self.prr = None;
        self.force = false;
        self.frto = Frto::Off;
    }

    fn detect(&mut self, now: Instant, rtt: &RttEstimator) {
        let recovering = !matches!(self.phase, Phase::Open | Phase::Cwr(_));
        let (board, segment) = (&mut self.board, self.segment);
        if let Some(rack) = &mut self.rack {
            rack.detect(now, board, segment, recovering, (rtt.min(), rtt.srtt()));
        } else {
            let lost_below = board.lost_below(segment);
            board.judge_originals(|sent| sent.end <= lost_below);
        }
    }

    fn enter_recovery(&mut self, nxt: Position, una: Position, control: &mut Control) -> bool {
        let is_open = matches!(self.phase, Phase::Open | Phase::Cwr(_));
        if !is_open || !self.board.has_waiting() {
            return false;
        }
        if self.phase == Phase::Open {
            // A reduction for an ECN echo was right, and what follows it undoes nothing.
            if self.linux && !self.is_measured {
                let in_flight = self.board.retransmissions_in_flight();
                self.undo.begin(una, control.prior(), in_flight, false);
            }
            self.reduce(nxt, una, control);
        }
        self.phase = Phase::Recovery(nxt);
        self.force = true;
        self.probe = None;
        true
    }

    /// A mark was echoed: the window is reduced as on a loss, with nothing to be retransmitted (Linux,
    /// `tcp_enter_cwr`). Congestion is certain, so this reduction is never undone.
    pub(super) fn enter_cwr(&mut self, nxt: Position, una: Position, control: &mut Control) {
        if self.phase == Phase::Open {
            self.undo.take();
            self.reduce(nxt, una, control);
            self.phase = Phase::Cwr(nxt);
            self.note_calm();
        }
    }

    fn reduce(&mut self, nxt: Position, una: Position, control: &mut Control) {
        let (flight, cwnd) = (nxt - una, control.cwnd());
        control.congestion(flight);
        let prr = || if self.linux { Prr::linux(cwnd) } else { Prr::new(flight) };
        self.prr = self.use_prr.then(prr);
    }

    /// The retransmission timer expired with everything up to `nxt` sent, or a window opened again
    /// before which everything was refused: then without an `expiry`.
    pub(super) fn timed_out(&mut self, now: Instant, nxt: Position, expiry: Option<Expiry>) {
        match &mut self.rack {
            Some(rack) if self.linux => rack.timed_out(now, &mut self.board),
            _ => self.board.lose_all(),
        }
        let continues = self.phase != Phase::Open;
        self.phase = Phase::AfterTimeout(nxt);
        self.prr = None;
        self.force = false;
        self.probe = None;
        self.frto = Frto::Off;
        match expiry {
            Some(expiry) if self.linux && !self.is_measured => {
                self.note_expiry(&expiry, continues);
            }
            _ => {
                self.undo.take();
            }
        }
        self.note_calm();
    }
}
