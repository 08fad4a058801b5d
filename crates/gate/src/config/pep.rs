//! The PEP of a configuration: that of a scenario, with what only a real one needs.
//!
//! `tests/test_gateway_shared.py` compares its defaults and limits with those of `bentpipe.scenario.gateways`.

use std::net::IpAddr;

use super::fields::{interface, network, ports};
use super::kernel_tcp::{self, Tcp};
use super::quantity::{DURATION, Quantity, SIZE};
use super::reader::{Fields, above_zero, boolean, integer, quantity, word};
use super::wording::shown_text;
use crate::daemon::WORKERS_MAX;
use crate::network::Network;
use crate::transparent::{Connections, ENTRIES_MAX};

pub(super) const FIELDS: [&str; 14] = [
    "profile",
    "lan_tcp",
    "link_tcp",
    "buffer",
    "notsent_lowat",
    "connections",
    "early_accept",
    "except",
    "only",
    "connect_limit",
    "idle_limit",
    "keep_alive",
    "threads",
    "workers",
];
const CONNECTIONS_MAX: i64 = 1_000_000;
const THREADS_MAX: i64 = 256;
const SECOND_NS: u64 = 1_000_000_000;

/// Its settings; sizes in bytes, times in nanoseconds.
#[derive(Clone, Debug)]
pub(super) struct Pep {
    pub(super) lan_tcp: Tcp,
    pub(super) link_tcp: Tcp,
    pub(super) buffer: u64,
    pub(super) notsent_lowat: Option<Quantity>,
    pub(super) connections: usize,
    pub(super) early_accept: bool,
    pub(super) except: Option<Selection>,
    pub(super) only: Option<Selection>,
    pub(super) connect_limit: u64,
    /// Zero for no limit.
    pub(super) idle_limit: u64,
    /// Zero for never.
    pub(super) keep_alive: u64,
    pub(super) threads: Option<usize>,
    pub(super) workers: usize,
    is_linux: bool,
}

impl Default for Pep {
    fn default() -> Self {
        Self {
            lan_tcp: Tcp::default(),
            link_tcp: Tcp::default(),
            // A pipe of Linux (pipe(7)).
            buffer: 65_536,
            notsent_lowat: None,
            connections: 10_000,
            early_accept: false,
            except: None,
            only: None,
            connect_limit: 30 * SECOND_NS,
            // RFC 5382, REQ-5, asks a NAT for as much.
            idle_limit: 124 * 60 * SECOND_NS,
            keep_alive: 600 * SECOND_NS,
            threads: None,
            workers: 1,
            is_linux: true,
        }
    }
}

impl Pep {
    pub(super) fn read(table: &Fields<'_>) -> Self {
        let default = Self::default();
        let tcp = |name| {
            let leg = table.table(name, &kernel_tcp::names());
            leg.as_ref().map(Tcp::read).unwrap_or_default()
        };
        let count = |name, max| table.read(name, integer(1, max)).map(|number| number as usize);
        let time =
            |name, default| table.read(name, quantity(&DURATION)).map_or(default, |q| q.value);
        Self {
            is_linux: table.read("profile", word(&["bsd-1997", "linux"])) != Some("bsd-1997"),
            lan_tcp: tcp("lan_tcp"),
            link_tcp: tcp("link_tcp"),
            buffer: table.read("buffer", above_zero(&SIZE)).map_or(default.buffer, |q| q.value),
            notsent_lowat: table.read("notsent_lowat", above_zero(&SIZE)),
            connections: count("connections", CONNECTIONS_MAX).unwrap_or(default.connections),
            early_accept: table.read("early_accept", boolean).unwrap_or(default.early_accept),
            except: Selection::read(table, "except"),
            only: Selection::read(table, "only"),
            connect_limit: table
                .read("connect_limit", above_zero(&DURATION))
                .map_or(default.connect_limit, |limit| limit.value),
            idle_limit: time("idle_limit", default.idle_limit),
            keep_alive: time("keep_alive", default.keep_alive),
            threads: count("threads", THREADS_MAX),
            workers: count("workers", WORKERS_MAX as i64).unwrap_or(default.workers),
        }
    }

    /// The fields that a PEP on a router cannot have, and why.
    pub(super) fn refused(&self) -> Vec<(String, String)> {
        let mut refused = Vec::new();
        if !self.is_linux {
            let text = "read \"bsd-1997\"; a daemon has the TCP of its kernel: leave it out";
            refused.push(("profile".to_owned(), text.to_owned()));
        }
        if let Some(size) = self.notsent_lowat.as_ref().filter(|size| size.value > u32::MAX.into())
        {
            let read = shown_text(&size.text);
            let text = format!("read {read}; must be at most {} B", u32::MAX);
            refused.push(("notsent_lowat".to_owned(), text));
        }
        for (name, tcp) in [("lan_tcp", &self.lan_tcp), ("link_tcp", &self.link_tcp)] {
            let of_leg = tcp.refused().into_iter();
            refused.extend(of_leg.map(|(field, text)| (format!("{name}.{field}"), text)));
        }
        refused
    }
}

/// TCP connections, by the networks of their ends, the ports of their servers and the interfaces that their SYNs pass, as they
/// are written.
#[derive(Clone, Debug)]
pub(super) struct Selection {
    pub(super) networks: Vec<Network>,
    pub(super) ports: Vec<[u16; 2]>,
    pub(super) interfaces: Vec<String>,
}

impl Selection {
    fn read(pep: &Fields<'_>, name: &str) -> Option<Self> {
        let table = pep.table(name, &["networks", "ports", "interfaces"])?;
        let networks = table.list("networks", 0, ENTRIES_MAX, network).unwrap_or_default();
        let ports = table.list("ports", 0, ENTRIES_MAX, ports).unwrap_or_default();
        let interfaces = table.list("interfaces", 0, ENTRIES_MAX, interface).unwrap_or_default();
        let is_empty = networks.is_empty() && ports.is_empty() && interfaces.is_empty();
        if table.are_right() && is_empty {
            table.refuse_whole(
                "read no networks, ports or interfaces; write one of them, or leave this out",
            );
        }
        Some(Self { networks, ports, interfaces })
    }

    /// For the daemon: without overlaps and duplicates, which nftables refuses in a set.
    pub(super) fn connections(&self) -> Connections {
        let mut interfaces = self.interfaces.clone();
        interfaces.sort_unstable();
        interfaces.dedup();
        Connections { networks: collapsed(&self.networks), ports: merged(&self.ports), interfaces }
    }
}

/// Ranges in order, those that touch as one.
fn merged(ranges: &[[u16; 2]]) -> Vec<[u16; 2]> {
    let mut sorted = ranges.to_vec();
    sorted.sort_unstable();
    let mut merged: Vec<[u16; 2]> = Vec::new();
    for [first, last] in sorted {
        match merged.last_mut() {
            Some(before) if first <= before[1].saturating_add(1) => before[1] = before[1].max(last),
            _ => merged.push([first, last]),
        }
    }
    merged
}

/// The same addresses as few networks without overlaps, those of IPv4 first.
fn collapsed(networks: &[Network]) -> Vec<Network> {
    let mut sorted = networks.to_vec();
    sorted.sort_unstable();
    let mut collapsed: Vec<Network> = Vec::new();
    for network in sorted {
        if collapsed.last().is_some_and(|before| before.overlaps(&network)) {
            continue;
        }
        collapsed.push(network);
        while let [.., one, other] = collapsed[..] {
            let Some(both) = union(one, other) else { break };
            collapsed.truncate(collapsed.len() - 2);
            collapsed.push(both);
        }
    }
    collapsed
}

/// The network of two halves.
fn union(one: Network, other: Network) -> Option<Network> {
    let prefix = one.prefix.checked_sub(1).filter(|_| one.prefix == other.prefix)?;
    let whole = Network { address: one.address, prefix };
    let is_same_version = matches!(
        (one.address, other.address),
        (IpAddr::V4(_), IpAddr::V4(_)) | (IpAddr::V6(_), IpAddr::V6(_))
    );
    (is_same_version && whole.first() == one.address && whole.contains(other.address))
        .then_some(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn networks(texts: &[&str]) -> Vec<Network> {
        texts.iter().map(|text| Network::try_from((*text).to_owned()).expect("a network")).collect()
    }

    /// Given networks and ports that overlap or touch, expect them as one; given others, expect those.
    #[test]
    fn a_selection_has_no_overlaps() {
        let written = [
            "10.1.0.0/17",
            "2001:db8::/32",
            "10.1.128.0/17",
            "10.1.2.0/24",
            "192.168.2.0/24",
            "192.168.1.0/24",
        ];
        let expected = ["10.1.0.0/16", "192.168.1.0/24", "192.168.2.0/24", "2001:db8::/32"];
        assert_eq!(collapsed(&networks(&written)), networks(&expected));
        let quarters = ["10.0.0.0/10", "10.64.0.0/10", "10.128.0.0/10", "10.192.0.0/10"];
        assert_eq!(collapsed(&networks(&quarters)), networks(&["10.0.0.0/8"]));
        assert_eq!(collapsed(&networks(&["0.0.0.0/0", "::/0"])), networks(&["0.0.0.0/0", "::/0"]));
        let ranges = [[443, 443], [8000, 8099], [22, 22], [8050, 9000], [23, 23], [65_535, 65_535]];
        let expected = [[22, 23], [443, 443], [8000, 9000], [65_535, 65_535]];
        assert_eq!(merged(&ranges), expected);
    }
}
