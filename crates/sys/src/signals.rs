//! Signals as something to wait for (signalfd(2)).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

/// The signals that end a program: SIGINT, SIGTERM and SIGHUP. They are blocked for the calling thread
/// and for threads and programs that it starts.
#[derive(Debug)]
pub struct EndSignals(OwnedFd);

impl EndSignals {
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
}

impl AsFd for EndSignals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
