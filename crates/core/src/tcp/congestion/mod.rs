//! Congestion control: how much may be in flight.
//!
//! [`Control`] takes events (ACK, congestion, timeout) and provides cwnd. Slow start, with or
//! without HyStart++, is shared by most algorithms; [`Avoidance`] is what differs, and
//! `Algorithm` is the closed list of implementations. With BBR, each ACK sets cwnd and the pacing
//! rate instead.

pub(in crate::tcp) mod bbr;
mod cubic;
mod cubic_linux;
mod hybla;
mod hystart;
mod hystart_linux;
mod reno;
mod vegas;
mod westwood;

use super::config::{Config, CongestionName, StackVariant};
use crate::packet::seq::Position;
use crate::rng::Rng;
use crate::time::{Duration, Instant};

use bbr::Bbr;
use cubic::Cubic;
use cubic_linux::LinuxCubic;
use hybla::Hybla;
use hystart::HyStart;
use hystart_linux::LinuxHyStart;
use reno::Reno;
use vegas::Vegas;
use westwood::Westwood;

/// An ACK as congestion control sees it.
#[derive(Clone, Copy, Debug)]
pub struct Acked {
    /// When it arrived.
    pub now: Instant,
    /// Data bytes newly acknowledged, cumulatively or selectively.
    pub bytes: u64,
    /// An RTT sample, if it gave one.
    pub rtt: Option<Duration>,
    /// The smoothed RTT.
    pub srtt: Option<Duration>,
    /// SND.UNA after it.
    pub una: Position,
    /// SND.NXT.
    pub nxt: Position,
}

/// cwnd and ssthresh.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// The congestion window (cwnd) in bytes.
    pub cwnd: u64,
    /// The slow-start threshold; `None` (infinite) until the first congestion.
    pub ssthresh: Option<u64>,
    /// Payload of a full segment.
    pub segment: u64,
}

/// The window before a reduction.
#[derive(Clone, Copy, Debug)]
pub(in crate::tcp) struct Prior {
    cwnd: u64,
    ssthresh: Option<u64>,
}

/// The loss recovery state of the sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LossState {
    /// No recovery is in progress.
    #[default]
    Open,
    /// Fast recovery.
    Recovery,
    /// Recovery after a retransmission timeout.
    Loss,
}

/// A congestion-avoidance algorithm.
pub trait Avoidance {
    /// Grows cwnd in congestion avoidance.
    fn grow(&mut self, window: &mut Window, acked: &Acked);

    /// Returns ssthresh after congestion with `flight` bytes outstanding.
    fn reduced(&mut self, window: &Window, flight: u64) -> u64;

    /// The retransmission timer expired.
    fn timed_out(&mut self) {}
}

/// The algorithms that a scenario can name. `repr(u8)` places the discriminant first instead of in
/// a niche.
#[derive(Clone, Debug)]
#[repr(u8)]
enum Algorithm {
    Reno(Reno),
    Cubic(Cubic),
    LinuxCubic(Box<LinuxCubic>),
    /// Boxed, to keep [`Control`] small for the common algorithms.
    Hybla(Box<Hybla>),
    Vegas(Box<Vegas>),
    Westwood(Box<Westwood>),
    Bbr(Box<Bbr>),
}

impl Avoidance for Algorithm {
    fn grow(&mut self, window: &mut Window, acked: &Acked) {
        match self {
            Self::Reno(reno) => reno.grow(window, acked),
            Self::Cubic(cubic) => cubic.grow(window, acked),
            Self::LinuxCubic(cubic) => cubic.grow(window, acked),
            Self::Hybla(_) | Self::Vegas(_) | Self::Westwood(_) | Self::Bbr(_) => {
                self.grow_boxed(window, acked);
            }
        }
    }

    fn reduced(&mut self, window: &Window, flight: u64) -> u64 {
        match self {
            Self::Reno(reno) => reno.reduced(window, flight),
            Self::Cubic(cubic) => cubic.reduced(window, flight),
            Self::LinuxCubic(cubic) => cubic.reduced(window, flight),
            Self::Hybla(hybla) => hybla.reduced(window, flight),
            Self::Vegas(vegas) => vegas.reduced(window, flight),
            Self::Westwood(westwood) => westwood.reduced(window, flight),
            Self::Bbr(_) => window.cwnd,
        }
    }

    fn timed_out(&mut self) {
        match self {
            Self::Reno(reno) => reno.timed_out(),
            Self::Cubic(cubic) => cubic.timed_out(),
            Self::LinuxCubic(cubic) => cubic.timed_out(),
            Self::Hybla(hybla) => hybla.timed_out(),
            Self::Vegas(vegas) => vegas.timed_out(),
            Self::Westwood(westwood) => westwood.timed_out(),
            Self::Bbr(_) => {}
        }
    }
}

impl Algorithm {
    #[cold]
    #[inline(never)]
    fn grow_boxed(&mut self, window: &mut Window, acked: &Acked) {
        match self {
            Self::Hybla(hybla) => hybla.grow(window, acked),
            Self::Vegas(vegas) => vegas.grow(window, acked),
            Self::Westwood(westwood) => {
                westwood.on_recovery_end(window);
                westwood.observe(window.segment, acked);
                westwood.grow(window, acked);
            }
            Self::Reno(_) | Self::Cubic(_) | Self::LinuxCubic(_) | Self::Bbr(_) => {}
        }
    }

    /// Whether it observes ACKs that do not reach [`Avoidance::grow`].
    #[inline(always)]
    fn observes(&self) -> bool {
        !matches!(self, Self::Reno(_) | Self::Cubic(_))
    }

    /// Processes an ACK in slow start. Returns whether the algorithm grew cwnd by its own rule.
    #[cold]
    #[inline(never)]
    fn slow_start(&mut self, window: &mut Window, acked: &Acked) -> bool {
        match self {
            Self::LinuxCubic(cubic) => cubic.update_delay_min(acked),
            Self::Hybla(hybla) => return hybla.slow_start(window, acked),
            Self::Vegas(vegas) => return vegas.on_ack(window, acked),
            Self::Westwood(westwood) => westwood.observe(window.segment, acked),
            Self::Reno(_) | Self::Cubic(_) | Self::Bbr(_) => {}
        }
        false
    }

    /// Observes an ACK that does not grow cwnd: a duplicate ACK, one in fast recovery, or one for a
    /// sender that is not cwnd-limited.
    #[cold]
    #[inline(never)]
    fn observe(&mut self, window: &Window, acked: &Acked) {
        match self {
            Self::LinuxCubic(cubic) => cubic.update_delay_min(acked),
            Self::Vegas(vegas) => vegas.observe(acked),
            Self::Westwood(westwood) => westwood.observe(window.segment, acked),
            Self::Reno(_) | Self::Cubic(_) | Self::Hybla(_) | Self::Bbr(_) => {}
        }
    }
}

/// The congestion control of one connection.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct Control {
    window: Window,
    slow_start_segments_per_ack: u64,
    initial_window_segments: u64,
    algorithm: Algorithm,
    hystart: Option<SlowStartExit>,
}

/// Detection of the end of slow start before a loss.
#[derive(Clone, Debug)]
enum SlowStartExit {
    Plus(HyStart),
    Linux(Box<LinuxHyStart>),
}

impl SlowStartExit {
    fn new(linux: bool) -> Self {
        if linux { Self::Linux(Box::default()) } else { Self::Plus(HyStart::default()) }
    }
}

impl Control {
    /// Congestion control at the start of a connection.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        let segment = u64::from(config.mss);
        let initial_window_segments = u64::from(config.initial_window_segments);
        let linux = config.stack == StackVariant::Linux;
        let algorithm = match config.congestion {
            CongestionName::Reno | CongestionName::NewReno => {
                Algorithm::Reno(Reno::new(config.avoidance, config.stack))
            }
            CongestionName::Cubic if linux => Algorithm::LinuxCubic(Box::default()),
            CongestionName::Cubic => Algorithm::Cubic(Cubic::default()),
            CongestionName::Hybla => Algorithm::Hybla(Box::default()),
            CongestionName::Vegas => {
                let reno = Reno::new(config.avoidance, config.stack);
                Algorithm::Vegas(Box::new(Vegas::new(reno)))
            }
            CongestionName::Westwood => {
                let reno = Reno::new(config.avoidance, config.stack);
                Algorithm::Westwood(Box::new(Westwood::new(reno)))
            }
            CongestionName::Bbr => Algorithm::Bbr(Box::new(Bbr::new())),
        };
        let has_own_slow_start =
            matches!(algorithm, Algorithm::Hybla(_) | Algorithm::Vegas(_) | Algorithm::Bbr(_));
        Self {
            window: Window { cwnd: initial_window_segments * segment, ssthresh: None, segment },
            algorithm,
            slow_start_segments_per_ack: config.slow_start_segments_per_ack.into(),
            hystart: (config.hystart && !has_own_slow_start).then(|| SlowStartExit::new(linux)),
            initial_window_segments,
        }
    }

    /// Sets the negotiated payload of a full segment.
    pub fn negotiated(&mut self, segment: u64) {
        self.window.segment = segment;
        self.window.cwnd = self.initial_window_segments * segment;
    }

    /// The SYN or SYN-ACK was lost: the initial window is one segment (RFC 5681, 3.1).
    pub fn syn_lost(&mut self) {
        self.initial_window_segments = 1;
        self.window.cwnd = self.window.segment;
    }

    /// The handshake completed, with an RTT of `rtt` if known.
    #[cold]
    #[inline(never)]
    pub(super) fn on_established(&mut self, now: Instant, rtt: Option<Duration>) {
        if let Some(SlowStartExit::Linux(hystart)) = &mut self.hystart {
            hystart.on_established(now);
        }
        match &mut self.algorithm {
            Algorithm::Reno(_)
            | Algorithm::Cubic(_)
            | Algorithm::LinuxCubic(_)
            | Algorithm::Vegas(_) => {}
            Algorithm::Westwood(westwood) => westwood.on_established(now),
            Algorithm::Hybla(hybla) => hybla.on_established(rtt, &mut self.window),
            Algorithm::Bbr(bbr) => bbr.on_established(now, rtt, &self.window),
        }
    }

    /// Sets the random stream of the algorithm.
    pub(super) fn set_rng(&mut self, rng: Rng) {
        if let Algorithm::Bbr(bbr) = &mut self.algorithm {
            bbr.set_rng(rng);
        }
    }

    /// BBR and the window that it sets, if that is the algorithm.
    pub(super) fn bbr_mut(&mut self) -> Option<(&mut Bbr, &mut Window)> {
        match &mut self.algorithm {
            Algorithm::Bbr(bbr) => Some((bbr, &mut self.window)),
            _ => None,
        }
    }

    /// With rate sampling: sets the bytes that an ACK delivered and the end of the most recently
    /// sent of their segments, if known.
    #[cold]
    #[inline(never)]
    pub(super) fn set_delivered(&mut self, bytes: u64, newest_end: Option<Position>) {
        if let Algorithm::Bbr(bbr) = &mut self.algorithm {
            bbr.rate.set_delivered(bytes, newest_end);
        }
    }

    /// With rate sampling and without SACK: processes a duplicate ACK with `outstanding` bytes
    /// outstanding.
    #[cold]
    #[inline(never)]
    pub(super) fn on_duplicate(&mut self, outstanding: u64) {
        if let Algorithm::Bbr(bbr) = &mut self.algorithm {
            let bytes = bbr.rate.on_duplicate(self.window.segment, outstanding);
            bbr.rate.set_delivered(bytes, None);
        }
    }

    /// BBR, if that is the algorithm.
    pub(super) fn bbr(&self) -> Option<&Bbr> {
        match &self.algorithm {
            Algorithm::Bbr(bbr) => Some(bbr),
            _ => None,
        }
    }

    /// The congestion window (cwnd) in bytes.
    #[must_use]
    pub fn cwnd(&self) -> u64 {
        self.window.cwnd
    }

    /// ssthresh; `None` until the first congestion.
    #[must_use]
    pub fn ssthresh(&self) -> Option<u64> {
        self.window.ssthresh
    }

    /// Whether cwnd is below ssthresh.
    #[must_use]
    pub fn in_slow_start(&self) -> bool {
        self.window.ssthresh.is_none_or(|ssthresh| self.window.cwnd < ssthresh)
    }

    /// Whether the algorithm still searches for the rate of the path: slow start, or BBR's STARTUP.
    #[cold]
    pub(super) fn is_starting(&self) -> bool {
        match &self.algorithm {
            Algorithm::Bbr(bbr) => bbr.mode() == bbr::Mode::Startup,
            _ => self.in_slow_start(),
        }
    }

    /// Processes an ACK of new data for a cwnd-limited sender outside of fast recovery.
    // Inlined, because a call would pass `acked` in memory.
    #[inline(always)]
    pub fn on_ack(&mut self, acked: &Acked) {
        if !self.in_slow_start() {
            self.algorithm.grow(&mut self.window, acked);
            return;
        }
        if self.algorithm.observes() && self.algorithm.slow_start(&mut self.window, acked) {
            return;
        }
        let limit = self.slow_start_segments_per_ack * self.window.segment;
        let mut growth = acked.bytes.min(limit);
        if let Some(action) = self.slow_start_exit(acked) {
            growth /= action.growth_divisor;
            if action.leave_slow_start {
                self.window.ssthresh = Some(self.window.cwnd);
                return;
            }
        }
        self.window.cwnd += growth;
        if let Some(ssthresh) = self.window.ssthresh
            && self.window.cwnd > ssthresh
        {
            self.cross_threshold(ssthresh, growth, acked);
        }
    }

    /// Observes an ACK that does not grow cwnd: a duplicate ACK, one in fast recovery, or one for a
    /// sender that is not cwnd-limited. `bytes` is zero in recovery.
    #[inline(always)]
    pub(super) fn observe_ack(&mut self, acked: &Acked) {
        if self.algorithm.observes() {
            self.algorithm.observe(&self.window, acked);
        }
    }

    /// RFC 5681, 3.1: slow start is used below ssthresh. The rest of the ACK counts for congestion
    /// avoidance (Linux, `tcp_slow_start`).
    #[cold]
    #[inline(never)]
    fn cross_threshold(&mut self, ssthresh: u64, growth: u64, acked: &Acked) {
        let beyond = self.window.cwnd - ssthresh;
        self.window.cwnd = ssthresh;
        let bytes = acked.bytes - (growth - beyond);
        self.algorithm.grow(&mut self.window, &Acked { bytes, ..*acked });
    }

    /// The action of HyStart, if it is enabled.
    fn slow_start_exit(&mut self, acked: &Acked) -> Option<hystart::SlowStartAction> {
        match (self.hystart.as_mut()?, self.window.ssthresh) {
            (SlowStartExit::Plus(hystart), None) => Some(hystart.acked(acked)),
            (SlowStartExit::Plus(_), Some(_)) => None,
            (SlowStartExit::Linux(hystart), _) => {
                Some(hystart.acked(acked, self.window.cwnd / self.window.segment))
            }
        }
    }

    /// Congestion was detected with `flight` bytes outstanding: cwnd is reduced to ssthresh.
    pub fn on_congestion(&mut self, flight: u64) {
        if let Algorithm::Bbr(bbr) = &mut self.algorithm {
            bbr.save_cwnd(self.window.cwnd);
            return;
        }
        self.reduce(flight);
        self.window.cwnd = self.window.ssthresh.unwrap_or(self.window.cwnd);
    }

    /// The retransmission timer expired: cwnd becomes one segment (RFC 5681, 3.1). A repeated
    /// timeout for the same data leaves ssthresh unchanged.
    pub fn timed_out(&mut self, flight: u64, repeated: bool) {
        if let Algorithm::Bbr(bbr) = &mut self.algorithm {
            bbr.timed_out(&mut self.window, repeated);
            return;
        }
        if !repeated {
            self.reduce(flight);
            if let Algorithm::Westwood(westwood) = &mut self.algorithm {
                westwood.on_timeout(&mut self.window);
            }
        }
        self.algorithm.timed_out();
        if let Some(SlowStartExit::Linux(hystart)) = &mut self.hystart {
            **hystart = LinuxHyStart::default();
        }
        self.window.cwnd = self.window.segment;
    }

    /// The window to restore if the next reduction is undone (`tcp_current_ssthresh`: an ssthresh
    /// of at least three quarters of cwnd).
    pub(super) fn prior(&self) -> Prior {
        let Window { cwnd, ssthresh, .. } = self.window;
        Prior { cwnd, ssthresh: ssthresh.map(|ssthresh| ssthresh.max(cwnd / 2 + cwnd / 4)) }
    }

    /// Undoes the last reduction (`tcp_undo_cwnd_reduction`, `tcp_reno_undo_cwnd`).
    #[cold]
    #[inline(never)]
    pub(super) fn undo(&mut self, prior: Prior) {
        let window = &mut self.window;
        window.cwnd = window.cwnd.max(prior.cwnd);
        window.ssthresh = prior.ssthresh.map(|prior| window.ssthresh.unwrap_or(prior).max(prior));
    }

    /// Transmission resumes after an idle period of `pause` (RFC 9438, 4.2;
    /// `cubictcp_cwnd_event_tx_start`): time-based growth excludes it.
    pub(super) fn shift_epoch(&mut self, now: Instant, pause: Duration) {
        match &mut self.algorithm {
            Algorithm::Cubic(cubic) => cubic.shift_epoch(now, pause),
            Algorithm::LinuxCubic(cubic) => cubic.shift_epoch(now, pause),
            Algorithm::Reno(_)
            | Algorithm::Hybla(_)
            | Algorithm::Vegas(_)
            | Algorithm::Westwood(_)
            | Algorithm::Bbr(_) => {}
        }
    }

    /// Nothing was sent for longer than an RTO: cwnd becomes at most the restart window (RFC 5681,
    /// 4.1).
    pub(super) fn restart(&mut self) {
        let window = &mut self.window;
        window.cwnd = window.cwnd.min(self.initial_window_segments * window.segment);
    }

    /// [`Control::restart`] as in Linux (`tcp_cwnd_restart`): cwnd is halved for each RTO, and
    /// ssthresh becomes at least three quarters of the previous cwnd.
    pub(super) fn restart_halved(&mut self, halvings: u64) {
        self.window.ssthresh = self.prior().ssthresh;
        let window = &mut self.window;
        let restart = window.cwnd.min(self.initial_window_segments * window.segment);
        let segments = window.cwnd / window.segment;
        let halved = segments.checked_shr(halvings.try_into().unwrap_or(u32::MAX)).unwrap_or(0);
        window.cwnd = (halved * window.segment).max(restart);
    }

    /// Recovery ends: cwnd becomes ssthresh (RFC 6675, RFC 6937).
    pub(super) fn on_recovery_end(&mut self) {
        if let Some(ssthresh) = self.window.ssthresh
            && !matches!(self.algorithm, Algorithm::Bbr(_))
        {
            self.set_cwnd(ssthresh);
        }
        if let Algorithm::Westwood(westwood) = &mut self.algorithm {
            westwood.on_recovery_end(&mut self.window);
        }
    }

    /// Sets cwnd during proportional rate reduction.
    pub fn set_cwnd(&mut self, cwnd: u64) {
        self.window.cwnd = cwnd.max(self.window.segment);
    }

    fn reduce(&mut self, flight: u64) {
        let floor = 2 * self.window.segment;
        let reduced = self.algorithm.reduced(&self.window, flight);
        self.window.ssthresh = Some(reduced.max(floor));
    }
}
