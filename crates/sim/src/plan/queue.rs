//! Queue disciplines in a plan.

use serde::{Deserialize, Serialize};

use super::{Check, RATE_BPS_MAX, TIME_NS_MAX};

/// A queue discipline and its settings; see `bentpipe_core::link`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(tag = "discipline", rename_all = "snake_case", deny_unknown_fields)]
#[expect(missing_docs, reason = "each field is described at the discipline's own settings")]
pub enum Queue {
    /// First in, first out; drops arriving packets when full.
    DropTail { limit: Limit },
    /// Random early detection.
    Red {
        limit: Limit,
        unit: RedUnit,
        min_threshold: u64,
        max_threshold: u64,
        max_probability: f64,
        weight: f64,
        gentle: bool,
        mean_packet_bytes: u32,
        ecn: bool,
    },
    /// Controlled delay (RFC 8289).
    Codel { limit: Limit, target_ns: u64, interval_ns: u64, ecn: bool },
    /// Flow queues, each with controlled delay (RFC 8290).
    FqCodel {
        limit: Limit,
        target_ns: u64,
        interval_ns: u64,
        quantum_bytes: u32,
        queues: u32,
        ecn: bool,
    },
    /// First in, first out, with an additional limit per flow.
    PerFlowDropTail { limit: Limit, per_flow_limit: Limit },
    /// Drops arriving packets while the queue exceeds a threshold.
    EarlyPacketDiscard { limit: Limit, threshold: f64 },
    /// While the queue exceeds a threshold, drops arriving packets of flows that exceed their
    /// share.
    SelectiveDrop { limit: Limit, threshold: f64, load_ratio: f64 },
    /// A queue per class; the lowest class number is served first.
    StrictPriority { limit: Limit, classes: u8 },
    /// Classes with reserved rates, weights and ceilings; the limit is that of those without a queue of their own.
    SharedRate { limit: Limit, classes: Vec<SharingClass> },
}

/// A class of a shared rate; rates count bits on the link. See `bentpipe_core::link::SharingClass`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct SharingClass {
    /// The queue of its packets: drop-tail, CoDel or FQ-CoDel; by default drop-tail.
    pub queue: Option<Queue>,
    /// What it can always send.
    pub reserved_bps: Option<u64>,
    /// Its part of the rest.
    pub weight: u16,
    /// The most that it can send.
    pub ceiling_bps: Option<u64>,
}

/// The unit of random early detection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RedUnit {
    /// Packets, whatever their size.
    Packets,
    /// IP bytes.
    Bytes,
}

/// The limit of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(tag = "unit", content = "value", rename_all = "snake_case", deny_unknown_fields)]
pub enum Limit {
    /// IP bytes.
    Bytes(u64),
    /// Bytes on the link, framing included.
    LinkBytes(u64),
    /// Packets.
    Packets(u64),
    /// Waiting time in nanoseconds.
    TimeNs(u64),
    /// No limit.
    Unlimited,
}

/// An average below 2^40 packets or bytes is exact in `f64`.
const THRESHOLD_MAX: u64 = 1 << 40;
/// The largest IP packet.
const PACKET_BYTES_MAX: u64 = 65_535;
const QUANTUM_BYTES_MAX: u64 = 1 << 24;
const QUEUES_MAX: u64 = 65_536;
/// A class of this weight sends 1.5 MB at a time.
const WEIGHT_MAX: u64 = 1_000;
/// A limit of 100 times the share is practically no limit.
const LOAD_RATIO_MAX: f64 = 100.0;

impl Queue {
    pub(super) fn check(&self, check: &mut Check, at: &dyn Fn(&str) -> String) {
        match self {
            Self::DropTail { .. } | Self::PerFlowDropTail { .. } => {}
            Self::Red {
                min_threshold,
                max_threshold,
                max_probability,
                weight,
                mean_packet_bytes,
                ..
            } => {
                check.within(*max_threshold, 1..=THRESHOLD_MAX, || at("max_threshold"));
                check.that(
                    min_threshold < max_threshold,
                    || at("min_threshold"),
                    "must be below max_threshold",
                );
                check_share(check, *max_probability, &|| at("max_probability"));
                check_share(check, *weight, &|| at("weight"));
                check.that(*weight > 0.0, || at("weight"), "must be above 0");
                let mean = u64::from(*mean_packet_bytes);
                check.within(mean, 1..=PACKET_BYTES_MAX, || at("mean_packet_bytes"));
            }
            Self::Codel { limit, target_ns, interval_ns, .. } => {
                check_codel(check, *limit, *target_ns, *interval_ns, at);
            }
            Self::FqCodel { limit, target_ns, interval_ns, quantum_bytes, queues, .. } => {
                check_codel(check, *limit, *target_ns, *interval_ns, at);
                let quantum = u64::from(*quantum_bytes);
                check.within(quantum, 1..=QUANTUM_BYTES_MAX, || at("quantum_bytes"));
                check.within((*queues).into(), 1..=QUEUES_MAX, || at("queues"));
            }
            Self::EarlyPacketDiscard { limit, threshold } => {
                check_countable(check, *limit, at);
                check_share(check, *threshold, &|| at("threshold"));
            }
            Self::SelectiveDrop { limit, threshold, load_ratio } => {
                check_countable(check, *limit, at);
                check_share(check, *threshold, &|| at("threshold"));
                check.that(
                    *load_ratio > 0.0 && *load_ratio <= LOAD_RATIO_MAX,
                    || at("load_ratio"),
                    "must be above 0 and at most 100",
                );
            }
            Self::StrictPriority { limit, classes } => {
                check_not_time(check, *limit, at);
                check.within((*classes).into(), 1..=u8::MAX.into(), || at("classes"));
            }
            Self::SharedRate { limit, classes } => {
                check_not_time(check, *limit, at);
                check.within(classes.len() as u64, 1..=u8::MAX.into(), || at("classes"));
                for (number, class) in classes.iter().enumerate() {
                    class.check(check, &|field| at(&format!("classes.{number}.{field}")));
                }
            }
        }
    }

    /// The number of classes that the queue distinguishes; `None` if it ignores classes.
    #[must_use]
    pub fn classes(&self) -> Option<u8> {
        match self {
            Self::StrictPriority { classes, .. } => Some(*classes),
            Self::SharedRate { classes, .. } => {
                Some(u8::try_from(classes.len()).unwrap_or(u8::MAX))
            }
            Self::DropTail { .. }
            | Self::Red { .. }
            | Self::Codel { .. }
            | Self::FqCodel { .. }
            | Self::PerFlowDropTail { .. }
            | Self::EarlyPacketDiscard { .. }
            | Self::SelectiveDrop { .. } => None,
        }
    }
}

impl SharingClass {
    fn check(&self, check: &mut Check, at: &dyn Fn(&str) -> String) {
        let rates = [("reserved_bps", self.reserved_bps), ("ceiling_bps", self.ceiling_bps)];
        for (name, rate_bps) in rates {
            let rate_bps = rate_bps.unwrap_or(RATE_BPS_MAX);
            check.within(rate_bps, 1..=RATE_BPS_MAX, || at(name));
        }
        check.that(
            self.reserved_bps.unwrap_or(0) <= self.ceiling_bps.unwrap_or(RATE_BPS_MAX),
            || at("ceiling_bps"),
            "must not be below reserved_bps",
        );
        check.within(self.weight.into(), 1..=WEIGHT_MAX, || at("weight"));
        let at_queue = |field: &str| at(&format!("queue.{field}"));
        match &self.queue {
            None => {}
            Some(Queue::DropTail { limit }) => check_not_time(check, *limit, &at_queue),
            Some(queue @ (Queue::Codel { .. } | Queue::FqCodel { .. })) => {
                queue.check(check, &at_queue);
            }
            Some(_) => check.that(
                false,
                || at_queue("discipline"),
                "must be drop_tail, codel or fq_codel in a class of a shared rate",
            ),
        }
    }
}

fn check_share(check: &mut Check, share: f64, at: &dyn Fn() -> String) {
    check.that((0.0..=1.0).contains(&share), at, "must be from 0 to 1");
}

fn check_codel(
    check: &mut Check,
    limit: Limit,
    target_ns: u64,
    interval_ns: u64,
    at: &dyn Fn(&str) -> String,
) {
    check_not_time(check, limit, at);
    check.within(target_ns, 1..=TIME_NS_MAX, || at("target_ns"));
    check.within(interval_ns, 1..=TIME_NS_MAX, || at("interval_ns"));
}

/// These disciplines choose the next packet at dequeue, so the waiting time is unknown at enqueue.
fn check_not_time(check: &mut Check, limit: Limit, at: &dyn Fn(&str) -> String) {
    check.that(
        !matches!(limit, Limit::TimeNs(_)),
        || at("limit"),
        "must not be a time: this discipline cannot predict how long a packet waits",
    );
}

/// A threshold is a fraction of the limit.
fn check_countable(check: &mut Check, limit: Limit, at: &dyn Fn(&str) -> String) {
    check.that(
        matches!(limit, Limit::Bytes(_) | Limit::LinkBytes(_) | Limit::Packets(_)),
        || at("limit"),
        "must be in bytes, link_bytes or packets, because the threshold is a fraction of it",
    );
}
