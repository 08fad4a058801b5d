//! The control law: how much repair a measured loss needs, in integers.
//!
//! With loss probability p, mean burst length b and a window of W symbols, the losses in a window have
//! the mean W p and, for a Gilbert channel, a variance of about W p (2 b - 1). Repair is lost, too. The
//! redundancy is therefore, for a margin of z standard deviations,
//!
//! r = p / (1 - p) + z sqrt(p (2 b - 1) / W).

/// One, in millionths.
pub(super) const MILLION: u64 = 1_000_000;
/// One, in billionths.
pub(super) const BILLION: u64 = 1_000_000_000;
/// A burst of one symbol, in thousandths.
pub(super) const SINGLE: u64 = 1_000;

/// The redundancy in millionths: repair symbols for each source symbol.
pub(super) fn redundancy_ppm(loss_ppb: u64, burst_milli: u64, window: u32, margin: u32) -> u64 {
    let received = BILLION.saturating_sub(loss_ppb).max(1);
    let mean = (loss_ppb * MILLION).div_ceil(received);
    // p (2 b - 1) / W in units of 1e-12, whose root is in millionths.
    let variance = loss_ppb.saturating_mul(2 * burst_milli - SINGLE) / u64::from(window.max(1));
    mean.saturating_add(u64::from(margin) * variance.isqrt())
}

/// The window that keeps the variance of bursts at that of single losses: `min` (2 b - 1), at most
/// `max`.
pub(super) fn window(burst_milli: u64, min: u32, max: u32) -> u32 {
    let symbols = u64::from(min).saturating_mul(2 * burst_milli - SINGLE) / SINGLE;
    u32::try_from(symbols).unwrap_or(u32::MAX).min(max)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand: 0.01 / 0.99 + 4 sqrt(0.01 / 64) = 0.010101 + 0.05; with bursts of 10 and a window of
    /// 19 * 64 the root is the same.
    #[test]
    fn the_law_by_hand() {
        assert_eq!(redundancy_ppm(BILLION / 100, SINGLE, 64, 4), 10_102 + 4 * 12_500);
        assert_eq!(redundancy_ppm(BILLION / 100, 10 * SINGLE, 1_216, 4), 10_102 + 4 * 12_500);
        assert_eq!(redundancy_ppm(0, SINGLE, 64, 4), 0);
    }

    #[test]
    fn the_largest_values_do_not_overflow() {
        assert!(redundancy_ppm(BILLION, u64::from(u32::MAX) * SINGLE, 0, u32::MAX) > MILLION);
    }

    #[test]
    fn windows_grow_with_bursts_up_to_the_largest() {
        let windows = [1_000, 1_500, 10_000, 1 << 50].map(|burst| window(burst, 64, 1_024));
        assert_eq!(windows, [64, 128, 1_024, 1_024]);
        assert_eq!(window(SINGLE, 64, 32), 32);
    }

    /// The bound of the model page for random loss: a busy period of the decoder begins with a lost
    /// symbol, and outlasts the window only if at least R of the W - 1 sources and R repairs that
    /// follow are lost, R = floor(r W). It then costs at most these symbols and the first one.
    fn residual_bound(loss: f64, redundancy: f64, window: f64) -> f64 {
        let repairs = (redundancy * window).floor();
        let symbols = window - 1.0 + repairs;
        let (mut term, mut bound) = ((1.0 - loss).powi(symbols as i32), 0.0);
        for lost in 0..symbols as i32 {
            let lost = f64::from(lost);
            if lost >= repairs {
                bound += (1.0 + lost) * term;
            }
            term *= (symbols - lost) / (lost + 1.0) * loss / (1.0 - loss);
        }
        loss * bound
    }

    /// 10 % repair in a window of 64 at 1 % random loss: R = 6 of 69 symbols. The Poisson tail from 6
    /// with mean 0.69 is 8.3e-5, times 7 symbols and 1 %: 6e-6. Five standard deviations
    /// in a window of 128 keep it below 2e-4 at losses from 1 to 5 %.
    #[test]
    fn the_bound_of_the_residual_loss() {
        let bound = residual_bound(0.01, 0.1, 64.0);
        assert!((4e-6..6.5e-6).contains(&bound), "{bound:e}");
        let bounds = [10_000_000, 30_000_000, 50_000_000].map(|loss_ppb| {
            let redundancy = redundancy_ppm(loss_ppb, SINGLE, 128, 5) as f64 / 1e6;
            residual_bound(loss_ppb as f64 / 1e9, redundancy, 128.0)
        });
        assert!(bounds.iter().all(|&bound| bound < 2e-4), "{bounds:?}");
    }
}
