//! Hybla (Caini and Firrincieli 2004; Linux's `tcp_hybla.c`): a connection with a long RTT gets the
//! rate of one with the reference RTT. With `rho = RTT / RTT0`, cwnd is `rho` times as large and
//! grows `rho` times as fast: by `2^rho - 1` segments per ACK in slow start and by `rho^2 / cwnd`
//! in congestion avoidance.
//!
//! Arithmetic is Linux's fixed point: `rho` in eighths, growth in 128ths of a segment.

use super::{Acked, Avoidance, Window};
use crate::packet::seq::Position;
use crate::time::Duration;

/// RTT0.
const REFERENCE_RTT: Duration = Duration::from_millis(25);
const EIGHTHS: u64 = 8;
const UNITS: u64 = 128;
/// 2^(n/8), in 128ths.
const POWERS: [u64; 8] = [128, 139, 152, 165, 181, 197, 215, 234];
/// One ACK with this exponent reaches the maximum cwnd.
const EXPONENT_MAX: u64 = 16;
const CWND_MAX_SEGMENTS: u64 = 65_535;

/// See the module's description.
#[derive(Clone, Debug)]
pub(super) struct Hybla {
    /// RTT / RTT0 in eighths, at least 1.
    rho: u64,
    min_srtt: Option<Duration>,
    /// Growth below a segment, in 128ths.
    fraction: u64,
    /// ACKs since cwnd last grew, for growth below the fixed-point resolution.
    acks: u64,
    reno_phase: RenoPhase,
}

/// After a timeout, Hybla grows like Reno until everything outstanding is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RenoPhase {
    No,
    TimedOut,
    Until(Position),
}

impl Default for Hybla {
    fn default() -> Self {
        Self { rho: EIGHTHS, min_srtt: None, fraction: 0, acks: 0, reno_phase: RenoPhase::No }
    }
}

impl Hybla {
    /// The handshake completed: the initial window is `rho` segments.
    pub(super) fn on_established(&mut self, rtt: Option<Duration>, window: &mut Window) {
        self.update_rho(rtt);
        window.cwnd = self.rho / EIGHTHS * window.segment;
    }

    /// Updates `rho` from the minimum smoothed RTT, to exclude queueing delay.
    fn update_rho(&mut self, srtt: Option<Duration>) {
        if let Some(srtt) = srtt
            && self.min_srtt.is_none_or(|min| srtt < min)
        {
            self.min_srtt = Some(srtt);
            let eighths = srtt.saturating_mul(EIGHTHS).as_nanos() / REFERENCE_RTT.as_nanos();
            self.rho = eighths.max(EIGHTHS);
        }
    }

    /// Grows cwnd in slow start. Returns false if standard slow start applies.
    pub(super) fn slow_start(&mut self, window: &mut Window, acked: &Acked) -> bool {
        self.update_rho(acked.srtt);
        if self.in_reno_phase(acked) {
            return false;
        }
        let (whole, eighths) = (self.rho / EIGHTHS, self.rho % EIGHTHS);
        let power = POWERS[usize::try_from(eighths).expect("below eight")];
        self.add(window, (power << whole.min(EXPONENT_MAX)) - UNITS);
        if let Some(ssthresh) = window.ssthresh {
            window.cwnd = window.cwnd.min(ssthresh);
        }
        true
    }

    fn in_reno_phase(&mut self, acked: &Acked) -> bool {
        if self.reno_phase == RenoPhase::TimedOut {
            self.reno_phase = RenoPhase::Until(acked.nxt);
        }
        let in_reno_phase = matches!(self.reno_phase, RenoPhase::Until(end) if acked.una < end);
        if !in_reno_phase {
            self.reno_phase = RenoPhase::No;
        }
        in_reno_phase
    }

    /// Grows cwnd by `units` 128ths of a segment.
    fn add(&mut self, window: &mut Window, units: u64) {
        self.fraction += units;
        let segments = self.fraction / UNITS;
        self.fraction %= UNITS;
        if segments > 0 {
            self.acks = 0;
        }
        let cwnd_max = CWND_MAX_SEGMENTS * window.segment;
        window.cwnd = (window.cwnd + segments * window.segment).min(cwnd_max);
    }

    /// Grows cwnd by one segment per window of ACKs.
    fn add_for_acks(&mut self, window: &mut Window) {
        self.acks += 1;
        if self.acks >= window.cwnd / window.segment {
            self.add(window, UNITS);
        }
    }
}

impl Avoidance for Hybla {
    fn grow(&mut self, window: &mut Window, acked: &Acked) {
        self.update_rho(acked.srtt);
        if self.in_reno_phase(acked) {
            self.add_for_acks(window);
            return;
        }
        // rho^2 is in 64ths; twice that is in 128ths.
        let segments = (window.cwnd / window.segment).max(1);
        let units = 2 * self.rho * self.rho / segments;
        if units > 0 {
            self.add(window, units);
        } else {
            self.add_for_acks(window);
        }
    }

    fn reduced(&mut self, window: &Window, flight: u64) -> u64 {
        // Linux halves cwnd; here the flight size bounds it.
        flight.min(window.cwnd) / 2
    }

    fn timed_out(&mut self) {
        self.reno_phase = RenoPhase::TimedOut;
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

    /// Hybla and its window after a handshake with an RTT of `rtt_ms`.
    fn opened(rtt_ms: u64) -> (Hybla, Window) {
        let mut hybla = Hybla::default();
        let mut window = Window { cwnd: 10 * SEGMENT, ssthresh: None, segment: SEGMENT };
        hybla.on_established(Some(Duration::from_millis(rtt_ms)), &mut window);
        (hybla, window)
    }

    /// Given rho = RTT / 25 ms, at least 1, expect an initial window of rho segments and growth by
    /// 2^rho - 1 per ACK in slow start: 1 at 25 ms and below, 2^1.5 - 1 = 1.828 at 37.5 ms (37 ms
    /// is 11 eighths: 1.594), 15 at 100 ms, 1023 at 250 ms. The power of the fraction is exact to
    /// 1/128, so twice that for a rho between one and two.
    #[test]
    fn slow_start_adds_two_to_the_rho_minus_one() {
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

    /// Given a geostationary RTT of 600 ms (rho 24), expect at most 2^16 segments per ACK, which is
    /// the maximum cwnd. Given an ssthresh, expect cwnd to stop there.
    #[test]
    fn slow_start_stops_at_ssthresh_and_at_the_maximum_window() {
        let (mut hybla, mut window) = opened(600);
        assert!(hybla.slow_start(&mut window, &acked(600, 1)));
        assert_eq!(window.cwnd, 65_535 * SEGMENT);
        let (mut hybla, mut window) = opened(600);
        window.ssthresh = Some(500 * SEGMENT);
        assert!(hybla.slow_start(&mut window, &acked(600, 1)));
        assert_eq!(window.cwnd, 500 * SEGMENT);
    }

    /// Given congestion avoidance, expect rho^2 segments per round trip: W ACKs of rho^2 / W each.
    /// That is rho per 25 ms for any RTT, rho times Reno's growth at 25 ms. While cwnd doubles from
    /// 200, 1/W falls to a half, and rounding down by 1/128 of a segment per ACK costs up to 400 /
    /// 128 segments per round trip.
    #[test]
    fn avoidance_adds_rho_squared_per_round_trip() {
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
                // The sum of rho^2 / w over the round: less than rho^2, because w grows.
                let max = rho * rho;
                let min = (max * before / (before + max)).saturating_sub(before / 128 + 1);
                assert!((min..=max + 1).contains(&grown), "{rtt_ms} ms, {round}: {grown}");
            }
        }
    }

    /// Given growth of 1/W below 1/128 of a segment per ACK, expect one segment per window of ACKs.
    #[test]
    fn the_minimum_growth_is_that_of_reno() {
        let (mut hybla, mut window) = opened(25);
        window.cwnd = 300 * SEGMENT;
        for _ in 0..299 {
            hybla.grow(&mut window, &acked(25, 1));
        }
        assert_eq!(window.cwnd, 300 * SEGMENT);
        hybla.grow(&mut window, &acked(25, 1));
        assert_eq!(window.cwnd, 301 * SEGMENT);
    }

    /// Given a longer RTT, expect an unchanged rho; given a shorter one, expect a smaller rho.
    #[test]
    fn only_the_minimum_rtt_sets_rho() {
        let (mut hybla, mut window) = opened(100);
        hybla.slow_start(&mut window, &acked(250, 1));
        assert_eq!(window.cwnd, (4 + 15) * SEGMENT);
        hybla.slow_start(&mut window, &acked(50, 1));
        assert_eq!(window.cwnd, (4 + 15 + 3) * SEGMENT);
    }

    /// Given a timeout with data up to 5001 outstanding, expect standard slow start until that is
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
