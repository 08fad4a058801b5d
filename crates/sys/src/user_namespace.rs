//! User namespaces of a process without privileges: one for the process, one for each network.
//!
//! The one of the process maps its user to itself, so programs in a lab keep their user. It gives
//! the process all capabilities, but execve(2) takes them from programs of users other than root.
//! Yet they need some for the lab's network, as ip(8), ping(8) and tcpdump(8) do. So a network
//! namespace belongs to a user namespace below that of the process: a process in the parent of a
//! user namespace, with the user id of its owner, has all capabilities in it (user_namespaces(7)).

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use crate::error::SystemError;
use crate::sysctl;
use crate::unshare::unshare;

/// Creates a user namespace in which the process keeps its user and its group and may create other
/// namespaces, and moves the process there. The process must be single-threaded.
///
/// # Errors
/// If the kernel does not allow user namespaces, or the process has several threads.
pub fn create() -> Result<(), SystemError> {
    let ids = Ids::of_process();
    let maps = Maps::new(&ids, ids.user, ids.group);
    unshare(UnshareFlags::NEWUSER)
        .map_err(io::Error::from)
        .and_then(|()| maps.write())
        .map_err(denied)
}

/// Moves the process into a user namespace that [`create`] made in another process of the same
/// user. The process must be single-threaded.
///
/// # Errors
/// The kernel's error, such as EPERM or, for a multithreaded process, EINVAL.
pub fn join(namespace: BorrowedFd<'_>) -> Result<(), SystemError> {
    move_into_link_name_space(namespace, Some(LinkNameSpaceType::User))
        .map_err(|error| SystemError::privileged("joining a user namespace", error))
}

/// Creates a network namespace that belongs to a new user namespace below that of the process, in
/// which the user is root.
///
/// # Errors
/// If the kernel does not allow it.
pub(crate) fn create_network() -> Result<OwnedFd, SystemError> {
    let mut child = NetworkChild { maps: Maps::new(&Ids::of_process(), 0, 0), made: None };
    clone_and_wait(&mut child).map_err(denied)?;
    child.made.unwrap_or_else(|| Err(io::ErrorKind::Interrupted.into())).map_err(denied)
}

/// What the child process of [`create_network`] reads and writes.
struct NetworkChild {
    maps: Maps,
    made: Option<io::Result<OwnedFd>>,
}

/// Runs [`run_child`] in a child process in new namespaces, since a process with several threads
/// cannot create a user namespace. It has the memory and the file descriptors of this process,
/// whose calling thread waits until it has exited: clone(2), CLONE_VFORK.
#[allow(unsafe_code, reason = "clone(2) has no safe form")]
fn clone_and_wait(child: &mut NetworkChild) -> io::Result<()> {
    const STACK_BYTES: usize = 64 * 1024;
    let flags = libc::CLONE_NEWUSER | libc::CLONE_NEWNET;
    let flags = flags | libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_FILES;
    let mut stack = vec![0_u128; STACK_BYTES / size_of::<u128>()];
    // SAFETY: the stack, which grows downwards and is aligned, and the argument outlive the child,
    // and nothing else accesses them meanwhile.
    unsafe {
        let top = stack.as_mut_ptr_range().end.cast();
        let process = libc::clone(run_child, top, flags, std::ptr::from_mut(child).cast());
        if process < 0 {
            return Err(io::Error::last_os_error());
        }
        // It sends no signal on exit, so waitpid(2) must be asked for it.
        libc::waitpid(process, std::ptr::null_mut(), libc::__WCLONE);
    }
    Ok(())
}

/// Maps the user in the new user namespace and opens the new network namespace.
#[allow(unsafe_code, reason = "the function of clone(2)")]
extern "C" fn run_child(argument: *mut libc::c_void) -> libc::c_int {
    // SAFETY: it is the argument of `clone_and_wait`, whose thread waits.
    let child = unsafe { &mut *argument.cast::<NetworkChild>() };
    child.made = Some(child.maps.write().and_then(|()| {
        let flags = libc::O_RDONLY | libc::O_CLOEXEC;
        // SAFETY: the name is zero-terminated, and nothing else owns what the kernel returns.
        unsafe {
            match libc::open(c"/proc/self/ns/net".as_ptr(), flags) {
                -1 => Err(io::Error::last_os_error()),
                network => Ok(OwnedFd::from_raw_fd(network)),
            }
        }
    }));
    0
}

/// The effective ids, which are those that a process may map: user_namespaces(7).
struct Ids {
    user: u32,
    group: u32,
}

impl Ids {
    fn of_process() -> Self {
        let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
        Self { user: user.as_raw(), group: group.as_raw() }
    }
}

/// The files that map a user and a group, with their content. gid_map can be written only after
/// setgroups(2) is disabled: user_namespaces(7).
struct Maps([(&'static CStr, CString); 3]);

impl Maps {
    fn new(outer: &Ids, user: u32, group: u32) -> Self {
        let line = |inner, outer| CString::new(format!("{inner} {outer} 1")).unwrap_or_default();
        Self([
            (c"/proc/self/setgroups", c"deny".to_owned()),
            (c"/proc/self/uid_map", line(user, outer.user)),
            (c"/proc/self/gid_map", line(group, outer.group)),
        ])
    }

    /// Writes the files, without allocating memory.
    #[allow(unsafe_code, reason = "system calls of a child that shares memory")]
    fn write(&self) -> io::Result<()> {
        for (path, text) in &self.0 {
            let text = text.as_bytes();
            // SAFETY: the name is zero-terminated; the text is read within its length.
            let written = unsafe {
                let file = libc::open(path.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
                if file < 0 {
                    return Err(io::Error::last_os_error());
                }
                let written = libc::write(file, text.as_ptr().cast(), text.len());
                let error = io::Error::last_os_error();
                libc::close(file);
                if written < 0 { Err(error) } else { Ok(()) }
            };
            written?;
        }
        Ok(())
    }
}

fn denied(error: io::Error) -> SystemError {
    let fix = how_to_allow(&error);
    SystemError::machine("making a user namespace", error, fix)
}

/// How to allow user namespaces: user_namespaces(7), and settings of Debian and Ubuntu.
fn how_to_allow(error: &io::Error) -> &'static str {
    let is_set_to = |setting, value| sysctl::get(setting).is_ok_and(|found| found == value);
    if error.raw_os_error() == Some(libc::ENOSPC) {
        "run it as root, or allow more user namespaces: sysctl user.max_user_namespaces=10000"
    } else if is_set_to("kernel.unprivileged_userns_clone", "0") {
        "run it as root, or allow user namespaces: sysctl kernel.unprivileged_userns_clone=1"
    } else if is_set_to("kernel.apparmor_restrict_unprivileged_userns", "1") {
        "run it as root, or allow user namespaces: \
         sysctl kernel.apparmor_restrict_unprivileged_userns=0"
    } else {
        "run it as root, or where user namespaces are allowed (a container may deny them; the kernel \
         needs CONFIG_USER_NS)"
    }
}
