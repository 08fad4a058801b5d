//! Which connections the relay has, by their addresses and by the ports of servers. The others pass without it.

use serde::{Deserialize, Serialize};

use crate::network::Network;

/// So that a plan is one message.
const ENTRIES_MAX: usize = 256;

/// TCP connections, by the networks of their ends and the ports of their servers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Connections {
    /// Those of which the client or the server, or both, are in one of these networks, which do not overlap.
    pub networks: Vec<Network>,
    /// Those to servers with these ports, from first to last. They do not overlap.
    pub ports: Vec<[u16; 2]>,
}

impl Connections {
    /// What nftables would refuse, or the plan has no room for.
    pub(crate) fn check(&self) -> Result<(), String> {
        for (name, count) in [("networks", self.networks.len()), ("ports", self.ports.len())] {
            if count > ENTRIES_MAX {
                return Err(format!("{name}: {count} are more than {ENTRIES_MAX}"));
            }
        }
        match self.ports.iter().find(|[first, last]| first > last) {
            Some([first, last]) => Err(format!("ports: {first} is after {last}")),
            None => Ok(()),
        }
    }

    /// The networks of a version of IP, as a set of nftables.
    fn networks(&self, is_ipv6: bool) -> Option<String> {
        let of_version = |network: &&Network| network.address.is_ipv6() == is_ipv6;
        set_of(self.networks.iter().filter(of_version).map(ToString::to_string))
    }

    fn ports(&self) -> Option<String> {
        set_of(self.ports.iter().map(|[first, last]| match first == last {
            true => first.to_string(),
            false => format!("{first}-{last}"),
        }))
    }
}

/// A set of nftables; `None` if it is empty.
pub(super) fn set_of(elements: impl Iterator<Item = String>) -> Option<String> {
    let elements: Vec<_> = elements.collect();
    (!elements.is_empty()).then(|| format!("{{ {} }}", elements.join(", ")))
}

/// The rules that let SYNs pass unless the relay is to have their connections: all but those that are in a network or to a
/// port of `except`; if `only` has networks, those in them alone; if it has ports, those to them alone.
pub(super) fn passing(except: &Connections, only: &Connections) -> Vec<String> {
    let mut rules = Vec::new();
    let mut pass = |condition: &str| rules.push(format!("{condition} accept"));
    for (version, is_ipv6) in [("ip", false), ("ip6", true)] {
        if let Some(networks) = except.networks(is_ipv6) {
            pass(&format!("{version} saddr {networks}"));
            pass(&format!("{version} daddr {networks}"));
        }
        match only.networks(is_ipv6) {
            Some(networks) => {
                pass(&format!("{version} saddr != {networks} {version} daddr != {networks}"));
            }
            None if only.networks.is_empty() => {}
            None => pass(&format!("meta nfproto ipv{}", if is_ipv6 { 6 } else { 4 })),
        }
    }
    if let Some(ports) = except.ports() {
        pass(&format!("tcp dport {ports}"));
    }
    if let Some(ports) = only.ports() {
        pass(&format!("tcp dport != {ports}"));
    }
    rules
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connections(networks: &[&str], ports: &[[u16; 2]]) -> Connections {
        let network = |&text: &&str| Network::try_from(text.to_owned()).expect("a network");
        Connections { networks: networks.iter().map(network).collect(), ports: ports.to_vec() }
    }

    #[test]
    fn without_lists_nothing_passes() {
        assert!(passing(&Connections::default(), &Connections::default()).is_empty());
    }

    /// Given exceptions, expect a rule for either end of a connection in each version, and one for the port of its server.
    #[test]
    fn what_is_excepted_passes() {
        let except = connections(&["10.0.0.0/8", "fd00::/64"], &[[22, 22], [8_000, 8_099]]);
        let expected = [
            "ip saddr { 10.0.0.0/8 } accept",
            "ip daddr { 10.0.0.0/8 } accept",
            "ip6 saddr { fd00::/64 } accept",
            "ip6 daddr { fd00::/64 } accept",
            "tcp dport { 22, 8000-8099 } accept",
        ];
        assert_eq!(passing(&except, &Connections::default()), expected);
    }

    /// Given networks of IPv4 alone, expect all connections of IPv6 to pass, and those of IPv4 with no end in them.
    #[test]
    fn all_but_a_selection_passes() {
        let only = connections(&["10.0.0.0/8", "192.0.2.1/32"], &[[443, 443]]);
        let expected = [
            "ip saddr != { 10.0.0.0/8, 192.0.2.1/32 } ip daddr != { 10.0.0.0/8, 192.0.2.1/32 } accept",
            "meta nfproto ipv6 accept",
            "tcp dport != { 443 } accept",
        ];
        assert_eq!(passing(&Connections::default(), &only), expected);
    }

    #[test]
    fn lists_are_short() {
        assert!(connections(&["::1/128"; 256], &[[1, 1]; 256]).check().is_ok());
        let expected = Err("networks: 257 are more than 256".to_owned());
        assert_eq!(connections(&["::1/128"; 257], &[]).check(), expected);
        assert!(connections(&[], &[[1, 1]; 257]).check().is_err());
    }

    #[test]
    fn ports_are_in_order() {
        assert!(connections(&[], &[[1, 1], [1, 2]]).check().is_ok());
        assert_eq!(connections(&[], &[[1, 2], [2, 1]]).check(), Err("ports: 2 is after 1".into()));
    }
}
