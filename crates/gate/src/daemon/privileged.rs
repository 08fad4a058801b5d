//! The part with privileges: it opens sockets, owns the rules, and never reads traffic.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command};

use bentpipe_core::time::Duration;
use bentpipe_sys::clock::Clock;
use bentpipe_sys::packet_socket::SynSocket;
use bentpipe_sys::signals::EndSignals;
use bentpipe_sys::tcp_sockets::Version;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::handover::{DESCRIPTORS_MAX, pair, receive, send};
use super::memory::Memory;
use super::metrics_server::listen;
use super::supply::supply;
use super::{Plan, Report, Start};
use crate::side::Side;
use crate::transparent::{Direct, Rules, listener, raw};

const VERSIONS: [Version; 2] = [Version::V4, Version::V6];
/// The time without a report of each worker after which one is taken for hung, and all are ended.
const SILENCE: Duration = Duration::from_secs(10);
const SILENCE_TIMEOUT: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

/// How a daemon ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// By a signal.
    BySignal,
    /// A worker is gone, or hangs.
    WithoutWorker,
}

/// Runs a daemon until a signal ends it, or a worker is gone. The rules are removed in both cases.
///
/// # Errors
/// What could not be set up; nothing of it remains.
pub fn up(plan: &Plan) -> io::Result<Ended> {
    let signals = EndSignals::block()?;
    allow_descriptors(plan)?;
    let mut rules = plan.rules();
    let handed = open(plan, &mut rules)?;
    say_bounds(plan);
    let outcome = rules.add().and_then(|()| run(plan, &rules, handed, &signals));
    let removed = rules.remove();
    let _ = fs::remove_file(&plan.state_file);
    let outcome = outcome?;
    removed?;
    if outcome == Ended::BySignal {
        remove_files(plan);
    }
    Ok(outcome)
}

/// Opens what a daemon opens, prints its bounds, and changes nothing.
///
/// # Errors
/// As [`up`].
pub fn check(plan: &Plan) -> io::Result<()> {
    allow_descriptors(plan)?;
    open(plan, &mut plan.rules())?;
    say_bounds(plan);
    Ok(())
}

fn say_bounds(plan: &Plan) {
    let memory = Memory::of(plan);
    let processes = match plan.workers {
        1 => "a process".to_owned(),
        several => format!("{several} processes"),
    };
    eprintln!(
        "bentpipe-gate: at most {} connections, with at most {} MB in {processes} and {} MB in the kernel",
        plan.connections,
        memory.processes.div_ceil(1_000_000),
        memory.kernel.div_ceil(1_000_000),
    );
}

/// Removes what its starter wrote. A service manager may keep the folder.
fn remove_files(plan: &Plan) {
    for file in &plan.files {
        let _ = fs::remove_file(file);
    }
    if let Some(folder) = plan.files.first().and_then(|file| Path::new(file).parent()) {
        let _ = fs::remove_dir(folder);
    }
}

/// Removes the rules of a daemon that could not remove them itself, and the file of its state. What is not there
/// is no error.
///
/// # Errors
/// As [`Rules::remove`], or the file's.
pub fn remove(plan: &Plan) -> io::Result<()> {
    plan.rules().remove()?;
    match fs::remove_file(&plan.state_file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(named(&format!("removing {}", plan.state_file), &error))
        }
        _ => Ok(()),
    }
}

/// Opens all sockets that are handed over, by worker, and notes the ports of the listeners in the rules.
fn open(plan: &Plan, rules: &mut Rules) -> io::Result<Vec<Vec<OwnedFd>>> {
    let mut handed: Vec<Vec<OwnedFd>> = Vec::new();
    for worker in 0..plan.workers {
        let mut sockets = Vec::new();
        for side in Side::ALL {
            let settings = plan.leg(side);
            let mut ports = [0; 2];
            for (version, port) in VERSIONS.into_iter().zip(&mut ports) {
                let opened = listener(version, &settings);
                let (socket, bound) =
                    opened.map_err(|error| named("opening a transparent listener", &error))?;
                *port = bound;
                sockets.push(socket);
            }
            rules.sides[side as usize].listeners.push(ports);
        }
        let marks = Side::ALL.map(|side| Some(rules.mark_of(worker, side)));
        for mark in marks.into_iter().chain([None]) {
            for version in VERSIONS {
                let socket =
                    raw(version, mark).map_err(|error| named("opening a raw socket", &error))?;
                sockets.push(socket);
            }
        }
        handed.push(sockets);
    }
    handed[0].extend(plan.metrics_address()?.map(listen).transpose()?);
    for interface in Side::ALL.iter().flat_map(|&side| &plan.side(side).interfaces) {
        for version in VERSIONS {
            let taps = SynSocket::open_group(interface, version, plan.workers)
                .map_err(|error| named(&format!("listening on interface {interface}"), &error))?;
            for (sockets, tap) in handed.iter_mut().zip(taps) {
                sockets.push(tap.into());
            }
        }
    }
    match handed[0].len() {
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
            "{} connections in {} workers need {needed} open files in each, more than a process may have; to fix it: \
             at most {most} connections for each worker, more workers, or a higher limit (LimitNOFILE= in a systemd \
             unit, or `ulimit -n`)",
            plan.connections, plan.workers
        ))
    })
}

fn run(
    plan: &Plan,
    rules: &Rules,
    handed: Vec<Vec<OwnedFd>>,
    signals: &EndSignals,
) -> io::Result<Ended> {
    let started: io::Result<Vec<_>> = handed
        .into_iter()
        .enumerate()
        // The sockets that remain open are those of the worker.
        .map(|(number, sockets)| Worker::start(plan, number, &sockets))
        .collect();
    let mut workers = started?;
    let clock = Clock::start();
    let mut renewed = clock.now();
    loop {
        let mut polled: Vec<_> = workers
            .iter()
            .map(|worker| PollFd::new(&worker.control, PollFlags::IN))
            .chain([PollFd::new(signals, PollFlags::IN)])
            .collect();
        if poll(&mut polled, Some(&SILENCE_TIMEOUT))? == 0 {
            return Ok(Ended::WithoutWorker);
        }
        let ready: Vec<_> = polled.iter().map(|each| !each.revents().is_empty()).collect();
        if ready[workers.len()] {
            return Ok(Ended::BySignal);
        }
        for (worker, _) in workers.iter_mut().zip(ready).filter(|(_, is_ready)| *is_ready) {
            let (message, _) = receive(&worker.control)?;
            if message.is_empty() {
                return Ok(Ended::WithoutWorker);
            }
            worker.reported = Some(Report::parse(&message)?);
        }
        if workers.iter().all(|worker| worker.reported.is_some()) {
            on_reports(plan, rules, &mut workers)?;
            renewed = clock.now();
        } else if clock.now().saturating_since(renewed) >= SILENCE {
            return Ok(Ended::WithoutWorker);
        }
    }
}

/// All workers have reported.
fn on_reports(plan: &Plan, rules: &Rules, workers: &mut [Worker]) -> io::Result<()> {
    rules.renew()?;
    let mut sum = Report::default();
    for worker in &mut *workers {
        sum.add(&worker.reported.take().unwrap_or_default());
    }
    let sum = serde_json::to_vec(&sum)?;
    for worker in workers {
        // One that is gone is noticed by the next report.
        let _ = send(&worker.control, &sum, &[]);
    }
    // A disk that is full must not end connections.
    let _ = write_state(plan, &sum);
    Ok(())
}

/// Replaces the file of the state as a whole.
fn write_state(plan: &Plan, report: &[u8]) -> io::Result<()> {
    let part = format!("{}.part", plan.state_file);
    fs::write(&part, report)?;
    fs::rename(&part, &plan.state_file)
}

/// A worker, which is ended when this is dropped.
struct Worker {
    process: Child,
    control: OwnedFd,
    /// Its report since the last renewal of the rule.
    reported: Option<Report>,
}

impl Worker {
    fn start(plan: &Plan, number: usize, sockets: &[OwnedFd]) -> io::Result<Self> {
        let (control, of_worker) = pair()?;
        let (supplies, supply_of_worker) = pair()?;
        let process = Command::new("/proc/self/exe")
            .arg("worker")
            .stdin(of_worker)
            .stdout(supply_of_worker)
            .spawn()
            .map_err(|error| named("starting the worker", &error))?;
        let worker = Self { process, control, reported: None };
        let borrowed: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
        let start = Start { plan: plan.clone(), worker: number };
        send(&worker.control, &serde_json::to_vec(&start)?, &borrowed)?;
        let sockets = Direct(Side::ALL.map(|side| plan.leg(side)));
        std::thread::Builder::new()
            .name("supply".to_owned())
            .spawn(move || supply(&supplies, &sockets))?;
        Ok(worker)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn named(doing: &str, error: &dyn std::fmt::Display) -> io::Error {
    io::Error::other(format!("{doing}: {error}"))
}
