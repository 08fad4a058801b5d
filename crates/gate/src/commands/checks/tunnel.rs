//! The tunnel: its keys, its routes, and filters of its datagrams and of the packets in it.

use bentpipe_sys::nftables::{Hook, ListedRule, Statement, Subject};
use bentpipe_sys::route::MAIN_TABLE;
use serde_json::Value;

use super::super::failure::{Done, Failure};
use super::super::machine::Machine;
use super::filters::{ClosedChain, closed_chains};
use super::{Check, IP_VERSIONS, devices, split, text};
use crate::config::wording::counted;
use crate::config::{Peer, Tunnel};
use crate::daemon::FailMode;
use crate::network::Network;

pub(super) fn checks(machine: &dyn Machine, tunnel: &Tunnel) -> Done<Vec<Check>> {
    let mut checks = Vec::new();
    if tunnel.fail == FailMode::Open {
        checks.push(Check::advised(
            "clear text",
            "When the tunnel is killed, packets for the networks of its peers leave in clear text.",
            "leave out fail = \"open\" in the configuration",
        ));
    }
    checks.push(peers(tunnel));
    checks.push(networks(machine, tunnel)?);
    checks.push(tunnel_filters(machine, tunnel));
    Ok(checks)
}

fn peers(tunnel: &Tunnel) -> Check {
    match tunnel.peers.iter().find(|peer| peer.has_placeholder()) {
        Some(Peer { name, .. }) => Check::failed(
            "peers",
            format!("The public_key of {name} is the placeholder of an export."),
            "write the public key that keygen printed on that gateway",
        ),
        None => Check::passed("peers", "Each peer has a key of its own."),
    }
}

/// A route over another device than the tunnel's.
struct OtherRoute {
    version: u8,
    network: Network,
    metric: u64,
    has_gateway: bool,
    device: String,
}

/// Checks that the tunnel alone has the networks of its peers, and none of its own datagrams.
fn networks(machine: &dyn Machine, tunnel: &Tunnel) -> Done<Check> {
    let networks: Vec<_> = tunnel.peers.iter().flat_map(|peer| peer.networks.clone()).collect();
    let others = other_routes(machine, tunnel)?;
    for OtherRoute { version, network, metric, has_gateway, device } in &others {
        // The kernel's metric of a route without one; that of IPv6 is IP6_RT_PRIO_USER.
        let own_metric = if *version == 4 { 0 } else { 1_024 };
        if networks.contains(network) && *metric <= own_metric {
            let halves =
                if *version == 4 { "0.0.0.0/1 and 128.0.0.0/1" } else { "::/1 and 8000::/1" };
            return Ok(Check::failed(
                "networks",
                format!(
                    "{network} has another route, on {device}: packets would pass the tunnel by."
                ),
                if network.prefix == 0 {
                    format!("networks {halves}, and routes to the endpoints over {device}")
                } else {
                    format!("ip -{version} route del {network} dev {device}, or other networks")
                },
            ));
        }
        // A network behind a gateway may contain that of the tunnel, one of an interface must not.
        let overlaps = tunnel.addresses.iter().any(|address| network.overlaps(address));
        if !has_gateway && network.prefix > 0 && overlaps {
            return Ok(Check::failed(
                "networks",
                format!("The tunnel's addresses are in the network {network} on {device}."),
                "addresses of a network that nothing else has, such as 10.99.0.1/24",
            ));
        }
    }
    for peer in &tunnel.peers {
        let Some(host) = peer.address() else { continue };
        let longest = |networks: &mut dyn Iterator<Item = &Network>| {
            networks.filter(|network| network.contains(host)).map(|network| network.prefix).max()
        };
        let inside = longest(&mut networks.iter());
        let outside = longest(&mut others.iter().map(|route| &route.network));
        if inside.is_some() && inside >= outside {
            let version = if host.is_ipv4() { 4 } else { 6 };
            return Ok(Check::failed(
                "networks",
                format!(
                    "The endpoint of {}, {host}, is in the networks behind the tunnel, so its own packets \
                     would go into it.",
                    peer.name
                ),
                format!("a route to it over the link: ip -{version} route add {host} via GATEWAY"),
            ));
        }
    }
    let count = counted(networks.len() as u64, "network");
    Ok(Check::passed("networks", format!("{count} will be routed to the peers.")))
}

fn other_routes(machine: &dyn Machine, tunnel: &Tunnel) -> Done<Vec<OtherRoute>> {
    let mut others = Vec::new();
    for version in IP_VERSIONS {
        for route in machine.routes(version, MAIN_TABLE)? {
            let used = devices(&route).into_iter();
            let device = used.filter(|name| *name != "lo" && *name != tunnel.device).min();
            let is_unicast = route["type"].as_str().is_none_or(|kind| kind == "unicast");
            let (Some(device), Some(network), true) =
                (device, destination(&route, version), is_unicast)
            else {
                continue;
            };
            // A link-local network is on every interface.
            if is_link_local(&network) {
                continue;
            }
            let device = device.to_owned();
            let metric = route["metric"].as_u64().unwrap_or(0);
            let has_gateway = route.get("gateway").is_some();
            others.push(OtherRoute { version, network, metric, has_gateway, device });
        }
    }
    Ok(others)
}

fn is_link_local(network: &Network) -> bool {
    match network.address {
        std::net::IpAddr::V4(address) => address.is_link_local(),
        std::net::IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

/// The network of a route; a host without a prefix is one of its own.
fn destination(route: &Value, version: u8) -> Option<Network> {
    let text = text(route, "dst");
    let (everything, bits) = if version == 4 { ("0.0.0.0/0", 32) } else { ("::/0", 128) };
    let text = match text.as_str() {
        "default" => everything.to_owned(),
        host if !host.contains('/') => format!("{host}/{bits}"),
        _ => text,
    };
    Network::try_from(text).ok()
}

/// Looks for filters that may drop the tunnel's datagrams, or the packets in it. A rule may accept them by what is not
/// looked at, such as a source, so this is advice.
fn tunnel_filters(machine: &dyn Machine, tunnel: &Tunnel) -> Check {
    let (title, port, device) = ("tunnel filters", tunnel.port, &tunnel.device);
    let chains = match closed_chains(machine, None) {
        Ok(chains) => chains,
        Err(Failure::Machine(message) | Failure::Input(message)) => {
            let (found, fix) = split(&message);
            return Check::advised(title, format!("Filters cannot be checked: {found}."), fix);
        }
    };
    let is_named = |hook, subject, value: &[u8]| match (hook, subject) {
        (Hook::Input | Hook::Output, Subject::SourcePort | Subject::DestinationPort) => {
            value == port.to_be_bytes()
        }
        (Hook::Forward, Subject::IngressName | Subject::EgressName) => {
            value.strip_prefix(device.as_bytes()).is_some_and(|rest| rest.first() == Some(&0))
        }
        _ => false,
    };
    for ClosedChain { hook, name, table, rules } in &chains {
        let (shown, matches) = match hook {
            Hook::Input => (port.to_string(), vec![format!("udp dport {port}")]),
            Hook::Output => (port.to_string(), vec![format!("udp sport {port}")]),
            Hook::Forward => {
                (device.clone(), ["iifname", "oifname"].map(|it| format!("{it} {device}")).to_vec())
            }
            _ => continue,
        };
        let has_name = accepted(rules).any(|(subject, value)| is_named(*hook, subject, value));
        if has_name || !table.is_of_ip() {
            continue;
        }
        let fixes = matches.iter().map(|it| format!("nft insert rule {table} {name} {it} accept"));
        return Check::advised(
            title,
            format!(
                "Chain {name} of {table} in nftables drops or rejects what no rule accepts, and none names \
                 {shown}."
            ),
            fixes.collect::<Vec<_>>().join(" && "),
        );
    }
    let found = format!("No closed chain of nftables lacks a rule for port {port} or {device}.");
    Check::passed(title, found)
}

/// All values that are matched by rules that accept, with what has them.
fn accepted(rules: &[ListedRule]) -> impl Iterator<Item = (Subject, &[u8])> {
    let accepting = rules.iter().filter(|rule| rule.statements.contains(&Statement::Accept));
    accepting.flat_map(|rule| &rule.statements).flat_map(|statement| {
        let (subject, values) = match statement {
            Statement::Match { subject, values, .. } => (*subject, &values[..]),
            _ => (Subject::Other, &[][..]),
        };
        values.iter().map(move |value| (subject, &value[..]))
    })
}
