//! New namespaces of the calling thread: unshare(2).

use rustix::thread::UnshareFlags;

pub(crate) fn unshare(flags: UnshareFlags) -> rustix::io::Result<()> {
    assert!(!flags.contains(UnshareFlags::FILES), "other threads share the file descriptor table");
    // SAFETY: the file descriptor table stays shared, which is the function's one condition.
    #[allow(unsafe_code, reason = "the function's one condition is checked above")]
    unsafe {
        rustix::thread::unshare_unsafe(flags)
    }
}
