//! What this machine has: programs, capabilities, and what its kernel says of its network.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use bentpipe_sys::interface;
use bentpipe_sys::nftables::Ruleset;
use bentpipe_sys::route::{MAIN_TABLE, Route, RouteKind, Routes, RoutingRule};
use rustix::net::{AddressFamily, SocketType, socket, sockopt};
use serde_json::{Value, json};

use super::deadline::Deadline;
use super::failure::{Done, FIX, Failure, PROGRAM};
use super::folder::{POLL, said};
use crate::config::wording::reason;
use crate::daemon::Plan;
use crate::transparent::KernelPart;

const SYSTEM_FOLDERS: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];
/// capabilities(7), by the numbers of linux/capability.h.
const CAPABILITIES: [(&str, u32); 4] =
    [("CAP_SETGID", 6), ("CAP_SETUID", 7), ("CAP_NET_ADMIN", 12), ("CAP_NET_RAW", 13)];
const TIMEOUT: Duration = Duration::from_secs(20);
/// What [`Machine`] calls routing tables (`rt_tables` of iproute2).
const TABLES: [(u32, &str); 3] = [(255, "local"), (MAIN_TABLE, "main"), (253, "default")];

/// What checks ask of a machine.
pub(super) trait Machine {
    /// The path of this program.
    fn daemon(&self) -> Done<PathBuf>;
    /// The capabilities that a gateway needs and this process lacks.
    fn missing_capabilities(&self) -> Vec<&'static str>;
    /// A setting such as `net.ipv4.ip_forward`; `None` if the kernel has none.
    fn sysctl(&self, name: &str) -> Option<String>;
    /// Whether the kernel takes rules with this part.
    fn validate(&self, part: KernelPart) -> io::Result<()>;
    /// What the firewall has.
    fn ruleset(&self) -> Done<Ruleset>;
    /// The interfaces by name, as `ip -json` prints them, and so routes and rules.
    fn links(&self) -> Done<BTreeMap<String, Value>>;
    /// The routes of a table for IPv4 (4) or IPv6 (6); none of a table that is not there.
    fn routes(&self, version: u8, table: u32) -> Done<Vec<Value>>;
    /// The rules that choose a routing table.
    fn routing_rules(&self, version: u8) -> Done<Vec<Value>>;
    /// Whether the kernel has a congestion control. It loads the module if it has one.
    fn has_congestion_control(&self, name: &str) -> bool;
    /// What a daemon says that only opens what it needs.
    fn open_sockets(&self, plan: &Plan) -> Done<String>;

    /// The IPv4 setting of an interface: its own or that of `all`, whichever is larger.
    fn interface_setting(&self, name: &str, setting: &str) -> i64 {
        let name = name.replace('.', "/");
        let values = ["all", &name].into_iter().filter_map(|interface| {
            self.sysctl(&format!("net.ipv4.conf.{interface}.{setting}"))?.parse().ok()
        });
        values.max().unwrap_or(0)
    }
}

/// The machine that this process is on.
pub(super) struct Host;

impl Machine for Host {
    fn daemon(&self) -> Done<PathBuf> {
        std::env::current_exe().map_err(|error| {
            Failure::Machine(format!("{PROGRAM} cannot be found: {error}{FIX}mount /proc"))
        })
    }

    fn missing_capabilities(&self) -> Vec<&'static str> {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        let bits = effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0);
        let missing = CAPABILITIES.into_iter().filter(|(_, bit)| bits >> bit & 1 == 0);
        missing.map(|(name, _)| name).collect()
    }

    fn sysctl(&self, name: &str) -> Option<String> {
        // The name of an interface may have dots: there they are slashes, as sysctl(8) prints them.
        let swap = |letter| match letter {
            '.' => '/',
            '/' => '.',
            other => other,
        };
        let path: String = name.chars().map(swap).collect();
        let value = fs::read_to_string(format!("/proc/sys/{path}")).ok()?;
        Some(value.trim().to_owned())
    }

    fn validate(&self, part: KernelPart) -> io::Result<()> {
        part.validate()
    }

    fn ruleset(&self) -> Done<Ruleset> {
        Ruleset::read().map_err(|error| unreadable("rules of nftables", &error))
    }

    fn links(&self) -> Done<BTreeMap<String, Value>> {
        let flags = |is_up: bool| if is_up { vec!["UP"] } else { Vec::new() };
        let links = interface::list().map_err(|error| unreadable("interfaces", &error))?;
        Ok(links.into_iter().map(|it| (it.name, json!({"flags": flags(it.is_up)}))).collect())
    }

    fn routes(&self, version: u8, table: u32) -> Done<Vec<Value>> {
        let failed = |error: io::Error| unreadable("routes", &error);
        let links = interface::list().map_err(failed)?;
        let names: BTreeMap<_, _> = links.into_iter().map(|it| (it.index, it.name)).collect();
        let routes = Routes::open().and_then(|it| it.of_table(table, version == 6));
        let routes = routes.map_err(failed)?.into_iter();
        Ok(routes.map(|(route, used)| route_object(&route, &used, &names)).collect())
    }

    fn routing_rules(&self, version: u8) -> Done<Vec<Value>> {
        let rules = Routes::open().and_then(|it| it.rules(version == 6));
        let rules = rules.map_err(|error| unreadable("routing rules", &error))?;
        Ok(rules.into_iter().map(rule_object).collect())
    }

    fn has_congestion_control(&self, name: &str) -> bool {
        socket(AddressFamily::INET, SocketType::STREAM, None)
            .and_then(|socket| sockopt::set_tcp_congestion(&socket, name))
            .is_ok()
    }

    fn open_sockets(&self, plan: &Plan) -> Done<String> {
        let text = serde_json::to_string(plan).unwrap_or_default();
        let mut command = Command::new("/proc/self/exe");
        command.args(["plan", "check"]);
        let done = completed(command, PROGRAM, &text)?;
        let lines = printed(&done);
        let said = said(lines.last().map_or("", String::as_str)).to_owned();
        match done.status.code() {
            Some(0) => Ok(said),
            Some(2) => Err(Failure::Input(said)),
            _ => Err(Failure::Machine(said)),
        }
    }
}

fn route_object(route: &Route, used: &[u32], names: &BTreeMap<u32, String>) -> Value {
    let whole = if route.address.is_ipv6() { 128 } else { 32 };
    let destination = match route.prefix {
        0 => "default".to_owned(),
        bits if bits == whole => route.address.to_string(),
        bits => format!("{}/{bits}", route.address),
    };
    let kind = match route.kind {
        RouteKind::Unicast => "unicast",
        RouteKind::Local => "local",
        RouteKind::Unreachable => "unreachable",
        RouteKind::Other(_) => "other",
    };
    let hops: Vec<_> = used.iter().map(|index| json!({"dev": names.get(index)})).collect();
    let mut object = json!({"type": kind, "dst": destination, "metric": route.metric});
    match &hops[..] {
        [only] => object["dev"] = only["dev"].clone(),
        _ => object["nexthops"] = hops.into(),
    }
    if let Some(gateway) = route.gateway {
        object["gateway"] = gateway.to_string().into();
    }
    object
}

fn rule_object(rule: RoutingRule) -> Value {
    let mut object = json!({"src": if rule.has_source { "some" } else { "all" }});
    if rule.table != 0 {
        let name = TABLES.iter().find(|(number, _)| *number == rule.table);
        let number = || rule.table.to_string();
        object["table"] = name.map_or_else(number, |(_, name)| (*name).to_owned()).into();
    }
    if let Some((mark, mask)) = rule.mark {
        object["fwmark"] = format!("0x{mark:x}").into();
        object["fwmask"] = format!("0x{mask:x}").into();
    }
    if let Some(name) = rule.input {
        object["iif"] = name.into();
    }
    object
}

/// The error of a question to the kernel.
fn unreadable(what: &str, error: &io::Error) -> Failure {
    Failure::Machine(format!("the {what} cannot be read: {}{FIX}try again", reason(error)))
}

/// The `PATH` with the folders of system programs, which that of a user may lack.
pub(super) fn search_path() -> OsString {
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    let mut folders: Vec<_> = std::env::split_paths(&path).collect();
    for folder in SYSTEM_FOLDERS.map(PathBuf::from) {
        if !folders.contains(&folder) {
            folders.push(folder);
        }
    }
    std::env::join_paths(folders).unwrap_or(path)
}

/// The lines of standard error, one at least.
fn printed(done: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&done.stderr);
    let lines: Vec<_> = text.trim().lines().map(str::to_owned).collect();
    if lines.is_empty() {
        return vec![format!("it ended with code {}", done.status.code().unwrap_or(-1))];
    }
    lines
}

/// Runs a command to its end, which is killed after 20 s.
fn completed(mut command: Command, title: &str, given: &str) -> Done<Output> {
    let failed =
        |error: io::Error| Failure::Machine(format!("{title}: {}{FIX}try again", reason(&error)));
    command.env("PATH", search_path()).stdin(Stdio::piped());
    let mut child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(failed)?;
    let input = child.stdin.take();
    let process = rustix::process::Pid::from_child(&child);
    let deadline = Deadline::after(TIMEOUT);
    let is_late = std::thread::scope(|scope| {
        // A program that does not read must not make this one wait, and neither one whose output is not read.
        scope.spawn(|| input.map(|mut input| input.write_all(given.as_bytes())));
        let waiting = scope.spawn(|| child.wait_with_output());
        while !waiting.is_finished() && !deadline.is_past() {
            std::thread::sleep(POLL / 5);
        }
        let is_late = !waiting.is_finished();
        if is_late {
            let _ = rustix::process::kill_process(process, rustix::process::Signal::KILL);
        }
        (is_late, waiting.join())
    });
    match is_late {
        (false, Ok(done)) => done.map_err(failed),
        _ => Err(Failure::Machine(format!(
            "{title}: has not ended after {} s{FIX}try again when the machine is less busy",
            TIMEOUT.as_secs()
        ))),
    }
}
