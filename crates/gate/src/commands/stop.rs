//! The end of a daemon, and the removal of what one has left that was killed.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::deadline::Deadline;
use super::failure::{Done, FIX, Failure};
use super::folder::{GatewayFolder, POLL, Record, network_namespace, said};
use super::machine::search_path;
use super::processes;
use crate::daemon::Leftovers;

const END_TIMEOUT: Duration = Duration::from_secs(10);
/// It holds the processes of a killed daemon until they end; the worker notices within a second.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// Ends a gateway and removes all of it; returns its last counters.
///
/// # Errors
/// A part cannot be removed.
pub(super) fn stop(folder: &GatewayFolder) -> Done<Option<Value>> {
    let (record, counters) = (folder.record(), folder.counters());
    end(folder)?;
    // Nobody starts it meanwhile.
    let _lock = folder.lock()?;
    if let Some(record) = record {
        remove_leftovers(&record, &BTreeSet::new())?;
    }
    folder.remove();
    Ok(counters)
}

/// Ends the processes of a gateway, if there are any.
fn end(folder: &GatewayFolder) -> Done {
    for (signal, timeout) in [(Signal::TERM, END_TIMEOUT), (Signal::KILL, KILL_TIMEOUT)] {
        let deadline = Deadline::after(timeout);
        let mut signalled = BTreeSet::new();
        while folder.is_up() {
            let running = folder.processes();
            for process in &running {
                // A worker ends with the privileged part, which is its parent.
                let parent = processes::parent(*process);
                let is_worker =
                    signal == Signal::TERM && parent.is_some_and(|it| running.contains(&it));
                if !is_worker && signalled.insert(*process) {
                    let _ = Pid::from_raw(*process).map(|process| kill_process(process, signal));
                }
            }
            if deadline.is_past() {
                break;
            }
            sleep(POLL);
        }
        if !folder.is_up() {
            return Ok(());
        }
    }
    let running: Vec<_> = folder.processes().iter().map(ToString::to_string).collect();
    let named = if running.is_empty() { "of up".to_owned() } else { running.join(", ") };
    Err(Failure::Machine(format!(
        "gateway {} does not end{FIX}kill process {named} and try again",
        folder.name
    )))
}

/// The networks for which packets are refused while the tunnel of a plan is gone.
pub(super) fn closed_networks(plan: &Value) -> BTreeSet<String> {
    let tunnel = &plan["tunnel"];
    let peers = tunnel["peers"].as_array().filter(|_| tunnel["fail"] == "closed");
    let networks = peers.into_iter().flatten().filter_map(|peer| peer["networks"].as_array());
    networks.flatten().filter_map(|network| network.as_str().map(str::to_owned)).collect()
}

/// A plan without some networks of its tunnel, whose routes stay when it is removed.
pub(super) fn except_networks(plan: &Value, kept: &BTreeSet<String>) -> Value {
    let mut plan = plan.clone();
    let peers = plan.pointer_mut("/tunnel/peers").and_then(Value::as_array_mut);
    for peer in peers.into_iter().flatten().filter(|_| !kept.is_empty()) {
        if let Some(networks) = peer.get_mut("networks").and_then(Value::as_array_mut) {
            networks.retain(|network| network.as_str().is_none_or(|text| !kept.contains(text)));
        }
    }
    plan
}

/// Removes the rules and routes of a daemon that could not, in its network namespace. The `kept` networks of its tunnel
/// stay closed.
pub(super) fn remove_leftovers(record: &Record, kept: &BTreeSet<String>) -> Done {
    let plan = except_networks(&record.plan, kept);
    if record.network_namespace == network_namespace() {
        return remove_rules(&plan);
    }
    // A namespace that is gone has no rules.
    let Some(path) = namespace_path(record.network_namespace) else { return Ok(()) };
    remove_within(&path, &plan).map_err(|message| failed_removal(&message))
}

pub(super) fn remove_rules(plan: &Value) -> Done {
    let removed = Leftovers::parse(&plan.to_string()).and_then(|leftovers| leftovers.remove());
    removed.map_err(|error| failed_removal(&error.to_string()))
}

fn failed_removal(message: &str) -> Failure {
    Failure::Machine(format!("removing rules: {message}{FIX}run it as root"))
}

/// Runs this program in another network namespace.
fn remove_within(namespace: &std::path::Path, plan: &Value) -> Result<(), String> {
    let run = || {
        let mut child = Command::new("nsenter")
            .arg(format!("--net={}", namespace.display()))
            .arg("--")
            .arg(std::env::current_exe()?)
            .args(["plan", "remove"])
            .env("PATH", search_path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        if let Some(mut given) = child.stdin.take() {
            given.write_all(plan.to_string().as_bytes())?;
        }
        child.wait_with_output()
    };
    let done = run().map_err(|error| format!("nsenter: {error}"))?;
    if done.status.success() {
        return Ok(());
    }
    let printed = String::from_utf8_lossy(&done.stderr);
    Err(said(printed.trim().lines().last().unwrap_or("it has failed")).to_owned())
}

/// A path of a network namespace by its inode number; `None` if it is gone.
fn namespace_path(number: u64) -> Option<PathBuf> {
    let named = fs::read_dir("/run/netns").into_iter().flatten().filter_map(Result::ok);
    let named = named.map(|entry| entry.path());
    let of_processes = processes::all().map(|it| PathBuf::from(format!("/proc/{it}/ns/net")));
    let mut paths = named.chain(of_processes);
    paths.find(|path| fs::metadata(path).is_ok_and(|file| file.ino() == number))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Given a plan of a tunnel, expect its networks to be closed unless it fails open; without some of them, expect the
    /// others.
    #[test]
    fn closed_networks_stay_closed() {
        let peers = json!([{"networks": ["10.3.0.0/24", "10.4.0.0/24"]}, {"networks": ["::/0"]}]);
        let plan = json!({"tunnel": {"fail": "closed", "peers": peers}});
        let closed = closed_networks(&plan);
        assert_eq!(closed.len(), 3);
        let kept = BTreeSet::from(["10.4.0.0/24".to_owned()]);
        assert_eq!(closed_networks(&except_networks(&plan, &kept)).len(), 2);
        assert_eq!(except_networks(&plan, &BTreeSet::new()), plan);
        let fails_open = json!({"tunnel": {"fail": "open", "peers": peers}});
        for plan in [fails_open, json!({"tunnel": null}), json!({})] {
            assert!(closed_networks(&plan).is_empty());
        }
    }
}
