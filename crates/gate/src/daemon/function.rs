//! A function of a gateway, as the supervisor sees it.
//!
//! The supervisor starts, polls and replaces processes, and knows nothing of what they carry. A function knows what its
//! workers need, what follows from their reports and ends, and what it keeps in the kernel.

use std::io;
use std::os::fd::OwnedFd;

use bentpipe_core::time::Instant;

use super::report::{State, WorkerReport};
use super::worker_process::WorkerProcess;
use super::{Part, Plan};
use crate::transparent::Direct;

/// What a process of a worker gets.
pub(super) struct WorkerResources {
    pub(super) part: Part,
    /// In the order in which the worker takes them. They are closed here once they were handed over, so the end of the
    /// process closes them.
    pub(super) descriptors: Vec<OwnedFd>,
    /// The sockets that are opened for it while it runs.
    pub(super) sockets: Option<Direct>,
}

/// How the workers of a function are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct WorkerHealth {
    /// Workers that do not report.
    pub(super) missing: u64,
    /// Times that one has ended, or was ended because it hung.
    pub(super) failures: u64,
}

/// See the module documentation. Workers are numbered from 0 on.
pub(super) trait Function {
    /// Its name in messages, with an article.
    fn name(&self) -> &'static str;

    fn workers(&self) -> usize;

    /// Makes its rules, before the workers are started.
    fn begin(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Opens what the next process of a worker needs. The process before has ended.
    fn open(&mut self, worker: usize) -> io::Result<WorkerResources>;

    /// All workers have reported: what protects hosts must remain after a kill from now on.
    fn started(&mut self) {}

    fn on_report(&mut self, worker: usize, report: WorkerReport);

    /// The process of a worker has ended, or is being killed. Returns the consequence for the log.
    fn on_end(&mut self, worker: usize, now: Instant) -> String;

    /// Renews the leases of the workers that have reported. Returns whether they were renewed.
    fn renew(&mut self, _reported: &[usize], _now: Instant) -> bool {
        false
    }

    /// Applies the settings of a new plan that may change, to its workers that have a process, too. They go on in later
    /// processes.
    ///
    /// # Errors
    /// Why nothing of this function was changed.
    fn apply(&mut self, new: &Plan, processes: &[&WorkerProcess]) -> Result<(), String>;

    /// Adds what it has counted, and how its workers are.
    fn add_to(&self, state: &mut State, health: WorkerHealth, now: Instant);

    /// What it has done since the start, for the last line of the log.
    fn totals(&self) -> Option<String>;

    /// Removes its rules and, after an end on purpose, what protects hosts. No worker runs any more.
    fn remove(&mut self, is_on_purpose: bool) -> io::Result<()>;
}
