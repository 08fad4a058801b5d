//! Westwood+ (Mascolo and others 2001; Grieco and Mascolo 2004) as Linux has it
//! (`net/ipv4/tcp_westwood.c`): Reno, but after a loss the window is what the path holds by the
//! measured rate of ACKs, `W = B RTTmin`.
//!
//! Arithmetic is Linux's with HZ = 1000: bytes and milliseconds in integers, so that below some
//! 100 kbit/s the rate is coarse.

use super::reno::Reno;
use super::{Acked, Avoidance, Window};
use crate::packet::seq::Position;
use crate::time::Instant;

const TICK_NS: u64 = 1_000_000;
/// A sample of the rate takes a round trip, and this at least (TCP_WESTWOOD_RTT_MIN).
const SAMPLE_MS: u64 = 50;
/// The round trip before one was measured (TCP_WESTWOOD_INIT_RTT).
const RTT_FIRST_MS: u64 = 20_000;
const WINDOW_MIN_SEGMENTS: u64 = 2;

/// See the module's description. Times are in milliseconds and rates in bytes a millisecond.
#[derive(Clone, Debug)]
pub(super) struct Westwood {
    /// The rate of ACKs, smoothed once and twice.
    smoothed: u64,
    rate: u64,
    /// When this sample began, and the bytes that it counts.
    sample_start: u64,
    bytes: u64,
    una: Option<Position>,
    /// What duplicate ACKs were counted for and the left edge will pass again.
    accounted: u64,
    rtt: u64,
    rtt_min: u64,
    takes_next_rtt: bool,
    /// Whether a recovery is under way.
    recovering: bool,
    reno: Reno,
}

impl Westwood {
    pub(super) fn new(reno: Reno) -> Self {
        Self {
            smoothed: 0,
            rate: 0,
            sample_start: 0,
            bytes: 0,
            una: None,
            accounted: 0,
            rtt: RTT_FIRST_MS,
            rtt_min: RTT_FIRST_MS,
            takes_next_rtt: true,
            recovering: false,
            reno,
        }
    }

    /// The handshake is complete.
    pub(super) fn opened(&mut self, now: Instant) {
        self.sample_start = ticks(now);
    }

    /// `tcp_westwood_ack` and `tcp_westwood_pkts_acked`: an ACK came, of whatever kind.
    pub(super) fn note(&mut self, segment: u64, acked: &Acked) {
        self.end_sample(ticks(acked.now));
        self.bytes += self.counted(segment, acked);
        self.rtt_min = if self.takes_next_rtt { self.rtt } else { self.rtt_min.min(self.rtt) };
        self.takes_next_rtt = false;
        if let Some(rtt) = acked.rtt {
            self.rtt = rtt.as_nanos().div_ceil(TICK_NS);
        }
    }

    /// `westwood_update_window` and `westwood_filter`.
    fn end_sample(&mut self, now: u64) {
        let took = now - self.sample_start;
        if self.rtt == 0 || took <= self.rtt.max(SAMPLE_MS) {
            return;
        }
        let sample = self.bytes / took;
        if self.smoothed == 0 && self.rate == 0 {
            (self.smoothed, self.rate) = (sample, sample);
        } else {
            self.smoothed = (7 * self.smoothed + sample) / 8;
            self.rate = (7 * self.rate + self.smoothed) / 8;
        }
        (self.sample_start, self.bytes) = (now, 0);
    }

    /// `westwood_acked_count`: a duplicate counts for a segment, which the left edge does not count
    /// for again.
    fn counted(&mut self, segment: u64, acked: &Acked) -> u64 {
        // Linux takes the left edge after the first ACK for the one to start from.
        let before = self.una.replace(acked.una).unwrap_or(acked.una);
        let advanced = acked.una - before;
        if advanced == 0 {
            self.accounted += segment;
            segment
        } else if advanced <= segment {
            advanced
        } else if self.accounted >= advanced {
            self.accounted -= advanced;
            segment
        } else {
            advanced - std::mem::take(&mut self.accounted)
        }
    }

    /// `tcp_westwood_bw_rttmin`, in bytes.
    fn path_window(&self, segment: u64) -> u64 {
        (self.rate * self.rtt_min / segment).max(WINDOW_MIN_SEGMENTS) * segment
    }

    /// A recovery is over, if there was one: the window is what the path holds.
    pub(super) fn recovered(&mut self, window: &mut Window) {
        if std::mem::take(&mut self.recovering) {
            window.cwnd = self.path_window(window.segment);
            window.ssthresh = Some(window.cwnd);
        }
    }

    /// The retransmission timer expired, and not for the second time: the threshold.
    pub(super) fn lost(&mut self, window: &mut Window) {
        window.ssthresh = Some(self.path_window(window.segment));
        self.takes_next_rtt = true;
    }
}

fn ticks(now: Instant) -> u64 {
    now.saturating_since(Instant::START).as_nanos() / TICK_NS
}

impl Avoidance for Westwood {
    fn grow(&mut self, window: &mut Window, acked: &Acked) {
        self.reno.grow(window, acked);
    }

    fn reduced(&mut self, window: &Window, flight: u64) -> u64 {
        self.recovering = true;
        self.reno.reduced(window, flight)
    }

    fn timed_out(&mut self) {
        self.recovering = false;
        self.reno.timed_out();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::config::{AvoidanceCounting, Follows};
    use crate::time::Duration;

    const SEGMENT: u64 = 1_000;

    fn westwood() -> Westwood {
        Westwood::new(Reno::new(AvoidanceCounting::Bytes, Follows::Linux))
    }

    fn ack(at_ms: u64, una: Position) -> Acked {
        let rtt = Some(Duration::from_millis(100));
        let now = Instant::from_millis(at_ms);
        Acked { now, bytes: SEGMENT, rtt, srtt: rtt, una, nxt: una + 50_000 }
    }

    /// An ACK for a segment each 2 ms are 500 bytes a millisecond, and 100 ms of that are 50 segments:
    /// the window after a loss, whatever it was before.
    #[test]
    fn the_window_after_a_loss_is_what_the_path_holds() {
        let mut westwood = westwood();
        for n in 0..2_000 {
            westwood.note(SEGMENT, &ack(2 * n, 1 + n * SEGMENT));
        }
        // Samples of 102 ms have 51 segments but for rounding and the first one.
        assert!((485..=500).contains(&westwood.rate), "{}", westwood.rate);
        let mut window = Window { cwnd: 80 * SEGMENT, ssthresh: None, segment: SEGMENT };
        let reduced = westwood.reduced(&window, 80 * SEGMENT);
        assert_eq!(reduced, 40 * SEGMENT, "Reno's, for as long as the recovery lasts");
        westwood.recovered(&mut window);
        assert!((48..=50).contains(&(window.cwnd / SEGMENT)), "{window:?}");
        assert_eq!(window.ssthresh, Some(window.cwnd));
        window.cwnd += SEGMENT;
        westwood.recovered(&mut window);
        assert!(Some(window.cwnd) > window.ssthresh, "once");
    }

    /// The filters: after a first sample of 800 one of 0 leaves 7/8 and then (7 x 800 + 700) / 8.
    #[test]
    fn two_filters_in_series() {
        let mut westwood = westwood();
        westwood.rtt = 100;
        westwood.bytes = 101 * 800;
        westwood.end_sample(101);
        assert_eq!((westwood.smoothed, westwood.rate), (800, 800));
        westwood.end_sample(201);
        assert_eq!(westwood.rate, 800, "a sample takes more than a round trip");
        westwood.end_sample(202);
        assert_eq!((westwood.smoothed, westwood.rate), (700, 787));
    }

    /// Three duplicates count for a segment each, and the ACK of five segments that ends them for two.
    #[test]
    fn duplicates_count_once() {
        let mut westwood = westwood();
        westwood.una = Some(1);
        for _ in 0..3 {
            assert_eq!(westwood.counted(SEGMENT, &ack(1, 1)), SEGMENT);
        }
        assert_eq!(westwood.counted(SEGMENT, &ack(1, 5_001)), 2 * SEGMENT);
        assert_eq!(westwood.counted(SEGMENT, &ack(1, 6_001)), SEGMENT);
    }

    /// After a time-out the smallest round trip is measured anew, with the next ACK.
    #[test]
    fn a_timeout_forgets_the_smallest_round_trip() {
        let mut westwood = westwood();
        for n in 0..3 {
            westwood.note(SEGMENT, &ack(n, 1));
        }
        assert_eq!(westwood.rtt_min, 100);
        let mut window = Window { cwnd: SEGMENT, ssthresh: None, segment: SEGMENT };
        westwood.lost(&mut window);
        assert_eq!(window.ssthresh, Some(2 * SEGMENT));
        westwood.rtt = 250;
        westwood.note(SEGMENT, &ack(4, 1));
        assert_eq!(westwood.rtt_min, 250);
    }
}
