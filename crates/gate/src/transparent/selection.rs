//! Which connections the relay has, by their addresses, the ports of servers and the interfaces of the gateway. The others
//! pass without it.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use bentpipe_sys::nftables::Field;

use super::matches::{End, Expressions, accept, in_networks, on_interfaces, to_ports, version};
use crate::network::{Network, is_interface};

/// So that a plan is one message.
pub(crate) const ENTRIES_MAX: usize = 256;

/// TCP connections, by the networks of their ends, the ports of their servers and the interfaces that their SYNs pass.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Connections {
    /// Those of which the client or the server, or both, are in one of these networks, which do not overlap.
    pub networks: Vec<Network>,
    /// Those to servers with these ports, from first to last. They do not overlap.
    pub ports: Vec<[u16; 2]>,
    /// Those whose SYN arrives on or leaves by one of these interfaces. Each name is there once.
    pub interfaces: Vec<String>,
}

impl Connections {
    /// What nftables would refuse, or the plan has no room for.
    pub(crate) fn check(&self) -> Result<(), String> {
        for (name, count) in [
            ("networks", self.networks.len()),
            ("ports", self.ports.len()),
            ("interfaces", self.interfaces.len()),
        ] {
            if count > ENTRIES_MAX {
                return Err(format!("{name}: {count} are more than {ENTRIES_MAX}"));
            }
        }
        if let Some([first, last]) = self.ports.iter().find(|[first, last]| first > last) {
            return Err(format!("ports: {first} is after {last}"));
        }
        let mut names = BTreeSet::new();
        for name in &self.interfaces {
            if !is_interface(name) {
                return Err(format!("interfaces: {name:?} is no name of an interface"));
            }
            if !names.insert(name) {
                return Err(format!("interfaces: {name:?} is listed twice"));
            }
        }
        Ok(())
    }

    fn networks(&self, is_ipv6: bool) -> Vec<Network> {
        let networks = self.networks.iter().copied();
        networks.filter(|network| network.address.is_ipv6() == is_ipv6).collect()
    }
}

/// The rules that let SYNs pass unless the relay is to have their connections: all but those that are in a network, to a
/// port or on an interface of `except`; if `only` has networks, those in them alone; if it has ports, those to them alone; if
/// it has interfaces, those on them alone.
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
    let on = |connections: &Connections, is_inverted| {
        [Field::IngressName, Field::EgressName]
            .map(|field| on_interfaces(field, &connections.interfaces, is_inverted))
    };
    if !except.interfaces.is_empty() {
        for excepted in on(except, false) {
            pass(&[excepted]);
        }
    }
    if !only.interfaces.is_empty() {
        pass(&on(only, true));
    }
    rules
}

#[cfg(test)]
mod tests {
    use bentpipe_sys::nftables::Expression;

    use super::*;

    fn connections(networks: &[&str], ports: &[[u16; 2]]) -> Connections {
        let network = |&text: &&str| Network::try_from(text.to_owned()).expect("a network");
        let networks = networks.iter().map(network).collect();
        Connections { networks, ports: ports.to_vec(), interfaces: Vec::new() }
    }

    fn on_interfaces(names: &[&str]) -> Connections {
        let interfaces = names.iter().map(|&name| name.to_owned()).collect();
        Connections { interfaces, ..Connections::default() }
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

    /// Given interfaces, expect an exception for SYNs that arrive on one and another for those that leave by one, but for a
    /// selection one rule with both conditions, also if the list has several names.
    #[test]
    fn interfaces_are_those_of_either_direction() {
        let none = Connections::default;
        for names in [&["wg0"][..], &["wg0", "tun0"]] {
            let excepted = passing(&on_interfaces(names), &none());
            assert_eq!(excepted.iter().map(Vec::len).collect::<Vec<_>>(), [3, 3]);
            let selected = passing(&none(), &on_interfaces(names));
            assert_eq!(selected.iter().map(Vec::len).collect::<Vec<_>>(), [5]);
            let fields = [0, 2].map(|place| selected[0][place].clone());
            let expected = [Field::IngressName, Field::EgressName].map(|f| Expression::Load(f, 0));
            assert_eq!(fields, expected);
        }
    }

    #[test]
    fn lists_are_short() {
        assert!(connections(&["::1/128"; 256], &[[1, 1]; 256]).check().is_ok());
        let expected = Err("networks: 257 are more than 256".to_owned());
        assert_eq!(connections(&["::1/128"; 257], &[]).check(), expected);
        assert!(connections(&[], &[[1, 1]; 257]).check().is_err());
    }

    /// Given names that the kernel refuses, one that is there twice or too many, expect them in the message.
    #[test]
    fn interfaces_have_one_valid_name_each() {
        let longest = "i".repeat(15);
        assert!(on_interfaces(&["wg0", "lan1.7", &longest]).check().is_ok());
        for name in ["", "a/b", "a b", "a\t", "eth%d", "..", &"i".repeat(16)] {
            let expected = format!("interfaces: {name:?} is no name of an interface");
            assert_eq!(on_interfaces(&["lan0", name]).check(), Err(expected));
        }
        let expected = Err("interfaces: \"wg0\" is listed twice".to_owned());
        assert_eq!(on_interfaces(&["wg0", "lan0", "wg0"]).check(), expected);
        let names: Vec<_> = (0..257).map(|number| format!("i{number}")).collect();
        let mut names: Vec<_> = names.iter().map(String::as_str).collect();
        let expected = Err("interfaces: 257 are more than 256".to_owned());
        assert_eq!(on_interfaces(&names).check(), expected);
        names.pop();
        assert!(on_interfaces(&names).check().is_ok());
    }

    #[test]
    fn ports_are_in_order() {
        assert!(connections(&[], &[[1, 1], [1, 2]]).check().is_ok());
        assert_eq!(connections(&[], &[[1, 2], [2, 1]]).check(), Err("ports: 2 is after 1".into()));
    }
}
