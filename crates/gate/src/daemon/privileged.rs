//! The part with privileges: it opens sockets, owns the rules, and never reads traffic.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command};

use bentpipe_sys::packet_socket::SynSocket;
use bentpipe_sys::signals::EndSignals;
use bentpipe_sys::tcp_sockets::Version;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::handover::{DESCRIPTORS_MAX, pair, receive, send};
use super::supply::supply;
use super::{Plan, Report};
use crate::transparent::{Direct, Rules, Side, SideRules, listener, raw};

const VERSIONS: [Version; 2] = [Version::V4, Version::V6];
/// The time without a report after which the worker is taken for hung, and ended.
const SILENCE: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

/// How a daemon ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// By a signal.
    BySignal,
    /// Its worker is gone, or hung.
    WithoutWorker,
}

/// Runs a daemon until a signal ends it, or its worker is gone. The rules are removed in both cases.
///
/// # Errors
/// What could not be set up; nothing of it remains.
pub fn up(plan: &Plan) -> io::Result<Ended> {
    let signals = EndSignals::block()?;
    allow_descriptors(plan)?;
    let mut rules = Rules {
        table: plan.name.clone(),
        mark: plan.mark,
        route_table: plan.route_table,
        sides: Side::ALL.map(|side| SideRules {
            interfaces: plan.side(side).interfaces.clone(),
            ..SideRules::default()
        }),
    };
    let handed = open(plan, &mut rules)?;
    let outcome = rules.add().and_then(|()| run(plan, &rules, handed, &signals));
    let removed = rules.remove();
    let _ = fs::remove_file(&plan.state_file);
    let outcome = outcome?;
    removed.map(|()| outcome)
}

/// Opens all sockets that are handed over, and notes the ports of the listeners in the rules.
fn open(plan: &Plan, rules: &mut Rules) -> io::Result<Vec<OwnedFd>> {
    let mut handed = Vec::new();
    for side in Side::ALL {
        let settings = plan.side(side).tcp.settings();
        for version in VERSIONS {
            let (socket, port) = listener(version, &settings)
                .map_err(|error| named("opening a transparent listener", &error))?;
            rules.sides[side as usize].listeners[version as usize] = port;
            handed.push(socket);
        }
    }
    for mark in [Some(rules.mark_of(Side::Lan)), Some(rules.mark_of(Side::Link)), None] {
        for version in VERSIONS {
            let socket =
                raw(version, mark).map_err(|error| named("opening a raw socket", &error))?;
            handed.push(socket);
        }
    }
    for interface in Side::ALL.iter().flat_map(|&side| &plan.side(side).interfaces) {
        for version in VERSIONS {
            let socket = SynSocket::open(interface, version)
                .map_err(|error| named(&format!("listening on interface {interface}"), &error))?;
            handed.push(socket.into());
        }
    }
    match handed.len() {
        ..=DESCRIPTORS_MAX => Ok(handed),
        _ => Err(io::Error::other("too many interfaces; at most 26 on both sides together")),
    }
}

/// Raises the limit of open files to what the connections may need.
fn allow_descriptors(plan: &Plan) -> io::Result<()> {
    let needed = plan.descriptors();
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    if maximum.is_none_or(|maximum| maximum >= needed) {
        setrlimit(Resource::Nofile, Rlimit { current: Some(needed), maximum })?;
        return Ok(());
    }
    let raised = Rlimit { current: Some(needed), maximum: Some(needed) };
    setrlimit(Resource::Nofile, raised).map_err(|_| {
        let most = plan.connections_within(maximum.unwrap_or(needed));
        io::Error::other(format!(
            "{} connections need {needed} open files, more than this process may have; to fix it: at most {most} \
             connections, or a higher limit (LimitNOFILE= in a systemd unit, or `ulimit -n`)",
            plan.connections
        ))
    })
}

fn run(
    plan: &Plan,
    rules: &Rules,
    handed: Vec<OwnedFd>,
    signals: &EndSignals,
) -> io::Result<Ended> {
    let (control, of_worker) = pair()?;
    let (supplies, supply_of_worker) = pair()?;
    let mut worker = Worker(
        Command::new("/proc/self/exe")
            .arg("worker")
            .stdin(of_worker)
            .stdout(supply_of_worker)
            .spawn()
            .map_err(|error| named("starting the worker", &error))?,
    );
    let borrowed: Vec<_> = handed.iter().map(AsFd::as_fd).collect();
    send(&control, &serde_json::to_vec(plan)?, &borrowed)?;
    // Those of the worker alone remain open.
    drop(handed);
    let sockets = Direct(Side::ALL.map(|side| plan.side(side).tcp.settings()));
    std::thread::Builder::new()
        .name("supply".to_owned())
        .spawn(move || supply(&supplies, &sockets))?;
    loop {
        let mut polled =
            [PollFd::new(signals, PollFlags::IN), PollFd::new(&control, PollFlags::IN)];
        if poll(&mut polled, Some(&SILENCE))? == 0 {
            worker.end();
            return Ok(Ended::WithoutWorker);
        }
        if !polled[0].revents().is_empty() {
            worker.end();
            return Ok(Ended::BySignal);
        }
        let (message, _) = receive(&control)?;
        if message.is_empty() {
            return Ok(Ended::WithoutWorker);
        }
        let report: Report = serde_json::from_slice(&message)?;
        rules.renew()?;
        write_state(plan, &report)?;
    }
}

/// Replaces the file of the state as a whole.
fn write_state(plan: &Plan, report: &Report) -> io::Result<()> {
    let part = format!("{}.part", plan.state_file);
    fs::write(&part, serde_json::to_vec(report)?)?;
    fs::rename(&part, &plan.state_file)
}

/// A worker, which is ended when this is dropped.
struct Worker(Child);

impl Worker {
    fn end(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.end();
    }
}

fn named(doing: &str, error: &dyn std::fmt::Display) -> io::Error {
    io::Error::other(format!("{doing}: {error}"))
}
