//! Vegas (Brakmo and Peterson 1995) as in Linux (`net/ipv4/tcp_vegas.c`): once per round trip it
//! estimates its own backlog in the queue, `diff = W (RTT - baseRTT) / baseRTT`, and keeps it
//! between two and four segments.
//!
//! Not modelled: the state after duplicate ACKs without a detected loss (`TCP_CA_Disorder`), in
//! which Linux suspends Vegas as in recovery; and growth of cwnd while it does not limit the
//! sender.

use super::reno::Reno;
use super::{Acked, Avoidance, Window};
use crate::packet::seq::Position;
use crate::time::Duration;

/// Below this backlog, cwnd grows.
const ALPHA: u64 = 2;
/// Above this backlog, cwnd decreases.
const BETA: u64 = 4;
/// Above this backlog, slow start ends.
const GAMMA: u64 = 1;
/// With at most this many samples in a round trip, all may be of delayed ACKs.
const SAMPLES_MIN: u32 = 2;
const WINDOW_MIN_SEGMENTS: u64 = 2;
/// Added to each sample, so that none is zero.
const MICROSECOND: Duration = Duration::from_micros(1);

/// See the module's description.
#[derive(Clone, Debug)]
pub(super) struct Vegas {
    /// The minimum RTT since the connection was last idle (baseRTT).
    base_rtt: Option<Duration>,
    /// The minimum RTT of this round, and the number of its samples.
    round_rtt: Option<Duration>,
    samples: u32,
    /// The round ends when data beyond this position is acknowledged.
    round_end: Position,
    phase: Phase,
    /// Used while Vegas is suspended.
    reno: Reno,
}

/// Whether Vegas is measuring, or suspended by a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Measuring,
    /// In fast recovery, until an ACK that grows cwnd.
    Recovering,
    TimedOut,
    /// After a timeout, until everything up to here is acknowledged.
    Loss(Position),
}

impl Vegas {
    pub(super) fn new(reno: Reno) -> Self {
        Self {
            base_rtt: None,
            round_rtt: None,
            samples: 0,
            round_end: 0,
            phase: Phase::Measuring,
            reno,
        }
    }

    /// Observes an ACK that does not grow cwnd.
    pub(super) fn observe(&mut self, acked: &Acked) {
        self.measure(acked);
        self.reset_if_idle(acked);
    }

    /// `tcp_vegas_cwnd_event`: with nothing outstanding, the next transmission starts from idle.
    fn reset_if_idle(&mut self, acked: &Acked) {
        if acked.una == acked.nxt {
            self.base_rtt = None;
            self.start(acked.nxt);
        }
    }

    /// `tcp_vegas_pkts_acked`; resumes Vegas when recovery is over.
    fn measure(&mut self, acked: &Acked) {
        self.phase = match self.phase {
            Phase::TimedOut => Phase::Loss(acked.nxt),
            phase => phase,
        };
        let is_over = match self.phase {
            Phase::Recovering => acked.bytes > 0,
            Phase::Loss(end) => acked.una >= end,
            Phase::Measuring | Phase::TimedOut => false,
        };
        if is_over {
            self.start(acked.nxt);
        }
        if let Some(rtt) = acked.rtt.map(|rtt| rtt + MICROSECOND) {
            self.base_rtt = Some(self.base_rtt.map_or(rtt, |base| base.min(rtt)));
            self.round_rtt = Some(self.round_rtt.map_or(rtt, |min| min.min(rtt)));
            self.samples += 1;
        }
    }

    /// `tcp_vegas_cong_avoid`. Returns false if standard slow start applies.
    pub(super) fn on_ack(&mut self, window: &mut Window, acked: &Acked) -> bool {
        self.measure(acked);
        let in_slow_start = window.ssthresh.is_none_or(|ssthresh| window.cwnd < ssthresh);
        let handled = if self.phase != Phase::Measuring {
            self.grow_as_reno(window, acked, in_slow_start)
        } else if acked.una > self.round_end {
            self.end_round(window, acked, in_slow_start)
        } else {
            !in_slow_start
        };
        self.reset_if_idle(acked);
        handled
    }

    /// `vegas_enable`.
    fn start(&mut self, nxt: Position) {
        self.phase = Phase::Measuring;
        self.round_end = nxt;
        (self.round_rtt, self.samples) = (None, 0);
    }

    fn grow_as_reno(&mut self, window: &mut Window, acked: &Acked, in_slow_start: bool) -> bool {
        if !in_slow_start {
            self.reno.grow(window, acked);
        }
        !in_slow_start
    }

    /// Compares the backlog with the thresholds, once per round trip.
    fn end_round(&mut self, window: &mut Window, acked: &Acked, in_slow_start: bool) -> bool {
        let (rtt, samples) = (self.round_rtt, self.samples);
        self.start(acked.nxt);
        let (Some(rtt), Some(base), true) = (rtt, self.base_rtt, samples > SAMPLES_MIN) else {
            return self.grow_as_reno(window, acked, in_slow_start);
        };
        let (rtt, base) = (rtt.as_nanos(), base.as_nanos());
        let segments = window.cwnd / window.segment;
        let target = segments.saturating_mul(base) / rtt;
        let queued = segments.saturating_mul(rtt - base) / base;
        let mut handled = true;
        if in_slow_start && queued > GAMMA {
            window.cwnd = segments.min(target + 1) * window.segment;
            lower_threshold(window);
        } else if in_slow_start {
            handled = false;
        } else if queued > BETA {
            window.cwnd -= window.segment;
            lower_threshold(window);
        } else if queued < ALPHA {
            window.cwnd += window.segment;
        }
        window.cwnd = window.cwnd.max(WINDOW_MIN_SEGMENTS * window.segment);
        // `tcp_current_ssthresh`.
        let quarters = window.cwnd / 2 + window.cwnd / 4;
        window.ssthresh = window.ssthresh.map(|ssthresh| ssthresh.max(quarters));
        handled
    }
}

/// `tcp_vegas_ssthresh`.
fn lower_threshold(window: &mut Window) {
    let lowest = window.ssthresh.map_or(window.cwnd, |ssthresh| ssthresh.min(window.cwnd));
    window.ssthresh = Some(lowest);
}

impl Avoidance for Vegas {
    fn grow(&mut self, window: &mut Window, acked: &Acked) {
        self.on_ack(window, acked);
    }

    fn reduced(&mut self, window: &Window, flight: u64) -> u64 {
        self.phase = Phase::Recovering;
        self.reno.reduced(window, flight)
    }

    fn timed_out(&mut self) {
        self.phase = Phase::TimedOut;
        self.reno.timed_out();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::config::{AvoidanceCounting, StackVariant};
    use crate::time::Instant;

    const SEGMENT: u64 = 1_000;

    /// Vegas with a base RTT of 100 ms, and this cwnd and ssthresh.
    fn measured(segments: u64, ssthresh: Option<u64>) -> (Vegas, Window) {
        let mut vegas = Vegas::new(Reno::new(AvoidanceCounting::Bytes, StackVariant::Linux));
        let mut window = Window { cwnd: segments * SEGMENT, ssthresh, segment: SEGMENT };
        vegas.on_ack(&mut window, &ack(100_000, 0, 1_000));
        vegas.start(1_000);
        window.cwnd = segments * SEGMENT;
        (vegas, window)
    }

    fn ack(rtt_us: u64, una: Position, nxt: Position) -> Acked {
        let rtt = Some(Duration::from_micros(rtt_us - 1));
        Acked { now: Instant::START, bytes: SEGMENT, rtt, srtt: rtt, una, nxt }
    }

    /// cwnd after a round of three samples of `rtt_us`.
    fn after_round(vegas: &mut Vegas, window: &mut Window, rtt_us: u64) -> u64 {
        let end = vegas.round_end;
        for una in [end - 1, end, end + 1] {
            vegas.on_ack(window, &ack(rtt_us, una, end + 1_000));
        }
        window.cwnd / SEGMENT
    }

    /// Given a cwnd of 20 and a base RTT of 100 ms, the backlog is 1 segment at 109.9 ms (20 x
    /// 0.099 rounded down), 2 at 110 ms, 4 at 124.9 ms and 5 at 125 ms: expect growth below 2 and a
    /// decrease above 4.
    #[test]
    fn the_backlog_is_two_to_four_segments() {
        for (rtt_us, expected) in
            [(100_000, 21), (109_900, 21), (110_000, 20), (124_900, 20), (125_000, 19)]
        {
            let (mut vegas, mut window) = measured(20, Some(2 * SEGMENT));
            assert_eq!(after_round(&mut vegas, &mut window, rtt_us), expected, "{rtt_us} us");
        }
    }

    /// Given slow start with 20 segments, 100 ms and 125 ms, expect cwnd and ssthresh of 20 x 0.8 +
    /// 1 = 17: the backlog is more than one segment.
    #[test]
    fn a_backlog_ends_slow_start() {
        let (mut vegas, mut window) = measured(20, None);
        assert_eq!(after_round(&mut vegas, &mut window, 125_000), 17);
        assert_eq!(window.ssthresh, Some(17 * SEGMENT));
        // 20 x 0.099 = 1: standard slow start continues.
        let (mut vegas, mut window) = measured(20, None);
        let end = vegas.round_end;
        vegas.observe(&ack(109_900, end, end + 1_000));
        vegas.observe(&ack(109_900, end, end + 1_000));
        assert!(!vegas.on_ack(&mut window, &ack(109_900, end + 1, end + 1_000)));
        assert_eq!((window.cwnd, window.ssthresh), (20 * SEGMENT, None));
    }

    /// Given two samples, which may both be of delayed ACKs, expect Reno's growth.
    #[test]
    fn two_samples_are_too_few() {
        let (mut vegas, mut window) = measured(20, Some(2 * SEGMENT));
        let end = vegas.round_end;
        vegas.on_ack(&mut window, &ack(200_000, end, end + 1_000));
        vegas.on_ack(&mut window, &ack(200_000, end + 1, end + 1_000));
        assert_eq!(window.cwnd, 20 * SEGMENT);
    }

    /// Given a fast recovery, expect Vegas to be suspended and a new round to begin at its end.
    #[test]
    fn a_loss_suspends_vegas_until_recovery_ends() {
        let (mut vegas, mut window) = measured(20, Some(2 * SEGMENT));
        window.cwnd = vegas.reduced(&window, 20 * SEGMENT);
        assert_eq!(window.cwnd, 10 * SEGMENT);
        vegas.observe(&Acked { bytes: 0, ..ack(300_000, 1_500, 2_000) });
        assert_eq!(vegas.phase, Phase::Recovering);
        vegas.on_ack(&mut window, &ack(300_000, 1_800, 2_500));
        assert_eq!((vegas.phase, vegas.round_end), (Phase::Measuring, 2_500));
        assert_eq!(after_round(&mut vegas, &mut window, 100_000), 11);
    }

    /// Given nothing outstanding, expect the base RTT to be reset: the path may have changed.
    #[test]
    fn an_idle_connection_resets_its_base_rtt() {
        let (mut vegas, mut window) = measured(20, Some(2 * SEGMENT));
        vegas.on_ack(&mut window, &ack(100_000, 900, 900));
        assert_eq!(vegas.base_rtt, None);
        assert_eq!(after_round(&mut vegas, &mut window, 200_000), 21);
    }
}
