//! The workers of a daemon: their start, their reports, and another process for one that has ended or hangs.
//!
//! A worker of the PEP is replaced alone; the connections of the others go on. Its reports renew a lease of its own, so while
//! it is missing its share of new connections passes unsplit, and the others are split. The end of the tunnel's worker ends
//! the daemon, and so does that of any worker before all have reported for the first time: its start has failed.

use std::fs;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command, Stdio};

use bentpipe_core::time::{Duration, Instant};
use bentpipe_sys::clock::Clock;
use bentpipe_sys::signals::{Signal, Signals};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::control::{Control, Reply, require_changeable};
use super::pep_sockets::{OpenPep, WorkerSockets};
use super::report::{PepWorkers, StateMessage, ToWorker, WorkerReport};
use super::service_manager::ServiceManager;
use super::tunnel_device::OpenTunnel;
use super::tunnel_report::TunnelPeerReport;
use super::worker_process::WorkerProcess;
use super::{Part, Plan, Report, Start, State, TunnelPlan};
use crate::transparent::{Connections, LEASE, Rules};

/// How often the workers are polled at least, and how long a report waits at most for those of other workers, so that one
/// change of the rules is for all. A lease is longer than this and the time to the next report.
const TICK: Duration = Duration::from_millis(250);
/// The most that counts of the time since the last poll: a pause of this process, or of the machine, is no silence of the
/// workers.
const ELAPSED_MAX: Duration = Duration::from_secs(1);

/// How a daemon ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// By a signal.
    BySignal,
    /// A worker that is not replaced has ended, or hangs.
    WithoutWorker,
}

/// See the module documentation. The workers are ended when this is dropped.
pub(super) struct Supervisor<'plan> {
    plan: &'plan Plan,
    rules: Option<Rules>,
    workers: Vec<Worker>,
    /// Processes that were killed, and may not have ended yet.
    killed: Vec<WorkerProcess>,
    /// Those that read the configuration again, and then send this one the new plan.
    reloads: Vec<Child>,
    /// The listener for metrics, which the first worker serves, whichever process it has.
    metrics: Option<OwnedFd>,
    manager: ServiceManager,
    clock: Clock,
    /// Whether all workers have reported.
    is_ready: bool,
    /// Whether the rules could not be renewed.
    lacks_rules: bool,
    /// When the state was written last.
    written: Instant,
    /// Times that a worker of the PEP has ended, or was ended because it hung.
    failures: u64,
}

struct Worker {
    part: Part,
    /// `None` until it is started again.
    process: Option<WorkerProcess>,
    /// What it has counted so far, in all its processes.
    counts: Option<WorkerReport>,
    /// What the processes before the present one have counted.
    earlier: Report,
    restart_delay: RestartDelay,
    /// When it is started again, if it has no process.
    restart: Instant,
    /// Until when the rules hold its share of new connections.
    held_until: Instant,
}

/// What waits to be handled.
struct Ready {
    has_signal: bool,
    has_client: bool,
    /// Whether each worker has sent a message or has ended.
    workers: Vec<bool>,
}

impl<'plan> Supervisor<'plan> {
    /// Starts all workers. What was opened for them is closed here.
    pub(super) fn start(
        plan: &'plan Plan,
        pep: Option<OpenPep>,
        tunnel: Option<OpenTunnel>,
        metrics: Option<OwnedFd>,
    ) -> io::Result<Self> {
        let clock = Clock::start();
        let (sockets, rules) = pep.map(|pep| (pep.workers, pep.rules)).unzip();
        let mut supervisor = Self {
            plan,
            rules,
            workers: Vec::new(),
            killed: Vec::new(),
            reloads: Vec::new(),
            metrics,
            manager: ServiceManager::from_environment(),
            clock,
            is_ready: false,
            lacks_rules: false,
            written: clock.now(),
            failures: 0,
        };
        for (worker, sockets) in sockets.into_iter().flatten().enumerate() {
            let (part, metrics) = (Part::Pep { worker }, supervisor.metrics_of(worker));
            let process = supervisor.process(worker, &part, &sockets.in_order(metrics))?;
            supervisor.workers.push(Worker::new(part, process));
        }
        if let Some(OpenTunnel { handed, endpoints, mtu }) = tunnel {
            let (part, number) = (Part::Tunnel { endpoints, mtu }, supervisor.workers.len());
            let metrics = supervisor.metrics_of(number);
            let descriptors: Vec<_> = handed.iter().chain(metrics).map(AsFd::as_fd).collect();
            let process = supervisor.process(number, &part, &descriptors)?;
            supervisor.workers.push(Worker::new(part, process));
        }
        Ok(supervisor)
    }

    /// The listener for metrics, if this worker has it: one serves those of all.
    fn metrics_of(&self, number: usize) -> Option<&OwnedFd> {
        self.metrics.as_ref().filter(|_| number == 0)
    }

    /// Starts a process of a worker.
    fn process(
        &self,
        number: usize,
        part: &Part,
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<WorkerProcess> {
        let listen = self.plan.metrics_listen.clone();
        let metrics_listen = listen.filter(|_| self.metrics_of(number).is_some());
        let plan = Plan { metrics_listen, ..self.plan.clone() };
        WorkerProcess::start(&Start { plan, part: part.clone() }, descriptors, self.clock.now())
    }

    /// Supervises the workers until a signal ends the daemon or a worker that is not replaced is gone. SIGHUP ends no
    /// connection.
    pub(super) fn run(&mut self, signals: &Signals, control: &Control) -> io::Result<Ended> {
        let mut polled = self.clock.now();
        loop {
            let ready = self.wait(signals, control)?;
            let signal = if ready.has_signal { signals.next()? } else { None };
            match signal {
                None => {}
                Some(Signal::Hangup) => self.read_again(),
                Some(signal) => {
                    self.manager.stopping();
                    log(&format!("{signal}: ends{}", self.totals()));
                    return Ok(Ended::BySignal);
                }
            }
            if ready.has_client {
                control.answer(|new| self.reload(new));
            }
            let now = self.clock.now();
            let elapsed = now.saturating_since(polled).min(ELAPSED_MAX);
            polled = now;
            for (number, is_ready) in ready.workers.into_iter().enumerate() {
                let Some(process) = &mut self.workers[number].process else { continue };
                match process.poll(is_ready, elapsed) {
                    Ok(Some(report)) => self.workers[number].on_report(report),
                    Ok(None) => {}
                    Err(reason) => {
                        if !self.fail(number, &reason, now) {
                            log(&format!("ends{}", self.totals()));
                            return Ok(Ended::WithoutWorker);
                        }
                    }
                }
            }
            self.killed.retain_mut(|process| !process.has_ended());
            self.reloads.retain_mut(|process| matches!(process.try_wait(), Ok(None)));
            self.restart_due(now);
            self.renew(now);
            self.manager.running(now);
        }
    }

    /// Starts the command that passes the changes of the configuration to this process. It prints what is wrong.
    fn read_again(&mut self) {
        let name = self.plan.gateway_name();
        log(&format!("SIGHUP: reads the configuration of gateway {name} again"));
        let command =
            Command::new("/proc/self/exe").args(["reload", name]).stdin(Stdio::null()).spawn();
        match command {
            Ok(process) => self.reloads.push(process),
            Err(error) => log(&format!("reading the configuration: {error}; nothing is changed")),
        }
    }

    /// Waits for a signal, a client or a worker, for a tick at most.
    fn wait(&self, signals: &Signals, control: &Control) -> io::Result<Ready> {
        let fixed = [PollFd::new(signals, PollFlags::IN), PollFd::new(control, PollFlags::IN)];
        let mut polled = Vec::from(fixed);
        let processes = self.workers.iter().filter_map(|worker| worker.process.as_ref());
        polled.extend(processes.map(|process| PollFd::new(process, PollFlags::IN)));
        let waiting = self.workers.iter().filter_map(|worker| worker.process.as_ref()?.waiting());
        // At the start reports wait for those of all workers, however long.
        let longest = waiting.max().filter(|_| self.is_ready).unwrap_or_default();
        let rest = TICK.saturating_sub(longest).as_nanos();
        let timeout = Timespec { tv_sec: 0, tv_nsec: rest as i64 };
        match poll(&mut polled, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut ready = polled.iter().map(|each| !each.revents().is_empty());
        let mut next = |is_polled: bool| is_polled && ready.next().unwrap_or_default();
        let (has_signal, has_client) = (next(true), next(true));
        let workers = self.workers.iter().map(|worker| next(worker.process.is_some())).collect();
        Ok(Ready { has_signal, has_client, workers })
    }

    /// Ends the process of a worker. Returns whether another one is started in its place.
    fn fail(&mut self, number: usize, reason: &str, now: Instant) -> bool {
        let worker = &mut self.workers[number];
        let Some(mut process) = worker.process.take() else { return true };
        process.kill();
        if matches!(worker.part, Part::Tunnel { .. }) || !self.is_ready {
            log(&format!("{}: {reason}", worker.name()));
            return false;
        }
        let delay = worker.restart_delay.next(now.saturating_since(process.started));
        worker.restart = now + delay;
        let connections = worker.end_counts();
        log(&format!(
            "{}: {reason}; its connections ({connections} at its last report) are reset, its share of new ones passes unsplit; it is started again in {} s",
            worker.name(),
            delay.as_secs_f64()
        ));
        self.killed.push(process);
        self.failures += 1;
        // They pass at once, not when the lease ends. If that fails, they pass then.
        worker.held_until = now;
        if let (Some(rules), Part::Pep { worker }) = (&self.rules, &worker.part) {
            let _ = rules.release(*worker);
        }
        self.write_state(now, &[]);
        true
    }

    /// Starts the workers again whose time it is.
    fn restart_due(&mut self, now: Instant) {
        for number in 0..self.workers.len() {
            let worker = &self.workers[number];
            if worker.process.is_some() || now < worker.restart {
                continue;
            }
            match self.restart(number) {
                Ok(process) => self.workers[number].process = Some(process),
                Err(error) => {
                    let worker = &mut self.workers[number];
                    let delay = worker.restart_delay.next(Duration::ZERO);
                    worker.restart = now + delay;
                    log(&format!(
                        "{}: starting it again: {error}; the next attempt is in {} s",
                        worker.name(),
                        delay.as_secs_f64()
                    ));
                }
            }
        }
    }

    /// Starts a process for a worker of the PEP that has none.
    fn restart(&mut self, number: usize) -> io::Result<WorkerProcess> {
        let Self { plan, rules, workers, .. } = self;
        let part = workers[number].part.clone();
        let (Some(pep), Some(rules), Part::Pep { worker }) = (&plan.pep, rules, &part) else {
            return Err(io::Error::other("it is no worker of a PEP"));
        };
        let mut sockets = WorkerSockets::open(pep, rules, *worker)?;
        sockets.open_logs(rules, *worker)?;
        // The listeners have other ports.
        rules.listen()?;
        self.process(number, &part, &sockets.in_order(self.metrics_of(number)))
    }

    /// Renews the leases of the workers that have reported, and writes the state then; also if none does. The first time all
    /// must have reported.
    fn renew(&mut self, now: Instant) {
        let Some(reported) = self.take_reports() else {
            if now.saturating_since(self.written) >= LEASE {
                self.write_state(now, &[]);
            }
            return;
        };
        self.is_ready = true;
        let held = |number: &usize| now < self.workers[*number].held_until;
        let held: Vec<_> = (0..self.workers.len()).filter(held).collect();
        let rules = self.rules.as_ref().filter(|_| !reported.is_empty());
        match rules.map_or(Ok(()), |rules| rules.renew(&reported, &held)) {
            // The tunnel alone.
            Ok(()) if reported.is_empty() => {}
            Ok(()) => {
                self.lacks_rules = false;
                reported.iter().for_each(|&each| self.workers[each].held_until = now + LEASE);
                return self.write_state(now, &reported);
            }
            // Once, until they are renewed again.
            Err(error) if !self.lacks_rules => {
                log(&format!("renewing the rules: {error}; new connections pass unsplit"));
                self.lacks_rules = true;
            }
            Err(_) => {}
        }
        self.write_state(now, &[]);
    }

    /// The workers of the PEP that have reported since the last time, when all have, or when the first has waited for long.
    fn take_reports(&mut self) -> Option<Vec<usize>> {
        let processes = self.workers.iter().filter_map(|worker| worker.process.as_ref());
        let waiting: Vec<_> = processes.map(WorkerProcess::waiting).collect();
        let longest = waiting.iter().flatten().max()?;
        let is_complete = waiting.iter().all(Option::is_some);
        let is_due = self.is_ready && *longest >= TICK;
        if !(is_complete || is_due) {
            return None;
        }
        let taken = self.workers.iter_mut().enumerate().filter_map(|(number, worker)| {
            let has_reported = std::mem::take(&mut worker.process.as_mut()?.has_reported);
            (has_reported && matches!(worker.part, Part::Pep { .. })).then_some(number)
        });
        Some(taken.collect())
    }

    /// Writes the state, and sends it to the workers, with whether theirs are the leases that were `renewed`. The first one
    /// tells the starter that the daemon is ready.
    fn write_state(&mut self, now: Instant, renewed: &[usize]) {
        self.written = now;
        if !self.is_ready {
            return;
        }
        let state = self.state(now);
        // A disk that is full must not end connections.
        let _ = replace_file(&self.plan.state_file, &state);
        self.manager.ready();
        let mut message = StateMessage { state: Box::new(state), is_renewed: false };
        for (number, worker) in self.workers.iter().enumerate() {
            message.is_renewed = renewed.contains(&number);
            let encoded = serde_json::to_vec(&ToWorker::State(message.clone()));
            if let (Some(process), Ok(encoded)) = (&worker.process, encoded) {
                let _ = process.send(&encoded);
            }
        }
    }

    fn state(&self, now: Instant) -> State {
        let mut state = State::default();
        for report in self.workers.iter().filter_map(|worker| worker.counts.clone()) {
            state.add(report);
        }
        let of_pep = || self.workers.iter().filter(|it| matches!(it.part, Part::Pep { .. }));
        state.pep_workers = self.plan.pep.as_ref().map(|_| PepWorkers {
            is_splitting: of_pep().all(|worker| now < worker.held_until),
            workers: of_pep().count() as u64,
            missing: of_pep().filter(|worker| worker.is_missing()).count() as u64,
            failures: self.failures,
        });
        state
    }

    /// What was done since the start, for the last line of the log.
    fn totals(&self) -> String {
        let State { pep, tunnel, .. } = self.state(self.clock.now());
        let pep = pep.map(|pep| {
            format!(
                "; the PEP split {} connections ({} are open, and reset), {} passed unsplit; {} B to servers, {} B to clients",
                pep.split_connections,
                pep.open_connections,
                pep.unsplit_connections,
                pep.to_server_bytes,
                pep.to_client_bytes,
            )
        });
        let tunnel = tunnel.map(|tunnel| {
            let sum =
                |count: fn(&TunnelPeerReport) -> u64| tunnel.peers.iter().map(count).sum::<u64>();
            let (sent, received) =
                (sum(|peer| peer.sent_packets), sum(|peer| peer.received_packets));
            format!("; the tunnel sent {sent} packets and received {received}")
        });
        pep.into_iter().chain(tunnel).collect()
    }

    /// Passes the new settings of the tunnel to its worker, and changes the rules of the PEP.
    fn reload(&mut self, new: &Plan) -> Reply {
        if let Err(differing) = require_changeable(self.plan, new) {
            return Reply::Differs(differing);
        }
        if let Some(tunnel) = &new.tunnel
            && !self.configure_tunnel(tunnel)
        {
            return Reply::Failed(
                "the worker of the tunnel does not read its settings; nothing was changed"
                    .to_owned(),
            );
        }
        match new.pep.as_ref().map_or(Ok(()), |pep| self.select(&pep.except, &pep.only)) {
            Ok(()) => Reply::Changed,
            Err(error) => {
                // Programs print the command, which has all networks, after the reason.
                let why = error.to_string().lines().next().unwrap_or_default().to_owned();
                let tunnel =
                    new.tunnel.as_ref().map_or("", |_| "; the tunnel has the new settings");
                Reply::Failed(format!("except and only of the PEP are as before: {why}{tunnel}"))
            }
        }
    }

    /// Returns whether the worker of the tunnel was told.
    fn configure_tunnel(&self, tunnel: &TunnelPlan) -> bool {
        let is_tunnel = |worker: &&Worker| matches!(worker.part, Part::Tunnel { .. });
        let worker = self.workers.iter().find(is_tunnel).and_then(|worker| worker.process.as_ref());
        let settings = ToWorker::Settings(tunnel.settings.clone());
        let message = serde_json::to_vec(&settings).unwrap_or_default();
        worker.is_some_and(|process| process.send(&message).is_ok())
    }

    /// Lets the PEP have other new connections. Those that it has go on.
    fn select(&mut self, except: &Connections, only: &Connections) -> io::Result<()> {
        let Some(rules) = &mut self.rules else { return Ok(()) };
        let changed = Rules { except: except.clone(), only: only.clone(), ..rules.clone() };
        if changed == *rules {
            return Ok(());
        }
        changed.select()?;
        *rules = changed;
        Ok(())
    }
}

impl Worker {
    fn new(part: Part, process: WorkerProcess) -> Self {
        Self {
            part,
            process: Some(process),
            counts: None,
            earlier: Report::default(),
            restart_delay: RestartDelay::default(),
            restart: Instant::START,
            held_until: Instant::START,
        }
    }

    /// Its name in messages.
    fn name(&self) -> String {
        match self.part {
            Part::Pep { worker } => format!("worker {} of the PEP", worker + 1),
            Part::Tunnel { .. } => "the worker of the tunnel".to_owned(),
        }
    }

    fn on_report(&mut self, mut report: WorkerReport) {
        if let WorkerReport::Pep(report) = &mut report {
            report.add_earlier(&self.earlier);
        }
        self.counts = Some(report);
    }

    /// The process has ended. Returns how many connections it had at its last report.
    fn end_counts(&mut self) -> u64 {
        let Some(WorkerReport::Pep(report)) = &mut self.counts else { return 0 };
        let connections = report.open_connections;
        (report.open_connections, report.memory_bytes) = (0, 0);
        self.earlier = **report;
        connections
    }

    fn is_missing(&self) -> bool {
        self.process.as_ref().is_none_or(WorkerProcess::is_missing)
    }
}

/// How long a worker that has ended waits to be started again: a second, and twice as long each time that it ends within a
/// minute, up to half a minute.
struct RestartDelay(Duration);

impl RestartDelay {
    const MIN: Duration = Duration::from_secs(1);
    const MAX: Duration = Duration::from_secs(30);
    /// One that has run for so long is not ended by what ended the one before.
    const STEADY: Duration = Duration::from_secs(60);

    fn next(&mut self, ran: Duration) -> Duration {
        if ran >= Self::STEADY {
            self.0 = Self::MIN;
        }
        let delay = self.0;
        self.0 = delay.saturating_mul(2).min(Self::MAX);
        delay
    }
}

impl Default for RestartDelay {
    fn default() -> Self {
        Self(Self::MIN)
    }
}

/// Writes a line to standard error. One that cannot be written, as on a full disk, must not end connections.
fn log(line: &str) {
    let _ = writeln!(io::stderr(), "bentpipe-gate: {line}");
}

/// Replaces the file of the state as a whole.
fn replace_file(path: &str, state: &State) -> io::Result<()> {
    let part = format!("{path}.part");
    fs::write(&part, serde_json::to_vec(state)?)?;
    fs::rename(&part, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Given a worker that always ends at once, expect delays that double from 1 s to 30 s; given one that has run for a
    /// minute, 1 s again.
    #[test]
    fn a_worker_that_ends_again_and_again_is_started_more_rarely() {
        let mut delay = RestartDelay::default();
        let mut seconds = |ran| delay.next(Duration::from_secs(ran)).as_nanos() / 1_000_000_000;
        assert_eq!([0, 59, 0, 0, 0, 0, 0].map(&mut seconds), [1, 2, 4, 8, 16, 30, 30]);
        assert_eq!([60, 0].map(&mut seconds), [1, 2]);
    }
}
