//! A PID namespace for the programs that other processes start in a lab.
//!
//! The lab daemon has no terminal, while programs need the terminal, the working directory and the
//! session of the process that starts them. So that process forks them and they join the lab's
//! namespaces. The `init` of the PID namespace is a child of the lab daemon and has a parent-death
//! signal; when it exits, the kernel kills all processes in the namespace.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::{Arc, mpsc};
use std::thread;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use crate::error::SystemError;
use crate::netns::Namespace;
use crate::parent::{InitSignals, ParentPidfd, close_all_except, set_parent_death_signal};
use crate::program::{
    Invocation, build_command, fork_program, mount_private_proc_and_sys, wait_for_exit,
};
use crate::unshare::unshare;

/// A PID namespace with only an `init`. Processes that join it are killed when this value is
/// dropped or its process exits.
#[derive(Debug)]
pub struct SharedPidNamespace {
    namespace: OwnedFd,
    init: i32,
}

impl SharedPidNamespace {
    /// Creates the namespace.
    ///
    /// # Errors
    /// If the kernel denies it.
    pub fn new() -> Result<Self, SystemError> {
        let (report, made) = mpsc::sync_channel(1);
        // The parent-death signal is sent when the thread that forked the `init` exits.
        thread::Builder::new()
            .name("bentpipe-pids".to_owned())
            .spawn(move || {
                let pids = Self::make();
                let init = pids.as_ref().ok().map(|pids| pids.init);
                let _ = report.send(pids);
                if let Some(init) = init {
                    wait_for_exit(init);
                }
            })
            .map_err(|error| {
                SystemError::machine("starting a thread", error, "allow more threads")
            })?;
        made.recv().expect("the thread reports before it ends")
    }

    fn make() -> Result<Self, SystemError> {
        let failed = |error| SystemError::privileged("making a PID namespace", error);
        unshare(UnshareFlags::NEWPID).map_err(|error| failed(error.into()))?;
        let parent = ParentPidfd::open()?;
        let parent_fd = parent.raw_fd();
        // The child becomes the `init` and never calls exec.
        let mut command = Command::new("/");
        // SAFETY: between fork and exec the child makes system calls and accesses its stack alone.
        #[allow(unsafe_code, reason = "the child becomes an init between fork and exec")]
        unsafe {
            command.pre_exec(move || run_reaper(parent_fd));
        }
        let init = command.spawn().map_err(failed)?.id().cast_signed();
        drop(parent);
        let namespace = std::fs::File::open("/proc/thread-self/ns/pid_for_children")
            .map_err(|error| SystemError::machine("opening a namespace", error, "mount /proc"))?;
        Ok(Self { namespace: namespace.into(), init })
    }
}

impl AsFd for SharedPidNamespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.namespace.as_fd()
    }
}

impl Drop for SharedPidNamespace {
    fn drop(&mut self) {
        if let Some(init) = Pid::from_raw(self.init) {
            let _ = kill_process(init, Signal::KILL);
            let _ = waitpid(Some(init), WaitOptions::empty());
        }
    }
}

/// Runs the `init`: reaps orphans until it is killed.
#[allow(unsafe_code, reason = "signal handling of a process that never returns to Rust")]
fn run_reaper(parent: RawFd) -> io::Result<()> {
    // SAFETY: system calls on integers and stack memory.
    unsafe {
        if set_parent_death_signal(parent) {
            libc::_exit(0);
        }
        close_all_except(parent);
        let signals = InitSignals::block_all(parent);
        while signals.next().is_some() {
            while libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) > 0 {}
        }
        libc::_exit(128 + libc::SIGKILL);
    }
}

/// Starts a program in a host's namespaces, given by file descriptors of the process that created
/// them. The program is a child of this process, with its terminal, its working directory and its
/// session. It is killed when the PID namespace ends or this process exits; its descendants are
/// killed when the PID namespace ends. The caller must wait for it.
///
/// # Errors
/// If there is no such program, the PID namespace has ended, or the kernel denies it.
pub fn spawn_in(
    namespace: Namespace,
    pids: OwnedFd,
    invocation: Invocation,
) -> Result<i32, SystemError> {
    let (report, started) = mpsc::sync_channel(1);
    let folder = std::env::current_dir().ok();
    thread::Builder::new()
        .name("bentpipe-program".to_owned())
        .spawn(move || {
            let process = start(namespace, &pids, invocation, folder);
            let id = process.as_ref().ok().copied();
            // The waiting thread must not keep the namespace alive.
            drop(pids);
            let _ = report.send(process);
            if let Some(id) = id {
                wait_for_exit(id);
            }
        })
        .map_err(|error| SystemError::machine("starting a thread", error, "allow more threads"))?;
    started.recv().expect("the thread reports before it ends")
}

fn start(
    namespace: Namespace,
    pids: &OwnedFd,
    invocation: Invocation,
    folder: Option<std::path::PathBuf>,
) -> Result<i32, SystemError> {
    namespace.enter()?;
    drop(namespace);
    move_into_link_name_space(pids.as_fd(), Some(LinkNameSpaceType::ProcessID))
        .map_err(|error| SystemError::privileged("joining a PID namespace", error))?;
    let name = invocation.arguments.first().cloned().unwrap_or_default();
    let mut command = build_command(invocation, folder)?;
    let failed = |error: io::Error| SystemError::Program { name: name.clone(), error };
    let parent = ParentPidfd::open()?;
    let parent_fd = parent.raw_fd();
    // SAFETY: between fork and exec the child makes system calls and accesses its stack alone.
    #[allow(unsafe_code, reason = "the child becomes a supervisor between fork and exec")]
    unsafe {
        command.pre_exec(move || become_supervisor(parent_fd));
    }
    match command.spawn() {
        Ok(child) => Ok(child.id().cast_signed()),
        // fork(2): ENOMEM means that the `init` of the PID namespace has exited.
        Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => Err(SystemError::machine(
            "joining the lab",
            error,
            "the lab has ended; bring it up again",
        )),
        Err(error) => Err(failed(error)),
    }
}

/// Runs in the new process: becomes the supervisor of the program. It is not replaced by execve(2),
/// which clears the parent-death signal of programs with file capabilities, such as ping(8).
#[allow(unsafe_code, reason = "system calls between fork and exec")]
fn become_supervisor(parent: RawFd) -> io::Result<()> {
    // SAFETY: system calls on integers and stack memory.
    unsafe {
        mount_private_proc_and_sys();
        fork_program(parent)
    }
}

/// File descriptors of a host's namespaces, with which another process can call [`spawn_in`].
#[derive(Debug)]
pub struct NamespaceFds {
    /// The network namespace and the mount namespace.
    pub namespace: [OwnedFd; 2],
    /// The PID namespace.
    pub pids: OwnedFd,
}

impl NamespaceFds {
    /// Duplicates those of a host.
    ///
    /// # Errors
    /// If the process has no file descriptors left.
    pub fn of(namespace: &Arc<Namespace>, pids: &SharedPidNamespace) -> io::Result<Self> {
        Ok(Self { namespace: namespace.try_clone_fds()?, pids: pids.namespace.try_clone()? })
    }
}
