//! Westwood+ (Mascolo and others 2001; Grieco and Mascolo 2004) as in Linux
//! (`net/ipv4/tcp_westwood.c`): Reno, but after a loss cwnd becomes the bandwidth-delay product of
//! the measured ACK rate, `W = B RTTmin`.
//!
//! Arithmetic is Linux's with HZ = 1000: integer bytes and milliseconds, so that the rate is coarse
//! below some 100 kbit/s.

use super::reno::Reno;
use super::{Acked, Avoidance, Window};
use crate::packet::seq::Position;
use crate::time::Instant;

const TICK_NS: u64 = 1_000_000;
/// Minimum length of a rate sample (TCP_WESTWOOD_RTT_MIN); it is at least one RTT.
const SAMPLE_MS: u64 = 50;
/// Initial RTT (TCP_WESTWOOD_INIT_RTT).
const RTT_FIRST_MS: u64 = 20_000;
const WINDOW_MIN_SEGMENTS: u64 = 2;

/// See the module's description. Times are in milliseconds and rates in bytes per millisecond.
#[derive(Clone, Debug)]
pub(super) struct Westwood {
    /// The ACK rate after one and after two low-pass filters.
    smoothed: u64,
    rate: u64,
    /// Start of the current sample, and its bytes.
    sample_start: u64,
    bytes: u64,
    una: Option<Position>,
    /// Bytes counted for duplicate ACKs that SND.UNA has not passed yet.
    accounted: u64,
    rtt: u64,
    rtt_min: u64,
    reset_rtt_min: bool,
    /// Whether a recovery is in progress.
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
            reset_rtt_min: true,
            recovering: false,
            reno,
        }
    }

    /// The handshake completed.
    pub(super) fn on_established(&mut self, now: Instant) {
        self.sample_start = ticks(now);
    }

    /// `tcp_westwood_ack` and `tcp_westwood_pkts_acked`: processes any ACK.
    pub(super) fn observe(&mut self, segment: u64, acked: &Acked) {
        self.end_sample(ticks(acked.now));
        self.bytes += self.acked_count(segment, acked);
        self.rtt_min = if self.reset_rtt_min { self.rtt } else { self.rtt_min.min(self.rtt) };
        self.reset_rtt_min = false;
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

    /// `westwood_acked_count`: a duplicate ACK counts as a segment, which is later subtracted from
    /// the advance of SND.UNA.
    fn acked_count(&mut self, segment: u64, acked: &Acked) -> u64 {
        // Linux starts from SND.UNA after the first ACK.
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
    fn bdp(&self, segment: u64) -> u64 {
        (self.rate * self.rtt_min / segment).max(WINDOW_MIN_SEGMENTS) * segment
    }

    /// Ends a recovery, if there was one: cwnd becomes the bandwidth-delay product.
    pub(super) fn on_recovery_end(&mut self, window: &mut Window) {
        if std::mem::take(&mut self.recovering) {
            window.cwnd = self.bdp(window.segment);
            window.ssthresh = Some(window.cwnd);
        }
    }

    /// The first retransmission timeout of a loss: sets ssthresh.
    pub(super) fn on_timeout(&mut self, window: &mut Window) {
        window.ssthresh = Some(self.bdp(window.segment));
        self.reset_rtt_min = true;
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
    use crate::tcp::config::{AvoidanceCounting, StackVariant};
    use crate::time::Duration;

    const SEGMENT: u64 = 1_000;

    fn westwood() -> Westwood {
        Westwood::new(Reno::new(AvoidanceCounting::Bytes, StackVariant::Linux))
    }

    fn ack(at_ms: u64, una: Position) -> Acked {
        let rtt = Some(Duration::from_millis(100));
        let now = Instant::from_millis(at_ms);
        Acked { now, bytes: SEGMENT, rtt, srtt: rtt, una, nxt: una + 50_000 }
    }

    /// Given an ACK of one segment every 2 ms (500 bytes per millisecond) and 100 ms, expect a cwnd
    /// of 50 segments after a loss, whatever it was before.
    #[test]
    fn cwnd_after_a_loss_is_the_bandwidth_delay_product() {
        let mut westwood = westwood();
        for n in 0..2_000 {
            westwood.observe(SEGMENT, &ack(2 * n, 1 + n * SEGMENT));
        }
        // Samples of 102 ms have 51 segments, except for rounding and the first one.
        assert!((485..=500).contains(&westwood.rate), "{}", westwood.rate);
        let mut window = Window { cwnd: 80 * SEGMENT, ssthresh: None, segment: SEGMENT };
        let reduced = westwood.reduced(&window, 80 * SEGMENT);
        assert_eq!(reduced, 40 * SEGMENT, "Reno's reduction during recovery");
        westwood.on_recovery_end(&mut window);
        assert!((48..=50).contains(&(window.cwnd / SEGMENT)), "{window:?}");
        assert_eq!(window.ssthresh, Some(window.cwnd));
        window.cwnd += SEGMENT;
        westwood.on_recovery_end(&mut window);
        assert!(Some(window.cwnd) > window.ssthresh, "once");
    }

    /// Given samples of 800 and 0, expect 7/8 of 800 after the first filter and (7 x 800 + 700) / 8
    /// after the second.
    #[test]
    fn two_filters_in_series() {
        let mut westwood = westwood();
        westwood.rtt = 100;
        westwood.bytes = 101 * 800;
        westwood.end_sample(101);
        assert_eq!((westwood.smoothed, westwood.rate), (800, 800));
        westwood.end_sample(201);
        assert_eq!(westwood.rate, 800, "a sample takes more than an RTT");
        westwood.end_sample(202);
        assert_eq!((westwood.smoothed, westwood.rate), (700, 787));
    }

    /// Given three duplicate ACKs, expect a segment for each, and two for the following ACK of five
    /// segments.
    #[test]
    fn duplicate_acks_count_once() {
        let mut westwood = westwood();
        westwood.una = Some(1);
        for _ in 0..3 {
            assert_eq!(westwood.acked_count(SEGMENT, &ack(1, 1)), SEGMENT);
        }
        assert_eq!(westwood.acked_count(SEGMENT, &ack(1, 5_001)), 2 * SEGMENT);
        assert_eq!(westwood.acked_count(SEGMENT, &ack(1, 6_001)), SEGMENT);
    }

    /// Given a timeout, expect the minimum RTT to be set by the next ACK.
    #[test]
    fn a_timeout_resets_the_minimum_rtt() {
        let mut westwood = westwood();
        for n in 0..3 {
            westwood.observe(SEGMENT, &ack(n, 1));
        }
        assert_eq!(westwood.rtt_min, 100);
        let mut window = Window { cwnd: SEGMENT, ssthresh: None, segment: SEGMENT };
        westwood.on_timeout(&mut window);
        assert_eq!(window.ssthresh, Some(2 * SEGMENT));
        westwood.rtt = 250;
        westwood.observe(SEGMENT, &ack(4, 1));
        assert_eq!(westwood.rtt_min, 250);
    }
}
