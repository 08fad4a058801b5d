//! Which connections the relay has, by their addresses and by the ports of servers. The others pass without it.

use serde::{Deserialize, Serialize};

use super::matches::{End, Expressions, accept, in_networks, to_ports, version};
use crate::network::Network;

/// So that a plan is one message.
pub(crate) const ENTRIES_MAX: usize = 256;

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

    fn networks(&self, is_ipv6: bool) -> Vec<Network> {
        let networks = self.networks.iter().copied();
        networks.filter(|network| network.address.is_ipv6() == is_ipv6).collect()
    }
}

/// The rules that let SYNs pass unless the relay is to have their connections: all but those that are in a network or to a
/// port of `except`; if `only` has networks, those in them alone; if it has ports, those to them alone.
pub(super) fn passing(except: &Connections, only: &Connections) -> Vec<Expressions> {
    let mut rules = Vec::new();
    let mut pass = |parts: &[Expressions]| rules.push([parts.concat(), vec![accept()]].concat());
    for is_ipv6 in [false, true] {
        let (excepted, selected) = (except.networks(is_ipv6), only.networks(is_ipv6));
        if !excepted.is_empty() {
            for end in [End::Source, End::Destination] {
                pass(&[version(is_ipv6), in_networks(end, &excepted, false)]);
            }
        }
        if !selected.is_empty() {
            let outside = |end| in_networks(end, &selected, true);
            pass(&[version(is_ipv6), outside(End::Source), outside(End::Destination)]);
        } else if !only.networks.is_empty() {
            pass(&[version(is_ipv6)]);
        }
    }
    if !except.ports.is_empty() {
        pass(&[to_ports(&except.ports, false)]);
    }
    if !only.ports.is_empty() {
        pass(&[to_ports(&only.ports, true)]);
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
    /// Given networks of IPv4 alone, expect all connections of IPv6 to pass, and those of IPv4 with no end in them.
    #[test]
    fn every_list_has_its_rules() {
        let none = Connections::default;
        let except = connections(&["10.0.0.0/8", "fd00::/64"], &[[22, 22], [8_000, 8_099]]);
        assert_eq!(passing(&except, &none()).len(), 5);
        let only = connections(&["10.0.0.0/8", "192.0.2.1/32"], &[[443, 443]]);
        let rules = passing(&none(), &only);
        assert_eq!((rules.len(), &rules[1]), (3, &[version(true), vec![accept()]].concat()));
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
