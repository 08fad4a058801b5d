//! The loss probability and burst length that the redundancy is made for: quick up, slow down.

use super::control_law::{BILLION, SINGLE};
use crate::time::Duration;
use crate::tunnel::tracker::LossReport;

/// Loss below this counts as none: 100 millionths.
const LOSS_MIN_PPB: u64 = 100_000;
/// A decay is computed in steps of this share of its time constant.
const STEPS: u64 = 8;

/// A moving average over symbols that rises and falls at the same speed, and its recent maximum, which
/// falls slowly.
#[derive(Clone, Copy, Debug)]
pub(super) struct LossEstimate {
    average_loss_ppb: u64,
    average_bursts_ppb: u64,
    loss_ppb: u64,
    burst_milli: u64,
}

impl LossEstimate {
    pub(super) fn new(loss_ppb: u64) -> Self {
        let loss_ppb = loss_ppb.min(BILLION);
        Self { average_loss_ppb: 0, average_bursts_ppb: 0, loss_ppb, burst_milli: SINGLE }
    }

    /// The loss probability in billionths; zero below 100 millionths.
    pub(super) fn loss_ppb(&self) -> u64 {
        if self.loss_ppb < LOSS_MIN_PPB { 0 } else { self.loss_ppb }
    }

    /// The mean burst length in thousandths of a symbol, at least one symbol.
    pub(super) fn burst_milli(&self) -> u64 {
        self.burst_milli
    }

    /// Takes a report. The maximum needs time to fall, and symbols that prove it too high: a link
    /// without traffic is not clean.
    pub(super) fn on_report(
        &mut self,
        report: &LossReport,
        averaging_symbols: u64,
        decay_time: Duration,
    ) {
        let sent = u64::from(report.sent);
        let lost = u64::from(report.lost.min(report.sent));
        let bursts = u64::from(report.bursts).min(lost);
        self.average_loss_ppb = average(self.average_loss_ppb, lost, sent, averaging_symbols);
        self.average_bursts_ppb = average(self.average_bursts_ppb, bursts, sent, averaging_symbols);
        let proven = decay_time.saturating_mul(sent).as_nanos() / averaging_symbols.max(1);
        let elapsed = report.elapsed.min(Duration::from_nanos(proven));
        self.loss_ppb = decayed(self.loss_ppb, elapsed, decay_time).max(self.average_loss_ppb);
        let burst = (self.average_loss_ppb * SINGLE).checked_div(self.average_bursts_ppb);
        let is_measured = lost > 0 && self.average_loss_ppb >= LOSS_MIN_PPB;
        let burst = burst.filter(|_| is_measured).unwrap_or(SINGLE);
        let excess = decayed(self.burst_milli - SINGLE, elapsed, decay_time);
        self.burst_milli = burst.max(SINGLE + excess);
    }
}

/// The average after `sent` more symbols with `events`. More symbols than the average is over replace
/// it.
fn average(before_ppb: u64, events: u64, sent: u64, averaging_symbols: u64) -> u64 {
    let symbols = sent.max(averaging_symbols).max(1);
    let forgotten = (before_ppb * sent).div_ceil(symbols);
    before_ppb - forgotten.min(before_ppb) + events * BILLION / symbols
}

/// The value after an exponential decay, or a little less: rounding lets it reach zero.
fn decayed(value: u64, elapsed: Duration, time_constant: Duration) -> u64 {
    let (elapsed, time_constant) = (elapsed.as_nanos(), time_constant.as_nanos().max(1));
    let step = time_constant.div_ceil(STEPS);
    let (mut value, mut left) = (value, elapsed);
    while left > 0 && value > 0 {
        let taken = left.min(step);
        let fall = u128::from(value) * u128::from(taken);
        let fall = fall.div_ceil(u128::from(time_constant));
        value = value.saturating_sub(u64::try_from(fall).unwrap_or(u64::MAX));
        left -= taken;
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAU: Duration = Duration::from_secs(2);

    fn report(sent: u32, lost: u32, bursts: u32, millis: u64) -> LossReport {
        LossReport {
            sent,
            lost,
            bursts,
            elapsed: Duration::from_millis(millis),
            ..LossReport::default()
        }
    }

    fn after(estimate: &mut LossEstimate, report: LossReport) -> (u64, u64) {
        estimate.on_report(&report, 512, TAU);
        (estimate.loss_ppb() / 1_000, estimate.burst_milli())
    }

    /// Given 20 losses in 2 bursts in as many symbols as the average is over, expect 20 / 512 and 10.
    /// The excess over one falls by ceil(9 * 1 ms / 2 s) thousandths in a millisecond.
    #[test]
    fn one_report_raises_the_estimate() {
        let mut estimate = LossEstimate::new(0);
        assert_eq!(after(&mut estimate, report(512, 20, 2, 400)), (39_062, 10_000));
        assert_eq!(after(&mut estimate, report(5_120, 1_024, 1_024, 1)), (200_000, 9_995));
    }

    /// Given 4 % loss that ends, expect between (1 - 1/8)^8 = 34 % and e^-1 = 37 % after the time
    /// constant, and nothing after ln(400) = 6 time constants.
    #[test]
    fn the_estimate_falls_to_zero() {
        let mut estimate = LossEstimate::new(40_000_000);
        (0..20).for_each(|_| estimate.on_report(&report(133, 0, 0, 100), 512, TAU));
        assert!((34..37).contains(&(estimate.loss_ppb() * 100 / 40_000_000)));
        (20..120).for_each(|_| estimate.on_report(&report(133, 0, 0, 100), 512, TAU));
        assert_eq!(estimate.loss_ppb(), 0);
    }

    /// Given an hour without traffic and then one symbol, expect 1/512 of a time constant of decay.
    #[test]
    fn silence_proves_nothing() {
        let mut estimate = LossEstimate::new(40_000_000);
        estimate.on_report(&report(1, 0, 0, 3_600_000), 512, TAU);
        assert_eq!(estimate.loss_ppb(), 40_000_000 - 40_000_000 / 512);
    }

    #[test]
    fn a_decay_ends_for_any_numbers() {
        assert_eq!(decayed(u64::MAX, Duration::from_nanos(u64::MAX), Duration::ZERO), 0);
        assert_eq!(decayed(1, Duration::from_nanos(1), Duration::from_nanos(u64::MAX)), 0);
        assert_eq!(average(5, 0, 0, 0), 5);
    }
}
