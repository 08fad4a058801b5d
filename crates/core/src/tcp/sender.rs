//! The sending half of a connection: what may be sent now, what must be retransmitted, and when to
//! look again without an ACK. It knows positions only; the endpoint turns them into segments.

mod idle;
mod paced;
mod probes;
mod sending;
mod timers;

use super::config::{Config, CongestionName, Follows};
use super::congestion::{Acked, Control, LossState};
use super::cumulative::Cumulative;
use super::exchange::{Ack, Outgoing, Run, SenderCounters};
use super::rtt::{RttEstimator, Span};
use super::selective::{AckNews, Expiry, Selective, Undone};
use super::undo::echoed;
use crate::packet::seq::Position;
use crate::rng::Rng;
use crate::time::{Duration, Instant};
use idle::SentAt;

/// How losses are noticed and repaired. What tells them apart comes first, not wherever there is room
/// for it.
#[derive(Clone, Debug)]
#[repr(u8)]
#[expect(
    clippy::large_enum_variant,
    reason = "SACK is the rule; a box would add a look-up to every ACK"
)]
enum Recovery {
    Cumulative(Cumulative),
    Selective(Selective),
}

/// See the module's description.
///
/// Fields lie in the order of [`Endpoint`](super::Endpoint)'s lines: the first is for every segment,
/// the second and, of the parts, one each for every ACK of a transfer.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub struct Sender {
    /// The left edge: everything before it was acknowledged.
    una: Position,
    /// The end of everything ever sent.
    max: Position,
    /// The end of all that is to be sent, as far as is known: of the data, or of the FIN after it.
    end: Position,
    /// The right edge of the peer's window, and the largest window it ever offered.
    edge: Position,
    window_max: u64,
    /// When something was last sent, acknowledged or written: a window probe waits from here.
    last_activity: Instant,
    /// When the retransmission timer expires; `None` with nothing outstanding. Fixed when the timer
    /// is started: a later sample moves the next one, not this one.
    timeout_at: Option<Instant>,
    closed: bool,
    /// Whether losses are detected by RACK-TLP: by time as well, and with tail loss probes.
    probes: bool,
    probe_due: bool,
    window_probe_due: bool,
    /// Whether the congestion window, not the application or the peer, stopped the last sending.
    limited_by_window: bool,
    /// Whether segments leave at a pace, and ACKs are measured for it (BBR).
    paced: bool,
    /// The next position to be sent; falls back to `una` after a time-out without SACK.
    nxt: Position,
    /// The end of the data that the application wrote.
    written: Position,
    send_buffer: u64,
    segment: u64,
    /// When a tail loss probe is due, if one may be sent then; fixed likewise.
    probe_at: Option<Instant>,
    /// When the left edge last moved over data.
    last_advance: Option<Instant>,
    /// Segments sent that carry data or a FIN.
    segments: u64,
    timeouts_in_a_row: u32,
    /// When data was last sent.
    last_sent: SentAt,
    control: Control,
    rtt: RttEstimator,
    recovery: Recovery,
    /// The counters but for `segments`.
    counters: SenderCounters,
    /// The segment whose round trip is being timed: where it ends and when it was sent.
    timed: Option<(Position, Instant)>,
    /// Whether what differs there is as in Linux.
    linux: bool,
    /// Bytes of a full segment's payload that options take at this moment.
    reserved: u64,
    /// What was sent before the window was last reduced for an ECN echo ends here: until more than that
    /// is acknowledged, further echoes tell of the same congestion.
    echo_handled_to: Position,
}

impl Sender {
    /// A sender that has sent nothing.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        let survives_partial_acks = config.congestion != CongestionName::Reno;
        let paced = config.congestion == CongestionName::Bbr;
        let cumulative = Cumulative::new(survives_partial_acks, config.limited_transmit, paced);
        Self {
            una: 0,
            nxt: 0,
            max: 0,
            written: 1,
            closed: false,
            end: 1,
            edge: 1,
            window_max: 0,
            send_buffer: config.send_buffer,
            segment: config.mss.into(),
            control: Control::new(config),
            rtt: RttEstimator::new(config.rto, config.follows),
            recovery: Recovery::Cumulative(cumulative),
            timeout_at: None,
            probe_at: None,
            last_activity: Instant::START,
            timed: None,
            last_advance: None,
            segments: 0,
            probes: false,
            probe_due: false,
            window_probe_due: false,
            limited_by_window: false,
            paced,
            timeouts_in_a_row: 0,
            last_sent: SentAt::default(),
            echo_handled_to: 0,
            counters: SenderCounters::default(),
            linux: config.follows == Follows::Linux,
            reserved: 0,
        }
    }

    /// From now on, options take so many bytes from the payload of each segment of new data.
    pub(super) fn reserve(&mut self, bytes: u64) {
        self.reserved = bytes;
    }

    /// The handshake settled the payload of a full segment, whether the peer reports SACK and whether
    /// it echoes timestamps.
    pub fn negotiated(&mut self, segment: u64, sack: bool, timestamps: bool, config: &Config) {
        self.segment = segment;
        self.rtt.negotiated(segment, timestamps);
        self.control.negotiated(segment);
        if sack {
            let selective = Selective::new(segment, config, self.paced);
            self.recovery = Recovery::Selective(selective);
            self.probes = config.rack_tlp;
        }
    }

    /// Where the congestion control's draws come from.
    pub(super) fn set_chance(&mut self, chance: Rng) {
        self.control.set_chance(chance);
    }

    /// The application writes `bytes` more.
    pub fn write(&mut self, now: Instant, bytes: u64) {
        debug_assert!(!self.closed, "nothing is written after the end");
        if self.una == self.max && self.una > 0 {
            if self.paced {
                self.check_application_limit();
            } else {
                self.after_idle(now);
            }
        }
        self.last_activity = now;
        self.written = self.written.saturating_add(bytes);
        self.end = self.written;
    }

    /// The application is done: what was written is followed by a FIN.
    pub fn close(&mut self) {
        self.closed = true;
        self.end = self.written + 1;
    }

    /// The application stops: what was written and never sent is forgotten, and a FIN follows.
    pub fn stop(&mut self) {
        if !self.closed {
            self.written = self.written.min(self.max.max(1));
            self.close();
        }
    }

    /// The left edge.
    #[must_use]
    pub fn una(&self) -> Position {
        self.una
    }

    /// The end of everything ever sent.
    #[must_use]
    pub fn max(&self) -> Position {
        self.max
    }

    /// Application bytes acknowledged.
    #[must_use]
    pub fn acked_bytes(&self) -> u64 {
        self.una.min(self.written).saturating_sub(1)
    }

    /// Application bytes sent at least once.
    #[must_use]
    pub fn sent_bytes(&self) -> u64 {
        self.max.min(self.written).saturating_sub(1)
    }

    /// Whether the SYN was acknowledged.
    #[must_use]
    pub fn opened(&self) -> bool {
        self.una > 0
    }

    /// Whether all data and the FIN were acknowledged.
    #[must_use]
    pub fn finished(&self) -> bool {
        self.closed && self.una > self.written
    }

    /// Bytes in flight as congestion control sees them.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        match &self.recovery {
            Recovery::Cumulative(_) => self.nxt - self.una,
            Recovery::Selective(selective) => selective.pipe(),
        }
    }

    /// The congestion control, for its window.
    #[must_use]
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// The round-trip estimator.
    #[must_use]
    pub fn rtt(&self) -> &RttEstimator {
        &self.rtt
    }

    /// When the left edge last moved over data; a FIN alone is not data.
    pub(super) fn last_advance(&self) -> Option<Instant> {
        self.last_advance
    }

    /// The counters.
    #[must_use]
    pub fn counters(&self) -> SenderCounters {
        SenderCounters { segments: self.segments, ..self.counters }
    }

    fn note_window(&mut self, position: Position, window: u64) {
        if position + window > self.edge {
            self.edge = position + window;
        }
        if window > self.window_max {
            self.window_max = window;
        }
    }

    /// Takes an ACK if the window is all it can tell, because nothing is outstanding: so it is with
    /// every segment that reaches the receiving side of a transfer. Whether it did.
    #[inline]
    pub fn only_window(&mut self, now: Instant, position: Position, window: u64) -> bool {
        let nothing_outstanding = self.una == self.max && position == self.una;
        if nothing_outstanding && !self.awaits_probe() {
            self.last_activity = now;
            self.note_window(position, window);
            return true;
        }
        false
    }

    /// Takes an ACK of the next `acked` positions if nothing is missing and nothing was retransmitted, so
    /// that all it tells is that the left edge moves: so it is with nearly every ACK of a transfer.
    /// Whether it did; if not, nothing was done. Where ACKs are measured, none is one of many.
    #[inline]
    pub(super) fn on_next_ack(
        &mut self,
        now: Instant,
        acked: u64,
        window: u64,
        timestamp_rtt: Option<Duration>,
    ) -> bool {
        let una_before = self.una;
        let position = una_before + acked;
        if una_before == 0 || position > self.max {
            return false;
        }
        let (rtt, sample) = match &mut self.recovery {
            Recovery::Cumulative(cumulative) => {
                if !cumulative.is_calm(position) {
                    return false;
                }
                let timed = self.timed.take_if(|timed| position >= timed.0);
                let sample = timestamp_rtt.or(timed.map(|timed| now.saturating_since(timed.1)));
                (timestamp_rtt, sample)
            }
            Recovery::Selective(selective) => {
                if !selective.is_calm() {
                    return false;
                }
                let rtt = selective.on_next_ack(now, position, &self.rtt).or(timestamp_rtt);
                (rtt, rtt)
            }
        };
        self.last_activity = now;
        self.note_window(position, window);
        self.move_left_edge(now, position);
        self.nxt = self.nxt.max(position);
        self.timeouts_in_a_row = 0;
        if let Some(sample) = sample {
            self.rtt.sample(sample, Span { una_before, una: position, nxt: self.max });
        }
        self.restart_timers(now);
        let (srtt, una, nxt) = (self.rtt.srtt(), self.una, self.max);
        let acked = Acked { now, bytes: acked, rtt, srtt, una, nxt };
        if self.window_was_used(self.max - una_before) {
            self.control.acked(&acked);
        } else {
            self.control.noted(&acked);
        }
        true
    }

    /// An ACK up to `position`, which [`Sender::on_ack`] takes next, echoes a mark (ECE). The window is
    /// reduced as on a loss, once in a window of data (RFC 3168, section 6.1.2; Linux, `tcp_enter_cwr`),
    /// unless a loss is being repaired and has reduced it. Whether the next new data must carry CWR.
    #[cold]
    #[inline(never)]
    pub(super) fn on_ecn_echo(&mut self, position: Position) -> bool {
        let outstanding = self.max - self.una;
        if outstanding == 0 || position < self.una || position > self.max {
            return false;
        }
        if matches!(self.recovery, Recovery::Cumulative(_)) {
            // The window does not grow by an ACK that echoes a mark.
            self.limited_by_window = false;
        }
        if position <= self.echo_handled_to {
            return false;
        }
        self.echo_handled_to = self.max;
        match &mut self.recovery {
            // BBR version 1 does not react to marks.
            _ if self.paced => {}
            Recovery::Cumulative(cumulative) => {
                if cumulative.loss_state(self.una) == LossState::Open {
                    self.control.congestion(outstanding);
                }
            }
            Recovery::Selective(selective) => {
                selective.enter_cwr(self.max, self.una, &mut self.control);
            }
        }
        true
    }

    /// Takes an ACK.
    pub fn on_ack(&mut self, now: Instant, ack: &Ack<'_>) {
        if ack.position > self.max || ack.position < self.una {
            return;
        }
        if self.paced {
            self.on_measured_ack(now, ack);
            return;
        }
        let una_before = self.una;
        let (growth_bytes, rtt) = self.take_ack::<false>(now, ack);
        let acked = Acked {
            now,
            bytes: growth_bytes,
            rtt: rtt.or(ack.timestamp_rtt),
            srtt: self.rtt.srtt(),
            una: self.una,
            nxt: self.max,
        };
        if growth_bytes > 0 && self.window_was_used(self.max - una_before) {
            self.control.acked(&acked);
        } else {
            self.control.noted(&acked);
        }
    }

    /// All that an ACK brings about but for the growth of the window: by how many bytes it may grow, and
    /// a round trip of a segment that was sent once.
    // Twice in the program, so that the usual one takes no measures.
    #[inline(always)]
    fn take_ack<const MEASURED: bool>(
        &mut self,
        now: Instant,
        ack: &Ack<'_>,
    ) -> (u64, Option<Duration>) {
        self.last_activity = now;
        let edge_before = self.edge;
        self.note_window(ack.position, ack.window);
        let una_before = self.una;
        let advanced = ack.position > una_before;
        let repeats = !advanced && ack.pure && self.edge == edge_before;
        if advanced {
            self.advance::<MEASURED>(now, ack, una_before);
        } else if edge_before <= self.una && self.edge > self.una {
            self.window_opened(now);
        }
        let recovered = self.recover::<MEASURED>(now, ack, una_before, repeats);
        if advanced {
            // After the sample, so that a time-out that was backed off is not started once more.
            self.restart_timers(now);
        }
        recovered
    }

    /// Whether even a duplicate is news: it may be the answer to a tail loss probe.
    fn awaits_probe(&self) -> bool {
        // That line is left alone where none is sent.
        if !self.probes {
            return false;
        }
        match &self.recovery {
            Recovery::Cumulative(_) => false,
            Recovery::Selective(selective) => selective.awaits_probe(),
        }
    }

    fn move_left_edge(&mut self, now: Instant, una: Position) {
        self.una = una;
        if self.acked_bytes() > 0 {
            self.last_advance = Some(now);
        }
    }

    /// The left edge moves: timing.
    #[inline]
    fn advance<const MEASURED: bool>(&mut self, now: Instant, ack: &Ack<'_>, una_before: Position) {
        self.move_left_edge(now, ack.position);
        self.nxt = self.nxt.max(self.una);
        self.timeouts_in_a_row = 0;
        let timed = self.timed.filter(|timed| self.una >= timed.0);
        if timed.is_some() {
            self.timed = None;
        }
        let sample = ack.timestamp_rtt.or(timed.map(|timed| now.saturating_since(timed.1)));
        // With SACK, segments carry their own time; only the SYN's round trip comes from here.
        let is_syn = una_before == 0;
        if let Some(sample) = sample
            && (is_syn || matches!(self.recovery, Recovery::Cumulative(_)))
        {
            self.rtt.sample(sample, Span { una_before, una: self.una, nxt: self.max });
        }
        if is_syn {
            self.rtt.opened();
            // By the host's own clock: that of timestamps may show less than it was, or nothing.
            let exact = timed.map(|timed| now.saturating_since(timed.1));
            self.control.opened(now, exact.or(sample));
        }
    }

    /// What the ACK means for recovery: bytes by which the window may grow, and a sample.
    fn recover<const MEASURED: bool>(
        &mut self,
        now: Instant,
        ack: &Ack<'_>,
        una_before: Position,
        repeats: bool,
    ) -> (u64, Option<Duration>) {
        let acked = self.una - una_before;
        // The SYN is not data.
        let acked_data = if una_before == 0 { acked.saturating_sub(1) } else { acked };
        match &mut self.recovery {
            Recovery::Cumulative(cumulative) => {
                if acked_data > 0 {
                    return (cumulative.acked(self.una, acked_data, self.segment), None);
                }
                // RFC 5681, section 2: a duplicate comes while data is outstanding.
                if repeats && una_before > 0 && self.max > self.una {
                    let began =
                        cumulative.duplicate(self.una, self.max, self.segment, &mut self.control);
                    self.counters.fast_recoveries += u64::from(began);
                    if MEASURED {
                        self.control.note_duplicate(self.max - self.una);
                    }
                }
                (0, None)
            }
            Recovery::Selective(selective) => {
                let news = AckNews {
                    now,
                    una: self.una,
                    una_before,
                    nxt: self.max,
                    sack: ack.sack,
                    duplicate: ack.duplicate,
                    plain_duplicate: repeats && ack.sack.is_empty(),
                    echo: ack.timestamp_rtt.map(|rtt| echoed(now, rtt)),
                    may_send_new: self.written > self.max && self.edge > self.max,
                };
                let verdict = selective.on_ack::<MEASURED>(&news, &mut self.control, &self.rtt);
                self.counters.fast_recoveries += u64::from(verdict.recovery_began);
                match verdict.undone {
                    None => {}
                    Some(Undone::Recovery) => self.counters.spurious_recoveries += 1,
                    Some(Undone::Timeout) => {
                        self.counters.spurious_timeouts += 1;
                        self.timeouts_in_a_row = 0;
                    }
                }
                if verdict.probe_ended && acked == 0 {
                    self.probe_at = (self.una < self.max).then(|| self.probe_time(now));
                }
                // An ACK of repeated data alone gives a sample only by its timestamp.
                if let Some(sample) = verdict.rtt.or(ack.timestamp_rtt.filter(|_| acked_data > 0)) {
                    self.rtt.sample(sample, Span { una_before, una: self.una, nxt: self.max });
                }
                if verdict.answer_is_early {
                    self.timeout_at = Some(self.rtt.deadline(now));
                }
                (verdict.growth_bytes.min(acked_data), verdict.rtt)
            }
        }
    }

    /// RFC 7661's concern: a window that nobody fills must not grow. In slow start it may reach
    /// twice what was in flight.
    fn window_was_used(&self, flight: u64) -> bool {
        self.limited_by_window || (self.control.in_slow_start() && self.control.cwnd() < 2 * flight)
    }

    /// A closed window opened: what a probe sent beyond it may have been refused.
    fn window_opened(&mut self, now: Instant) {
        self.timeouts_in_a_row = 0;
        self.rtt.path_works();
        if self.una < self.max {
            self.resend_everything(now, None);
            self.restart_timers(now);
        }
    }

    fn resend_everything(&mut self, now: Instant, expiry: Option<Expiry>) {
        match &mut self.recovery {
            Recovery::Cumulative(cumulative) => {
                cumulative.timed_out(self.max);
                self.forget_measures();
                self.nxt = self.una;
            }
            Recovery::Selective(selective) => selective.timed_out(now, self.max, expiry),
        }
    }

    /// Whether there is nothing to send and nothing outstanding: so it is with the receiving side of a
    /// transfer nearly all the time. A probe that is due has something outstanding, or to be sent.
    #[must_use]
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.una == self.max && self.una == self.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::offset_of;

    #[test]
    fn what_acks_touch_is_in_five_lines() {
        assert_eq!(offset_of!(Sender, nxt), 64);
        assert_eq!(offset_of!(Sender, control), 128);
        assert_eq!((offset_of!(Sender, rtt) + RttEstimator::OFTEN_USED) % 64, 0);
        assert_eq!(offset_of!(Sender, recovery) % 64, 0);
    }
}
