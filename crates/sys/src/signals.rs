//! Signals as something to wait for (signalfd(2)).

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;

/// A signal that a daemon handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGINT: Ctrl-C.
    Interrupt,
    /// SIGTERM: a service manager ends it.
    Terminate,
    /// SIGHUP: its terminal is gone, or someone expects it to read its configuration again.
    Hangup,
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Interrupt => "SIGINT",
            Self::Terminate => "SIGTERM",
            Self::Hangup => "SIGHUP",
        })
    }
}

/// The signals of [`Signal`]. They are blocked for the calling thread and for threads and programs that it starts.
#[derive(Debug)]
pub struct Signals(OwnedFd);

impl Signals {
    /// Blocks the signals, and returns a descriptor that is readable when one has arrived.
    ///
    /// # Errors
    /// The kernel's error.
    #[allow(unsafe_code, reason = "neither std nor rustix has signalfd")]
    pub fn block() -> io::Result<Self> {
        // SAFETY: the set is initialised by sigemptyset; a new descriptor has no other owner.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
                libc::sigaddset(&raw mut set, signal);
            }
            let blocked = libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
            if blocked < 0 {
                return Err(io::Error::last_os_error());
            }
            match libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) {
                descriptor if descriptor >= 0 => Ok(Self(OwnedFd::from_raw_fd(descriptor))),
                _ => Err(io::Error::last_os_error()),
            }
        }
    }

    /// The next signal that has arrived, if any.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn next(&self) -> io::Result<Option<Signal>> {
        // `struct signalfd_siginfo` begins with the number.
        let mut info = [0; size_of::<libc::signalfd_siginfo>()];
        match rustix::io::read(&self.0, &mut info) {
            Ok(_) => {}
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        let number = i32::from_ne_bytes([info[0], info[1], info[2], info[3]]);
        Ok(match number {
            libc::SIGINT => Some(Signal::Interrupt),
            libc::SIGTERM => Some(Signal::Terminate),
            libc::SIGHUP => Some(Signal::Hangup),
            _ => None,
        })
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
