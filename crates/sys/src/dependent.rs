//! Programs that end with the process that started them.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Lets the kernel kill a program when the thread that starts it ends (prctl(2), `PR_SET_PDEATHSIG`).
#[allow(unsafe_code, reason = "system calls between fork and exec")]
pub fn end_with_parent(command: &mut Command) -> &mut Command {
    let parent = std::process::id();
    // SAFETY: between fork and exec there are two system calls on integers, and no allocation.
    unsafe {
        command.pre_exec(move || {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) < 0 {
                return Err(io::Error::last_os_error());
            }
            // One that has ended before sends no signal.
            let is_orphan = libc::getppid().cast_unsigned() != parent;
            if is_orphan { Err(io::Error::from_raw_os_error(libc::ESRCH)) } else { Ok(()) }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::time::Duration;

    use super::*;

    /// Given a program that a thread started, expect it to be killed when the thread ends, long before its own end.
    #[test]
    fn a_program_is_killed_with_the_thread_that_started_it() {
        let start = || end_with_parent(Command::new("sleep").arg("100")).spawn();
        let thread = std::thread::spawn(move || {
            let child = start();
            std::thread::sleep(Duration::from_millis(20));
            child
        });
        let mut child = thread.join().expect("no panic").expect("it starts");
        let status = child.wait().expect("it ends");
        assert_eq!(status.signal(), Some(libc::SIGKILL));
    }
}
