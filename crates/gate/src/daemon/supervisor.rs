//! The loop of the privileged part: it supervises the workers of all functions, and handles signals and reloads.
//!
//! A worker that has ended or hangs is replaced alone (`function_workers.rs`), and the traffic of the others goes on. What is
//! lost meanwhile depends on the function (`function.rs`). The end of any worker before all have reported for the first time
//! ends the daemon: its start has failed.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};

use bentpipe_core::time::{Duration, Instant};
use bentpipe_sys::clock::Clock;
use bentpipe_sys::signals::{Signal, Signals};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::control::{Control, Reply, require_changeable};
use super::function::Function;
use super::function_workers::FunctionWorkers;
use super::log::log;
use super::report::{StateMessage, ToWorker};
use super::service_manager::ServiceManager;
use super::worker_process::WorkerProcess;
use super::{Plan, State};
use crate::transparent::LEASE;

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
    /// A worker has ended, or hung, before all had reported.
    WithoutWorker,
}

/// See the module documentation. The workers are ended when this is dropped.
pub(super) struct Supervisor<'plan> {
    plan: &'plan Plan,
    functions: Vec<FunctionWorkers>,
    /// Those that read the configuration again, and then send this one the new plan.
    reloads: Vec<Child>,
    manager: ServiceManager,
    clock: Clock,
    /// Whether all workers have reported.
    is_ready: bool,
    /// When the state was written last.
    written: Instant,
}

/// What waits to be handled.
struct Ready {
    has_signal: bool,
    has_client: bool,
    /// Whether each process of a worker has sent a message or has ended.
    processes: Vec<bool>,
}

impl<'plan> Supervisor<'plan> {
    /// The first worker serves the metrics of all.
    pub(super) fn new(
        plan: &'plan Plan,
        functions: Vec<Box<dyn Function>>,
        mut metrics: Option<OwnedFd>,
    ) -> Self {
        let clock = Clock::start();
        let ids = [plan.user, plan.group];
        let functions = functions.into_iter();
        let functions =
            functions.map(|function| FunctionWorkers::new(function, ids, metrics.take()));
        Self {
            plan,
            functions: functions.collect(),
            reloads: Vec::new(),
            manager: ServiceManager::from_environment(),
            clock,
            is_ready: false,
            written: clock.now(),
        }
    }

    /// Starts all workers, and supervises them until a signal ends the daemon, or until one ends before all have reported.
    /// SIGHUP ends no connection.
    pub(super) fn run(&mut self, signals: &Signals, control: &Control) -> io::Result<Ended> {
        let now = self.clock.now();
        self.functions.iter_mut().try_for_each(|function| function.start(now))?;
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
            let mut processes = ready.processes.into_iter();
            let mut is_readable = || processes.next().unwrap_or_default();
            let mut has_ended = false;
            for function in &mut self.functions {
                match function.poll(&mut is_readable, elapsed, now, self.is_ready) {
                    Ok(has_replaced) => has_ended |= has_replaced,
                    Err(reason) => {
                        log(&format!("{reason}; ends{}", self.totals()));
                        return Ok(Ended::WithoutWorker);
                    }
                }
            }
            if has_ended {
                self.write_state(now);
            }
            self.reloads.retain_mut(|process| matches!(process.try_wait(), Ok(None)));
            self.functions.iter_mut().for_each(|function| function.restart_due(now));
            self.renew(now);
            self.manager.running(now);
        }
    }

    /// Ends all workers, and removes what functions have made outside this process. Returns the first error.
    pub(super) fn end(self, is_on_purpose: bool) -> io::Result<()> {
        // A worker must not outlive the rules of another function.
        let functions: Vec<_> = self.functions.into_iter().map(FunctionWorkers::end_all).collect();
        let mut removed = Ok(());
        for mut function in functions {
            removed = removed.and(function.remove(is_on_purpose));
        }
        removed
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

    /// The processes of all workers.
    fn processes(&self) -> impl Iterator<Item = &WorkerProcess> {
        self.functions.iter().flat_map(FunctionWorkers::processes)
    }

    /// Waits for a signal, a client or a worker, for a tick at most.
    fn wait(&self, signals: &Signals, control: &Control) -> io::Result<Ready> {
        let fixed = [PollFd::new(signals, PollFlags::IN), PollFd::new(control, PollFlags::IN)];
        let mut polled = Vec::from(fixed);
        polled.extend(self.processes().map(|process| PollFd::new(process, PollFlags::IN)));
        let waiting = self.processes().filter_map(WorkerProcess::waiting);
        // At the start reports wait for those of all workers, however long.
        let longest = waiting.max().filter(|_| self.is_ready).unwrap_or_default();
        let rest = TICK.saturating_sub(longest).as_nanos();
        let timeout = Timespec { tv_sec: 0, tv_nsec: rest as i64 };
        match poll(&mut polled, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut ready = polled.iter().map(|each| !each.revents().is_empty());
        let mut next = || ready.next().unwrap_or_default();
        Ok(Ready { has_signal: next(), has_client: next(), processes: ready.collect() })
    }

    /// Renews the leases of the workers that have reported, when all have, or when the first has waited for long, and writes
    /// the state then; also if none does. The first time all must have reported.
    fn renew(&mut self, now: Instant) {
        let waiting: Vec<_> = self.processes().map(WorkerProcess::waiting).collect();
        let longest = waiting.iter().flatten().max().copied();
        let is_complete = longest.is_some() && waiting.iter().all(Option::is_some);
        let is_due = self.is_ready && longest.is_some_and(|longest| longest >= TICK);
        if is_complete || is_due {
            if !std::mem::replace(&mut self.is_ready, true) {
                self.functions.iter_mut().for_each(|workers| workers.function.started());
            }
            self.functions.iter_mut().for_each(|function| function.renew(now));
        } else if now.saturating_since(self.written) < LEASE {
            return;
        }
        self.write_state(now);
    }

    /// Writes the state, and sends it to the workers, with whether theirs are the leases that were renewed. The first one
    /// tells the starter that the daemon is ready.
    fn write_state(&mut self, now: Instant) {
        self.written = now;
        if !self.is_ready {
            return;
        }
        let mut state = State::default();
        for workers in &self.functions {
            workers.function.add_to(&mut state, workers.health(), now);
        }
        // A disk that is full must not end connections.
        let _ = replace_file(&self.plan.state_file, &state);
        self.manager.ready();
        let encode = |is_renewed| {
            let state = Box::new(state.clone());
            let message = ToWorker::State(StateMessage { state, is_renewed });
            serde_json::to_vec(&message).unwrap_or_default()
        };
        self.functions.iter_mut().for_each(|function| function.send(encode));
    }

    /// What was done since the start, for the last line of the log.
    fn totals(&self) -> String {
        let totals = self.functions.iter().filter_map(|workers| workers.function.totals());
        totals.map(|text| format!("; {text}")).collect()
    }

    /// Applies the settings of a new plan that may change.
    fn reload(&mut self, new: &Plan) -> Reply {
        if let Err(differing) = require_changeable(self.plan, new) {
            return Reply::Differs(differing);
        }
        let mut changed = Vec::new();
        for function in &mut self.functions {
            if let Err(why) = function.apply(new) {
                let changed = match &changed[..] {
                    [] => "nothing was changed".to_owned(),
                    names => format!("new settings are in force for {}", names.join(", ")),
                };
                return Reply::Failed(format!("{why}; {changed}"));
            }
            changed.push(function.function.name());
        }
        Reply::Changed
    }
}

/// Replaces the file of the state as a whole.
fn replace_file(path: &str, state: &State) -> io::Result<()> {
    let part = format!("{path}.part");
    fs::write(&part, serde_json::to_vec(state)?)?;
    fs::rename(&part, path)
}
