//! What a daemon is told: complete, in integers. Every field is required. One that may be `null` names its function for
//! serde, which otherwise takes `null` for a missing one.

use core::time::Duration;
use std::io;
use std::net::SocketAddr;

use bentpipe_core::time::Duration as Limit;
use serde::{Deserialize, Serialize};

use crate::relay::Config;
use crate::side::Side;
use crate::transparent::{IntakeConfig, LegSettings, Rules, SideRules, marks};

/// The settings of a gateway with a PEP.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Names the table of nftables, and the file of the state.
    pub name: String,
    /// Where the state is written once a second.
    pub state_file: String,
    /// Files, all in one folder, that are removed with the folder when a signal has ended the daemon.
    pub files: Vec<String>,
    /// The user and the group of the worker.
    pub user: u32,
    /// See `user`.
    pub group: u32,
    /// The mark of packets for the relay: with one worker an even number, with 2 a multiple of 4, with 4 of 8 and so
    /// on. The numbers up to the next multiple are used, too.
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
    /// An address of the loopback interface with a port, on which metrics are served; `null` for none.
    #[serde(deserialize_with = "Option::deserialize")]
    pub metrics_listen: Option<String>,
    /// The side of the hosts behind the gateway.
    pub lan: SidePlan,
    /// The side of the link.
    pub link: SidePlan,
}

/// What a worker is told.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Start {
    /// The plan of the daemon.
    pub plan: Plan,
    /// The number of the worker, from 0 on.
    pub worker: usize,
}

impl Start {
    /// Reads what a worker is told.
    ///
    /// # Errors
    /// As [`Plan::parse`].
    pub fn parse(bytes: &[u8]) -> io::Result<Self> {
        let start: Self =
            serde_json::from_slice(bytes).map_err(|error| refused(&error.to_string()))?;
        start.plan.check()?;
        Ok(start)
    }
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
const WORKERS_MAX: usize = 64;
/// More than any machine has processors, ports of a client, and bytes in a pipe.
const THREADS_MAX: usize = 1_024;
const CONNECTIONS_MAX: usize = 10_000_000;
const BUFFER_BYTES_MAX: usize = 1 << 30;

impl Plan {
    /// Reads a plan.
    ///
    /// # Errors
    /// `InvalidInput` with what is wrong, and where.
    pub fn parse(text: &str) -> io::Result<Self> {
        let plan: Self = serde_json::from_str(text).map_err(|error| refused(&error.to_string()))?;
        plan.check()?;
        Ok(plan)
    }

    /// What the types leave open.
    fn check(&self) -> io::Result<()> {
        if self.name.is_empty()
            || !self.name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
        {
            return Err(refused(&format!(
                "name: {:?} is no name of a table; to fix it: letters, digits, _ and -",
                self.name
            )));
        }
        let interfaces = || Side::ALL.into_iter().flat_map(|side| &self.side(side).interfaces);
        if let Some(name) = interfaces().find(|name| !is_interface(name)) {
            return Err(refused(&format!("interfaces: {name:?} is no name of an interface")));
        }
        if !(1..=WORKERS_MAX).contains(&self.workers) {
            return Err(refused(&format!(
                "workers: {} is not from 1 to {WORKERS_MAX}",
                self.workers
            )));
        }
        let multiple = marks(self.workers);
        if self.mark == 0 || !self.mark.is_multiple_of(multiple) {
            return Err(refused(&format!(
                "mark: {} is no multiple of {multiple}, of which {} workers need the numbers up to the next one",
                self.mark, self.workers
            )));
        }
        self.metrics_address()?;
        if self.connections < self.workers {
            return Err(refused("connections: at least 1 for each worker"));
        }
        for (name, value, max) in [
            ("threads", self.threads, THREADS_MAX),
            ("connections", self.connections, CONNECTIONS_MAX),
            ("buffer_bytes", self.buffer_bytes, BUFFER_BYTES_MAX),
        ] {
            if !(1..=max).contains(&value) {
                return Err(refused(&format!("{name}: {value} is not from 1 to {max}")));
            }
        }
        Ok(())
    }

    /// Where metrics are served.
    pub(super) fn metrics_address(&self) -> io::Result<Option<SocketAddr>> {
        let Some(text) = &self.metrics_listen else { return Ok(None) };
        let address = text.parse::<SocketAddr>().ok().filter(|address| address.ip().is_loopback());
        address.map(Some).ok_or_else(|| {
            refused(&format!(
                "metrics_listen: {text:?} is no address of the loopback interface with a port; to fix it: \
                 \"127.0.0.1:9100\" or \"[::1]:9100\""
            ))
        })
    }

    /// What one of the workers is told.
    pub(super) fn of_worker(&self, worker: usize) -> Self {
        let metrics_listen = self.metrics_listen.clone().filter(|_| worker == 0);
        Self {
            connections: self.connections.div_ceil(self.workers),
            metrics_listen,
            ..self.clone()
        }
    }

    /// The rules, without ports until there are listeners.
    pub(super) fn rules(&self) -> Rules {
        Rules {
            table: self.name.clone(),
            mark: self.mark,
            processes: self.workers,
            route_table: self.route_table,
            sides: Side::ALL.map(|side| SideRules {
                interfaces: self.side(side).interfaces.clone(),
                ..SideRules::default()
            }),
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

    pub(super) fn intake(&self) -> IntakeConfig {
        IntakeConfig {
            held: self.connections.min(HELD),
            connect_limit: Limit::from_nanos(self.connect_limit_ns),
            early_accept: self.early_accept,
        }
    }

    /// The descriptors that a worker with so many connections may open. Those of a connection that waits for its
    /// server are fewer.
    fn descriptors_with(&self, connections: usize) -> u64 {
        (self.relay().descriptors(connections) + OTHER_DESCRIPTORS) as u64
    }

    /// The descriptors that a worker may open.
    pub(super) fn descriptors(&self) -> u64 {
        self.descriptors_with(self.connections.div_ceil(self.workers))
    }

    /// The most connections of a worker with which it may open no more than these.
    pub(super) fn connections_within(&self, descriptors: u64) -> u64 {
        let fixed = self.descriptors_with(0);
        let each = self.descriptors_with(1) - fixed;
        descriptors.saturating_sub(fixed) / each
    }
}

fn refused(message: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("the plan is not valid: {message}"))
}

/// As the kernel allows it (`dev_valid_name`); a quote would end the name in the rules.
fn is_interface(name: &str) -> bool {
    let is_bad = |byte: u8| byte <= b' ' || b"/:\"\\\x7f".contains(&byte);
    (1..16).contains(&name.len()) && ![".", ".."].contains(&name) && !name.bytes().any(is_bad)
}

/// How often a worker reports: the rule, which is renewed then, is in force for more than twice as long.
pub(super) const REPORT: Limit = Limit::from_millis(750);

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value};

    use super::*;

    fn complete() -> Value {
        let side = SidePlan { interfaces: vec!["lan0".to_owned()], tcp: Leg::default() };
        let plan = Plan {
            name: "bentpipe".to_owned(),
            state_file: "/none/state.json".to_owned(),
            files: Vec::new(),
            user: 65_534,
            group: 65_534,
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
            metrics_listen: None,
            lan: side.clone(),
            link: side,
        };
        serde_json::to_value(plan).expect("a plan is JSON")
    }

    /// The objects of a plan by JSON Pointer (RFC 6901).
    const OBJECTS: [&str; 3] = ["", "/lan", "/lan/tcp"];

    fn object<'a>(plan: &'a mut Value, pointer: &str) -> &'a mut Map<String, Value> {
        plan.pointer_mut(pointer).and_then(Value::as_object_mut).expect("an object")
    }

    fn message(plan: &Value) -> String {
        Plan::parse(&plan.to_string()).expect_err("it is refused").to_string()
    }

    /// Given a plan without one of its fields, which may be one that is `null`, expect the field in the message.
    #[test]
    fn a_plan_without_one_of_its_fields_is_refused() {
        let mut plan = complete();
        assert!(Plan::parse(&plan.to_string()).is_ok());
        for pointer in OBJECTS {
            let fields: Vec<String> = object(&mut plan, pointer).keys().cloned().collect();
            for field in fields {
                let mut without = plan.clone();
                object(&mut without, pointer).remove(&field);
                let message = message(&without);
                assert!(message.contains(&format!("missing field `{field}`")), "{message}");
            }
        }
    }

    /// Given 5,000 connections and 4 threads, expect 2 files for each, and 1,024: as `open_files` of the Python package,
    /// by which a lab limits its connections and a unit its files.
    #[test]
    fn each_connection_has_two_files() {
        let plan = Plan::parse(&complete().to_string()).expect("a plan");
        let plan = Plan { threads: 4, connections: 5_000, ..plan };
        assert_eq!(plan.descriptors(), 10_000 + 8 + 1_024);
        assert_eq!(plan.connections_within(11_031), 4_999);
        // Each of three workers has its share.
        assert_eq!(Plan { workers: 3, ..plan }.descriptors(), 2 * 1_667 + 8 + 1_024);
    }

    /// Given one field more, in any part, expect it in the message.
    #[test]
    fn a_plan_with_an_unknown_field_is_refused() {
        for pointer in OBJECTS {
            let mut plan = complete();
            object(&mut plan, pointer).insert("speed".to_owned(), Value::from(3));
            let message = message(&plan);
            assert!(message.contains("unknown field `speed`"), "{message}");
        }
    }
}
