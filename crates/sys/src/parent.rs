//! Parent-death handling and file descriptor cleanup for child processes between fork(2) and exec.
//!
//! Except for [`ParentPidfd::open`], everything here makes system calls on integers and stack
//! memory alone: between fork and exec nothing else is async-signal-safe.

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use rustix::process::{PidfdFlags, getpid, pidfd_open};

use crate::error::SystemError;

/// A pidfd of this process, by which its children detect that it has exited. A pipe is unsuitable: a
/// child forked at the same time inherits the write end.
#[derive(Debug)]
pub(crate) struct ParentPidfd(OwnedFd);

impl ParentPidfd {
    /// Opens the pidfd. Keep it open until the children have been forked.
    pub(crate) fn open() -> Result<Self, SystemError> {
        pidfd_open(getpid(), PidfdFlags::empty()).map(Self).map_err(|error| {
            let fix = "run it on Linux 5.3 or newer, and allow the system call pidfd_open";
            SystemError::machine("opening a pidfd of this process", error, fix)
        })
    }

    /// The file descriptor number, valid in children too.
    pub(crate) fn raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Sets the parent-death signal to SIGKILL (prctl(2), PR_SET_PDEATHSIG): it is sent when the thread
/// that forked this process exits. Returns whether the parent has exited already, in which case no
/// signal will be sent.
#[allow(unsafe_code, reason = "system calls between fork and exec")]
pub(crate) unsafe fn set_parent_death_signal(parent: RawFd) -> bool {
    // SAFETY: system calls on integers and stack memory.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        let mut poll = libc::pollfd { fd: parent, events: libc::POLLIN, revents: 0 };
        // A parent that cannot be polled counts as exited.
        libc::poll(&raw mut poll, 1, 0) != 0
    }
}

/// A signalfd(2) and the pidfd of the parent, polled together by a process that has blocked all
/// signals.
pub(crate) struct InitSignals {
    parent: RawFd,
    signalfd: RawFd,
}

impl InitSignals {
    /// Blocks all signals. Call this after the last file descriptor was closed.
    #[allow(unsafe_code, reason = "system calls of an init")]
    pub(crate) unsafe fn block_all(parent: RawFd) -> Self {
        // SAFETY: system calls on integers and stack memory.
        unsafe {
            let mut all = MaybeUninit::<libc::sigset_t>::uninit();
            libc::sigfillset(all.as_mut_ptr());
            libc::sigprocmask(libc::SIG_SETMASK, all.as_ptr(), std::ptr::null_mut());
            Self { parent, signalfd: libc::signalfd(-1, all.as_ptr(), libc::SFD_CLOEXEC) }
        }
    }

    /// Waits for a signal and returns its number and its `si_code` (sigaction(2)). `None` if the
    /// parent has exited: the parent-death signal is not sent if the parent exits while it is being
    /// set.
    #[allow(unsafe_code, reason = "system calls of an init")]
    pub(crate) unsafe fn next(&self) -> Option<(libc::c_int, libc::c_int)> {
        let bytes = size_of::<libc::signalfd_siginfo>();
        // SAFETY: system calls on integers and stack memory.
        unsafe {
            loop {
                let readable = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
                let mut polled = [readable(self.parent), readable(self.signalfd)];
                libc::poll(polled.as_mut_ptr(), 2, -1);
                if polled[0].revents != 0 || polled[1].revents & !libc::POLLIN != 0 {
                    return None;
                }
                let mut info = MaybeUninit::<libc::signalfd_siginfo>::zeroed();
                let read = libc::read(self.signalfd, info.as_mut_ptr().cast(), bytes);
                if read == bytes.cast_signed() {
                    let info = info.assume_init_ref();
                    return Some((info.ssi_signo.cast_signed(), info.ssi_code));
                }
            }
        }
    }
}

/// Closes all file descriptors but the standard ones and `kept`.
///
/// An inherited copy in an `init` would keep devices and pipes open, and `Command::spawn` waits for
/// one of these pipes to be closed.
#[allow(unsafe_code, reason = "system calls between fork and exec")]
pub(crate) unsafe fn close_all_except(kept: RawFd) {
    // SAFETY: system calls on integers and stack memory.
    unsafe {
        let closed = (kept <= 3 || close_range(3, kept.cast_unsigned() - 1))
            && close_range(kept.max(2).cast_unsigned() + 1, libc::c_uint::MAX);
        // close_range(2) needs Linux 5.9, and a container may deny it.
        if !closed && !close_listed_in_proc(kept) {
            close_up_to_limit(kept);
        }
    }
}

#[allow(unsafe_code, reason = "system calls between fork and exec")]
unsafe fn close_range(first: libc::c_uint, last: libc::c_uint) -> bool {
    // SAFETY: the arguments are integers.
    unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) == 0 }
}

/// Closes the file descriptors that `/proc/self/fd` lists. False if it cannot be read.
#[allow(unsafe_code, reason = "system calls between fork and exec")]
unsafe fn close_listed_in_proc(kept: RawFd) -> bool {
    // Offsets in `struct linux_dirent64`: getdents(2).
    const LENGTH_AT: usize = 16;
    const NAME_AT: usize = 19;
    // SAFETY: system calls on integers and stack memory.
    unsafe {
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
        let list = libc::open(c"/proc/self/fd".as_ptr(), flags);
        if list < 0 {
            return false;
        }
        let mut entries = [0_u8; 1024];
        loop {
            let read = libc::syscall(libc::SYS_getdents64, list, &raw mut entries, entries.len());
            let Ok(read @ 1..) = usize::try_from(read) else { break };
            let mut rest = &entries[..read];
            while let Some(&[low, high]) = rest.get(LENGTH_AT..LENGTH_AT + 2) {
                let (entry, others) =
                    rest.split_at(usize::from(u16::from_ne_bytes([low, high])).min(rest.len()));
                if let Some(descriptor) = parse_fd(&entry[NAME_AT.min(entry.len())..])
                    && descriptor > 2
                    && descriptor != kept
                    && descriptor != list
                {
                    libc::close(descriptor);
                }
                rest = others;
            }
        }
        libc::close(list);
        true
    }
}

/// Parses a zero-terminated decimal number.
fn parse_fd(name: &[u8]) -> Option<RawFd> {
    let mut digits = name.iter().take_while(|&&byte| byte != 0).peekable();
    digits.peek()?;
    digits.try_fold(0, |number: RawFd, byte| {
        let digit = byte.is_ascii_digit().then(|| RawFd::from(byte - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })
}

/// Closes every number that a file descriptor can have.
#[allow(unsafe_code, reason = "system calls between fork and exec")]
unsafe fn close_up_to_limit(kept: RawFd) {
    // The kernel's default maximum (`fs.nr_open`); some containers allow a thousand times as many.
    const DESCRIPTORS_MAX: libc::rlim_t = 1 << 20;
    // SAFETY: system calls on integers and stack memory.
    unsafe {
        let mut limit = libc::rlimit { rlim_cur: DESCRIPTORS_MAX, rlim_max: DESCRIPTORS_MAX };
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        for descriptor in 3..limit.rlim_cur.min(DESCRIPTORS_MAX) as RawFd {
            if descriptor != kept {
                libc::close(descriptor);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    /// Given a process with many file descriptors, expect each method to leave the standard ones
    /// and the kept one open.
    #[test]
    #[allow(unsafe_code, reason = "file descriptors are closed between fork and exec")]
    fn each_method_closes_all_file_descriptors_but_the_kept_one() {
        let many: Vec<_> = (0..100).map(|_| std::fs::File::open("/dev/null")).collect();
        let kept = many[50].as_ref().expect("/dev/null").as_raw_fd();
        let methods: [unsafe fn(RawFd) -> bool; 3] = [
            |kept| unsafe {
                close_all_except(kept);
                true
            },
            |kept| unsafe { close_listed_in_proc(kept) },
            |kept| unsafe {
                close_up_to_limit(kept);
                true
            },
        ];
        for (method, close) in methods.into_iter().enumerate() {
            let mut command = Command::new("ls");
            command.arg("/proc/self/fd").stdout(Stdio::piped());
            // SAFETY: system calls between fork and exec.
            unsafe {
                command.pre_exec(move || {
                    let closed = close(kept);
                    // It was opened with O_CLOEXEC.
                    libc::fcntl(kept, libc::F_SETFD, 0);
                    closed.then_some(()).ok_or(std::io::ErrorKind::Other.into())
                });
            }
            let output = command.output().expect("ls");
            let text = String::from_utf8_lossy(&output.stdout);
            // ls opens the directory at the lowest free number.
            let listed = if kept == 3 { [0, 1, 2, 3, 4] } else { [0, 1, 2, 3, kept] };
            let mut found: Vec<RawFd> = text.lines().filter_map(|line| line.parse().ok()).collect();
            found.sort_unstable();
            assert_eq!(found, listed, "method {method}");
        }
    }

    /// Given a parent that exits while a sibling holds copies of all its file descriptors, expect a
    /// child to detect the exit, and not before.
    #[test]
    #[allow(unsafe_code, reason = "processes are forked")]
    fn a_child_detects_the_exit_of_its_parent_whatever_its_siblings_hold_open() {
        let (mut answers, writer) = std::io::pipe().expect("a pipe");
        let (hold, holder) = std::io::pipe().expect("a pipe");
        let (answer, held, holds) = (writer.as_raw_fd(), hold.as_raw_fd(), holder.as_raw_fd());
        // SAFETY: the children make system calls and access their stacks alone.
        let parent = unsafe {
            let parent = libc::fork();
            if parent == 0 {
                libc::close(holds);
                let Ok(parent_fd) = pidfd_open(getpid(), PidfdFlags::empty()) else {
                    libc::_exit(1)
                };
                let fd = parent_fd.as_raw_fd();
                if libc::fork() == 0 {
                    // The sibling runs until the test ends.
                    libc::close(answer);
                    libc::read(held, [0_u8].as_mut_ptr().cast(), 1);
                    libc::_exit(0);
                }
                let before = libc::getpid();
                if libc::fork() == 0 {
                    let first = set_parent_death_signal(fd);
                    // Cancel the parent-death signal, which would kill this process.
                    libc::prctl(libc::PR_SET_PDEATHSIG, 0);
                    libc::write(answer, [b'0' + u8::from(first)].as_ptr().cast(), 1);
                    while libc::getppid() == before {
                        libc::usleep(1_000);
                    }
                    let then = set_parent_death_signal(fd);
                    libc::write(answer, [b'0' + u8::from(then)].as_ptr().cast(), 1);
                    libc::_exit(0);
                }
                libc::pause();
            }
            parent
        };
        drop(writer);
        let mut first = [0];
        answers.read_exact(&mut first).expect("an answer");
        assert_eq!(first, [b'0']);
        // SAFETY: it is a child that has not been waited for.
        unsafe {
            libc::kill(parent, libc::SIGKILL);
            libc::waitpid(parent, std::ptr::null_mut(), 0);
        }
        let mut then = String::new();
        answers.read_to_string(&mut then).expect("it is text");
        assert_eq!(then, "1");
        drop(holder);
    }

    #[test]
    fn only_decimal_digits_are_parsed() {
        assert_eq!(parse_fd(b"17\0\0"), Some(17));
        for other in [&b"."[..], b"..\0", b"", b"1x", b"99999999999"] {
            assert_eq!(parse_fd(other), None, "{other:?}");
        }
    }
}
