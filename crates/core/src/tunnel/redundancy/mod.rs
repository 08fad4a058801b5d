//! How much repair is made, for one direction of a tunnel.
//!
//! Three rules make repair:
//!
//! - *Forward*: after each source symbol a share of a repair symbol falls due, by the control law for the
//!   loss and the bursts that reports have told of. The shares are added as integers.
//! - *On demand*: if the decoder lacks more equations than the repair on its way can give, the rest is
//!   made at once, with the longest window. It arrives a round trip after the loss: too late for TCP's
//!   RACK, but before its tail-loss probe if order is restored.
//! - *At a pause*: when no source symbol follows for a while and the last ones are not covered, one repair symbol
//!   is made for them, since no share will fall due soon.
//!
//! They draw on one allowance, which fills by the cap with each source symbol, so that no prefix of the
//! session has more of their repair than the cap. A fourth rule is for a sender that knows the link's own queue:
//!
//! - *On overflow*: for each source symbol that the queue drops, the repair symbols that the setting asks for (1) are made
//!   at once. The drops bound it, not the cap: bursts of them are denser than any share of the sources.

mod control_law;
mod loss_estimate;

use std::collections::VecDeque;

use super::tracker::LossReport;
use crate::coding::SymbolId;
use crate::time::{Duration, Instant};
use control_law::{BILLION, MILLION};
use loss_estimate::LossEstimate;

/// The most groups of repair on their way that are known. Older ones count as lost, and the cap bounds
/// what that costs.
const ISSUED_MAX: usize = 4_096;

/// The settings of a [`RedundancyController`].
#[derive(Clone, Copy, Debug)]
pub enum RedundancyConfig {
    /// The same redundancy all the time.
    Fixed {
        /// Repair symbols for each source symbol, in millionths.
        redundancy_ppm: u32,
        /// The window of repair in symbols.
        window: u32,
    },
    /// Redundancy that follows the loss.
    Adaptive(AdaptiveConfig),
}

/// The settings of adaptive redundancy.
#[derive(Clone, Copy, Debug)]
pub struct AdaptiveConfig {
    /// The most repair symbols for each source symbol, in millionths.
    pub cap_ppm: u32,
    /// The loss probability that is assumed before the first report, in millionths.
    pub initial_loss_ppm: u32,
    /// The margin of the control law in standard deviations of the losses in a window.
    pub margin: u32,
    /// The symbols over which loss is averaged.
    pub averaging_symbols: u32,
    /// The time constant with which the redundancy falls.
    pub decay_time: Duration,
    /// The window of repair while losses are single.
    pub window_min: u32,
    /// The longest window.
    pub window_max: u32,
    /// The longest time from making repair to the report that counts it.
    pub report_delay: Duration,
}

/// The settings of repair on overflow.
#[derive(Clone, Copy, Debug)]
pub struct OverflowConfig {
    /// Repair symbols for each source symbol that the queue drops, in millionths.
    pub repair_ppm: u32,
    /// The symbols that each covers.
    pub window: u32,
}

/// Repair that is due now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RepairDue {
    /// The number of repair symbols.
    pub count: u32,
    /// The most symbols that each covers, up to the last source symbol sent.
    pub window: u32,
}

/// Repair that was made after a source symbol.
#[derive(Clone, Copy, Debug)]
struct Issued {
    at: Instant,
    first: SymbolId,
    last: SymbolId,
    count: u32,
}

/// See the module's description.
#[derive(Clone, Debug)]
pub struct RedundancyController {
    config: RedundancyConfig,
    overflow: Option<OverflowConfig>,
    estimate: LossEstimate,
    redundancy_ppm: u64,
    window: u32,
    /// The share of a repair symbol that is owed, in millionths, below one.
    credit: u64,
    /// The same for dropped symbols.
    overflow_credit: u64,
    /// The repair that the cap allows, in millionths.
    allowance: u64,
    /// Whether a source symbol was sent after the last repair.
    is_uncovered: bool,
    issued: VecDeque<Issued>,
}

impl RedundancyController {
    /// A controller at the start of a session, in which drops of the queue cause no repair.
    #[must_use]
    pub fn new(config: RedundancyConfig) -> Self {
        let initial_loss_ppm = match config {
            RedundancyConfig::Fixed { .. } => 0,
            RedundancyConfig::Adaptive(adaptive) => adaptive.initial_loss_ppm,
        };
        let mut controller = Self {
            config,
            overflow: None,
            estimate: LossEstimate::new(1_000 * u64::from(initial_loss_ppm)),
            redundancy_ppm: 0,
            window: 0,
            credit: 0,
            overflow_credit: 0,
            allowance: 0,
            is_uncovered: false,
            issued: VecDeque::new(),
        };
        controller.apply_law();
        controller
    }

    /// Changes the settings. What was measured is kept, unless it was not measured.
    pub fn reconfigure(&mut self, config: RedundancyConfig) {
        let fresh = Self::new(config);
        if matches!(self.config, RedundancyConfig::Fixed { .. }) {
            self.estimate = fresh.estimate;
        }
        self.config = config;
        self.allowance = self.allowance.min(self.cap().1);
        self.apply_law();
    }

    /// Changes the repair for symbols that the queue drops; `None` for none.
    pub fn set_overflow(&mut self, overflow: Option<OverflowConfig>) {
        self.overflow = overflow;
    }

    /// Repair symbols for each source symbol now, in millionths.
    #[must_use]
    pub fn redundancy_ppm(&self) -> u64 {
        self.redundancy_ppm
    }

    /// The loss probability that the redundancy is made for, in billionths.
    #[must_use]
    pub fn loss_ppb(&self) -> u64 {
        self.estimate.loss_ppb()
    }

    /// Source symbol `id` is sent now. Returns the repair that is due after it.
    pub fn on_source(&mut self, now: Instant, id: SymbolId) -> RepairDue {
        let (cap, depth) = self.cap();
        self.allowance = (self.allowance + cap).min(depth);
        let credit = self.credit + self.redundancy_ppm;
        self.credit = credit % MILLION;
        self.is_uncovered = true;
        self.issue(now, id, credit / MILLION, self.window)
    }

    /// The link's queue drops source symbol `id`, the last one sent. Returns the repair that is due after it.
    pub fn on_overflow(&mut self, now: Instant, id: SymbolId) -> RepairDue {
        let Some(OverflowConfig { repair_ppm, window }) = self.overflow else {
            return RepairDue::default();
        };
        let credit = self.overflow_credit + u64::from(repair_ppm);
        self.overflow_credit = credit % MILLION;
        self.make(now, id, credit / MILLION, window)
    }

    /// A report arrives. `sent` is the last source symbol sent, `held` the number of repair symbols that
    /// the titrator holds. Returns the repair that is due now.
    pub fn on_report(
        &mut self,
        now: Instant,
        report: &LossReport,
        sent: SymbolId,
        held: u32,
    ) -> RepairDue {
        let RedundancyConfig::Adaptive(config) = self.config else { return RepairDue::default() };
        let averaging_symbols = config.averaging_symbols.into();
        self.estimate.on_report(report, averaging_symbols, config.decay_time);
        self.apply_law();
        if report.deficit == 0 {
            return RepairDue::default();
        }
        let received = BILLION.saturating_sub(self.estimate.loss_ppb()).max(1);
        let needed = (u64::from(report.deficit) * BILLION).div_ceil(received);
        let under_way = self.under_way(now, report, config.report_delay).max(held.into());
        self.issue(now, sent, needed.saturating_sub(under_way), config.window_max)
    }

    /// No source symbol will follow soon: returns a repair symbol for those that none covers yet, as
    /// far as the cap allows. `sent` is the last source symbol sent.
    pub fn on_pause(&mut self, now: Instant, sent: SymbolId) -> RepairDue {
        if !self.is_uncovered || self.redundancy_ppm == 0 {
            return RepairDue::default();
        }
        self.credit = 0;
        self.issue(now, sent, 1, self.window)
    }

    fn apply_law(&mut self) {
        (self.redundancy_ppm, self.window) = match self.config {
            RedundancyConfig::Fixed { redundancy_ppm, window } => (redundancy_ppm.into(), window),
            RedundancyConfig::Adaptive(config) => {
                let (loss, burst) = (self.estimate.loss_ppb(), self.estimate.burst_milli());
                let window = control_law::window(burst, config.window_min, config.window_max);
                let redundancy = control_law::redundancy_ppm(loss, burst, window, config.margin);
                (redundancy.min(config.cap_ppm.into()), window)
            }
        };
    }

    /// What the allowance grows by with each source symbol, and the most that it holds: the repair of a
    /// longest window.
    fn cap(&self) -> (u64, u64) {
        let (cap_ppm, window) = match self.config {
            RedundancyConfig::Fixed { redundancy_ppm, window } => (redundancy_ppm, window),
            RedundancyConfig::Adaptive(config) => (config.cap_ppm, config.window_max),
        };
        let cap = u64::from(cap_ppm);
        (cap, (cap * u64::from(window)).max(MILLION + cap))
    }

    fn issue(&mut self, now: Instant, last: SymbolId, count: u64, window: u32) -> RepairDue {
        let count = count.min(self.allowance / MILLION);
        self.allowance -= count * MILLION;
        self.make(now, last, count, window)
    }

    fn make(&mut self, now: Instant, last: SymbolId, count: u64, window: u32) -> RepairDue {
        if count == 0 {
            return RepairDue::default();
        }
        self.is_uncovered = false;
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let first = last.minus(window.saturating_sub(1));
        if self.issued.len() == ISSUED_MAX {
            self.issued.pop_front();
        }
        self.issued.push_back(Issued { at: now, first, last, count });
        RepairDue { count, window }
    }

    /// Repair that the report cannot count yet and that covers all that is missing.
    fn under_way(&mut self, now: Instant, report: &LossReport, report_delay: Duration) -> u64 {
        let is_counted = |issued: &Issued| {
            issued.last.ahead_of(report.highest) < 0 || now >= issued.at + report_delay
        };
        while self.issued.front().is_some_and(is_counted) {
            self.issued.pop_front();
        }
        let covering = self.issued.iter().filter(|issued| issued.first.ahead_of(report.next) <= 0);
        covering.map(|issued| u64::from(issued.count)).sum()
    }
}

#[cfg(test)]
mod tests;
