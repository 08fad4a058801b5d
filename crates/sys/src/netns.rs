//! Network and mount namespaces of hosts.
//!
//! A namespace has no name and no file. It lasts as long as a process is in it or a file descriptor
//! refers to it, so nothing remains when this process ends, even by a signal.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::thread;

use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};
use rustix::thread::UnshareFlags;

use crate::diag::Diag;
use crate::error::SystemError;
use crate::unshare::unshare;
use crate::{sysctl, user_namespace};

/// The network namespace and the mount namespace of one host.
#[derive(Debug)]
pub struct Namespace {
    net: OwnedFd,
    mounts: OwnedFd,
}

/// A tmpfs is mounted here while a file is created, bind-mounted to its destination and detached.
const SCRATCH: &str = "/tmp";

impl Namespace {
    /// Creates namespaces with a loopback interface that is up and `hosts` as `/etc/hosts`, then
    /// runs `setup` inside.
    ///
    /// # Errors
    /// The kernel's error, or that of `setup`.
    pub fn new<T: Send, E: From<SystemError> + Send>(
        hosts: &str,
        setup: impl FnOnce() -> Result<T, E> + Send,
    ) -> Result<(Self, T), E> {
        run_in_thread(|| {
            enter_new_network()?;
            unshare(UnshareFlags::NEWNS)
                .map_err(|error| SystemError::privileged("making a mount namespace", error))?;
            let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
            rustix::mount::mount_change("/", private)
                .map_err(|error| SystemError::privileged("making the mounts private", error))?;
            bind_mount_text("/etc/hosts", hosts)
                .map_err(|error| SystemError::privileged("writing /etc/hosts", error))?;
            loopback_up().map_err(|error| SystemError::privileged("bringing lo up", error))?;
            // Echo requests from datagram sockets, which need no capability: icmp(7). The range holds
            // groups of this user namespace, which may have only this one.
            let group = rustix::process::getegid().as_raw();
            let _ = sysctl::set("net.ipv4.ping_group_range", &format!("{group} {group}"));
            let output = setup()?;
            let open = |name| {
                File::open(format!("/proc/thread-self/ns/{name}")).map(OwnedFd::from).map_err(
                    |error| SystemError::machine("opening a namespace", error, "mount /proc"),
                )
            };
            Ok((Self { net: open("net")?, mounts: open("mnt")? }, output))
        })
    }

    /// Takes the file descriptors of a network namespace and a mount namespace that another process
    /// created.
    #[must_use]
    pub fn from_fds([net, mounts]: [OwnedFd; 2]) -> Self {
        Self { net, mounts }
    }

    /// Duplicates the file descriptors of the network namespace and the mount namespace, for
    /// another process.
    ///
    /// # Errors
    /// If the process has no file descriptors left.
    pub fn try_clone_fds(&self) -> io::Result<[OwnedFd; 2]> {
        Ok([self.net.try_clone()?, self.mounts.try_clone()?])
    }

    /// Runs `body` inside, in a thread of its own.
    ///
    /// # Errors
    /// The kernel's error, or that of `body`.
    pub fn run<T: Send, E: From<SystemError> + Send>(
        &self,
        body: impl FnOnce() -> Result<T, E> + Send,
    ) -> Result<T, E> {
        run_in_thread(|| {
            self.enter()?;
            body()
        })
    }

    /// Moves the calling thread inside, permanently: it must be a thread created for this.
    ///
    /// # Errors
    /// The kernel's error, such as EPERM.
    pub(crate) fn enter(&self) -> Result<(), SystemError> {
        // setns(2): a thread that shares its root directory with others cannot change its mount
        // namespace.
        let entered = unshare(UnshareFlags::FS)
            .and_then(|()| rustix::thread::move_into_link_name_space(self.mounts.as_fd(), None))
            .and_then(|()| rustix::thread::move_into_link_name_space(self.net.as_fd(), None));
        entered.map_err(|error| SystemError::privileged("entering a namespace", error))
    }
}

/// Whether a TCP server is listening on a port in the calling thread's network namespace.
///
/// # Errors
/// If the kernel does not report its sockets.
pub fn is_listening(port: u16) -> io::Result<bool> {
    // The fallback, /proc/net/tcp, walks the connection table of the whole machine: some 16 ms of
    // CPU time.
    Diag::open()
        .and_then(|mut diag| diag.is_listening(port))
        .or_else(|_| is_listening_by_proc(port))
}

pub(crate) fn is_listening_by_proc(port: u16) -> io::Result<bool> {
    let listens = |table: &str| -> io::Result<bool> {
        let text = std::fs::read_to_string(format!("/proc/thread-self/net/{table}"))?;
        let mut lines = text.lines().skip(1).map(|line| line.split_whitespace());
        Ok(lines.any(|mut words| {
            let (local, state) = (words.nth(1), words.nth(1));
            // 0A is TCP_LISTEN.
            state == Some("0A")
                && local.is_some_and(|local| local.ends_with(&format!(":{port:04X}")))
        }))
    };
    Ok(listens("tcp")? || listens("tcp6").unwrap_or(false))
}

/// Moves the calling thread into a new network namespace. Programs of root have all capabilities
/// there, those of another user if it owns the namespace.
fn enter_new_network() -> Result<(), SystemError> {
    let failed = |error| SystemError::privileged("making a network namespace", error);
    if rustix::process::geteuid().is_root() {
        return unshare(UnshareFlags::NEWNET).map_err(failed);
    }
    let network = user_namespace::create_network()?;
    rustix::thread::move_into_link_name_space(network.as_fd(), None).map_err(failed)
}

/// Namespaces belong to threads, so each operation inside one gets a thread.
fn run_in_thread<T: Send, E: From<SystemError> + Send>(
    body: impl FnOnce() -> Result<T, E> + Send,
) -> Result<T, E> {
    let failed = |error| SystemError::machine("starting a thread", error, "allow more threads");
    thread::scope(|scope| {
        let started = thread::Builder::new().spawn_scoped(scope, body).map_err(failed)?;
        match started.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// A folder that [`mount_private_folder`] gives a host of its own. Containers have their own, too.
pub const PRIVATE_FOLDER: &str = "/dev/shm";

/// Mounts an empty [`PRIVATE_FOLDER`] in the calling thread's mount namespace alone. It lasts as long
/// as the namespace.
///
/// # Errors
/// If there is no such folder, or the kernel's error.
pub fn mount_private_folder() -> io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    Ok(rustix::mount::mount("tmpfs", PRIVATE_FOLDER, "tmpfs", flags, None)?)
}

/// Replaces the content of a file in the calling thread's mount namespace alone.
pub fn bind_mount_text(path: &str, content: &str) -> io::Result<()> {
    let file = format!("{SCRATCH}/content");
    rustix::mount::mount("tmpfs", SCRATCH, "tmpfs", MountFlags::empty(), None)?;
    let written =
        std::fs::write(&file, content).and_then(|()| Ok(rustix::mount::mount_bind(&file, path)?));
    rustix::mount::unmount(SCRATCH, UnmountFlags::DETACH)?;
    written
}

/// Brings `lo` up: the only interface of a new network namespace is down.
#[allow(unsafe_code, reason = "netdevice(7) brings interfaces up by ioctl")]
fn loopback_up() -> io::Result<()> {
    // SAFETY: the arguments are integers; the file descriptor returned is closed below.
    let socket = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: zero is a valid request; the call accesses nothing else.
    let done = unsafe {
        let mut request: libc::ifreq = std::mem::zeroed();
        request.ifr_name[..2].copy_from_slice(&[b'l' as libc::c_char, b'o' as libc::c_char]);
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
        libc::ioctl(socket, libc::SIOCSIFFLAGS as _, &request)
    };
    let result = if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) };
    // SAFETY: it was opened here, and nothing else refers to it.
    unsafe { libc::close(socket) };
    result
}
