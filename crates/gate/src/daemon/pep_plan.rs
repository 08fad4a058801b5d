//! What a daemon is told of its PEP.

use core::time::Duration;
use std::io;

use bentpipe_core::pep::AdmissionConfig;
use bentpipe_core::time::Duration as Limit;
use serde::{Deserialize, Serialize};

use super::plan_checks::refused;
use crate::Side;
use crate::network::is_interface;
use crate::relay::Config;
use crate::transparent::{Connections, LegSettings, Rules, SideRules, marks};

/// The settings of a PEP.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct PepPlan {
    /// The mark of packets for the relay: with one worker an even number, with 2 a multiple of 4, with 4 of 8 and so
    /// on. The numbers up to the next multiple are used, too, and two more.
    pub mark: u32,
    /// The number of the routing table.
    pub route_table: u32,
    /// Processes that relay. Each may have as many open files as one process may.
    pub workers: usize,
    /// Threads of the relay in each of them.
    pub threads: usize,
    /// The most connections at a time, of all workers. Those beyond it pass without the relay. Each worker has its share
    /// of them, and each connection its worker: so near the maximum some pass while another worker has room.
    pub connections: usize,
    /// The most data that the relay holds for each direction of a connection, beside the buffers of the sockets.
    pub buffer_bytes: usize,
    /// Whether clients are accepted before their servers have answered.
    pub early_accept: bool,
    /// How long a server may take to answer.
    pub connect_limit_ns: u64,
    /// The longest time without data; `null` for no limit.
    #[serde(deserialize_with = "Option::deserialize")]
    pub idle_limit_ns: Option<u64>,
    /// The time without data after which a peer is probed; `null` for never.
    #[serde(deserialize_with = "Option::deserialize")]
    pub keep_alive_ns: Option<u64>,
    /// New connections that pass without the relay.
    pub except: Connections,
    /// Without any, all others are relayed; otherwise these alone.
    pub only: Connections,
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
    #[serde(deserialize_with = "Option::deserialize")]
    pub congestion_control: Option<String>,
    /// The send buffer.
    #[serde(deserialize_with = "Option::deserialize")]
    pub send_buffer_bytes: Option<usize>,
    /// The receive buffer.
    #[serde(deserialize_with = "Option::deserialize")]
    pub receive_buffer_bytes: Option<usize>,
    /// The most bytes that wait unsent in a socket.
    #[serde(deserialize_with = "Option::deserialize")]
    pub not_sent_bytes: Option<u32>,
}

impl Leg {
    pub(super) fn settings(&self, keep_alive: Option<Duration>) -> LegSettings {
        LegSettings {
            congestion_control: self.congestion_control.clone(),
            send_buffer_bytes: self.send_buffer_bytes,
            receive_buffer_bytes: self.receive_buffer_bytes,
            not_sent_bytes: self.not_sent_bytes,
            keep_alive,
        }
    }
}

/// Descriptors beside those of connections: taps, raw sockets, listeners, channels, supplies.
const OTHER_DESCRIPTORS: usize = 512;
/// The most pipes of a worker: with 256 KiB each, 64 MiB, which is `fs.pipe-user-pages-soft` (pipe(7)).
const PIPES: usize = 256;
/// The most SYNs that a worker holds: those of 27,000 connections a second with an RTT of 600 ms.
const HELD: usize = 16_384;
/// More than a retransmitted SYN takes from its client to here.
const STARTED_MEMORY: Limit = Limit::from_secs(10);
/// The oldest of more connections or paths are forgotten, so that a flood of SYNs takes no memory.
const REMEMBERED: usize = 4_096;
pub(crate) const WORKERS_MAX: usize = 64;
/// More than any machine has processors, ports of a client, and bytes in a pipe.
const THREADS_MAX: usize = 1_024;
const CONNECTIONS_MAX: usize = 10_000_000;
const BUFFER_BYTES_MAX: usize = 1 << 30;

impl PepPlan {
    /// What the types leave open.
    pub(super) fn check(&self) -> io::Result<()> {
        let interfaces = || Side::ALL.into_iter().flat_map(|side| &self.side(side).interfaces);
        if let Some(name) = interfaces().find(|name| !is_interface(name)) {
            return Err(refused(&format!("pep.interfaces: {name:?} is no name of an interface")));
        }
        if !(1..=WORKERS_MAX).contains(&self.workers) {
            return Err(refused(&format!(
                "pep.workers: {} is not from 1 to {WORKERS_MAX}",
                self.workers
            )));
        }
        let multiple = marks(self.workers);
        let has_more = self.mark.checked_add(multiple + 2).is_some();
        if self.mark == 0 || !self.mark.is_multiple_of(multiple) || !has_more {
            return Err(refused(&format!(
                "pep.mark: {} is no multiple of {multiple}, of which {} workers need the numbers up to the next one and two more",
                self.mark, self.workers
            )));
        }
        for (name, connections) in [("except", &self.except), ("only", &self.only)] {
            connections.check().map_err(|text| refused(&format!("pep.{name}.{text}")))?;
        }
        if self.connections < self.workers {
            return Err(refused("pep.connections: at least 1 for each worker"));
        }
        for (name, value, max) in [
            ("threads", self.threads, THREADS_MAX),
            ("connections", self.connections, CONNECTIONS_MAX),
            ("buffer_bytes", self.buffer_bytes, BUFFER_BYTES_MAX),
        ] {
            if !(1..=max).contains(&value) {
                return Err(refused(&format!("pep.{name}: {value} is not from 1 to {max}")));
            }
        }
        Ok(())
    }

    /// What one of the workers is told: its share of the connections.
    pub(super) fn of_worker(&self) -> Self {
        Self { connections: self.connections.div_ceil(self.workers), ..self.clone() }
    }

    /// The rules, without ports until there are listeners.
    pub(super) fn rules(&self, name: &str) -> Rules {
        Rules {
            table: name.to_owned(),
            mark: self.mark,
            processes: self.workers,
            route_table: self.route_table,
            sides: Side::ALL.map(|side| SideRules {
                interfaces: self.side(side).interfaces.clone(),
                ..SideRules::default()
            }),
            except: self.except.clone(),
            only: self.only.clone(),
        }
    }

    /// One of its sides.
    pub(super) fn side(&self, side: Side) -> &SidePlan {
        match side {
            Side::Lan => &self.lan,
            Side::Link => &self.link,
        }
    }

    /// The TCP of the legs on a side.
    pub(super) fn leg(&self, side: Side) -> LegSettings {
        self.side(side).tcp.settings(self.keep_alive_ns.map(Duration::from_nanos))
    }

    pub(super) fn relay(&self) -> Config {
        Config {
            threads: self.threads,
            buffer_bytes: self.buffer_bytes,
            pipes: PIPES,
            connect_limit: Limit::from_nanos(self.connect_limit_ns),
            idle_limit: self.idle_limit_ns.map(Limit::from_nanos),
        }
    }

    pub(super) fn admission(&self) -> AdmissionConfig {
        AdmissionConfig {
            connections_max: self.connections,
            waiting_max: self.connections.min(HELD),
            handshake_max: Limit::from_nanos(self.connect_limit_ns),
            early_accept: self.early_accept,
            started_memory: STARTED_MEMORY,
            may_be_asymmetric: true,
            remembered_max: REMEMBERED,
        }
    }

    /// The descriptors that a worker with so many connections may open. Those of a connection that waits for its
    /// server are fewer.
    fn descriptors_with(&self, connections: usize) -> u64 {
        (self.relay().descriptors(connections) + OTHER_DESCRIPTORS) as u64
    }

    /// The descriptors that a worker may open.
    pub(crate) fn descriptors(&self) -> u64 {
        self.descriptors_with(self.connections.div_ceil(self.workers))
    }

    /// The most connections of a worker with which it may open no more than these.
    pub(super) fn connections_within(&self, descriptors: u64) -> u64 {
        let fixed = self.descriptors_with(0);
        let each = self.descriptors_with(1) - fixed;
        descriptors.saturating_sub(fixed) / each
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A plan with every field.
    pub(in super::super) fn complete() -> PepPlan {
        let side = SidePlan { interfaces: vec!["lan0".to_owned()], tcp: Leg::default() };
        PepPlan {
            mark: 2,
            route_table: 300,
            workers: 1,
            threads: 1,
            connections: 1,
            buffer_bytes: 65_536,
            early_accept: false,
            connect_limit_ns: 1,
            idle_limit_ns: None,
            keep_alive_ns: None,
            except: Connections::default(),
            only: Connections::default(),
            lan: side.clone(),
            link: side,
        }
    }
}
