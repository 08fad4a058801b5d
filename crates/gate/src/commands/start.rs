//! The start of a daemon.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{ErrorKind, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, absolute};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use super::checks::{Options, examine, require};
use super::deadline::Deadline;
use super::failure::{Done, FIX, Failure, PROGRAM};
use super::folder::{GatewayFolder, POLL, Record, network_namespace};
use super::machine::Host;
use super::stop::{closed_networks, except_networks, remove_leftovers, remove_rules};
use crate::config::Config;
use crate::config::wording::reason;
use crate::daemon::Plan;

/// A daemon is ready within 0.1 s on an idle machine. The limit is above the 10 s after which a daemon whose worker
/// hangs ends itself (`worker_process.rs`): its error names the worker.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// A gateway that is to be started.
pub(super) struct Starting<'a> {
    pub(super) config: &'a Config,
    pub(super) plan: &'a Plan,
    /// The file of the configuration.
    pub(super) path: &'a Path,
    pub(super) folder: &'a GatewayFolder,
}

/// What a killed daemon of the same name has left.
struct Left {
    record: Option<Record>,
    /// The networks that stay closed: those whose unreachable routes (`fail = "closed"`) the new daemon takes over.
    kept: BTreeSet<String>,
}

impl Starting<'_> {
    /// Starts a daemon in the background; returns its process id once it carries traffic.
    ///
    /// It has no terminal and a session of its own, so that Ctrl-C and the end of the terminal do not reach it.
    ///
    /// # Errors
    /// What keeps it from starting, with the fix. Nothing of it is left, except for its record if its rules cannot be
    /// removed; networks that a killed gateway of this name has left closed remain closed.
    pub(super) fn start(&self) -> Done<u32> {
        // In this order: the checks would refuse the rules of a killed daemon; and `down` needs the record to remove
        // those of a daemon that is killed.
        let lock = self.folder.lock()?;
        let left = self.remove_left()?;
        let spawned = self.prepare().and_then(|()| self.spawn(&lock));
        let mut daemon = spawned.inspect_err(|_| self.give_up(&left))?;
        self.wait(&mut daemon).map_err(|error| self.end(&mut daemon, &left, error))?;
        Ok(daemon.id())
    }

    /// Becomes the daemon: this process runs it, on its own standard error.
    ///
    /// # Errors
    /// What keeps it from starting, with the fix. Nothing of it is left; networks stay closed as in [`Self::start`].
    pub(super) fn become_daemon(&self) -> Failure {
        let lock = match self.folder.lock() {
            Ok(lock) => lock,
            Err(error) => return error,
        };
        let left = match self.remove_left() {
            Ok(left) => left,
            Err(error) => return error,
        };
        let run = || {
            self.prepare()?;
            let _inherited = inheritable(&lock)?;
            let error = self.daemon()?.exec();
            Err(failed_start(&error))
        };
        let done: Done = run();
        self.give_up(&left);
        done.err().unwrap_or_else(|| Failure::Machine(format!("{PROGRAM} was not started")))
    }

    /// Removes what a killed daemon has left, but for the networks that stay closed.
    fn remove_left(&self) -> Done<Left> {
        let record = self.folder.record();
        let mut kept = BTreeSet::new();
        if let Some(record) = &record {
            if record.network_namespace == network_namespace() {
                let own = closed_networks(&self.plan_value()?);
                kept = closed_networks(&record.plan).intersection(&own).cloned().collect();
            }
            remove_leftovers(record, &kept)?;
        }
        self.folder.remove_counters()?;
        Ok(Left { record, kept })
    }

    /// Checks the machine, and writes the record.
    fn prepare(&self) -> Done {
        require(&examine(&Host, self.config, self.plan, Options::default())?)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let config = absolute(self.path).unwrap_or_else(|_| self.path.to_owned());
        self.folder.write_record(&Record {
            config: config.to_string_lossy().into_owned(),
            described: serde_json::to_value(self.config.description()).unwrap_or_default(),
            plan: self.plan_value()?,
            network_namespace: network_namespace(),
            started_unix_s: now.as_secs_f64(),
        })
    }

    /// Removes the folder; or, if networks stay closed, writes the record of the killed daemon again, with which `down`
    /// opens them.
    fn give_up(&self, left: &Left) {
        match &left.record {
            Some(record) if !left.kept.is_empty() => {
                let _ = self.folder.write_record(record);
            }
            _ => self.folder.remove(),
        }
    }

    fn plan_value(&self) -> Done<Value> {
        serde_json::to_value(self.plan).map_err(|error| Failure::Machine(error.to_string()))
    }

    /// The command of the daemon, with its plan on standard input.
    fn daemon(&self) -> Done<Command> {
        // No pipe: in the foreground, no process is left after exec(2) to write into one.
        let write = || {
            let flags = rustix::fs::MemfdFlags::CLOEXEC;
            let mut file = File::from(rustix::fs::memfd_create(PROGRAM, flags)?);
            file.write_all(&serde_json::to_vec(self.plan)?)?;
            file.seek(SeekFrom::Start(0))?;
            Ok(file)
        };
        let given = write().map_err(|error: std::io::Error| failed_start(&error))?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0(PROGRAM).args(["plan", "run"]).stdin(given).current_dir("/");
        Ok(command)
    }

    /// Starts the daemon.
    fn spawn(&self, lock: &File) -> Done<Child> {
        let log = File::create(self.folder.log_file());
        let log = log.map_err(|error| self.folder.unwritable(&error))?;
        // No other process is started until it is closed.
        let _inherited = inheritable(lock)?;
        let mut command = self.daemon()?;
        let spawned = command.arg("--background").stdout(Stdio::null()).stderr(log).spawn();
        spawned.map_err(|error| failed_start(&error))
    }

    /// Waits until the daemon is ready.
    ///
    /// # Errors
    /// Why it is not: it has ended, or takes too long.
    fn wait(&self, daemon: &mut Child) -> Done {
        let mut status = None;
        let counters = first_counters(self.folder, || {
            status = daemon.try_wait().ok().flatten();
            status.is_some()
        })?;
        if counters.is_some() {
            return Ok(());
        }
        let ended = || {
            let status = status.unwrap_or_default();
            format!("{PROGRAM} has ended: {status}{FIX}see what dmesg says, and try again")
        };
        Err(Failure::Machine(self.folder.last_error().unwrap_or_else(ended)))
    }

    /// Ends a daemon that is not ready, and removes its rules. If that fails, its record stays, so that `down` can
    /// remove them. Returns the error, with that of the removal in a second line.
    fn end(&self, daemon: &mut Child, left: &Left, error: Failure) -> Failure {
        let _ = daemon.kill();
        let _ = daemon.wait();
        let plan = self.plan_value();
        match plan.and_then(|plan| remove_rules(&except_networks(&plan, &left.kept))) {
            Ok(()) => {
                self.give_up(left);
                error
            }
            Err(remaining) => Failure::Machine(format!("{error}\n{remaining}")),
        }
    }
}

/// A copy of the lock that the daemon inherits: dup(2) clears the close-on-exec flag, and the lock belongs to the open
/// file description (flock(2)), which both descriptors share.
fn inheritable(lock: &File) -> Done<OwnedFd> {
    rustix::io::dup(lock).map_err(|error| failed_start(&error.into()))
}

fn failed_start(error: &std::io::Error) -> Failure {
    let fix = match error.kind() {
        ErrorKind::OutOfMemory | ErrorKind::WouldBlock => "free memory, or end other processes",
        _ => "try again, and report it",
    };
    Failure::Machine(format!("starting {PROGRAM}: {}{FIX}{fix}", reason(error)))
}

/// Waits until a daemon that is being started has written its counters, and returns them; `None` if it has ended
/// before.
///
/// # Errors
/// It has not within [`START_TIMEOUT`].
pub(super) fn first_counters(
    folder: &GatewayFolder,
    mut has_ended: impl FnMut() -> bool,
) -> Done<Option<Value>> {
    let deadline = Deadline::after(START_TIMEOUT);
    loop {
        if let Some(counters) = folder.counters() {
            return Ok(Some(counters));
        }
        if has_ended() {
            return Ok(None);
        }
        if deadline.is_past() {
            let seconds = START_TIMEOUT.as_secs();
            return Err(Failure::Machine(format!(
                "{PROGRAM} is not ready after {seconds} s{FIX}try again, and report it"
            )));
        }
        sleep(POLL);
    }
}

#[cfg(test)]
mod tests;
