//! CUBIC as in Linux (`net/ipv4/tcp_cubic.c`, 6.18). It differs from RFC 9438: it counts the ACKs
//! per segment of growth and updates that count at most once per millisecond; it looks ahead by the
//! *minimum* RTT; before the first loss it grows by at least a twentieth of cwnd per round trip;
//! alpha of the Reno-friendly window never becomes 1.

use super::{Acked, Avoidance, Window};
use crate::time::{Duration, Instant};

/// The constant of the cubic function, as in RFC 9438.
const C: f64 = 0.4;
/// The multiplicative decrease factor: 717 of 1,024.
const BETA: (u64, u64) = (717, 1_024);
/// The count is not updated for this long while cwnd is unchanged (HZ / 32).
const UPDATE_INTERVAL: Duration = Duration::from_micros(31_250);
/// RTT samples are ignored for this long after a stage begins (HZ).
const DELAY_DISCARD: Duration = Duration::from_secs(1);
/// The kernel's clock tick.
const TICK_NS: u64 = 1_000_000;
/// Maximum count before the first loss.
const COUNT_MAX_BEFORE_LOSS: u64 = 20;
/// Minimum count: cwnd grows by at most half per round trip.
const COUNT_MIN: u64 = 2;
/// The count in windows when cwnd is above the curve.
const COUNT_BEYOND: u64 = 100;
/// Eighths of cwnd that the Reno-friendly window needs per segment: 8 (1 + beta) / 3 (1 - beta).
const FRIENDLY_EIGHTHS: u64 = 15;
/// An ACK of more segments is counted by division.
const SEGMENTS_COUNTED: u64 = 3;

/// See the module's description. Windows are in segments.
#[derive(Clone, Debug, Default)]
pub(super) struct LinuxCubic {
    /// cwnd before the last reduction, after fast convergence; 0 before the first.
    last_max: u64,
    /// Start of the stage, the plateau of the curve, and K in seconds.
    epoch: Option<(Instant, u64, f64)>,
    /// ACKed segments per segment of growth; for which cwnd and when it was computed.
    count: u64,
    counted: Option<(u64, Instant)>,
    /// Segments acknowledged since the Reno-friendly window last grew, and that window.
    acked: u64,
    reno: u64,
    /// Segments acknowledged since cwnd last grew.
    cwnd_cnt: u64,
    /// A partly acknowledged segment, in bytes.
    partial_bytes: u64,
    delay_min: Option<Duration>,
    /// The last cwnd in bytes and in segments: it seldom changes, and a comparison is cheaper than
    /// a division.
    cached_segments: (u64, u64),
}

/// Full segments in `bytes`, and the rest. Most ACKs cover one or two, which needs no division.
#[inline]
fn full_segments(bytes: u64, segment: u64) -> (u64, u64) {
    let (mut count, mut rest) = (0, bytes);
    while rest >= segment {
        if count == SEGMENTS_COUNTED {
            return (bytes / segment, bytes % segment);
        }
        count += 1;
        rest -= segment;
    }
    (count, rest)
}

impl LinuxCubic {
    /// cwnd in segments.
    #[inline]
    fn cwnd_segments(&mut self, window: &Window) -> u64 {
        if self.cached_segments.0 != window.cwnd {
            self.cached_segments = (window.cwnd, window.cwnd / window.segment);
        }
        self.cached_segments.1
    }

    /// Excludes an idle period from the stage (`cubictcp_cwnd_event_tx_start`).
    pub(super) fn shift_epoch(&mut self, now: Instant, pause: Duration) {
        if let Some((start, _, _)) = &mut self.epoch {
            *start = now.min(*start + pause);
        }
    }

    /// `cubictcp_acked`: updates the minimum RTT, also in slow start, except during the first
    /// second of a stage, right after a recovery.
    pub(super) fn update_delay_min(&mut self, acked: &Acked) {
        let Some(rtt) = acked.rtt.filter(|&rtt| self.delay_min.is_none_or(|min| rtt < min)) else {
            return;
        };
        let is_early =
            |(start, ..): (Instant, u64, f64)| acked.now.saturating_since(start) < DELAY_DISCARD;
        if !self.epoch.is_some_and(is_early) {
            self.delay_min = Some(rtt);
        }
    }

    /// `bictcp_update`.
    fn update(&mut self, now: Instant, cwnd: u64, acked: u64) {
        self.acked += acked;
        let tick = |at: Instant| at.as_nanos() / TICK_NS;
        if let Some((window, at)) = self.counted {
            if window == cwnd && now <= at + UPDATE_INTERVAL {
                return;
            }
            if self.epoch.is_some() && tick(now) == tick(at) {
                self.reno_friendly(cwnd);
                return;
            }
        }
        self.counted = Some((cwnd, now));
        let (start, origin, k) = *self.epoch.get_or_insert_with(|| {
            self.acked = acked;
            self.reno = cwnd;
            begin(now, cwnd, self.last_max)
        });
        let ahead = now.saturating_since(start) + self.delay_min.unwrap_or(Duration::ZERO);
        let target = curve(origin, ahead.as_secs_f64() - k);
        self.count = if target > cwnd { cwnd / (target - cwnd) } else { COUNT_BEYOND * cwnd };
        if self.last_max == 0 {
            self.count = self.count.min(COUNT_MAX_BEFORE_LOSS);
        }
        self.reno_friendly(cwnd);
    }

    /// Limits the count so that cwnd grows at least as fast as the Reno-friendly window.
    fn reno_friendly(&mut self, cwnd: u64) {
        let need = cwnd * FRIENDLY_EIGHTHS / 8;
        while self.acked > need {
            self.acked -= need;
            self.reno += 1;
        }
        if self.reno > cwnd {
            self.count = self.count.min(cwnd / (self.reno - cwnd));
        }
        self.count = self.count.max(COUNT_MIN);
    }
}

fn begin(now: Instant, cwnd: u64, last_max: u64) -> (Instant, u64, f64) {
    if last_max <= cwnd {
        return (now, cwnd, 0.0);
    }
    #[expect(clippy::cast_precision_loss, reason = "windows are far below 2^53 segments")]
    let k = libm::cbrt((last_max - cwnd) as f64 / C);
    (now, last_max, k)
}

/// The curve's window, `t` seconds after it reaches `origin`. The distance is rounded down, as in
/// Linux.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "distances are positive and far below 2^53 segments"
)]
fn curve(origin: u64, t: f64) -> u64 {
    let distance = (C * t * t * t).abs() as u64;
    if t < 0.0 { origin.saturating_sub(distance) } else { origin.saturating_add(distance) }
}

impl Avoidance for LinuxCubic {
    fn grow(&mut self, window: &mut Window, acked: &Acked) {
        self.update_delay_min(acked);
        let bytes = self.partial_bytes + acked.bytes;
        let (acked_segments, partial_bytes) = full_segments(bytes, window.segment);
        self.partial_bytes = partial_bytes;
        if acked_segments == 0 {
            return;
        }
        let cwnd = self.cwnd_segments(window);
        self.update(acked.now, cwnd, acked_segments);
        // `tcp_cong_avoid_ai`.
        if self.cwnd_cnt >= self.count {
            self.cwnd_cnt = 0;
            window.cwnd += window.segment;
        }
        self.cwnd_cnt += acked_segments;
        if self.cwnd_cnt >= self.count {
            window.cwnd += self.cwnd_cnt / self.count * window.segment;
            self.cwnd_cnt %= self.count;
        }
    }

    fn reduced(&mut self, window: &Window, _flight: u64) -> u64 {
        let cwnd = window.cwnd / window.segment;
        self.epoch = None;
        self.cwnd_cnt = 0;
        self.last_max =
            if cwnd < self.last_max { cwnd * (BETA.0 + BETA.1) / (2 * BETA.1) } else { cwnd };
        cwnd * BETA.0 / BETA.1 * window.segment
    }

    fn timed_out(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::config::{Config, CongestionName, StackVariant};
    use crate::tcp::congestion::{Algorithm, Control};

    fn config() -> Config {
        let linux = crate::tcp::tests::plain();
        Config { congestion: CongestionName::Cubic, stack: StackVariant::Linux, ..linux }
    }

    const SEGMENT: u64 = 1_000;

    /// Acknowledges one window per round for `rounds` rounds of 100 ms from `start`.
    fn run(cubic: &mut LinuxCubic, window: &mut Window, start: Instant, rounds: u64) {
        let rtt = Some(Duration::from_millis(100));
        for round in 0..rounds {
            let segments = window.cwnd / SEGMENT;
            for ack in 0..segments {
                let now = start
                    + Duration::from_millis(100).saturating_mul(round)
                    + Duration::from_micros(100_000 * ack / segments);
                let acked = Acked { now, bytes: SEGMENT, rtt, srtt: rtt, una: 1, nxt: 1 };
                cubic.grow(window, &acked);
            }
        }
    }

    /// Given any number of bytes, expect the same result as by division.
    #[test]
    fn full_segments_are_counted_as_by_division() {
        for bytes in 0..6_500 {
            assert_eq!(
                full_segments(bytes, SEGMENT),
                (bytes / SEGMENT, bytes % SEGMENT),
                "{bytes}"
            );
        }
    }

    /// Given a reduction from 1,000 segments to 700, expect cwnd back after cbrt(300 / 0.4) = 9.086
    /// s less one RTT.
    #[test]
    fn cwnd_returns_to_last_max_after_k() {
        let mut cubic = LinuxCubic::default();
        let mut window = Window { cwnd: 1_000 * SEGMENT, ssthresh: None, segment: SEGMENT };
        window.cwnd = cubic.reduced(&window, 0);
        assert_eq!(window.cwnd, 700 * SEGMENT);
        run(&mut cubic, &mut window, Instant::START, 90);
        let segments = window.cwnd / SEGMENT;
        assert!((990..=1_001).contains(&segments), "{segments}");
    }

    /// Given an idle period of 100 s in between, expect the same.
    #[test]
    fn an_idle_period_is_excluded() {
        let mut cubic = LinuxCubic::default();
        let mut window = Window { cwnd: 1_000 * SEGMENT, ssthresh: None, segment: SEGMENT };
        window.cwnd = cubic.reduced(&window, 0);
        run(&mut cubic, &mut window, Instant::START, 46);
        let now = Instant::from_millis(104_600);
        cubic.shift_epoch(now, Duration::from_secs(100));
        run(&mut cubic, &mut window, now, 44);
        let segments = window.cwnd / SEGMENT;
        assert!((990..=1_001).contains(&segments), "{segments}");
    }

    /// Given a cwnd of 200 and no loss, expect growth by a twentieth per round trip: in 10 rounds
    /// by 1.05^10 = 1.63. The curve of RFC 9438 would add 0.4 (1 s)^3 = 0.4 segments.
    #[test]
    fn before_the_first_loss_cwnd_grows_by_a_twentieth() {
        let mut cubic = LinuxCubic::default();
        let mut window = Window { cwnd: 200 * SEGMENT, ssthresh: None, segment: SEGMENT };
        run(&mut cubic, &mut window, Instant::START, 10);
        let segments = window.cwnd / SEGMENT;
        assert!((315..=330).contains(&segments), "{segments}");
    }

    /// Given a cwnd of 20 after one of 28, expect Reno's growth with beta 0.7: 8/15 of a segment
    /// per round, 32 in 60 rounds; the curve (K = 2.7 s) gives 8 + 0.4 (3.4)^3 = 23.
    #[test]
    fn a_small_window_is_reno_friendly() {
        let mut cubic = LinuxCubic::default();
        let mut window = Window { cwnd: 28 * SEGMENT, ssthresh: None, segment: SEGMENT };
        window.cwnd = cubic.reduced(&window, 0);
        assert_eq!(window.cwnd, 19 * SEGMENT);
        run(&mut cubic, &mut window, Instant::START, 40);
        let segments = window.cwnd / SEGMENT;
        assert!((38..=44).contains(&segments), "{segments}");
    }

    /// Given RTTs of 100 ms in slow start, whether cwnd grew or not, and of 300 ms after it, expect
    /// the curve to look 100 ms ahead (`cubictcp_acked`, called for each ACK with a sample).
    #[test]
    fn the_minimum_rtt_includes_slow_start() {
        let mut cubic = Control::new(&config());
        let ack = |at_ms, rtt_ms| Acked {
            now: Instant::from_millis(at_ms),
            bytes: SEGMENT,
            rtt: Some(Duration::from_millis(rtt_ms)),
            srtt: None,
            una: 1,
            nxt: 1,
        };
        let delay_min = |control: &Control| match &control.algorithm {
            Algorithm::LinuxCubic(cubic) => cubic.delay_min.map(Duration::as_nanos),
            _ => unreachable!("CUBIC as in Linux"),
        };
        cubic.on_ack(&ack(100, 120));
        assert_eq!(delay_min(&cubic), Some(120_000_000));
        cubic.observe_ack(&ack(150, 110));
        assert_eq!(delay_min(&cubic), Some(110_000_000));
        cubic.on_ack(&ack(200, 100));
        assert_eq!(delay_min(&cubic), Some(100_000_000));
        cubic.on_congestion(10_000);
        // The stage begins; its first second is ignored.
        cubic.on_ack(&ack(300, 300));
        cubic.on_ack(&ack(1_299, 50));
        assert_eq!(delay_min(&cubic), Some(100_000_000));
        cubic.on_ack(&ack(1_300, 60));
        assert_eq!(delay_min(&cubic), Some(60_000_000));
    }

    #[test]
    fn fast_convergence_lowers_last_max() {
        let mut cubic = LinuxCubic { last_max: 1_000, ..LinuxCubic::default() };
        let window = Window { cwnd: 800 * SEGMENT, ssthresh: None, segment: SEGMENT };
        assert_eq!(cubic.reduced(&window, 0), 560 * SEGMENT);
        // 800 (1 + 0.7) / 2.
        assert_eq!(cubic.last_max, 680);
    }

    /// `cubictcp_state`, TCP_CA_Loss: a timeout resets the curve. Given a reduction from 100 segments, the
    /// last maximum is 100; after a timeout it is unknown again.
    #[test]
    fn a_timeout_forgets_the_last_maximum() {
        let window = Window { cwnd: 100_000, ssthresh: None, segment: 1_000 };
        let mut cubic = LinuxCubic::default();
        // beta is 717/1024.
        assert_eq!(cubic.reduced(&window, 100_000), 70_000);
        assert_eq!(cubic.last_max, 100);
        cubic.timed_out();
        assert_eq!(cubic.last_max, 0);
    }
}
