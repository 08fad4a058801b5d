//! The folder of a gateway.
//!
//! It has
//!
//! - `gateway.json`: its record. Whoever starts a daemon locks it (flock(2)), and the processes of the daemon inherit the
//!   lock: while one of them runs, the gateway is up.
//! - `state.json`: its counters, which the daemon writes at least every 0.75 s.
//! - `log`: what the daemon has printed, if it runs in the background.
//! - `control`: a socket of the daemon, for a reload.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, UNIX_EPOCH};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::deadline::Deadline;
use super::failure::{Done, FIX, Failure, PROGRAM, called};
use crate::config::Files;
use crate::config::wording::reason;

const RUN: &str = "/run";
const LOG_BYTES_MAX: u64 = 64 * 1024;
/// Others take the lock for a moment to see whether the gateway is up.
const LOCK_TIMEOUT: Duration = Duration::from_millis(200);
/// The longest time for which a lock counts that no process is found to have. The kernel removes the descriptors of one that
/// it ends before it has closed their files, of which the device of a tunnel takes longest.
const ENDING_TIMEOUT: Duration = Duration::from_secs(1);
pub(super) const POLL: Duration = Duration::from_millis(10);

/// What is written down when a gateway is started, to end it later.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Record {
    /// The absolute path of its configuration.
    pub(super) config: String,
    /// What the status says of its configuration.
    pub(super) described: Value,
    /// The plan of the daemon, which may be one of another version.
    pub(super) plan: Value,
    /// The inode number of the network namespace. Records of earlier versions have this name for it.
    #[serde(rename = "network")]
    pub(super) network_namespace: u64,
    pub(super) started_unix_s: f64,
}

/// The folder of all gateways: `/run/bentpipe` for root, else one of the user's.
pub(super) fn base_folder() -> PathBuf {
    #[cfg(test)]
    if let Some(base) = tests::base() {
        return base;
    }
    // In a user namespace, root may not own /run.
    if geteuid().is_root() && fs::metadata(RUN).is_ok_and(|run| run.uid() == 0) {
        return Path::new(RUN).join("bentpipe");
    }
    user_folder(std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from))
}

/// Where this user's gateways are.
fn user_folder(runtime: Option<PathBuf>) -> PathBuf {
    // su(1) and sudo(8) may leave the folder of another user, which cannot be accessed.
    match runtime.filter(|folder| folder.is_dir()) {
        Some(folder) => folder.join("bentpipe-gateways"),
        None => std::env::temp_dir().join(format!("bentpipe-gateways-{}", geteuid().as_raw())),
    }
}

/// The inode number of the network namespace of this process.
pub(super) fn network_namespace() -> u64 {
    fs::metadata("/proc/self/ns/net").map_or(0, |file| file.ino())
}

/// The names of the gateways in a folder that were started and not ended, sorted.
pub(super) fn gateway_names(base: &Path) -> Vec<String> {
    let entries = fs::read_dir(base).into_iter().flatten().filter_map(Result::ok);
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<_> =
        names.filter(|name| GatewayFolder::within(base, name).exists()).collect();
    names.sort();
    names
}

/// The folder of one gateway, which need not exist.
pub(super) struct GatewayFolder {
    pub(super) name: String,
    pub(super) path: PathBuf,
}

impl GatewayFolder {
    pub(super) fn new(name: &str) -> Self {
        Self::within(&base_folder(), name)
    }

    fn within(base: &Path, name: &str) -> Self {
        Self { name: name.to_owned(), path: base.join(name) }
    }

    pub(super) fn record_file(&self) -> PathBuf {
        self.path.join("gateway.json")
    }

    pub(super) fn log_file(&self) -> PathBuf {
        self.path.join("log")
    }

    /// Where the daemon has its files.
    pub(super) fn files(&self) -> Files {
        Files {
            state: self.path.join("state.json"),
            control: self.path.join("control"),
            others: vec![self.log_file(), self.record_file()],
        }
    }

    /// Makes the folder and locks it; the file that is returned holds the lock.
    ///
    /// # Errors
    /// The gateway is up, or is being started or ended, or the folder cannot be written.
    pub(super) fn lock(&self) -> Done<File> {
        let unwritable = |error: io::Error| self.unwritable(&error);
        DirBuilder::new().mode(0o700).recursive(true).create(&self.path).map_err(unwritable)?;
        let mut options = OpenOptions::new();
        // Read-only: a process without privileges inherits it.
        let flags = OFlags::CREATE | OFlags::NOFOLLOW;
        options.read(true).mode(0o600).custom_flags(flags.bits().cast_signed());
        loop {
            let file = options.open(self.record_file()).map_err(unwritable)?;
            self.wait_for_lock(&file)?;
            let opened = file.metadata().map_err(unwritable)?;
            // Another file may have taken its path meanwhile.
            match fs::metadata(self.record_file()) {
                Ok(current) if is_same(&current, &opened) => return Ok(file),
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(unwritable(error)),
                _ => {}
            }
        }
    }

    fn wait_for_lock(&self, file: &File) -> Done {
        let [deadline, ending] = [LOCK_TIMEOUT, ENDING_TIMEOUT].map(Deadline::after);
        while let Err(error) = flock(file, FlockOperation::NonBlockingLockExclusive) {
            if error != rustix::io::Errno::WOULDBLOCK {
                return Err(self.unwritable(&error.into()));
            }
            if deadline.is_past() && (ending.is_past() || !self.processes().is_empty()) {
                let (name, down) = (&self.name, called());
                return Err(Failure::Machine(format!(
                    "gateway {name} is up already{FIX}end it with {down} down {name}, or choose another \
                     name"
                )));
            }
            sleep(POLL);
        }
        Ok(())
    }

    /// Whether a process has the gateway.
    pub(super) fn is_up(&self) -> bool {
        let ending = Deadline::after(ENDING_TIMEOUT);
        while self.is_locked() {
            if ending.is_past() || !self.processes().is_empty() {
                return true;
            }
            sleep(POLL);
        }
        false
    }

    fn is_locked(&self) -> bool {
        File::open(self.record_file()).is_ok_and(|file| {
            flock(file, FlockOperation::NonBlockingLockShared) == Err(rustix::io::Errno::WOULDBLOCK)
        })
    }

    /// Whether a gateway has been started here and not been ended.
    pub(super) fn exists(&self) -> bool {
        self.record_file().is_file()
    }

    /// The record, or `None` if there is none, or none that can be read.
    pub(super) fn record(&self) -> Option<Record> {
        serde_json::from_slice(&fs::read(self.record_file()).ok()?).ok()
    }

    /// Writes the record into the locked file.
    ///
    /// # Errors
    /// It cannot be written, for instance because the disk is full.
    pub(super) fn write_record(&self, record: &Record) -> Done {
        let write = || {
            // Not replaced by a new file: this one is locked. Others may read it meanwhile, so nothing of a longer one is
            // left behind it.
            let mut file = OpenOptions::new().read(true).write(true).open(self.record_file())?;
            let mut text = serde_json::to_vec(record)?;
            let size = usize::try_from(file.metadata()?.len()).unwrap_or_default();
            text.resize(text.len().max(size), b' ');
            file.write_all(&text)?;
            file.sync_all()
        };
        write().map_err(|error| self.unwritable(&error))
    }

    /// The latest counters, with the time of theirs, or `None` before the first ones.
    pub(super) fn counters(&self) -> Option<Value> {
        let mut file = File::open(self.files().state).ok()?;
        let mut text = Vec::new();
        file.read_to_end(&mut text).ok()?;
        let mut counters: Value = serde_json::from_slice(&text).ok()?;
        let age = file.metadata().ok()?.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
        let unix_s = Value::from(age.as_secs_f64());
        counters.as_object_mut()?.insert("unix_s".to_owned(), unix_s);
        Some(counters)
    }

    /// Removes the counters of a killed daemon: a start takes any counters as the sign that its own daemon is ready.
    ///
    /// # Errors
    /// They cannot be removed.
    pub(super) fn remove_counters(&self) -> Done {
        match fs::remove_file(self.files().state) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(self.unwritable(&error)),
            _ => Ok(()),
        }
    }

    /// What the last line of the daemon's log says.
    pub(super) fn last_line(&self) -> Option<String> {
        self.printed().map(|line| said(&line).to_owned())
    }

    /// The error with which the daemon has ended: the last line of its log, if that is one.
    pub(super) fn last_error(&self) -> Option<String> {
        let is_error = |line: &String| line.starts_with(&format!("{PROGRAM}: error: "));
        self.printed().filter(is_error).map(|line| said(&line).to_owned())
    }

    /// Why the daemon has ended, which was not ended by `down`.
    pub(super) fn why_ended(&self) -> String {
        self.last_error().unwrap_or_else(|| "it was killed".to_owned())
    }

    /// The last line of the log.
    fn printed(&self) -> Option<String> {
        let mut file = File::open(self.log_file()).ok()?;
        let size = file.metadata().ok()?.len();
        file.seek(SeekFrom::Start(size.saturating_sub(LOG_BYTES_MAX))).ok()?;
        let mut bytes = Vec::new();
        file.take(LOG_BYTES_MAX).read_to_end(&mut bytes).ok()?;
        let text = String::from_utf8_lossy(&bytes);
        text.trim().lines().last().map(str::to_owned)
    }

    /// Removes the files, and folders that are empty then.
    pub(super) fn remove(&self) {
        let Files { state, control, .. } = self.files();
        let mut part = state.clone().into_os_string();
        part.push(".part");
        // The record last: a gateway without one does not exist.
        let files = [state, PathBuf::from(part), self.log_file(), control, self.record_file()];
        for file in files {
            let _ = fs::remove_file(file);
        }
        // A service manager may keep the folder.
        for folder in [Some(self.path.as_path()), self.path.parent()].into_iter().flatten() {
            let _ = fs::remove_dir(folder);
        }
    }

    /// The process ids of the daemon: those that hold the lock, without this process.
    pub(super) fn processes(&self) -> Vec<i32> {
        let Ok(lock) = fs::metadata(self.record_file()) else { return Vec::new() };
        let own = rustix::process::getpid().as_raw_pid();
        let is_daemon = |process: &i32| *process != own && holds(*process, &lock);
        let mut found: Vec<_> = super::processes::all().filter(is_daemon).collect();
        found.sort_unstable();
        found
    }

    pub(super) fn unwritable(&self, error: &io::Error) -> Failure {
        let base = self.path.parent().unwrap_or(&self.path);
        let place = base.parent().unwrap_or(base).display();
        Failure::Machine(format!(
            "{}: {}{FIX}run it as root, and see that {place} has space and can be written",
            self.path.display(),
            reason(error)
        ))
    }
}

/// What a line of the daemon says.
pub(super) fn said(line: &str) -> &str {
    let line = line.strip_prefix(&format!("{PROGRAM}: error: ")).unwrap_or(line);
    line.strip_prefix(&format!("{PROGRAM}: ")).unwrap_or(line)
}

fn is_same(one: &fs::Metadata, other: &fs::Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

/// Whether a process holds the lock of a file, and not only reads it: fdinfo lists locks (proc(5)).
///
/// Its program may have any name.
fn holds(process: i32, record: &fs::Metadata) -> bool {
    let folder = PathBuf::from(format!("/proc/{process}"));
    let has_lock = |descriptor: &OsStr| {
        fs::read_to_string(folder.join("fdinfo").join(descriptor)).is_ok_and(|info| {
            info.lines().any(|line| {
                line.starts_with("lock:") && line.contains("FLOCK") && line.contains("WRITE")
            })
        })
    };
    let files = fs::read_dir(folder.join("fd")).into_iter().flatten().filter_map(Result::ok);
    files
        .filter(|file| fs::metadata(file.path()).is_ok_and(|opened| is_same(&opened, record)))
        .any(|file| has_lock(&file.file_name()))
}

#[cfg(test)]
pub(super) mod tests;
