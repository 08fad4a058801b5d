//! The PEP as a function of the daemon: its rules, the sockets of its workers, and a lease for each of them.
//!
//! While a worker is missing its share of new connections passes unsplit, and the others are split.

use std::io;
use std::os::fd::OwnedFd;

use bentpipe_core::time::Instant;

use super::function::{Function, WorkerHealth, WorkerResources};
use super::log::log;
use super::pep_sockets::{OpenPep, WorkerSockets};
use super::report::{PepWorkers, Report, State, WorkerReport};
use super::worker_process::WorkerProcess;
use super::{Part, PepPlan, Plan};
use crate::Side;
use crate::transparent::{Direct, LEASE, Rules};

/// See the module documentation.
pub(super) struct PepFunction {
    plan: PepPlan,
    rules: Rules,
    workers: Vec<PepWorker>,
    /// Whether the rules could not be renewed.
    lacks_rules: bool,
}

#[derive(Default)]
struct PepWorker {
    /// What was opened for its first process.
    opened: Option<WorkerSockets>,
    /// What it has counted so far, in all its processes.
    counts: Option<Report>,
    /// What the processes before the present one have counted.
    earlier: Report,
    /// Until when the rules hold its share of new connections.
    held_until: Instant,
}

impl PepFunction {
    /// Opens the sockets of all workers.
    pub(super) fn open(plan: &PepPlan, name: &str) -> io::Result<Self> {
        let OpenPep { workers, rules } = OpenPep::open(plan, name)?.open_logs()?;
        let worker = |opened| PepWorker { opened: Some(opened), ..PepWorker::default() };
        let workers = workers.into_iter().map(worker).collect();
        Ok(Self { plan: plan.clone(), rules, workers, lacks_rules: false })
    }

    /// Opens the sockets of a worker again, and leads its connections to them.
    fn open_again(&mut self, worker: usize) -> io::Result<WorkerSockets> {
        let mut sockets = WorkerSockets::open(&self.plan, &mut self.rules, worker)?;
        sockets.open_logs(&self.rules, worker)?;
        // The listeners have other ports.
        self.rules.listen()?;
        Ok(sockets)
    }

    /// The sum of all workers, once one has reported.
    fn sum(&self) -> Option<Report> {
        self.workers.iter().filter_map(|worker| worker.counts).reduce(|mut sum, counts| {
            sum.add(&counts);
            sum
        })
    }
}

impl Function for PepFunction {
    fn name(&self) -> &'static str {
        "the PEP"
    }

    fn workers(&self) -> usize {
        self.workers.len()
    }

    fn begin(&mut self) -> io::Result<()> {
        self.rules.add()
    }

    fn open(&mut self, worker: usize) -> io::Result<WorkerResources> {
        let sockets = match self.workers[worker].opened.take() {
            Some(opened) => opened,
            None => self.open_again(worker)?,
        };
        Ok(WorkerResources {
            part: Part::Pep(self.plan.clone()),
            descriptors: Vec::<OwnedFd>::from(sockets),
            sockets: Some(Direct(Side::ALL.map(|side| self.plan.leg(side)))),
        })
    }

    fn on_report(&mut self, worker: usize, report: WorkerReport) {
        let WorkerReport::Pep(mut report) = report else { return };
        let worker = &mut self.workers[worker];
        report.add_earlier(&worker.earlier);
        worker.counts = Some(*report);
    }

    fn on_end(&mut self, number: usize, now: Instant) -> String {
        // They pass at once, not when the lease ends. If that fails, they pass then.
        let _ = self.rules.release(number);
        let worker = &mut self.workers[number];
        worker.held_until = now;
        let connections = worker.end_counts();
        format!(
            "its connections ({connections} at its last report) are reset, its share of new ones passes unsplit"
        )
    }

    fn renew(&mut self, reported: &[usize], now: Instant) -> bool {
        let held = |number: &usize| now < self.workers[*number].held_until;
        let held: Vec<_> = (0..self.workers.len()).filter(held).collect();
        match self.rules.renew(reported, &held) {
            Ok(()) => {
                self.lacks_rules = false;
                reported.iter().for_each(|&each| self.workers[each].held_until = now + LEASE);
                return true;
            }
            // Once, until they are renewed again.
            Err(error) if !self.lacks_rules => {
                log(&format!("renewing the rules: {error}; new connections pass unsplit"));
                self.lacks_rules = true;
            }
            Err(_) => {}
        }
        false
    }

    /// Selects other new connections. Those that are split go on.
    fn apply(&mut self, new: &Plan, _: &[&WorkerProcess]) -> Result<(), String> {
        let Some(PepPlan { except, only, .. }) = new.pep.clone() else { return Ok(()) };
        let changed = Rules { except, only, ..self.rules.clone() };
        if changed == self.rules {
            return Ok(());
        }
        changed.select().map_err(|error| {
            // Programs print the command, which has all networks, after the reason.
            let why = error.to_string().lines().next().unwrap_or_default().to_owned();
            format!("except and only of the PEP are as before: {why}")
        })?;
        self.rules = changed;
        Ok(())
    }

    fn add_to(&self, state: &mut State, health: WorkerHealth, now: Instant) {
        state.pep = self.sum();
        state.pep_workers = Some(PepWorkers {
            is_splitting: self.workers.iter().all(|worker| now < worker.held_until),
            workers: self.workers.len() as u64,
            missing: health.missing,
            failures: health.failures,
        });
    }

    fn totals(&self) -> Option<String> {
        let sum = self.sum()?;
        Some(format!(
            "the PEP split {} connections ({} are open, and reset), {} passed unsplit; {} B to servers, {} B to clients",
            sum.split_connections,
            sum.open_connections,
            sum.unsplit_connections,
            sum.to_server_bytes,
            sum.to_client_bytes,
        ))
    }

    fn remove(&mut self, _: bool) -> io::Result<()> {
        self.rules.remove()
    }
}

impl PepWorker {
    /// The process has ended. Returns how many connections it had at its last report.
    fn end_counts(&mut self) -> u64 {
        let Some(report) = &mut self.counts else { return 0 };
        let connections = report.open_connections;
        (report.open_connections, report.memory_bytes) = (0, 0);
        self.earlier = *report;
        connections
    }
}
