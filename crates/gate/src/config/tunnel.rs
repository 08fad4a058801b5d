//! The tunnel of a configuration: that of a scenario, with what only a real one needs.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;

use super::coding::Coding;
use super::fields::{
    endpoint, interface, interface_address, listen, network, peer_name, placeholder_key,
    public_key, split_port,
};
use super::quantity::{DURATION, Quantity, SIZE};
use super::reader::{Fields, above_zero, integer, quantity, text, word};
use crate::daemon::{FailMode, KEEPALIVE_MIN_NS, PEERS_MAX, TunnelPeerPlan, TunnelPlan};
use crate::network::Network;

pub(super) const FIELDS: [&str; 34] = [
    "redundancy",
    "redundancy_max",
    "window",
    "window_max",
    "overflow_repairs",
    "overflow_window",
    "memory",
    "density",
    "symbol_size",
    "packet_size",
    "uncoded_first",
    "classes",
    "titration",
    "delay",
    "threshold",
    "hold_time",
    "hold_buffer",
    "rate",
    "queue",
    "order",
    "order_hold_time",
    "order_pace",
    "feedback_interval",
    "congestion_signal",
    "device",
    "addresses",
    "listen",
    "private_key",
    "peers",
    "fail",
    "outer_mtu",
    "round_trip",
    "packet_overhead",
    "peer_feedback_interval",
];
const PEER_FIELDS: [&str; 5] = ["name", "public_key", "endpoint", "networks", "keepalive"];
/// Labs and exports have the same: `tests/test_gateway_shared.py` compares them.
const DEVICE: &str = "bp0";
const PORT: u16 = 51_871;
/// The smallest MTU of IPv4 (RFC 791), and the largest of a device.
const MTU_MIN: i64 = 576;
const MTU_MAX: i64 = 65_535;
/// The round-trip time over a geostationary satellite.
const ROUND_TRIP_NS: u64 = 600_000_000;

/// A gateway at the other end of a tunnel.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) name: String,
    pub(crate) public_key: String,
    pub(crate) endpoint: Option<String>,
    pub(crate) networks: Vec<Network>,
    pub(crate) keepalive_ns: Option<u64>,
}

impl Peer {
    /// The address of its endpoint; `None` without one, and if it is a name.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        split_port(self.endpoint.as_ref()?)?.0.parse().ok()
    }

    /// Whether its key is one that an export writes, also if it has another name since.
    pub(crate) fn has_placeholder(&self) -> bool {
        let numbered = (1..=PEERS_MAX).map(|number| format!("terminal-{number}"));
        let named = [self.name.clone(), "hub".to_owned(), "terminal".to_owned()];
        named
            .into_iter()
            .chain(numbered)
            .any(|name| placeholder_key(&name).to_string() == self.public_key)
    }

    fn read(table: &Fields<'_>) -> Option<Self> {
        let name = table.required("name", peer_name);
        let public_key = table.required("public_key", public_key);
        let endpoint = table.read("endpoint", endpoint);
        let networks = table.required_list("networks", network);
        let keepalive = table.read("keepalive", above_zero(&DURATION));
        if let Some(Quantity { text, .. }) =
            keepalive.as_ref().filter(|time| table.are_right() && time.value < KEEPALIVE_MIN_NS)
        {
            table.refuse_whole(format!("read keepalive {text}; at least 1 s, such as 25 s"));
        }
        Some(Self {
            name: name?,
            public_key: public_key?,
            endpoint,
            networks: networks?,
            keepalive_ns: keepalive.map(|time| time.value),
        })
    }
}

/// Its settings; times in nanoseconds.
#[derive(Clone, Debug)]
pub(crate) struct Tunnel {
    pub(crate) device: String,
    pub(crate) addresses: Vec<Network>,
    listen_address: Option<IpAddr>,
    pub(crate) port: u16,
    private_key: String,
    pub(crate) peers: Vec<Peer>,
    pub(crate) fail: FailMode,
    outer_mtu: Option<u16>,
    pub(super) coding: Coding,
}

impl Tunnel {
    pub(super) fn read(table: &Fields<'_>) -> Option<Self> {
        let mut coding = Coding::read(table);
        let device = table.read("device", interface).unwrap_or_else(|| DEVICE.to_owned());
        let addresses = table.required_list("addresses", interface_address);
        let (listen_address, port) = table.read("listen", listen).unwrap_or((None, PORT));
        let private_key = table.required("private_key", |value| match text(value)? {
            path if path.is_empty() => Err("is empty; expected text".to_owned()),
            path => Ok(path),
        });
        let tables = table.required_tables("peers", PEERS_MAX, &PEER_FIELDS);
        let peers: Vec<_> = tables.iter().filter_map(Peer::read).collect();
        let fail = table.read("fail", word(&["closed", "open"]));
        let outer_mtu = table.read("outer_mtu", integer(MTU_MIN, MTU_MAX));
        coding.round_trip_ns = table
            .read("round_trip", above_zero(&DURATION))
            .map_or(ROUND_TRIP_NS, |time| time.value);
        coding.packet_overhead =
            table.read("packet_overhead", quantity(&SIZE)).map_or(0, |size| size.value);
        if table.are_right() {
            coding.check(table);
        }
        if table.are_right()
            && let Some(message) = conflict(&peers)
        {
            table.refuse_whole(message);
        }
        Some(Self {
            device,
            addresses: addresses?,
            listen_address,
            port,
            private_key: private_key?,
            peers,
            fail: if fail == Some("open") { FailMode::Open } else { FailMode::Closed },
            outer_mtu: outer_mtu.map(|bytes| bytes as u16),
            coding,
        })
    }

    /// What the daemon is told; the path of the key is relative to a folder.
    pub(super) fn plan(&self, folder: &Path) -> TunnelPlan {
        let plan = |peer: &Peer| TunnelPeerPlan {
            name: peer.name.clone(),
            public_key: peer.public_key.clone(),
            endpoint: peer.endpoint.clone(),
            keepalive_ns: peer.keepalive_ns,
            networks: peer.networks.clone(),
        };
        TunnelPlan {
            device: self.device.clone(),
            addresses: self.addresses.clone(),
            listen_address: self.listen_address,
            listen_port: self.port,
            private_key: folder.join(&self.private_key).to_string_lossy().into_owned(),
            outer_mtu_bytes: self.outer_mtu,
            fail: self.fail,
            peers: self.peers.iter().map(plan).collect(),
            settings: self.coding.settings(),
        }
    }
}

/// What two peers have in common that each has for itself.
fn conflict(peers: &[Peer]) -> Option<String> {
    let (mut keys, mut networks) = (BTreeMap::new(), BTreeMap::new());
    for (place, Peer { name, public_key, networks: own, .. }) in peers.iter().enumerate() {
        let others = peers.iter().enumerate().filter(|(other, _)| *other != place);
        if others.clone().any(|(_, other)| other.name == *name) {
            return Some(format!("read two peers named {name}; each has a name of its own"));
        }
        if let Some(other) = keys.insert(public_key, name) {
            return Some(format!(
                "read the same public_key at {other} and {name}; each gateway has the key that keygen \
                 printed there"
            ));
        }
        for network in own {
            if let Some(other) = networks.insert(network, name) {
                return Some(format!(
                    "read the network {network} at {other} and {name}; it is behind one peer"
                ));
            }
        }
    }
    None
}
