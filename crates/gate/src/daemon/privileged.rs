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
use super::worker::handed_over;
use super::{Plan, Report};
use crate::transparent::{Direct, Rules, listener, raw};

/// Seconds without a report after which the worker is taken for hung, and ended.
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
    let versions = [Version::V4, Version::V6];
    let client = plan.client.settings();
    let mut handed = Vec::new();
    let mut ports = [0; 2];
    for (version, port) in versions.into_iter().zip(&mut ports) {
        let (socket, bound) = listener(version, &client)
            .map_err(|error| named("opening a transparent listener", &error))?;
        *port = bound;
        handed.push(socket);
    }
    for mark in [Some(plan.mark), None] {
        for version in versions {
            let socket =
                raw(version, mark).map_err(|error| named("opening a raw socket", &error))?;
            handed.push(socket);
        }
    }
    for interface in &plan.inner {
        for version in versions {
            let socket = SynSocket::open(interface, version)
                .map_err(|error| named(&format!("listening on interface {interface}"), &error))?;
            handed.push(socket.into());
        }
    }
    if handed_over(plan.inner.len() * versions.len()) > DESCRIPTORS_MAX {
        return Err(io::Error::other("too many inner interfaces"));
    }
    let rules = Rules {
        table: plan.name.clone(),
        mark: plan.mark,
        route_table: plan.route_table,
        inner: plan.inner.clone(),
        listeners: ports,
    };
    let outcome = rules.add().and_then(|()| run(plan, &rules, handed, &signals));
    let removed = rules.remove();
    let _ = fs::remove_file(&plan.state_file);
    let outcome = outcome?;
    removed.map(|()| outcome)
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
    let sockets = Direct(plan.server.settings());
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
