//! The sender of a connection: what may be sent, what must be retransmitted, and when the next
//! timer expires. It uses positions only; the endpoint converts them to segments.

mod buffer;
mod cwnd_use;
mod idle;
mod limits;
mod paced;
mod probes;
mod sending;
mod timers;

use super::config::{Config, CongestionName, StackVariant};
use super::congestion::{Acked, Control, LossState};
use super::cumulative::Cumulative;
use super::exchange::{Ack, Outgoing, Run, SenderCounters};
use super::rtt::{RttEstimator, Span};
use super::selective::{AckInfo, Expiry, Selective};
use super::undo::{Undone, echoed_time};
use crate::packet::LimitedBy;
use crate::packet::seq::Position;
use crate::rng::Rng;
use crate::time::{Duration, Instant};
use idle::CoarseInstant;
pub(super) use limits::LimitTimes;

/// Loss detection and recovery. `repr(u8)` places the discriminant first instead of in a niche.
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
/// Fields are grouped into the cache lines of [`Endpoint`](super::Endpoint): every segment uses the
/// first, every ACK of a transfer the second and one line each of the parts.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub struct Sender {
    /// SND.UNA: everything before it was acknowledged.
    una: Position,
    /// SND.MAX: the end of everything ever sent.
    max: Position,
    /// The end of everything to be sent so far: of the data, or of the FIN after it.
    end: Position,
    /// The right edge of the peer's window, and the largest window it advertised (MAX.SND.WND).
    edge: Position,
    window_max: u32,
    /// The most outstanding data in this [flight](Self::flight_end), while not cwnd-limited
    /// (`max_packets_out`).
    max_outstanding: u32,
    /// When something was last sent, acknowledged or written; the persist timer starts here.
    last_activity: Instant,
    /// When the retransmission timer expires; `None` with nothing outstanding. A later RTT sample
    /// does not move it, only the next one.
    timeout_at: Option<Instant>,
    closed: bool,
    /// Whether RACK-TLP is used: reordering timer and tail loss probes.
    rack_tlp: bool,
    tlp_due: bool,
    window_probe_due: bool,
    /// Whether cwnd, not the application or the peer, stopped a transmission of this
    /// [flight](Self::flight_end) (`is_cwnd_limited`).
    cwnd_limited: bool,
    /// Whether new data were sent since transmission last stopped.
    sent_new: bool,
    /// Whether transmission is paced and delivery rates are sampled (BBR).
    paced: bool,
    /// What has stopped transmission since it was last possible.
    limited_by: LimitedBy,
    /// SND.NXT; reset to SND.UNA after a timeout without SACK.
    nxt: Position,
    /// The end of the data that the application wrote.
    written: Position,
    send_buffer: u64,
    /// Until SND.UNA reaches it, the fields that say whether cwnd limits the sender can change only to a
    /// fuller use of cwnd (`cwnd_usage_seq`).
    flight_end: Position,
    /// When a tail loss probe is due, if one may be sent then. An RTT sample does not move it
    /// either.
    tlp_at: Option<Instant>,
    /// When SND.UNA last advanced over data.
    last_advance: Option<Instant>,
    /// Segments sent with data or a FIN.
    segments: u64,
    /// When data was last sent.
    last_sent: CoarseInstant,
    segment: u16,
    /// Whether the retransmission timer has expired since SND.UNA last advanced.
    timed_out: bool,
    control: Control,
    rtt: RttEstimator,
    recovery: Recovery,
    /// The counters except `segments`.
    counters: SenderCounters,
    /// The segment whose RTT is measured without SACK: its end and when it was sent.
    timed: Option<(Position, Instant)>,
    /// Whether [`StackVariant::Linux`] is set.
    linux: bool,
    /// Bytes of options that currently reduce the payload of new data.
    option_bytes: u64,
    /// SND.MAX at the last reduction of cwnd for an ECN echo: until more is acknowledged, further
    /// echoes report the same congestion.
    cwr_until: Position,
    limit_times: LimitTimes,
    /// TCP_NOTSENT_LOWAT: the most unsent data at which the send buffer has room.
    unsent_low_water: u64,
}

impl Sender {
    /// A sender that has sent nothing.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        let newreno = config.congestion != CongestionName::Reno;
        let paced = config.congestion == CongestionName::Bbr;
        let cumulative = Cumulative::new(newreno, config.limited_transmit, paced);
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
            segment: config.mss,
            control: Control::new(config),
            rtt: RttEstimator::new(config.rto, config.stack),
            recovery: Recovery::Cumulative(cumulative),
            timeout_at: None,
            tlp_at: None,
            last_activity: Instant::START,
            timed: None,
            last_advance: None,
            segments: 0,
            rack_tlp: false,
            tlp_due: false,
            window_probe_due: false,
            cwnd_limited: false,
            sent_new: false,
            max_outstanding: 0,
            flight_end: 0,
            paced,
            limited_by: LimitedBy::Application,
            limit_times: LimitTimes::default(),
            unsent_low_water: u64::MAX,
            timed_out: false,
            last_sent: CoarseInstant::default(),
            cwr_until: 0,
            counters: SenderCounters::default(),
            linux: config.stack == StackVariant::Linux,
            option_bytes: 0,
        }
    }

    /// Sets by how many bytes options reduce the payload of new data.
    pub(super) fn reserve_options(&mut self, bytes: u64) {
        self.option_bytes = bytes;
    }

    /// Applies the negotiated options: the payload of a full segment, SACK and timestamps.
    pub fn negotiated(&mut self, segment: u64, sack: bool, timestamps: bool, config: &Config) {
        self.segment = u16::try_from(segment).expect("an MSS has 16 bits");
        self.rtt.negotiated(segment, timestamps);
        self.control.negotiated(segment);
        if sack {
            let selective = Selective::new(segment, config, self.paced);
            self.recovery = Recovery::Selective(selective);
            self.rack_tlp = config.rack_tlp;
        }
    }

    /// Sets the random stream of the congestion control.
    pub(super) fn set_rng(&mut self, rng: Rng) {
        self.control.set_rng(rng);
    }

    /// Payload of a full segment.
    #[inline]
    fn segment(&self) -> u64 {
        self.segment.into()
    }

    /// SND.UNA.
    #[must_use]
    pub fn una(&self) -> Position {
        self.una
    }

    /// SND.MAX: the end of everything ever sent.
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
    pub fn is_established(&self) -> bool {
        self.una > 0
    }

    /// Whether all data and the FIN were acknowledged.
    #[must_use]
    pub fn finished(&self) -> bool {
        self.closed && self.una > self.written
    }

    /// Bytes in flight as counted by loss recovery.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        match &self.recovery {
            Recovery::Cumulative(_) => self.nxt - self.una,
            Recovery::Selective(selective) => selective.pipe(),
        }
    }

    /// The congestion control.
    #[must_use]
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// The RTT estimator.
    #[must_use]
    pub fn rtt(&self) -> &RttEstimator {
        &self.rtt
    }

    /// When SND.UNA last advanced over data; a FIN is not data.
    pub(super) fn last_advance(&self) -> Option<Instant> {
        self.last_advance
    }

    /// The counters.
    #[must_use]
    pub fn counters(&self) -> SenderCounters {
        SenderCounters { segments: self.segments, ..self.counters }
    }

    fn update_window(&mut self, position: Position, window: u64) {
        if position + window > self.edge {
            self.edge = position + window;
        }
        // A window has at most 30 bits (RFC 7323, section 2.3).
        self.window_max = self.window_max.max(u32::try_from(window).unwrap_or(u32::MAX));
    }

    /// Processes an ACK that can only update the window, because nothing is outstanding: nearly
    /// every segment at the receiver of a transfer. Returns false, without effect, for any other
    /// ACK.
    #[inline]
    pub fn on_window_update(&mut self, now: Instant, position: Position, window: u64) -> bool {
        let nothing_outstanding = self.una == self.max && position == self.una;
        if nothing_outstanding && !self.tlp_outstanding() {
            self.last_activity = now;
            self.update_window(position, window);
            return true;
        }
        false
    }

    /// The fast path of [`Sender::on_ack`]: an in-order ACK of the next `acked` positions without
    /// loss or retransmission, nearly every ACK of a transfer. Returns false, without effect, for
    /// any other ACK and with rate sampling.
    #[inline]
    pub(super) fn on_ack_fast_path(
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
                if !cumulative.fast_path_ok(position) {
                    return false;
                }
                let timed = self.timed.take_if(|timed| position >= timed.0);
                let sample = timestamp_rtt.or(timed.map(|timed| now.saturating_since(timed.1)));
                (timestamp_rtt, sample)
            }
            Recovery::Selective(selective) => {
                if !selective.fast_path_ok() {
                    return false;
                }
                let rtt = selective.on_ack_fast_path(now, position, &self.rtt).or(timestamp_rtt);
                (rtt, rtt)
            }
        };
        self.last_activity = now;
        self.update_window(position, window);
        self.advance_una(now, position);
        self.nxt = self.nxt.max(position);
        self.timed_out = false;
        if let Some(sample) = sample {
            self.rtt.sample(sample, Span { una_before, una: position, nxt: self.max });
        }
        self.restart_timers(now);
        let (srtt, una, nxt) = (self.rtt.srtt(), self.una, self.max);
        let acked = Acked { now, bytes: acked, rtt, srtt, una, nxt };
        if self.is_cwnd_limited() {
            self.control.on_ack(&acked);
        } else {
            self.control.observe_ack(&acked);
        }
        if self.limited_by == LimitedBy::Recovery {
            self.update_idle_limit(now);
        }
        true
    }

    /// Processes the ECE flag of an ACK up to `position`, before [`Sender::on_ack`]. cwnd is
    /// reduced as for a loss, once per window of data (RFC 3168, section 6.1.2; Linux,
    /// `tcp_enter_cwr`), unless recovery has reduced it. Returns whether the next new data must
    /// carry CWR.
    #[cold]
    #[inline(never)]
    pub(super) fn on_ecn_echo(&mut self, position: Position) -> bool {
        let outstanding = self.max - self.una;
        if outstanding == 0 || position < self.una || position > self.max {
            return false;
        }
        if matches!(self.recovery, Recovery::Cumulative(_)) {
            // cwnd does not grow with an ACK that carries ECE.
            self.cwnd_limited = false;
        }
        if position <= self.cwr_until {
            return false;
        }
        self.cwr_until = self.max;
        match &mut self.recovery {
            // BBR version 1 does not react to marks.
            _ if self.paced => {}
            Recovery::Cumulative(cumulative) => {
                if cumulative.loss_state(self.una) == LossState::Open {
                    self.control.on_congestion(outstanding);
                }
            }
            Recovery::Selective(selective) => {
                selective.enter_cwr(self.max, self.una, &mut self.control);
            }
        }
        true
    }

    /// Processes an ACK.
    pub fn on_ack(&mut self, now: Instant, ack: &Ack<'_>) {
        if ack.position > self.max || ack.position < self.una {
            return;
        }
        if self.paced {
            self.on_ack_sampled(now, ack);
            return;
        }
        let (growth_bytes, rtt) = self.process_ack::<false>(now, ack);
        let acked = Acked {
            now,
            bytes: growth_bytes,
            rtt: rtt.or(ack.timestamp_rtt),
            srtt: self.rtt.srtt(),
            una: self.una,
            nxt: self.max,
        };
        if growth_bytes > 0 && self.is_cwnd_limited() {
            self.control.on_ack(&acked);
        } else {
            self.control.observe_ack(&acked);
        }
    }

    /// Processes an ACK except for the growth of cwnd. Returns by how many bytes cwnd may grow, and
    /// an RTT sample of a segment that was sent once.
    // Inlined twice, so that the usual case has no rate sampling.
    #[inline(always)]
    fn process_ack<const RATE_SAMPLING: bool>(
        &mut self,
        now: Instant,
        ack: &Ack<'_>,
    ) -> (u64, Option<Duration>) {
        self.last_activity = now;
        let edge_before = self.edge;
        self.update_window(ack.position, ack.window);
        let una_before = self.una;
        let advanced = ack.position > una_before;
        let is_duplicate = !advanced && ack.pure && self.edge == edge_before;
        if advanced {
            self.advance::<RATE_SAMPLING>(now, ack, una_before);
        } else if edge_before <= self.una && self.edge > self.una {
            self.on_window_opened(now);
        }
        let recovered = self.update_recovery::<RATE_SAMPLING>(now, ack, una_before, is_duplicate);
        if advanced {
            // After the RTT sample, so that the timer does not restart with a backed-off timeout.
            self.restart_timers(now);
        }
        self.update_idle_limit(now);
        recovered
    }

    /// Whether a tail loss probe is outstanding, so that even a duplicate ACK matters.
    fn tlp_outstanding(&self) -> bool {
        // Avoids touching the cache line of `recovery` where probes are not used.
        if !self.rack_tlp {
            return false;
        }
        match &self.recovery {
            Recovery::Cumulative(_) => false,
            Recovery::Selective(selective) => selective.tlp_outstanding(),
        }
    }

    fn advance_una(&mut self, now: Instant, una: Position) {
        self.una = una;
        if self.acked_bytes() > 0 {
            self.last_advance = Some(now);
        }
    }

    /// Advances SND.UNA to the ACK and takes RTT samples.
    #[inline]
    fn advance<const RATE_SAMPLING: bool>(
        &mut self,
        now: Instant,
        ack: &Ack<'_>,
        una_before: Position,
    ) {
        self.advance_una(now, ack.position);
        self.nxt = self.nxt.max(self.una);
        self.timed_out = false;
        let timed = self.timed.filter(|timed| self.una >= timed.0);
        if timed.is_some() {
            self.timed = None;
        }
        let sample = ack.timestamp_rtt.or(timed.map(|timed| now.saturating_since(timed.1)));
        // With SACK, RTT samples come from the scoreboard; only the SYN's is taken here.
        let is_syn = una_before == 0;
        if let Some(sample) = sample
            && (is_syn || matches!(self.recovery, Recovery::Cumulative(_)))
        {
            self.rtt.sample(sample, Span { una_before, una: self.una, nxt: self.max });
        }
        if is_syn {
            self.rtt.on_established();
            // By the host's own clock: the timestamp clock is coarser.
            let exact = timed.map(|timed| now.saturating_since(timed.1));
            self.control.on_established(now, exact.or(sample));
        }
    }

    /// Passes the ACK to loss recovery. Returns by how many bytes cwnd may grow, and an RTT sample.
    fn update_recovery<const RATE_SAMPLING: bool>(
        &mut self,
        now: Instant,
        ack: &Ack<'_>,
        una_before: Position,
        is_duplicate: bool,
    ) -> (u64, Option<Duration>) {
        let acked = self.una - una_before;
        // The SYN is not data.
        let acked_data = if una_before == 0 { acked.saturating_sub(1) } else { acked };
        match &mut self.recovery {
            Recovery::Cumulative(cumulative) => {
                if acked_data > 0 {
                    return (cumulative.acked(self.una, acked_data, self.segment.into()), None);
                }
                // RFC 5681, section 2: an ACK is a duplicate only while data is outstanding.
                if is_duplicate && una_before > 0 && self.max > self.una {
                    let segment = self.segment.into();
                    let began =
                        cumulative.duplicate(self.una, self.max, segment, &mut self.control);
                    self.counters.fast_recoveries += u64::from(began);
                    if RATE_SAMPLING {
                        self.control.on_duplicate(self.max - self.una);
                    }
                }
                (0, None)
            }
            Recovery::Selective(selective) => {
                let info = AckInfo {
                    now,
                    una: self.una,
                    una_before,
                    nxt: self.max,
                    sack: ack.sack,
                    dsack: ack.dsack,
                    plain_duplicate: is_duplicate && ack.sack.is_empty(),
                    echo: ack.timestamp_rtt.map(|rtt| echoed_time(now, rtt)),
                    may_send_new: self.written > self.max && self.edge > self.max,
                };
                let outcome =
                    selective.on_ack::<RATE_SAMPLING>(&info, &mut self.control, &self.rtt);
                self.counters.fast_recoveries += u64::from(outcome.recovery_began);
                match outcome.undone {
                    None => {}
                    Some(Undone::Recovery) => self.counters.spurious_recoveries += 1,
                    Some(Undone::Timeout) => {
                        self.counters.spurious_timeouts += 1;
                        self.timed_out = false;
                    }
                }
                if outcome.undone.is_some() {
                    // Recovery has replaced a pending probe by the retransmission timer. Progress or
                    // new data schedules another (`tcp_schedule_loss_probe`).
                    self.tlp_at = None;
                }
                if outcome.tlp_ended && acked == 0 {
                    self.tlp_at = (self.una < self.max).then(|| self.tlp_expiry(now));
                }
                // An ACK of only retransmitted data gives a sample only by its timestamp.
                if let Some(sample) = outcome.rtt.or(ack.timestamp_rtt.filter(|_| acked_data > 0)) {
                    self.rtt.sample(sample, Span { una_before, una: self.una, nxt: self.max });
                }
                if outcome.rearm_rto {
                    self.timeout_at = Some(self.rtt.deadline(now));
                }
                (outcome.growth_bytes.min(acked_data), outcome.rtt)
            }
        }
    }

    /// A zero window reopened: a window probe beyond it may have been dropped.
    fn on_window_opened(&mut self, now: Instant) {
        self.timed_out = false;
        self.rtt.reset_backoff();
        if self.una < self.max {
            self.retransmit_all(now, None);
            self.restart_timers(now);
        }
    }

    fn retransmit_all(&mut self, now: Instant, expiry: Option<Expiry>) {
        match &mut self.recovery {
            Recovery::Cumulative(cumulative) => {
                cumulative.timed_out(self.max);
                self.reset_rate_samples();
                self.nxt = self.una;
            }
            Recovery::Selective(selective) => selective.timed_out(now, self.max, expiry),
        }
    }

    /// Whether there is nothing to send and nothing outstanding, as nearly always at the receiver
    /// of a transfer. A due probe has something outstanding or to be sent.
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
    fn acks_use_five_cache_lines() {
        assert_eq!(offset_of!(Sender, nxt), 64);
        assert_eq!(offset_of!(Sender, control), 128);
        assert_eq!((offset_of!(Sender, rtt) + RttEstimator::HOT_OFFSET) % 64, 0);
        assert_eq!(offset_of!(Sender, recovery) % 64, 0);
    }
}
