//! Congestion control: how much may be in flight.
//!
//! [`Control`] is fed facts (acknowledged, congestion, time-out) and answers with a window. Slow
//! start, with or without HyStart++, is the same for most; what differs lies behind [`Avoidance`],
//! of which [`Algorithm`] closes the list. BBR is apart: each ACK sets its window and its pacing rate.

pub(in crate::tcp) mod bbr;
mod cubic;
mod cubic_linux;
mod hybla;
mod hystart;
mod hystart_linux;
mod reno;
mod vegas;
mod westwood;

use super::config::{Config, CongestionName, Follows};
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

/// What one ACK told.
#[derive(Clone, Copy, Debug)]
pub struct Acked {
    /// When it arrived.
    pub now: Instant,
    /// Data bytes it newly acknowledged, in order or selectively.
    pub bytes: u64,
    /// A round-trip sample, if it gave one.
    pub rtt: Option<Duration>,
    /// The smoothed round trip.
    pub srtt: Option<Duration>,
    /// The left edge after it.
    pub una: Position,
    /// The next position to be sent.
    pub nxt: Position,
}

/// The congestion window and the threshold between its two ways of growing.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Bytes that may be in flight.
    pub cwnd: u64,
    /// Slow start below it; `None` until the first congestion.
    pub ssthresh: Option<u64>,
    /// Payload of a full segment.
    pub segment: u64,
}

/// What the window was before a reduction.
#[derive(Clone, Copy, Debug)]
pub(in crate::tcp) struct Prior {
    cwnd: u64,
    ssthresh: Option<u64>,
}

/// How far the repair of losses is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LossState {
    /// No loss is being repaired.
    #[default]
    Open,
    /// Fast recovery.
    Recovery,
    /// What was outstanding at a time-out is being repaired.
    Loss,
}

/// What the algorithms do differently.
pub trait Avoidance {
    /// Grows the window in congestion avoidance.
    fn grow(&mut self, window: &mut Window, acked: &Acked);

    /// The slow-start threshold after congestion with `flight` bytes outstanding.
    fn reduced(&mut self, window: &Window, flight: u64) -> u64;

    /// The retransmission timer expired.
    fn timed_out(&mut self) {}
}

/// The algorithms that a scenario can name. What tells them apart comes first, not wherever there is
/// room for it.
#[derive(Clone, Debug)]
#[repr(u8)]
enum Algorithm {
    Reno(Reno),
    Cubic(Cubic),
    LinuxCubic(Box<LinuxCubic>),
    /// In boxes, as the usual ones do without their records.
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
                self.grow_unusually(window, acked);
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
    fn grow_unusually(&mut self, window: &mut Window, acked: &Acked) {
        match self {
            Self::Hybla(hybla) => hybla.grow(window, acked),
            Self::Vegas(vegas) => vegas.grow(window, acked),
            Self::Westwood(westwood) => {
                westwood.recovered(window);
                westwood.note(window.segment, acked);
                westwood.grow(window, acked);
            }
            Self::Reno(_) | Self::Cubic(_) | Self::LinuxCubic(_) | Self::Bbr(_) => {}
        }
    }

    /// Whether it takes note of ACKs that its growth in congestion avoidance does not see.
    #[inline(always)]
    fn observes(&self) -> bool {
        !matches!(self, Self::Reno(_) | Self::Cubic(_))
    }

    /// An ACK in slow start: whether the algorithm grew the window by a rule of its own.
    #[cold]
    #[inline(never)]
    fn slow_start(&mut self, window: &mut Window, acked: &Acked) -> bool {
        match self {
            Self::LinuxCubic(cubic) => cubic.note_delay(acked),
            Self::Hybla(hybla) => return hybla.slow_start(window, acked),
            Self::Vegas(vegas) => return vegas.on_ack(window, acked),
            Self::Westwood(westwood) => westwood.note(window.segment, acked),
            Self::Reno(_) | Self::Cubic(_) | Self::Bbr(_) => {}
        }
        false
    }

    /// An ACK that does not let the window grow: a duplicate, one in fast recovery, or one for a sender
    /// that its window did not limit.
    #[cold]
    #[inline(never)]
    fn note(&mut self, window: &Window, acked: &Acked) {
        match self {
            Self::LinuxCubic(cubic) => cubic.note_delay(acked),
            Self::Vegas(vegas) => vegas.note(acked),
            Self::Westwood(westwood) => westwood.note(window.segment, acked),
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
    hystart: Option<Exit>,
}

/// What ends slow start before a loss.
#[derive(Clone, Debug)]
enum Exit {
    Plus(HyStart),
    Linux(Box<LinuxHyStart>),
}

impl Exit {
    fn new(linux: bool) -> Self {
        if linux { Self::Linux(Box::default()) } else { Self::Plus(HyStart::default()) }
    }
}

impl Control {
    /// Control at the start of a connection.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        let segment = u64::from(config.mss);
        let initial_window_segments = u64::from(config.initial_window_segments);
        let linux = config.follows == Follows::Linux;
        let algorithm = match config.congestion {
            CongestionName::Reno | CongestionName::NewReno => {
                Algorithm::Reno(Reno::new(config.avoidance, config.follows))
            }
            CongestionName::Cubic if linux => Algorithm::LinuxCubic(Box::default()),
            CongestionName::Cubic => Algorithm::Cubic(Cubic::default()),
            CongestionName::Hybla => Algorithm::Hybla(Box::default()),
            CongestionName::Vegas => {
                let reno = Reno::new(config.avoidance, config.follows);
                Algorithm::Vegas(Box::new(Vegas::new(reno)))
            }
            CongestionName::Westwood => {
                let reno = Reno::new(config.avoidance, config.follows);
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
            hystart: (config.hystart && !has_own_slow_start).then(|| Exit::new(linux)),
            initial_window_segments,
        }
    }

    /// The handshake settled how large a full segment's payload is.
    pub fn negotiated(&mut self, segment: u64) {
        self.window.segment = segment;
        self.window.cwnd = self.initial_window_segments * segment;
    }

    /// The SYN, or the answer to it, was lost: the initial window is one segment (RFC 5681, 3.1).
    pub fn syn_lost(&mut self) {
        self.initial_window_segments = 1;
        self.window.cwnd = self.window.segment;
    }

    /// The handshake is complete, with the round trip it took if that is known.
    #[cold]
    #[inline(never)]
    pub(super) fn opened(&mut self, now: Instant, rtt: Option<Duration>) {
        if let Some(Exit::Linux(hystart)) = &mut self.hystart {
            hystart.opened(now);
        }
        match &mut self.algorithm {
            Algorithm::Reno(_)
            | Algorithm::Cubic(_)
            | Algorithm::LinuxCubic(_)
            | Algorithm::Vegas(_) => {}
            Algorithm::Westwood(westwood) => westwood.opened(now),
            Algorithm::Hybla(hybla) => hybla.opened(rtt, &mut self.window),
            Algorithm::Bbr(bbr) => bbr.opened(now, rtt, &self.window),
        }
    }

    /// Where an algorithm's draws come from.
    pub(super) fn set_chance(&mut self, chance: Rng) {
        if let Algorithm::Bbr(bbr) = &mut self.algorithm {
            bbr.set_chance(chance);
        }
    }

    /// BBR and the window that it sets, if that is the algorithm.
    pub(super) fn bbr_mut(&mut self) -> Option<(&mut Bbr, &mut Window)> {
        match &mut self.algorithm {
            Algorithm::Bbr(bbr) => Some((bbr, &mut self.window)),
            _ => None,
        }
    }

    /// Where ACKs are measured: one delivered so many bytes, of whose segments the one that was sent
    /// last ends at `newest_end`, if that is known.
    #[cold]
    #[inline(never)]
    pub(super) fn note_arrival(&mut self, bytes: u64, newest_end: Option<Position>) {
        if let Algorithm::Bbr(bbr) = &mut self.algorithm {
            bbr.rate.arrived(bytes, newest_end);
        }
    }

    /// Likewise without SACK: a duplicate ACK came with so many bytes outstanding.
    #[cold]
    #[inline(never)]
    pub(super) fn note_duplicate(&mut self, outstanding: u64) {
        if let Algorithm::Bbr(bbr) = &mut self.algorithm {
            let news = bbr.rate.duplicate(self.window.segment, outstanding);
            bbr.rate.arrived(news, None);
        }
    }

    /// BBR, if that is the algorithm.
    pub(super) fn bbr(&self) -> Option<&Bbr> {
        match &self.algorithm {
            Algorithm::Bbr(bbr) => Some(bbr),
            _ => None,
        }
    }

    /// Bytes that may be in flight.
    #[must_use]
    pub fn cwnd(&self) -> u64 {
        self.window.cwnd
    }

    /// The slow-start threshold, once there was congestion.
    #[must_use]
    pub fn ssthresh(&self) -> Option<u64> {
        self.window.ssthresh
    }

    /// Whether the window is below the threshold.
    #[must_use]
    pub fn in_slow_start(&self) -> bool {
        self.window.ssthresh.is_none_or(|ssthresh| self.window.cwnd < ssthresh)
    }

    /// Data was acknowledged outside of fast recovery, and the window was what limited the sender.
    // A call would pass all facts in memory, for every ACK.
    #[inline(always)]
    pub fn acked(&mut self, acked: &Acked) {
        if !self.in_slow_start() {
            self.algorithm.grow(&mut self.window, acked);
            return;
        }
        if self.algorithm.observes() && self.algorithm.slow_start(&mut self.window, acked) {
            return;
        }
        let most = self.slow_start_segments_per_ack * self.window.segment;
        let mut growth = acked.bytes.min(most);
        if let Some(verdict) = self.exit(acked) {
            growth /= verdict.growth_divisor;
            if verdict.leave_slow_start {
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

    /// An ACK came that does not let the window grow: a duplicate, one in fast recovery, or one for a
    /// sender that its window did not limit. `bytes` is zero in recovery.
    #[inline(always)]
    pub(super) fn noted(&mut self, acked: &Acked) {
        if self.algorithm.observes() {
            self.algorithm.note(&self.window, acked);
        }
    }

    /// RFC 5681, 3.1: slow start is used below the threshold. It ends there; what of the ACK is left
    /// counts for congestion avoidance (Linux, `tcp_slow_start`).
    #[cold]
    #[inline(never)]
    fn cross_threshold(&mut self, ssthresh: u64, growth: u64, acked: &Acked) {
        let beyond = self.window.cwnd - ssthresh;
        self.window.cwnd = ssthresh;
        let bytes = acked.bytes - (growth - beyond);
        self.algorithm.grow(&mut self.window, &Acked { bytes, ..*acked });
    }

    /// What the end of slow start says, where it is looked for.
    fn exit(&mut self, acked: &Acked) -> Option<hystart::Verdict> {
        match (self.hystart.as_mut()?, self.window.ssthresh) {
            (Exit::Plus(hystart), None) => Some(hystart.acked(acked)),
            (Exit::Plus(_), Some(_)) => None,
            (Exit::Linux(hystart), _) => {
                Some(hystart.acked(acked, self.window.cwnd / self.window.segment))
            }
        }
    }

    /// Loss was detected with `flight` bytes outstanding: the window falls to the threshold.
    pub fn congestion(&mut self, flight: u64) {
        if let Algorithm::Bbr(bbr) = &mut self.algorithm {
            bbr.save_cwnd(self.window.cwnd);
            return;
        }
        self.reduce(flight);
        self.window.cwnd = self.window.ssthresh.unwrap_or(self.window.cwnd);
    }

    /// The retransmission timer expired: the window falls to one segment (RFC 5681, 3.1). A repeated
    /// time-out for the same data leaves the threshold alone.
    pub fn timed_out(&mut self, flight: u64, repeated: bool) {
        if let Algorithm::Bbr(bbr) = &mut self.algorithm {
            bbr.timed_out(&mut self.window, repeated);
            return;
        }
        if !repeated {
            self.reduce(flight);
            if let Algorithm::Westwood(westwood) = &mut self.algorithm {
                westwood.lost(&mut self.window);
            }
        }
        self.algorithm.timed_out();
        if let Some(Exit::Linux(hystart)) = &mut self.hystart {
            **hystart = LinuxHyStart::default();
        }
        self.window.cwnd = self.window.segment;
    }

    /// What a reduction may have to restore (`tcp_current_ssthresh`: a threshold that is no lower than
    /// three quarters of the window).
    pub(super) fn prior(&self) -> Prior {
        let Window { cwnd, ssthresh, .. } = self.window;
        Prior { cwnd, ssthresh: ssthresh.map(|ssthresh| ssthresh.max(cwnd / 2 + cwnd / 4)) }
    }

    /// The last reduction was wrong (`tcp_undo_cwnd_reduction`, `tcp_reno_undo_cwnd`).
    #[cold]
    #[inline(never)]
    pub(super) fn undo(&mut self, prior: Prior) {
        let window = &mut self.window;
        window.cwnd = window.cwnd.max(prior.cwnd);
        window.ssthresh = prior.ssthresh.map(|prior| window.ssthresh.unwrap_or(prior).max(prior));
    }

    /// Data leaves again after a pause of so long (RFC 9438, 4.2; `cubictcp_cwnd_event_tx_start`): what
    /// grows with time does not count it.
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

    /// Nothing was sent for longer than a time-out: the restart window is the initial one, if that is
    /// smaller (RFC 5681, 4.1).
    pub(super) fn restart(&mut self) {
        let window = &mut self.window;
        window.cwnd = window.cwnd.min(self.initial_window_segments * window.segment);
    }

    /// The same as Linux does it (`tcp_cwnd_restart`): by a half for each time-out, and the threshold
    /// remembers three quarters of what the window was.
    pub(super) fn restart_by_halves(&mut self, halvings: u64) {
        self.window.ssthresh = self.prior().ssthresh;
        let window = &mut self.window;
        let restart = window.cwnd.min(self.initial_window_segments * window.segment);
        let segments = window.cwnd / window.segment;
        let halved = segments.checked_shr(halvings.try_into().unwrap_or(u32::MAX)).unwrap_or(0);
        window.cwnd = (halved * window.segment).max(restart);
    }

    /// Recovery ends: the window is the threshold (RFC 6675, RFC 6937).
    pub(super) fn recovered(&mut self) {
        if let Some(ssthresh) = self.window.ssthresh
            && !matches!(self.algorithm, Algorithm::Bbr(_))
        {
            self.set_cwnd(ssthresh);
        }
        if let Algorithm::Westwood(westwood) = &mut self.algorithm {
            westwood.recovered(&mut self.window);
        }
    }

    /// Sets the window during a recovery that paces itself (PRR).
    pub fn set_cwnd(&mut self, cwnd: u64) {
        self.window.cwnd = cwnd.max(self.window.segment);
    }

    fn reduce(&mut self, flight: u64) {
        let floor = 2 * self.window.segment;
        let reduced = self.algorithm.reduced(&self.window, flight);
        self.window.ssthresh = Some(reduced.max(floor));
    }
}
