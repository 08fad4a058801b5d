//! The controller in a closed loop: symbols at 16 Mbit/s, a channel with losses, a decoder that is never
//! better than a real one, and reports a round trip later.

use std::collections::VecDeque;

use super::*;
use crate::rng::Rng;
use crate::tunnel::{Arrivals, Decoded, Feedback, FeedbackTracker};
use proptest::prelude::*;

/// 1,500 bytes at 16 Mbit/s.
const SYMBOL_TIME: Duration = Duration::from_micros(750);
const ROUND_TRIP: Duration = Duration::from_millis(500);
const INTERVAL: Duration = Duration::from_millis(100);
/// Symbols in a second, rounded down.
const SECOND: u32 = 1_333;

const ADAPTIVE: AdaptiveConfig = AdaptiveConfig {
    cap_ppm: 200_000,
    initial_loss_ppm: 10_000,
    margin: 5,
    averaging_symbols: 512,
    decay_time: Duration::from_secs(2),
    window_min: 128,
    window_max: 1_024,
    report_delay: Duration::from_millis(700),
};

/// Losses of a Gilbert channel: all symbols of a burst are lost.
#[derive(Clone, Copy)]
struct Losses {
    probability: f64,
    burst: f64,
}

const CLEAN: Losses = Losses { probability: 0.0, burst: 1.0 };

fn random(probability: f64) -> Losses {
    // A burst of 1 / (1 - p) on average is that of independent losses.
    Losses { probability, burst: 1.0 / (1.0 - probability) }
}

/// A decoder that knows symbols and no contents. It is pessimistic: repair helps only if its window
/// covers all that is missing, and all is given up when the first missing symbol is too old.
#[derive(Default)]
struct Decoder {
    missing: VecDeque<SymbolId>,
    innovative: u32,
    given_up: u32,
}

impl Decoder {
    fn on_repair(&mut self, first: SymbolId) {
        let covers = self.missing.front().is_some_and(|&oldest| first.ahead_of(oldest) <= 0);
        self.innovative += u32::from(covers);
        if self.innovative as usize >= self.missing.len() {
            self.missing.clear();
            self.innovative = 0;
        }
    }

    fn give_up_before(&mut self, first: SymbolId) {
        if self.missing.front().is_some_and(|&oldest| oldest.ahead_of(first) < 0) {
            self.given_up += self.missing.len() as u32;
            self.missing.clear();
            self.innovative = 0;
        }
    }
}

struct Loop {
    controller: RedundancyController,
    tracker: FeedbackTracker,
    arrivals: Arrivals,
    decoder: Decoder,
    decoder_window: u32,
    reports: VecDeque<(Instant, Feedback)>,
    /// The share of reports that is lost.
    report_loss: f64,
    is_bad: bool,
    rng: Rng,
    now: Instant,
    sources: u32,
    lost: u32,
    repairs: u32,
}

/// Before the wrap, so that all runs cross it.
const FIRST: SymbolId = SymbolId(u32::MAX - 5_000);

impl Loop {
    fn new(config: RedundancyConfig) -> Self {
        let decoder_window = match config {
            RedundancyConfig::Fixed { window, .. } => window,
            RedundancyConfig::Adaptive(config) => config.window_max,
        };
        Self {
            controller: RedundancyController::new(config),
            tracker: FeedbackTracker::new(Instant::START, FIRST),
            arrivals: Arrivals::new(FIRST, INTERVAL),
            decoder: Decoder::default(),
            decoder_window,
            reports: VecDeque::new(),
            report_loss: 0.0,
            is_bad: false,
            rng: Rng::stream(7, "redundancy"),
            now: Instant::START,
            sources: 0,
            lost: 0,
            repairs: 0,
        }
    }

    fn is_lost(&mut self, losses: Losses) -> bool {
        let Losses { probability, burst } = losses;
        let change =
            if self.is_bad { 1.0 / burst } else { probability / (1.0 - probability) / burst };
        self.is_bad ^= self.rng.open_unit() < change;
        self.is_bad
    }

    /// Sends source symbols and returns how many repair symbols were made.
    fn send(&mut self, symbols: u32, losses: Losses) -> u32 {
        let before = self.repairs;
        (0..symbols).for_each(|_| self.step(losses));
        self.repairs - before
    }

    fn step(&mut self, losses: Losses) {
        while let Some((_, feedback)) = self.reports.pop_front_if(|(at, _)| *at <= self.now) {
            let sent = FIRST.plus(self.sources).minus(1);
            let report = self.tracker.on_feedback(self.now, feedback, sent).expect("in order");
            let due = self.controller.on_report(self.now, &report, sent, 0);
            self.repair(due, sent, losses);
        }
        let id = FIRST.plus(self.sources);
        self.sources += 1;
        if self.is_lost(losses) {
            self.lost += 1;
            self.decoder.missing.push_back(id);
        } else {
            self.arrivals.on_source(self.now, id, 0);
        }
        let due = self.controller.on_source(self.now, id);
        self.repair(due, id, losses);
        self.decoder.give_up_before(id.minus(self.decoder_window - 1));
        self.report(id);
        self.now += SYMBOL_TIME;
    }

    fn repair(&mut self, due: RepairDue, sent: SymbolId, losses: Losses) {
        for _ in 0..due.count {
            self.repairs += 1;
            let window = self.tracker.window(sent, due.window);
            if let (false, Some((first, last))) = (self.is_lost(losses), window) {
                self.arrivals.on_repair(self.now, last);
                self.decoder.on_repair(first);
            }
        }
    }

    fn report(&mut self, sent: SymbolId) {
        let missing = &self.decoder.missing;
        let next = missing.front().copied().unwrap_or(sent.plus(1));
        // The decoder does not know yet of symbols lost at the end.
        let highest = self.arrivals.highest();
        let known = missing.iter().filter(|id| id.ahead_of(highest) <= 0).count() as u32;
        let deficit = known.saturating_sub(self.decoder.innovative);
        let decoded = Decoded { next, deficit, given_up: self.decoder.given_up };
        if let Some(feedback) = self.arrivals.report(self.now, decoded, |id| missing.contains(&id))
            && self.rng.open_unit() >= self.report_loss
        {
            self.reports.push_back((self.now + ROUND_TRIP, feedback));
        }
    }

    fn residual(&self) -> f64 {
        f64::from(self.decoder.given_up) / f64::from(self.sources)
    }

    fn overhead(&self) -> f64 {
        f64::from(self.repairs) / f64::from(self.sources)
    }
}

fn adaptive() -> Loop {
    Loop::new(RedundancyConfig::Adaptive(ADAPTIVE))
}

/// Given 10 % and a clean link, expect one repair symbol after each tenth source symbol, to the symbol,
/// and a third of a percent without drift over a million.
#[test]
fn fixed_redundancy_is_spread_evenly() {
    let mut fixed =
        RedundancyController::new(RedundancyConfig::Fixed { redundancy_ppm: 100_000, window: 64 });
    let due = (1..=30).map(|id| fixed.on_source(Instant::START, SymbolId(id)));
    let due: Vec<_> = due.map(|due| due.count).collect();
    let expected: Vec<_> = (1..=30).map(|id| u32::from(id % 10 == 0)).collect();
    assert_eq!(due, expected);

    let config = RedundancyConfig::Fixed { redundancy_ppm: 3_333, window: 64 };
    let mut third = RedundancyController::new(config);
    let due = (0..1_000_000).map(|id| third.on_source(Instant::START, SymbolId(id)).count);
    assert_eq!(due.sum::<u32>(), 3_333);
}

#[test]
fn fixed_redundancy_above_one() {
    let config = RedundancyConfig::Fixed { redundancy_ppm: 2_500_000, window: 2 };
    let mut fixed = RedundancyController::new(config);
    let due = [0, 1, 2, 3].map(|id| fixed.on_source(Instant::START, SymbolId(id)).count);
    assert_eq!(due, [2, 3, 2, 3]);
}

/// Given no loss for 60 s, expect the repair for the assumed 1 % to end after ln(100) = 4.6 time
/// constants and the first report, 9.8 s. The integral of the law until then is
/// 0.01 tau + 0.044 * 2 tau = 0.2 s of sources, 0.3 % of 60 s; the goal is 1 %.
#[test]
fn a_clean_link_has_no_overhead() {
    let mut run = adaptive();
    run.send(10 * SECOND, CLEAN);
    assert_eq!(run.send(50 * SECOND, CLEAN), 0);
    assert!((0.002..0.005).contains(&run.overhead()), "{}", run.overhead());
}

/// Given a step from no loss to 5 %, expect the mean redundancy p / (1 - p) two round trips later: one
/// until the first losses are reported, an interval, and 114 symbols until the average has 1 %, for
/// which the law gives 5.4 %.
#[test]
fn a_step_of_loss_is_answered_within_two_round_trips() {
    let mut run = adaptive();
    run.send(20 * SECOND, CLEAN);
    assert_eq!(run.controller.redundancy_ppm(), 0);
    run.send(SECOND / 2, random(0.05));
    assert_eq!(run.controller.redundancy_ppm(), 0, "no report yet");
    run.send(SECOND / 2, random(0.05));
    let redundancy = run.controller.redundancy_ppm();
    assert!((52_632..=200_000).contains(&redundancy), "{redundancy}");
}

/// Given 5 % loss that ends, expect half of the redundancy a time constant later at least (it falls
/// with the root of the loss), and none after a round trip, an interval and ln(10 % / 0.01 %) = 6.9 time
/// constants, 14.5 s.
#[test]
fn the_redundancy_falls_to_zero_when_losses_end() {
    let mut run = adaptive();
    run.send(30 * SECOND, random(0.05));
    let (loss, before) = (run.controller.loss_ppb(), run.controller.redundancy_ppm());
    assert!((50_000_000..100_000_000).contains(&loss), "{loss}");
    run.send(2 * SECOND, CLEAN);
    assert!(run.controller.redundancy_ppm() > before / 2);
    run.send(12 * SECOND + SECOND / 2, CLEAN);
    assert_eq!(run.send(10 * SECOND, CLEAN), 0);
}

/// Given 1 % random loss, 10 % redundancy and a window of 64, expect at most the bound of the law's
/// test, 6e-6, over 10^6 symbols: 6 expected, and 20 with a probability below 1e-5.
#[test]
fn the_residual_loss_of_fixed_redundancy_is_within_the_bound() {
    let config = RedundancyConfig::Fixed { redundancy_ppm: 100_000, window: 64 };
    let mut run = Loop::new(config);
    run.send(1_000_000, random(0.01));
    assert!((9_700..10_300).contains(&run.lost), "{}", run.lost);
    assert!(run.residual() < 2e-5, "{:e}", run.residual());
}

#[test]
fn the_residual_loss_of_adaptive_redundancy() {
    let mut run = adaptive();
    run.send(1_000_000, random(0.01));
    assert!(run.residual() < 1e-4, "{:e}", run.residual());
    assert!(run.overhead() < 0.1, "{}", run.overhead());
}

/// Given 5 % loss in bursts of 10, expect an overhead below the cap and less than a tenth of the loss
/// to remain.
#[test]
fn bursts_stay_under_the_cap() {
    let mut run = adaptive();
    run.send(300_000, Losses { probability: 0.05, burst: 10.0 });
    assert!(run.overhead() <= 0.2, "{}", run.overhead());
    assert!(run.residual() < 0.005, "{:e}", run.residual());
}

/// Given half of the reports lost, expect the same quality: every report has totals.
#[test]
fn lost_reports_change_little() {
    let mut run = adaptive();
    run.report_loss = 0.5;
    run.send(300_000, random(0.01));
    assert!(run.residual() < 1e-4, "{:e}", run.residual());
    assert!(run.overhead() < 0.1, "{}", run.overhead());
}

/// Given no report at all, expect the redundancy of the assumed loss all the time.
#[test]
fn without_reports_the_assumed_loss_holds() {
    let mut run = adaptive();
    run.report_loss = 1.0;
    let before = run.controller.redundancy_ppm();
    run.send(20 * SECOND, random(0.05));
    assert_eq!(run.controller.redundancy_ppm(), before);
    assert_eq!(before, 10_102 + 5 * 8_838);
}

/// Given a deficit of 5 at 20 % loss, expect ceil(5 / 0.8) = 7 repair symbols at once, not again while
/// they are on their way, and again when a report could have counted them.
#[test]
fn a_deficit_is_repaired_on_demand() {
    let mut controller = RedundancyController::new(RedundancyConfig::Adaptive(ADAPTIVE));
    // A clean kilosymbol fills the allowance; its regular repair covers nothing before 870.
    for id in 0..1_024 {
        controller.on_source(Instant::START, SymbolId(id));
    }
    let highest = SymbolId(1_000);
    let (sent, lost, next) = (1_000, 200, SymbolId(500));
    let report =
        LossReport { sent, lost, bursts: 200, deficit: 5, highest, next, ..LossReport::default() };
    let quiet = LossReport { sent: 0, lost: 0, bursts: 0, ..report };
    let ms = Instant::from_millis;
    let mut demand = |at, report, held| controller.on_report(ms(at), report, SymbolId(1_023), held);
    assert_eq!(demand(500, &report, 4), RepairDue { count: 3, window: 1_024 }, "4 are held");
    assert_eq!(demand(600, &quiet, 0).count, 4, "of these, 3 are on their way");
    assert_eq!(demand(1_199, &quiet, 0).count, 0);
    assert_eq!(demand(1_200, &quiet, 0).count, 3, "the first 3 could have been counted");
}

/// Given adaptive redundancy at 10 % loss and a change to fixed 1 % and back, expect 1 % at once, and then
/// that of the assumed loss: fixed redundancy measures nothing.
#[test]
fn settings_change_at_once() {
    let mut run = adaptive();
    run.send(5 * SECOND, random(0.1));
    assert_eq!(run.controller.redundancy_ppm(), 200_000);
    let lower_cap = AdaptiveConfig { cap_ppm: 50_000, ..ADAPTIVE };
    run.controller.reconfigure(RedundancyConfig::Adaptive(lower_cap));
    assert_eq!(run.controller.redundancy_ppm(), 50_000, "the estimate is kept");
    run.controller.reconfigure(RedundancyConfig::Fixed { redundancy_ppm: 10_000, window: 64 });
    let made = run.send(1_000, CLEAN);
    assert!((10..=11).contains(&made), "{made}");
    run.controller.reconfigure(RedundancyConfig::Adaptive(ADAPTIVE));
    assert_eq!(run.controller.redundancy_ppm(), 10_102 + 5 * 8_838);
}

/// Given a pause after the fifth symbol of each ten, expect repair for these five, once, and none for
/// the first symbols, when the cap of 20 % does not allow one yet.
#[test]
fn the_last_symbols_before_a_pause_are_covered() {
    let mut controller = RedundancyController::new(RedundancyConfig::Adaptive(ADAPTIVE));
    let (now, id) = (Instant::START, SymbolId);
    (0..4).for_each(|number| assert_eq!(controller.on_source(now, id(number)).count, 0));
    assert_eq!(controller.on_pause(now, id(3)).count, 0, "80 % of a repair symbol is allowed");
    controller.on_source(now, id(4));
    assert_eq!(controller.on_pause(now, id(4)), RepairDue { count: 1, window: 128 });
    assert_eq!(controller.on_pause(now, id(4)).count, 0, "all are covered");
}

proptest! {
    /// Given any reports and pauses, expect no prefix of the session to have more repair than the cap.
    #[test]
    fn no_prefix_exceeds_the_cap(
        cap_ppm in 0u32..3_000_000,
        events in prop::collection::vec((0u8..8, 0u32..300, 0u32..300, 0u32..100, 0u64..300), 1..300),
    ) {
        let config = AdaptiveConfig { cap_ppm, ..ADAPTIVE };
        let mut controller = RedundancyController::new(RedundancyConfig::Adaptive(config));
        let (mut now, mut sources, mut repairs) = (Instant::START, 0u32, 0u64);
        for (kind, sent, lost, deficit, millis) in events {
            let elapsed = Duration::from_millis(millis);
            now += elapsed;
            let last = FIRST.plus(sources).minus(1);
            let due = match kind {
                0 => {
                    let highest = last;
                    let report = LossReport {
                        sent, lost, bursts: lost / 3, deficit, highest, next: highest, elapsed,
                        ..LossReport::default()
                    };
                    controller.on_report(now, &report, last, lost % 5)
                }
                1 => controller.on_pause(now, last),
                _ => {
                    sources += 1;
                    controller.on_source(now, last.plus(1))
                }
            };
            repairs += u64::from(due.count);
            prop_assert!(repairs * MILLION <= u64::from(cap_ppm) * u64::from(sources));
            prop_assert!(controller.redundancy_ppm() <= cap_ppm.into());
        }
    }
}

/// Given 1.15 repair symbols for each drop, expect 115 for 100 consecutive drops, which the cap of 10 % would not allow,
/// each for the window of overflow, and none without the setting.
#[test]
fn drops_of_the_queue_cause_repair_beyond_the_cap() {
    let config = RedundancyConfig::Fixed { redundancy_ppm: 0, window: 64 };
    let mut controller = RedundancyController::new(config);
    assert_eq!(controller.on_overflow(Instant::START, SymbolId(0)), RepairDue::default());
    controller.set_overflow(Some(OverflowConfig { repair_ppm: 1_150_000, window: 128 }));
    let due: Vec<_> =
        (0..100).map(|id| controller.on_overflow(Instant::START, SymbolId(id))).collect();
    assert!(due.iter().all(|due| due.window == 128 && (1..=2).contains(&due.count)));
    assert_eq!(due.iter().map(|due| due.count).sum::<u32>(), 115);
}
