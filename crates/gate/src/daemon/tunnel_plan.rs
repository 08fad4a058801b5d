//! What a daemon is told of its tunnel.

use std::io;
use std::net::IpAddr;

use bentpipe_core::tunnel::TunnelSettings;
use serde::{Deserialize, Serialize};

use super::plan_checks::refused;
use crate::network::{Network, is_interface};
use crate::tunnel::PublicKey;

/// So that the reports of all peers are one message, and the plan another.
pub(crate) const PEERS_MAX: usize = 64;
const NETWORKS_MAX: usize = 1_024;
const NAME_BYTES_MAX: usize = 64;
/// The smallest MTU of a path of IPv4 (RFC 791), and more than any device has.
const OUTER_MTU_MIN: u16 = 576;

/// A shorter interval keeps a thread and the link busy.
pub(crate) const KEEPALIVE_MIN_NS: u64 = 1_000_000_000;

/// What becomes of packets for the networks of the peers while no worker carries them, unless the daemon was ended on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FailMode {
    /// They are refused.
    Closed,
    /// They take other routes of the router, in clear text.
    Open,
}

/// The settings of a tunnel.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TunnelPlan {
    /// The name of its TUN device, which must not exist.
    pub device: String,
    /// The addresses of the device.
    pub addresses: Vec<Network>,
    /// The address on which it listens; `null` for all of the version of IP that the first endpoint has.
    #[serde(deserialize_with = "Option::deserialize")]
    pub listen_address: Option<IpAddr>,
    /// Its UDP port.
    pub listen_port: u16,
    /// The file with its private key.
    pub private_key: String,
    /// The MTU of the path to the peers; `null` for that of the routes to them.
    #[serde(deserialize_with = "Option::deserialize")]
    pub outer_mtu_bytes: Option<u16>,
    /// What becomes of packets when the worker is gone.
    pub fail: FailMode,
    /// The gateways at the other ends.
    pub peers: Vec<TunnelPeerPlan>,
    /// The coding.
    pub settings: TunnelSettings,
}

/// A gateway at the other end of a tunnel.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TunnelPeerPlan {
    /// Its name in reports.
    pub name: String,
    /// Its key.
    pub public_key: String,
    /// Its name or address with its port; `null` for one that roams.
    #[serde(deserialize_with = "Option::deserialize")]
    pub endpoint: Option<String>,
    /// The interval after which something is sent to it at the latest; `null` for none.
    #[serde(deserialize_with = "Option::deserialize")]
    pub keepalive_ns: Option<u64>,
    /// The networks behind it.
    pub networks: Vec<Network>,
}

impl TunnelPlan {
    /// What the types leave open.
    pub(super) fn check(&self) -> io::Result<()> {
        let at = |field: &str, why: &str| Err(refused(&format!("tunnel.{field}: {why}")));
        if !is_interface(&self.device) {
            return at("device", &format!("{:?} is no name of an interface", self.device));
        }
        if self.listen_port == 0 {
            return at("listen_port", "0 is no port");
        }
        if self.outer_mtu_bytes.is_some_and(|bytes| bytes < OUTER_MTU_MIN) {
            return at("outer_mtu_bytes", &format!("at least {OUTER_MTU_MIN}"));
        }
        if !(1..=PEERS_MAX).contains(&self.peers.len()) {
            return at("peers", &format!("{} is not from 1 to {PEERS_MAX}", self.peers.len()));
        }
        if self.addresses.len() + self.networks().count() > NETWORKS_MAX {
            return at("peers", &format!("at most {NETWORKS_MAX} networks and addresses"));
        }
        for (place, peer) in self.peers.iter().enumerate() {
            let fits = (1..=NAME_BYTES_MAX).contains(&peer.name.len());
            if !fits || peer.name.chars().any(char::is_control) {
                return at("peers", &format!("{:?} is no name of a peer", peer.name));
            }
            if let Err(error) = PublicKey::parse(&peer.public_key) {
                return at("peers", &format!("{}: public_key: {error}", peer.name));
            }
            let before = &self.peers[..place];
            if before.iter().any(|other| other.name == peer.name) {
                return at("peers", &format!("{:?} is the name of two peers", peer.name));
            }
            if let Some(other) = before.iter().find(|other| other.public_key == peer.public_key) {
                return at("peers", &format!("{} and {} have the same key", other.name, peer.name));
            }
            if peer.keepalive_ns.is_some_and(|interval| interval < KEEPALIVE_MIN_NS) {
                return at("peers", &format!("{}: keepalive_ns is less than a second", peer.name));
            }
            let is_taken = |network| before.iter().any(|other| other.networks.contains(network));
            if let Some(network) = peer.networks.iter().find(|network| is_taken(network)) {
                return at("peers", &format!("{network} belongs to two peers"));
            }
        }
        self.settings.check().or_else(|(field, why)| at("settings", &format!("{field} {why}")))
    }

    /// The networks behind all peers.
    pub(super) fn networks(&self) -> impl Iterator<Item = Network> {
        self.peers.iter().flat_map(|peer| peer.networks.iter().copied())
    }

    /// Whether the device carries IPv6.
    pub(super) fn has_ipv6(&self) -> bool {
        self.addresses.iter().copied().chain(self.networks()).any(|each| each.address.is_ipv6())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use bentpipe_core::tunnel::{
        ClassifierSettings, DeliverySettings, QueueSettings, RedundancySettings, SignalSettings,
        TitrationSettings,
    };

    use super::*;
    use crate::tunnel::PrivateKey;

    fn network(text: &str) -> Network {
        Network::try_from(text.to_owned()).expect("a network")
    }

    /// A tunnel with one peer.
    pub(in super::super) fn complete() -> TunnelPlan {
        TunnelPlan {
            device: "bp0".to_owned(),
            addresses: vec![network("10.99.0.1/24")],
            listen_address: None,
            listen_port: 51_871,
            private_key: "/none/key".to_owned(),
            outer_mtu_bytes: None,
            fail: FailMode::Closed,
            peers: vec![TunnelPeerPlan {
                name: "hub".to_owned(),
                public_key: PrivateKey::from_bytes([1; 32]).public().to_string(),
                endpoint: Some("192.0.2.1:51871".to_owned()),
                keepalive_ns: None,
                networks: vec![network("10.3.0.0/24")],
            }],
            settings: TunnelSettings {
                classifier: ClassifierSettings {
                    packet_size_bytes: 0,
                    classes: None,
                    young_bytes: 0,
                },
                redundancy: RedundancySettings::Fixed {
                    redundancy_ppm: 100_000,
                    window_symbols: 64,
                },
                overflow: None,
                titration: TitrationSettings::Immediate,
                hold_bytes: 1_000_000,
                queue: QueueSettings {
                    rate_bps: 1_000_000_000,
                    capacity_bytes: 1_000_000,
                    packet_overhead_bytes: 0,
                },
                memory_symbols: 1_024,
                symbol_size_bytes: 1_500,
                density: 15,
                feedback_interval_ns: Some(100_000_000),
                delivery: DeliverySettings::Unordered,
                congestion_signal: SignalSettings::Hidden,
            },
        }
    }

    fn message(change: impl FnOnce(&mut TunnelPlan)) -> String {
        let mut plan = complete();
        change(&mut plan);
        plan.check().expect_err("it is refused").to_string()
    }

    /// Given a whole plan, expect it to be accepted; given one bad value, expect the field in the message.
    #[test]
    fn a_bad_value_is_refused_by_its_field() {
        complete().check().expect("a plan");
        for (found, field) in [
            (message(|plan| plan.device = "a/b".to_owned()), "tunnel.device: "),
            (message(|plan| plan.listen_port = 0), "tunnel.listen_port: "),
            (message(|plan| plan.outer_mtu_bytes = Some(575)), "tunnel.outer_mtu_bytes: "),
            (message(|plan| plan.peers.clear()), "tunnel.peers: "),
            (message(|plan| plan.peers[0].name.clear()), "tunnel.peers: "),
            (message(|plan| plan.peers[0].public_key.clear()), "hub: public_key: "),
            (message(|plan| plan.peers[0].keepalive_ns = Some(999_999_999)), "hub: keepalive_ns "),
            (message(|plan| plan.peers.push(plan.peers[0].clone())), "the name of two peers"),
            (message(|plan| plan.settings.density = 16), "tunnel.settings: density is 16"),
        ] {
            assert!(found.contains(field), "{field} in {found}");
        }
        let same_key = message(|plan| {
            let other = TunnelPeerPlan { name: "other".to_owned(), ..plan.peers[0].clone() };
            plan.peers.push(other);
        });
        assert!(same_key.contains("hub and other have the same key"), "{same_key}");
        let same_network = message(|plan| {
            let mut other = TunnelPeerPlan { name: "other".to_owned(), ..plan.peers[0].clone() };
            other.public_key = PrivateKey::from_bytes([2; 32]).public().to_string();
            plan.peers.push(other);
        });
        assert!(same_network.contains("10.3.0.0/24 belongs to two peers"), "{same_network}");
    }
}
