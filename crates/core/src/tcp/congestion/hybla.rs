//! Hybla (Caini and Firrincieli 2004; Linux's `tcp_hybla.c`): a connection with a long round trip
//! sends as much a second as one with the reference round trip would. With `rho = RTT / RTT0` the
//! window is `rho` times as large and grows `rho` times as fast: by `2^rho - 1` segments an ACK in
//! slow start and by `rho^2 / cwnd` in congestion avoidance.
//!
//! Arithmetic is Linux's, in fixed point: `rho` in eighths, growth in 128ths of a segment.

use super::{Acked, Avoidance, Window};
use crate::packet::seq::Position;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Instant;

    const SEGMENT: u64 = 1_000;

    fn acked(srtt_ms: u64, una: Position) -> Acked {
        let srtt = Some(Duration::from_millis(srtt_ms));
        Acked { now: Instant::START, bytes: SEGMENT, rtt: srtt, srtt, una, nxt: una + 1 }
    }

    /// Hybla after a handshake of so many milliseconds, and its window.
    fn opened(rtt_ms: u64) -> (Hybla, Window) {
        let mut hybla = Hybla::default();
        let mut window = Window { cwnd: 10 * SEGMENT, ssthresh: None, segment: SEGMENT };
        hybla.opened(Some(Duration::from_millis(rtt_ms)), &mut window);
        (hybla, window)
    }

    /// rho = RTT / 25 ms, at least 1; the initial window is rho segments, and each ACK of slow
    /// start adds 2^rho - 1: 1 at 25 ms and below, 2^1.5 - 1 = 1.828 at 37.5 ms (37 ms is 11
    /// eighths: 1.594), 15 at 100 ms, 1023 at 250 ms. The fraction's power is right to 1/128, and
    /// so twice that for a rho between one and two.
    #[test]
    fn slow_start_adds_two_to_the_rho_less_one() {
        for (rtt_ms, initial, growth) in [
            (10, 1, 1.0),
            (25, 1, 1.0),
            (37, 1, 1.594),
            (50, 2, 3.0),
            (100, 4, 15.0),
            (250, 10, 1_023.0),
        ] {
            let (mut hybla, mut window) = opened(rtt_ms);
            assert_eq!(window.cwnd, initial * SEGMENT, "{rtt_ms} ms");
            for ack in 1..=32u32 {
                assert!(hybla.slow_start(&mut window, &acked(rtt_ms, 1)));
                let grown =
                    f64::from(u32::try_from(window.cwnd / SEGMENT - initial).expect("small"));
                let expected = growth * f64::from(ack);
                let error = f64::from(ack) / 64.0;
                let span = expected - 1.0 - error..=expected + error;
                assert!(span.contains(&grown), "{rtt_ms} ms, {ack}: {grown} of {expected}");
            }
        }
    }

    /// A geostationary path of 600 ms has rho 24: 2^16 segments an ACK at most, which is the
    /// largest window; and a threshold is not passed.
    #[test]
    fn slow_start_stops_at_the_threshold_and_at_the_largest_window() {
        let (mut hybla, mut window) = opened(600);
        assert!(hybla.slow_start(&mut window, &acked(600, 1)));
        assert_eq!(window.cwnd, 65_535 * SEGMENT);
        let (mut hybla, mut window) = opened(600);
        window.ssthresh = Some(500 * SEGMENT);
        assert!(hybla.slow_start(&mut window, &acked(600, 1)));
        assert_eq!(window.cwnd, 500 * SEGMENT);
    }

    /// Congestion avoidance, on paper: W ACKs a round trip of rho^2 / W segments each are rho^2 a
    /// round trip, so rho a 25 ms whatever the round trip: what Reno adds at 25 ms, times rho, for
    /// a window that is to be rho times as large. While the window doubles from 200, 1/W falls to a
    /// half, and rounding down by 1/128 of a segment an ACK costs up to 400 / 128 segments a round
    /// trip.
    #[test]
    fn avoidance_adds_rho_squared_a_round_trip() {
        for (rtt_ms, rho) in [(25, 1u64), (100, 4), (200, 8), (600, 24)] {
            let (mut hybla, mut window) = opened(rtt_ms);
            window.cwnd = 200 * SEGMENT;
            window.ssthresh = Some(2 * SEGMENT);
            for round in 0..6u64 {
                let before = window.cwnd / SEGMENT;
                for _ in 0..before {
                    hybla.grow(&mut window, &acked(rtt_ms, 1));
                }
                let grown = window.cwnd / SEGMENT - before;
                // The sum of rho^2 / w over the round: as w grows, less than rho^2.
                let most = rho * rho;
                let least = (most * before / (before + most)).saturating_sub(before / 128 + 1);
                assert!((least..=most + 1).contains(&grown), "{rtt_ms} ms, {round}: {grown}");
            }
        }
    }

    /// A growth below 1/128 of a segment an ACK, 1/W with W above 128, still makes one segment of a
    /// window's worth of ACKs.
    #[test]
    fn the_slowest_growth_is_that_of_reno() {
        let (mut hybla, mut window) = opened(25);
        window.cwnd = 300 * SEGMENT;
        for _ in 0..299 {
            hybla.grow(&mut window, &acked(25, 1));
        }
        assert_eq!(window.cwnd, 300 * SEGMENT);
        hybla.grow(&mut window, &acked(25, 1));
        assert_eq!(window.cwnd, 301 * SEGMENT);
    }

    /// A queue makes the round trip longer, not rho; a shorter round trip makes it smaller.
    #[test]
    fn only_the_shortest_round_trip_counts() {
        let (mut hybla, mut window) = opened(100);
        hybla.slow_start(&mut window, &acked(250, 1));
        assert_eq!(window.cwnd, (4 + 15) * SEGMENT);
        hybla.slow_start(&mut window, &acked(50, 1));
        assert_eq!(window.cwnd, (4 + 15 + 3) * SEGMENT);
    }

    /// After a time-out with data up to 5001 outstanding slow start is the usual one until that is
    /// acknowledged.
    #[test]
    fn after_a_timeout_growth_is_that_of_reno() {
        let (mut hybla, mut window) = opened(100);
        hybla.timed_out();
        let outstanding = Acked { nxt: 5_001, ..acked(100, 1_001) };
        assert!(!hybla.slow_start(&mut window, &outstanding));
        assert!(!hybla.slow_start(&mut window, &Acked { nxt: 9_001, ..acked(100, 4_001) }));
        assert!(hybla.slow_start(&mut window, &acked(100, 5_001)));
        assert_eq!(window.cwnd, (4 + 15) * SEGMENT);
    }
}
