//! Programs in a namespace, and the certainty that they end with us.
//!
//! A program is the child of an `init` of a process namespace of its own, and the kernel ends all that
//! is in such a namespace, grandchildren included, when its `init` ends. The `init` asks to be killed
//! when the thread that made it ends, which it does with the process.

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
use crate::maker::{Maker, Signals, close_all_but, is_orphan};
use crate::netns::{Namespace, unshare};

/// What to run.
#[derive(Debug, Default)]
pub struct Invocation {
    /// The program and its arguments.
    pub arguments: Vec<String>,
    /// Names and values that are set beside those that it inherits.
    pub environment: Vec<(String, String)>,
    /// Where its output goes, both kinds; that of this process if nothing is said. With output of
    /// its own it has no input.
    pub output: Option<OwnedFd>,
}

/// Starts a program in a namespace. Returns the process that ends as it ends, with its exit code or
/// with 128 and the number of the signal that ended it; signals sent there reach the program, and
/// killing it ends the program with all its descendants. The caller is to wait for it.
///
/// # Errors
/// If there is no such program, or the kernel allows no process namespace.
pub fn spawn(namespace: &Arc<Namespace>, invocation: Invocation) -> Result<i32, SystemError> {
    let (report, started) = mpsc::sync_channel(1);
    let namespace = Arc::clone(namespace);
    // Entering the mounts of a namespace leads to their root.
    let folder = std::env::current_dir().ok();
    // The thread lasts as long as the program: when it ends, the program is killed.
    thread::Builder::new()
        .name("bentpipe-program".to_owned())
        .spawn(move || {
            let process = namespace.enter().and_then(|()| start(invocation, folder));
            let id = process.as_ref().ok().copied();
            let _ = report.send(process);
            if let Some(id) = id {
                wait_for_end(id);
            }
        })
        .map_err(|error| SystemError::machine("starting a thread", error, "allow more threads"))?;
    started.recv().expect("the thread reports before it ends")
}

fn start(invocation: Invocation, folder: Option<PathBuf>) -> Result<i32, SystemError> {
    let name = invocation.arguments.first().cloned().unwrap_or_default();
    let failed = |error| SystemError::Program { name: name.clone(), error };
    unshare(UnshareFlags::NEWPID)
        .map_err(|error| SystemError::privileged("making a process namespace", error))?;
    let maker = Maker::of_children()?;
    let mut command = command_of(invocation, folder)?;
    let watched = maker.descriptor();
    // SAFETY: between fork and exec the child makes system calls and touches its stack alone.
    #[allow(unsafe_code, reason = "an init is made between fork and exec")]
    unsafe {
        command.pre_exec(move || become_init(watched));
    }
    let child = command.spawn().map_err(failed)?;
    drop(maker);
    Ok(child.id().cast_signed())
}

/// The command of an invocation, in a folder.
pub(crate) fn command_of(
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
        command.stdin(Stdio::null()).stdout(output).stderr(copy);
    }
    Ok(command)
}

/// A descriptor of ours for an open file that somebody else has a descriptor for.
///
/// # Errors
/// If nothing is open under that number.
pub fn duplicate(descriptor: RawFd) -> io::Result<OwnedFd> {
    #[allow(unsafe_code, reason = "numbers from other languages are no owned descriptors")]
    // SAFETY: the kernel checks the number, and what it returns belongs to nobody yet.
    let copy = unsafe {
        let copy = libc::fcntl(descriptor, libc::F_DUPFD_CLOEXEC, 3);
        if copy < 0 {
            return Err(io::Error::last_os_error());
        }
        OwnedFd::from_raw_fd(copy)
    };
    Ok(copy)
}

/// In the first process of the namespace: forks, returns in the child, and is its `init` from then on.
#[allow(unsafe_code, reason = "fork, and signals of a process that never returns to Rust")]
fn become_init(maker: RawFd) -> io::Result<()> {
    // SAFETY: system calls on numbers and on the stack.
    unsafe {
        if is_orphan(maker) {
            libc::_exit(0);
        }
        own_views();
        let mut all = MaybeUninit::<libc::sigset_t>::uninit();
        let mut none = MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigfillset(all.as_mut_ptr());
        libc::sigemptyset(none.as_mut_ptr());
        // None is to end the `init` before it waits for them.
        libc::sigprocmask(libc::SIG_SETMASK, all.as_ptr(), std::ptr::null_mut());
        match libc::fork() {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                // Whatever we wait for ourselves, the program is to hear.
                libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), std::ptr::null_mut());
                Ok(())
            }
            child => init(child, maker),
        }
    }
}

/// `/proc` and `/sys` as seen from the new namespaces. Where the kernel does not allow it, programs
/// see those of the machine, which hurts few.
pub(crate) fn own_views() {
    if unshare(UnshareFlags::NEWNS).is_ok() {
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        let _ = rustix::mount::mount(c"proc", c"/proc", c"proc", flags, None);
        let _ = rustix::mount::mount(c"sysfs", c"/sys", c"sysfs", flags, None);
    }
}

/// Passes signals on, buries orphans, and ends as the child ends.
#[allow(unsafe_code, reason = "system calls of an init")]
unsafe fn init(child: libc::pid_t, maker: RawFd) -> ! {
    // SAFETY: system calls on numbers and on the stack.
    unsafe {
        close_all_but(maker);
        let signals = Signals::block_all(maker);
        loop {
            let (signal, code) = signals.next();
            if signal == libc::SIGCHLD {
                bury(child);
            } else if code <= 0 {
                // From a process, not from the terminal, which tells the child by itself.
                libc::kill(child, signal);
            }
        }
    }
}

#[allow(unsafe_code, reason = "system calls of an init")]
unsafe fn bury(child: libc::pid_t) {
    // SAFETY: system calls on numbers and on the stack.
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

/// Waits until a process has ended, and leaves it to be waited for.
pub(crate) fn wait_for_end(process: i32) {
    use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
    let Some(pid) = Pid::from_raw(process) else { return };
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    while let Err(rustix::io::Errno::INTR) = waitid(WaitId::Pid(pid), options) {}
}
