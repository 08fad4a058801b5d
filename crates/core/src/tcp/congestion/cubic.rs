//! CUBIC (RFC 9438). Arithmetic is in segments and floating point, as in the RFC. cwnd changes by
//! whole bytes; the fraction is carried to the next ACK.

use super::{Acked, Avoidance, Window};
use crate::time::{Duration, Instant};

/// Section 4.1: the aggressiveness of the cubic function.
const C: f64 = 0.4;
/// Section 4.6: the multiplicative decrease factor.
const BETA: f64 = 0.7;

/// See the module's description.
#[derive(Clone, Debug, Default)]
pub(super) struct Cubic {
    /// cwnd before the last reduction, in segments, after fast convergence.
    w_max: f64,
    /// cwnd before the last reduction, in segments.
    cwnd_prior: f64,
    epoch: Option<Epoch>,
    byte_fraction: f64,
}

/// A congestion-avoidance stage. It begins with the first growth after a reduction.
#[derive(Clone, Copy, Debug)]
struct Epoch {
    start: Instant,
    /// Section 4.2: K, the time until the cubic function reaches `w_max`, in seconds.
    k: f64,
    w_max: f64,
    /// Section 4.3: the Reno-friendly window, in segments.
    w_est: f64,
}

impl Epoch {
    /// W_cubic(t), equation 1.
    fn w_cubic(&self, since_start: Duration) -> f64 {
        let t = since_start.as_secs_f64() - self.k;
        C * t * t * t + self.w_max
    }
}

impl Cubic {
    /// Excludes an idle period from the stage (section 4.2).
    pub(super) fn shift_epoch(&mut self, now: Instant, pause: Duration) {
        if let Some(epoch) = &mut self.epoch {
            epoch.start = now.min(epoch.start + pause);
        }
    }
}

impl Avoidance for Cubic {
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "windows are far below 2^53 bytes and growth is positive; rounded down to a byte"
    )]
    fn grow(&mut self, window: &mut Window, acked: &Acked) {
        let segment = window.segment as f64;
        let cwnd = window.cwnd as f64 / segment;
        let epoch = *self.epoch.get_or_insert_with(|| begin(acked.now, cwnd, self.w_max));
        let since_start = acked.now.saturating_since(epoch.start);
        let segments = acked.bytes as f64 / segment;

        // Section 4.3: the Reno-friendly region; alpha is 1 once the window is back at
        // `cwnd_prior`.
        let alpha =
            if epoch.w_est >= self.cwnd_prior { 1.0 } else { 3.0 * (1.0 - BETA) / (1.0 + BETA) };
        let w_est = epoch.w_est + alpha * segments / cwnd;
        self.epoch = Some(Epoch { w_est, ..epoch });

        let growth = if epoch.w_cubic(since_start) < w_est {
            (w_est - cwnd).max(0.0)
        } else {
            // Sections 4.4 and 4.5: towards W_cubic one RTT ahead, at most 1.5 times cwnd.
            let ahead = since_start + acked.srtt.unwrap_or(Duration::ZERO);
            let target = epoch.w_cubic(ahead).clamp(cwnd, 1.5 * cwnd);
            (target - cwnd) / cwnd * segments
        };
        let bytes = growth * segment + self.byte_fraction;
        let whole = bytes as u64;
        self.byte_fraction = bytes - whole as f64;
        window.cwnd += whole;
    }

    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "windows are far below 2^53 bytes; rounded down to a byte"
    )]
    fn reduced(&mut self, window: &Window, flight: u64) -> u64 {
        let cwnd = flight.min(window.cwnd) as f64 / window.segment as f64;
        self.epoch = None;
        self.byte_fraction = 0.0;
        self.cwnd_prior = cwnd;
        // Section 4.7, fast convergence: a flow with a decreasing share releases bandwidth sooner.
        self.w_max = if cwnd < self.w_max { cwnd * (1.0 + BETA) / 2.0 } else { cwnd };
        (cwnd * BETA * window.segment as f64) as u64
    }

    /// Section 4.8: the stage after a timeout starts from its own cwnd, with K = 0.
    fn timed_out(&mut self) {
        self.w_max = 0.0;
        self.epoch = None;
    }
}

fn begin(now: Instant, cwnd: f64, w_max: f64) -> Epoch {
    if cwnd < w_max {
        let k = libm::cbrt((w_max - cwnd) / C);
        Epoch { start: now, k, w_max, w_est: cwnd }
    } else {
        Epoch { start: now, k: 0.0, w_max: cwnd, w_est: cwnd }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: u64 = 1_000;

    /// Acknowledges one window per round for `rounds` round trips of `rtt`.
    fn run(cubic: &mut Cubic, window: &mut Window, start: Instant, rtt: Duration, rounds: u64) {
        for round in 0..rounds {
            let now = start + rtt.saturating_mul(round);
            for _ in 0..window.cwnd / SEGMENT {
                let (bytes, srtt) = (SEGMENT, Some(rtt));
                cubic.grow(window, &Acked { now, bytes, rtt: None, srtt, una: 1, nxt: 1 });
            }
        }
    }

    fn reduced(cwnd: u64) -> (Cubic, Window) {
        let mut cubic = Cubic::default();
        let mut window = Window { cwnd, ssthresh: None, segment: SEGMENT };
        window.cwnd = cubic.reduced(&window, cwnd);
        (cubic, window)
    }

    /// Given a reduction from 1000 segments to 700, expect cwnd back after K = cbrt(300 / 0.4) =
    /// 9.086 s (section 4.2).
    #[test]
    fn cwnd_returns_to_w_max_after_k() {
        let (mut cubic, mut window) = reduced(1_000 * SEGMENT);
        assert_eq!(window.cwnd, 700 * SEGMENT);
        run(&mut cubic, &mut window, Instant::START, Duration::from_millis(100), 91);
        let segments = window.cwnd / SEGMENT;
        assert!((997..=1_001).contains(&segments), "{segments}");
    }

    /// Given an idle period of 100 s in between, expect the same.
    #[test]
    fn an_idle_period_is_excluded() {
        let (mut cubic, mut window) = reduced(1_000 * SEGMENT);
        run(&mut cubic, &mut window, Instant::START, Duration::from_millis(100), 46);
        let now = Instant::from_millis(104_600);
        cubic.shift_epoch(now, Duration::from_secs(100));
        run(&mut cubic, &mut window, now, Duration::from_millis(100), 45);
        let segments = window.cwnd / SEGMENT;
        assert!((997..=1_001).contains(&segments), "{segments}");
    }

    /// At half of K, expect w_max - 0.4 (K/2)^3 = 1000 - 37.5.
    #[test]
    fn the_curve_is_concave_before_k() {
        let (mut cubic, mut window) = reduced(1_000 * SEGMENT);
        run(&mut cubic, &mut window, Instant::START, Duration::from_millis(100), 46);
        let segments = window.cwnd / SEGMENT;
        assert!((960..=966).contains(&segments), "{segments}");
    }

    /// Given a short path, expect the Reno-friendly window to lead (section 4.3): with alpha = 9/17
    /// per round, 40 rounds of 10 ms add 21 segments; the cubic function adds 10.
    #[test]
    fn a_short_path_is_reno_friendly() {
        let (mut cubic, mut window) = reduced(1_000 * SEGMENT);
        cubic.epoch = Some(Epoch { k: 5.0, ..begin(Instant::START, 700.0, 1_000.0) });
        run(&mut cubic, &mut window, Instant::START, Duration::from_millis(10), 40);
        let segments = window.cwnd / SEGMENT;
        assert!(segments >= 715, "{segments}");
    }

    #[test]
    fn fast_convergence_lowers_w_max() {
        let (mut cubic, mut window) = reduced(1_000 * SEGMENT);
        window.cwnd = 800 * SEGMENT;
        assert_eq!(cubic.reduced(&window, window.cwnd), 560 * SEGMENT);
        assert!((cubic.w_max - 680.0).abs() < 1e-9, "{}", cubic.w_max);
    }
}
