//! Gateways and hosts in a plan: what packets pass beside the link.

use bentpipe_core::aggregation::FRAME_HEADER_BYTES;
use serde::{Deserialize, Serialize};

use super::{Check, RATE_BPS_MAX, TIME_NS_MAX};

/// The box between hosts and the link.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Gateway {
    /// Unique: `hub`, `terminal-1` and so on.
    pub name: String,
    /// What it does to packets, from the hosts' side to the link's.
    pub functions: Vec<Function>,
}

/// One thing that a gateway does to packets. A gateway has at most one of each kind.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Function {
    /// Small packets share frames over the link.
    Aggregator(Aggregator),
    /// One CPU handles the packets of both directions, one at a time.
    Processor(Processor),
}

impl Function {
    /// The name used in scenarios, results and docs.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Aggregator(_) => "aggregator",
            Self::Processor(_) => "processor",
        }
    }

    /// Whether it changes packets so that only the same function at the other end can undo it.
    #[must_use]
    pub const fn needs_peer(&self) -> bool {
        match self {
            Self::Aggregator(_) => true,
            Self::Processor(_) => false,
        }
    }

    /// Whether it reports what happens to packets.
    #[must_use]
    pub const fn is_traced(&self) -> bool {
        match self {
            Self::Aggregator(_) => false,
            Self::Processor(_) => true,
        }
    }

    /// How many classes of packets it tells apart, so that it knows those that it is for; `None` if it
    /// looks at none.
    #[must_use]
    pub fn classes(&self) -> Option<u8> {
        match self {
            Self::Aggregator(aggregator) => {
                aggregator.classes.iter().flatten().max().map(|last| last.saturating_add(1))
            }
            Self::Processor(_) => None,
        }
    }

    fn check(&self, check: &mut Check, at: &dyn Fn(&str) -> String) {
        match self {
            Self::Aggregator(aggregator) => aggregator.check(check, at),
            Self::Processor(processor) => processor.check(check, at),
        }
    }
}

/// What packets share a frame, and for how long they wait for each other.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Aggregator {
    /// The largest frame, IP header included.
    pub frame_size_bytes: u32,
    /// The largest packet that joins a frame.
    pub packet_size_bytes: u32,
    /// The longest time that a packet waits for others.
    pub hold_time_ns: u64,
    /// The classes whose packets join frames; `null` for all.
    pub classes: Option<Vec<u8>>,
}

/// What a packet costs an interface processor, and what it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Processor {
    /// Packets of no length that it forwards in a second.
    pub packets_per_second: u64,
    /// Time for each IP byte.
    pub per_byte_ns: u64,
    /// Packets that may wait for it from each side.
    pub buffer_packets: u64,
}

/// A host at some distance from its gateway.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// Unique; names the host's random streams.
    pub name: String,
    /// Its gateway: an index into `gateways`.
    pub gateway: u32,
    /// One-way delay between it and the gateway.
    pub delay_ns: u64,
    /// The most that a packet is delayed on top; drawn uniformly from zero.
    pub jitter_ns: u64,
    /// The rate of its line in IP bits per second; `null` if packets take no time on it.
    pub rate_bps: Option<u64>,
}

/// A byte that takes longer than a second would be no processor's.
const PER_BYTE_NS_MAX: u64 = 1_000_000_000;
const PACKETS_PER_SECOND_MAX: u64 = 1_000_000_000;
const BUFFER_PACKETS_MAX: u64 = 1 << 32;

/// The largest IPv4 packet.
const FRAME_BYTES_MAX: u64 = 65_535;
/// A frame with two IPv4 headers and their separators; smaller ones could carry nothing.
const FRAME_BYTES_MIN: u64 = FRAME_HEADER_BYTES as u64 + (2 + 20) + (1 + 20);

impl Gateway {
    /// The functions that need their peer, in order.
    pub(super) fn peers(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.functions.iter().filter(|function| function.needs_peer()).map(Function::name)
    }

    pub(super) fn check(&self, check: &mut Check, path: &str) {
        for (index, function) in self.functions.iter().enumerate() {
            let at = |field: &str| format!("{path}.functions.{index}.{field}");
            function.check(check, &at);
            let before = &self.functions[..index];
            check.that(
                before.iter().all(|earlier| earlier.name() != function.name()),
                || at("kind"),
                "a gateway has each function once",
            );
        }
    }
}

impl Aggregator {
    fn check(&self, check: &mut Check, at: &dyn Fn(&str) -> String) {
        let frame_bytes = u64::from(self.frame_size_bytes);
        check.within(frame_bytes, FRAME_BYTES_MIN..=FRAME_BYTES_MAX, || at("frame_size_bytes"));
        check.within(self.packet_size_bytes.into(), 1..=frame_bytes, || at("packet_size_bytes"));
        check.within(self.hold_time_ns, 0..=TIME_NS_MAX, || at("hold_time_ns"));
    }
}

impl Processor {
    fn check(&self, check: &mut Check, at: &dyn Fn(&str) -> String) {
        let rate = self.packets_per_second;
        check.within(rate, 1..=PACKETS_PER_SECOND_MAX, || at("packets_per_second"));
        check.within(self.per_byte_ns, 0..=PER_BYTE_NS_MAX, || at("per_byte_ns"));
        check.within(self.buffer_packets, 1..=BUFFER_PACKETS_MAX, || at("buffer_packets"));
    }
}

impl Host {
    pub(super) fn check(&self, check: &mut Check, gateways: usize, at: &dyn Fn(&str) -> String) {
        check.that(
            (self.gateway as usize) < gateways,
            || at("gateway"),
            "is no index into gateways, which count from 0",
        );
        check.within(self.delay_ns, 0..=TIME_NS_MAX, || at("delay_ns"));
        check.within(self.jitter_ns, 0..=TIME_NS_MAX, || at("jitter_ns"));
        if let Some(rate) = self.rate_bps {
            check.within(rate, 1..=RATE_BPS_MAX, || at("rate_bps"));
        }
    }
}
