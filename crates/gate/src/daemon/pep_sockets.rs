//! What the privileged part opens for a PEP: the sockets of its workers.

use std::io;
use std::os::fd::OwnedFd;

use bentpipe_sys::packet_log::PacketLog;
use bentpipe_sys::tcp_sockets::Version;
use rustix::net::netdevice::name_to_index;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::PepPlan;
use crate::Side;
use crate::transparent::{Rules, SYN_BYTES_MAX, listener, raw};

const VERSIONS: [Version; 2] = [Version::V4, Version::V6];

/// The sockets of all workers at the start.
pub(super) struct OpenPep {
    pub(super) workers: Vec<WorkerSockets>,
    pub(super) rules: Rules,
}

/// Those of one worker, which are closed here once they were handed over: so the end of the worker closes them, and its
/// clients are reset at once.
pub(super) struct WorkerSockets {
    sockets: Vec<OwnedFd>,
    logs: Vec<OwnedFd>,
}

impl OpenPep {
    /// Opens all sockets but the logs of SYNs, and notes the ports of the listeners in the rules.
    pub(super) fn open(plan: &PepPlan, name: &str) -> io::Result<Self> {
        let mut rules = plan.rules(name);
        let socket =
            raw(Version::V4, None).map_err(|error| named("opening a raw socket", &error))?;
        for interface in Side::ALL.iter().flat_map(|&side| &plan.side(side).interfaces) {
            name_to_index(&socket, interface)
                .map_err(|error| named(&format!("listening on interface {interface}"), &error))?;
        }
        let workers = (0..plan.workers)
            .map(|worker| WorkerSockets::open(plan, &mut rules, worker))
            .collect::<io::Result<_>>()?;
        Ok(Self { workers, rules })
    }

    /// Opens the logs of SYNs, too.
    pub(super) fn open_logs(mut self) -> io::Result<Self> {
        for (worker, sockets) in self.workers.iter_mut().enumerate() {
            sockets.open_logs(&self.rules, worker)?;
        }
        Ok(self)
    }
}

impl WorkerSockets {
    /// Opens the sockets of a worker but the logs of SYNs, and notes the ports of its listeners in the rules.
    pub(super) fn open(plan: &PepPlan, rules: &mut Rules, worker: usize) -> io::Result<Self> {
        let mut sockets = Vec::new();
        for side in Side::ALL {
            let settings = plan.leg(side);
            let mut ports = [0; 2];
            for (version, port) in VERSIONS.into_iter().zip(&mut ports) {
                let opened = listener(version, &settings, rules.client_leg_mark());
                let (socket, bound) =
                    opened.map_err(|error| named("opening a transparent listener", &error))?;
                *port = bound;
                sockets.push(socket);
            }
            let listeners = &mut rules.sides[side as usize].listeners;
            listeners.resize(plan.workers, [0; 2]);
            listeners[worker] = ports;
        }
        let marks = Side::ALL.map(|side| Some(rules.mark_of(worker, side)));
        for mark in marks.into_iter().chain([Some(rules.refusal_mark()), None]) {
            for version in VERSIONS {
                let opened = raw(version, mark);
                sockets.push(opened.map_err(|error| named("opening a raw socket", &error))?);
            }
        }
        Ok(Self { sockets, logs: Vec::new() })
    }

    /// Opens the logs of SYNs. A group has one reader, so another daemon with the same numbers cannot.
    pub(super) fn open_logs(&mut self, rules: &Rules, worker: usize) -> io::Result<()> {
        for side in Side::ALL {
            let log = PacketLog::open(rules.group(worker, side), SYN_BYTES_MAX as u32);
            let log = log.map_err(|error| named("opening a log of SYNs", &error))?;
            self.logs.push(log.into());
        }
        Ok(())
    }
}

impl From<WorkerSockets> for Vec<OwnedFd> {
    /// All in the order in which the worker takes them.
    fn from(WorkerSockets { mut sockets, logs }: WorkerSockets) -> Self {
        sockets.extend(logs);
        sockets
    }
}

/// Raises the limit of open files to what the connections may need.
pub(super) fn allow_descriptors(plan: &PepPlan) -> io::Result<()> {
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
            "{} connections in {} workers need {needed} open files in each, more than a process may have; to fix it: \
             at most {most} connections for each worker, more workers, or a higher limit (LimitNOFILE= in a systemd \
             unit, or `ulimit -n`)",
            plan.connections, plan.workers
        ))
    })
}

fn named(doing: &str, error: &dyn std::fmt::Display) -> io::Error {
    io::Error::other(format!("{doing}: {error}"))
}
