//! BBR, version 1 (draft-cardwell-iccrg-bbr-congestion-control-00; Cardwell and others 2016;
//! Linux's `tcp_bbr.c`): cwnd and the pacing rate follow from a model of the path, which is the
//! maximum delivery rate of the last ten rounds and the minimum RTT of the last ten seconds.
//!
//! Quantities are bytes and bytes per second; gains are 256ths, as in Linux.

mod aggregation;
mod long_term;
mod max_filter;
#[cfg(test)]
mod tests;

use super::{LossState, Window};
use crate::rng::Rng;
use crate::tcp::pacing::Pacer;
use crate::tcp::rate::{RateSample, RateSampler, per_second};
use crate::time::{Duration, Instant};

use aggregation::{Aggregation, bytes_in};
use long_term::LongTerm;
use max_filter::MaxFilter;

const UNIT: u64 = 256;
/// 2 / ln 2: the minimum gain that lets the rate double each round.
const HIGH_GAIN: u64 = UNIT * 2_885 / 1_000 + 1;
/// The inverse of the high gain drains the queue of STARTUP in one round.
const DRAIN_GAIN: u64 = UNIT * 1_000 / 2_885;
const CWND_GAIN: u64 = 2 * UNIT;
const CYCLE: [u64; 8] = [UNIT * 5 / 4, UNIT * 3 / 4, UNIT, UNIT, UNIT, UNIT, UNIT, UNIT];
/// Length of the bandwidth filter in rounds: a gain cycle and two more.
const BANDWIDTH_ROUNDS: u64 = 10;
const MIN_RTT_WINDOW: Duration = Duration::from_secs(10);
const PROBE_RTT_TIME: Duration = Duration::from_millis(200);
/// The minimum cwnd and that of `PROBE_RTT`, in segments (`bbr_cwnd_min_target`).
const CWND_MIN_SEGMENTS: u64 = 4;
/// The pipe is full after this many rounds with less growth of the bandwidth.
const FULL_GROWTH: u64 = UNIT * 5 / 4;
const FULL_ROUNDS: u32 = 3;
/// The pacing rate is 1 percent below the bandwidth, so that queues drain in the long run.
const PACING_PERCENT: u64 = 99;
/// Before the first RTT sample: Linux's assumption for the pacing rate, and cwnd in segments.
const NOMINAL_RTT: Duration = Duration::from_millis(1);
const NOMINAL_SEGMENTS: u64 = 10;

/// An ACK, with the state of the connection after it.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::tcp) struct AckFacts {
    pub(in crate::tcp) now: Instant,
    pub(in crate::tcp) sample: Option<RateSample>,
    /// RTT of the most recently sent segment that was acknowledged, if it was sent once.
    pub(in crate::tcp) rtt: Option<Duration>,
    /// Whether the ACK may have been delayed.
    pub(in crate::tcp) maybe_delayed: bool,
    /// Bytes that this ACK delivered and showed to be lost.
    pub(in crate::tcp) acked: u64,
    pub(in crate::tcp) lost: u64,
    /// The totals of both, and the time of the latest delivery.
    pub(in crate::tcp) delivered: u64,
    pub(in crate::tcp) lost_total: u64,
    pub(in crate::tcp) delivered_at: Instant,
    pub(in crate::tcp) in_flight_before: u64,
    pub(in crate::tcp) in_flight: u64,
    pub(in crate::tcp) state: LossState,
}

/// The four modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tcp) enum Mode {
    Startup,
    Drain,
    /// With the phase of the gain cycle and its start.
    ProbeBandwidth(usize, Instant),
    ProbeRtt(ProbeRtt),
}

/// State of `PROBE_RTT`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::tcp) struct ProbeRtt {
    /// When `PROBE_RTT` may end; set once the flight is small.
    done_at: Option<Instant>,
    round_done: bool,
}

/// See the module's description.
#[derive(Clone, Debug)]
pub(in crate::tcp) struct Bbr {
    pub(in crate::tcp) rate: RateSampler,
    pub(in crate::tcp) pacer: Pacer,
    mode: Mode,
    bandwidths: MaxFilter,
    rounds: u64,
    /// The round ends when data sent after this total was delivered is acknowledged
    /// (`next_rtt_delivered`).
    round_end: u64,
    round_start: bool,
    min_rtt: Option<Duration>,
    min_rtt_at: Instant,
    has_seen_rtt: bool,
    full_bandwidth: u64,
    full_rounds: u32,
    pipe_filled: bool,
    /// cwnd before recovery or `PROBE_RTT`.
    prior_cwnd: u64,
    state: LossState,
    packet_conservation: bool,
    idle_restart: bool,
    aggregation: Aggregation,
    long_term: LongTerm,
    rng: Rng,
}

/// `value * gain / unit`, saturating.
fn scaled(value: u64, gain: u64, unit: u64) -> u64 {
    let product = u128::from(value) * u128::from(gain) / u128::from(unit);
    u64::try_from(product).unwrap_or(u64::MAX)
}

impl Bbr {
    pub(super) fn new() -> Self {
        Self {
            rate: RateSampler::default(),
            pacer: Pacer::new(0),
            mode: Mode::Startup,
            bandwidths: MaxFilter::default(),
            rounds: 0,
            round_end: 0,
            round_start: false,
            min_rtt: None,
            min_rtt_at: Instant::START,
            has_seen_rtt: false,
            full_bandwidth: 0,
            full_rounds: 0,
            pipe_filled: false,
            prior_cwnd: 0,
            state: LossState::Open,
            packet_conservation: false,
            idle_restart: false,
            aggregation: Aggregation::default(),
            long_term: LongTerm::default(),
            rng: Rng::stream(0, "bbr"),
        }
    }

    /// Sets the random stream of the gain cycle's initial phase.
    pub(super) fn set_rng(&mut self, rng: Rng) {
        self.rng = rng;
    }

    /// The handshake completed, with an RTT of `rtt` if known.
    pub(super) fn on_established(&mut self, now: Instant, rtt: Option<Duration>, window: &Window) {
        self.min_rtt = rtt;
        self.min_rtt_at = now;
        self.aggregation.restart(now);
        // Linux checks for an idle application before the first write, so the start is
        // application-limited.
        self.rate.set_app_limited(0);
        self.init_pacing_rate(rtt, window);
    }

    /// The initial pacing rate: cwnd per RTT, times the high gain.
    fn init_pacing_rate(&mut self, rtt: Option<Duration>, window: &Window) {
        self.has_seen_rtt = rtt.is_some();
        let bandwidth = per_second(window.cwnd, rtt.unwrap_or(NOMINAL_RTT));
        self.pacer.set_rate(paced(bandwidth, HIGH_GAIN));
    }

    /// The mode.
    pub(in crate::tcp) fn mode(&self) -> Mode {
        self.mode
    }

    /// The minimum RTT.
    #[cfg(test)]
    pub(in crate::tcp) fn min_rtt(&self) -> Option<Duration> {
        self.min_rtt
    }

    /// The estimated bandwidth.
    pub(in crate::tcp) fn bandwidth(&self) -> u64 {
        self.long_term.bandwidth().unwrap_or_else(|| self.bandwidths.max())
    }

    fn pacing_gain(&self) -> u64 {
        match self.mode {
            Mode::Startup => HIGH_GAIN,
            Mode::Drain => DRAIN_GAIN,
            Mode::ProbeBandwidth(..) if self.long_term.bandwidth().is_some() => UNIT,
            Mode::ProbeBandwidth(phase, _) => CYCLE[phase],
            Mode::ProbeRtt(_) => UNIT,
        }
    }

    fn cwnd_gain(&self) -> u64 {
        match self.mode {
            Mode::Startup | Mode::Drain => HIGH_GAIN,
            Mode::ProbeBandwidth(..) => CWND_GAIN,
            Mode::ProbeRtt(_) => UNIT,
        }
    }

    /// Updates the model with an ACK, then the pacing rate and cwnd.
    pub(in crate::tcp) fn update(&mut self, facts: &AckFacts, window: &mut Window) {
        // Linux updates the gains last, so the checks before use the previous one.
        let gain_before = self.pacing_gain();
        self.update_bandwidth(facts);
        if facts.sample.is_some() && facts.acked > 0 {
            let (bandwidth, sizes) = (self.bandwidth(), (window.cwnd, window.segment));
            let (at, start) = (facts.delivered_at, self.round_start);
            self.aggregation.acked(at, facts.acked, bandwidth, start, sizes);
        }
        if let Mode::ProbeBandwidth(phase, since) = self.mode
            && self.phase_is_over(facts, gain_before, since, window.segment)
        {
            self.mode = Mode::ProbeBandwidth((phase + 1) % CYCLE.len(), facts.delivered_at);
        }
        self.check_full_bandwidth(facts);
        self.check_drain(facts, gain_before, window);
        self.update_min_rtt(facts, window);
        self.set_pacing_rate(facts.rtt, self.pacing_gain(), window);
        self.set_cwnd(facts, window);
    }

    fn update_bandwidth(&mut self, facts: &AckFacts) {
        self.round_start = false;
        let Some(sample) = facts.sample else { return };
        if sample.prior_delivered >= self.round_end {
            self.round_end = facts.delivered;
            self.rounds += 1;
            self.round_start = true;
            self.packet_conservation = false;
        }
        self.update_long_term(facts, self.round_start);
        let bandwidth = sample.bandwidth();
        if !sample.app_limited || bandwidth >= self.bandwidths.max() {
            self.bandwidths.add(BANDWIDTH_ROUNDS, self.rounds, bandwidth);
        }
    }

    /// Enters `PROBE_BW` in a random phase other than the one that drains.
    fn probe_bandwidth(&mut self, now: Instant) {
        let back = usize::try_from(self.rng.below(CYCLE.len() as u64 - 1)).expect("below seven");
        self.mode = Mode::ProbeBandwidth((CYCLE.len() - back) % CYCLE.len(), now);
    }

    fn phase_is_over(&self, facts: &AckFacts, gain: u64, since: Instant, segment: u64) -> bool {
        let lasted = facts.delivered_at.saturating_since(since);
        let full_length = self.min_rtt.is_some_and(|min_rtt| lasted > min_rtt);
        if gain == UNIT {
            return full_length;
        }
        let in_net = self.in_net_at_edt(facts.now, facts.in_flight_before, gain, segment);
        let bandwidth = self.bandwidths.max();
        if gain > UNIT {
            // A short queue may drop packets before the target is reached.
            return full_length
                && (facts.lost > 0 || in_net >= self.inflight(bandwidth, gain, segment));
        }
        full_length || in_net <= self.inflight(bandwidth, UNIT, segment)
    }

    /// STARTUP ends when the bandwidth stops growing.
    fn check_full_bandwidth(&mut self, facts: &AckFacts) {
        let app_limited = facts.sample.is_some_and(|sample| sample.app_limited);
        if self.pipe_filled || !self.round_start || app_limited {
            return;
        }
        let bandwidth = self.bandwidths.max();
        if bandwidth >= scaled(self.full_bandwidth, FULL_GROWTH, UNIT) {
            self.full_bandwidth = bandwidth;
            self.full_rounds = 0;
            return;
        }
        self.full_rounds += 1;
        self.pipe_filled = self.full_rounds >= FULL_ROUNDS;
    }

    /// DRAIN ends when at most the BDP is in flight.
    fn check_drain(&mut self, facts: &AckFacts, gain: u64, window: &mut Window) {
        let target = self.inflight(self.bandwidths.max(), UNIT, window.segment);
        if self.mode == Mode::Startup && self.pipe_filled {
            self.mode = Mode::Drain;
            window.ssthresh = Some(target);
        }
        if self.mode == Mode::Drain
            && self.in_net_at_edt(facts.now, facts.in_flight, gain, window.segment) <= target
        {
            self.probe_bandwidth(facts.delivered_at);
        }
    }

    fn update_min_rtt(&mut self, facts: &AckFacts, window: &mut Window) {
        let expired = facts.now.saturating_since(self.min_rtt_at) > MIN_RTT_WINDOW;
        if let Some(rtt) = facts.rtt
            && (self.min_rtt.is_none_or(|min| rtt < min) || expired && !facts.maybe_delayed)
        {
            self.min_rtt = Some(rtt);
            self.min_rtt_at = facts.now;
        }
        if expired && !self.idle_restart && !matches!(self.mode, Mode::ProbeRtt(_)) {
            self.mode = Mode::ProbeRtt(ProbeRtt::default());
            self.save_cwnd(window.cwnd);
        }
        if let Mode::ProbeRtt(mut visit) = self.mode {
            self.rate.set_app_limited(facts.in_flight);
            if visit.done_at.is_none() {
                if facts.in_flight <= CWND_MIN_SEGMENTS * window.segment {
                    visit =
                        ProbeRtt { done_at: Some(facts.now + PROBE_RTT_TIME), round_done: false };
                    self.round_end = facts.delivered;
                }
            } else {
                visit.round_done |= self.round_start;
            }
            self.mode = Mode::ProbeRtt(visit);
            if visit.round_done {
                self.leave_probe_rtt(facts.now, facts.delivered_at, window);
            }
        }
        if facts.sample.is_some_and(|sample| sample.delivered > 0) {
            self.idle_restart = false;
        }
    }

    /// Leaves `PROBE_RTT` once it has lasted long enough.
    fn leave_probe_rtt(&mut self, now: Instant, delivered_at: Instant, window: &mut Window) {
        let Mode::ProbeRtt(visit) = self.mode else { return };
        if visit.done_at.is_none_or(|done| now <= done) {
            return;
        }
        self.min_rtt_at = now;
        window.cwnd = window.cwnd.max(self.prior_cwnd);
        if self.pipe_filled {
            self.probe_bandwidth(delivered_at);
        } else {
            self.mode = Mode::Startup;
        }
    }

    /// The bandwidth-delay product times `gain`.
    fn bdp(&self, bandwidth: u64, gain: u64, segment: u64) -> u64 {
        let Some(min_rtt) = self.min_rtt else { return NOMINAL_SEGMENTS * segment };
        scaled(bytes_in(bandwidth, min_rtt), gain, UNIT)
    }

    /// `bbr_quantization_budget`: three bursts more, in whole pairs of segments, to keep the path
    /// busy although hosts send and acknowledge in bursts.
    fn quantized(&self, bytes: u64, segment: u64) -> u64 {
        let max_segments = CWND_MAX / segment;
        let segments = bytes.div_ceil(segment) + 3 * self.pacer.burst_segments(segment);
        let probes_up = matches!(self.mode, Mode::ProbeBandwidth(0, _));
        let more = if probes_up { 2 } else { 0 };
        (segments.next_multiple_of(2) + more).min(max_segments) * segment
    }

    fn inflight(&self, bandwidth: u64, gain: u64, segment: u64) -> u64 {
        self.quantized(self.bdp(bandwidth, gain, segment).min(CWND_MAX), segment)
    }

    /// Bytes that will be in flight at the next paced transmission, including its burst if the
    /// flight is to grow (`bbr_packets_in_net_at_edt`).
    fn in_net_at_edt(&self, now: Instant, in_flight: u64, gain: u64, segment: u64) -> u64 {
        let burst = if gain > UNIT { self.pacer.burst_segments(segment) * segment } else { 0 };
        let wait = self.pacer.next().saturating_since(now);
        (in_flight + burst).saturating_sub(bytes_in(self.bandwidth(), wait))
    }

    fn set_pacing_rate(&mut self, rtt: Option<Duration>, gain: u64, window: &Window) {
        if !self.has_seen_rtt && rtt.is_some() {
            self.init_pacing_rate(rtt, window);
        }
        let rate = paced(self.bandwidth(), gain);
        if self.pipe_filled || rate > self.pacer.rate() {
            self.pacer.set_rate(rate);
        }
    }

    fn set_cwnd(&mut self, facts: &AckFacts, window: &mut Window) {
        let segment = window.segment;
        if facts.acked > 0 {
            self.recover_or_restore(facts, window);
            if !self.packet_conservation {
                let bdp = self.bdp(self.bandwidth(), self.cwnd_gain(), segment);
                let more =
                    if self.pipe_filled { self.aggregation.budget(self.bandwidth()) } else { 0 };
                let target = self.quantized(bdp.min(CWND_MAX) + more, segment);
                if self.pipe_filled {
                    window.cwnd = (window.cwnd + facts.acked).min(target);
                } else if window.cwnd < target || facts.delivered < NOMINAL_SEGMENTS * segment {
                    window.cwnd += facts.acked;
                }
                window.cwnd = window.cwnd.max(CWND_MIN_SEGMENTS * segment);
            }
        }
        window.cwnd = window.cwnd.min(CWND_MAX);
        if matches!(self.mode, Mode::ProbeRtt(_)) {
            window.cwnd = window.cwnd.min(CWND_MIN_SEGMENTS * segment);
        }
    }

    /// The first round of recovery conserves packets; the following ones grow towards the target as
    /// in slow start; its end restores cwnd.
    fn recover_or_restore(&mut self, facts: &AckFacts, window: &mut Window) {
        if facts.lost > 0 {
            window.cwnd = window.cwnd.saturating_sub(facts.lost).max(window.segment);
        }
        let before = core::mem::replace(&mut self.state, facts.state);
        if facts.state == LossState::Recovery && before != LossState::Recovery {
            self.packet_conservation = true;
            self.round_end = facts.delivered;
            window.cwnd = facts.in_flight + facts.acked;
        } else if facts.state == LossState::Open && before != LossState::Open {
            window.cwnd = window.cwnd.max(self.prior_cwnd);
            self.packet_conservation = false;
        }
        if self.packet_conservation {
            window.cwnd = window.cwnd.max(facts.in_flight + facts.acked);
        }
    }

    /// Loss recovery begins.
    pub(super) fn save_cwnd(&mut self, cwnd: u64) {
        let good = self.state == LossState::Open && !matches!(self.mode, Mode::ProbeRtt(_));
        self.prior_cwnd = if good { cwnd } else { self.prior_cwnd.max(cwnd) };
    }

    /// The retransmission timer expired: cwnd becomes one segment, and the full-pipe check
    /// restarts.
    pub(super) fn timed_out(&mut self, window: &mut Window, repeated: bool) {
        if !repeated {
            self.save_cwnd(window.cwnd);
        }
        self.state = LossState::Loss;
        self.full_bandwidth = 0;
        self.packet_conservation = false;
        window.cwnd = window.segment;
    }

    /// Everything outstanding at a timeout counts as lost, `lost_total` bytes in total. For the
    /// long-term bandwidth that ends a round with loss.
    pub(in crate::tcp) fn on_timeout_loss(&mut self, now: Instant, lost_total: u64) {
        let facts = AckFacts {
            now,
            lost: 1,
            lost_total,
            delivered: self.rate.delivered(),
            delivered_at: self.rate.delivered_at(),
            ..AckFacts::default()
        };
        self.update_long_term(&facts, true);
    }

    fn update_long_term(&mut self, facts: &AckFacts, round_start: bool) {
        let probing = matches!(self.mode, Mode::ProbeBandwidth(..));
        if self.long_term.update(facts, round_start, probing) {
            self.probe_bandwidth(facts.delivered_at);
        }
    }

    /// A transmission follows an idle period with nothing outstanding.
    pub(in crate::tcp) fn on_idle_restart(&mut self, now: Instant, window: &mut Window) {
        if !self.rate.is_app_limited() {
            return;
        }
        self.idle_restart = true;
        self.aggregation.restart(now);
        match self.mode {
            Mode::ProbeBandwidth(..) => self.set_pacing_rate(None, UNIT, window),
            Mode::ProbeRtt(_) => self.leave_probe_rtt(now, self.rate.delivered_at(), window),
            Mode::Startup | Mode::Drain => {}
        }
    }
}

/// Upper limit above any buffer; prevents overflow of sums.
const CWND_MAX: u64 = 1 << 40;

/// The pacing rate for a bandwidth.
fn paced(bandwidth: u64, gain: u64) -> u64 {
    scaled(scaled(bandwidth, gain, UNIT), PACING_PERCENT, 100)
}
