//! Whether both directions of a connection pass the gateway, as far as its own routes tell.
//!
//! A PEP must see both directions of a connection. Packets that leave or return on an interface of neither side pass it by,
//! and the connection is reset.

use std::collections::{BTreeMap, BTreeSet};

use bentpipe_sys::route::MAIN_TABLE;
use serde_json::{Value, json};

use super::super::failure::Done;
use super::super::machine::Machine;
use super::{Check, IP_VERSIONS, devices, text};
use crate::config::Config;

pub(super) fn check(machine: &dyn Machine, config: &Config) -> Done<Check> {
    let (lan, link) = config.sides();
    let tunnel = config.tunnel.iter();
    let added: Vec<_> = tunnel
        .flat_map(|tunnel| {
            let networks = tunnel.peers.iter().flat_map(|peer| &peer.networks);
            networks.map(|network| json!({"dst": network.to_string(), "dev": tunnel.device}))
        })
        .collect();
    if let Some(problem) = problem(machine, lan, link, &added)? {
        return Ok(problem);
    }
    if let Some(problem) = policy_problem(machine, &[lan, link].concat())? {
        return Ok(problem);
    }
    let rules = machine.routing_rules(4)?;
    let may_choose = |rule: &&Value| {
        !["local", "main", "default"].contains(&text(rule, "table").as_str())
            && rule.get("fwmark").is_none()
    };
    let extra = match rules.iter().filter(may_choose).count() {
        0 => String::new(),
        count => format!(" {count} rules of ip rule may choose other routes."),
    };
    Ok(Check::passed(
        "path",
        format!(
            "The routes of this machine use the listed interfaces.{extra} Whether packets return on {} \
             depends on the routers there, and cannot be checked here.",
            link.join(" or ")
        ),
    ))
}

/// The first problem of the routes; the daemon's tunnel adds the `added` ones.
pub(super) fn problem(
    machine: &dyn Machine,
    lan: &[String],
    link: &[String],
    added: &[Value],
) -> Done<Option<Check>> {
    let listed: BTreeSet<_> = lan.iter().chain(link).map(String::as_str).collect();
    let tunneled: BTreeSet<_> = added.iter().map(|route| text(route, "dst")).collect();
    let mut used = BTreeSet::new();
    for version in IP_VERSIONS {
        let routes = [machine.routes(version, MAIN_TABLE)?, added.to_vec()].concat();
        for (destination, interfaces) in best(&routes) {
            let others: Vec<_> =
                interfaces.iter().filter(|name| !listed.contains(**name)).copied().collect();
            if others.is_empty() {
                continue;
            }
            if destination == "default" {
                let what = format!("The IPv{version} default route");
                return Ok(Some(elsewhere(&what, &others, link, "")));
            }
            if interfaces.iter().any(|name| listed.contains(name)) {
                let mut fix = String::new();
                if tunneled.contains(&destination) {
                    let deleted = others
                        .iter()
                        .map(|other| format!("ip -{version} route del {destination} dev {other}"));
                    let deleted = deleted.collect::<Vec<_>>().join(" && ");
                    fix = format!("{deleted}, so that the tunnel alone has this network; or ");
                }
                let what = format!("A part of the packets to {destination}");
                return Ok(Some(elsewhere(&what, &others, link, &fix)));
            }
        }
        used.extend(routes.iter().flat_map(devices).map(str::to_owned));
    }
    Ok(lan.iter().chain(link).find(|name| !used.contains(*name)).map(|name| {
        Check::failed(
            "path",
            format!("No route uses {name}, so no packet leaves on it."),
            format!("give {name} an address and the routes to what is behind it (ip route add)"),
        )
    }))
}

/// A rule of ip rule for the packets of hosts that does not apply to a leg. The legs to servers are this machine's own
/// packets, from the addresses of the hosts.
fn policy_problem(machine: &dyn Machine, listed: &[String]) -> Done<Option<Check>> {
    for version in IP_VERSIONS {
        let rules = machine.routing_rules(version)?;
        let by_source: BTreeSet<_> = rules
            .iter()
            .filter(|rule| rule["src"].as_str().is_some_and(|source| source != "all"))
            .map(|rule| text(rule, "table"))
            .collect();
        for rule in &rules {
            let (name, table) = (text(rule, "iif"), text(rule, "table"));
            if listed.contains(&name) && !by_source.contains(&table) {
                return Ok(Some(Check::failed(
                    "path",
                    format!(
                        "A rule of ip -{version} rule chooses table {table} for packets from {name}, and does \
                         not apply to the connections that the gateway opens for them."
                    ),
                    format!(
                        "ip -{version} rule add from NETWORK lookup {table}, with the network behind {name}"
                    ),
                )));
            }
        }
    }
    Ok(None)
}

/// The problem of a route past both sides; `fix` is what to try before the others.
fn elsewhere(what: &str, others: &[&str], link: &[String], fix: &str) -> Check {
    let names = others.join(" and ");
    Check::failed(
        "path",
        format!(
            "{what} uses {names}, on neither side of the gateway: the PEP would see one direction of a \
             connection only."
        ),
        format!(
            "{fix}add {names} to the interfaces of lan or link, or route over {}",
            link.join(" or ")
        ),
    )
}

/// The interfaces that are used for each destination, in the order of the routes: those of the smallest metric.
fn best(routes: &[Value]) -> Vec<(String, BTreeSet<&str>)> {
    let mut order = Vec::new();
    let mut chosen: BTreeMap<String, (i64, BTreeSet<&str>)> = BTreeMap::new();
    for route in routes {
        let destination = text(route, "dst");
        let metric = route["metric"].as_i64().unwrap_or(0);
        // A link-local network is on every interface, and a blackhole on none.
        let is_local =
            ["fe80:", "169.254.", "ff00:"].iter().any(|start| destination.starts_with(start));
        let is_unicast = route["type"].as_str().is_none_or(|kind| kind == "unicast");
        if is_local || !is_unicast || route["dev"] == "lo" {
            continue;
        }
        let entry = chosen.entry(destination.clone()).or_insert_with(|| {
            order.push(destination);
            (metric, BTreeSet::new())
        });
        if metric < entry.0 {
            *entry = (metric, BTreeSet::new());
        }
        if metric == entry.0 {
            entry.1.extend(devices(route));
        }
    }
    let of = |destination: String| {
        let (_, interfaces) = chosen.remove(&destination).unwrap_or_default();
        (destination, interfaces)
    };
    order.into_iter().map(of).collect()
}
