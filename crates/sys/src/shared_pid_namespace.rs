//! A process namespace that the programs of a lab share which other processes start.
//!
//! Who keeps a lab is a process without a terminal, and programs want the terminal, the folder and the
//! session of the one who starts them: so they are started there, as children of that process, and join
//! the namespaces of the lab. That they end with the lab is the kernel's doing: the `init` of the
//! namespace is the keeper's child, is killed with it, and takes all that is in the namespace along.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::{Arc, mpsc};
use std::thread;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use crate::error::SystemError;
use crate::maker::{Maker, Signals, close_all_but, is_orphan};
use crate::netns::{Namespace, unshare};
use crate::program::{Invocation, command_of, own_views, wait_for_end};

/// A process namespace with nothing but an `init`; what joins it is killed when this is dropped or its
/// process ends.
#[derive(Debug)]
pub struct SharedPidNamespace {
    namespace: OwnedFd,
    init: i32,
}

impl SharedPidNamespace {
    /// A namespace of its own for the programs of a lab.
    ///
    /// # Errors
    /// If the kernel does not allow it.
    pub fn new() -> Result<Self, SystemError> {
        let (report, made) = mpsc::sync_channel(1);
        // The `init` is killed when the thread ends that made it.
        thread::Builder::new()
            .name("bentpipe-pids".to_owned())
            .spawn(move || {
                let pids = Self::make();
                let init = pids.as_ref().ok().map(|pids| pids.init);
                let _ = report.send(pids);
                if let Some(init) = init {
                    wait_for_end(init);
                }
            })
            .map_err(|error| {
                SystemError::machine("starting a thread", error, "allow more threads")
            })?;
        made.recv().expect("the thread reports before it ends")
    }

    fn make() -> Result<Self, SystemError> {
        let failed = |error| SystemError::privileged("making a process namespace", error);
        unshare(UnshareFlags::NEWPID).map_err(|error| failed(error.into()))?;
        let maker = Maker::of_children()?;
        let watched = maker.descriptor();
        // It becomes the `init` before it would be this program, and stays that.
        let mut command = Command::new("/");
        // SAFETY: between fork and exec the child makes system calls and touches its stack alone.
        #[allow(unsafe_code, reason = "an init is made between fork and exec")]
        unsafe {
            command.pre_exec(move || keep(watched));
        }
        let init = command.spawn().map_err(failed)?.id().cast_signed();
        drop(maker);
        let namespace = std::fs::File::open("/proc/thread-self/ns/pid_for_children")
            .map_err(|error| SystemError::machine("holding a namespace", error, "mount /proc"))?;
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

/// The `init`: buries orphans, until it is killed.
#[allow(unsafe_code, reason = "signals of a process that never returns to Rust")]
fn keep(maker: RawFd) -> io::Result<()> {
    // SAFETY: system calls on numbers and on the stack.
    unsafe {
        if is_orphan(maker) {
            libc::_exit(0);
        }
        close_all_but(maker);
        let signals = Signals::block_all(maker);
        loop {
            signals.next();
            while libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) > 0 {}
        }
    }
}

/// Starts a program in the namespaces of a lab that another process keeps, as a child of this one:
/// with its terminal, its folder and its session. The program ends with the lab and with this process;
/// what it leaves behind ends with the lab. The caller is to wait for it.
///
/// # Errors
/// If there is no such program, the lab has ended, or the kernel does not allow it.
pub fn join(
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
            // Who stands by is not to keep what has ended.
            drop(pids);
            let _ = report.send(process);
            if let Some(id) = id {
                wait_for_end(id);
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
        .map_err(|error| SystemError::privileged("joining the programs of a lab", error))?;
    let name = invocation.arguments.first().cloned().unwrap_or_default();
    let mut command = command_of(invocation, folder)?;
    let failed = |error: io::Error| SystemError::Program { name: name.clone(), error };
    let maker = Maker::of_children()?;
    let watched = maker.descriptor();
    // SAFETY: between fork and exec the child makes system calls and touches its stack alone.
    #[allow(unsafe_code, reason = "a process settles in between fork and exec")]
    unsafe {
        command.pre_exec(move || settle_in(watched));
    }
    match command.spawn() {
        Ok(child) => Ok(child.id().cast_signed()),
        // fork(2) in a process namespace whose init has ended.
        Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => Err(SystemError::machine(
            "joining the lab",
            error,
            "the lab has ended; set it up again",
        )),
        Err(error) => Err(failed(error)),
    }
}

#[allow(unsafe_code, reason = "system calls between fork and exec")]
fn settle_in(maker: RawFd) -> io::Result<()> {
    // SAFETY: system calls on numbers and on the stack.
    unsafe {
        if is_orphan(maker) {
            libc::_exit(0);
        }
        own_views();
        let mut none = MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigemptyset(none.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), std::ptr::null_mut());
    }
    Ok(())
}

/// What another process needs to [`join`] a side of a lab.
#[derive(Debug)]
pub struct Entrance {
    /// The network and the mounts of the side.
    pub namespace: [OwnedFd; 2],
    /// The processes of the lab.
    pub pids: OwnedFd,
}

impl Entrance {
    /// That of a side.
    ///
    /// # Errors
    /// If the process has no descriptors left.
    pub fn of(namespace: &Arc<Namespace>, pids: &SharedPidNamespace) -> io::Result<Self> {
        Ok(Self { namespace: namespace.descriptors()?, pids: pids.namespace.try_clone()? })
    }
}
