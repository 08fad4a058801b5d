//! Gateways and distant hosts in a plan.

use bentpipe_core::aggregation::FRAME_HEADER_BYTES;
use bentpipe_core::tunnel::TunnelSettings;
use serde::{Deserialize, Serialize};

use super::{Check, RATE_BPS_MAX, TIME_NS_MAX, Tcp};

/// A gateway between hosts and the link.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Gateway {
    /// Unique: `hub`, `terminal-1` and so on.
    pub name: String,
    /// Its functions, in order from the hosts to the link.
    pub functions: Vec<Function>,
}

/// A gateway function. A gateway has at most one of each kind.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Function {
    /// Aggregates small packets into frames.
    Aggregator(Aggregator),
    /// Splits TCP connections.
    Pep(Box<Pep>),
    /// Processes the packets of both directions on one CPU, one at a time.
    Processor(Processor),
    /// Codes packets over the link, and recovers lost ones.
    Tunnel(Box<TunnelSettings>),
}

impl Function {
    /// The name used in scenarios, results and docs.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Aggregator(_) => "aggregator",
            Self::Pep(_) => "pep",
            Self::Processor(_) => "processor",
            Self::Tunnel(_) => "tunnel",
        }
    }

    /// Whether the gateway at the other end needs the same function to restore the packets.
    #[must_use]
    pub const fn needs_peer(&self) -> bool {
        match self {
            Self::Aggregator(_) | Self::Tunnel(_) => true,
            Self::Pep(_) | Self::Processor(_) => false,
        }
    }

    /// Whether labs run it as a program on the gateway.
    #[must_use]
    pub const fn is_program(&self) -> bool {
        matches!(self, Self::Pep(_) | Self::Tunnel(_))
    }

    const fn is_pep(&self) -> bool {
        matches!(self, Self::Pep(_))
    }

    /// Whether it traces packet events.
    #[must_use]
    pub const fn is_traced(&self) -> bool {
        match self {
            Self::Aggregator(_) | Self::Pep(_) | Self::Tunnel(_) => false,
            Self::Processor(_) => true,
        }
    }

    /// The number of packet classes that it distinguishes; `None` if it ignores classes.
    #[must_use]
    pub fn classes(&self) -> Option<u8> {
        match self {
            Self::Aggregator(aggregator) => {
                aggregator.classes.iter().flatten().max().map(|last| last.saturating_add(1))
            }
            Self::Tunnel(tunnel) => {
                let classes = tunnel.classifier.classes.iter().flatten();
                classes.max().map(|last| last.saturating_add(1))
            }
            Self::Pep(_) | Self::Processor(_) => None,
        }
    }

    fn check(&self, check: &mut Check, at: &dyn Fn(&str) -> String) {
        match self {
            Self::Aggregator(aggregator) => aggregator.check(check, at),
            Self::Pep(pep) => pep.check(check, at),
            Self::Processor(processor) => processor.check(check, at),
            Self::Tunnel(tunnel) => {
                if let Err((field, problem)) = tunnel.check() {
                    check.that(false, || at(field), &problem);
                }
            }
        }
    }
}

/// Which packets are aggregated, and how long they wait.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Aggregator {
    /// The largest frame, IP header included.
    pub frame_size_bytes: u32,
    /// The largest packet that is aggregated.
    pub packet_size_bytes: u32,
    /// The longest time that a packet waits for more packets.
    pub hold_time_ns: u64,
    /// The classes whose packets are aggregated; `null` for all.
    pub classes: Option<Vec<u8>>,
}

/// The legs of a split-TCP PEP and the relay between them.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Pep {
    /// The TCP of the legs to the hosts behind the gateway.
    pub lan_tcp: Tcp,
    /// The TCP of the legs over the link.
    pub link_tcp: Tcp,
    /// The most unsent data in the send buffer of a leg; `null` for no limit but the buffer.
    pub notsent_lowat_bytes: Option<u64>,
    /// The most data that the relay holds for each direction of a connection.
    pub buffer_bytes: u64,
    /// The most connections that are split at the same time.
    pub connections: u64,
    /// Whether it accepts a connection before its destination does.
    pub early_accept: bool,
}

/// The processing time and the buffer of a packet processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Processor {
    /// The rate at which it forwards packets of length zero.
    pub packets_per_second: u64,
    /// Additional time per IP byte.
    pub per_byte_ns: u64,
    /// Buffer for the packets of each side.
    pub buffer_packets: u64,
}

/// A host at a distance from its gateway.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// Unique; names the host's random streams.
    pub name: String,
    /// Its gateway: an index into `gateways`.
    pub gateway: u32,
    /// One-way delay between it and the gateway.
    pub delay_ns: u64,
    /// Maximum additional delay; drawn uniformly from zero.
    pub jitter_ns: u64,
    /// The rate of its access line in IP bits per second; `null` for no transmission time.
    pub rate_bps: Option<u64>,
}

/// One second per byte.
const PER_BYTE_NS_MAX: u64 = 1_000_000_000;
const PACKETS_PER_SECOND_MAX: u64 = 1_000_000_000;
const BUFFER_PACKETS_MAX: u64 = 1 << 32;
const RELAY_BYTES_MAX: u64 = 1 << 30;
const CONNECTIONS_MAX: u64 = 1_000_000;

/// The largest IPv4 packet.
const FRAME_BYTES_MAX: u64 = 65_535;
/// A frame with two IPv4 headers and their separators.
const FRAME_BYTES_MIN: u64 = FRAME_HEADER_BYTES as u64 + (2 + 20) + (1 + 20);

impl Gateway {
    /// Whether it has a function that labs run as a program on it.
    #[must_use]
    pub fn has_programs(&self) -> bool {
        self.functions.iter().any(Function::is_program)
    }

    /// The functions that need a peer, in order.
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
                "must be different from the gateway's other functions",
            );
            // It would see only the segments that are in no other packet.
            let is_behind_frames = before.iter().any(Function::needs_peer);
            check.that(
                !is_behind_frames || !function.is_pep(),
                || at("kind"),
                "must be before the aggregator and the tunnel: a pep splits single packets, not frames",
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

impl Pep {
    fn check(&self, check: &mut Check, at: &dyn Fn(&str) -> String) {
        for (leg, tcp) in [("lan_tcp", &self.lan_tcp), ("link_tcp", &self.link_tcp)] {
            tcp.check(check, &|field| at(&format!("{leg}.{field}")));
        }
        if let Some(bytes) = self.notsent_lowat_bytes {
            check.within(bytes, 1..=RELAY_BYTES_MAX, || at("notsent_lowat_bytes"));
        }
        check.within(self.buffer_bytes, 0..=RELAY_BYTES_MAX, || at("buffer_bytes"));
        check.within(self.connections, 1..=CONNECTIONS_MAX, || at("connections"));
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
            "must be an index into gateways, from 0",
        );
        check.within(self.delay_ns, 0..=TIME_NS_MAX, || at("delay_ns"));
        check.within(self.jitter_ns, 0..=TIME_NS_MAX, || at("jitter_ns"));
        if let Some(rate) = self.rate_bps {
            check.within(rate, 1..=RATE_BPS_MAX, || at("rate_bps"));
        }
    }
}
