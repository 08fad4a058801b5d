//! The workers of one function: their processes, and another one for each that has ended or hangs.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use bentpipe_core::time::{Duration, Instant};

use super::function::{Function, WorkerHealth, WorkerResources};
use super::log::log;
use super::worker_process::WorkerProcess;
use super::{Plan, Start};

/// See the module documentation. The processes are ended when this is dropped.
pub(super) struct FunctionWorkers {
    pub(super) function: Box<dyn Function>,
    workers: Vec<Worker>,
    /// Times that a worker has ended, or was ended because it hung.
    failures: u64,
    /// The user and the group of the processes.
    ids: [u32; 2],
    /// The listener for metrics, which the first worker serves, whichever process it has.
    metrics: Option<OwnedFd>,
}

#[derive(Default)]
struct Worker {
    /// `None` until it is started again.
    process: Option<WorkerProcess>,
    /// The process before, which was killed and may not have ended yet.
    killed: Option<WorkerProcess>,
    restart_delay: RestartDelay,
    /// When it is started again, if it has no process.
    restart: Instant,
    /// Whether its lease was renewed, and it does not know yet.
    is_renewed: bool,
}

impl FunctionWorkers {
    /// Those of a function, without processes.
    pub(super) fn new(
        function: Box<dyn Function>,
        ids: [u32; 2],
        metrics: Option<OwnedFd>,
    ) -> Self {
        let workers = (0..function.workers()).map(|_| Worker::default()).collect();
        Self { function, workers, failures: 0, ids, metrics }
    }

    /// Starts all processes for the first time.
    pub(super) fn start(&mut self, now: Instant) -> io::Result<()> {
        self.function.begin()?;
        for number in 0..self.workers.len() {
            self.workers[number].process = Some(self.process(number, now)?);
        }
        Ok(())
    }

    /// Starts a process of a worker.
    fn process(&mut self, number: usize, now: Instant) -> io::Result<WorkerProcess> {
        let WorkerResources { part, descriptors, sockets } = self.function.open(number)?;
        let metrics = self.metrics.as_ref().filter(|_| number == 0);
        let [user, group] = self.ids;
        let start = Start { user, group, serves_metrics: metrics.is_some(), part };
        let handed: Vec<_> = metrics.into_iter().chain(&descriptors).map(AsFd::as_fd).collect();
        WorkerProcess::start(&start, &handed, sockets, now)
    }

    /// Its name in messages.
    fn worker_name(&self, number: usize) -> String {
        let function = self.function.name();
        match self.workers.len() {
            1 => format!("the worker of {function}"),
            _ => format!("worker {} of {function}", number + 1),
        }
    }

    /// The processes that run.
    pub(super) fn processes(&self) -> impl Iterator<Item = &WorkerProcess> {
        self.workers.iter().filter_map(|worker| worker.process.as_ref())
    }

    /// Handles the messages and ends of the processes, in their order: each has one if it `is_readable`. `elapsed` is the time
    /// since the last call. Returns whether one has ended that is started again.
    ///
    /// # Errors
    /// Which one has ended, and why, unless it `may_restart`.
    pub(super) fn poll(
        &mut self,
        mut is_readable: impl FnMut() -> bool,
        elapsed: Duration,
        now: Instant,
        may_restart: bool,
    ) -> Result<bool, String> {
        let mut has_ended = false;
        for number in 0..self.workers.len() {
            let Some(process) = &mut self.workers[number].process else { continue };
            match process.poll(is_readable(), elapsed) {
                Ok(Some(report)) => self.function.on_report(number, report),
                Ok(None) => {}
                Err(reason) if may_restart => {
                    self.end(number, &reason, now);
                    has_ended = true;
                }
                Err(reason) => return Err(format!("{}: {reason}", self.worker_name(number))),
            }
        }
        Ok(has_ended)
    }

    /// Ends the process of a worker, which is started again later.
    fn end(&mut self, number: usize, reason: &str, now: Instant) {
        let worker = &mut self.workers[number];
        let Some(mut process) = worker.process.take() else { return };
        process.kill();
        let delay = worker.restart_delay.next(now.saturating_since(process.started));
        worker.restart = now + delay;
        worker.killed = Some(process);
        self.failures += 1;
        let consequence = self.function.on_end(number, now);
        let (name, seconds) = (self.worker_name(number), delay.as_secs_f64());
        log(&format!("{name}: {reason}; {consequence}; it is started again in {seconds} s"));
    }

    /// Restarts the workers that are due and whose previous process has ended: until then it has what the next one needs,
    /// such as a device or a group of nfnetlink_log.
    pub(super) fn restart_due(&mut self, now: Instant) {
        for number in 0..self.workers.len() {
            let worker = &mut self.workers[number];
            worker.killed.take_if(WorkerProcess::has_ended);
            if worker.process.is_some() || worker.killed.is_some() || now < worker.restart {
                continue;
            }
            match self.process(number, now) {
                Ok(process) => self.workers[number].process = Some(process),
                Err(error) => {
                    let delay = self.workers[number].restart_delay.next(Duration::ZERO);
                    self.workers[number].restart = now + delay;
                    let (name, seconds) = (self.worker_name(number), delay.as_secs_f64());
                    log(&format!(
                        "{name}: starting it again: {error}; the next attempt is in {seconds} s"
                    ));
                }
            }
        }
    }

    /// Takes the reports since the last time, and renews the leases of their workers.
    pub(super) fn renew(&mut self, now: Instant) {
        let mut reported = Vec::new();
        for (number, worker) in self.workers.iter_mut().enumerate() {
            if worker.process.as_mut().is_some_and(WorkerProcess::take_report) {
                reported.push(number);
            }
        }
        if !reported.is_empty() && self.function.renew(&reported, now) {
            reported.iter().for_each(|&number| self.workers[number].is_renewed = true);
        }
    }

    /// Sends a message to each process; `encode` is told whether the lease of its worker was renewed.
    pub(super) fn send(&mut self, encode: impl Fn(bool) -> Vec<u8>) {
        for worker in &mut self.workers {
            let is_renewed = std::mem::take(&mut worker.is_renewed);
            if let Some(process) = &worker.process {
                let _ = process.send(&encode(is_renewed));
            }
        }
    }

    pub(super) fn health(&self) -> WorkerHealth {
        let is_missing =
            |worker: &&Worker| worker.process.as_ref().is_none_or(WorkerProcess::is_missing);
        let missing = self.workers.iter().filter(is_missing).count() as u64;
        WorkerHealth { missing, failures: self.failures }
    }

    /// Applies the settings of a new plan that may change.
    pub(super) fn apply(&mut self, new: &Plan) -> Result<(), String> {
        let processes: Vec<_> =
            self.workers.iter().filter_map(|worker| worker.process.as_ref()).collect();
        self.function.apply(new, &processes)
    }

    /// Ends all processes, and returns their function.
    pub(super) fn end_all(self) -> Box<dyn Function> {
        self.function
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
