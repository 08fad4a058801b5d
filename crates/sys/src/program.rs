//! Programs in namespaces, which end with this process.
//!
//! A program is the child of the `init` of a PID namespace of its own. When an `init` exits, the
//! kernel kills all processes in its namespace, descendants included. The `init` has a parent-death
//! signal, sent when the thread that forked it exits, which it does at the latest with the process.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, mpsc};
use std::thread;

use rustix::mount::MountFlags;
use rustix::thread::UnshareFlags;

use crate::error::SystemError;
use crate::netns::Namespace;
use crate::parent::{InitSignals, ParentPidfd, close_all_except, set_parent_death_signal};
use crate::unshare::unshare;

/// A program to run.
#[derive(Debug, Default)]
pub struct Invocation {
    /// The program and its arguments.
    pub arguments: Vec<String>,
    /// Environment variables to set in addition to the inherited ones.
    pub environment: Vec<(String, String)>,
    /// Where standard output and standard error go; inherited if `None`. If it is set, standard
    /// input is /dev/null and the program has a process group of its own: Ctrl-C in the terminal
    /// of this process ends only programs that use that terminal.
    pub output: Option<OwnedFd>,
}

/// Starts a program in a namespace. Returns the PID of its `init`, which exits with the program's
/// exit code, or with 128 plus the number of the signal that ended it. The `init` forwards signals
/// to the program; killing it kills the program and all its descendants. The caller must wait for
/// it.
///
/// # Errors
/// If there is no such program, or the kernel denies a PID namespace.
pub fn spawn(namespace: &Arc<Namespace>, invocation: Invocation) -> Result<i32, SystemError> {
    let (report, started) = mpsc::sync_channel(1);
    let namespace = Arc::clone(namespace);
    // setns(2) into a mount namespace changes the working directory to its root.
    let folder = std::env::current_dir().ok();
    // The thread lives as long as the program: its exit triggers the parent-death signal.
    thread::Builder::new()
        .name("bentpipe-program".to_owned())
        .spawn(move || {
            let process = namespace.enter().and_then(|()| start(invocation, folder));
            let id = process.as_ref().ok().copied();
            let _ = report.send(process);
            if let Some(id) = id {
                wait_for_exit(id);
            }
        })
        .map_err(|error| SystemError::machine("starting a thread", error, "allow more threads"))?;
    started.recv().expect("the thread reports before it ends")
}

fn start(invocation: Invocation, folder: Option<PathBuf>) -> Result<i32, SystemError> {
    let name = invocation.arguments.first().cloned().unwrap_or_default();
    let failed = |error| SystemError::Program { name: name.clone(), error };
    unshare(UnshareFlags::NEWPID)
        .map_err(|error| SystemError::privileged("making a PID namespace", error))?;
    let parent = ParentPidfd::open()?;
    let mut command = build_command(invocation, folder)?;
    let parent_fd = parent.raw_fd();
    // SAFETY: between fork and exec the child makes system calls and accesses its stack alone.
    #[allow(unsafe_code, reason = "the child becomes an init between fork and exec")]
    unsafe {
        command.pre_exec(move || become_init(parent_fd));
    }
    let child = command.spawn().map_err(failed)?;
    drop(parent);
    Ok(child.id().cast_signed())
}

/// The command for an invocation, in a working directory.
pub(crate) fn build_command(
    invocation: Invocation,
    folder: Option<PathBuf>,
) -> Result<Command, SystemError> {
    let Invocation { arguments, environment, output } = invocation;
    let name = arguments.first().cloned().unwrap_or_default();
    let mut command = Command::new(&name);
    command.args(arguments.iter().skip(1)).envs(environment);
    if let Some(folder) = folder {
        command.current_dir(folder);
    }
    if let Some(output) = output {
        let copy = output.try_clone().map_err(|error| SystemError::Program { name, error })?;
        command.stdin(Stdio::null()).stdout(output).stderr(copy).process_group(0);
    }
    Ok(command)
}

/// Duplicates a file descriptor that other code owns.
///
/// # Errors
/// If the number is not an open file descriptor.
pub fn duplicate(descriptor: RawFd) -> io::Result<OwnedFd> {
    #[allow(unsafe_code, reason = "a number from Python is not an owned file descriptor")]
    // SAFETY: the kernel checks the number, and nothing else owns what it returns.
    let copy = unsafe {
        let copy = libc::fcntl(descriptor, libc::F_DUPFD_CLOEXEC, 3);
        if copy < 0 {
            return Err(io::Error::last_os_error());
        }
        OwnedFd::from_raw_fd(copy)
    };
    Ok(copy)
}

/// Runs in the first process of the namespace: forks, returns in the child, and continues as its
/// `init`.
#[allow(unsafe_code, reason = "system calls between fork and exec")]
fn become_init(parent: RawFd) -> io::Result<()> {
    // SAFETY: system calls on integers and stack memory.
    unsafe {
        if set_parent_death_signal(parent) {
            libc::_exit(0);
        }
        mount_private_proc_and_sys();
        fork_program(parent)
    }
}

/// Forks, returns in the child, which becomes the program, and continues as its supervisor.
#[allow(unsafe_code, reason = "fork, and signal handling of a process that never returns to Rust")]
pub(crate) unsafe fn fork_program(parent: RawFd) -> io::Result<()> {
    // SAFETY: system calls on integers and stack memory.
    unsafe {
        let mut all = MaybeUninit::<libc::sigset_t>::uninit();
        let mut none = MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigfillset(all.as_mut_ptr());
        libc::sigemptyset(none.as_mut_ptr());
        // A signal must not end the supervisor before it waits for signals.
        libc::sigprocmask(libc::SIG_SETMASK, all.as_ptr(), std::ptr::null_mut());
        match libc::fork() {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                // The program must not inherit the blocked signals.
                libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), std::ptr::null_mut());
                // For a supervisor that is killed.
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            }
            child => supervise(child, parent),
        }
    }
}

/// Mounts `/proc` and `/sys` for the new namespaces. If the kernel denies it, programs see those of
/// the machine, which is enough for most.
pub(crate) fn mount_private_proc_and_sys() {
    if unshare(UnshareFlags::NEWNS).is_ok() {
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        let _ = rustix::mount::mount(c"proc", c"/proc", c"proc", flags, None);
        let _ = rustix::mount::mount(c"sysfs", c"/sys", c"sysfs", flags, None);
    }
}

/// Forwards signals to the child, reaps orphans, and exits as the child exits. Kills the child if
/// the parent exits.
#[allow(unsafe_code, reason = "system calls of an init")]
unsafe fn supervise(child: libc::pid_t, parent: RawFd) -> ! {
    // SAFETY: system calls on integers and stack memory.
    unsafe {
        close_all_except(parent);
        let signals = InitSignals::block_all(parent);
        while let Some((signal, code)) = signals.next() {
            if signal == libc::SIGCHLD {
                reap(child);
            } else if code <= 0 {
                // Sent by a process. The terminal signals the child itself.
                libc::kill(child, signal);
            }
        }
        libc::kill(child, libc::SIGKILL);
        libc::_exit(128 + libc::SIGKILL);
    }
}

#[allow(unsafe_code, reason = "system calls of an init")]
unsafe fn reap(child: libc::pid_t) {
    // SAFETY: system calls on integers and stack memory.
    unsafe {
        loop {
            let mut status = 0;
            let ended = libc::waitpid(-1, &raw mut status, libc::WNOHANG);
            if ended <= 0 {
                return;
            }
            if ended == child {
                libc::_exit(if libc::WIFSIGNALED(status) {
                    128 + libc::WTERMSIG(status)
                } else {
                    libc::WEXITSTATUS(status)
                });
            }
        }
    }
}

/// Waits for the exit of a process without reaping it.
pub(crate) fn wait_for_exit(process: i32) {
    use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
    let Some(pid) = Pid::from_raw(process) else { return };
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    while let Err(rustix::io::Errno::INTR) = waitid(WaitId::Pid(pid), options) {}
}
