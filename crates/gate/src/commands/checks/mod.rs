//! Checks before a gateway is started: what would keep it from working, each with the fix.
//!
//! Nothing is changed, but the kernel may load modules that it has.

mod filters;
mod numbers;
mod paths;
mod tunnel;

use std::collections::BTreeSet;

use bentpipe_sys::route::MAIN_TABLE;
use serde::Serialize;
use serde_json::Value;

use super::failure::{Done, FIX, Failure};
use super::machine::Machine;
use crate::config::Config;
use crate::config::wording::{counted, nearest, reason};
use crate::daemon::{PepPlan, Plan};
use crate::transparent::{KERNEL_PARTS, KernelPart};

/// A multiple of the marks of the largest number of workers, and more than they are.
const MARK_STEP: u32 = 256;
const IP_VERSIONS: [u8; 2] = [4, 6];

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Check {
    pub(super) name: String,
    pub(super) ok: bool,
    /// A sentence.
    pub(super) found: String,
    /// The remedy if it is not passed.
    pub(super) fix: String,
    /// One that is not needed is advice.
    pub(super) needed: bool,
}

impl Check {
    fn passed(name: impl Into<String>, found: impl Into<String>) -> Self {
        Self { name: name.into(), ok: true, found: found.into(), fix: String::new(), needed: true }
    }

    fn failed(name: impl Into<String>, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { ok: false, fix: fix.into(), ..Self::passed(name, found) }
    }

    /// What works without the fix works better with it.
    fn advised(name: impl Into<String>, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { needed: false, ..Self::failed(name, found, fix) }
    }

    /// Whether it is passed, or advice.
    pub(super) fn passes(&self) -> bool {
        self.ok || !self.needed
    }
}

/// What is known of a gateway of this name.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Options {
    /// Rules of this gateway may exist, which conflict with no others.
    pub(super) has_own: bool,
    /// It runs.
    pub(super) is_up: bool,
}

/// Expects all checks to be passed.
///
/// # Errors
/// One line for each that is not.
pub(super) fn require(checks: &[Check]) -> Done {
    let failed = checks.iter().filter(|check| !check.passes());
    let lines: Vec<_> = failed
        .map(|check| {
            format!("{}: {}{FIX}{}", check.name, check.found.trim_end_matches('.'), check.fix)
        })
        .collect();
    if lines.is_empty() { Ok(()) } else { Err(Failure::Machine(lines.join("\n"))) }
}

/// How many checks are passed, as a sentence.
pub(super) fn summary(checks: &[Check]) -> String {
    let failed = checks.iter().filter(|check| !check.passes()).count();
    let passed = counted((checks.len() - failed) as u64, "check");
    format!("{passed} passed, {failed} failed")
}

/// All checks; only the first ones if the others cannot be made.
///
/// # Errors
/// The configuration names something wrong, such as a key that others may read; or the kernel does not answer.
pub(super) fn examine(
    machine: &dyn Machine,
    config: &Config,
    plan: &Plan,
    options: Options,
) -> Done<Vec<Check>> {
    let mut checks = vec![daemon(machine)?, privileges(machine)];
    if !checks.iter().all(|check| check.ok) {
        return Ok(checks);
    }
    checks.push(forwarding(machine)?);
    if let Some(tunnel) = &config.tunnel {
        checks.extend(tunnel::checks(machine, tunnel)?);
    }
    if let Some(pep) = &plan.pep {
        checks.extend(of_pep(machine, config, pep, &plan.name, options.has_own)?);
    }
    if checks.iter().all(Check::passes) {
        checks.extend(sockets(machine, plan, options.is_up)?);
    }
    Ok(checks)
}

fn of_pep(
    machine: &dyn Machine,
    config: &Config,
    pep: &PepPlan,
    table: &str,
    has_own: bool,
) -> Done<Vec<Check>> {
    // The device of the tunnel is made by the daemon.
    let device = config.tunnel.as_ref().map(|tunnel| tunnel.device.as_str());
    let listed: Vec<_> = config.interfaces().filter(|name| Some(*name) != device).collect();
    let mut checks = vec![kernel(machine), ipv6(machine)];
    let links = machine.links()?;
    let interfaces: Vec<_> = listed.iter().map(|name| interface(name, &links)).collect();
    let are_up = interfaces.iter().all(|check| check.ok);
    checks.extend(interfaces);
    if are_up {
        checks.push(source_marks(machine, &listed));
        checks.push(paths::check(machine, config)?);
    }
    let selecting: BTreeSet<_> = config.selecting_interfaces().collect();
    let selecting = selecting.into_iter().filter(|name| Some(*name) != device);
    for name in selecting.filter(|name| !listed.contains(name)) {
        checks.push(selecting_interface(name, &links));
    }
    checks.push(path_mtu(machine));
    checks.push(filters::check(machine, pep.mark, table)?);
    checks.extend(congestion_controls(machine, pep));
    checks.push(buffer(machine, pep));
    checks.push(numbers::check(machine, pep, table, has_own)?);
    Ok(checks)
}

/// What is wrong and its fix, of a message that has both.
fn split(message: &str) -> (&str, &str) {
    message.split_once(FIX).unwrap_or((message, ""))
}

fn daemon(machine: &dyn Machine) -> Done<Check> {
    Ok(match machine.daemon() {
        Ok(path) => Check::passed("daemon", format!("{} is installed.", path.display())),
        Err(error) => {
            let message = error.to_string();
            let (found, fix) = split(&message);
            Check::failed("daemon", format!("{found}."), fix)
        }
    })
}

fn privileges(machine: &dyn Machine) -> Check {
    let missing = machine.missing_capabilities();
    if missing.is_empty() {
        return Check::passed("privileges", "This process may change rules and routes.");
    }
    let found = format!("This process lacks {}.", missing.join(", "));
    Check::failed("privileges", found, "run it as root, with sudo")
}

fn kernel(machine: &dyn Machine) -> Check {
    for part in KERNEL_PARTS {
        if let Err(error) = machine.validate(part) {
            let KernelPart { word, module } = part;
            return Check::failed(
                "kernel",
                format!("The kernel does not take a rule with {word}: {}.", reason(&error)),
                format!("modprobe {module}, or use a kernel with CONFIG_{}", module.to_uppercase()),
            );
        }
    }
    Check::passed("kernel", "The kernel has the modules for the rules.")
}

fn ipv6(machine: &dyn Machine) -> Check {
    match machine.sysctl("net.ipv6.conf.lo.disable_ipv6").as_deref() {
        None => Check::failed("ipv6", "The kernel has no IPv6.", "start it without ipv6.disable=1"),
        Some("0") => Check::passed("ipv6", "IPv6 is enabled on lo."),
        Some(_) => Check::failed(
            "ipv6",
            "IPv6 is disabled on lo, where the daemon listens.",
            "sysctl -w net.ipv6.conf.lo.disable_ipv6=0",
        ),
    }
}

fn interface(name: &str, links: &std::collections::BTreeMap<String, Value>) -> Check {
    let title = format!("interface {name}");
    let Some(link) = links.get(name) else {
        let names: Vec<_> = links.keys().collect();
        let hint = nearest(name, &names).map_or_else(
            || {
                let names: Vec<_> = names.iter().map(|name| name.as_str()).collect();
                format!(" there are {}.", names.join(", "))
            },
            |near| format!(" did you mean \"{near}\"?"),
        );
        let fix = "name one that exists in the configuration";
        return Check::failed(title, format!("It does not exist;{hint}"), fix);
    };
    let flags = link["flags"].as_array();
    if flags.is_some_and(|flags| flags.iter().any(|flag| flag == "UP")) {
        return Check::passed(title, "It is up.");
    }
    Check::failed(title, "It is down.", format!("ip link set {name} up"))
}

/// One that is down, or not there yet, merely has no connections.
fn selecting_interface(name: &str, links: &std::collections::BTreeMap<String, Value>) -> Check {
    match links.contains_key(name) {
        true => Check::passed(format!("interface {name}"), "It exists."),
        false => {
            let Check { name, found, fix, .. } = interface(name, links);
            Check::advised(name, found, fix)
        }
    }
}

fn forwarding(machine: &dyn Machine) -> Done<Check> {
    let settings = [("IPv4", "net.ipv4.ip_forward"), ("IPv6", "net.ipv6.conf.all.forwarding")];
    let is_on = |(_, setting): &(&str, &str)| machine.sysctl(setting).as_deref() == Some("1");
    let on: Vec<_> = settings.into_iter().filter(is_on).map(|(version, _)| version).collect();
    let needs_ipv4 = !on.contains(&"IPv6") || !machine.routes(4, MAIN_TABLE)?.is_empty();
    if !on.contains(&"IPv4") && needs_ipv4 {
        return Ok(Check::failed(
            "forwarding",
            "This machine does not forward IPv4 packets, so it is no gateway.",
            "sysctl -w net.ipv4.ip_forward=1",
        ));
    }
    let found = format!("This machine forwards {} packets.", on.join(" and "));
    Ok(Check::passed("forwarding", found))
}

fn source_marks(machine: &dyn Machine, listed: &[&str]) -> Check {
    let name = "source check";
    for interface in listed {
        if machine.interface_setting(interface, "src_valid_mark") > 0 {
            return Check::failed(
                name,
                format!(
                    "The kernel checks the sources of packets on {interface} by their marks \
                     (src_valid_mark), and would drop those of the gateway."
                ),
                format!(
                    "sysctl -w net.ipv4.conf.all.src_valid_mark=0 net.ipv4.conf.{interface}.src_valid_mark=0"
                ),
            );
        }
    }
    Check::passed(name, "The kernel checks the sources of packets without marks.")
}

fn path_mtu(machine: &dyn Machine) -> Check {
    // Of hosts, Windows and macOS look for it by default (RFC 4821), and Linux does not.
    if machine.sysctl("net.ipv4.tcp_mtu_probing").as_deref() != Some("0") {
        let found = "Legs find a smaller path MTU where ICMP errors are filtered.";
        return Check::passed("path MTU", found);
    }
    Check::failed(
        "path MTU",
        "Legs do not look for a smaller path MTU: large transfers of hosts that do would stall where it is \
         smaller and ICMP errors are filtered.",
        "sysctl -w net.ipv4.tcp_mtu_probing=1",
    )
}

fn congestion_controls(machine: &dyn Machine, pep: &PepPlan) -> Vec<Check> {
    let legs = [&pep.lan.tcp, &pep.link.tcp];
    let mut names: Vec<_> =
        legs.into_iter().filter_map(|leg| leg.congestion_control.as_deref()).collect();
    names.sort_unstable();
    names.dedup();
    let check = |name| {
        let title = format!("congestion control {name}");
        if machine.has_congestion_control(name) {
            return Check::passed(title, "The kernel has it.");
        }
        let available = machine.sysctl("net.ipv4.tcp_available_congestion_control");
        let has = available.unwrap_or_else(|| "none".to_owned()).replace(' ', ", ");
        let found = format!("The kernel has none of that name; it has {has}.");
        Check::failed(title, found, format!("modprobe tcp_{name}, or choose another one"))
    };
    names.into_iter().map(check).collect()
}

fn buffer(machine: &dyn Machine, pep: &PepPlan) -> Check {
    let asked = pep.buffer_bytes;
    let limit = machine.sysctl("fs.pipe-max-size").and_then(|text| text.parse().ok());
    let limit: usize = limit.unwrap_or(1 << 20);
    if asked <= limit {
        return Check::passed("buffer", format!("A pipe may hold {asked} B."));
    }
    Check::failed(
        "buffer",
        format!("A pipe holds at most {limit} B here (fs.pipe-max-size), and buffer is {asked} B."),
        format!("sysctl -w fs.pipe-max-size={asked}, or a smaller buffer"),
    )
}

/// Opens what a daemon opens, which prints the bounds of its memory.
fn sockets(machine: &dyn Machine, plan: &Plan, is_up: bool) -> Done<Option<Check>> {
    let mut tried = plan.clone();
    if is_up {
        // The gateway itself uses the port of the metrics, that of its tunnel and its device.
        (tried.metrics_listen, tried.tunnel) = (None, None);
    }
    if tried.pep.is_none() && tried.tunnel.is_none() {
        return Ok(None);
    }
    Ok(Some(match machine.open_sockets(&tried) {
        Ok(said) => Check::passed("sockets", format!("The daemon can open its sockets: {said}.")),
        Err(Failure::Machine(said)) => {
            let (found, fix) = split(&said);
            let fix = if fix.is_empty() { "report it with the configuration" } else { fix };
            Check::failed("sockets", format!("The daemon: {found}."), fix)
        }
        Err(refused) => return Err(refused),
    }))
}

/// The interfaces that a route uses: several if it has several next hops.
fn devices(route: &Value) -> Vec<&str> {
    let hops = route["nexthops"].as_array().filter(|hops| !hops.is_empty());
    let hops: Vec<_> = hops.map_or_else(|| vec![route], |hops| hops.iter().collect());
    hops.into_iter().filter_map(|hop| hop["dev"].as_str()).collect()
}

/// A field of an object that a [`Machine`] returns, as text; empty if there is none.
fn text(object: &Value, field: &str) -> String {
    match &object[field] {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests;
