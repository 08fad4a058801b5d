//! Namespaces: a network of its own for the hosts of one side of the link.
//!
//! A namespace has no name and no place in the file system. It lasts as long as something is in it
//! or holds it: this process, its devices and its programs. So nothing is left when the process ends,
//! by whatever signal.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread;

use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};
use rustix::thread::{LinkNameSpaceType, UnshareFlags};

use crate::diag::Diag;
use crate::error::SystemError;

/// The network and the mounts of one side.
#[derive(Debug)]
pub struct Namespace {
    net: OwnedFd,
    mounts: OwnedFd,
}

/// Where a file is made that is seen in its other place only, and gone with its namespace.
const SCRATCH: &str = "/tmp";

impl Namespace {
    /// A namespace with a loopback interface, in which `/etc/hosts` says `hosts`; `setup` does the
    /// rest from inside.
    ///
    /// # Errors
    /// What the kernel does not allow, or that of `setup`.
    pub fn new<T: Send, E: From<SystemError> + Send>(
        hosts: &str,
        setup: impl FnOnce() -> Result<T, E> + Send,
    ) -> Result<(Self, T), E> {
        inside(|| {
            unshare(UnshareFlags::NEWNET | UnshareFlags::NEWNS)
                .map_err(|error| SystemError::privileged("making a network namespace", error))?;
            let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
            rustix::mount::mount_change("/", private)
                .map_err(|error| SystemError::privileged("making mounts private", error))?;
            bind_mount_text("/etc/hosts", hosts)
                .map_err(|error| SystemError::privileged("naming hosts", error))?;
            loopback_up().map_err(|error| SystemError::privileged("taking lo up", error))?;
            let made = setup()?;
            let open = |name| {
                File::open(format!("/proc/thread-self/ns/{name}")).map(OwnedFd::from).map_err(
                    |error| SystemError::machine("holding a namespace", error, "mount /proc"),
                )
            };
            Ok((Self { net: open("net")?, mounts: open("mnt")? }, made))
        })
    }

    /// One that another process has made, by the descriptors of its network and its mounts.
    #[must_use]
    pub fn of([net, mounts]: [OwnedFd; 2]) -> Self {
        Self { net, mounts }
    }

    /// Copies of the descriptors of its network and its mounts, for another process.
    ///
    /// # Errors
    /// If the process has no descriptors left.
    pub fn descriptors(&self) -> io::Result<[OwnedFd; 2]> {
        Ok([self.net.try_clone()?, self.mounts.try_clone()?])
    }

    /// Does something in a thread of its own, inside.
    ///
    /// # Errors
    /// What the kernel does not allow, or that of `body`.
    pub fn run<T: Send, E: From<SystemError> + Send>(
        &self,
        body: impl FnOnce() -> Result<T, E> + Send,
    ) -> Result<T, E> {
        inside(|| {
            self.enter()?;
            body()
        })
    }

    /// Moves the calling thread inside. It cannot come back: it is to be one made for this.
    ///
    /// # Errors
    /// What the kernel does not allow.
    pub(crate) fn enter(&self) -> Result<(), SystemError> {
        // A thread that shares its root folder with others may not change it alone.
        let entered = unshare(UnshareFlags::FS)
            .and_then(|()| rustix::thread::move_into_link_name_space(self.mounts.as_fd(), None))
            .and_then(|()| rustix::thread::move_into_link_name_space(self.net.as_fd(), None));
        entered.map_err(|error| SystemError::privileged("entering a namespace", error))
    }
}

/// Makes the process root of a user namespace of its own, in which it may make the others. To be
/// called while it has one thread.
///
/// # Errors
/// If the kernel does not allow user namespaces, or the process has several threads.
pub fn become_root_of_user_namespace() -> Result<(), SystemError> {
    let (user, group) = (rustix::process::getuid(), rustix::process::getgid());
    let denied = |error: io::Error| {
        let fix = how_to_allow_user_namespaces(&error);
        SystemError::machine("making a user namespace", error, fix)
    };
    unshare(UnshareFlags::NEWUSER).map_err(|error| denied(error.into()))?;
    // Groups can be mapped only by who has given up changing them: user_namespaces(7).
    for (file, text) in [
        ("setgroups", "deny".to_owned()),
        ("uid_map", format!("0 {} 1", user.as_raw())),
        ("gid_map", format!("0 {} 1", group.as_raw())),
    ] {
        std::fs::write(format!("/proc/self/{file}"), text).map_err(denied)?;
    }
    Ok(())
}

/// What is to be changed on a machine that does not allow a user namespace: user_namespaces(7), and
/// settings of Debian and Ubuntu.
fn how_to_allow_user_namespaces(error: &io::Error) -> &'static str {
    let is_set_to = |setting, value| sysctl(setting).is_ok_and(|found| found == value);
    if error.raw_os_error() == Some(libc::ENOSPC) {
        "run it as root, or allow more user namespaces: sysctl user.max_user_namespaces=10000"
    } else if is_set_to("kernel.unprivileged_userns_clone", "0") {
        "run it as root, or allow user namespaces: sysctl kernel.unprivileged_userns_clone=1"
    } else if is_set_to("kernel.apparmor_restrict_unprivileged_userns", "1") {
        "run it as root, or allow user namespaces: \
         sysctl kernel.apparmor_restrict_unprivileged_userns=0"
    } else {
        "run it as root, or where user namespaces are allowed (a container may forbid them; kernels \
         need CONFIG_USER_NS)"
    }
}

/// Makes the process a member of a user namespace that another process of the same user has made. To be
/// called while it has one thread.
///
/// # Errors
/// If the kernel does not allow it, or the process has several threads.
pub fn join_user_namespace(namespace: BorrowedFd<'_>) -> Result<(), SystemError> {
    rustix::thread::move_into_link_name_space(namespace, Some(LinkNameSpaceType::User))
        .map_err(|error| SystemError::privileged("joining a user namespace", error))
}

/// Writes a kernel setting of the calling thread's network namespace.
///
/// # Errors
/// If there is no such setting, or it cannot be written here.
pub fn set_sysctl(name: &str, value: &str) -> io::Result<()> {
    std::fs::write(sysctl_path(name), value)
}

/// Reads a kernel setting of the calling thread's network namespace.
///
/// # Errors
/// If there is no such setting.
pub fn sysctl(name: &str) -> io::Result<String> {
    std::fs::read_to_string(sysctl_path(name)).map(|text| text.trim().to_owned())
}

fn sysctl_path(name: &str) -> String {
    format!("/proc/sys/{}", name.replace('.', "/"))
}

/// Whether a TCP server listens on a port of the calling thread's network namespace.
///
/// # Errors
/// If the kernel does not say.
pub fn is_listening(port: u16) -> io::Result<bool> {
    // A look into /proc goes through the machine's whole table of connections, some 16 ms of CPU time.
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

/// A namespace is a thread's, so what is to happen in one has a thread.
fn inside<T: Send, E: From<SystemError> + Send>(
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

pub(crate) fn unshare(flags: UnshareFlags) -> rustix::io::Result<()> {
    assert!(!flags.contains(UnshareFlags::FILES), "descriptors are shared");
    // SAFETY: the descriptor table stays shared, which is all that is asked for.
    #[allow(unsafe_code, reason = "the function's one condition is checked above")]
    unsafe {
        rustix::thread::unshare_unsafe(flags)
    }
}

/// Gives a file another content in the calling thread's mounts alone.
pub fn bind_mount_text(path: &str, content: &str) -> io::Result<()> {
    let file = format!("{SCRATCH}/content");
    rustix::mount::mount("tmpfs", SCRATCH, "tmpfs", MountFlags::empty(), None)?;
    let written =
        std::fs::write(&file, content).and_then(|()| Ok(rustix::mount::mount_bind(&file, path)?));
    rustix::mount::unmount(SCRATCH, UnmountFlags::DETACH)?;
    written
}

/// The one interface that a new network namespace has is down at first.
#[allow(unsafe_code, reason = "interfaces are taken up by ioctl (netdevice(7))")]
fn loopback_up() -> io::Result<()> {
    // SAFETY: plain numbers go in, a descriptor comes out, and it is closed below.
    let socket = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: all bytes zero is a valid request; the call reads and writes it alone.
    let done = unsafe {
        let mut request: libc::ifreq = std::mem::zeroed();
        request.ifr_name[..2].copy_from_slice(&[b'l' as libc::c_char, b'o' as libc::c_char]);
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
        libc::ioctl(socket, libc::SIOCSIFFLAGS, &request)
    };
    let result = if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) };
    // SAFETY: it was opened here, and nobody else knows of it.
    unsafe { libc::close(socket) };
    result
}
