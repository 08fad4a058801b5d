//! What a daemon is told: complete, in integers. Every field is required. One that may be `null` names its function for
//! serde, which otherwise takes `null` for a missing one.

use std::io;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::pep_plan::PepPlan;
use super::plan_checks::refused;
use super::tunnel_plan::TunnelPlan;

/// What the names of tables of nftables begin with, before those of gateways.
pub(crate) const TABLE_PREFIX: &str = "bentpipe-";

/// The settings of a gateway: one function at least.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Names the table of nftables, and the file of the state.
    pub name: String,
    /// Where the state is written once a second.
    pub state_file: String,
    /// Where a client connects that changes the settings of the running daemon.
    pub control_file: String,
    /// Files, all in one folder, that are removed with the folder when a signal has ended the daemon.
    pub files: Vec<String>,
    /// The user and the group of the workers.
    pub user: u32,
    /// See `user`.
    pub group: u32,
    /// An address of the loopback interface with a port, on which metrics are served; `null` for none.
    #[serde(deserialize_with = "Option::deserialize")]
    pub metrics_listen: Option<String>,
    /// The PEP; `null` for none.
    #[serde(deserialize_with = "Option::deserialize")]
    pub pep: Option<PepPlan>,
    /// The tunnel; `null` for none.
    #[serde(deserialize_with = "Option::deserialize")]
    pub tunnel: Option<TunnelPlan>,
}

/// What a worker is told.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Start {
    /// The user and the group as whom it runs.
    pub user: u32,
    /// See `user`.
    pub group: u32,
    /// Whether it serves the metrics of the daemon.
    pub serves_metrics: bool,
    /// What this worker does.
    pub part: Part,
}

/// What a worker does.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Part {
    /// It relays a share of the connections of the PEP.
    Pep(PepPlan),
    /// It carries the packets of the tunnel.
    Tunnel {
        /// The settings.
        plan: TunnelPlan,
        /// The addresses of the peers, in the order of the plan; `null` for one that roams.
        endpoints: Vec<Option<SocketAddr>>,
        /// The MTU of the device, in bytes.
        mtu: u16,
    },
}

impl Start {
    /// Reads what a worker is told.
    ///
    /// # Errors
    /// As [`Plan::parse`].
    pub fn parse(bytes: &[u8]) -> io::Result<Self> {
        let start: Self =
            serde_json::from_slice(bytes).map_err(|error| refused(&error.to_string()))?;
        match &start.part {
            Part::Pep(plan) => plan.check()?,
            Part::Tunnel { plan, .. } => plan.check()?,
        }
        Ok(start)
    }
}

impl Plan {
    /// The name of the gateway.
    pub(super) fn gateway_name(&self) -> &str {
        self.name.strip_prefix(TABLE_PREFIX).unwrap_or(&self.name)
    }

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
        check_name(&self.name)?;
        if self.pep.is_none() && self.tunnel.is_none() {
            return Err(refused("pep, tunnel: a gateway has one function at least"));
        }
        self.metrics_address()?;
        self.pep.as_ref().map_or(Ok(()), PepPlan::check)?;
        self.tunnel.as_ref().map_or(Ok(()), TunnelPlan::check)
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
}

/// Expects the name of a table of nftables.
pub(super) fn check_name(name: &str) -> io::Result<()> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    if name.is_empty() || !name.bytes().all(is_allowed) {
        return Err(refused(&format!(
            "name: {name:?} is no name of a table; to fix it: letters, digits, _ and -"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value};

    use super::super::handover::BYTES_MAX;
    use super::super::{pep_plan, tunnel_plan};
    use super::*;
    use crate::network::Network;
    use crate::transparent::Connections;

    fn complete() -> Value {
        let plan = Plan {
            name: "bentpipe".to_owned(),
            state_file: "/none/state.json".to_owned(),
            control_file: "/none/control".to_owned(),
            files: Vec::new(),
            user: 65_534,
            group: 65_534,
            metrics_listen: None,
            pep: Some(pep_plan::tests::complete()),
            tunnel: Some(tunnel_plan::tests::complete()),
        };
        serde_json::to_value(plan).expect("a plan is JSON")
    }

    /// The objects of a plan by JSON Pointer (RFC 6901).
    const OBJECTS: [&str; 10] = [
        "",
        "/pep",
        "/pep/except",
        "/pep/only",
        "/pep/lan",
        "/pep/lan/tcp",
        "/tunnel",
        "/tunnel/peers/0",
        "/tunnel/settings",
        "/tunnel/settings/queue",
    ];

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
        let pep = plan.pep.expect("it has one");
        let pep = PepPlan { threads: 4, connections: 5_000, ..pep };
        assert_eq!(pep.descriptors(), 10_000 + 8 + 1_024);
        assert_eq!(pep.connections_within(11_031), 4_999);
        // Each of three workers has its share.
        assert_eq!(PepPlan { workers: 3, ..pep }.descriptors(), 2 * 1_667 + 8 + 1_024);
    }

    /// Given the most peers with the longest names and networks, and full lists of connections, expect a plan that is one
    /// message.
    #[test]
    fn the_longest_plan_is_one_message() {
        let network =
            Network { address: "ffff:".repeat(8)[..39].parse().expect("an address"), prefix: 128 };
        let mut plan = Plan::parse(&complete().to_string()).expect("a plan");
        let lists = Connections {
            networks: vec![network; 256],
            ports: vec![[10_000, 10_001]; 256],
            interfaces: vec!["i".repeat(15); 256],
        };
        let pep = plan.pep.as_mut().expect("it has one");
        (pep.except, pep.only) = (lists.clone(), lists);
        let tunnel = plan.tunnel.as_mut().expect("it has one");
        let mut peer = tunnel.peers[0].clone();
        peer.name = "n".repeat(32);
        peer.endpoint = Some("h".repeat(254) + ":65535");
        peer.networks = vec![network; 1_024 / 64];
        tunnel.peers = vec![peer; 64];
        let bytes = serde_json::to_vec(&plan).expect("it is JSON").len();
        // Names of files and interfaces have the rest.
        assert!(bytes + 8_192 < BYTES_MAX, "{bytes}");
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

    /// Given a plan without any function, expect a message.
    #[test]
    fn a_gateway_without_a_function_is_refused() {
        let mut plan = complete();
        object(&mut plan, "").insert("pep".to_owned(), Value::Null);
        assert!(Plan::parse(&plan.to_string()).is_ok());
        object(&mut plan, "").insert("tunnel".to_owned(), Value::Null);
        assert!(message(&plan).contains("one function"), "{}", message(&plan));
    }
}
