//! Hybla (Caini and Firrincieli 2004; Linux's `tcp_hybla.c`): a connection with a long round trip sends
//! as much a second as one with the reference round trip would. With `rho = RTT / RTT0` the window is
//! `rho` times as large and grows `rho` times as fast: by `2^rho - 1` segments an ACK in slow start and
//! by `rho^2 / cwnd` in congestion avoidance.
//!
//! Arithmetic is Linux's, in fixed point: `rho` in eighths, growth in 128ths of a segment.

use super::{Acked, Avoidance, Window};
use crate::tcp::seq::Position;
use crate::time::Duration;

/// RTT0.
const REFERENCE_RTT: Duration = Duration::from_millis(25);
const EIGHTHS: u64 = 8;
const CENTS: u64 = 128;
/// 2^(n/8), in 128ths.
const POWERS: [u64; 8] = [128, 139, 152, 165, 181, 197, 215, 234];
/// So large an exponent fills the largest window with one ACK.
const EXPONENT_MAX: u64 = 16;
const CWND_MAX_SEGMENTS: u64 = 65_535;

/// See the module's description.
#[derive(Clone, Debug)]
pub(super) struct Hybla {
    /// RTT over the reference, in eighths, at least one.
    rho: u64,
    min_srtt: Option<Duration>,
    /// Growth that does not make a segment yet, in 128ths of one.
    fraction: u64,
    /// ACKs since the window grew, for growth too slow for the fixed point.
    acks: u64,
    regular: Regular,
}

/// After a time-out Hybla grows as Reno does until all of its window has been repaired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Regular {
    No,
    TimedOut,
    Until(Position),
}

impl Default for Hybla {
    fn default() -> Self {
        Self { rho: EIGHTHS, min_srtt: None, fraction: 0, acks: 0, regular: Regular::No }
    }
}

impl Hybla {
    /// The handshake is complete: the initial window is `rho` segments.
    pub(super) fn opened(&mut self, rtt: Option<Duration>, window: &mut Window) {
        self.note_rtt(rtt);
        window.cwnd = self.rho / EIGHTHS * window.segment;
    }

    /// Only the smallest smoothed round trip counts: queues do not.
    fn note_rtt(&mut self, srtt: Option<Duration>) {
        if let Some(srtt) = srtt
            && self.min_srtt.is_none_or(|min| srtt < min)
        {
            self.min_srtt = Some(srtt);
            let eighths = srtt.saturating_mul(EIGHTHS).as_nanos() / REFERENCE_RTT.as_nanos();
            self.rho = eighths.max(EIGHTHS);
        }
    }

    /// Grows the window in slow start; not if the standard's way is to be taken.
    pub(super) fn slow_start(&mut self, window: &mut Window, acked: &Acked) -> bool {
        self.note_rtt(acked.srtt);
        if self.is_regular(acked) {
            return false;
        }
        let (whole, eighths) = (self.rho / EIGHTHS, self.rho % EIGHTHS);
        let power = POWERS[usize::try_from(eighths).expect("below eight")];
        self.add(window, (power << whole.min(EXPONENT_MAX)) - CENTS);
        if let Some(ssthresh) = window.ssthresh {
            window.cwnd = window.cwnd.min(ssthresh);
        }
        true
    }

    fn is_regular(&mut self, acked: &Acked) -> bool {
        if self.regular == Regular::TimedOut {
            self.regular = Regular::Until(acked.nxt);
        }
        let is_regular = matches!(self.regular, Regular::Until(end) if acked.una < end);
        if !is_regular {
            self.regular = Regular::No;
        }
        is_regular
    }

    /// Adds so many 128ths of a segment.
    fn add(&mut self, window: &mut Window, cents: u64) {
        self.fraction += cents;
        let segments = self.fraction / CENTS;
        self.fraction %= CENTS;
        if segments > 0 {
            self.acks = 0;
        }
        let most = CWND_MAX_SEGMENTS * window.segment;
        window.cwnd = (window.cwnd + segments * window.segment).min(most);
    }

    /// A segment for a window's worth of ACKs.
    fn add_for_acks(&mut self, window: &mut Window) {
        self.acks += 1;
        if self.acks >= window.cwnd / window.segment {
            self.add(window, CENTS);
        }
    }
}

impl Avoidance for Hybla {
    fn grow(&mut self, window: &mut Window, acked: &Acked) {
        self.note_rtt(acked.srtt);
        if self.is_regular(acked) {
            self.add_for_acks(window);
            return;
        }
        // rho^2 in 64ths; twice that in 128ths.
        let segments = (window.cwnd / window.segment).max(1);
        let cents = 2 * self.rho * self.rho / segments;
        if cents > 0 {
            self.add(window, cents);
        } else {
            self.add_for_acks(window);
        }
    }

    fn reduced(&mut self, window: &Window, flight: u64) -> u64 {
        // Linux's Reno halves the window; here as there what is outstanding bounds it.
        flight.min(window.cwnd) / 2
    }

    fn timed_out(&mut self) {
        self.regular = Regular::TimedOut;
    }
}
