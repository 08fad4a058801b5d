//! The process of a worker, as the privileged part has it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command};
use std::thread::JoinHandle;

use bentpipe_core::time::{Duration, Instant};

use super::Start;
use super::handover::{pair, receive, send};
use super::report::WorkerReport;
use super::socket_broker::run_broker;
use crate::heartbeat::reason_of_end;
use crate::transparent::{Direct, LEASE};

/// The time without a report after which a worker is taken for hung.
const SILENCE: Duration = Duration::from_secs(10);

/// See the module documentation. The process is ended when this is dropped.
pub(super) struct WorkerProcess {
    child: Child,
    control: OwnedFd,
    /// The thread that opens sockets for it.
    broker: Option<JoinHandle<io::Result<()>>>,
    pub(super) started: Instant,
    /// Whether it has reported at all.
    has_started: bool,
    /// Whether it has reported since its reports were taken last.
    has_reported: bool,
    /// The time since its last report, or since its start.
    silent: Duration,
}

impl WorkerProcess {
    /// Starts a process, and hands descriptors over to it. Further `sockets` are opened for it while it runs.
    pub(super) fn start(
        start: &Start,
        descriptors: &[BorrowedFd<'_>],
        sockets: Option<Direct>,
        now: Instant,
    ) -> io::Result<Self> {
        let (control, of_worker) = pair()?;
        let (supplies, supply_of_worker) = pair()?;
        let child = Command::new("/proc/self/exe")
            .arg("worker")
            .stdin(of_worker)
            .stdout(supply_of_worker)
            .spawn()
            .map_err(|error| io::Error::other(format!("starting the worker: {error}")))?;
        let mut process = Self {
            child,
            control,
            broker: None,
            started: now,
            has_started: false,
            has_reported: false,
            silent: Duration::ZERO,
        };
        send(&process.control, &serde_json::to_vec(start)?, descriptors)?;
        // One that does not read must not make this part wait.
        rustix::io::ioctl_fionbio(&process.control, true)?;
        if let Some(sockets) = sockets {
            let named = std::thread::Builder::new().name("supply".to_owned());
            process.broker = Some(named.spawn(move || run_broker(&supplies, &sockets))?);
        }
        Ok(process)
    }

    /// Takes its next message if it `is_readable`. `elapsed` is the time since the last call.
    ///
    /// # Errors
    /// Why it serves no longer: it has ended, does not report, or lacks what it needs.
    pub(super) fn poll(
        &mut self,
        is_readable: bool,
        elapsed: Duration,
    ) -> Result<Option<WorkerReport>, String> {
        if let Some(broker) = self.broker.take_if(|broker| !is_readable && broker.is_finished()) {
            return Err(reason_of_end("the thread that opens its sockets", broker).to_string());
        }
        if !is_readable {
            self.silent += elapsed;
            let seconds = SILENCE.as_nanos() / 1_000_000_000;
            let hangs = || format!("it has not reported for {seconds} s");
            return if self.silent < SILENCE { Ok(None) } else { Err(hangs()) };
        }
        let (message, _) = receive(&self.control).map_err(|error| error.to_string())?;
        if message.is_empty() {
            return Err(format!("it has ended ({})", self.end()));
        }
        let report = serde_json::from_slice(&message)
            .map_err(|error| format!("its report is malformed: {error}"))?;
        (self.has_started, self.has_reported, self.silent) = (true, true, Duration::ZERO);
        Ok(Some(report))
    }

    /// Ends a process that is ending, and tells how it has ended.
    fn end(&mut self) -> String {
        self.kill();
        self.child.wait().map_or_else(|error| error.to_string(), |status| status.to_string())
    }

    /// Sends a message. One that does not read misses it.
    pub(super) fn send(&self, message: &[u8]) -> io::Result<()> {
        send(&self.control, message, &[])
    }

    /// Whether it has reported since the last call.
    pub(super) fn take_report(&mut self) -> bool {
        std::mem::take(&mut self.has_reported)
    }

    /// How long its last report waits, if it was not taken.
    pub(super) fn waiting(&self) -> Option<Duration> {
        self.has_reported.then_some(self.silent)
    }

    /// Whether it does not report.
    pub(super) fn is_missing(&self) -> bool {
        !self.has_started || self.silent >= LEASE
    }

    /// Ends it, without waiting until the kernel has: a thread may be in a system call that cannot be interrupted.
    pub(super) fn kill(&mut self) {
        let _ = self.child.kill();
    }

    /// Whether the kernel has ended it.
    pub(super) fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }
}

impl AsFd for WorkerProcess {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        self.end();
    }
}
