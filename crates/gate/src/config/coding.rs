//! The coding of a tunnel: the settings of a scenario, and those of the daemon that they become.
//!
//! `docs/model/tunnel-policies.md` gives the reasons for the constants, and `bentpipe.plan.gateways` makes the same settings
//! for the simulator: `tests/test_gateway_shared.py` compares both, with their defaults and limits.

use bentpipe_core::tunnel::{
    ClassifierSettings, DeliverySettings, OverflowSettings, QueueSettings, RedundancySettings,
    SignalSettings, TitrationSettings, TunnelSettings,
};
use toml::Value;

use super::quantity::{DURATION, Kind, Quantity, RATE, SIZE};
use super::reader::{Fields, Read, above_zero, boolean, integer, number, quantity, word};
use super::wording::shown;

/// The ESIs of a repair symbol's window, in RFC 8681, have 12 bits.
const WINDOW_MAX: i64 = 4_095;
/// What the encoder keeps unless a window is longer.
const MEMORY: u16 = 1_024;
const DENSITY: u8 = 15;
const MILLION: u64 = 1_000_000;
const SECOND_NS: u64 = 1_000_000_000;

const INITIAL_LOSS_PPM: u32 = 10_000;
const MARGIN: u32 = 5;
const AVERAGING_SYMBOLS: u32 = 512;
const DECAY_TIME_NS: u64 = 2 * SECOND_NS;
const SLACK_NS: u64 = SECOND_NS / 10;
const OVERFLOW_REPAIRS_MAX: f64 = 10.0;
const OVERFLOW_WINDOW: u16 = 128;
const THRESHOLD_SHARE: u64 = 10;
/// The queue has three of these.
const OVERFLOW_THRESHOLD_THIRDS: u64 = 2;
const OVERFLOW_HOLD_QUEUES: u64 = 2;
const ORDER_HOLD_SHARE: u64 = 5;
const HOLD_BUFFER_BYTES_MIN: u64 = 64_000;
const HOLD_BUFFER_BYTES_MAX: u64 = 1 << 30;
/// Without titration nothing depends on them.
const UNKNOWN_RATE_BPS: u64 = 1_000_000_000;
const UNKNOWN_QUEUE_BYTES: u64 = 1_000_000;

/// How much repair is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Redundancy {
    Adaptive,
    Ppm(u32),
}

/// How flows learn of recovered losses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Signal {
    Hidden,
    Ecn,
    Ppm(u32),
}

/// The settings of a scenario's tunnel; sizes in bytes, times in nanoseconds.
#[derive(Clone, Debug)]
pub(super) struct Coding {
    redundancy: Redundancy,
    redundancy_max_ppm: u32,
    window: u16,
    window_max: u16,
    overflow_repairs_ppm: Option<u32>,
    overflow_window: u16,
    memory: Option<u16>,
    density: u8,
    symbol_size: u64,
    packet_size: u64,
    uncoded_first: u64,
    classes: Option<Vec<u8>>,
    titration: &'static str,
    delay: Option<Quantity>,
    threshold: Option<u64>,
    hold_time: Option<u64>,
    hold_buffer: Option<u64>,
    rate: Option<u64>,
    queue: Option<u64>,
    order: bool,
    order_hold_time: Option<Quantity>,
    order_pace: Option<Quantity>,
    /// `None` for no reports.
    feedback_interval: Option<u64>,
    peer_feedback_interval: Option<Option<u64>>,
    signal: Signal,
    pub(super) round_trip_ns: u64,
    pub(super) packet_overhead: u64,
}

impl Coding {
    pub(super) fn read(table: &Fields<'_>) -> Self {
        let window = |name| table.read(name, integer(1, WINDOW_MAX)).map(|symbols| symbols as u16);
        let size = |name| table.read(name, above_zero(&SIZE)).map(|size| size.value);
        let bytes = |name, default| table.read(name, quantity(&SIZE)).map_or(default, |q| q.value);
        let reports = |name| table.read(name, interval);
        let class = |value: &Value| integer(0, 255)(value).map(|class| class as u8);
        let classes = table.list("classes", 1, usize::MAX, class).map(|mut classes| {
            classes.sort_unstable();
            classes.dedup();
            classes
        });
        Self {
            redundancy: table
                .read("redundancy", |value| match value.as_str() {
                    Some("adaptive") => Ok(Redundancy::Adaptive),
                    _ => percent(value, &["adaptive"], "10 %").map(Redundancy::Ppm),
                })
                .unwrap_or(Redundancy::Adaptive),
            redundancy_max_ppm: table
                .read("redundancy_max", |value| percent(value, &[], "0.5 %"))
                .unwrap_or(200_000),
            window: window("window").unwrap_or(128),
            window_max: window("window_max").unwrap_or(MEMORY),
            overflow_repairs_ppm: table
                .read("overflow_repairs", number(0.0, OVERFLOW_REPAIRS_MAX))
                .map(|repairs| (repairs * MILLION as f64).round_ties_even() as u32),
            overflow_window: window("overflow_window").unwrap_or(OVERFLOW_WINDOW),
            memory: window("memory"),
            density: table
                .read("density", integer(0, DENSITY.into()))
                .map_or(DENSITY, |density| density as u8),
            symbol_size: size("symbol_size").unwrap_or(1_432),
            packet_size: bytes("packet_size", 100),
            uncoded_first: bytes("uncoded_first", 0),
            classes,
            titration: table
                .read("titration", word(&["titrated", "none", "immediate", "delayed"]))
                .unwrap_or("titrated"),
            delay: table.read("delay", quantity(&DURATION)),
            threshold: size("threshold"),
            hold_time: table.read("hold_time", quantity(&DURATION)).map(|time| time.value),
            hold_buffer: size("hold_buffer"),
            rate: table.read("rate", above_zero(&RATE)).map(|rate| rate.value),
            queue: size("queue"),
            order: table.read("order", boolean).unwrap_or(true),
            order_hold_time: table.read("order_hold_time", quantity(&DURATION)),
            order_pace: table.read("order_pace", above_zero(&RATE)),
            feedback_interval: reports("feedback_interval").unwrap_or(Some(SECOND_NS / 10)),
            peer_feedback_interval: reports("peer_feedback_interval"),
            signal: table
                .read("congestion_signal", |value| match value.as_str() {
                    Some("hidden") => Ok(Signal::Hidden),
                    Some("ecn") => Ok(Signal::Ecn),
                    _ => percent(value, &["hidden", "ecn"], "10 %").map(Signal::Ppm),
                })
                .unwrap_or(Signal::Hidden),
            round_trip_ns: 0,
            packet_overhead: 0,
        }
    }

    /// Refuses settings that contradict each other, and those that a gateway cannot do without.
    pub(super) fn check(&self, table: &Fields<'_>) {
        for message in self.contradictions() {
            table.refuse_whole(message);
        }
        let waits = ["titrated", "delayed"].contains(&self.titration);
        let has_overflow = self.overflow_repairs_ppm.is_some();
        let missing = match (self.rate, self.queue) {
            (None, _) => Some("rate"),
            (_, None) => Some("queue"),
            _ => None,
        };
        if let Some(name) = missing.filter(|_| (waits || has_overflow) && table.are_right()) {
            let (setting, without) = match (waits, has_overflow) {
                (false, _) => ("overflow_repairs".to_owned(), "no overflow_repairs"),
                (_, false) => (format!("titration {}", self.titration), "titration immediate"),
                _ => ("overflow_repairs".to_owned(), "titration immediate and no overflow_repairs"),
            };
            table.refuse_whole(format!(
                "read {setting} without {name}; a gateway cannot see the link: write its {name}, or {without}"
            ));
        }
    }

    fn contradictions(&self) -> Vec<String> {
        let mut found = Vec::new();
        match (&self.delay, self.titration) {
            (None, "delayed") => found
                .push("read titration delayed without delay; set one, such as 100 ms".to_owned()),
            (Some(delay), titration) if titration != "delayed" => found.push(format!(
                "read delay {} with titration {titration}; only delayed repair has one",
                delay.text
            )),
            _ => {}
        }
        let order_settings =
            [("order_hold_time", &self.order_hold_time), ("order_pace", &self.order_pace)];
        for (name, value) in order_settings.into_iter().filter(|_| !self.order) {
            let Some(value) = value else { continue };
            found.push(format!(
                "read {name} {} with order false; packets wait only for the order of their flow",
                value.text
            ));
        }
        if self.is_adaptive() && self.window > self.window_max {
            found.push(format!(
                "read window {} and window_max {}; window must be at most window_max",
                self.window, self.window_max
            ));
        }
        let (name, longest) = self.longest_window();
        if let Some(memory) = self.memory.filter(|memory| longest > *memory) {
            found.push(format!(
                "read {name} {longest} and memory {memory}; the sender must keep the symbols of its longest \
                 window"
            ));
        }
        found
    }

    const fn is_adaptive(&self) -> bool {
        matches!(self.redundancy, Redundancy::Adaptive)
    }

    fn longest_window(&self) -> (&'static str, u16) {
        let usual = if self.is_adaptive() {
            ("window_max", self.window_max)
        } else {
            ("window", self.window)
        };
        let has_longer = self.overflow_repairs_ppm.is_some() && self.overflow_window > usual.1;
        if has_longer { ("overflow_window", self.overflow_window) } else { usual }
    }

    /// The interval of the reports of the other end, which `adaptive` follows.
    fn reports(&self) -> Option<u64> {
        self.peer_feedback_interval.unwrap_or(self.feedback_interval)
    }

    /// Why both ends do not fit together.
    pub(super) fn wrong_redundancy(&self) -> Option<&'static str> {
        (self.is_adaptive() && self.reports().is_none()).then_some(
            "read \"adaptive\"; the other end reports no loss, as its feedback_interval is \"none\": set a \
             redundancy such as \"10 %\", or a feedback_interval there",
        )
    }

    /// What the daemon is told; a value beyond its type becomes the largest, which the daemon refuses.
    pub(super) fn settings(&self) -> TunnelSettings {
        let small = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        let queue_bytes = self.queue.unwrap_or(UNKNOWN_QUEUE_BYTES);
        let overflow = self.overflow_repairs_ppm.map(|repair_ppm| OverflowSettings {
            repair_ppm,
            window_symbols: self.overflow_window,
        });
        let hold_time_ns = self.hold_time.unwrap_or_else(|| match overflow {
            // Repair for a full queue waits until it drains.
            Some(_) => self.round_trip_ns.saturating_add(self.drain_time_ns(queue_bytes)),
            None => self.round_trip_ns,
        });
        let threshold_bytes = match overflow {
            Some(_) => queue_bytes.saturating_mul(OVERFLOW_THRESHOLD_THIRDS) / 3,
            None => queue_bytes / THRESHOLD_SHARE,
        };
        let delay_ns = self.delay.as_ref().map_or(0, |delay| delay.value);
        let order_hold_ns = self.order_hold_time.as_ref().map(|time| time.value);
        TunnelSettings {
            classifier: ClassifierSettings {
                packet_size_bytes: small(self.packet_size),
                classes: self.classes.clone(),
                young_bytes: self.uncoded_first,
            },
            redundancy: self.redundancy(),
            overflow,
            titration: match self.titration {
                "none" => TitrationSettings::None,
                "immediate" => TitrationSettings::Immediate,
                "delayed" => TitrationSettings::Delayed { delay_ns },
                _ => TitrationSettings::Titrated {
                    threshold_bytes: self.threshold.unwrap_or(threshold_bytes.max(1)),
                    hold_time_ns,
                },
            },
            hold_bytes: self.hold_buffer.unwrap_or_else(|| {
                let wait_ns = match self.titration {
                    "titrated" => hold_time_ns,
                    "delayed" => delay_ns,
                    _ => 0,
                };
                if overflow.is_none() {
                    return self.hold_bytes(wait_ns, self.share_ppm().into(), 0);
                }
                // The link sends no more in that time.
                let min_bytes = OVERFLOW_HOLD_QUEUES.saturating_mul(queue_bytes);
                self.hold_bytes(wait_ns, MILLION, min_bytes)
            }),
            queue: QueueSettings {
                rate_bps: self.rate.unwrap_or(UNKNOWN_RATE_BPS),
                capacity_bytes: queue_bytes,
                packet_overhead_bytes: small(self.packet_overhead),
            },
            memory_symbols: self.memory.unwrap_or_else(|| MEMORY.max(self.longest_window().1)),
            symbol_size_bytes: small(self.symbol_size),
            density: self.density,
            feedback_interval_ns: self.feedback_interval,
            delivery: if self.order {
                let hold_time_ns = order_hold_ns.unwrap_or(self.round_trip_ns / ORDER_HOLD_SHARE);
                let pace_bps = self.order_pace.as_ref().map(|rate| rate.value);
                DeliverySettings::Ordered { hold_time_ns, pace_bps }
            } else {
                DeliverySettings::Unordered
            },
            congestion_signal: match self.signal {
                Signal::Hidden => SignalSettings::Hidden,
                Signal::Ecn => SignalSettings::Ecn,
                Signal::Ppm(share_ppm) => SignalSettings::Visible { share_ppm },
            },
        }
    }

    fn redundancy(&self) -> RedundancySettings {
        let Redundancy::Ppm(redundancy_ppm) = self.redundancy else {
            let report_delay_ns = self
                .round_trip_ns
                .saturating_add(self.reports().unwrap_or(0))
                .saturating_add(SLACK_NS);
            return RedundancySettings::Adaptive {
                cap_ppm: self.redundancy_max_ppm,
                initial_loss_ppm: INITIAL_LOSS_PPM,
                margin: MARGIN,
                averaging_symbols: AVERAGING_SYMBOLS,
                decay_time_ns: DECAY_TIME_NS,
                window_min_symbols: self.window,
                window_max_symbols: self.window_max,
                report_delay_ns,
            };
        };
        RedundancySettings::Fixed { redundancy_ppm, window_symbols: self.window }
    }

    /// The time in which the queue drains, rounded down.
    fn drain_time_ns(&self, queue_bytes: u64) -> u64 {
        let rate_bps = self.rate.unwrap_or(UNKNOWN_RATE_BPS).max(1);
        let time_ns = u128::from(queue_bytes) * u128::from(8 * SECOND_NS) / u128::from(rate_bps);
        u64::try_from(time_ns).unwrap_or(u64::MAX)
    }

    const fn share_ppm(&self) -> u32 {
        match self.redundancy {
            Redundancy::Adaptive => self.redundancy_max_ppm,
            Redundancy::Ppm(share) => share,
        }
    }

    /// A share of what the link sends in a wait.
    fn hold_bytes(&self, wait_ns: u64, share_ppm: u64, min_bytes: u64) -> u64 {
        let bits = u128::from(self.rate.unwrap_or(UNKNOWN_RATE_BPS)) * u128::from(wait_ns);
        // In two steps: the product of all three may have more than 128 bits.
        let scale = u128::from(8 * SECOND_NS) * u128::from(MILLION);
        let whole = (bits / scale).saturating_mul(u128::from(share_ppm));
        let rest = (bits % scale) * u128::from(share_ppm) / scale;
        let bytes = u64::try_from(whole + rest).unwrap_or(u64::MAX);
        bytes.max(min_bytes).clamp(HOLD_BUFFER_BYTES_MIN, HOLD_BUFFER_BYTES_MAX)
    }
}

/// Reads a time above zero, or `none`.
fn interval(value: &Value) -> Read<Option<u64>> {
    if value.as_str() == Some("none") {
        return Ok(None);
    }
    let kind: &Kind = &DURATION;
    match kind.read(value).map_err(|error| format!("{error}, or \"none\""))? {
        Quantity { text, value: 0 } => {
            Err(format!("read \"{text}\"; must be above zero, or \"none\""))
        }
        Quantity { value, .. } => Ok(Some(value)),
    }
}

/// Reads a percentage as millionths; a message names `words`, too.
fn percent(value: &Value, words: &[&str], example: &str) -> Read<u32> {
    let number = |text: &str| {
        let number = text.trim().strip_suffix('%')?.trim_end();
        let is_decimal = number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
            && number.bytes().filter(|byte| *byte == b'.').count() <= 1;
        if is_decimal { number.parse::<f64>().ok() } else { None }
    };
    match value.as_str().and_then(number) {
        None => {
            let words: String = words.iter().map(|word| format!("\"{word}\", ")).collect();
            let or = if words.is_empty() { "" } else { "or " };
            let read = shown(value);
            Err(format!("read {read}; expected {words}{or}a percentage, such as \"{example}\""))
        }
        Some(percent) if percent > 100.0 => {
            Err(format!("read {}; must be at most 100 %", shown(value)))
        }
        Some(percent) => Ok((percent / 100.0 * MILLION as f64).round_ties_even() as u32),
    }
}
