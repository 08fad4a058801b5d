//! How a process between fork and exec knows whether its maker has ended, and what it keeps open of it.
//!
//! Everything here but [`Maker::of_children`] is made of system calls on numbers and on the stack, as
//! between fork and exec it has to be.

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use rustix::process::{PidfdFlags, getpid, pidfd_open};

use crate::error::SystemError;

/// This process as those that it forks know it: by a descriptor that tells when it has ended. A pipe
/// does not tell: a child that is forked at the same time inherits its other end.
#[derive(Debug)]
pub(crate) struct Maker(OwnedFd);

impl Maker {
    /// That of children that are forked while it is there.
    pub(crate) fn of_children() -> Result<Self, SystemError> {
        pidfd_open(getpid(), PidfdFlags::empty()).map(Self).map_err(|error| {
            let fix = "run it on Linux 5.3 or newer, and allow the system call pidfd_open";
            SystemError::machine("watching this process", error, fix)
        })
    }

    /// Its number, in the children too.
    pub(crate) fn descriptor(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Asks to be killed when the thread ends that made this process. Whether the maker has ended already,
/// without which nobody would be told.
#[allow(unsafe_code, reason = "system calls between fork and exec")]
pub(crate) unsafe fn is_orphan(maker: RawFd) -> bool {
    // SAFETY: system calls on numbers and on the stack.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        let mut poll = libc::pollfd { fd: maker, events: libc::POLLIN, revents: 0 };
        // A maker that cannot be watched counts as ended.
        libc::poll(&raw mut poll, 1, 0) != 0
    }
}

/// The signals that wait for an `init`, all of which it has blocked, and the end of its maker.
pub(crate) struct Signals {
    maker: RawFd,
    descriptor: RawFd,
}

impl Signals {
    /// Blocks all signals. To be called once no more descriptors are closed.
    #[allow(unsafe_code, reason = "system calls of an init")]
    pub(crate) unsafe fn block_all(maker: RawFd) -> Self {
        // SAFETY: system calls on numbers and on the stack.
        unsafe {
            let mut all = MaybeUninit::<libc::sigset_t>::uninit();
            libc::sigfillset(all.as_mut_ptr());
            libc::sigprocmask(libc::SIG_SETMASK, all.as_ptr(), std::ptr::null_mut());
            Self { maker, descriptor: libc::signalfd(-1, all.as_ptr(), libc::SFD_CLOEXEC) }
        }
    }

    /// Waits for a signal; its number and its code, as sigaction(2) has them. Ends the process, and
    /// with it the namespace that it is the `init` of, when the maker ends: the signal that was asked
    /// for is not sent if the maker was ending just then.
    #[allow(unsafe_code, reason = "system calls of an init")]
    pub(crate) unsafe fn next(&self) -> (libc::c_int, libc::c_int) {
        let bytes = size_of::<libc::signalfd_siginfo>();
        // SAFETY: system calls on numbers and on the stack.
        unsafe {
            loop {
                let waiting = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
                let mut polled = [waiting(self.maker), waiting(self.descriptor)];
                libc::poll(polled.as_mut_ptr(), 2, -1);
                if polled[0].revents != 0 || polled[1].revents & !libc::POLLIN != 0 {
                    libc::_exit(128 + libc::SIGKILL);
                }
                let mut info = MaybeUninit::<libc::signalfd_siginfo>::zeroed();
                let read = libc::read(self.descriptor, info.as_mut_ptr().cast(), bytes);
                if read == bytes.cast_signed() {
                    let info = info.assume_init_ref();
                    return (info.ssi_signo.cast_signed(), info.ssi_code);
                }
            }
        }
    }
}

/// Closes all descriptors but the standard ones and one more.
///
/// An `init` that kept copies would keep devices and pipes open; and whoever starts a program waits for
/// one of these pipes to be closed.
#[allow(unsafe_code, reason = "system calls between fork and exec")]
pub(crate) unsafe fn close_all_but(kept: RawFd) {
    // SAFETY: system calls on numbers and on the stack.
    unsafe {
        let closed = (kept <= 3 || close_range(3, kept.cast_unsigned() - 1))
            && close_range(kept.max(2).cast_unsigned() + 1, libc::c_uint::MAX);
        // Before Linux 5.9 there is no close_range(2), and a container may not allow it.
        if !closed && !close_those_listed(kept) {
            close_possible(kept);
        }
    }
}

#[allow(unsafe_code, reason = "system calls between fork and exec")]
unsafe fn close_range(first: libc::c_uint, last: libc::c_uint) -> bool {
    // SAFETY: numbers go in.
    unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) == 0 }
}

/// Closes what `/proc` lists. False if there is no list.
#[allow(unsafe_code, reason = "system calls between fork and exec")]
unsafe fn close_those_listed(kept: RawFd) -> bool {
    // Of linux_dirent64: getdents(2).
    const LENGTH_AT: usize = 16;
    const NAME_AT: usize = 19;
    // SAFETY: system calls on numbers and on the stack.
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
                if let Some(descriptor) = number(&entry[NAME_AT.min(entry.len())..])
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

/// The number that a name ending in zero bytes is, if it is one.
fn number(name: &[u8]) -> Option<RawFd> {
    let mut digits = name.iter().take_while(|&&byte| byte != 0).peekable();
    digits.peek()?;
    digits.try_fold(0, |number: RawFd, byte| {
        let digit = byte.is_ascii_digit().then(|| RawFd::from(byte - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })
}

/// Closes whatever number a descriptor may have.
#[allow(unsafe_code, reason = "system calls between fork and exec")]
unsafe fn close_possible(kept: RawFd) {
    // As many as a process may be allowed to have; some containers allow a thousand times that.
    const DESCRIPTORS_MAX: libc::rlim_t = 1 << 20;
    // SAFETY: system calls on numbers and on the stack.
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

    /// Given a process with many descriptors, each way to close them leaves the standard ones and the
    /// one that is kept.
    #[test]
    #[allow(unsafe_code, reason = "descriptors are closed between fork and exec")]
    fn each_way_to_close_descriptors_closes_all_but_those_kept() {
        let many: Vec<_> = (0..100).map(|_| std::fs::File::open("/dev/null")).collect();
        let kept = many[50].as_ref().expect("it opens").as_raw_fd();
        let ways: [unsafe fn(RawFd) -> bool; 3] = [
            |kept| unsafe {
                close_all_but(kept);
                true
            },
            |kept| unsafe { close_those_listed(kept) },
            |kept| unsafe {
                close_possible(kept);
                true
            },
        ];
        for (way, close) in ways.into_iter().enumerate() {
            let mut command = Command::new("ls");
            command.arg("/proc/self/fd").stdout(Stdio::piped());
            // SAFETY: system calls between fork and exec.
            unsafe {
                command.pre_exec(move || {
                    let closed = close(kept);
                    // It was opened to be closed at exec.
                    libc::fcntl(kept, libc::F_SETFD, 0);
                    closed.then_some(()).ok_or(std::io::ErrorKind::Other.into())
                });
            }
            let output = command.output().expect("ls");
            let text = String::from_utf8_lossy(&output.stdout);
            // Its own of the folder has the least free number.
            let listed = if kept == 3 { [0, 1, 2, 3, 4] } else { [0, 1, 2, 3, kept] };
            let mut found: Vec<RawFd> = text.lines().filter_map(|line| line.parse().ok()).collect();
            found.sort_unstable();
            assert_eq!(found, listed, "way {way}");
        }
    }

    /// Given a maker that ends while a sibling has copies of all that it had open, a child that looks
    /// after that knows that it is an orphan, and not before.
    #[test]
    #[allow(unsafe_code, reason = "processes are forked")]
    fn a_child_knows_that_its_maker_has_ended_whatever_its_siblings_hold() {
        let (mut answers, writer) = std::io::pipe().expect("a pipe");
        let (hold, holder) = std::io::pipe().expect("a pipe");
        let (answer, held, holds) = (writer.as_raw_fd(), hold.as_raw_fd(), holder.as_raw_fd());
        // SAFETY: the children make system calls and touch their stack alone.
        let maker = unsafe {
            let maker = libc::fork();
            if maker == 0 {
                libc::close(holds);
                let Ok(watched) = pidfd_open(getpid(), PidfdFlags::empty()) else { libc::_exit(1) };
                let fd = watched.as_raw_fd();
                if libc::fork() == 0 {
                    // The sibling, until the test ends.
                    libc::close(answer);
                    libc::read(held, [0_u8].as_mut_ptr().cast(), 1);
                    libc::_exit(0);
                }
                let before = libc::getpid();
                if libc::fork() == 0 {
                    let first = is_orphan(fd);
                    // Not to be killed by what it asked for.
                    libc::prctl(libc::PR_SET_PDEATHSIG, 0);
                    libc::write(answer, [b'0' + u8::from(first)].as_ptr().cast(), 1);
                    while libc::getppid() == before {
                        libc::usleep(1_000);
                    }
                    let then = is_orphan(fd);
                    libc::write(answer, [b'0' + u8::from(then)].as_ptr().cast(), 1);
                    libc::_exit(0);
                }
                libc::pause();
            }
            maker
        };
        drop(writer);
        let mut first = [0];
        answers.read_exact(&mut first).expect("an answer");
        assert_eq!(first, [b'0']);
        // SAFETY: it is a child that nobody has waited for.
        unsafe {
            libc::kill(maker, libc::SIGKILL);
            libc::waitpid(maker, std::ptr::null_mut(), 0);
        }
        let mut then = String::new();
        answers.read_to_string(&mut then).expect("it is text");
        assert_eq!(then, "1");
        drop(holder);
    }

    #[test]
    fn only_digits_are_a_number() {
        assert_eq!(number(b"17\0\0"), Some(17));
        for other in [&b"."[..], b"..\0", b"", b"1x", b"99999999999"] {
            assert_eq!(number(other), None, "{other:?}");
        }
    }
}
