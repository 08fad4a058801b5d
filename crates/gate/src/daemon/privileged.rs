//! The part with privileges: it opens sockets, owns the rules, and never reads traffic.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command};

use bentpipe_core::time::Duration;
use bentpipe_sys::clock::Clock;
use bentpipe_sys::packet_log::PacketLog;
use bentpipe_sys::signals::EndSignals;
use bentpipe_sys::tcp_sockets::Version;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::netdevice::name_to_index;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::control::{Control, Reply, changed_settings};
use super::handover::{pair, receive, send};
use super::memory::Memory;
use super::metrics_server::listen;
use super::report::{ToWorker, WorkerReport};
use super::socket_broker::run_broker;
use super::tunnel_device::OpenTunnel;
use super::unreachable_routes::{self, UnreachableRoutes};
use super::{Part, PepPlan, Plan, Start, State};
use crate::side::Side;
use crate::transparent::{Direct, Rules, SYN_BYTES_MAX, listener, raw};

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

/// Runs a daemon until a signal ends it, or a worker is gone. The rules are removed in both cases, and the unreachable routes
/// to the networks of a tunnel in the first one.
///
/// # Errors
/// What could not be set up; nothing of it remains.
pub fn up(plan: &Plan) -> io::Result<Ended> {
    let signals = EndSignals::block()?;
    let mut opened = Opened::default();
    if let Some(tunnel) = &plan.tunnel {
        opened.tunnel = Some(OpenTunnel::open(tunnel)?);
        opened.control = Some(Control::open(&tunnel.control_file)?);
        opened.unreachable = UnreachableRoutes::add(tunnel)?;
        // The PEP may split the connections on this device.
        opened.tunnel.iter().try_for_each(|opened| opened.configure(tunnel))?;
    }
    if let Some(pep) = &plan.pep {
        allow_descriptors(pep)?;
        opened.pep = Some(OpenPep::open(pep, &plan.name)?.open_logs()?);
        print_bounds(pep);
    }
    let metrics = plan.metrics_address()?.map(listen).transpose()?;
    let outcome = opened.run(plan, metrics, &signals);
    let removed = plan.pep.as_ref().map_or(Ok(()), |pep| pep.rules(&plan.name).remove());
    let _ = fs::remove_file(&plan.state_file);
    let outcome = outcome?;
    let is_on_purpose = outcome == Ended::BySignal;
    let tunnel = plan.tunnel.as_ref().filter(|_| is_on_purpose);
    removed.and(tunnel.map_or(Ok(()), unreachable_routes::remove))?;
    if is_on_purpose {
        remove_files(plan);
    }
    Ok(outcome)
}

/// Opens what a daemon opens, prints its bounds, and changes nothing: the device of a tunnel exists for a moment, without
/// addresses and routes.
///
/// # Errors
/// As [`up`].
pub fn check(plan: &Plan) -> io::Result<()> {
    // Until the end: the PEP may name its device.
    let opened = plan.tunnel.as_ref().map(OpenTunnel::open).transpose()?;
    if let Some(tunnel) = &opened {
        eprintln!("bentpipe-gate: packets of the tunnel have at most {} B", tunnel.mtu);
    }
    if let Some(pep) = &plan.pep {
        allow_descriptors(pep)?;
        OpenPep::open(pep, &plan.name)?;
        print_bounds(pep);
    }
    plan.metrics_address()?.map(listen).transpose()?;
    Ok(())
}

fn print_bounds(plan: &PepPlan) {
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

/// Removes the rules and routes of a daemon that could not remove them itself, and the file of its state. What is not there
/// is no error.
///
/// # Errors
/// As [`Rules::remove`], what `ip` printed, or the file's.
pub fn remove(plan: &Plan) -> io::Result<()> {
    let mut removed = plan.pep.as_ref().map_or(Ok(()), |pep| pep.rules(&plan.name).remove());
    if let Some(tunnel) = &plan.tunnel {
        let _ = fs::remove_file(&tunnel.control_file);
        removed = removed.and(unreachable_routes::remove(tunnel));
    }
    removed?;
    match fs::remove_file(&plan.state_file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(named(&format!("removing {}", plan.state_file), &error))
        }
        _ => Ok(()),
    }
}

/// What was opened.
#[derive(Default)]
struct Opened {
    pep: Option<OpenPep>,
    tunnel: Option<OpenTunnel>,
    control: Option<Control>,
    /// Removed again unless the workers start.
    unreachable: UnreachableRoutes,
}

/// The sockets of a PEP.
struct OpenPep {
    /// Those that are handed over, by worker.
    handed: Vec<Handed>,
    rules: Rules,
}

/// The sockets of one worker of a PEP; between them comes the listener for metrics.
#[derive(Default)]
struct Handed {
    sockets: Vec<OwnedFd>,
    taps: Vec<OwnedFd>,
}

impl OpenPep {
    /// Opens all sockets, and notes the ports of the listeners in the rules.
    fn open(plan: &PepPlan, name: &str) -> io::Result<Self> {
        let mut rules = plan.rules(name);
        let socket =
            raw(Version::V4, None).map_err(|error| named("opening a raw socket", &error))?;
        for interface in Side::ALL.iter().flat_map(|&side| &plan.side(side).interfaces) {
            name_to_index(&socket, interface)
                .map_err(|error| named(&format!("listening on interface {interface}"), &error))?;
        }
        let mut handed: Vec<Handed> = Vec::new();
        for worker in 0..plan.workers {
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
                rules.sides[side as usize].listeners.push(ports);
            }
            let marks = Side::ALL.map(|side| Some(rules.mark_of(worker, side)));
            for mark in marks.into_iter().chain([Some(rules.refusal_mark()), None]) {
                for version in VERSIONS {
                    let opened = raw(version, mark);
                    sockets.push(opened.map_err(|error| named("opening a raw socket", &error))?);
                }
            }
            handed.push(Handed { sockets, taps: Vec::new() });
        }
        Ok(Self { handed, rules })
    }

    /// Opens the logs of SYNs. A group has one reader, so another daemon with the same numbers cannot.
    fn open_logs(mut self) -> io::Result<Self> {
        for (worker, handed) in self.handed.iter_mut().enumerate() {
            for side in Side::ALL {
                let log = PacketLog::open(self.rules.group(worker, side), SYN_BYTES_MAX as u32);
                let log = log.map_err(|error| named("opening a log of SYNs", &error))?;
                handed.taps.push(log.into());
            }
        }
        Ok(self)
    }
}

/// Raises the limit of open files to what the connections may need.
fn allow_descriptors(plan: &PepPlan) -> io::Result<()> {
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

impl Opened {
    /// Starts the workers, and waits until a signal arrives or one of them is gone.
    fn run(self, plan: &Plan, metrics: Option<OwnedFd>, signals: &EndSignals) -> io::Result<Ended> {
        let Self { pep, tunnel, control, unreachable } = self;
        let rules = pep.as_ref().map(|pep| pep.rules.clone());
        rules.as_ref().map_or(Ok(()), Rules::add)?;
        let mut workers = start(plan, pep, tunnel, metrics)?;
        unreachable.keep();
        let clock = Clock::start();
        let mut renewed = clock.now();
        loop {
            let mut polled: Vec<_> = workers
                .iter()
                .map(|worker| PollFd::new(&worker.control, PollFlags::IN))
                .chain([PollFd::new(signals, PollFlags::IN)])
                .chain(control.iter().map(|control| PollFd::new(control, PollFlags::IN)))
                .collect();
            if poll(&mut polled, Some(&SILENCE_TIMEOUT))? == 0 {
                return Ok(Ended::WithoutWorker);
            }
            let ready: Vec<_> = polled.iter().map(|each| !each.revents().is_empty()).collect();
            if ready[workers.len()] {
                return Ok(Ended::BySignal);
            }
            if let Some(control) = control.iter().find(|_| ready[workers.len() + 1]) {
                control.answer(|new| reload(plan, new, &workers));
            }
            for (worker, _) in workers.iter_mut().zip(ready).filter(|(_, is_ready)| *is_ready) {
                let (message, _) = receive(&worker.control)?;
                if message.is_empty() {
                    return Ok(Ended::WithoutWorker);
                }
                worker.reported = Some(serde_json::from_slice(&message)?);
            }
            if workers.iter().all(|worker| worker.reported.is_some()) {
                on_reports(plan, rules.as_ref(), &mut workers)?;
                renewed = clock.now();
            } else if clock.now().saturating_since(renewed) >= SILENCE {
                return Ok(Ended::WithoutWorker);
            }
        }
    }
}

/// Starts all workers. The sockets that remain open are theirs.
fn start(
    plan: &Plan,
    pep: Option<OpenPep>,
    tunnel: Option<OpenTunnel>,
    mut metrics: Option<OwnedFd>,
) -> io::Result<Vec<Worker>> {
    let mut workers = Vec::new();
    // One worker serves the metrics of all.
    let start_message = |part: Part, has_metrics: bool| {
        let metrics_listen = plan.metrics_listen.clone().filter(|_| has_metrics);
        Start { plan: Plan { metrics_listen, ..plan.clone() }, part }
    };
    for (number, Handed { mut sockets, taps }) in
        pep.into_iter().flat_map(|pep| pep.handed).enumerate()
    {
        let start = start_message(Part::Pep { worker: number }, metrics.is_some());
        sockets.extend(metrics.take());
        sockets.extend(taps);
        workers.push(Worker::start(&start, &sockets)?);
    }
    if let Some(OpenTunnel { handed, endpoints, mtu }) = tunnel {
        let start = start_message(Part::Tunnel { endpoints, mtu }, metrics.is_some());
        let sockets: Vec<_> = handed.into_iter().chain(metrics).collect();
        workers.push(Worker::start(&start, &sockets)?);
    }
    Ok(workers)
}

/// Passes the new settings of the tunnel to its worker.
fn reload(plan: &Plan, new: &Plan, workers: &[Worker]) -> Reply {
    let settings = match changed_settings(plan, new) {
        Ok(settings) => settings,
        Err(differing) => return Reply::Differs(differing),
    };
    let message = serde_json::to_vec(&ToWorker::Settings(settings)).unwrap_or_default();
    match workers
        .iter()
        .find(|worker| worker.is_tunnel)
        .map(|worker| send(&worker.control, &message, &[]))
    {
        Some(Ok(())) => Reply::Changed,
        _ => Reply::Refused("the worker of the tunnel is gone".to_owned()),
    }
}

/// All workers have reported. Without rules, new connections pass, and the workers must not take them for held.
fn on_reports(plan: &Plan, rules: Option<&Rules>, workers: &mut [Worker]) -> io::Result<()> {
    if let Some(Err(error)) = rules.map(Rules::renew) {
        eprintln!("bentpipe-gate: renewing the rules: {error}");
        workers.iter_mut().for_each(|worker| worker.reported = None);
        return Ok(());
    }
    let mut state = State::default();
    for worker in &mut *workers {
        worker.reported.take().into_iter().for_each(|report| state.add(report));
    }
    let text = serde_json::to_vec(&state)?;
    let message = serde_json::to_vec(&ToWorker::State(Box::new(state)))?;
    for worker in workers {
        // One that is gone is noticed by the next report.
        let _ = send(&worker.control, &message, &[]);
    }
    // A disk that is full must not end connections.
    let _ = write_state(plan, &text);
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
    is_tunnel: bool,
    /// Its report since the last renewal of the rule.
    reported: Option<WorkerReport>,
}

impl Worker {
    fn start(start: &Start, sockets: &[OwnedFd]) -> io::Result<Self> {
        let (control, of_worker) = pair()?;
        let (supplies, supply_of_worker) = pair()?;
        let process = Command::new("/proc/self/exe")
            .arg("worker")
            .stdin(of_worker)
            .stdout(supply_of_worker)
            .spawn()
            .map_err(|error| named("starting the worker", &error))?;
        let is_tunnel = matches!(start.part, Part::Tunnel { .. });
        let worker = Self { process, control, is_tunnel, reported: None };
        let borrowed: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
        send(&worker.control, &serde_json::to_vec(start)?, &borrowed)?;
        if let (Part::Pep { .. }, Some(pep)) = (&start.part, &start.plan.pep) {
            let sockets = Direct(Side::ALL.map(|side| pep.leg(side)));
            std::thread::Builder::new()
                .name("supply".to_owned())
                .spawn(move || run_broker(&supplies, &sockets))?;
        }
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
