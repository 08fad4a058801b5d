//! What a daemon is told: complete, in integers.

use core::time::Duration;

use bentpipe_core::time::Duration as Limit;
use serde::{Deserialize, Serialize};

use crate::relay::Config;
use crate::transparent::{IntakeConfig, LegSettings, Side};

/// The settings of a gateway with a PEP.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Names the table of nftables, and the file of the state.
    pub name: String,
    /// Where the state is written once a second.
    pub state_file: String,
    /// The user and the group of the worker.
    pub user: u32,
    /// See `user`.
    pub group: u32,
    /// The mark of packets for the relay, an even number; the next one is used, too.
    pub mark: u32,
    /// The number of the routing table.
    pub route_table: u32,
    /// Threads of the relay.
    pub threads: usize,
    /// The most connections at a time.
    pub connections: usize,
    /// How long a server may take to answer.
    pub connect_limit_ns: u64,
    /// The longest time without data; `null` for no limit.
    pub idle_limit_ns: Option<u64>,
    /// The side of the hosts behind the gateway.
    pub lan: SidePlan,
    /// The side of the link.
    pub link: SidePlan,
}

/// One side of the gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct SidePlan {
    /// The interfaces on which connections are opened that are relayed.
    pub interfaces: Vec<String>,
    /// The TCP of the legs on this side.
    pub tcp: Leg,
}

/// The TCP of one leg; what is `null` is the machine's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Leg {
    /// The congestion control.
    pub congestion_control: Option<String>,
    /// The send buffer.
    pub send_buffer_bytes: Option<usize>,
    /// The receive buffer.
    pub receive_buffer_bytes: Option<usize>,
    /// The most bytes that wait unsent in a socket.
    pub not_sent_bytes: Option<u32>,
}

impl Leg {
    pub(super) fn settings(&self) -> LegSettings {
        LegSettings {
            congestion_control: self.congestion_control.clone(),
            send_buffer_bytes: self.send_buffer_bytes,
            receive_buffer_bytes: self.receive_buffer_bytes,
            not_sent_bytes: self.not_sent_bytes,
        }
    }
}

/// Descriptors beside those of connections: taps, raw sockets, listeners, channels, supplies.
const OTHER_DESCRIPTORS: usize = 1_024;

impl Plan {
    /// One of its sides.
    pub(super) fn side(&self, side: Side) -> &SidePlan {
        match side {
            Side::Lan => &self.lan,
            Side::Link => &self.link,
        }
    }

    pub(super) fn relay(&self) -> Config {
        Config {
            threads: self.threads,
            connections: self.connections,
            connect_limit: Limit::from_nanos(self.connect_limit_ns),
            idle_limit: self.idle_limit_ns.map(Limit::from_nanos),
        }
    }

    pub(super) fn intake(&self) -> IntakeConfig {
        let connect_limit = Limit::from_nanos(self.connect_limit_ns);
        IntakeConfig { held: self.connections, connect_limit }
    }

    /// The descriptors that the worker may open: a SYN that is held has one more.
    pub(super) fn descriptors(&self) -> u64 {
        (self.relay().descriptors() + self.connections + OTHER_DESCRIPTORS) as u64
    }

    /// The most connections with which it may open no more than these.
    pub(super) fn connections_within(&self, descriptors: u64) -> u64 {
        let fixed = Self { connections: 0, ..self.clone() }.descriptors();
        let each = Self { connections: 1, ..self.clone() }.descriptors() - fixed;
        descriptors.saturating_sub(fixed) / each
    }
}

/// How often the worker reports.
pub(super) const REPORT: Duration = Duration::from_secs(1);
