//! CUBIC as Linux has it (`net/ipv4/tcp_cubic.c`, 6.18), where it differs from RFC 9438: it counts ACKs
//! for each segment of growth and sets that count at most once a millisecond; it looks one *smallest*
//! round trip ahead; before the first loss it grows by a twentieth of the window a round trip at
//! least; the additive part never speeds up to Reno's.

use super::{Acked, Avoidance, Window};
use crate::time::{Duration, Instant};

/// Of the cubic function, as in RFC 9438.
const C: f64 = 0.4;
/// What is left of the window after congestion: 717 of 1,024.
const BETA: (u64, u64) = (717, 1_024);
/// With the window as it was, the count holds for so long (HZ / 32).
const HOLDS: Duration = Duration::from_micros(31_250);
/// Round trips count no earlier in a stage (HZ).
const DISCARDS: Duration = Duration::from_secs(1);
/// The kernel's clock.
const TICK_NS: u64 = 1_000_000;
/// Before the first loss a segment of growth takes so many acknowledged ones at most.
const COUNT_MAX_BEFORE_LOSS: u64 = 20;
/// And never fewer than so many: half again a round trip.
const COUNT_MIN: u64 = 2;
/// Where the window is beyond the curve, it grows by a segment in so many windows.
const COUNT_BEYOND: u64 = 100;
/// Eighths of the window that Reno, so friendly, needs for a segment: 8 (1 + beta) / 3 (1 - beta).
const FRIENDLY_EIGHTHS: u64 = 15;
/// An ACK that covers more is counted by division.
const SEGMENTS_COUNTED: u64 = 3;

/// See the module's description. Windows are in segments.
#[derive(Clone, Debug, Default)]
pub(super) struct LinuxCubic {
    /// The window before the last reduction, after fast convergence; 0 before the first.
    last_max: u64,
    /// When the stage began, the window that the curve leads to, and when it gets there.
    epoch: Option<(Instant, u64, f64)>,
    /// Acknowledged segments for a segment of growth, for which window that was, and when.
    count: u64,
    counted: Option<(u64, Instant)>,
    /// Acknowledged since the stage began or Reno last grew, and Reno's window.
    acked: u64,
    reno: u64,
    /// Acknowledged and not yet grown for.
    credit: u64,
    /// A part of a segment that was acknowledged, in bytes.
    rest_bytes: u64,
    min_rtt: Option<Duration>,
    /// The last window that was asked for, in bytes and in segments: it changes with few ACKs, and a
    /// comparison costs less than a division.
    converted: (u64, u64),
}

/// Full segments in `bytes`, and what is left of them. An ACK mostly covers one or two, which needs no
/// division.
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
    /// The window in segments.
    #[inline]
    fn cwnd_segments(&mut self, window: &Window) -> u64 {
        if self.converted.0 != window.cwnd {
            self.converted = (window.cwnd, window.cwnd / window.segment);
        }
        self.converted.1
    }

    /// A pause does not count (`cubictcp_cwnd_event_tx_start`).
    pub(super) fn shift_epoch(&mut self, now: Instant, pause: Duration) {
        if let Some((start, _, _)) = &mut self.epoch {
            *start = now.min(*start + pause);
        }
    }

    /// `cubictcp_acked`: every sample counts, in slow start too, but for those of the first second of a
    /// stage, right after a recovery.
    pub(super) fn note_delay(&mut self, acked: &Acked) {
        let Some(rtt) = acked.rtt.filter(|&rtt| self.min_rtt.is_none_or(|min| rtt < min)) else {
            return;
        };
        let is_early =
            |(start, ..): (Instant, u64, f64)| acked.now.saturating_since(start) < DISCARDS;
        if !self.epoch.is_some_and(is_early) {
            self.min_rtt = Some(rtt);
        }
    }

    /// `bictcp_update`.
    fn update(&mut self, now: Instant, cwnd: u64, acked: u64) {
        self.acked += acked;
        let tick = |at: Instant| at.as_nanos() / TICK_NS;
        if let Some((window, at)) = self.counted {
            if window == cwnd && now <= at + HOLDS {
                return;
            }
            if self.epoch.is_some() && tick(now) == tick(at) {
                self.befriend(cwnd);
                return;
            }
        }
        self.counted = Some((cwnd, now));
        let (start, origin, k) = *self.epoch.get_or_insert_with(|| {
            self.acked = acked;
            self.reno = cwnd;
            begin(now, cwnd, self.last_max)
        });
        let ahead = now.saturating_since(start) + self.min_rtt.unwrap_or(Duration::ZERO);
        let target = curve(origin, ahead.as_secs_f64() - k);
        self.count = if target > cwnd { cwnd / (target - cwnd) } else { COUNT_BEYOND * cwnd };
        if self.last_max == 0 {
            self.count = self.count.min(COUNT_MAX_BEFORE_LOSS);
        }
        self.befriend(cwnd);
    }

    /// At least as fast as Reno with CUBIC's reduction would grow.
    fn befriend(&mut self, cwnd: u64) {
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

/// The curve's window, `t` seconds after it reaches `origin`. The distance is rounded down, as there.
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
        self.note_delay(acked);
        let bytes = self.rest_bytes + acked.bytes;
        let (acked_segments, rest_bytes) = full_segments(bytes, window.segment);
        self.rest_bytes = rest_bytes;
        if acked_segments == 0 {
            return;
        }
        let cwnd = self.cwnd_segments(window);
        self.update(acked.now, cwnd, acked_segments);
        // `tcp_cong_avoid_ai`.
        if self.credit >= self.count {
            self.credit = 0;
            window.cwnd += window.segment;
        }
        self.credit += acked_segments;
        if self.credit >= self.count {
            window.cwnd += self.credit / self.count * window.segment;
            self.credit %= self.count;
        }
    }

    fn reduced(&mut self, window: &Window, _flight: u64) -> u64 {
        let cwnd = window.cwnd / window.segment;
        self.epoch = None;
        self.credit = 0;
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
    use crate::tcp::config::{Config, CongestionName, Follows};
    use crate::tcp::congestion::{Algorithm, Control};

    fn config() -> Config {
        let linux = crate::tcp::tests::plain();
        Config { congestion: CongestionName::Cubic, follows: Follows::Linux, ..linux }
    }

    const SEGMENT: u64 = 1_000;

    /// Acknowledges a window a round for `rounds` rounds of 100 ms from `start`.
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

    /// Whole segments and the rest of them, whichever way they are counted.
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

    /// From 700 of 1,000 segments it takes cbrt(300 / 0.4) = 9.086 s less the round trip ahead.
    #[test]
    fn the_window_is_back_after_k() {
        let mut cubic = LinuxCubic::default();
        let mut window = Window { cwnd: 1_000 * SEGMENT, ssthresh: None, segment: SEGMENT };
        window.cwnd = cubic.reduced(&window, 0);
        assert_eq!(window.cwnd, 700 * SEGMENT);
        run(&mut cubic, &mut window, Instant::START, 90);
        let segments = window.cwnd / SEGMENT;
        assert!((990..=1_001).contains(&segments), "{segments}");
    }

    /// The same with a pause of 100 s on the way, which does not count.
    #[test]
    fn a_pause_does_not_count() {
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

    /// Without a loss before, a window of 200 grows by a twentieth in each round trip: in 10 rounds
    /// by 1.05^10 = 1.63. RFC 9438's curve would add 0.4 (1 s)^3 = 0.4 segments.
    #[test]
    fn before_the_first_loss_it_grows_by_a_twentieth() {
        let mut cubic = LinuxCubic::default();
        let mut window = Window { cwnd: 200 * SEGMENT, ssthresh: None, segment: SEGMENT };
        run(&mut cubic, &mut window, Instant::START, 10);
        let segments = window.cwnd / SEGMENT;
        assert!((315..=330).contains(&segments), "{segments}");
    }

    /// A window of 20 after one of 28 grows as Reno with beta 0.7 would: 8/15 of a segment a round,
    /// in 60 rounds 32, of which the curve (K = 2.7 s) gives 8 + 0.4 (3.4)^3 = 23.
    #[test]
    fn a_small_window_grows_as_reno_would() {
        let mut cubic = LinuxCubic::default();
        let mut window = Window { cwnd: 28 * SEGMENT, ssthresh: None, segment: SEGMENT };
        window.cwnd = cubic.reduced(&window, 0);
        assert_eq!(window.cwnd, 19 * SEGMENT);
        run(&mut cubic, &mut window, Instant::START, 40);
        let segments = window.cwnd / SEGMENT;
        assert!((38..=44).contains(&segments), "{segments}");
    }

    /// `cubictcp_acked`, which is called for each ACK with a sample: given round trips of 100 ms in slow
    /// start, whether the window grew or not, and of 300 ms after it, expect that the curve looks 100 ms
    /// ahead.
    #[test]
    fn the_smallest_round_trip_is_that_of_slow_start() {
        let mut cubic = Control::new(&config());
        let ack = |at_ms, rtt_ms| Acked {
            now: Instant::from_millis(at_ms),
            bytes: SEGMENT,
            rtt: Some(Duration::from_millis(rtt_ms)),
            srtt: None,
            una: 1,
            nxt: 1,
        };
        let min_rtt = |control: &Control| match &control.algorithm {
            Algorithm::LinuxCubic(cubic) => cubic.min_rtt.map(Duration::as_nanos),
            _ => unreachable!("CUBIC as in Linux"),
        };
        cubic.acked(&ack(100, 120));
        assert_eq!(min_rtt(&cubic), Some(120_000_000));
        cubic.noted(&ack(150, 110));
        assert_eq!(min_rtt(&cubic), Some(110_000_000));
        cubic.acked(&ack(200, 100));
        assert_eq!(min_rtt(&cubic), Some(100_000_000));
        cubic.congestion(10_000);
        // The stage begins; its first second does not count.
        cubic.acked(&ack(300, 300));
        cubic.acked(&ack(1_299, 50));
        assert_eq!(min_rtt(&cubic), Some(100_000_000));
        cubic.acked(&ack(1_300, 60));
        assert_eq!(min_rtt(&cubic), Some(60_000_000));
    }

    #[test]
    fn fast_convergence_remembers_less_than_it_had() {
        let mut cubic = LinuxCubic { last_max: 1_000, ..LinuxCubic::default() };
        let window = Window { cwnd: 800 * SEGMENT, ssthresh: None, segment: SEGMENT };
        assert_eq!(cubic.reduced(&window, 0), 560 * SEGMENT);
        // 800 (1 + 0.7) / 2.
        assert_eq!(cubic.last_max, 680);
    }
}
